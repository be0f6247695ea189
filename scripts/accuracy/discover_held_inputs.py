"""Counts driven systems whose true terms `discover` returns first, where inputs jump and are held between rows.

    python scripts/accuracy/discover_held_inputs.py [--systems counted] [--noise 0.02] [--seeds 2] [--only NAME ...]

Each record is one trajectory, with noise of a share of each state's standard deviation. Its first two thirds are
searched; the errors are of the noise-free rest, simulated from the last known state, in standard deviations. Choices in
the search were made on the systems of `--systems design` alone, but for flows through valves, which were added after
one of the counted systems (a gate) had been missed; `--systems valves` came after that and chose nothing. Terms are
compared by SymPy, regardless of constants (`pip install "node_fit[discover]"`).
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from node_fit.benchmark.__main__ import has_same_terms
from node_fit.data.dataset import Dataset
from node_fit.discover.formulas import read_tape
from node_fit.discover.search import FoundSystem, solve_or_give_up
from node_fit.evaluation.baselines import baselines
from node_fit.fitting.discovery import discover

SEARCHED = 2 / 3
Inputs = Callable[[np.random.Generator, int], np.ndarray]


class System(NamedTuple):
    """The rate of each state, the start, the last time, the number of rows, and the inputs by name."""

    rates: dict[str, str]
    start: tuple[float, ...]
    last: float
    rows: int
    inputs: dict[str, Inputs]


def on_and_off(rows: int, low: float = 0.0, high: float = 1.0) -> Inputs:
    """An input that switches every so many rows."""
    return lambda draw, count: np.where(np.arange(count) // rows % 2 == 0, high, low)


def random_levels(rows: int, *levels: float) -> Inputs:
    """An input that takes a random level every so many rows."""
    return lambda draw, count: np.repeat(draw.choice(levels, -(-count // rows)), rows)[:count]


def any_level(rows: int, low: float, high: float) -> Inputs:
    """An input that is uniformly distributed, drawn every so many rows."""
    return lambda draw, count: np.repeat(draw.uniform(low, high, -(-count // rows)), rows)[:count]


DESIGN = {
    "kettle": System({"T": "2.16 - 0.12*T + 9*u"}, (20.0,), 29.5, 60, {"u": on_and_off(10)}),
    "heated and cooled room": System(
        {"T": "1.5 - 0.1*T + 0.8*h - 0.5*c"}, (18.0,), 60.0, 120,
        {"h": random_levels(8, 0.0, 1.0), "c": random_levels(11, 0.0, 1.0)},
    ),
    "two tanks and a pump": System(
        {"x": "0.9*u - 0.5*x", "y": "0.5*x - 0.3*y"}, (0.5, 1.0), 40.0, 100, {"u": on_and_off(12)}
    ),
    "emptying tank": System({"h": "0.8*u - 0.45*sqrt(h)"}, (1.5,), 40.0, 90, {"u": random_levels(9, 0.4, 1.0)}),
    "harvested stock": System({"x": "0.9*x - 0.1*x**2 - 0.6*x*u"}, (4.0,), 40.0, 100, {"u": on_and_off(15)}),
    "motor": System(
        {"i": "-2*i - 0.8*w + 2*u", "w": "1.2*i - 0.4*w"}, (0.0, 0.0), 20.0, 150, {"u": random_levels(5, -1.0, 1.0)}
    ),
    "pushed pendulum": System(
        {"x": "v", "v": "-1.5*sin(x) - 0.3*v + 0.8*u"}, (0.6, 0.0), 20.0, 120, {"u": random_levels(7, -1.0, 1.0)}
    ),
    "stirred every row": System({"x": "-0.7*x + 1.1*u"}, (0.5,), 30.0, 100, {"u": any_level(1, -1.0, 1.0)}),
}  # fmt: skip
COUNTED = {
    "charged cell": System({"v": "0.3 - 0.25*v + 1.4*q"}, (2.0,), 30.0, 70, {"q": on_and_off(9)}),
    "greenhouse": System(
        {"T": "1.2 - 0.15*T + 0.9*h - 0.3*w*T"}, (14.0,), 50.0, 120,
        {"h": random_levels(10, 0.0, 1.0), "w": random_levels(14, 0.0, 0.3)},
    ),
    "dosed compartments": System(
        {"a": "-0.6*a + 0.2*b + 1.5*u", "b": "0.4*a - 0.2*b"}, (0.3, 0.6), 40.0, 110, {"u": random_levels(10, 0.0, 1.0)}
    ),
    "gate of a reservoir": System(
        {"h": "0.7 - 0.5*u*sqrt(h)"}, (2.0,), 40.0, 90, {"u": random_levels(8, 0.6, 1.0, 1.4)}
    ),
    "fed culture": System({"s": "0.6*u - 1.1*s - 0.2*s**2"}, (1.0,), 30.0, 90, {"u": on_and_off(11, 0.2, 2.0)}),
    "valve and spring": System(
        {"x": "v", "v": "-2*x - 0.5*v + 1.5*u"}, (0.0, 0.0), 25.0, 150, {"u": random_levels(6, -1.0, 0.0, 1.0)}
    ),
    "magnet on a spring": System(
        {"x": "v", "v": "-x - 0.4*x**3 - 0.3*v + u"}, (0.5, 0.0), 25.0, 140, {"u": random_levels(9, -1.0, 1.0)}
    ),
    "new level every row": System({"y": "0.2 - 0.9*y + 0.7*u"}, (0.5,), 30.0, 100, {"u": any_level(1, 0.0, 2.0)}),
    "two levels every third row": System(
        {"p": "-0.5*p + 0.4*q", "q": "-0.8*q + u"}, (0.2, 0.1), 30.0, 120, {"u": any_level(3, -1.0, 1.0)}
    ),
}  # fmt: skip

# Flows through valves, from heads and from differences of heads.
VALVES = {
    "drained tank": System({"h": "0.6 - 0.5*v*sqrt(h)"}, (1.0,), 40.0, 100, {"v": random_levels(9, 0.4, 0.8, 1.2)}),
    "valve that shuts": System({"h": "0.5 - 0.8*v*sqrt(h)"}, (0.8,), 45.0, 110, {"v": random_levels(7, 0.0, 1.0)}),
    "leaking vessel": System(
        {"p": "0.9*u - 0.3*sqrt(p) - 0.4*v*sqrt(p)"}, (1.0,), 45.0, 120,
        {"u": random_levels(8, 0.5, 1.0), "v": random_levels(11, 0.0, 1.0)},
    ),
    "coupled tanks": System(
        {"x": "0.7*u - 0.5*sqrt(x - y)", "y": "0.5*sqrt(x - y) - 0.4*sqrt(y)"}, (2.0, 0.8), 60.0, 150,
        {"u": random_levels(12, 0.6, 0.9, 1.2)},
    ),
    "valve between tanks": System(
        {"x": "0.6 - 0.6*v*sqrt(x - y)", "y": "0.6*v*sqrt(x - y) - 0.45*sqrt(y)"}, (3.0, 1.2), 60.0, 150,
        {"v": random_levels(10, 0.7, 1.0, 1.3)},
    ),
    "gas through an orifice": System({"m": "0.4*u - 0.25*u*sqrt(m)"}, (1.5,), 40.0, 90, {"u": any_level(6, 0.3, 1.5)}),
}  # fmt: skip
SYSTEMS = {"counted": COUNTED, "design": DESIGN, "valves": VALVES}


def simulate(system: System, us: np.ndarray) -> np.ndarray:
    """Solves the states at the rows, `(row, state)`, with inputs held between rows, `(row, input)`."""
    ts, ys = np.linspace(0, system.last, system.rows), [np.array(system.start)]
    rates = read_tape(list(system.rates.values()), [*system.rates, *system.inputs])
    for row in range(system.rows - 1):
        solved = solve_or_give_up(lambda t, y, u=us[row]: np.array(rates([*y, *u]), float), ys[-1], ts[row : row + 2])
        assert solved is not None
        ys.append(solved[-1])
    return np.stack(ys)


def draw_record(system: System, noise: float, seed: int) -> tuple[Dataset, Dataset]:
    """Returns the noisy rows that are searched and the noise-free rest."""
    draw = np.random.default_rng(seed)
    us = np.stack([make(draw, system.rows) for make in system.inputs.values()], axis=1)
    ts, clean = np.linspace(0, system.last, system.rows), simulate(system, us)
    ys = clean + noise * clean.std(axis=0) * draw.standard_normal(clean.shape)
    known, names = int(SEARCHED * system.rows), {"states": list(system.rates), "inputs": list(system.inputs)}
    searched = Dataset.from_arrays(ts[:known], ys[None, :known], us=us[None, :known], **names)
    return searched, Dataset.from_arrays(ts[known - 1 :], clean[None, known - 1 :], us=us[None, known - 1 :], **names)


def error_on(rest: Dataset, found: FoundSystem) -> float:
    """Returns the root mean square error of a simulation of the rest, in standard deviations of each state."""
    inputs = {name: rest.us[0, :, place] for place, name in enumerate(rest.inputs)}
    solved = found.simulate(rest.ys[0, 0], rest.ts[0], inputs)
    if solved is None:
        return np.inf
    return float(np.sqrt(np.mean(((solved - rest.ys[0]) / rest.ys[0].std(axis=0)) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="counted", choices=list(SYSTEMS))
    parser.add_argument("--noise", type=float, default=0.02, help="share of each state's standard deviation")
    parser.add_argument("--seeds", type=int, default=2, help="draws of the inputs and of the noise")
    parser.add_argument("--only", nargs="*", default=[], help="names of systems, or how they begin")
    given = parser.parse_args()
    right, errors = [], []
    for name, system in SYSTEMS[given.systems].items():
        for seed in range(given.seeds) if not given.only or name.startswith(tuple(given.only)) else ():
            began = time.process_time()
            searched, rest = draw_record(system, given.noise, seed)
            found = discover(searched, resamples=0, symbolic=False)
            took = time.process_time() - began
            names = [*system.rates, *system.inputs]
            right.append(
                all(has_same_terms(text, found.found.shown[state], names) for state, text in system.rates.items())
            )
            errors.append(error_on(rest, found.found))
            linear = baselines(searched, rest)["linear"].nrmse
            shown = "; ".join(f"{state}' = {text}" for state, text in found.found.shown.items())
            print(
                f"{'right' if right[-1] else 'WRONG'} {name}, {seed}, {took:.0f} s: error {errors[-1]:.3f}, linear "
                f"{linear:.3f}, explained {found.explained}: {shown}",
                flush=True,
            )
    print(f"true terms first in {sum(right)} of {len(right)}, median error {np.median(errors):.4f}")


if __name__ == "__main__":
    main()
