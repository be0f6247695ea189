"""Smooth curves through noisy, irregular samples, and their derivatives: the field's values, found with no solver."""

from contextlib import suppress

import numpy as np
from jaxtyping import Float

# Below this noise (in standard deviations of the channel) an interpolating spline is the better estimate: a natural
# smoothing spline has no curvature at its ends, which costs more there than so little noise.
CLEAN = 2e-3
# A smoothing spline is defined from five points on.
FEWEST = 5
SAMPLED = 4


def smooth(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time state"]
) -> tuple[Float[np.ndarray, "trajectory time state"], Float[np.ndarray, "trajectory time state"]]:
    """Smoothed values and time derivatives at every row that has a measurement.

    The smoothness of each channel is the median of what generalised cross-validation chooses on a few of its
    trajectories (Craven and Wahba, Numerische Mathematik 31, 1979; `scipy.interpolate.make_smoothing_spline`).

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`, of order one.
    - `ys`: states, shape `(trajectory, time, state)`, of order one, NaN where unknown.

    **Returns:** values and derivatives, both in the shape of `ys`; NaN outside of the times over which a channel was
    measured, and where it has fewer than five points.
    """
    values, rates = np.full_like(ys, np.nan), np.full_like(ys, np.nan)
    rows_measured = np.asarray(np.isfinite(ys).any(axis=2))
    for channel in range(ys.shape[2]):
        series = ys[:, :, channel]
        known = np.isfinite(series)
        rows = np.flatnonzero(known.sum(axis=1) >= FEWEST)
        if rows.size == 0:
            continue
        stiffness = choose_stiffness(ts, series, rows)
        for group in share_grid(ts, known, rows_measured, rows):
            one = group[0]
            t = ts[one, known[one]]
            at = rows_measured[one] & (ts[one] >= t[0]) & (ts[one] <= t[-1])
            curve = spline(t, series[group][:, known[one]].T, stiffness)
            cells = np.ix_(group, np.flatnonzero(at), np.array([channel]))
            values[cells] = curve(ts[one, at]).T[..., None]
            rates[cells] = curve.derivative()(ts[one, at]).T[..., None]
    return values, rates


def noise_levels(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, " state"]:
    """The root mean square of what smoothing splines leave of each channel, an estimate of its noise.

    **Arguments:** as of `smooth`, in any units.

    **Returns:** in the units of `ys`, shape `(state,)`; NaN where no spline is found.
    """
    levels = np.full(ys.shape[2], np.nan)
    for channel in range(ys.shape[2]):
        known = np.isfinite(ys[:, :, channel])
        rows = np.flatnonzero(known.sum(axis=1) >= FEWEST)
        if rows.size:
            # SciPy finds no spline where times span many decades.
            with suppress(ValueError):
                levels[channel] = judge_noise(ts, ys[:, :, channel], rows)[1]
    return levels


def spline(t: np.ndarray, ys: np.ndarray, stiffness: float | None):
    """A cubic spline through `ys`, shape `(time, series)`: interpolating if `stiffness` is 0, chosen if it is None."""
    from scipy.interpolate import CubicSpline, make_smoothing_spline

    if stiffness == 0.0:
        return CubicSpline(t, ys)
    return make_smoothing_spline(t, ys, lam=stiffness)


def choose_stiffness(ts: np.ndarray, series: np.ndarray, rows: np.ndarray) -> float:
    """One penalty for all trajectories of a channel; 0 if it is as good as free of noise."""
    chosen, noise = judge_noise(ts, series, rows)
    return 0.0 if noise < CLEAN else chosen


def judge_noise(ts: np.ndarray, series: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """The medians of the penalty that cross-validation chooses for some trajectories, and of what is left then."""
    chosen, noise = [], []
    for row in rows[np.linspace(0, rows.size - 1, min(SAMPLED, rows.size)).astype(int)]:
        known = np.isfinite(series[row])
        t, y = ts[row, known], series[row, known]
        curve = spline(t, y, None)
        third = np.diff(curve.derivative(2)(t)) / np.diff(t)
        # The natural spline of penalty l leaves residuals l times the jumps of its third derivative (Reinsch 1967),
        # so the penalty that was chosen can be read off the curve.
        jumps = np.diff(np.concatenate([[0.0], third, [0.0]]))
        residual = y - curve(t)
        chosen.append(float(np.abs(residual @ jumps) / max(jumps @ jumps, np.finfo(float).tiny)))
        noise.append(float(np.sqrt(np.mean(residual**2))))
    return float(np.median(chosen)), float(np.median(noise))


def share_grid(ts: np.ndarray, known: np.ndarray, wanted: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Groups of trajectories with the same times and gaps, so that one spline call serves each group."""
    groups: dict[bytes, list[int]] = {}
    for row in rows:
        groups.setdefault(ts[row].tobytes() + known[row].tobytes() + wanted[row].tobytes(), []).append(row)
    return [np.array(group) for group in groups.values()]
