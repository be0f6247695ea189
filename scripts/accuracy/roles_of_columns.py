"""Counts inputs that are recognised by their values, and states that are taken for inputs.

    python scripts/accuracy/roles_of_columns.py [--tables 600] [--first 0]

Half of the tables are driven by one to three inputs of eleven kinds; the others are systems without inputs, some with a
coarse sensor, or one that is read less often and repeated. Tables have 80 to 1500 rows and 0 to 15 % noise. The first
table of the output counts inputs: `certain` ones become inputs of a command that names a file alone, `likely` ones are
named in its first line. The second table counts states of driven and other systems.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from node_fit.data.tables.likely_inputs import find_inputs_in_rows

Draw = np.random.Generator
Rates = Callable[[np.ndarray, float], Sequence[float]]
LENGTHS, NOISES = (80, 200, 500, 1500), (0.0, 0.01, 0.05, 0.15)


def two_levels(draw: Draw, rows: int) -> np.ndarray:
    return np.repeat(draw.integers(0, 2, rows // 8 + 1), 8)[:rows].astype(float)


def held(draw: Draw, rows: int) -> np.ndarray:
    """Random levels, each for the same number of rows."""
    stay = int(draw.integers(5, 25))
    return np.repeat(draw.uniform(-1, 1, rows // stay + 1), stay)[:rows]


def held_for_a_while(draw: Draw, rows: int) -> np.ndarray:
    """Random levels, each for a random number of rows."""
    return np.concatenate([np.full(draw.integers(4, 20), draw.uniform(-1, 1)) for _ in range(rows // 4 + 1)])[:rows]


def held_with_noise(draw: Draw, rows: int) -> np.ndarray:
    """Levels, some of which return, as a sensor reads them."""
    stay = int(draw.integers(5, 25))
    levels = np.round(draw.uniform(-1, 1, rows // stay + 1), int(draw.integers(0, 3)))
    return np.repeat(levels, stay)[:rows] + 0.01 * draw.normal(size=rows)


def new_values(draw: Draw, rows: int) -> np.ndarray:
    return draw.normal(size=rows)


def rain(draw: Draw, rows: int) -> np.ndarray:
    """Showers on wet days, which follow each other more often than dry ones."""
    wet = np.zeros(rows, bool)
    for day in range(1, rows):
        wet[day] = draw.random() < (0.55 if wet[day - 1] else 0.2)
    return np.where(wet, draw.gamma(0.7, 1.0, rows), 0.0)


def walk(draw: Draw, rows: int) -> np.ndarray:
    return 0.2 * draw.normal(size=rows).cumsum()


def remember(draw: Draw, rows: int, memory: float, size: float) -> np.ndarray:
    """A first-order autoregressive process."""
    values = np.zeros(rows)
    for row in range(1, rows):
        values[row] = memory * values[row - 1] + size * draw.normal()
    return values


def day_of(draw: Draw, rows: int) -> np.ndarray:
    return np.sin(2 * np.pi * (np.arange(rows) / 96 + draw.random()))


def outdoor_temperature(draw: Draw, rows: int) -> np.ndarray:
    return day_of(draw, rows) + remember(draw, rows, 0.97, 0.12)


def sunshine(draw: Draw, rows: int) -> np.ndarray:
    """Zero by night, and with clouds by day."""
    return np.maximum(day_of(draw, rows), 0) * np.clip(1 + remember(draw, rows, 0.9, 0.3), 0.1, 1.5)


def season(draw: Draw, rows: int) -> np.ndarray:
    return np.round(2 + 1.8 * np.sin(2 * np.pi * (np.arange(rows) / 365 + draw.random())), 2)


def sines(draw: Draw, rows: int) -> np.ndarray:
    """Eight sines of random frequencies."""
    waves = zip(draw.integers(3, rows // 8, 8), draw.uniform(0, 2 * np.pi, 8), strict=True)
    return np.sum([np.sin(2 * np.pi * cycles * np.arange(rows) / rows + phase) for cycles, phase in waves], axis=0) / 3


INPUTS = (
    *(two_levels, held, held_for_a_while, held_with_noise, new_values),
    *(rain, walk, outdoor_temperature, sunshine, season, sines),
)


class System(NamedTuple):
    """The rates for a state and the sum of the inputs, the initial state, and the time between two rows."""

    rates: Rates
    start: tuple[float, ...]
    step: float = 1.0


def driven_systems(draw: Draw) -> list[System]:
    fast, slow = draw.uniform(0.05, 0.4, 2)
    outflow, stiffness = draw.uniform(0.02, 0.1), draw.uniform(0.2, 0.6) ** 2
    return [
        System(lambda x, u: [fast * (u - x[0])], (0.0,)),
        System(lambda x, u: [fast * (u - x[0]), slow * (x[0] - x[1])], (0.0, 0.0)),
        System(lambda x, u: [u - outflow * max(x[0], 0.0) ** 1.5], (3.0,)),
        System(lambda x, u: [x[1], 0.2 * u - stiffness * x[0] - 0.1 * x[1]], (0.0, 0.0)),
        System(lambda x, u: [0.3 * (u - x[0]) - 0.1 * x[0] ** 3], (0.0,)),
        System(lambda x, u: [fast * (u - x[0]), slow / 4 * (u**2 - x[1])], (0.0, 0.0)),
    ]


def lorenz(x: np.ndarray, _: float) -> Sequence[float]:
    return [10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]]


FREE = (
    System(lambda x, _: [0.2 * x[0] * (1 - x[1]), 0.2 * x[1] * (x[0] - 1)], (1.5, 0.8), 0.5),
    System(lambda x, _: [x[1], 1.5 * (1 - x[0] ** 2) * x[1] - x[0]], (1.0, 0.0), 0.15),
    System(lorenz, (1.0, 1.0, 20.0), 0.05),
    System(lambda x, _: [-0.05 * x[0], 0.05 * x[0] - 0.03 * x[1], 0.03 * x[1]], (1.0, 0.0, 0.0)),
    System(lambda x, _: [0.1 * x[0] * (1 - x[0] - 0.5 * x[1]), 0.07 * x[1] * (1 - x[1] - 0.9 * x[0])], (0.05, 0.05)),
    System(lambda x, _: [-0.3 * x[0] * x[1], 0.3 * x[0] * x[1] - 0.1 * x[1]], (0.99, 0.01)),
    System(lambda x, _: [x[0] - x[0] ** 3 / 3 - x[1] + 0.5, 0.08 * (x[0] + 0.7 - 0.8 * x[1])], (-1.0, 0.0), 0.5),
    System(lambda x, _: [x[1], -0.2 * x[0], x[3], 0.2 * x[0] - 0.5 * x[2]], (1.0, 0.0, 0.0, 0.5), 0.5),
    System(lambda x, _: [-x[1] - x[2], x[0] + 0.2 * x[1], 0.2 + x[2] * (x[0] - 5.7)], (1.0, 1.0, 0.0), 0.2),
)


def simulate(system: System, driving: np.ndarray, draw: Draw) -> np.ndarray:
    """Simulates a system by Euler's method in 40 steps a row, and measures it with noise."""
    state, rows = np.array(system.start), []
    for level in driving:
        rows.append(state)
        for _ in range(40):
            state = state + system.step / 40 * np.asarray(system.rates(state, level))
    values = np.array(rows)
    return values + draw.choice(NOISES) * values.std(axis=0) * draw.normal(size=values.shape)


