"""Counts how often the time of day and of the week are found to drive a record, and what is gained by fits with them.

    python scripts/accuracy/cycles_of_the_clock.py [--draws 40] [--first 30000]
    python scripts/accuracy/cycles_of_the_clock.py --fits 2 [--first 40000]

Records are hourly, of 20 to 100 days, with noise of 1 to 10 % of their spread. Some follow the clock: oxygen in a pond,
a house whose thermostat is set back at night, carbon dioxide in an office, the load of a network, and soil under the
sun. The others do not: they swing by themselves at nearly the same period, follow the tides, wander, settle, are
chaotic, or follow inputs that switch at random. Fits are by columns alone with and without the phases
(`data.cycles=[]`), their errors those on the last fifth of the rows. Tables are in Markdown.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

import node_fit

HOURS = 24
Rates = Callable[[np.ndarray, float], np.ndarray]
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def march(rates: Rates, start: list[float], rows: int, substeps: int = 20) -> np.ndarray:
    """Simulates hourly rows of an equation by Heun's method; time is in hours."""
    y, step, ys = np.array(start, float), 1 / substeps, []
    for row in range(rows):
        ys.append(y)
        for part in range(substeps):
            t = row + part * step
            slope = rates(y, t)
            y = y + step / 2 * (slope + rates(y + step * slope, t + step))
    return np.array(ys)


def wander(rng: np.random.Generator, rows: int, memory: float) -> np.ndarray:
    """Random values around 0 with a memory of some rows, of unit deviation."""
    keep = np.exp(-1 / memory)
    values = np.zeros(rows)
    for row in range(1, rows):
        values[row] = keep * values[row - 1] + np.sqrt(1 - keep**2) * rng.normal()
    return values


def is_between(t: float, begin: float, end: float) -> bool:
    return begin <= t % HOURS < end


