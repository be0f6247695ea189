"""Counts true verdicts on simulated records whose known equations are true, or wrong.

    python scripts/accuracy/verdicts.py [--draws 13] [--wrong 10] [--only decay pooled ...] [--direct] [--seed 1]

prints a table in Markdown. Records of one kind differ in their noise and inputs, and share compiled programs. All rows
are fitted by the options that known equations have by default; with `--direct`, by SciPy to the same optimum, without
longer simulations, which counts many records in little time. Of true equations, `good` and `noise-limited` are true
verdicts; noise that lasts may be named instead. Of wrong ones, any other verdict is.
"""

import argparse
import collections
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.integrate import odeint
from scipy.optimize import least_squares

import node_fit as nf
from node_fit.data.scaling import Scaler
from node_fit.evaluation.case import Case
from node_fit.evaluation.diagnosis import Diagnosis, diagnose

CONTENT = ("good", "noise-limited")
# Rules of this program were designed on draws of other systems; these begin at a number of their own.
FIRST_SEED = 70_000
Rates = Callable[[float, np.ndarray, np.ndarray, Mapping[str, float]], Sequence[float]]


@dataclass(frozen=True)
class Kind:
    """Records of a system, and the equations that are fitted to them.

    - `rates`: the true right-hand side, of time, states, inputs and constants. `constants`: the true ones.
    - `starts`: of each trajectory. `ts`: times of the rows. `noise`: standard deviation of each state, of its logarithm
      if `options` have one; `last`: correlation of neighbours' noise.
    - `equations`, `first`: those fitted, and the first values of their constants. `law`: their right-hand side as a
      function, if it is not `rates`.
    - `shown`: measured states. `groups`: constants of the second half of the trajectories. `dose`: added to the first
      state at the first time. `inputs`: levels that change at random, in so many rows.
    - `first_row`: an error that is added to each trajectory's first row.
    - `given`: whether the noise is given. `options`: of the fit. `is_true`: whether the equations are.
    """

    rates: Rates
    constants: Mapping[str, float]
    starts: Sequence[Sequence[float]]
    ts: np.ndarray
    noise: Sequence[float]
    states: Sequence[str]
    equations: Mapping[str, str]
    first: Mapping[str, float]
    shown: int | None = None
    groups: Mapping[str, float] = field(default_factory=dict)
    dose: float = 0.0
    hold: int = 0
    last: float = 0.0
    first_row: float = 0.0
    given: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    is_true: bool = True
    law: Rates | None = None

    def simulate(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """States without noise, and inputs, of each trajectory."""
        held = max(self.hold, 1)
        levels = rng.uniform(-1, 1, (len(self.starts), -(-len(self.ts) // held)))
        us = np.repeat(levels, held, axis=1)[:, : len(self.ts)] * (self.hold > 0)
        ys = []
        for number, start in enumerate(self.starts):
            second = 2 * number >= len(self.starts)
            constants = {**self.constants, **(self.groups if second else {})}
            state = np.array(start, float)
            ys.append(self.solve(self.rates, constants, state, us[number]))
        return np.array(ys), us[..., None]

    def solve(self, rates: Rates, constants: Mapping[str, float], start: np.ndarray, us: np.ndarray) -> np.ndarray:
        """States at all rows, of a trajectory whose inputs are held between rows that change them."""
        path, state = [start], start + np.eye(len(start))[0] * self.dose
        edges = [0, *(np.flatnonzero(np.diff(us)) + 1), len(self.ts) - 1]
        for first, last in itertools.pairwise(dict.fromkeys(edges)):
            rows = self.ts[first : last + 1]
            follow = functools.partial(with_input, rates, constants, us[first : first + 1])
            found = odeint(follow, state, rows, rtol=1e-8, atol=1e-10, tfirst=True)
            path += list(found[1:])
            state = found[-1]
        return np.array(path)

    @property
    def known_starts(self) -> Mapping[str, float]:
        """The starts of states that nobody measured, where they are known."""
        return getattr(self.options.get("start"), "keywords", {}).get("absent", {})

    @property
    def is_stated(self) -> bool:
        """Whether trajectories start at rest."""
        return getattr(self.options.get("start"), "func", None) is nf.Stated

    @property
    def is_told(self) -> bool:
        """Whether no start is fitted."""
        return self.is_stated or self.options.get("start") is nf.First

    def fit_directly(self, data: nf.Dataset) -> np.ndarray:
        """Predictions at the least-squares optimum, in constants and starts."""
        measured, law = slice(1, 2) if self.dose else slice(0, self.shown), self.law or self.rates
        logarithmic = "scaling" in self.options
        names = list(self.first)
        free = [i for i, name in enumerate(self.states) if name not in self.known_starts and not self.is_told]
        begin = np.array([[self.known_starts.get(name, 0.5) for name in self.states]] * len(data.trajectories))
        begin[:, measured] = 0.0 if self.is_stated else np.abs(data.ys[:, 0])

        def simulate(x: np.ndarray) -> np.ndarray:
            constants = dict(zip(names, np.exp(x[: len(names)]), strict=True))
            starts = begin.copy()
            starts[:, free] = x[len(names) :].reshape(len(begin), len(free))
            us = data.us[..., 0] if data.inputs else np.zeros(data.ts.shape)
            return np.array(
                [self.solve(law, constants, start, u)[:, measured] for start, u in zip(starts, us, strict=True)]
            )

        def residuals(x: np.ndarray) -> np.ndarray:
            ys = simulate(x)
            if logarithmic:
                return np.log(np.maximum(ys, 1e-9) / data.ys).ravel()
            return np.nan_to_num((ys - data.ys) / data.ys.std(axis=(0, 1)), nan=1e3).ravel()

        start = np.concatenate([np.log(list(self.first.values())), begin[:, free].ravel()])
        return simulate(least_squares(residuals, start, x_scale="jac", max_nfev=100).x)

    def diagnose_directly(self, data: nf.Dataset, options: nf.Options) -> Diagnosis:
        """The verdict on these predictions."""
        limits = options.scaling.limits(data.states, data.inputs)
        splits, predicted = {"train": data}, {"train": self.fit_directly(data)}
        scaler = Scaler.from_dataset(data, bounds=limits)
        return diagnose(Case("converged", [], splits, predicted, options=options, penalised=False, scaler=scaler))

    def draw(self, seed: int) -> nf.Dataset:
        """A record with noise."""
        rng = np.random.default_rng(seed)
        clean, us = self.simulate(rng)
        chance = rng.standard_normal(clean.shape)
        for row in range(1, len(self.ts)):
            chance[:, row] = self.last * chance[:, row - 1] + (1 - self.last**2) ** 0.5 * chance[:, row]
        logarithmic = "scaling" in self.options
        ys = clean * np.exp(self.noise * chance) if logarithmic else clean + self.noise * chance
        ys[:, 0] += self.first_row
        shown = self.shown or len(self.states)
        data = nf.Dataset.from_arrays(
            self.ts,
            ys[..., :shown] if self.dose == 0 else ys[..., 1:2],
            us if self.hold else None,
            states=list(self.states[:shown] if self.dose == 0 else self.states[1:2]),
            inputs=["u"] if self.hold else (),
            sigma=np.array(self.noise)[:shown] if self.given else None,
        )
        if self.dose == 0:
            return data
        doses = [
            {"trajectory": name, "time": float(self.ts[0]), "state": self.states[0], "add": self.dose}
            for name in data.trajectories
        ]
        return nf.with_events(data, doses)

    def judge(self, seed: int, *, directly: bool) -> tuple[bool, str, str]:
        """Whether the verdict is true, its kind, and its sentence."""
        data = self.draw(seed)
        constants = {name: [value, 0.0, None] for name, value in self.first.items()}
        made = functools.partial(nf.Known, equations=dict(self.equations), constants=constants)
        hidden = {"hidden": list(self.states[self.shown :])} if self.shown else {}
        hidden = {"hidden": [self.states[0]]} if self.dose else hidden
        options = nf.Options(field=made, **hidden, **self.options)
        found = self.diagnose_directly(data, options) if directly else nf.fit(data, options=options).diagnose()
        if not self.is_true:
            return found.kind not in CONTENT, found.kind, found.sentence
        named = self.last > 0 and "neighbouring residuals depend" in found.sentence
        return found.kind in CONTENT or named, found.kind, found.sentence


def with_input(rates: Rates, constants: Mapping[str, float], u: np.ndarray, t: float, y: np.ndarray) -> Sequence[float]:
    return rates(t, y, u, constants)


def grid(end: float, rows: int) -> np.ndarray:
    return np.linspace(0.0, end, rows)


def lag(t, y, u, c):
    return [(c["K"] * u[0] - y[0]) / c["tau"]]


def decay(t, y, u, c):
    return [-y[0] / c["tau"]]


def logistic(t, y, u, c):
    return [c["r"] * y[0] * (1 - y[0] / c["K"])]


def prey(t, y, u, c):
    return [c["a"] * y[0] - c["b"] * y[0] * y[1], c["b"] * y[0] * y[1] - c["m"] * y[1]]


def crowded_prey(t, y, u, c):
    return [c["a"] * y[0] * (1 - y[0] / c["K"]) - c["b"] * y[0] * y[1], c["b"] * y[0] * y[1] - c["m"] * y[1]]


def spring(t, y, u, c):
    return [y[1], -c["k"] * y[0] - c["c"] * y[1] + c["g"] * u[0]]


def free_spring(t, y, u, c):
    return [y[1], -c["k"] * y[0] - c["c"] * y[1]]


def hard_spring(t, y, u, c):
    return [y[1], -c["k"] * y[0] - c["h"] * y[0] ** 3 - c["c"] * y[1] + c["g"] * u[0]]


def epidemic(t, y, u, c):
    return [c["beta"] * y[0] * y[1] - c["gamma"] * y[0], -c["beta"] * y[0] * y[1]]


def only_infection(t, y, u, c):
    return [c["beta"] * y[0] * y[1], -c["beta"] * y[0] * y[1]]


def absorbed(t, y, u, c):
    return [-c["ka"] * y[0], c["ka"] * y[0] / c["V"] - c["ke"] * y[1]]


def two_compartments(t, y, u, c):
    return [-c["ka"] * y[0], c["ka"] * y[0] / c["V"] - (c["ke"] + c["k12"]) * y[1] + c["k21"] * y[2],
            c["k12"] * y[1] - c["k21"] * y[2]]  # fmt: skip


def plateau(t, y, u, c):
    return [c["k"] * (c["top"] - y[0])]


def saturated(t, y, u, c):
    return [-c["v"] * y[0] / (c["K"] + y[0])]


def inhibited(t, y, u, c):
    return [-c["v"] * y[0] / (c["K"] + y[0] + y[0] ** 2 / c["I"])]


def competition(t, y, u, c):
    return [c["r"] * y[0] * (1 - y[0] - c["p"] * y[1]), c["s"] * y[1] * (1 - y[1] - c["q"] * y[0])]


def apart(t, y, u, c):
    return [c["r"] * y[0] * (1 - y[0]), c["s"] * y[1] * (1 - y[1])]


def reversible(t, y, u, c):
    back = c.get("b", c.get("b_", 0.0))
    return [back * y[1] - c["f"] * y[0], c["f"] * y[0] - back * y[1]]


def one_way(t, y, u, c):
    return [-c["f"] * y[0], c["f"] * y[0]]


def rotation(t, y, u, c):
    return [c["w"] * y[1] - c["d"] * y[0], -c["w"] * y[0] - c["d"] * y[1]]


def fading(t, y, u, c):
    return [-y[0] / (c["tau"] * (1 + t))]


LAG = {"x": "(K*u - x)/tau"}
COMPETITION = {"x": "r*x*(1 - x - p*y)", "y": "s*y*(1 - y - q*x)"}
COMPETITION_TRUE = {"r": 0.9, "s": 0.7, "p": 0.5, "q": 0.7}
COMPETITION_FIRST = {"r": 0.6, "s": 0.5, "p": 0.3, "q": 0.3}
ROTATION, ROTATION_FIRST = {"x": "w*y - d*x", "y": "-w*x - d*y"}, {"w": 1.5, "d": 0.2}
LOGISTIC = {"n": "r*n*(1 - n/K)"}
PREY = {"x": "a*x - b*x*y", "y": "b*x*y - m*y"}
SPRING = {"x": "v", "v": "-k*x - c*v + g*u"}
EPIDEMIC = {"I": "beta*I*S - gamma*I", "S": "-beta*I*S"}
ABSORBED = {"gut": "-ka*gut", "plasma": "ka*gut/V - ke*plasma"}
SATURATED = {"s": "-v*s/(K + s)"}
EMPTY_GUT = {"start": functools.partial(nf.Fitted, given=None, absent={"gut": 0.0})}
LAG_TRUE, LAG_FIRST = {"K": 2.0, "tau": 1.4}, {"K": 1.4, "tau": 2.0}
PREY_TRUE, PREY_FIRST = {"a": 0.9, "b": 0.5, "m": 0.7}, {"a": 0.7, "b": 0.4, "m": 0.9}
SPRING_TRUE, SPRING_FIRST = {"k": 2.2, "c": 0.5, "g": 1.5}, {"k": 1.8, "c": 0.7, "g": 1.0}
GUT_TRUE, GUT_FIRST = {"ka": 1.3, "ke": 0.25, "V": 8.0}, {"ka": 1.0, "ke": 0.35, "V": 6.0}
SIX = [[1.0], [2.0], [4.0], [1.5], [3.0], [5.0]]

KINDS: dict[str, Kind] = {
    "first-order lag, input": Kind(lag, LAG_TRUE, [[0.0]], grid(20, 40), [0.05], "x", LAG, LAG_FIRST, hold=5),
    "logistic growth": Kind(
        logistic, {"r": 0.7, "K": 9.0}, [[0.4]], grid(12, 25), [0.15], "n", LOGISTIC, {"r": 0.5, "K": 7.0}
    ),
    "logistic growth, much noise": Kind(
        logistic, {"r": 0.7, "K": 9.0}, [[0.6]], grid(9, 18), [1.8], "n", LOGISTIC, {"r": 0.5, "K": 7.0}
    ),
    "Lotka-Volterra": Kind(
        prey, PREY_TRUE, [[1.5, 1.0]], grid(16, 33), [0.12, 0.12], "xy", PREY, PREY_FIRST
    ),
    "Lotka-Volterra, logarithms": Kind(
        prey, PREY_TRUE, [[1.5, 1.0]], grid(16, 25), [0.1, 0.1], "xy", PREY, PREY_FIRST,
        options={"scaling": nf.Scaling(log=("x", "y"))},
    ),
    "dosed compartments": Kind(
        absorbed, GUT_TRUE, [[0.0, 0.0]] * 4, grid(14, 12), [0.0, 0.15], ["gut", "plasma"], ABSORBED, GUT_FIRST,
        dose=50.0, options=EMPTY_GUT,
    ),
    "driven second order": Kind(
        spring, SPRING_TRUE, [[0.5, 0.0]], grid(15, 100), [0.05, 0.08], "xv", SPRING, SPRING_FIRST, hold=10
    ),
    "epidemic, hidden state": Kind(
        epidemic, {"beta": 1.6, "gamma": 0.5}, [[0.02, 0.98]], grid(20, 40), [0.006, 0.0], "IS", EPIDEMIC,
        {"beta": 1.2, "gamma": 0.4}, shown=1,
    ),
    "plateau": Kind(
        plateau, {"k": 1.5, "top": 3.0}, [[0.2]], grid(25, 60), [0.04], "x", {"x": "k*(top - x)"},
        {"k": 1.0, "top": 2.0},
    ),
    "few rows": Kind(
        decay, {"tau": 1.4}, [[3.0]], grid(4, 8), [0.08], "x", {"x": "-x/tau"}, {"tau": 2.0}
    ),
    "many rows": Kind(
        free_spring, {"k": 2.2, "c": 0.15}, [[1.0, 0.0]], grid(25, 400), [0.1, 0.15], "xv",
        {"x": "v", "v": "-k*x - c*v"}, {"k": 1.9, "c": 0.25},
    ),
    "six trajectories": Kind(
        saturated, {"v": 1.2, "K": 0.8}, SIX, grid(4, 10), [0.06], "s", SATURATED, {"v": 0.9, "K": 1.2}
    ),
    "given noise": Kind(
        saturated, {"v": 1.2, "K": 0.8}, SIX[:3], grid(4, 15), [0.1], "s", SATURATED, {"v": 0.9, "K": 1.2}, given=True
    ),
    "noise that lasts": Kind(lag, LAG_TRUE, [[0.0]], grid(20, 60), [0.1], "x", LAG, LAG_FIRST, hold=6, last=0.6),
    "no noise": Kind(
        spring, SPRING_TRUE, [[1.0, 0.0]], grid(8, 40), [0.0, 0.0], "xv", SPRING, SPRING_FIRST, hold=8
    ),
    "little noise": Kind(
        saturated, {"v": 1.2, "K": 0.8}, SIX[:2], grid(4, 20), [0.004], "s", SATURATED, {"v": 0.9, "K": 1.2}
    ),
    "missing: crowding of prey": Kind(
        crowded_prey, {**PREY_TRUE, "K": 8.0}, [[1.5, 1.0]], grid(16, 33), [0.08, 0.08], "xy", PREY, PREY_FIRST,
        is_true=False, law=prey,
    ),
    "missing: hardening": Kind(
        hard_spring, {**SPRING_TRUE, "h": 1.5}, [[1.2, 0.0]], grid(15, 100), [0.05, 0.08], "xv", SPRING, SPRING_FIRST,
        hold=10, is_true=False, law=spring,
    ),
    "missing: tissue": Kind(
        two_compartments, {**GUT_TRUE, "k12": 0.8, "k21": 0.15}, [[0.0, 0.0, 0.0]] * 4, grid(14, 12), [0.0, 0.1, 0.0],
        ["gut", "plasma"], ABSORBED, GUT_FIRST, dose=50.0, options=EMPTY_GUT, is_true=False, law=absorbed,
    ),
    "missing: inhibition": Kind(
        inhibited, {"v": 2.5, "K": 0.5, "I": 1.5}, SIX, grid(4, 10), [0.06], "s", SATURATED, {"v": 0.9, "K": 1.2},
        is_true=False, law=saturated,
    ),
    "missing: recovery": Kind(
        epidemic, {"beta": 1.6, "gamma": 0.5}, [[0.02, 0.98]], grid(20, 40), [0.006, 0.0], "IS",
        {"I": "beta*I*S", "S": "-beta*I*S"}, {"beta": 1.2}, shown=1, is_true=False, law=only_infection,
    ),
    "pooled: two strains": Kind(
        logistic, {"r": 0.7, "K": 9.0}, [[0.4]] * 6, grid(12, 9), [0.2], "n", LOGISTIC, {"r": 0.5, "K": 7.0},
        groups={"r": 0.5}, is_true=False,
    ),
    "pooled: two enzymes": Kind(
        saturated, {"v": 1.2, "K": 0.8}, SIX, grid(4, 10), [0.06], "s", SATURATED, {"v": 0.9, "K": 1.2},
        groups={"v": 0.9}, is_true=False,
    ),
    "pooled: two clearances": Kind(
        absorbed, GUT_TRUE, [[0.0, 0.0]] * 4, grid(14, 12), [0.0, 0.15], ["gut", "plasma"], ABSORBED, GUT_FIRST,
        dose=50.0, options=EMPTY_GUT, groups={"ke": 0.4}, is_true=False,
    ),
    "wrong start: susceptible": Kind(
        epidemic, {"beta": 1.6, "gamma": 0.5}, [[0.02, 0.6]], grid(30, 40), [0.003, 0.0], "IS", EPIDEMIC,
        {"beta": 1.2, "gamma": 0.4}, shown=1, is_true=False,
        options={"start": functools.partial(nf.Fitted, given=None, absent={"S": 0.2})},
    ),
    "wrong start: first row": Kind(
        prey, PREY_TRUE, [[1.5, 1.0]], grid(16, 33), [0.08, 0.08], "xy", PREY, PREY_FIRST, first_row=0.4,
        options={"start": nf.First}, is_true=False,
    ),
    "wrong start: at rest": Kind(
        spring, SPRING_TRUE, [[2.0, 0.0]], grid(15, 60), [0.08, 0.08], "xv", SPRING, SPRING_FIRST, hold=10,
        options={"start": functools.partial(nf.Stated, values={"x": "0", "v": "0"})}, is_true=False,
    ),
    # Kinds that were added after the rules, and did not change them.
    "competition": Kind(
        competition, COMPETITION_TRUE, [[0.1, 0.2]], grid(15, 30), [0.03, 0.03], "xy", COMPETITION, COMPETITION_FIRST
    ),
    "reversible reaction": Kind(
        reversible, {"f": 0.9, "b": 0.4}, [[3.0, 0.1], [0.5, 2.5], [2.0, 2.0]], grid(5, 12), [0.05, 0.05], "ab",
        {"a": "b_*b - f*a", "b": "f*a - b_*b"}, {"f": 0.5, "b_": 0.5},
    ),
    "rotation": Kind(
        rotation, {"w": 1.7, "d": 0.12}, [[2.0, 0.0]], grid(12, 80), [0.15, 0.15], "xy", ROTATION, ROTATION_FIRST
    ),
    "missing: competition": Kind(
        competition, COMPETITION_TRUE, [[0.1, 0.2]], grid(15, 30), [0.03, 0.03], "xy",
        {"x": "r*x*(1 - x)", "y": "s*y*(1 - y)"}, {"r": 0.7, "s": 0.5}, is_true=False, law=apart,
    ),
    "missing: return": Kind(
        reversible, {"f": 0.9, "b": 0.4}, [[3.0, 0.1], [0.5, 2.5], [2.0, 2.0]], grid(5, 12), [0.05, 0.05], "ab",
        {"a": "-f*a", "b": "f*a"}, {"f": 0.5}, is_true=False, law=one_way,
    ),
    "missing: a rate that fades": Kind(
        fading, {"tau": 0.8}, [[4.0]], grid(6, 40), [0.06], "x", {"x": "-x/tau"}, {"tau": 2.0}, is_true=False, law=decay
    ),
    "pooled: two frequencies": Kind(
        rotation, {"w": 1.7, "d": 0.12}, [[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.5, -1.0]], grid(8, 30), [0.15, 0.15],
        "xy", ROTATION, ROTATION_FIRST, groups={"w": 1.55}, is_true=False,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=13, help="of each kind of true equations")
    parser.add_argument("--wrong", type=int, default=10, help="of each kind of wrong equations")
    parser.add_argument("--only", nargs="*", help="parts of the names of kinds")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first record")
    parser.add_argument("--direct", action="store_true", help="fit by SciPy")
    given = parser.parse_args()
    totals: dict[bool, list[bool]] = {True: [], False: []}
    sentences: list[str] = []
    print(
        "| record | equations | draws | true verdicts | verdicts | seconds each |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for name, kind in KINDS.items():
        if given.only and not any(part in name for part in given.only):
            continue
        count, began = given.draws if kind.is_true else given.wrong, time.perf_counter()
        judged = [kind.judge(given.seed + number, directly=given.direct) for number in range(count)]
        totals[kind.is_true] += [right for right, _, _ in judged]
        sentences += [f"{name}: {sentence}" for right, _, sentence in judged if not right]
        said = ", ".join(
            f"{word} {times}" for word, times in collections.Counter(each[1] for each in judged).most_common()
        )
        seconds = (time.perf_counter() - began) / count
        truth = "true" if kind.is_true else "wrong"
        print(
            f"| {name} | {truth} | {count} | {sum(each[0] for each in judged)} | {said} | {seconds:.1f} |", flush=True
        )
    for truth, rights in totals.items():
        if rights:
            print(
                f"\n{'True' if truth else 'Wrong'} equations: {np.mean(rights):.1%} of {len(rights)} verdicts are true."
            )
    print("\nThe others:\n", *(f"- {sentence}" for sentence in sentences), sep="\n")


if __name__ == "__main__":
    main()
