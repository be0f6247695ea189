"""Judges right-hand sides by simulation: constants and starts are refined on the records."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.integrate import odeint
from scipy.optimize import least_squares
from scipy.special import gammaln

from .candidates import Smoothed
from .formulas import ARRAY, SCALAR, Compiled, Formula, compile_text

# Starts within the data's range from which a candidate must not run away, and how many ranges away that is.
PROBES, FARTHEST = 8, 100.0
# Relative error of the simulation below which a better fit counts for nothing.
RESOLUTION = 1e-4
FAILED_RESIDUAL = 1e3


@dataclass(frozen=True)
class JudgedSystem:
    """A system of right-hand sides, refined on the records.

    **Arguments:** `formulas`: one for each state. `starts`: `(record, state)`. `error`: mean squared error in
    standard deviations of each state. `evidence`: minus twice the logarithm of the records' probability, and the
    size; lower is better. `escapes`: whether it runs away from a start within the data's range.
    """

    formulas: tuple[Formula, ...]
    starts: np.ndarray
    error: float
    evidence: float
    escapes: bool = False

    @property
    def size(self) -> int:
        return sum(formula.size for formula in self.formulas)

    @property
    def rank(self) -> tuple[bool, float]:
        return self.escapes, self.evidence


def minus_log_evidence(left: np.ndarray, jacobian: np.ndarray, shares: np.ndarray) -> float:
    """Minus twice the logarithm of the probability of data, given a model with constants that least squares found.

    The noise is normal, and its unknown variance is integrated out with the density 1/sigma. Constants are normal
    before the data are seen. Laplace's method, with n data of which k constants leave the sum of squares S, gives

        (n - k) log(pi S) - 2 log Gamma((n - k)/2) + log det(W J' J W) + sum (c/w)^2 + k log(2 pi)

    (D. J. C. MacKay, Neural Computation 4 (1992) 415, section 2; A. O'Hagan and J. Forster, Kendall's Advanced Theory
    of Statistics 2B, 2004, sections 9.8 and 11.3). For many data this is n log S + k log n, Schwarz's criterion, but of
    few data, each constant also takes a share of the noise. A constant that the data do not determine costs nothing:
    to each eigenvalue of W J' J W the variance of the noise is added.

    **Arguments:** `left`: residuals, `(n,)`. `jacobian`: J, their derivatives by constants in units of their widths w,
    `(n, k)`. `shares`: c/w, `(k,)`.
    """
    rows, many = jacobian.shape
    free = max(rows - many, 1)
    total = float(left @ left) + rows * RESOLUTION**2
    curvatures = np.linalg.eigvalsh(jacobian.T @ jacobian).clip(min=0.0) + total / free
    noise = free * np.log(np.pi * total) - 2 * gammaln(free / 2)
    return float(noise + np.log(curvatures).sum() + (shares**2).sum() + many * np.log(2 * np.pi))


def compile_formula(formula: Formula, names: Sequence[str]) -> Compiled:
    """A function of the values of `names` and then of the constants."""
    own = [f"c{at}_" for at in range(len(formula.constants))]
    return compile_text(formula.named(own) or "0", [*names, *own], SCALAR)


class Judge:
    """Simulates candidates on the records.

    **Arguments:** `records`: the smoothed records. `states`, `inputs`: names.
    """

    def __init__(self, records: Sequence[Smoothed], states: Sequence[str], inputs: Sequence[str]):
        self.records, self.states, self.inputs = records, list(states), list(inputs)
        self.names = [*self.states, *self.inputs]
        count = len(self.states)
        every = np.concatenate([each.values[:, :count] for each in records])
        self.low, self.high = every.min(0), every.max(0)
        self.scale = np.maximum(every.std(0), 1e-12)
        self.measured = int(sum(np.isfinite(each.raw).sum() for each in records))
        self.starts = np.stack([each.values[0, :count] for each in records])

    def simulate(self, rates: Sequence[Compiled], constants: Sequence[Sequence[float]], start: np.ndarray, at: int):
        """States at the times of a record, `(row, state)`, or None if the solver fails."""
        record, count = self.records[at], len(self.states)
        drivers = record.values[:, count:]

        def slope(y, t):  # Without hints, which tests would check at every step.
            point = [float(value) for value in y]
            point += [float(np.interp(t, record.t, column)) for column in drivers.T]
            return [float(rate([*point, *own])) for rate, own in zip(rates, constants, strict=True)]

        return integrate(slope, start, record.t)

    def follow(self, rate: Compiled, constants: Sequence[float], start: float, at: int, state: int):
        """One state at the times of a record, where all others follow their splines, `(row, 1)`."""
        record, count = self.records[at], len(self.states)
        fine = np.linspace(record.t[0], record.t[-1], 4 * len(record.t))
        tables = [spline(fine).tolist() for spline in record.splines]
        tables += [np.interp(fine, record.t, column).tolist() for column in record.values[:, count:].T]
        begin, step, last = float(fine[0]), float(fine[1] - fine[0]), len(fine) - 2

        def slope(y, t):  # Without hints, which tests would check at every step.
            place = min(max((t - begin) / step, 0.0), last + 1.0)
            low = min(int(place), last)
            part = place - low
            point = [table[low] + part * (table[low + 1] - table[low]) for table in tables]
            point[state] = float(y[0])
            return [float(rate([*point, *constants]))]

        return integrate(slope, np.array([start]), record.t)

    def screen(self, formula: Formula, state: int, trials: int = 12) -> tuple[float, Formula]:
        """Refines one state's right-hand side while the others follow their splines; its evidence, and the formula."""
        rate, places = compile_formula(formula, self.names), range(len(self.records))
        raw = [each.raw[:, state] for each in self.records]
        scale, count = self.scale[state], len(self.records)

        def residuals(values: np.ndarray) -> np.ndarray:
            parts = []
            for at in places:
                found = self.follow(rate, values[count:].tolist(), values[at], at, state)
                known = np.isfinite(raw[at])
                gone = found is None
                parts.append(
                    np.full(known.sum(), FAILED_RESIDUAL) if gone else (found[known, 0] - raw[at][known]) / scale
                )
            return np.concatenate(parts)

        given = np.r_[self.starts[:, state], formula.constants]
        values, left, jacobian = self.refine(residuals, given, trials)
        tuned = replace(formula, constants=tuple(map(float, values[count:])))
        widths = np.r_[np.full(count, scale), self.widths(tuned, state)]
        evidence = minus_log_evidence(left, jacobian * widths, values[count:] / widths[count:]) + formula.size
        return evidence, tuned

    def judge(self, formulas: Sequence[Formula], starts: np.ndarray | None = None, trials: int = 30) -> JudgedSystem:
        """Refines the constants and starts of a system on all records by least squares."""
        rates = [compile_formula(each, self.names) for each in formulas]
        begun = self.starts if starts is None else starts
        cuts = np.cumsum([begun.size, *[len(each.constants) for each in formulas]])

        def split(values: np.ndarray) -> tuple[np.ndarray, list[list[float]]]:
            head, *own = np.split(values, cuts[:-1])
            return head.reshape(begun.shape), [part.tolist() for part in own]

        def residuals(values: np.ndarray) -> np.ndarray:
            head, own = split(values)
            parts = []
            for at, record in enumerate(self.records):
                found, known = self.simulate(rates, own, head[at], at), np.isfinite(record.raw)
                gone = found is None
                parts.append(
                    np.full(known.sum(), FAILED_RESIDUAL) if gone else ((found - record.raw) / self.scale)[known]
                )
            return np.concatenate(parts)

        given = np.concatenate([begun.ravel(), *[each.constants for each in formulas]])
        values, left, jacobian = self.refine(residuals, given, trials)
        head, own = split(values)
        tuned = tuple(replace(each, constants=tuple(part)) for each, part in zip(formulas, own, strict=True))
        constants = [self.widths(each, state) for state, each in enumerate(tuned)]
        widths = np.concatenate([np.tile(self.scale, len(self.records)), *constants])
        evidence = minus_log_evidence(left, jacobian * widths, (values / widths)[begun.size :])
        evidence += sum(each.size for each in tuned)
        return JudgedSystem(tuned, head, float(np.mean(left**2)), evidence, self.escapes(rates, own))

    def refine(self, residuals, values: np.ndarray, trials: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Least squares from `values`; what it found, the residuals there, and their derivatives."""
        scales = np.maximum(np.abs(values), 1e-2)
        solved = least_squares(
            residuals, np.asarray(values, float), x_scale=scales, max_nfev=trials, ftol=1e-6, xtol=1e-7
        )
        return solved.x, solved.fun, solved.jac

    def widths(self, formula: Formula, state: int) -> np.ndarray:
        """How far each constant may be from 0 before data are seen: what moves the rate by as much as it varies."""
        own = [f"c{at}_" for at in range(len(formula.constants))]
        rate = compile_text(formula.named(own) or "0", [*self.names, *own], ARRAY)
        constants = np.array(formula.constants)
        steps = 1e-4 * np.maximum(np.abs(constants), 1e-4)
        columns = list(np.concatenate([each.values for each in self.records]).T)
        typical = float(np.sqrt(np.mean(np.concatenate([each.rates[:, state] for each in self.records]) ** 2)))
        widths = []
        with np.errstate(all="ignore"):
            for at, step in enumerate(steps):
                shift = step * (np.arange(len(steps)) == at)
                slope = (rate([*columns, *(constants + shift)]) - rate([*columns, *(constants - shift)])) / (2 * step)
                widths.append(typical / max(float(np.sqrt(np.mean(slope**2))), 1e-300))
        return np.nan_to_num(widths, nan=1.0, posinf=1e12).clip(1e-12, 1e12)

    def escapes(self, rates: Sequence[Compiled], constants: Sequence[Sequence[float]]) -> bool:
        """Whether a simulation from a start within the data's range runs away."""
        draw, reach = np.random.default_rng(0), FARTHEST * (self.high - self.low + 1e-12)
        for _ in range(PROBES):
            start = draw.uniform(self.low, self.high)
            found = self.simulate(rates, constants, start, 0)
            if found is None or (found > self.high + reach).any() or (found < self.low - reach).any():
                return True
        return False

    def simplify(self, judged: JudgedSystem) -> JudgedSystem:
        """Drops terms while the evidence of the trajectories rises."""
        improved = True
        while improved:
            improved = False
            options = []
            for state, formula in enumerate(judged.formulas):
                for at in range(len(formula.terms)):
                    shorter = without(formula, at)
                    if shorter is not None:
                        options.append((*judged.formulas[:state], shorter, *judged.formulas[state + 1 :]))
            for option in options:
                tried = self.judge(option, judged.starts, trials=10)
                if tried.rank < judged.rank:
                    judged, improved = tried, True
                    break
        return judged


def without(formula: Formula, place: int) -> Formula | None:
    """A sum of terms without one of them; None where the terms hold constants of their own, or only one is left."""
    if len(formula.terms) < 2 or len(formula.terms) != len(formula.constants):
        return None
    kept = [at for at in range(len(formula.terms)) if at != place]
    parts = [
        f"{{{new}}}" + ("" if formula.terms[at] == "1" else f"*{formula.terms[at]}") for new, at in enumerate(kept)
    ]
    dropped = 1 if formula.terms[place] == "1" else 1 + formula.terms[place].count("*")
    return Formula(
        " + ".join(parts),
        tuple(formula.constants[at] for at in kept),
        tuple(formula.terms[at] for at in kept),
        formula.size - 2 - dropped,
    )


def integrate(slope, start: np.ndarray, t: np.ndarray) -> np.ndarray | None:
    """Solves an initial value problem by LSODA; None if it fails or leaves the finite numbers."""

    def guarded(y, at):
        try:
            return slope(y, at)
        except (ArithmeticError, ValueError, TypeError):
            return [float("nan")] * len(y)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found, told = odeint(guarded, start, t, rtol=1e-6, atol=1e-8, mxstep=500, full_output=True)
    good = told["message"] == "Integration successful." and np.isfinite(found).all() and np.abs(found).max() < 1e12
    return found if good else None
