"""Finds measurements that lie far from all others, and weights them as the loss of the fit does."""

from dataclasses import dataclass, replace
from typing import cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..data.dataset import Dataset
from ..data.noise import NORMAL_MEDIAN, relative_deviations
from ..data.scaling import Scaler
from ..likelihood.losses import AbstractResidualLoss
from .residuals import LEAST_RESIDUAL, LEAST_VALUES, standardize

Predicted = Float[np.ndarray, "trajectory time state"]
# Factor by which an outlier's residual exceeds those of its neighbours; otherwise the simulation has lost the record.
NEIGHBOURS_NEARER = 2.0
# Maximum number of outliers named in a sentence, and the risk of a false positive over all states.
MOST_OUTLIERS, OUTLIER_RISK = 3, 1e-3


@dataclass(frozen=True)
class Outlier:
    """An outlying measurement: its trajectory, row, state, and distance [standard deviations of the others]."""

    trajectory: int
    row: int
    state: int
    distance: float


def typical_residual(residuals: Float[np.ndarray, "trajectory time state"]) -> Float[np.ndarray, " state"]:
    """Estimates the standard deviation of each state's residuals from their median absolute value; NaN for none."""
    columns = np.abs(residuals).reshape(-1, residuals.shape[2]).T
    medians = [
        float(np.median(column[np.isfinite(column)])) if np.isfinite(column).any() else np.nan for column in columns
    ]
    return np.array(medians) / NORMAL_MEDIAN


def weigh_measurements(
    data: Dataset,
    predicted: Predicted,
    loss: AbstractResidualLoss,
    scaler: Scaler,
    typical: Float[np.ndarray, " state"],
) -> Dataset:
    """Moves measurements to the distance from the predictions at which a robust loss counts them.

    Scores of these pseudo-values are those of the loss (P. J. Huber, Robust Statistics, 1981, section 7.9).

    **Arguments:** `typical`: the standard deviation of each state's residuals, in units of known deviations if any.
    """
    if not loss.robust:
        return data
    residuals = standardize(data, predicted, scaler)
    with np.errstate(divide="ignore", invalid="ignore"):
        standardized = np.where(typical > 0, residuals / typical, np.nan)
    is_known = np.isfinite(standardized)
    counted = residuals * np.asarray(loss.factor(jnp.asarray(np.where(is_known, standardized, 0.0))), np.float64)
    unit = np.ones(data.ys.shape) if data.sigma is None else relative_deviations(data, scaler)
    predicted_scaled = scaler.scale_states(np.where(is_known, predicted, np.nan))
    values = scaler.unscale_states(predicted_scaled + counted * unit)
    return replace(data, ys=np.where(is_known & np.isfinite(values), values, data.ys))


def find_outlying_residuals(data: Dataset, predicted: Predicted, scaler: Scaler) -> list[Outlier]:
    """Finds measurements with residuals larger than expected by chance, given their number, and than their neighbours'.

    Each residual is compared with the spread of all others (R. D. Cook and S. Weisberg, Residuals and Influence in
    Regression, 1982, section 2.2.2).
    """
    from scipy.special import stdtrit

    residuals = standardize(data, predicted, scaler)
    outliers: list[Outlier] = []
    for state in range(residuals.shape[2]):
        column = residuals[..., state]
        count, squares = int(np.isfinite(column).sum()), np.square(column)
        exact = data.sigma is None and np.nansum(squares) <= LEAST_RESIDUAL**2 * count
        if count < LEAST_VALUES or exact:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = np.abs(column) / np.sqrt(np.maximum(np.nansum(squares) - squares, 0.0) / (count - 2))
        limit = float(cast(np.floating, stdtrit(count - 2, 1 - OUTLIER_RISK / (2 * count * residuals.shape[2]))))
        for index in find_apart(column, distances > limit):
            trajectory, row = divmod(int(index), column.shape[1])
            outliers.append(Outlier(trajectory, row, state, float(distances[trajectory, row])))
    return sorted(outliers, key=lambda outlier: -outlier.distance)


def find_apart(
    column: Float[np.ndarray, "trajectory time"], is_far: Bool[np.ndarray, "trajectory time"]
) -> Int[np.ndarray, " found"]:
    """Returns flat indices of far residuals that are larger than their known neighbours in a trajectory."""
    known = np.flatnonzero(np.isfinite(column))
    sizes, owners = np.abs(column.ravel()[known]), known // column.shape[1]
    far = np.flatnonzero(is_far.ravel()[known])
    is_apart = np.ones(far.size, bool)
    for side in (-1, 1):
        beside = np.clip(far + side, 0, known.size - 1)
        is_neighbour = (beside != far) & (owners[beside] == owners[far])
        is_apart &= ~is_neighbour | (NEIGHBOURS_NEARER * sizes[beside] < sizes[far])
    return known[far[is_apart]]


def describe_outliers(data: Dataset, outliers: list[Outlier]) -> str | None:
    """Lists the outlying measurements in a sentence, farthest first; None if empty."""
    if not outliers:
        return None
    named = [
        f"{data.states[outlier.state]} = {data.ys[outlier.trajectory, outlier.row, outlier.state]:.3g} at "
        f"{data.time} = {data.ts[outlier.trajectory, outlier.row]:g} (row {outlier.row + 1} of trajectory "
        f"{data.trajectories[outlier.trajectory]!r}, {outlier.distance:.2g} standard deviations of the others off)"
        for outlier in outliers[:MOST_OUTLIERS]
    ]
    more = f", and {len(outliers) - MOST_OUTLIERS} more" if len(outliers) > MOST_OUTLIERS else ""
    verb = "lies" if len(outliers) == 1 else "lie"
    return f"Far from all other values {verb} {', '.join(named)}{more}; correct the value, or leave it empty."
