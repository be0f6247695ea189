"""Measurement noise, and the resulting weights of residuals."""

import math

import numpy as np
from jaxtyping import Float

from .dataset import Dataset
from .scaling import Scaler

# Median of the absolute value of a standard normal variable.
NORMAL_MEDIAN = 0.6745
# Minimum number of distances to estimate the noise, and lower limit of the noise, below which it can't be distinguished
# from the solver's error [standard deviations].
FEWEST_RESIDUALS, LEAST_NOISE = 3, 1e-3
# Assumed noise of a state with too few rows to estimate it [standard deviations].
UNKNOWN_NOISE = 0.1


def relative_deviations(data: Dataset, scaler: Scaler) -> Float[np.ndarray, "trajectory time state"]:
    """Returns the standard deviation of each measurement in scaled units; for a bounded state, on the real line."""
    assert data.sigma is not None
    return np.where(np.isfinite(data.ys), data.sigma / np.asarray(scaler.state_scale, np.float64), 1.0)


def noise_unit(data: Dataset, scaler: Scaler) -> float:
    """Returns the standard deviation of a weighted residual: the inverse root mean square of `1 / relative`."""
    inverse = 1 / relative_deviations(data, scaler)[data.mask]
    return 1 / math.sqrt(float((inverse**2).mean())) if inverse.size else 1.0


def typical_residuals(data: Dataset, scaler: Scaler) -> Float[np.ndarray, " state"]:
    """Returns the standard deviation of each state's weighted residuals, from `sigma` or from neighbouring rows.

    **Raises:** `ValueError` that names a state whose noise can't be estimated.
    """
    if data.sigma is not None:
        return np.full(len(data.states), noise_unit(data, scaler))
    measured = np.where(data.mask, scaler.scale_states(data.exact.ys), np.nan)
    levels = np.array([local_noise(data.ts, measured[..., index]) for index in range(len(data.states))])
    for name, level in zip(data.states, levels, strict=True):
        if np.isnan(level):
            raise ValueError(
                f"sigma is needed with a robust loss, since the state {name!r} has too few rows to estimate its noise "
                f"from; pass sigma={{{name}: 0.1}} or a column."
            )
    return np.maximum(levels, LEAST_NOISE)


def local_noise(ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time"]) -> float:
    """Estimates the noise of a series, robust to outliers: the median distance from the line through both neighbours
    (Gasser, Sroka and Jennen-Steinmetz, Biometrika 73, 1986), or from a cubic through four, whichever is less.

    **Returns:** its standard deviation; NaN with fewer than five rows of a trajectory.
    """
    levels: list[float] = []
    for reach in (1, 2):
        residuals = [distances(t[known], y[known], reach) for t, y, known in zip(ts, ys, np.isfinite(ys), strict=True)]
        pooled = np.concatenate(residuals) if residuals else np.zeros(0)
        levels.append(float(np.median(np.abs(pooled))) / NORMAL_MEDIAN if pooled.size >= FEWEST_RESIDUALS else math.nan)
    return float(np.nanmin(levels)) if np.isfinite(levels).any() else math.nan


def near_distances(
    ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time"]
) -> Float[np.ndarray, "trajectory time"]:
    """Computes each value's distance from the curve through its neighbours, scaled to the noise's variance; NaN at the
    ends."""
    errors = np.full((2, *ys.shape), np.nan)
    for row, known in enumerate(np.isfinite(ys)):
        places = np.flatnonzero(known)
        for reach in (1, 2):
            residuals = distances(ts[row, known], ys[row, known], reach)
            errors[reach - 1, row, places[reach : len(places) - reach]] = residuals
    counts = np.isfinite(errors).sum(axis=(1, 2))
    if not counts[0]:
        return errors[0]
    nearest = np.nanmedian(np.abs(errors[0])), np.nanmedian(np.abs(errors[1])) if counts[1] else np.inf
    return errors[int(nearest[1] < nearest[0])]


def likelihood_unit(data: Dataset, scaler: Scaler) -> float:
    """Returns a typical standard deviation in scaled units, the factor applied to the rows of a likelihood.

    Losses then stay of the order of least squares, and penalties keep their meaning.
    """
    if data.sigma is not None:
        return noise_unit(data, scaler)
    measured = np.where(data.mask, scaler.scale_states(data.exact.ys), np.nan)
    estimates = np.array([local_noise(data.ts, measured[..., index]) for index in range(len(data.states))])
    levels = np.where(np.isfinite(estimates), np.maximum(estimates, LEAST_NOISE), UNKNOWN_NOISE)
    return float(np.sqrt((levels**2).mean()))


def distances(t: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], reach: int) -> Float[np.ndarray, " middle"]:
    """Computes each value's distance from the polynomial through its neighbours, scaled to the noise's variance."""
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
    """Computes residual weights, proportional to the inverse of the known standard deviations.

    Their mean square is 1, so losses stay of order one, and penalties keep their meaning.
    """
    return noise_unit(data, scaler) / relative_deviations(data, scaler)
