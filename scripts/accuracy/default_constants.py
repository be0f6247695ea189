"""Compares the constants of known equations, fitted by default options, with SciPy's optimum and with the true ones.

    python scripts/accuracy/default_constants.py [--draws 100] [--only decay sir]

prints a table in Markdown. Of each system, records that differ only in their noise are fitted to all of their rows, in
one process. For each record, SciPy's `least_squares` finds the optimum of the same rows, from the true constants and
starts. An interval at 95 % should cover the true constant in 95 % of the records, and no fit should be more than three
standard errors from SciPy's optimum unless it says that it is far from one.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.integrate import odeint
from scipy.optimize import least_squares

import node_fit as nf


@dataclass(frozen=True)
class System:
    """A system with known constants, of which some states are measured.

    - `rates`: of states, with the constants by name, and the input there.
    - `equations`, `truth`, `first`: the text, the true constants, and the first values that the fit is given.
    - `starts`: of each record; shape `(record, state)`. `ts`: times of rows.
    - `measured`: number of measured states, which come first. `held`: hidden states whose start is known.
    - `noise`: standard deviation, as a share of each measured state's own.
    - `doses`: times and amounts that are added to the last state. `inputs`: one value for each row, held.
    """

    rates: Callable[..., list[float]]
    equations: dict[str, str]
    truth: dict[str, float]
    first: dict[str, float]
    starts: np.ndarray
    ts: np.ndarray
    measured: int
    noise: float
    held: tuple[int, ...] = ()
    doses: tuple[tuple[float, float], ...] = ()
    inputs: np.ndarray | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def states(self) -> list[str]:
        return list(self.equations)

    def simulate(self, constants: dict[str, float], start: np.ndarray) -> np.ndarray:
        """Measured states at the rows, shape `(time, measured)`; a dose acts just after its row."""
        stops = sorted({0, len(self.ts) - 1, *(int(np.searchsorted(self.ts, time)) for time, _ in self.doses)})
        stops = list(range(len(self.ts))) if self.inputs is not None else stops
        states, y = np.empty((len(self.ts), len(start))), np.array(start, float)
        states[0] = y
        for begin, end in itertools.pairwise(stops):
            y = y.copy()
            y[-1] += sum(amount for time, amount in self.doses if np.isclose(time, self.ts[begin]))
            u = 0.0 if self.inputs is None else float(self.inputs[begin])
            part = odeint(
                lambda y, _t, u=u: self.rates(y, u, **constants), y, self.ts[begin : end + 1], rtol=1e-9, atol=1e-10
            )
            states[begin + 1 : end + 1] = part[1:]
            y = part[-1]
        return states[:, : self.measured]

    @functools.cached_property
    def clean(self) -> np.ndarray:
        return np.stack([self.simulate(self.truth, start) for start in self.starts])

    def draw(self, seed: int) -> np.ndarray:
        """The measurements of the draw of this number, shape `(record, time, measured)`."""
        deviation = self.noise * self.clean.std(axis=(0, 1))
        return self.clean + deviation * np.random.default_rng(seed).standard_normal(self.clean.shape)

    def dataset(self, ys: np.ndarray) -> nf.Dataset:
        names = [str(index) for index in range(len(ys))]
        us = None if self.inputs is None else np.broadcast_to(self.inputs[:, None], (*ys.shape[:2], 1))
        data = nf.Dataset.from_arrays(
            self.ts,
            ys,
            us,
            states=self.states[: self.measured],
            inputs=None if us is None else ["u"],
            trajectories=names,
        )
        events = [{"time": time, "state": self.states[-1], "add": amount} for time, amount in self.doses]
        return nf.with_events(data, events) if events else data

    def optimum(self, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithms of the constants with the least squares, and their standard errors."""
        scale = ys.std(axis=(0, 1))
        free = [index for index in range(self.starts.shape[1]) if index not in self.held]
        count = len(self.truth)

        def residuals(x: np.ndarray) -> np.ndarray:
            constants = dict(zip(self.truth, np.exp(np.clip(x[:count], -50, 50)), strict=True))
            starts = np.array(self.starts, float)
            starts[:, free] = x[count:].reshape(len(starts), -1)
            found = np.stack([self.simulate(constants, start) for start in starts])
            return np.nan_to_num((found - ys) / scale, nan=1e3, posinf=1e3, neginf=-1e3).reshape(-1)

        begin = np.concatenate([np.log(list(self.truth.values())), self.starts[:, free].reshape(-1)])
        found = least_squares(residuals, begin, x_scale="jac", xtol=1e-10, ftol=1e-12, gtol=1e-12)
        variance = (found.fun**2).sum() / (found.fun.size - found.x.size)
        jacobian = np.asarray(found.jac, float)
        covariance = np.linalg.inv(jacobian.T @ jacobian) * variance
        return found.x[:count], np.sqrt(np.diag(covariance))[:count]


def decay() -> System:
    return System(
        lambda y, u, k: [-k * y[0]],
        {"y": "-k*y"},
        {"k": 1.2},
        {"k": 0.5},
        np.array([[5.0]]),
        np.linspace(0, 6, 31),
        1,
        0.02,
    )


def logistic() -> System:
    return System(
        lambda y, u, r, m: [r * y[0] * (1 - y[0] / m)],
        {"x": "r*x*(1 - x/m)"},
        {"r": 0.8, "m": 12.0},
        {"r": 0.3, "m": 6.0},
        np.array([[0.6]]),
        np.linspace(0, 12, 25),
        1,
        0.04,
    )


