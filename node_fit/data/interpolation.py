"""Interpolation within records: smoothing splines with their derivatives, and even time steps.

Spline derivatives estimate the vector field without a solver.
"""

import itertools
from contextlib import suppress

import numpy as np
from jaxtyping import Bool, Float

from .inputs import Interpolations, are_held

# Noise (in standard deviations of the channel) below which an interpolating spline is the better estimate: the ends of
# a natural smoothing spline have no curvature, an error that exceeds such small noise.
NEGLIGIBLE_NOISE = 2e-3
# Minimum number of points of a smoothing spline.
FEWEST_SMOOTHED = 5
# Maximum number of trajectories, or parts of a long one, used to estimate the noise, and of rows in a part.
MOST_SAMPLED, MOST_SMOOTHED = 4, 1000


def smooth(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time state"]
) -> tuple[Float[np.ndarray, "trajectory time state"], Float[np.ndarray, "trajectory time state"]]:
    """Computes smoothed values and time derivatives at every row that has a measurement.

    The penalty of a channel is the median of the penalties that generalised cross-validation selects for a few of its
    trajectories (Craven and Wahba, Numerische Mathematik 31, 1979; `scipy.interpolate.make_smoothing_spline`).

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`, of order one.
    - `ys`: states, shape `(trajectory, time, state)`, of order one, NaN where unknown.

    **Returns:** values and derivatives, both in the shape of `ys`; NaN outside the measured time range of a channel,
    and for channels with fewer than five points.
    """
    values, rates = np.full_like(ys, np.nan), np.full_like(ys, np.nan)
    rows_measured = np.asarray(np.isfinite(ys).any(axis=2))
    for channel in range(ys.shape[2]):
        series = ys[:, :, channel]
        known = np.isfinite(series)
        rows = np.flatnonzero(known.sum(axis=1) >= FEWEST_SMOOTHED)
        if rows.size == 0:
            continue
        penalty = choose_penalty(ts, series, rows)
        for group in group_by_grid(ts, known, rows_measured, rows):
            first = group[0]
            t = ts[first, known[first]]
            inside = rows_measured[first] & (ts[first] >= t[0]) & (ts[first] <= t[-1])
            curve = spline(t, series[group][:, known[first]].T, penalty)
            cells = np.ix_(group, np.flatnonzero(inside), np.array([channel]))
            values[cells] = curve(ts[first, inside]).T[..., None]
            rates[cells] = curve.derivative()(ts[first, inside]).T[..., None]
    return values, rates


def noise_levels(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, " state"]:
    """Estimates the noise of each channel as the root mean square of the residuals of smoothing splines.

    **Arguments:** as in `smooth`, in any units.

    **Returns:** in the units of `ys`, shape `(state,)`; NaN if no spline can be fitted.
    """
    levels = np.full(ys.shape[2], np.nan)
    for channel in range(ys.shape[2]):
        known = np.isfinite(ys[:, :, channel])
        rows = np.flatnonzero(known.sum(axis=1) >= FEWEST_SMOOTHED)
        if rows.size:
            # SciPy fails if times span many decades.
            with suppress(ValueError):
                levels[channel] = estimate_noise(ts, ys[:, :, channel], rows)[1]
    return levels


def spline(t: np.ndarray, ys: np.ndarray, penalty: float | None):
    """Fits a cubic spline to `ys`, shape `(time, series)`; `penalty` 0 interpolates, `None` selects a penalty."""
    from scipy.interpolate import CubicSpline, make_smoothing_spline

    if penalty == 0.0:
        return CubicSpline(t, ys)
    return make_smoothing_spline(t, ys, lam=penalty)


def choose_penalty(ts: np.ndarray, series: np.ndarray, rows: np.ndarray) -> float:
    """Selects one penalty for all trajectories of a channel; 0 for negligible noise or times over many decades."""
    try:
        chosen, noise = estimate_noise(ts, series, rows)
    except ValueError:  # SciPy finds no penalty.
        return 0.0
    return 0.0 if noise < NEGLIGIBLE_NOISE else chosen


