"""Smooths records with splines, so that states and their derivatives can be evaluated at any time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..data.dataset import Dataset
from ..data.inputs import interpolate_input

if TYPE_CHECKING:
    from scipy.interpolate import BSpline, PPoly

# Penalties of the smoothing spline relative to the one chosen by cross-validation.
SMOOTHINGS = (1.0, 10.0)
# Relative residual of a spline below which a record counts as noise-free.
CLEAN = 2e-4
# Log-likelihood gain above which noise counts as proportional to the signal, and its minimum as a share of the scale.
PROPORTIONAL, LEAST_SPREAD = 4.0, 0.03
# Ratio of the longest to the shortest step above which a record spans decades of time.
MOST_UNEVEN = 1e4
# Penalty of the splines, for a row as the unit of time, that leave the bends of a trajectory at jumps of its inputs in
# their residuals; and the maximum number of functions that jump per row.
BEND_PENALTY, MAX_BENDS_PER_ROW = 1.0, 0.25
# Lead in minus twice the log-likelihood from which states respond to inputs as to held ones.
HELD_LEAD = 10.0


def goes_over_decades(t: np.ndarray) -> bool:
    """Whether rows are spaced logarithmically in time, as is common for stiff systems."""
    steps = np.diff(t)
    return bool(steps.max() > MOST_UNEVEN * steps.min())


@dataclass(frozen=True)
class InLogarithms:
    """A spline over the logarithm of time.

    **Arguments:** `spline`: over `log(t - zero)`. `slope`: whether this is its derivative with respect to time.
    """

    spline: "BSpline"
    zero: float
    slope: bool = False

    def __call__(self, t: np.ndarray) -> np.ndarray:
        since = t - self.zero
        return self.spline(np.log(since)) / since if self.slope else self.spline(np.log(since))

    def derivative(self) -> "InLogarithms":
        return InLogarithms(self.spline.derivative(), self.zero, slope=True)


@dataclass(frozen=True)
class Bent:
    """A spline plus the integral of a function that jumps where held inputs do.

    **Arguments:** `spline`: the smooth part. `bend`: the integral, whose derivative jumps.
    """

    spline: "BSpline"
    bend: "PPoly"

    def __call__(self, t: np.ndarray) -> np.ndarray:
        return self.spline(t) + self.bend(t)

    def derivative(self) -> "Bent":
        return Bent(self.spline.derivative(), self.bend.derivative())


@dataclass(frozen=True)
class Smoothed:
    """One record, smoothed.

    **Arguments:** `t`: times, shape `(row,)`. `values`: states and inputs, `(row, name)`. `rates`: derivatives of the
    states, `(row, state)`; or the values of the functions of a `Balance`, `(row, function)`. `splines`: of the states.
    `raw`: the measured states, `(row, state)`, NaN where nothing was measured, as for hidden states. `spread`: the
    relative size of the noise in each measurement, `(row, state)`. `noise`: the largest residual of a spline, in
    standard deviations of its state. `held`: whether each input is constant between rows.
    """

    t: np.ndarray
    values: np.ndarray
    rates: np.ndarray
    splines: "tuple[BSpline | InLogarithms | Bent, ...]"
    raw: np.ndarray
    spread: np.ndarray
    noise: float
    held: tuple[bool, ...] = ()

    @property
    def clean(self) -> bool:
        return self.noise < CLEAN

    def noise_in(self, scale: np.ndarray) -> float:
        """Returns the largest spline residual in units of `scale`; the own scale of a record at rest is noise."""
        residuals = self.raw - self.values[:, : len(scale)]
        measured = np.isfinite(residuals).any(axis=0)
        if self.clean or not measured.any():
            return self.noise
        return float((np.nanstd(residuals[:, measured], axis=0) / scale[measured]).max())

    @property
    def filled_record(self) -> "Smoothed":
        """The record with smoothed values in place of unmeasured states."""
        measured = np.isfinite(self.raw).any(axis=0, keepdims=True)
        return replace(self, raw=np.where(measured, self.raw, self.values[:, : self.raw.shape[1]]))

    def value_at(self, name: int, t: np.ndarray) -> np.ndarray:
        """Evaluates the spline of a state, or interpolates an input."""
        if name < len(self.splines):
            return self.splines[name](t)
        return interpolate_input(self.t, self.values[:, name], held=self.is_held(name))(t)

    def is_held(self, name: int) -> bool:
        """Whether a name is an input that is constant between rows."""
        return name >= len(self.splines) and self.held[name - len(self.splines)]


def find_held_inputs(data: Dataset) -> tuple[bool, ...]:
    """Returns whether each input keeps its value between rows: it looks so, or measured states respond so to all.

    Increments of states over a row are regressed on the states and on the inputs, either at the beginning of the row or
    averaged over its ends. If all states are measured, the residuals tell these apart even for nonlinear systems; if
    some are hidden, they do not.
    """
    looks, every = data.held_inputs, (True,) * len(data.inputs)
    if looks == every or not data.is_driven:
        return looks
    complete = data.valid & np.isfinite(data.ys).all(axis=2)
    at, row = np.nonzero(complete[:, 1:] & complete[:, :-1])
    steps = (data.ts[at, row + 1] - data.ts[at, row])[:, None]
    before, after = data.ys[at, row], data.ys[at, row + 1]
    middles = np.hstack([(before + after) / 2, np.ones((len(at), 1))])

    def misfit(inputs: np.ndarray) -> np.ndarray:
        features: np.ndarray = np.hstack([middles, inputs]) * steps
        features /= np.maximum(np.abs(features).max(axis=0, initial=0.0), 1e-300)
        rates: np.ndarray = np.linalg.lstsq(features, after - before, rcond=None)[0]
        return np.square(after - before - features @ rates).sum(axis=0)

    ends = np.where(looks, data.us[at, row], data.us[at, row + 1])
    averaged, held = misfit((data.us[at, row] + ends) / 2), misfit(data.us[at, row])
    lead = len(at) * np.log((averaged + 1e-300) / (held + 1e-300))
    responds = len(at) > middles.shape[1] + data.us.shape[2] and float(lead.sum()) > HELD_LEAD
    return every if responds else looks


def smooth_record(
    t: np.ndarray, ys: np.ndarray, us: np.ndarray, strength: float = 1.0, *, held: Sequence[bool] = ()
) -> Smoothed:
    """Smooths a record with splines; generalised cross-validation times `strength` sets the penalty.

    **Arguments:** `t`: `(row,)`. `ys`: states, `(row, state)`, NaN where missing. `us`: inputs, `(row, input)`.
    `held`: whether each input is constant between rows; none is by default. Rates jump as these do.
    """
    kinds = tuple(held) or (False,) * us.shape[1]
    steps = us[:, np.flatnonzero(kinds)]
    curves = [smooth_state(t, y, strength) for y in ys.T]
    if not goes_over_decades(t) and (np.diff(steps, axis=0) != 0).any():
        forces = jumping_forces(t, np.stack([curve(t) for curve, _, _ in curves], axis=1), steps)
        curves = [smooth_bent(t, y, strength, forces) for y in ys.T]
    values = np.stack([curve(t) for curve, _, _ in curves], axis=1)
    rates = np.stack([curve.derivative()(t) for curve, _, _ in curves], axis=1)
    spread = np.stack([spread for _, spread, _ in curves], axis=1)
    noise = max(residual for _, _, residual in curves)
    return Smoothed(t, np.hstack([values, us]), rates, tuple(curve for curve, _, _ in curves), ys, spread, noise, kinds)


def jumping_forces(t: np.ndarray, ys: np.ndarray, us: np.ndarray) -> "list[list[PPoly]]":
    """Returns functions of time that jump where held inputs do: the inputs, and their products with the states."""
    from scipy.interpolate import PPoly

    steps, changes = np.diff(t), np.diff(ys, axis=0)
    inputs = [u[:-1] for u in us.T if (np.diff(u) != 0).any()]
    products = [(u * change / steps, u * y[:-1]) for u in inputs for change, y in zip(changes.T, ys.T, strict=True)]
    return [[PPoly(np.stack([0 * u, u]), t) for u in inputs], [PPoly(np.stack(product), t) for product in products]]


def smooth_bent(
    t: np.ndarray, y: np.ndarray, strength: float, forces: "Sequence[Sequence[PPoly]]"
) -> "tuple[BSpline | Bent, np.ndarray, float]":
    """Smooths a state whose rate jumps, as `smooth_state` does: a spline and the integrals of forces, in proportion.

    A spline of few rows follows all but the bends of a trajectory. The bends left in the residuals of the state and of
    the integrals determine the proportions (partial splines: P. Speckman, Journal of the Royal Statistical Society B 50
    (1988) 413). Schwarz's criterion decides how many forces are used.

    **Arguments:** `forces`: groups of functions of time. Each group is used together with those before it.
    """
    from scipy.interpolate import PPoly, make_smoothing_spline

    is_measured = np.isfinite(y)
    rows = int(is_measured.sum())
    x = t[is_measured] - t[is_measured][0]
    x = x / x[-1] * rows

    def leave_bends(column: np.ndarray) -> np.ndarray:
        return column - make_smoothing_spline(x, column, lam=BEND_PENALTY)(x)

    bent, best, score = leave_bends(y[is_measured]), np.zeros((2, len(t) - 1)), np.inf
    columns, used = np.zeros((rows, 0)), list[PPoly]()
    for group in (list[PPoly](), *forces):
        used += group
        if len(used) > MAX_BENDS_PER_ROW * rows:
            break
        columns = np.column_stack([columns, *[leave_bends(force.antiderivative()(t[is_measured])) for force in group]])
        shares, _, rank, _ = np.linalg.lstsq(columns, bent, rcond=1e-8)
        error = float(np.sum((bent - columns @ shares) ** 2))
        if (new := rows * np.log(error + 1e-300) + 2 * rank * np.log(rows)) < score:
            score = new
            best = np.zeros_like(best) + sum(share * force.c for share, force in zip(shares, used, strict=True))
    bend = PPoly(best, t).antiderivative()
    spline, spread, residual = smooth_evenly(t, y, strength, bend(t))
    return (Bent(spline, bend) if best.any() else spline), spread, residual


def spline_through(t: np.ndarray, column: np.ndarray) -> "BSpline":
    """Returns the cubic spline through values."""
    from scipy.interpolate import make_interp_spline

    return make_interp_spline(t, column, k=3)


def smooth_state(t: np.ndarray, y: np.ndarray, strength: float) -> "tuple[BSpline | InLogarithms, np.ndarray, float]":
    """Returns a state's spline, the relative size of its noise per row, and its residual in standard deviations."""
    if not goes_over_decades(t):
        return smooth_evenly(t, y, strength)
    zero = float(2 * t[0] - t[1])
    spline, spread, residual = smooth_evenly(np.log(t - zero), y, strength)
    return InLogarithms(spline, zero), spread, residual


