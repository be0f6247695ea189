"""Compares bands of the Laplace approximation with those of ensembles.

    python scripts/accuracy/laplace_and_ensemble_bands.py [--sets 10]

Each data set has four trajectories of a damped oscillator with a stiffening spring, 41 rows each, with noise of 0.1,
and four others for the test. A network of width 16 is fitted with fitted starts and a prior. Printed are the share of
the test's measurements within the 90 % bands, which no validation data calibrate, their mean width, and seconds from
the data to the bands, compilation included.
"""

import argparse
import functools
import statistics
import time

import numpy as np
from scipy.integrate import solve_ivp

import node_fit

ROWS, END, NOISE = 41, 10.0, 0.1
CONTENDERS = {
    "Laplace, 32 members": node_fit.Members(32, vary="laplace"),
    "8 members, vary=both": node_fit.Members(8, vary="both"),
    "8 members, vary=seeds": node_fit.Members(8, vary="seeds"),
}


def trajectories(rng: np.random.Generator, count: int) -> node_fit.Dataset:
    ts, found = np.linspace(0, END, ROWS), []
    for _ in range(count):
        start = (rng.uniform(1, 2), rng.uniform(-0.5, 0.5))
        rates = lambda t, y: [y[1], -y[0] - 0.2 * y[1] - 0.3 * y[0] ** 3]  # noqa: E731
        found.append(solve_ivp(rates, (0, END), start, t_eval=ts, rtol=1e-8).y.T)
    ys = np.array(found)
    return node_fit.Dataset.from_arrays(ts, ys + NOISE * rng.normal(size=ys.shape), states=["x", "v"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=10)
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTENDERS}
    for number in range(parser.parse_args().sets):
        rng = np.random.default_rng(number)
        train, test = trajectories(rng, 4), trajectories(rng, 4)
        for name, members in CONTENDERS.items():
            began = time.perf_counter()
            fit = node_fit.fit(
                train,
                field=functools.partial(node_fit.MLP, width=16),
                start=node_fit.Fitted,
                options=node_fit.Options(penalty=node_fit.Penalty(ridge=0.1), ensemble=members, seed=number),
            )
            bands = fit.bands(test, level=0.9)
            seconds = time.perf_counter() - began
            assert bands.lower is not None and bands.upper is not None
            inside = (bands.lower <= test.ys) & (test.ys <= bands.upper)
            figures[name].append((float(inside[test.mask].mean()), float((bands.upper - bands.lower).mean()), seconds))
    print("| bands | covered | extremes | width | seconds |\n|---|---|---|---|---|")
    for name, rows in figures.items():
        covered, widths, seconds = zip(*rows, strict=True)
        print(
            f"| {name} | {statistics.mean(covered):.1%} | {min(covered):.0%} to {max(covered):.0%} | "
            f"{statistics.mean(widths):.3f} | {statistics.median(seconds):.1f} |"
        )


if __name__ == "__main__":
    main()