def change_a_sensor(values: np.ndarray, draw: Draw) -> np.ndarray:
    """Makes one sensor coarse, or repeats its values until it is read again, or neither."""
    kind, column = draw.integers(3), draw.integers(values.shape[1])
    if kind == 1:
        stay = int(draw.integers(3, 16))
        values[:, column] = np.repeat(values[::stay, column], stay)[: len(values)]
    if kind == 2:
        size = np.ptp(values[:, column]) / draw.integers(4, 12)
        values[:, column] = np.round(values[:, column] / size) * size
    return values


def draw_table(seed: int) -> tuple[list[str], np.ndarray]:
    """Returns the kinds of a table's columns, and its values."""
    draw = np.random.default_rng(seed)
    rows = int(draw.choice(LENGTHS))
    if seed % 2:
        chosen = draw.choice(len(INPUTS), draw.integers(1, 4), replace=False)
        inputs = np.stack([INPUTS[kind](draw, rows) for kind in chosen], axis=1)
        systems = driven_systems(draw)
        states = simulate(systems[draw.integers(len(systems))], inputs.sum(axis=1), draw)
        names = [INPUTS[kind].__name__ for kind in chosen] + ["state of a driven system"] * states.shape[1]
        return names, np.concatenate([inputs, states], axis=1)
    states = change_a_sensor(simulate(FREE[draw.integers(len(FREE))], np.zeros(rows), draw), draw)
    return ["state without inputs"] * states.shape[1], states


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts inputs that are recognised by their values.")
    parser.add_argument("--tables", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="seed of the first table")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    for seed in range(options.first, options.first + options.tables):
        kinds, values = draw_table(seed)
        names = [str(at) for at in range(len(kinds))]
        likely = find_inputs_in_rows(values, np.arange(len(values)) > 0, names)
        for name, kind in zip(names, kinds, strict=True):
            found = likely.get(name)
            counts.setdefault(kind, Counter())[
                "neither" if found is None else "certain" if found.is_certain else "likely"
            ] += 1
    for title, is_state in (("input", False), ("state", True)):
        print(f"| {title} | columns | certain | likely | neither |\n|---|---|---|---|---|")
        for kind, count in sorted(counts.items()):
            if kind.startswith("state") == is_state:
                shown = " | ".join(str(count[what]) for what in ("certain", "likely", "neither"))
                print(f"| {kind.replace('_', ' ')} | {count.total()} | {shown} |")
        print()


if __name__ == "__main__":
    main()
