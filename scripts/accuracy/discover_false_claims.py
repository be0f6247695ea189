"""Counts equations that `discover` claims on records without one: noise, random walks, and delayed systems.

    python scripts/accuracy/discover_false_claims.py [--seed 0] [--effort quick] [--rows 150]

The delayed system is that of M. Mackey and L. Glass (1977), of which only the present state is given.
"""

import argparse

import numpy as np

from node_fit.data.dataset import Dataset
from node_fit.fitting.discovery import discover

EACH = 10


def delay(draw: np.random.Generator, rows: int) -> np.ndarray:
    """Rows of a Mackey-Glass series with a delay of 17 to 25, by Euler's method with steps of 0.1."""
    lag, step = int(draw.uniform(170, 250)), 0.1
    series = list(draw.uniform(0.5, 1.2, 1) + 0.05 * draw.standard_normal(lag + 1))
    for _ in range(6000):
        past = series[-lag]
        series.append(series[-1] + step * (0.2 * past / (1 + past**10) - 0.1 * series[-1]))
    return np.array(series[3000::20][:rows])[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", default="normal", choices=("quick", "normal", "thorough"))
    parser.add_argument("--rows", type=int, default=150, help="rows of each record")
    given = parser.parse_args()
    draw, t = np.random.default_rng(given.seed), np.linspace(0, 10, given.rows)
    makers = {
        "noise": lambda: draw.standard_normal((given.rows, 2)),
        "random walk": lambda: draw.standard_normal((given.rows, 2)).cumsum(0),
        "delay": lambda: delay(draw, given.rows),
    }
    claims = sets = 0
    for at in range(EACH):
        for what, make in makers.items():
            found = discover(Dataset.from_arrays(t, make()), effort=given.effort, resamples=0, symbolic=False)
            claims, sets = claims + found.explained, sets + 1
            print(f"{what} {at}: {found.verdict}", flush=True)
            print(f"  so far: {claims} claims in {sets} sets", flush=True)


if __name__ == "__main__":
    main()
