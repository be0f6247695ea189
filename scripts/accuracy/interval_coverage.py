"""Measures how often intervals of constants cover the true ones.

    python scripts/accuracy/interval_coverage.py [--sets 200]

prints a table in Markdown. Of each problem, data sets that differ only in their noise are simulated and fitted, in one
process whose programs are compiled once. An interval at 95 % should cover the true constant in 95 % of the sets.

- `lynx-hare`: the Lotka-Volterra equations, 41 rows of both states on a logarithmic scale; starts are fitted.
- `robertson`: three stiff reactions, 40 rows over ten decades; the first row is exact.
- `hybrid`: an oscillator whose stiffness is a constant and whose friction is a network; starts are fitted.

`--noise given` tells the fits the noise; by default they estimate it.
"""

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf

FITTED = functools.partial(nf.Fitted, given=None)
METHODS = ("fisher", "profile")


@dataclass(frozen=True)
class Problem:
    """A system with known constants.

    - `ts`, `clean`: times, and the solution there, shape `(trajectory, time, state)`.
    - `noise`: standard deviation of each state; of its logarithm if `options` take that.
    - `first`: whether the first row has noise.
    - `truth`: the constants. `options`: of the fit.
    """

    ts: np.ndarray
    clean: np.ndarray
    states: tuple[str, ...]
    noise: np.ndarray
    first: bool
    truth: dict[str, float]
    options: dict[str, Any]

    @property
    def logarithmic(self) -> bool:
        return bool(self.options.get("scaling", nf.Scaling()).log)

    def data(self, seed: int, given: bool) -> nf.Dataset:
        """The data set of this number."""
        draws = self.noise * np.random.default_rng(seed).standard_normal(self.clean.shape)
        if not self.first:
            draws[:, 0] = 0.0
        ys = self.clean * np.exp(draws) if self.logarithmic else self.clean + draws
        return nf.Dataset.from_arrays(self.ts, ys, states=self.states, sigma=self.noise if given else None)


def solved(rates: Callable, starts: list[list[float]], ts: np.ndarray) -> np.ndarray:
    return np.stack(
        [
            solve_ivp(rates, (ts[0], ts[-1]), y0, "LSODA", ts, rtol=1e-10, atol=1e-13).y.T
            for y0 in starts
        ]
    )  # fmt: skip


def known(equations: dict[str, str], truth: dict[str, float], factor: float, **options: Any) -> Callable:
    """The field with its constants off by a factor."""
    make = functools.partial(nf.Hybrid, **options) if options else nf.Known
    constants = {name: [value * factor, 0.0, None] for name, value in truth.items()}
    return functools.partial(make, equations=equations, constants=constants)


def lynx_hare() -> Problem:
    truth = {"a": 0.55, "b": 0.028, "c": 0.8, "d": 0.024}
    a, b, c, d = truth.values()
    ts = np.linspace(0.0, 20.0, 41)
    clean = solved(lambda t, y: [a * y[0] - b * y[0] * y[1], d * y[0] * y[1] - c * y[1]], [[30.0, 10.0]], ts)
    equations = {"hare": "a*hare - b*hare*lynx", "lynx": "d*hare*lynx - c*lynx"}
    noise = 0.2 * np.log(clean).std(axis=(0, 1))
    options = {"field": known(equations, truth, 1.1), "start": FITTED, "scaling": nf.Scaling(log=("hare", "lynx"))}
    return Problem(ts, clean, ("hare", "lynx"), noise, True, truth, options)


def robertson() -> Problem:
    truth = {"k1": 0.04, "k2": 3e7, "k3": 1e4}
    k1, k2, k3 = truth.values()

    def rates(t: float, y: np.ndarray) -> list[float]:
        one, two, three = k1 * y[0], k2 * y[1] ** 2, k3 * y[1] * y[2]
        return [three - one, one - three - two, two]

    ts = np.concatenate([[0.0], np.geomspace(1e-4, 1e5, 39)])
    clean = solved(rates, [[1.0, 0.0, 0.0]], ts)
    equations = {"y1": "k3*y2*y3 - k1*y1", "y2": "k1*y1 - k3*y2*y3 - k2*y2**2", "y3": "k2*y2**2"}
    options = {"field": known(equations, truth, 1.1), "solver": nf.Solver("kvaerno3", max_steps=16384)}
    return Problem(ts, clean, ("y1", "y2", "y3"), 0.03 * clean.std(axis=(0, 1)), False, truth, options)


def hybrid() -> Problem:
    truth = {"g": 2.0}
    ts = np.linspace(0.0, 6.0, 31)
    starts = [[1.0, 0.0], [-0.5, 1.0], [0.2, -1.5]]
    clean = solved(lambda t, y: [y[1], -2.0 * y[0] - 0.3 * y[1] - 0.2 * y[1] ** 3], starts, ts)
    field = known(
        {"x": "v", "v": "-g*x - drag"}, truth, 1.1, terms={"drag": 0.5}, sees=["v"], width=4, depth=1
    )  # fmt: skip
    noise = 0.05 * clean.std(axis=(0, 1))
    options = {"field": field, "start": FITTED, "penalty": nf.Penalty(ridge=1e-3)}
    return Problem(ts, clean, ("x", "v"), noise, True, truth, options)


PROBLEMS = {"lynx-hare": lynx_hare, "robertson": robertson, "hybrid": hybrid}


def covered(problem: Problem, seed: int, given: bool) -> dict[str, dict[str, bool]]:
    """Which intervals cover the true constants, by method; raises `ValueError` if there are none."""
    options = {
        "recipe": "direct",
        "optimizer": nf.LevenbergMarquardt(),
        "training": nf.Training(steps=60),
        "penalty": nf.Penalty(),
        "precision": "x64",
        **problem.options,
    }
    fit = nf.fit(problem.data(seed, given), progress=False, options=nf.Options(**options))
    found = {method: fit.confidence(method).constants for method in METHODS}
    return {
        method: {name: bool(each[name].lower <= true <= each[name].upper) for name, true in problem.truth.items()}
        for method, each in found.items()
    }


def report(name: str, sets: int, given: bool) -> None:
    """Prints a line of the table for each constant of a problem."""
    problem, began, rows = PROBLEMS[name](), time.perf_counter(), []
    for seed in range(sets):
        try:
            rows.append(covered(problem, seed, given))
        except ValueError as error:
            print(f"<!-- {name}, set {seed}: {error} -->", flush=True)
    seconds = time.perf_counter() - began
    for constant in problem.truth:
        shares = [np.mean([row[method][constant] for row in rows]) if rows else np.nan for method in METHODS]
        error = np.sqrt(0.95 * 0.05 / max(len(rows), 1))
        cells = " | ".join(f"{share:.1%}" for share in shares)
        print(f"| {name} | {constant} | {len(rows)} of {sets} | {cells} | {error:.1%} | {seconds:.0f} |", flush=True)
    names = list(problem.truth)
    shares = [np.mean([row[method][each] for row in rows for each in names]) if rows else np.nan for method in METHODS]
    cells = " | ".join(f"{share:.1%}" for share in shares)
    print(f"| {name} | all | {len(rows)} of {sets} | {cells} | | {seconds:.0f} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sets", type=int, default=200)
    options.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options.add_argument("--noise", choices=("estimated", "given"), default="estimated")
    given = options.parse_args()
    print("| problem | constant | sets | Fisher | profile | standard error | seconds |\n|---|---|---|---|---|---|---|")
    for name in given.only:
        report(name, given.sets, given.noise == "given")


if __name__ == "__main__":
    main()