def lotka_volterra() -> System:
    return System(
        lambda y, u, p, q, r, s: [p * y[0] - q * y[0] * y[1], s * y[0] * y[1] - r * y[1]],
        {"a": "p*a - q*a*b", "b": "s*a*b - r*b"},
        {"p": 0.5, "q": 0.03, "r": 0.8, "s": 0.02},
        {"p": 0.4, "q": 0.02, "r": 0.7, "s": 0.03},
        np.array([[30.0, 5.0], [20.0, 12.0], [40.0, 8.0]]),
        np.linspace(0, 12, 31),
        2,
        0.03,
    )


def dosed() -> System:
    return System(
        lambda y, u, ka, ke, v: [ka * y[1] / v - ke * y[0], -ka * y[1]],
        {"c": "ka*gut/v - ke*c", "gut": "-ka*gut"},
        {"ka": 1.1, "ke": 0.25, "v": 20.0},
        {"ka": 0.5, "ke": 0.1, "v": 10.0},
        np.array([[0.0, 0.0]]),
        np.linspace(0, 20, 41),
        1,
        0.04,
        held=(1,),
        doses=((0.0, 100.0), (8.0, 100.0)),
        options={"hidden": ["gut"], "start": functools.partial(nf.Fitted, given=None, absent={"gut": 0.0})},
    )


def driven() -> System:
    rng = np.random.default_rng(5)
    u = np.repeat(rng.uniform(-1, 1, 12), 10)[:101]
    return System(
        lambda y, u, w, d, b: [y[1], -w * y[0] - d * y[1] + b * u],
        {"x": "speed", "speed": "-w*x - d*speed + b*u"},
        {"w": 2.0, "d": 0.4, "b": 1.5},
        {"w": 1.0, "d": 1.0, "b": 1.0},
        np.array([[0.5, 0.0]]),
        np.linspace(0, 20, 101),
        1,
        0.03,
        inputs=u,
        options={"hidden": ["speed"]},
    )


def sir() -> System:
    return System(
        lambda y, u, b, g: [b * y[0] * y[1] - g * y[0], -b * y[0] * y[1]],
        {"i": "b*i*s - g*i", "s": "-b*i*s"},
        {"b": 0.9, "g": 0.3},
        {"b": 0.5, "g": 0.1},
        np.array([[0.01, 0.99]]),
        np.linspace(0, 30, 31),
        1,
        0.04,
        options={"hidden": ["s"]},
    )


SYSTEMS = {
    "decay": decay,
    "logistic": logistic,
    "Lotka-Volterra": lotka_volterra,
    "dosed": dosed,
    "driven": driven,
    "SIR": sir,
}


@dataclass(frozen=True)
class Outcome:
    """Of one record: which intervals cover the truth, the distance from SciPy's optimum, and what was said."""

    covers: list[bool]
    distance: float
    says_so: bool
    kind: str


def measure(system: System, seed: int) -> Outcome:
    ys = system.draw(seed)
    data = system.dataset(ys)
    constants = {name: [value, 0.0, None] for name, value in system.first.items()}
    make = functools.partial(nf.Known, equations=system.equations, constants=constants)
    fit = nf.fit(data, field=make, progress=False, options=nf.Options(**system.options))
    sure = fit.confidence()
    optimum, errors = system.optimum(ys)
    ours = np.log([max(sure.constants[name].estimate, 1e-300) for name in system.truth])
    distance = float(np.abs((ours - optimum) / errors).max())
    covers = [
        bool(sure.constants[name].lower <= true <= sure.constants[name].upper) for name, true in system.truth.items()
    ]
    verdict = fit.diagnose()
    says = verdict.kind not in ("good", "noise-limited") or any("standard errors" in note for note in sure.notes)
    return Outcome(covers, distance, says, verdict.kind)


def report(name: str, draws: int) -> None:
    system, began, outcomes = SYSTEMS[name](), time.perf_counter(), list[Outcome]()
    for seed in range(draws):
        outcomes.append(measure(system, seed))
        if outcomes[-1].distance > 1:
            print(f"<!-- {name}, draw {seed}: {outcomes[-1]} -->", flush=True)
    covers = np.array([each.covers for each in outcomes])
    shares = ", ".join(f"{key} {share:.0%}" for key, share in zip(system.truth, covers.mean(axis=0), strict=True))
    far = sum(each.distance > 3 and not each.says_so for each in outcomes)
    distances = np.array([each.distance for each in outcomes])
    kinds = sorted({each.kind for each in outcomes})
    verdicts = ", ".join(f"{sum(each.kind == kind for each in outcomes)} {kind}" for kind in kinds)
    seconds = (time.perf_counter() - began) / draws
    print(
        f"| {name} | {draws} | {covers.mean():.1%} | {shares} | {np.median(distances):.3f} | {distances.max():.2g} | "
        f"{far} | {verdicts} | {seconds:.1f} |",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=100)
    options.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    given = options.parse_args()
    print(
        "| system | records | covered | by constant | median distance from SciPy's [standard errors] | largest | "
        "beyond 3 unsaid | verdicts | seconds each |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in given.only:
        report(name, given.draws)


if __name__ == "__main__":
    main()
