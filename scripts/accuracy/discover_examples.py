"""Equations that `discover` finds in records of known and of measured systems.

    python scripts/accuracy/discover_examples.py [--only NAME ...] [--draws 10] [--effort normal] [--data datasets]

Of the published protocols of few noisy rows it prints the squared error of the rows that come after them, or were left
out, over draws of the noise (draw 0 is the published one); of the others, the equations that were found for one draw,
and the true ones. The cascaded tanks are read from `--data`, and left out where they are absent.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.integrate import solve_ivp

import node_fit
from node_fit.benchmark import protocols
from node_fit.options.options import Effort

SHIPPED = Path(__file__).parents[2] / "data"
ROWS = protocols.ROWS_OF_PROBLEM
Rates = Callable[[float, np.ndarray], Sequence[float] | np.ndarray]


class Few(NamedTuple):
    """The rows that are fitted, all times, the states there, and which of them count."""

    data: node_fit.Dataset
    times: np.ndarray
    states: np.ndarray
    scored: np.ndarray


def van_der_pol(times: np.ndarray, draw: int) -> Few:
    states = protocols.solve_exactly(protocols.van_der_pol_data, (-1.5, 2.5), times)
    rng = np.random.default_rng(draw) if draw else np.random.RandomState(121)
    noisy = states[:ROWS] + rng.normal(size=(ROWS, 2)) * protocols.VARIANCE**0.5
    data = node_fit.Dataset.from_arrays(times[:ROWS], noisy, states=["x", "y"])
    return Few(data, times, states, np.arange(len(times)) >= ROWS)


def neuron(draw: int) -> Few:
    times, states, hidden = protocols.neuron_states()
    rng = np.random.default_rng(draw) if draw else np.random.RandomState(121)
    noisy = states + rng.normal(size=states.shape) * protocols.NEURON_VARIANCE**0.5
    noisy[hidden] = np.nan
    return Few(node_fit.Dataset.from_arrays(times, noisy, states=["x", "y"]), times, states, hidden)


FEW_ROWS: dict[str, tuple[float, Callable[[int], Few]]] = {
    "van der pol, even": (0.13, lambda draw: van_der_pol(protocols.regular_times(), draw)),
    "van der pol, uneven": (0.13, lambda draw: van_der_pol(protocols.random_times(), draw)),
    "neuron, gap": (0.05, neuron),
}


def forecast(name: str, draws: int, effort: Effort) -> str:
    """A row of the table: the figure asked, the median squared error and its range, and the median seconds."""
    asked, make = FEW_ROWS[name]
    errors, seconds = [], []
    for draw in range(draws):
        few, began = make(draw), time.perf_counter()
        found = node_fit.discover(few.data, effort=effort, resamples=0, seed=draw)
        predicted = found.best.model.predict(few.data, few.times[None])[0]
        seconds.append(time.perf_counter() - began)
        errors.append(float(np.mean((predicted - few.states)[few.scored] ** 2)))
        print(f"  {draw}: {errors[-1]:.3g}; {in_a_line(found)}", flush=True)
    had = f"{np.median(errors):.3g} ({min(errors):.3g}-{max(errors):.3g})"
    return f"| {name} | {draws} | {asked:g} | {had} | {np.median(seconds):.0f} |"


class System(NamedTuple):
    """A record, the true equations in words, and further arguments of `discover`."""

    data: node_fit.Dataset
    true: str
    options: dict[str, Any]


def solved(
    rates: Rates, start: Sequence[float], times: np.ndarray, states: Sequence[str], noise: float
) -> node_fit.Dataset:
    """A record with noise of this share of each state's standard deviation."""
    ys = solve_ivp(rates, (times[0], times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-11).y.T
    ys = ys + noise * ys.std(axis=0) * np.random.default_rng(0).normal(size=ys.shape)
    return node_fit.Dataset.from_arrays(times, ys, states=list(states))


def lorenz(t: float, y: np.ndarray) -> list[float]:
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def epidemic(t: float, y: np.ndarray) -> list[float]:
    caught, healed = 0.5 * y[0] * y[1] / 1000, 0.15 * y[1]
    return [-caught, caught - healed, healed]


def duffing(noise: float) -> node_fit.Dataset:
    """A driven oscillator, both states of which are measured."""
    times = np.linspace(0, 60, 601)
    force = 0.5 * np.sin(0.8 * times) + 0.3 * np.sin(2.1 * times)

    def rates(t: float, y: np.ndarray) -> list[float]:
        return [y[1], -y[0] - 0.2 * y[1] - 0.5 * y[0] ** 3 + float(np.interp(t, times, force))]

    ys = solve_ivp(rates, (0, 60), [1.0, 0.0], t_eval=times, rtol=1e-9, atol=1e-11, max_step=0.1).y.T
    ys = ys + noise * ys.std(axis=0) * np.random.default_rng(0).normal(size=ys.shape)
    return node_fit.Dataset.from_arrays(times, ys, us=force[:, None], states=["x", "v"], inputs=["force"])


def tanks(folder: Path) -> node_fit.Dataset:
    """The level of the lower tank alone, with the pump's voltage; the first 700 rows."""
    table = pd.read_csv(folder / "estimation.csv").iloc[:700]
    return node_fit.from_frame(table, time="t_s", states=["y_V"], inputs=["u_V"])


SYSTEMS: dict[str, Callable[[], System]] = {
    "lynx and hare": lambda: System(
        node_fit.read_table(SHIPPED / "lynx_hare.csv", time="year", states=["hare", "lynx"]),
        "0.54*hare - 0.027*hare*lynx; -0.80*lynx + 0.024*hare*lynx (all 21 rows, logarithms)",
        {},
    ),
    "damped pendulum": lambda: System(
        node_fit.read_table(
            SHIPPED / "pendulum.csv", time="t", trajectory="trajectory", states=["angle", "velocity"], inputs=["torque"]
        ),
        "velocity; -c*sin(angle) - d*velocity + torque",
        {},
    ),
    "house": lambda: System(
        node_fit.read_table(SHIPPED / "house.csv", time="minutes", states=["room"], inputs=["heater"]),
        "two temperatures, of which one is hidden: no equation of the room alone",
        {},
    ),
    "driven Duffing oscillator": lambda: System(duffing(0.01), "v; -x - 0.2*v - 0.5*x^3 + force", {}),
    "SIR": lambda: System(
        solved(epidemic, [990, 10, 0], np.linspace(0, 60, 121), "SIR", 0.02),
        "-0.0005*S*I; 0.0005*S*I - 0.15*I; 0.15*I",
        {},
    ),
    **{
        f"Lorenz, {noise:.0%}": lambda noise=noise: System(
            solved(lorenz, [-8.0, 7.0, 27.0], np.arange(500) * 0.02, "xyz", noise),
            "10*(y - x); 28*x - x*z - y; x*y - 8/3*z",
            {},
        )
        for noise in (0.01, 0.05)
    },
    "Robertson": lambda: System(
        node_fit.read_table(SHIPPED / "robertson.csv", time="t", trajectory="trajectory", states=["y1", "y2", "y3"]),
        "-0.04*y1 + 1e4*y2*y3; 0.04*y1 - 1e4*y2*y3 - 3e7*y2^2; 3e7*y2^2",
        {},
    ),
}


def in_a_line(found: node_fit.Discovery) -> str:
    return str(found.found).replace("\n", "; ")


def describe(name: str, system: System, effort: Effort) -> None:
    print(f"{name}\n  true: {system.true}", flush=True)
    began = time.perf_counter()
    try:
        found = node_fit.discover(system.data, effort=effort, resamples=0, symbolic=False, **system.options)
    except ValueError as error:
        print(f"  refused: {error}", flush=True)
        return
    print(f"  {found.verdict}")
    print(f"  found in {time.perf_counter() - began:.0f} s, {len(found.rivals)} rivals: {in_a_line(found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Equations found in records of known and of measured systems.")
    parser.add_argument("--only", nargs="+", help="names of records, or their beginnings")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--effort", default="normal", choices=("quick", "normal", "thorough"))
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the measured records")
    given = parser.parse_args()
    systems = dict(SYSTEMS)
    if (folder := given.data / "cascaded_tanks").is_dir():
        systems["cascaded tanks"] = lambda: System(tanks(folder), "a square root of a hidden level", {})

    def chosen(names: Sequence[str]) -> list[str]:
        return [name for name in names if given.only is None or any(name.startswith(each) for each in given.only)]

    rows = [forecast(name, given.draws, given.effort) for name in chosen(list(FEW_ROWS))]
    if rows:
        print("| record | draws | asked | had: median (range) | seconds |\n|---|---|---|---|---|", *rows, sep="\n")
    for name in chosen(list(systems)):
        describe(name, systems[name](), given.effort)


if __name__ == "__main__":
    main()