def smooth_evenly(
    t: np.ndarray, y: np.ndarray, strength: float, bend: np.ndarray | float = 0.0
) -> "tuple[BSpline, np.ndarray, float]":
    """Smooths a state as `smooth_state` does, but always over `t` itself, and less `bend`, `(row,)`."""
    from scipy.interpolate import BSpline, make_interp_spline, make_smoothing_spline

    is_measured = np.isfinite(y)
    times, value, bent = t[is_measured], y[is_measured], np.broadcast_to(bend, y.shape)[is_measured]
    scale, length, rows = float(value.std()) or 1.0, float(times[-1] - times[0]), int(is_measured.sum())
    x, z, weights = (times - times[0]) / length * rows, (value - bent) / scale, np.ones(rows)
    spline = make_smoothing_spline(x, z)
    residual = float(np.std(spline(x) - z))
    if residual < CLEAN and rows > 5:
        return make_interp_spline(times, value - bent, k=5), np.ones(len(t)), residual
    sizes = spread_of(spline(x) - z, spline(x) + bent / scale)
    if sizes.max() > sizes.min():
        weights = 1 / sizes
        spline = make_smoothing_spline(x, z, w=weights**2)
    if strength != 1.0:
        penalty = strength * penalty_of(x, z, weights**2, float(np.std((spline(x) - z) * weights)))
        spline = make_smoothing_spline(x, z, w=weights**2, lam=penalty)
    spread = np.interp(t, times, 1 / weights)
    return BSpline(spline.t * length / rows + times[0], spline.c * scale, spline.k), spread, residual


def spread_of(left: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the relative size of the noise: 1, or the size of the values if proportional noise is more likely."""
    size = np.maximum(np.abs(values), LEAST_SPREAD)
    same = -len(left) * np.log(np.std(left) + 1e-300)
    grown = -len(left) * np.log(np.std(left / size) + 1e-300) - np.log(size).sum()
    return size if grown > same + PROPORTIONAL else np.ones(len(left))


def penalty_of(x: np.ndarray, y: np.ndarray, weights: np.ndarray, residual: float) -> float:
    """Finds the penalty of a smoothing spline with this residual by bisection."""
    from scipy.interpolate import make_smoothing_spline

    low, high = 1e-6, 1e8
    for _ in range(12):
        middle = float(np.sqrt(low * high))
        residuals = make_smoothing_spline(x, y, w=weights, lam=middle)(x) - y
        if np.std(residuals * np.sqrt(weights)) > residual:
            high = middle
        else:
            low = middle
    return float(np.sqrt(low * high))
