"""What a prior brings to networks of short records: simulated tables of fewer than 200 values, with known truth.

    python scripts/accuracy/short_records.py [--ridges auto 0 0.1] [--seeds 3] [--only cooling] [--effort quick]

fits each record with each weight of the prior (`penalty.ridge`), and prints errors as shares of the spread, without
noise: of rows that come later or of other trajectories (`new`), and from other starts (`elsewhere`). The last line has
geometric means of the ratios to the first weight.
"""

import argparse
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import node_fit as nf

sys.path.insert(0, str(Path(__file__).parent))
from judgement import KINDS as LONGER
from judgement import Kind, at, clean_error, constant, first, make_sample, near, nothing, switched


def whole(x, u):
    return x


def root(x):
    return max(x, 0.0) ** 0.5


def kind(rates, start, step, rows, count, noise, measure=first, draw=nothing):
    return Kind(rates, measure, draw, start, step, rows, count, noise)


KINDS = {
    "saturated decay": kind(lambda x, u, t: (-x[0] / (0.3 + x[0]),), near((1.5,), (2.5,)), 0.12, 28, 1, 0.02),
    "cooling": kind(
        lambda x, u, t: (-0.3 * (x[0] - 0.2) - 0.1 * (x[0] - 0.2) ** 2,), near((1.5,), (2.5,)), 0.3, 31, 1, 0.02
    ),
    "growth": kind(lambda x, u, t: (0.9 * x[0] * (1 - x[0]),), near((0.05,), (0.1,)), 0.35, 27, 1, 0.04),
    "spring": kind(lambda x, u, t: (x[1], -2 * x[0] - 0.3 * x[1]), near((1, -1), (2, 1)), 0.25, 45, 1, 0.04, whole),
    "prey and hunters": kind(
        lambda x, u, t: (x[0] - 0.8 * x[0] * x[1], 0.6 * x[0] * x[1] - 0.7 * x[1]),
        near((0.8, 0.8), (2, 1.5)),
        *(0.35, 50, 1, 0.05, whole),
    ),
    "van der Pol": kind(
        lambda x, u, t: (x[1], 1.2 * (1 - x[0] ** 2) * x[1] - x[0]), near((-1, -1), (1, 1)), 0.25, 55, 1, 0.05, whole
    ),
    "decays": kind(lambda x, u, t: (-0.6 * max(x[0], 0.0) ** 1.5,), near((0.6,), (2.5,)), 0.4, 12, 5, 0.03),
    "pendulum": kind(
        lambda x, u, t: (x[1], -2 * np.sin(x[0]) - 0.2 * x[1]), near((-1.5, -1.5), (1.5, 1.5)), 0.25, 24, 3, 0.03, whole
    ),
    "two rests": kind(lambda x, u, t: (x[0] - x[0] ** 3 + 0.2,), near((-1.8,), (1.8,)), 0.3, 14, 7, 0.03),
    "Brusselator": kind(
        lambda x, u, t: (1 + x[0] ** 2 * x[1] - 3.2 * x[0], 2.2 * x[0] - x[0] ** 2 * x[1]),
        near((0.8, 1.5), (1.6, 2.5)),
        *(0.3, 60, 1, 0.04, whole),
    ),
    "switched": kind(
        lambda x, u, t: (u[0] - 0.7 * x[0] - 0.3 * x[0] ** 3,),
        at(
            0,
        ),
        *(0.25, 120, 1, 0.03, first, switched(-1, 1, 12)),
    ),
    "steps": kind(
        lambda x, u, t: (u[0] - 0.7 * x[0] - 0.3 * x[0] ** 3,),
        near((-0.5,), (0.5,)),
        *(0.3, 15, 7, 0.03, first, constant(-1.5, 1.5)),
    ),
}

