"""Records between their rows: smoothing splines with their derivatives, inputs that are held, even time steps.

The derivatives of splines estimate the vector field without a solver.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from scipy.interpolate import CubicHermiteSpline

# Below this noise (in standard deviations of the channel) an interpolating spline is the better estimate: the ends of a
# natural smoothing spline have no curvature, an error that exceeds so little noise.
NEGLIGIBLE_NOISE = 2e-3
# A smoothing spline needs at least five points.
FEWEST_SMOOTHED = 5
# Trajectories, or parts of a long one, whose noise is estimated, and rows of a part.
MOST_SAMPLED, MOST_SMOOTHED = 4, 1000


def smooth(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time state"]
) -> tuple[Float[np.ndarray, "trajectory time state"], Float[np.ndarray, "trajectory time state"]]:
    """Smoothed values and time derivatives at every row that has a measurement.

    The penalty of each channel is the median of those that generalised cross-validation chooses on a few of its
    trajectories (Craven and Wahba, Numerische Mathematik 31, 1979; `scipy.interpolate.make_smoothing_spline`).

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`, of order one.
    - `ys`: states, shape `(trajectory, time, state)`, of order one, NaN where unknown.

    **Returns:** values and derivatives, both in the shape of `ys`; NaN outside the time range in which a channel was
    measured, and where it has fewer than five points.
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
            one = group[0]
            t = ts[one, known[one]]
            at = rows_measured[one] & (ts[one] >= t[0]) & (ts[one] <= t[-1])
            curve = spline(t, series[group][:, known[one]].T, penalty)
            cells = np.ix_(group, np.flatnonzero(at), np.array([channel]))
            values[cells] = curve(ts[one, at]).T[..., None]
            rates[cells] = curve.derivative()(ts[one, at]).T[..., None]
    return values, rates


def noise_levels(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, " state"]:
    """Estimates the noise of each channel as the root mean square of the residuals of smoothing splines.

    **Arguments:** as in `smooth`, in any units.

    **Returns:** in the units of `ys`, shape `(state,)`; NaN where no spline can be fitted.
    """
    levels = np.full(ys.shape[2], np.nan)
    for channel in range(ys.shape[2]):
        known = np.isfinite(ys[:, :, channel])
        rows = np.flatnonzero(known.sum(axis=1) >= FEWEST_SMOOTHED)
        if rows.size:
            # SciPy fails where times span many decades.
            with suppress(ValueError):
                levels[channel] = estimate_noise(ts, ys[:, :, channel], rows)[1]
    return levels


def spline(t: np.ndarray, ys: np.ndarray, penalty: float | None):
    """A cubic spline through `ys`, shape `(time, series)`; `penalty` 0 interpolates, `None` chooses a penalty."""
    from scipy.interpolate import CubicSpline, make_smoothing_spline

    if penalty == 0.0:
        return CubicSpline(t, ys)
    return make_smoothing_spline(t, ys, lam=penalty)


def choose_penalty(ts: np.ndarray, series: np.ndarray, rows: np.ndarray) -> float:
    """One penalty for all trajectories of a channel; 0 if the noise is negligible, or times span many decades."""
    try:
        chosen, noise = estimate_noise(ts, series, rows)
    except ValueError:  # SciPy finds no penalty.
        return 0.0
    return 0.0 if noise < NEGLIGIBLE_NOISE else chosen


def estimate_noise(ts: np.ndarray, series: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Medians, over a few trajectories or parts of them, of the cross-validated penalty and of the residual."""
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
    """The measured rows of a series; of a long one, a few parts, since SciPy finds no penalty for very many rows."""
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


# Inputs with at most so many levels, or that change in fewer than this share of their rows, are held.
FEW_LEVELS, RARELY = 8, 0.5
# An input is smooth if cubics through every second row miss the rows between by at most this share of what lines miss
# them by; of a noisy input, both miss them by the noise.
SMOOTH = 0.25
# Fewer rows to be missed tell nothing; shorter records have none between two cubics.
FEWEST_MISSED, FEWEST_SPLIT = 8, 7
# Of many trajectories, some tell.
MOST_LOOKED_AT = 64


def detect_interpolation(ts: np.ndarray, us: np.ndarray, valid: np.ndarray) -> tuple[str, str]:
    """How inputs behave between rows: `hold`, `linear` or `cubic`, and the reason.

    **Arguments:** `ts`: times, shape `(trajectory, time)`. `us`, `valid`: as of `look_held`.
    """
    held, reason = look_held(us, valid)
    if held:
        return "hold", reason
    moving = (np.diff(us, axis=1)[valid[:, 1:]] != 0).any(axis=0)
    if all(is_smooth(ts, us[..., index], valid) for index in np.flatnonzero(moving)):
        return "cubic", "the inputs are smooth: from every second row, cubics give the others better than lines do"
    return "linear", reason


def look_held(us: np.ndarray, valid: np.ndarray) -> tuple[bool, str]:
    """Whether inputs look as if they kept their last value between rows, and the reason.

    **Arguments:** `us`: inputs, shape `(trajectory, time, input)`. `valid`: which rows are no padding,
    shape `(trajectory, time)`.
    """
    changed = np.diff(us, axis=1)[valid[:, 1:]] != 0
    share = float(changed.any(axis=1).mean())
    levels = max(len(np.unique(us[..., index][valid])) for index in range(us.shape[2]))
    if levels <= FEW_LEVELS:
        return True, f"the inputs have {levels} levels"
    return share < RARELY, f"the inputs change in {share:.0%} of the rows"


def interpolate_input(
    t: Float[np.ndarray, " row"], u: Float[np.ndarray, " row"]
) -> Callable[[Float[np.ndarray, "*times"]], Float[np.ndarray, "*times"]]:
    """An input as a function of time between its rows: on cubics if it is smooth, else on lines."""
    if is_smooth(t[None], u[None], np.ones((1, len(t)), bool)):
        return cubics_through(t, u)
    return lambda wanted: np.interp(wanted, t, u)


def cubics_through(t: Float[np.ndarray, " row"], u: Float[np.ndarray, " row"]) -> "CubicHermiteSpline":
    """The cubics of a solver with `inputs="cubic"`: a row's slope is that of the parabola through its neighbours."""
    from scipy.interpolate import CubicHermiteSpline

    return CubicHermiteSpline(t, u, np.gradient(u, t))


def is_smooth(ts: np.ndarray, us: np.ndarray, valid: np.ndarray) -> bool:
    """Whether cubics through every second row are much nearer to the rows between than lines are."""
    looked_at = np.unique(np.linspace(0, len(ts) - 1, MOST_LOOKED_AT).astype(int))
    missed = [miss_rows_between(ts[row, valid[row]], us[row, valid[row]]) for row in looked_at]
    lines, cubics = np.concatenate(missed, axis=1)
    return lines.size >= FEWEST_MISSED and bool(np.sum(cubics**2) <= SMOOTH**2 * np.sum(lines**2))


def miss_rows_between(t: Float[np.ndarray, " row"], u: Float[np.ndarray, " row"]) -> Float[np.ndarray, "2 missed"]:
    """How far lines and cubics through every second row are from the rows between, but for the first and the last of
    them, where a cubic knows one neighbour alone."""
    if len(t) < FEWEST_SPLIT or np.min(np.diff(t)) <= 0:
        return np.zeros((2, 0))
    t, u = (each[: len(t) - 1 + len(t) % 2].astype(np.float64) for each in (t, u))
    between, measured = t[1::2], u[1::2]
    found = np.stack([np.interp(between, t[::2], u[::2]), cubics_through(t[::2], u[::2])(between)])
    return (found - measured)[:, 1:-1]


# Times are evenly spaced if all steps between rows agree to within this share.
EVEN = 0.01
# Measurements more than this many steps apart are not interpolated.
LARGEST_GAP = 3


def is_even(steps: np.ndarray, step: float) -> bool:
    """Whether all steps between rows are as long as one."""
    return bool(np.allclose(steps, step, rtol=EVEN, atol=0))


def resample(
    t: Float[np.ndarray, " row"],
    y: Float[np.ndarray, "row state"],
    u: Float[np.ndarray, "row input"],
    scored: Bool[np.ndarray, " row"],
    *,
    step: float,
    inputs: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A trajectory at evenly spaced times: times, states, inputs and whether a row counts.

    **Arguments:** `step`: time between two rows [unit of time]. `inputs`: how inputs are interpolated, linearly unless
    `hold`. States are interpolated linearly between neighbouring rows, and are NaN in wide gaps.
    """
    # A rounding error must not cost the last row.
    times: np.ndarray = t[0] + step * np.arange(int((t[-1] - t[0]) / step + EVEN) + 1)
    before = t.searchsorted(times + EVEN * step, side="right") - 1
    states = np.stack([interpolate_rows(times, t, y[:, channel], step) for channel in range(y.shape[1])], axis=1)
    controls: np.ndarray = u[before]
    if inputs != "hold":
        columns: list[np.ndarray] = [np.interp(times, t, each) for each in u.T]
        controls = np.stack(columns, axis=1).reshape(controls.shape)
    return times, states, controls, scored[before]


def interpolate_rows(
    times: Float[np.ndarray, " wanted"],
    t: Float[np.ndarray, " row"],
    values: Float[np.ndarray, " row"],
    step: float,
) -> Float[np.ndarray, " wanted"]:
    """A channel at times between its measurements; NaN where these are far apart."""
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(times), np.nan)
    t, values = t[known], values[known]
    after = np.clip(np.searchsorted(t, times - EVEN * step), 0, len(t) - 1)
    before = np.clip(np.searchsorted(t, times + EVEN * step, side="right") - 1, 0, len(t) - 1)
    near = t[after] - t[before] <= LARGEST_GAP * step
    inside = (times >= t[0] - EVEN * step) & (times <= t[-1] + EVEN * step)
    return np.where(near & inside, np.interp(times, t, values), np.nan)
