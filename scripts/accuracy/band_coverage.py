"""Measures how many new measurements bands of equations cover, within the record and ahead of it.

    python scripts/accuracy/band_coverage.py [--draws 100] [--only logistic] [--rule default]

prints a table in Markdown. Of each system, records that differ only in their noise are simulated and fitted with the
true equations, in one process whose programs are compiled once. Bands at 90 % should cover 90 % of other measurements
at the times of the record (`within`), and at times up to half as long again after it (`ahead`); `truth ahead` is the
share of the true values within the bands ahead, which should be more.

- `lotka-volterra`: 30 rows of both states. `logistic`: 20 rows that end before the plateau.
- `driven`: a damped oscillator whose force is known, 40 rows of position and velocity.
- `doses`: a compartment with five doses, 24 rows, the last dose ahead.

`--rule fitted` fits the start to all rows with Levenberg's and Marquardt's steps; `default` leaves all to the program.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf

LEVEL, MEMBERS = 0.9, 33


@dataclass(frozen=True)
class Problem:
    """A system with known equations.

    - `ts`, `clean`: times and the solution there, shape `(time, state)`; those from row `rows` on are ahead.
    - `noise`: standard deviation of each state. `inputs`: their values at all times, shape `(time, input)`.
    - `doses`: rows of `with_events`.
    """

    states: tuple[str, ...]
    equations: dict[str, str]
    constants: dict[str, list[float | None]]
    ts: np.ndarray
    clean: np.ndarray
    noise: float
    rows: int
    inputs: dict[str, np.ndarray]
    doses: Sequence[dict[str, object]] = ()

    @property
    def deviation(self) -> np.ndarray:
        return self.noise * self.clean[: self.rows].std(axis=0)

    def measured(self, rng: np.random.Generator) -> np.ndarray:
        return self.clean + self.deviation * rng.standard_normal(self.clean.shape)

    def data(self, ys: np.ndarray, rows: int) -> nf.Dataset:
        """The first rows of a record, with its doses."""
        us = np.stack([*self.inputs.values()], axis=1)[:rows] if self.inputs else None
        found = nf.Dataset.from_arrays(self.ts[:rows], ys[:rows], us, states=self.states, inputs=tuple(self.inputs))
        doses = [dose for dose in self.doses if dose["time"] < self.ts[rows - 1]]
        return nf.with_events(found, doses) if doses else found


def solved(rates: Callable, y0: Sequence[float], ts: np.ndarray) -> np.ndarray:
    return solve_ivp(rates, (0, ts[-1]), y0, t_eval=ts, rtol=1e-9, atol=1e-12).y.T


def lotka_volterra() -> Problem:
    a, b, c, d = 0.55, 0.028, 0.8, 0.024
    ts = np.linspace(0, 21.75, 45)
    clean = solved(lambda t, y: [a * y[0] - b * y[0] * y[1], d * y[0] * y[1] - c * y[1]], [30.0, 10.0], ts)
    equations = {"hare": "a*hare - b*hare*lynx", "lynx": "d*hare*lynx - c*lynx"}
    constants = {"a": [0.5, 0, None], "b": [0.03, 0, None], "c": [0.7, 0, None], "d": [0.025, 0, None]}
    return Problem(("hare", "lynx"), equations, constants, ts, clean, 0.1, 30, {})


def logistic() -> Problem:
    ts = np.linspace(0, 14.5, 30)
    clean = solved(lambda t, y: [0.6 * y[0] * (1 - y[0] / 5)], [0.2], ts)
    constants = {"r": [0.5, 0, None], "K": [4.0, 0, None]}
    return Problem(("x",), {"x": "r*x*(1 - x/K)"}, constants, ts, clean, 0.05, 20, {})


def driven() -> Problem:
    ts = np.linspace(0, 29.5, 60)
    force = np.where(np.floor(ts / 4) % 2 == 0, 1.0, -0.5)
    rates = lambda t, y: [y[1], -2.0 * y[0] - 0.4 * y[1] + 1.5 * force[min(int(t / 0.5 + 1e-9), 59)]]  # noqa: E731
    steps, ys = [np.array([1.0, 0.0])], np.array([1.0, 0.0])
    for begin, end in itertools.pairwise(ts):
        ys = solve_ivp(rates, (begin, end - 1e-9), ys, rtol=1e-9, atol=1e-12).y[:, -1]
        steps.append(ys)
    equations = {"x": "v", "v": "-k*x - c*v + g*u"}
    constants = {"k": [1.5, 0, None], "c": [0.3, 0, None], "g": [1.0, 0, None]}
    return Problem(("x", "v"), equations, constants, ts, np.array(steps), 0.15, 40, {"u": force})


def doses() -> Problem:
    ts, k, size = np.linspace(0, 35, 36), 0.25, 3.0
    times = [0.0, 6.0, 12.0, 18.0, 26.0]
    clean = 0.5 * np.exp(-k * ts)
    for time_of in times:
        clean = clean + np.where(ts > time_of, size / 1.5 * np.exp(-k * (ts - time_of)), 0.0)
    rows = [{"time": each, "state": "x", "add": 2.0} for each in times]
    constants = {"k": [0.2, 0, None]}
    return Problem(("x",), {"x": "-k*x"}, constants, ts, clean[:, None], 0.1, 24, {}, rows)


PROBLEMS = {"lotka-volterra": lotka_volterra, "logistic": logistic, "driven": driven, "doses": doses}


def options_of(rule: str) -> nf.Options:
    members = nf.Members(MEMBERS, vary="laplace")
    if rule == "default":
        return nf.Options(ensemble=members)
    start = functools.partial(nf.Fitted, given=None)
    return nf.Options(ensemble=members, start=start, optimizer=nf.LevenbergMarquardt())


def covered(problem: Problem, seed: int, options: nf.Options) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which new measurements are within the bands, in the record and ahead, and which true values ahead."""
    rng, rows = np.random.default_rng(seed), problem.rows
    ys, new = problem.measured(rng), problem.measured(rng)
    field = functools.partial(nf.Known, equations=problem.equations, constants=problem.constants)
    fit = nf.fit(problem.data(ys, rows), field=field, options=options, progress=False)
    ys[rows:] = np.nan
    whole = problem.data(ys, len(ys))
    bands = fit.bands(whole, level=LEVEL)
    assert bands.lower is not None and bands.upper is not None
    at = np.isin(whole.ts[0], problem.ts)
    lower, upper = bands.lower[0][at], bands.upper[0][at]
    inside, true = ((lower <= each) & (each <= upper) for each in (new, problem.clean))
    return inside[:rows], inside[rows:], true[rows:]


def report(name: str, draws: int, rule: str) -> None:
    problem, options, began = PROBLEMS[name](), options_of(rule), time.perf_counter()
    found = [covered(problem, seed, options) for seed in range(draws)]
    seconds = (time.perf_counter() - began) / draws
    shares = [np.array([each[part].mean() for each in found]) for part in range(3)]
    cells = " | ".join(f"{each.mean():.1%} ({each.std() / np.sqrt(draws):.1%})" for each in shares)
    print(f"| {name} | {draws} | {cells} | {seconds:.2f} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=100)
    options.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options.add_argument("--rule", choices=("default", "fitted"), default="default")
    given = options.parse_args()
    print("| system | draws | within | ahead | truth ahead | seconds a draw |\n|---|---|---|---|---|---|")
    for name in given.only:
        report(name, given.draws, given.rule)


if __name__ == "__main__":
    main()