# Records whose inputs act through states that are not measured.
KINDS |= {
    "heater unseen": kind(
        lambda x, u, t: (0.3 * (x[1] - x[0]) - 0.1 * x[0], u[0] - 0.8 * (x[1] - x[0])),
        *(at(0, 0), 0.5, 120, 1, 0.02, first, switched(0, 1, 11)),
    ),
    "current unseen": kind(
        lambda x, u, t: (1.1 * x[1] - 0.3 * x[0], 2 * u[0] - 1.5 * x[1] - 0.7 * x[0]),
        *(at(0, 0), 0.25, 150, 1, 0.02, first, switched(-1, 1, 6)),
    ),
    "two tanks above": kind(
        lambda x, u, t: (0.4 * x[1] - 0.3 * x[0], 0.5 * x[2] - 0.4 * x[1], u[0] - 0.5 * x[2]),
        *(at(0.5, 0.5, 0.5), 0.6, 130, 1, 0.02, first, switched(0, 1, 8)),
    ),
    "valve that saturates": kind(
        lambda x, u, t: (np.tanh(2 * x[1]) - 0.5 * x[0], u[0] - 0.6 * x[1]),
        *(at(0, 0), 0.4, 130, 1, 0.02, first, switched(-1, 1, 6)),
    ),
}
# Records of 200 values or more whose states are all measured, and whose inputs are held.
KINDS |= {
    "dilution of a reactor": kind(
        lambda x, u, t: (u[0] * (1 - x[0]) - 0.8 * x[0] ** 2, 0.8 * x[0] ** 2 - u[0] * x[1]),
        *(at(1, 0), 0.5, 180, 1, 0.02, whole, switched(0.1, 0.8, 11)),
    ),
    "pest that is sprayed": kind(
        lambda x, u, t: (
            0.6 * x[0] * (1 - x[0] / 10) - 0.25 * x[0] * x[1] / (1 + 0.1 * x[0]),
            0.1 * x[0] * x[1] - (0.5 + u[0]) * x[1],
        ),
        *(at(4, 2), 0.35, 180, 1, 0.02, whole, switched(0, 0.3, 12)),
    ),
    "gene that is induced": kind(
        lambda x, u, t: (u[0] / (1 + x[1] ** 2) - 0.3 * x[0], 0.5 * x[0] - 0.2 * x[1]),
        *(at(1, 1), 0.7, 180, 1, 0.02, whole, switched(0.2, 2, 12)),
    ),
    "prey that is fed": kind(
        lambda x, u, t: (0.3 * u[0] - 0.2 * x[0] - 0.1 * x[0] * x[1], 0.1 * x[0] * x[1] - 0.15 * x[1]),
        *(at(1, 1), 1.0, 180, 1, 0.02, whole, switched(0.5, 2, 12)),
    ),
    "tanks with valves": kind(
        lambda x, u, t: (0.3 * u[0] - 0.4 * root(x[0]), 0.4 * root(x[0]) - 0.3 * root(x[1])),
        *(at(1, 1), 0.6, 180, 1, 0.01, whole, switched(0.2, 2, 12)),
    ),
    "mixer of hot and cold": kind(
        lambda x, u, t: (
            0.3 * u[0] + 0.2 * u[1] - 0.3 * root(x[0]),
            0.2 * u[0] * (6 - x[1]) + 0.15 * u[1] * (1.5 - x[1]),
        ),
        *(at(1.5, 3), 0.6, 180, 1, 0.01, whole, switched(0.2, 1.5, 12, channels=2)),
    ),
    "three tanks in a row": kind(
        lambda x, u, t: (
            0.4 * u[0] - 0.3 * root(x[0]),
            0.3 * root(x[0]) - 0.25 * x[1],
            0.25 * x[1] - 0.1 * x[2] - 0.05 * x[2] ** 2,
        ),
        *(at(1, 1, 1), 0.8, 180, 1, 0.02, whole, switched(0.3, 1.5, 12)),
    ),
}
# Records whose channel responds to its input at once.
KINDS |= {
    "current of a motor": kind(
        lambda x, u, t: (1.5 * (3 * u[0] - 0.6 * x[0]) - 0.8 * np.tanh(4 * x[0]),),
        *(at(0), 0.15, 140, 1, 0.02, lambda x, u: ((3 * u[0] - 0.6 * x[0]) / 0.8,), switched(-1, 1, 8)),
    ),
    "pressure behind a pump": kind(
        lambda x, u, t: (0.5 * u[0] - 0.4 * np.sqrt(max(x[0], 1e-3)),),
        *(at(0.5), 0.5, 120, 1, 0.02, lambda x, u: (x[0] + 0.5 * u[0],), switched(0.2, 1, 8)),
    ),
    "voltage of a battery": kind(
        lambda x, u, t: (-u[0] / 170, (0.04 * u[0] - x[1]) / 1.5),
        *(at(1, 0), 0.5, 150, 1, 0.01),
        lambda x, u: (3.2 + 0.7 * x[0] + 0.12 * np.log(np.maximum(x[0], 0.0) + 0.02) - 0.06 * u[0] - x[1],),
        switched(0, 2, 8),
    ),
}
KINDS["voltage of 600 rows"] = replace(KINDS["voltage of a battery"], rows=600, step=0.12)
KINDS |= {name: LONGER[name] for name in ("doses", "chain", "infected")}


def error_elsewhere(model, sample):
    """The median error on trajectories from other starts, as a share of the spread."""
    squares = ((np.asarray(model.predict(sample.elsewhere)) - sample.elsewhere.ys) / sample.spread) ** 2
    return float(np.median(squares.mean(axis=(1, 2))) ** 0.5)


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ridges", nargs="*", default=["auto", "0", "0.1"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(KINDS))
    parser.add_argument("--effort", default="quick")
    args = parser.parse_args()
    figures = []
    print("| record | seed | ridge | verdict | new | elsewhere | seconds |\n|---|---|---|---|---|---|---|", flush=True)
    for name in args.only:
        for seed in range(args.first, args.first + args.seeds):
            sample = make_sample(KINDS[name], [seed, *name.encode()])
            splits, rows = sample.known.split(test=0), []
            for ridge in args.ridges:
                penalty = nf.Penalty(ridge="auto" if ridge == "auto" else float(ridge))
                options = nf.Options(seed=seed, effort=args.effort, penalty=penalty)
                began = time.perf_counter()
                fit = nf.fit(splits.train, validation=splits.validation, options=options, progress=False)
                seconds = time.perf_counter() - began
                rows.append((clean_error(fit.model, sample), error_elsewhere(fit.model, sample), seconds))
                new, elsewhere, seconds = rows[-1]
                verdict = fit.assess().verdict.kind
                print(
                    f"| {name} | {seed} | {ridge} | {verdict} | {new:.3f} | {elsewhere:.3f} | {seconds:.0f} |",
                    flush=True,
                )
            figures.append(rows)
    ratios = np.array(figures) / np.array(figures)[:, :1]
    for ridge, (new, elsewhere, seconds) in zip(args.ridges, np.exp(np.log(ratios).mean(axis=0)), strict=True):
        print(f"ridge={ridge}: {new:.2f} of the error, {elsewhere:.2f} elsewhere, {seconds:.2f} of the seconds")


if __name__ == "__main__":
    main()
