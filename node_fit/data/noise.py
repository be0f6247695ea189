"""How sure measurements are, and the weights of residuals that follow."""

import math

import numpy as np
from jaxtyping import Float

from .dataset import Dataset
from .scaling import Scaler

# The median of the absolute value of a standard normal variable.
NORMAL_MEDIAN = 0.6745
# Fewer distances tell no noise. Less noise than this can't be told from the solver's error [standard deviations].
FEWEST_RESIDUALS, LEAST_NOISE = 3, 1e-3
# The noise of a state with too few rows to tell it, where some number is needed [standard deviations].
UNKNOWN_NOISE = 0.1


def is_relative(data: Dataset, scaler: Scaler) -> Float[np.ndarray, "trajectory time state"]:
    """The standard deviation of each measurement in scaled units; that of a bounded state is one on the line."""
    assert data.sigma is not None
    return np.where(np.isfinite(data.ys), data.sigma / np.asarray(scaler.state_scale, np.float64), 1.0)


def noise_unit(data: Dataset, scaler: Scaler) -> float:
    """The standard deviation of a weighted residual: one over the root mean square of `1 / relative`."""
    inverse = 1 / is_relative(data, scaler)[data.mask]
    return 1 / math.sqrt(float((inverse**2).mean())) if inverse.size else 1.0


def typical_residuals(data: Dataset, scaler: Scaler) -> Float[np.ndarray, " state"]:
    """The standard deviation of the weighted residuals of each state, from what is given or from neighbouring rows.

    **Raises:** `ValueError` that names a state whose noise can't be estimated.
    """
    if data.sigma is not None:
        return np.full(len(data.states), noise_unit(data, scaler))
    known = np.where(data.mask, scaler.scale_states(data.ys), np.nan)
    found = np.array([local_noise(data.ts, known[..., index]) for index in range(len(data.states))])
    for name, level in zip(data.states, found, strict=True):
        if np.isnan(level):
            raise ValueError(
                f"sigma is needed with a robust loss, since the state {name!r} has too few rows to estimate its noise "
                f"from; pass sigma={{{name}: 0.1}} or a column."
            )
    return np.maximum(found, LEAST_NOISE)


def local_noise(ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time"]) -> float:
    """The noise of a series, which outliers hardly change: the median distance from the line through both neighbours
    (Gasser, Sroka and Jennen-Steinmetz, Biometrika 73, 1986), or from a cubic through four, whichever is less.

    **Returns:** its standard deviation; NaN for less than five rows of a trajectory.
    """
    levels: list[float] = []
    for reach in (1, 2):
        found = [distances(t[known], y[known], reach) for t, y, known in zip(ts, ys, np.isfinite(ys), strict=True)]
        whole = np.concatenate(found) if found else np.zeros(0)
        levels.append(float(np.median(np.abs(whole))) / NORMAL_MEDIAN if whole.size >= FEWEST_RESIDUALS else math.nan)
    return float(np.nanmin(levels)) if np.isfinite(levels).any() else math.nan


def near_distances(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time"]
) -> Float[np.ndarray, "trajectory time"]:
    """How far each value is from the curve through its neighbours, of the variance of the noise; NaN at ends."""
    found = np.full((2, *ys.shape), np.nan)
    for row, known in enumerate(np.isfinite(ys)):
        places = np.flatnonzero(known)
        for reach in (1, 2):
            off = distances(ts[row, known], ys[row, known], reach)
            found[reach - 1, row, places[reach : len(places) - reach]] = off
    counts = np.isfinite(found).sum(axis=(1, 2))
    if not counts[0]:
        return found[0]
    nearest = np.nanmedian(np.abs(found[0])), np.nanmedian(np.abs(found[1])) if counts[1] else np.inf
    return found[int(nearest[1] < nearest[0])]


def likelihood_unit(data: Dataset, scaler: Scaler) -> float:
    """A typical standard deviation in scaled units, by which the rows of a likelihood are multiplied.

    Losses then stay of the order of least squares, and penalties keep their meaning.
    """
    if data.sigma is not None:
        return noise_unit(data, scaler)
    known = np.where(data.mask, scaler.scale_states(data.ys), np.nan)
    found = np.array([local_noise(data.ts, known[..., index]) for index in range(len(data.states))])
    levels = np.where(np.isfinite(found), np.maximum(found, LEAST_NOISE), UNKNOWN_NOISE)
    return float(np.sqrt((levels**2).mean()))


def distances(t: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], reach: int) -> Float[np.ndarray, " middle"]:
    """The distance of each value from the polynomial through its neighbours, of the variance of the noise."""
    offsets = [*range(-reach, 0), *range(1, reach + 1)]
    middle = np.arange(reach, len(t) - reach)
    if not middle.size:
        return np.zeros(0)
    near = np.stack([t[middle + k] - t[middle] for k in offsets])
    # Lagrange's weights at the middle.
    factors = [
        np.prod([near[j] / (near[j] - near[i]) for j in range(len(offsets)) if j != i], axis=0)
        for i in range(len(offsets))
    ]
    guess = sum(factor * y[middle + k] for factor, k in zip(factors, offsets, strict=True))
    return (y[middle] - guess) / np.sqrt(1 + sum(factor**2 for factor in factors))


def noise_weights(data: Dataset, scaler: Scaler) -> Float[np.ndarray, "trajectory time state"]:
    """The weights of residuals, proportional to one over their standard deviation, which is known.

    Their mean square is 1, so losses stay of order one, and penalties keep their meaning.
    """
    return noise_unit(data, scaler) / is_relative(data, scaler)
