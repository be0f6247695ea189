"""Counts how often delays of inputs are found in simulated tables, and how often one is found where there is none.

    python scripts/accuracy/delays_of_inputs.py [--tables 600] [--first 10000]

Systems of six kinds are driven by inputs that are held, white, smooth, sums of sines or switched; in two thirds of the
tables, the first input acts 4 to 30 rows later. A delay is right if it is off by one row at most. `chain` has two to
five lags in a row, of which the last is measured: it responds late without any delay, so that a delay found there
describes it, but is not one. The result is printed as a table in Markdown.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

import node_fit

DELAYS, NOISES, ROWS = (0, 0, 4, 8, 15, 30), (0.002, 0.01, 0.03, 0.08), (150, 300, 600, 1500)
KINDS = ("first order", "chain", "oscillator", "two tanks", "product", "two outputs")
# Steps between two rows, and delays that count as right [rows].
STEPS, RIGHT = 8, 1
Rates = Callable[[np.ndarray, np.ndarray], np.ndarray]


def draw_input(rng: np.random.Generator, rows: int) -> np.ndarray:
    ts, hold = np.arange(rows), int(rng.integers(5, 40))
    match rng.choice(["held", "switched", "white", "smooth", "sines"]):
        case "held":
            return np.repeat(rng.uniform(0, 1, rows // hold + 1), hold)[:rows]
        case "switched":
            return np.repeat((rng.random(rows // hold + 1) < 0.5) * 1.0, hold)[:rows]
        case "white":
            return rng.normal(size=rows)
        case "smooth":
            return np.convolve(rng.normal(size=rows + hold), np.ones(hold) / hold, "valid")[:rows]
    waves = zip(rng.uniform(0.01, 0.3, 5), rng.uniform(0, 6, 5), strict=True)
    return np.sum([np.sin(ts * frequency + phase) for frequency, phase in waves], axis=0)


def draw_system(rng: np.random.Generator, kind: str) -> tuple[Rates, int, int, slice]:
    """Returns the rates of a system, its numbers of states and inputs, and its measured states."""
    rate = rng.uniform(0.02, 0.3)
    if kind == "first order":
        return lambda x, u: rate * (u - x), 1, 1, slice(None)
    if kind == "chain":
        states = int(rng.integers(2, 6))
        return lambda x, u: rate * (np.append(u, x[:-1]) - x), states, 1, slice(-1, None)
    if kind == "oscillator":
        damping = rng.uniform(0.05, 0.5)
        swing = lambda x, u: np.array([x[1], rate**2 * (u[0] - x[0]) - 2 * damping * rate * x[1]])  # noqa: E731
        return swing, 2, 1, slice(-1, None)
    if kind == "two tanks":
        flow = lambda x: rate * np.sqrt(np.maximum(x, 0))  # noqa: E731
        return lambda x, u: np.array([rate * (u[0] + 0.3) - flow(x[0]), flow(x[0]) - flow(x[1])]), 2, 1, slice(None)
    if kind == "product":
        return lambda x, u: rate * (u[:1] * (1.2 - x) - 0.5 * x * (1 + u[1])), 1, 2, slice(None)
    return lambda x, u: rate * np.array([u[0] - x[0], 0.5 * (x[0] - x[1]) + u[1]]), 2, 2, slice(None)


def simulate(seed: int, kind: str) -> tuple[node_fit.Dataset, int]:
    """Returns a table, and the delay of its first input [rows]."""
    rng = np.random.default_rng(seed)
    delay, noise, rows = int(rng.choice(DELAYS)), rng.choice(NOISES), int(rng.choice(ROWS))
    rates, states, inputs, measured = draw_system(rng, kind)
    us = np.stack([draw_input(rng, rows) for _ in range(inputs)], axis=1)
    delayed = us.copy()
    delayed[:, 0] = us[np.maximum(np.arange(rows) - delay, 0), 0]
    x, xs = rng.uniform(0, 0.5, states), []
    for u in delayed:
        xs.append(x)
        for _ in range(STEPS):
            x = x + rates(x, u) / STEPS
    ys = np.array(xs)[:, measured]
    ys = ys + noise * ys.std(axis=0) * rng.normal(size=ys.shape)
    return node_fit.Dataset.from_arrays(np.arange(rows, dtype=float), ys, us), delay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=600)
    parser.add_argument("--first", type=int, default=10000)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(options.tables):
        kind = KINDS[number % len(KINDS)]
        data, delay = simulate(options.first + number, kind)
        found = node_fit.find_delays(data)
        for index, name in enumerate(data.inputs):
            true, rows = (0 if index else delay), int(found.get(name, 0))
            if true:
                counts[kind]["delays"] += 1
                counts[kind]["right"] += rows > 0 and abs(rows - true) <= RIGHT
                counts[kind]["other"] += rows > 0 and abs(rows - true) > RIGHT
            else:
                counts[kind]["none"] += 1
                counts[kind]["false"] += rows > 0
    print("| system | delays | found | of these off by more than a row | without delay | of these with one |")
    print("|---|---|---|---|---|---|")
    for kind, of in counts.items():
        print(
            f"| {kind} | {of['delays']} | {of['right'] + of['other']} | {of['other']} | {of['none']} | {of['false']} |"
        )


if __name__ == "__main__":
    main()
