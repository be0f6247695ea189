"""Measures how well constants are found where equations have counts, groups, triggers, doses and switches.

    python scripts/accuracy/equation_features.py [--sets 20] [names...]

prints a table in Markdown. Of each problem, data sets that differ only in their noise are simulated from closed forms,
or tight solves by SciPy, and fitted in one process. An interval at 95 % should cover the true constant in 95 % of them.

- `counts`: weekly cases of an epidemic, of which a share is reported; `increase(total)`. Counts are Poisson's, and fits
  are told their standard deviation.
- `wells`: a rate of each of three trajectories beside a constant that they share; `local`.
- `stiff-tank`: a tank that is filled up at a level and dosed once, with a sensor that is 100,000 times as fast;
  `triggers` with `solver=kvaerno5`.
- `switch`: an inflow from a time on, which is fitted; `piecewise`.
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

KNOWN = functools.partial(nf.Known)
FITTED = nf.Fitted


@dataclass(frozen=True)
class Problem:
    """A system with known constants.

    - `truth`: the constants. `data`: the data set of a seed. `options`: of the fit, with first values of constants.
    """

    truth: dict[str, float]
    data: Callable[[int], nf.Dataset]
    options: dict[str, Any]


def counts() -> Problem:
    truth, people, sick = {"b": 0.42, "g": 0.2, "rho": 0.6}, 50_000.0, 12.0
    ts = np.arange(0.0, 85.0, 7.0)

    def rates(t: float, y: np.ndarray) -> list[float]:
        new = truth["b"] * y[0] * y[1] / people
        return [-new, new - truth["g"] * y[1], new]

    total = solve_ivp(rates, (0, ts[-1]), [people - sick, sick, 0], "LSODA", t_eval=ts, rtol=1e-10, atol=1e-8).y[2]

    expected = truth["rho"] * np.diff(total)

    def data(seed: int) -> nf.Dataset:
        cases = np.append(np.nan, np.random.default_rng(seed).poisson(expected))
        deviation = np.sqrt(np.append(1.0, expected))
        return nf.Dataset.from_arrays(ts, cases[:, None], states=["cases"], sigma=deviation[None, :, None])

    new = "b*S*I/50000"
    field = functools.partial(
        KNOWN,
        equations={"S": f"-{new}", "I": f"{new} - g*I", "total": new},
        constants={"b": [0.5, 0, None], "g": [0.25, 0, None]},
    )
    readout = nf.FormulaReadout(formulas={"cases": "rho*increase(total)"}, constants={"rho": [0.5, 0, 1]})
    start = nf.First(absent={"S": people - sick, "I": sick, "total": 0.0})
    options = nf.Options(precision="x64", effort="quick", observation=readout)
    return Problem(truth, data, {"field": field, "hidden": ["S", "I", "total"], "start": start, "options": options})


def wells() -> Problem:
    rates, shared = {"A": 0.5, "B": 0.9, "C": 1.4}, 0.1
    ts = np.linspace(0, 3, 13)

    def data(seed: int) -> nf.Dataset:
        rng = np.random.default_rng(seed)
        clean = [(2 - shared / k) * np.exp(-k * ts) + shared / k for k in rates.values()]
        rows = [(y + 0.01 * rng.normal(size=len(ts)))[:, None] for y in clean]
        return nf.Dataset.from_arrays([ts] * 3, rows, states=["x"], trajectories=list(rates))

    field = functools.partial(
        KNOWN, equations={"x": "-k*x + d"}, constants={"k": [0.8, 0, None], "d": 0.2}, local={"k": "trajectory"}
    )
    truth = {f"k_{name}": rate for name, rate in rates.items()} | {"d": shared}
    return Problem(truth, data, {"field": field, "start": FITTED, "options": QUICK})


def stiff_tank() -> Problem:
    drain, low, fast, dosed, dose = 0.7, 0.3, 1e5, 5.0, 0.4
    ts = np.linspace(0, 10, 41)
    level, begin, doses, clean = 1.0, 0.0, [(dosed, dose), (np.inf, 0.0)], []
    for row in ts:
        while (next_jump := min(fills := begin + np.log(level / low) / drain, doses[0][0])) < row:
            is_filled = next_jump == fills
            level = low + 1 if is_filled else level * np.exp(-drain * (next_jump - begin)) + doses.pop(0)[1]
            begin = next_jump
        clean.append(level * np.exp(-drain * (row - begin)))
    ys = np.stack([clean, np.array(clean) * fast / (fast - drain)], axis=1)

    def data(seed: int) -> nf.Dataset:
        noisy = ys + 0.005 * np.random.default_rng(seed).normal(size=ys.shape)
        records = nf.Dataset.from_arrays(ts, noisy, states=["x", "s"])
        return nf.with_events(records, [{"time": dosed, "state": "x", "add": dose}])

    field = functools.partial(
        KNOWN,
        equations={"x": "-k*x", "s": "K*(x - s)"},
        constants={"k": [0.66, 0, None], "low": [0.32, 0, None], "K": [fast] * 3},
        triggers=[{"when": "x - low", "set": {"x": "x + 1"}}],
    )
    options = {"field": field, "start": FITTED, "solver": "kvaerno5", "options": QUICK}
    return Problem({"k": drain, "low": low}, data, options)


def switch() -> Problem:
    truth = {"k": 0.8, "t1": 1.37, "f": 2.5}
    ts = np.linspace(0, 4, 33)
    grown = truth["f"] / truth["k"] * (1 - np.exp(-truth["k"] * np.maximum(ts - truth["t1"], 0)))
    clean = np.exp(-truth["k"] * ts) + grown

    def data(seed: int) -> nf.Dataset:
        noisy = clean + 0.01 * np.random.default_rng(seed).normal(size=len(ts))
        return nf.Dataset.from_arrays(ts, noisy[:, None], states=["x"])

    field = functools.partial(
        KNOWN,
        equations={"x": "-k*x + piecewise(f, t > t1, 0)"},
        constants={"k": [0.6, 0, None], "t1": [2.0, 0, 4], "f": [2.0, 0, None]},
    )
    return Problem(truth, data, {"field": field, "start": FITTED, "options": QUICK})


QUICK = nf.Options(precision="x64", effort="quick")
PROBLEMS = {"counts": counts, "wells": wells, "stiff-tank": stiff_tank, "switch": switch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"problems, of {', '.join(PROBLEMS)}; all if absent")
    parser.add_argument("--sets", type=int, default=20, help="data sets of each problem")
    given = parser.parse_args()
    print("| problem | constant | true | largest error | median error | covered | seconds a fit |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in given.names or PROBLEMS:
        problem, errors, covered, seconds = PROBLEMS[name](), [], [], []
        for seed in range(given.sets):
            began = time.perf_counter()
            fit = nf.fit(problem.data(seed), **problem.options)
            seconds.append(time.perf_counter() - began)
            intervals = fit.confidence().constants
            errors.append([abs(fit.constants[key] / true - 1) for key, true in problem.truth.items()])
            covered.append(
                [intervals[key].lower <= true <= intervals[key].upper for key, true in problem.truth.items()]
            )
        for place, (key, true) in enumerate(problem.truth.items()):
            own, hits = np.array(errors)[:, place], np.array(covered)[:, place]
            print(
                f"| {name} | {key} | {true:g} | {own.max():.2%} | {np.median(own):.2%} | {hits.sum()} of {hits.size} | "
                f"{np.median(seconds):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