def estimate_noise(ts: np.ndarray, series: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Computes the median cross-validated penalty and residual over a few trajectories or parts of them."""
    chosen: list[float] = []
    noise: list[float] = []
    sampled = rows[np.linspace(0, rows.size - 1, min(MOST_SAMPLED, rows.size)).astype(int)]
    for t, y in itertools.chain.from_iterable(parts_of(ts[row], series[row]) for row in sampled):
        curve = spline(t, y, None)
        third = np.diff(curve.derivative(2)(t)) / np.diff(t)
        # The residuals of a natural spline are its penalty times the jumps of its third derivative (Reinsch 1967),
        # so the chosen penalty can be computed from the curve.
        jumps = np.diff(np.concatenate([[0.0], third, [0.0]]))
        residual = y - curve(t)
        chosen.append(float(np.abs(residual @ jumps) / max(jumps @ jumps, np.finfo(float).tiny)))
        noise.append(float(np.sqrt(np.mean(residual**2))))
    return float(np.median(chosen)), float(np.median(noise))


def parts_of(t: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the measured rows of a series; for a long one, a few parts, since SciPy finds no penalty for too many."""
    known = np.isfinite(y)
    t, y, count = t[known], y[known], int(known.sum())
    size = min(count, MOST_SMOOTHED)
    starts = np.unique(np.linspace(0, count - size, MOST_SAMPLED).astype(int))
    return [(t[start : start + size], y[start : start + size]) for start in starts]


def group_by_grid(ts: np.ndarray, known: np.ndarray, wanted: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Groups trajectories with the same times and gaps, so that one spline call serves each group."""
    groups: dict[bytes, list[int]] = {}
    for row in rows:
        groups.setdefault(ts[row].tobytes() + known[row].tobytes() + wanted[row].tobytes(), []).append(row)
    return [np.array(group) for group in groups.values()]


# Relative tolerance of evenly spaced time steps.
EVEN = 0.01
# Measurements more than this many steps apart are not interpolated.
LARGEST_GAP = 3


def is_even(steps: np.ndarray, step: float) -> bool:
    """Whether all steps between rows equal `step`."""
    return bool(np.allclose(steps, step, rtol=EVEN, atol=0))


def resample(
    t: Float[np.ndarray, " row"],
    y: Float[np.ndarray, "row state"],
    u: Float[np.ndarray, "row input"],
    scored: Bool[np.ndarray, " row"],
    *,
    step: float,
    inputs: Interpolations,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Resamples a trajectory at evenly spaced times: times, states, inputs and whether a row is scored.

    **Arguments:** `step`: time between two rows [unit of time]. `inputs`: interpolation of inputs; those that are not
    held are linear. States are interpolated linearly between neighbouring rows, and are NaN in wide gaps.
    """
    # A rounding error must not cost the last row.
    times: np.ndarray = t[0] + step * np.arange(int((t[-1] - t[0]) / step + EVEN) + 1)
    before = t.searchsorted(times + EVEN * step, side="right") - 1
    states = np.stack([interpolate_rows(times, t, y[:, channel], step) for channel in range(y.shape[1])], axis=1)
    controls = u[before]
    for column, is_held in enumerate(are_held(inputs, u.shape[1])):
        controls[:, column] = controls[:, column] if is_held else np.interp(times, t, u[:, column])
    return times, states, controls, scored[before]


def interpolate_rows(
    times: Float[np.ndarray, " wanted"],
    t: Float[np.ndarray, " row"],
    values: Float[np.ndarray, " row"],
    step: float,
) -> Float[np.ndarray, " wanted"]:
    """Interpolates a channel at times between its measurements; NaN if these are far apart."""
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(times), np.nan)
    t, values = t[known], values[known]
    after = np.clip(np.searchsorted(t, times - EVEN * step), 0, len(t) - 1)
    before = np.clip(np.searchsorted(t, times + EVEN * step, side="right") - 1, 0, len(t) - 1)
    near = t[after] - t[before] <= LARGEST_GAP * step
    inside = (times >= t[0] - EVEN * step) & (times <= t[-1] + EVEN * step)
    return np.where(near & inside, np.interp(times, t, values), np.nan)
