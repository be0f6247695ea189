"""Counts how well linear systems of many states are identified from records without inputs, and of what else.

    python scripts/accuracy/free_responses.py [--records 40] [--first 30000]

Of each kind, records of 150 to 2,000 rows and one to three channels are simulated, with noise of .5 to 10 % of the
spread. `ring-down`, `beats` and `tide` are sums of modes: damped, slightly damped and close, and undamped. `decays` are
sums of exponentials, which are left to equations. The others are nonlinear, and one of their states is measured. A
system is right if it has the modes of the simulation, and no others. Errors are free simulations of the last fifth of a
record, relative to the noise. The result is printed as a table in Markdown.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import node_fit
from node_fit.fitting.long_records import fit_long_record

ROWS, NOISES = (150, 300, 600, 2000), (0.005, 0.02, 0.05, 0.1)
SUMS, NONLINEAR = ("ring-down", "beats", "tide", "decays"), ("van der Pol", "pendulum", "Duffing", "Lotka-Volterra")
# Steps between two rows, and errors up to which only the noise is left, as multiples of it.
STEPS, NEARLY_NOISE = 10, 1.2


class Record(NamedTuple):
    """A simulated record, its noise, and the number of states of a sum of modes (0 of nonlinear systems)."""

    data: node_fit.Dataset
    noise: float
    states: int


def sum_modes(rng: np.random.Generator, kind: str, rows: int) -> tuple[np.ndarray, int]:
    """Simulates one to three channels that are sums of modes."""
    count, channels = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    ts = np.arange(rows)[:, None]
    if kind == "decays":
        rates = -np.exp(np.sort(rng.uniform(np.log(3 / rows), np.log(0.3), count)))
        return np.exp(ts * rates) @ rng.uniform(0.3, 1, (count, channels)), count
    middle = np.exp(rng.uniform(np.log(10 / rows), np.log(0.3)))
    cycles = middle * (1 + 0.15 * np.arange(count)) if kind == "beats" else middle * np.exp(rng.uniform(0, 1.5, count))
    ratios = {"ring-down": rng.uniform(0.005, 0.03, count), "beats": np.full(count, 0.002), "tide": np.zeros(count)}
    angles = 2 * np.pi * np.minimum(cycles, 0.4)
    turns = ts[:, :, None] * angles[:, None] + rng.uniform(0, 6, (count, channels))
    sizes = np.exp(-ts * angles * ratios[kind])[:, :, None] * rng.uniform(0.3, 1, (count, channels))
    return (sizes * np.cos(turns)).sum(axis=1), 2 * count


def solve_nonlinear(rng: np.random.Generator, kind: str, rows: int) -> np.ndarray:
    """Simulates the first state of a nonlinear system, whose motion takes at least ten rows."""
    a, b = rng.uniform(0.2, 1.5), rng.uniform(0.02, 0.2)
    rates: dict[str, Callable[[np.ndarray], list[float]]] = {
        "van der Pol": lambda x: [x[1], 2 * a * (1 - x[0] ** 2) * x[1] - x[0]],
        "pendulum": lambda x: [x[1], -np.sin(x[0]) - b * x[1]],
        "Duffing": lambda x: [x[1], -x[0] - a * x[0] ** 3 - b * x[1]],
        "Lotka-Volterra": lambda x: [x[0] * (1 - x[1]), a * x[1] * (x[0] - 1)],
    }
    x, xs, step = rng.uniform(0.5, 2.5, 2), [], rng.uniform(0.05, 0.5) / STEPS
    for _ in range(rows):
        xs.append(x[0])
        for _ in range(STEPS):
            half = x + step / 2 * np.array(rates[kind](x))
            x = x + step * np.array(rates[kind](half))
    return np.array(xs)[:, None]


def simulate(seed: int, kind: str) -> Record:
    rng = np.random.default_rng(seed)
    rows, share = int(rng.choice(ROWS)), rng.choice(NOISES)
    ys, states = sum_modes(rng, kind, rows) if kind in SUMS else (solve_nonlinear(rng, kind, rows), 0)
    noise = share * ys.std()
    ys = ys + noise * rng.normal(size=ys.shape)
    return Record(node_fit.Dataset.from_arrays(np.arange(rows, dtype=float), ys), float(noise), states)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=40)
    parser.add_argument("--first", type=int, default=30_000, help="first seed")
    given = parser.parse_args()
    print("| kind | identified | right number of states | error over noise, median and 90 % | left only noise |")
    print("|---|---|---|---|---|")
    for kind in (*SUMS, *NONLINEAR):
        ratios, right = [], 0
        for seed in range(given.first, given.first + given.records):
            record = simulate(seed, kind)
            parts = record.data.split()
            found = fit_long_record(node_fit.Options(), parts.train, parts.validation, lambda said: None)
            if found is not None:
                ratios.append(found.fit.score(parts.test).rmse / record.noise)
                right += found.states == record.states
        middle, most = np.quantile(ratios, [0.5, 0.9]) if ratios else (np.nan, np.nan)
        left = sum(ratio < NEARLY_NOISE for ratio in ratios)
        share = f"{right}" if kind in SUMS else ""
        print(
            f"| {kind} | {len(ratios)} of {given.records} | {share} | {middle:.2f}, {most:.2f} | {left} |", flush=True
        )


if __name__ == "__main__":
    main()
