"""Counts driven systems with known equations for which a fit finds how their inputs behave between rows.

    python scripts/accuracy/inputs_between_rows.py [--hints] [--seeds 2] [--noise 0.01 0.05] [--only NAME ...]

Each record is simulated with inputs that are held between rows, and again with inputs on lines; the fit does not know
which. The table counts the choices of fits of the equations, and gives the median error of their constants with the
choice, and with what the inputs look like. Where both interpolations fit equally well, no choice is wrong: these
records are counted apart. The last column counts the records whose inputs are held in fits without equations, because
they look so or linear systems respond so. `--hints` counts hints at inputs that hold before their rows instead: for
records with held inputs, with linear ones, and with held inputs that the table gives a row later.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from node_fit.data.dataset import Dataset
from node_fit.data.facts import Facts
from node_fit.data.inputs import are_held, interpolate_input
from node_fit.discover.formulas import read_tape
from node_fit.discover.search import solve_or_give_up
from node_fit.fitting.held_inputs import respond_as_held, with_responses
from node_fit.fitting.uncompiled import fit_without_compiling
from node_fit.model.fields.known import Known
from node_fit.options.options import Options

Inputs = Callable[[np.random.Generator, np.ndarray], np.ndarray]


class System(NamedTuple):
    """Equations with their constants, initial states (the measured ones first), the measured states, and the times."""

    equations: dict[str, str]
    constants: dict[str, float]
    start: tuple[float, ...]
    measured: tuple[str, ...]
    last: float
    rows: int


def new_level(draw: np.random.Generator, t: np.ndarray) -> np.ndarray:
    """A new random level at every row."""
    return draw.uniform(0, 1, t.size)


def walk(draw: np.random.Generator, t: np.ndarray) -> np.ndarray:
    """A random walk, scaled to 0 to 1."""
    path = np.cumsum(draw.standard_normal(t.size))
    return (path - path.min()) / np.ptp(path)


def sines(draw: np.random.Generator, t: np.ndarray) -> np.ndarray:
    """A sum of sines, smooth between rows."""
    phases = draw.uniform(0, 2 * np.pi, 3)
    return 0.5 + sum(np.sin(2 * np.pi * f * t / t[-1] + p) for f, p in zip((2, 5, 9), phases, strict=True)) / 6


def switched(draw: np.random.Generator, t: np.ndarray) -> np.ndarray:
    """On and off, every eight rows at random."""
    return np.repeat(draw.integers(0, 2, t.size // 8 + 1), 8)[: t.size].astype(float)


def ramps(draw: np.random.Generator, t: np.ndarray) -> np.ndarray:
    """Levels that change at every row, up and down between two of them."""
    corners = draw.uniform(0, 1, t.size // 6 + 2)
    return np.interp(np.arange(t.size) / 6, np.arange(corners.size), corners)


SYSTEMS = {
    "first order": System({"x": "-k*x + b*u"}, {"k": 0.5, "b": 2.0}, (1.0,), ("x",), 40.0, 80),
    "room": System(
        {"T": "-k*(T - w) + p*u", "w": "c*(T - w) - d*w"}, {"k": 0.4, "p": 3.0, "c": 0.1, "d": 0.05},
        (5.0, 4.0), ("T",), 60.0, 120,
    ),
    "oscillator": System(
        {"x": "v", "v": "-k*x - c*v + b*u"}, {"k": 1.5, "c": 0.3, "b": 1.2}, (0.5, 0.0), ("x",), 30.0, 120
    ),
    "culture": System(
        {"X": "m*S*X/(q + S) - u*X", "S": "u*(5 - S) - m*S*X/(q + S)"}, {"m": 1.4, "q": 1.0},
        (1.0, 2.0), ("X", "S"), 20.0, 80,
    ),
    "tank": System({"h": "0.2 + a*u - c*sqrt(h)"}, {"a": 0.8, "c": 0.4}, (1.0,), ("h",), 40.0, 60),
    "cooled reactor": System(
        {"T": "-k*(T - 1) - g*u*T + f"}, {"k": 0.3, "g": 0.9, "f": 1.5}, (3.0,), ("T",), 25.0, 40
    ),
}  # fmt: skip
INPUTS: dict[str, Inputs] = {"new level": new_level, "walk": walk, "sines": sines, "switched": switched, "ramps": ramps}
KINDS = ("hold", "linear")


def simulate(system: System, t: np.ndarray, u: np.ndarray, kind: str) -> np.ndarray:
    """Solves the states at the rows, `(row, state)`."""
    constants, states = list(system.constants.values()), list(system.equations)
    rates = read_tape(list(system.equations.values()), [*states, "u", *system.constants])
    value, ys = interpolate_input(t, u, held=kind == "hold"), [np.array(system.start)]
    line = value if kind == "hold" else lambda at: np.interp(at, t, u)
    for begin, end in itertools.pairwise(t):
        middle = (begin + end) / 2

        def field(at: float, y: np.ndarray, middle: float = middle) -> np.ndarray:
            given = line(np.asarray(middle if kind == "hold" else at))
            return np.array(rates([*y, given, *constants]), float)

        solved = solve_or_give_up(field, ys[-1], np.array([begin, end]))
        assert solved is not None
        ys.append(solved[-1])
    return np.stack(ys)


def draw_record(system: System, inputs: Inputs, kind: str, noise: float, seed: int) -> Dataset:
    draw = np.random.default_rng(seed)
    t = np.linspace(0, system.last, system.rows)
    u = inputs(draw, t)
    measured = [list(system.equations).index(name) for name in system.measured]
    clean = simulate(system, t, u, kind)[:, measured]
    ys = clean + noise * clean.std(axis=0) * draw.standard_normal(clean.shape)
    return Dataset.from_arrays(t, ys[None], us=u[None, :, None], states=list(system.measured), inputs=["u"])


def count_hints(names: Sequence[str], noises: Sequence[float], seeds: int) -> None:
    print(f"{'inputs':12} {'records':>8} {'hold':>6} {'linear':>6} {'before':>6}")
    for name, inputs in INPUTS.items():
        hints, records = dict.fromkeys((*KINDS, "before"), 0), 0
        for (title, system), noise, seed in itertools.product(SYSTEMS.items(), noises, range(seeds)):
            if names and not title.startswith(tuple(names)):
                continue
            hidden = [state for state in system.equations if state not in system.measured]
            options, records = Options(field=field_of(system), hidden=hidden or 0), records + 1
            for kind in hints:
                data = draw_record(system, inputs, "hold" if kind == "before" else kind, noise, seed)
                if kind == "before":
                    data = replace(data, us=np.concatenate([data.us[:, :1], data.us[:, :-1]], axis=1))
                reason = with_responses(Facts.of(data), options, data).inputs_reason
                hints[kind] += "input_interval" in reason
        print(f"{name:12} {records:8} {hints['hold']:6} {hints['linear']:6} {hints['before']:6}", flush=True)


def field_of(system: System) -> functools.partial:
    """Returns the equations with first values that are too small."""
    constants = {name: 0.7 * value for name, value in system.constants.items()}
    return functools.partial(Known, equations=system.equations, constants=constants)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="draws of the inputs and of the noise")
    parser.add_argument("--noise", type=float, nargs="*", default=[0.01, 0.05], help="shares of the spread")
    parser.add_argument("--only", nargs="*", default=[], help="names of systems, or how they begin")
    parser.add_argument("--hints", action="store_true", help="count hints at inputs that hold before their rows")
    given = parser.parse_args()
    if given.hints:
        return count_hints(given.only, given.noise, given.seeds)
    print(
        f"{'inputs':12} {'truth':8} {'records':>8} {'right':>6} {'alike':>6} {'wrong':>6} {'error':>8} {'by looks':>9}"
    )
    for name, inputs in INPUTS.items():
        for kind in KINDS:
            counts, errors = {"right": 0, "alike": 0, "wrong": 0, "held": 0}, {"chosen": [], "looks": []}
            for title, system in SYSTEMS.items():
                if given.only and not title.startswith(tuple(given.only)):
                    continue
                field = field_of(system)
                for noise in given.noise:
                    for seed in range(given.seeds):
                        data = draw_record(system, inputs, kind, noise, seed)
                        looks = data.input_interpolation[0]
                        counts["held"] += all(data.held_inputs) or respond_as_held(data) > 1
                        fits = {
                            key: fit_without_compiling(field, {"train": data}, "train", inputs=chosen)
                            for key, chosen in (("chosen", "auto"), ("looks", looks))
                        }
                        if None in fits.values():
                            continue
                        for key, fit in fits.items():
                            shares = [fit.constants[c] / value - 1 for c, value in system.constants.items()]
                            errors[key].append(float(np.abs(shares).max()))
                        is_right = are_held(fits["chosen"].inputs, 1) == (kind == "hold",)
                        is_alike = fits["chosen"].gain == 1 and errors["looks"][-1] < 0.05
                        counts["right" if is_right else "alike" if is_alike else "wrong"] += 1
            shown = " ".join(f"{counts[key]:6}" for key in ("right", "alike", "wrong"))
            medians = " ".join(f"{np.median(errors[key]):8.4f}" for key in ("chosen", "looks"))
            print(f"{name:12} {kind:8} {len(errors['chosen']):8} {shown} {medians} {counts['held']:5}", flush=True)


if __name__ == "__main__":
    main()
