"""Counts what training further on all rows gives: errors on test data before and after, on simulated driven records.

    python scripts/accuracy/refit.py [--seeds 2] [--only motor reactor] [--effort normal]

prints a table in Markdown. Each record has 1,000 rows of one input and one of two states, with 3 % noise: 55 % to fit,
15 % to choose by, and 30 % to test. `before` is the NRMSE of the model that validation data have chosen, `after` of the
one that was trained on them, too, and `seconds` the time of the whole fit; a dash, where it is no better on these rows
and is not kept, or nothing was held out of windows with a prior.
"""

import argparse
import time

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf

ROWS, NOISE = 1_000, 0.03
TRAIN_END, VALIDATION_END = 550, 700


def steps(rng):
    return np.repeat(rng.uniform(-1.5, 1.5, ROWS // 25), 25)


def noise(rng):
    smooth = np.convolve(rng.normal(size=ROWS), np.hanning(17), "same")
    return smooth / smooth.std()


def sines(rng):
    at = np.arange(ROWS) / ROWS
    waves = [np.cos(2 * np.pi * 1.3 * k * at + rng.uniform(0, 6)) for k in range(1, 25)]
    return np.sum(waves, axis=0) / 3.5


# Of each system: the derivatives of its two states, what is measured, the time between rows, and the input.
SYSTEMS = {
    "motor": (lambda x, v, u: (v, 1.5 * u - 0.8 * v - 0.5 * np.tanh(8 * v)), lambda x, v: v, 0.2, steps),
    "reactor": (
        lambda x, s, u: (x * (s / (0.5 + s) - 0.4 - 0.1 * u), (0.4 + 0.1 * u) * (2.5 - s) - 1.6 * x * s / (0.5 + s)),
        lambda x, s: x,
        0.5,
        steps,
    ),
    "radiator": (
        lambda x, y, u: (np.maximum(u, 0) - 0.4 * (x - y), 0.3 * (x - y) - 0.02 * ((1 + y) ** 4 - 1)),
        lambda x, y: y,
        0.6,
        sines,
    ),
    "van der pol": (lambda x, v, u: (v, (1 - x**2) * v - x + 0.8 * u), lambda x, v: x, 0.25, noise),
    "duffing": (lambda x, v, u: (v, u - 0.4 * v - x - 0.6 * x**3), lambda x, v: x, 0.25, noise),
    "bilinear": (
        lambda x, y, u: (u - x * (1 + 0.4 * u), 2 * (x - y) + 0.3 * x * y),
        lambda x, y: y,
        0.2,
        sines,
    ),
}


def simulate(name, seed):
    """A noisy record of a system, in the three parts."""
    derivative, measure, step, draw = SYSTEMS[name]
    rng = np.random.default_rng([seed, *name.encode()])
    ts, us = step * np.arange(ROWS), draw(rng)
    start = [1.0, 1.0] if name == "reactor" else [0.0, 0.0]
    found = solve_ivp(
        lambda t, y: derivative(*y, np.interp(t, ts, us)), (0, ts[-1]), start, t_eval=ts, rtol=1e-8, max_step=step
    )
    clean = measure(*found.y)
    ys = clean + NOISE * clean.std() * rng.standard_normal(ROWS)
    parts = (slice(0, TRAIN_END), slice(TRAIN_END, VALIDATION_END), slice(VALIDATION_END, ROWS))
    return [
        nf.Dataset.from_arrays(ts[part], ys[None, part, None], us[None, part, None], states=["y"], inputs=["u"])
        for part in parts
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--effort", default="normal")
    args = parser.parse_args()
    print("| record | seed | validation | before | after | seconds |\n|---|---|---|---|---|---|")
    for name in args.only:
        for seed in range(args.seeds):
            train, validation, test = simulate(name, seed)
            began = time.perf_counter()
            options = nf.Options(seed=seed, effort=args.effort)
            fit = nf.fit(train, validation=validation, options=options, progress=False)
            seconds = time.perf_counter() - began
            chosen = fit.validated or fit.model
            after = "-" if fit.validated is None else f"{nf.score(fit.model, test).nrmse:.4f}"
            held, before = nf.score(chosen, validation).nrmse, nf.score(chosen, test).nrmse
            print(f"| {name} | {seed} | {held:.4f} | {before:.4f} | {after} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