def pond(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Oxygen, which light makes and respiration takes; clouds are not measured."""
    clouds, rate, light = 1 + 0.3 * wander(rng, rows + 1, 30), rng.uniform(0.05, 0.4), rng.uniform(0.3, 1)

    def rates(y: np.ndarray, t: float) -> np.ndarray:
        sun = max(np.sin(2 * np.pi * (t - 6) / HOURS), 0) * clouds[int(t)]
        return light * sun - rate * (y - 8)

    return march(rates, [8.0], rows), np.zeros((rows, 0))


def house(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A room behind a wall; its thermostat is set back at night, and the weather is measured."""
    weather, low, gain = 2 + 5 * wander(rng, rows + 1, 40), rng.uniform(14, 17), rng.uniform(0.5, 2)

    def rates(y: np.ndarray, t: float) -> np.ndarray:
        target = 20.0 if is_between(t, 6, 22) else low
        heat = np.clip(gain * (target - y[0]), 0, 3)
        outside = weather[int(t)]
        return np.array([heat + 0.3 * (y[1] - y[0]), 0.05 * (y[0] - y[1]) + 0.03 * (outside - y[1])])

    return march(rates, [18.0, 10.0], rows)[:, :1], weather[:rows, None]


def office(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Carbon dioxide, which people bring on working days."""
    people, air = rng.poisson(8, rows // HOURS + 2), rng.uniform(0.2, 0.8)

    def rates(y: np.ndarray, t: float) -> np.ndarray:
        day = int(t // HOURS)
        works = day % 7 < 5 and is_between(t, 8, 18)
        return 20 * people[day] * works - air * (y - 420)

    return march(rates, [420.0], rows), np.zeros((rows, 0))


def load(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The load of a network: two peaks a day, less on Sundays, and a part that wanders."""
    ts = np.arange(rows)
    day = 1 + 0.3 * np.sin(2 * np.pi * (ts - 8) / HOURS) + rng.uniform(0.1, 0.3) * np.sin(4 * np.pi * (ts - 3) / HOURS)
    return (day * np.where(ts // HOURS % 7 < 6, 1, 0.8) + 0.1 * wander(rng, rows, 20))[:, None], np.zeros((rows, 0))


def soil(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Soil under a surface whose temperature follows the sun and the weather, which are not measured."""
    surface = 12 + 4 * wander(rng, rows + 1, 60) + 8 * np.sin(2 * np.pi * (np.arange(rows + 1) - 9) / HOURS)
    return march(lambda y, t: 0.15 * (surface[int(t)] - y), [12.0], rows), np.zeros((rows, 0))


def relaxation(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Van der Pol's oscillator with a period of 0.8 to 1.25 days."""
    rate, mu = 6.66 / HOURS / rng.uniform(0.8, 1.25), rng.uniform(0.3, 1)
    start = [rng.uniform(0, 2), 0.0]
    ys = march(lambda y, _: rate * np.array([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]]), start, rows)
    return ys[:, :1], np.zeros((rows, 0))


def noisy_clock(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells in darkness, whose period is a day on average and changes a little from cycle to cycle."""
    speed = 1 + 0.15 * wander(rng, rows, 24)
    phase = np.cumsum(2 * np.pi / HOURS / rng.uniform(0.96, 1.04) * speed)
    return (np.exp(0.5 * np.cos(phase)))[:, None], np.zeros((rows, 0))


def tide(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tides of the moon and the sun, whose periods are 12.42 and 12 hours, and those of 25.82 and 23.93 hours."""
    ts, sizes = np.arange(rows), rng.uniform(0.1, 1, 4)
    phases = rng.uniform(0, 2 * np.pi, 4)
    waves = np.cos(2 * np.pi * ts[:, None] / np.array([12.42, 12.0, 25.82, 23.93]) + phases)
    return (waves @ (sizes * [1, 0.4, 0.4, 0]))[:, None], np.zeros((rows, 0))


def random_walk(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    return wander(rng, rows, rng.uniform(5, 200))[:, None], np.zeros((rows, 0))


def settling(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    ts = np.arange(rows)
    ringing = 0.3 * np.cos(2 * np.pi * ts / rng.uniform(10, 60)) * np.exp(-ts / rng.uniform(30, 200))
    return (np.exp(-ts / rng.uniform(50, 300)) + ringing)[:, None], np.zeros((rows, 0))


def chaos(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Lorenz' system, which turns once in about a day."""
    rate = 0.75 / HOURS * rng.uniform(0.8, 1.25)

    def rates(y: np.ndarray, _: float) -> np.ndarray:
        return rate * np.array([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    return march(rates, [*rng.normal(size=2) + 5, 25 + rng.normal()], rows)[:, :1], np.zeros((rows, 0))


def switched(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Two tanks behind a pump that is switched at random, about twice a day."""
    us = (np.cumsum(rng.random(rows + 1) < 1 / 12) % 2).astype(float)

    def rates(y: np.ndarray, t: float) -> np.ndarray:
        flow = 0.3 * np.sqrt(np.maximum(y, 0))
        return np.array([0.4 * us[int(t)] - flow[0], flow[0] - flow[1]])

    return march(rates, [0.5, 0.5], rows)[:, 1:], us[:rows, None]


FOLLOW: dict[str, tuple[Draw, set[str]]] = {
    "pond": (pond, {"day"}),
    "house": (house, {"day"}),
    "office": (office, {"day", "week"}),
    "load": (load, {"day", "week"}),
    "soil": (soil, {"day"}),
}
DO_NOT: dict[str, Draw] = {
    "relaxation oscillator": relaxation,
    "cells in darkness": noisy_clock,
    "tide": tide,
    "random walk": random_walk,
    "settling": settling,
    "chaos": chaos,
    "switched pump": switched,
}


def draw_record(draw: Draw, seed: int) -> pd.DataFrame:
    """Draws a record with dates, noise and its inputs, as a table."""
    rng = np.random.default_rng(seed)
    rows = HOURS * int(rng.integers(20, 101))
    ys, us = draw(rng, rows)
    ys = ys + rng.choice([0.01, 0.03, 0.1]) * ys.std(axis=0) * rng.normal(size=ys.shape)
    when = pd.date_range("2024-03-04", periods=rows, freq="h")
    columns = {f"u{number}": column for number, column in enumerate(us.T)}
    return pd.DataFrame({"when": when, **{f"y{number}": column for number, column in enumerate(ys.T)}, **columns})


def read_record(table: pd.DataFrame) -> node_fit.Dataset:
    names = list(table.columns[1:])
    states, inputs = ([name for name in names if name[0] == letter] for letter in "yu")
    return node_fit.from_frame(table, time="when", states=states, inputs=inputs)


def count_found(draws: int, first: int) -> None:
    print("| record | records | day | week | year | seconds |\n|---|---|---|---|---|---|")
    for name in [*FOLLOW, *DO_NOT]:
        draw = FOLLOW[name][0] if name in FOLLOW else DO_NOT[name]
        records = [read_record(draw_record(draw, seed)).split().train for seed in range(first, first + draws)]
        begin = time.perf_counter()
        found = [node_fit.find_cycles(record) for record in records]
        seconds = (time.perf_counter() - begin) / draws
        counts = " | ".join(str(sum(cycle in cycles for cycles in found)) for cycle in ("day", "week", "year"))
        print(f"| {name} | {draws} | {counts} | {seconds:.3f} |", flush=True)


def compare_fits(fits: int, first: int, effort: str) -> None:
    options = node_fit.Options(effort=effort)
    print("| record | without | with | seconds without | with | verdicts |\n|---|---|---|---|---|---|")
    for name, (draw, _) in FOLLOW.items():
        for seed in range(first, first + fits):
            data = read_record(draw_record(draw, seed))
            cycles = node_fit.find_cycles(data.split().train)
            errors, seconds, verdicts = [], [], []
            for parts in (data.split(), data.with_cycles(cycles).split()):
                begin = time.perf_counter()
                fit = node_fit.fit(parts.train, validation=parts.validation, options=options)
                seconds.append(f"{time.perf_counter() - begin:.0f}")
                errors.append(f"{fit.score(parts.test).nrmse:.3f}")
                verdicts.append(fit.assess({"train": parts.train, "test": parts.test}).verdict.kind)
            print(f"| {name} | {' | '.join(errors)} | {' | '.join(seconds)} | {' / '.join(verdicts)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40, help="records of each kind")
    parser.add_argument(
        "--fits", type=int, default=0, help="fits of each kind that follows the clock, in place of that"
    )
    parser.add_argument("--first", type=int, default=30_000, help="first seed")
    parser.add_argument("--effort", default="quick", help="that of fits")
    options = parser.parse_args()
    if options.fits:
        compare_fits(options.fits, options.first, options.effort)
    else:
        count_found(options.draws, options.first)


if __name__ == "__main__":
    main()
