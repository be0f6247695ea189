"""How much of a fit's residuals past rows predict."""

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset

# Rows before a residual that may predict it.
PAST = 10
# Maximum number of rows in a regression, and its ridge in standardised units.
MOST_ROWS, RIDGE = 20_000, 1e-3


def explained_by_past(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, " state"]:
    """The share of each channel's mean squared residual that a linear map of the ten rows before explains.

    The map is fitted to the first half of the rows and judged on the second, so it may explain less than nothing.

    **Arguments:** `data`, `predicted`: measurements and predictions of them.

    **Returns:** shares of at most 1; NaN for too few rows or exact predictions.
    """
    rows, residuals = past_and_residuals(data, predicted)
    half = len(rows) // 2
    if half < 2 * rows.shape[1]:
        return np.full(len(data.states), np.nan)
    scaled = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-12)
    features = np.concatenate([scaled, np.ones((len(rows), 1))], axis=1)
    weight = np.sqrt(RIDGE * half) * np.eye(features.shape[1])
    zeros = np.zeros((features.shape[1], residuals.shape[1]))
    fitted = np.linalg.lstsq(
        np.concatenate([features[:half], weight]), np.concatenate([residuals[:half], zeros]), rcond=None
    )[0]
    left = ((residuals[half:] - features[half:] @ fitted) ** 2).mean(axis=0)
    whole = (residuals[half:] ** 2).mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, 1 - left / whole, np.nan)


def past_and_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, "row state"]]:
    """The measurements in the rows before each row, and its residuals; complete rows only, in order."""
    whole = np.concatenate([data.ys, data.us], axis=2)
    complete = np.isfinite(whole).all(axis=2) & np.isfinite(predicted).all(axis=2) & data.valid
    usable = complete & data.scored
    usable[:, :PAST] = False
    columns = complete.shape[1]
    for back in range(1, PAST + 1):
        usable[:, PAST:] &= complete[:, PAST - back : max(columns - back, 0)]
    trajectories, steps = (found[-MOST_ROWS:] for found in np.nonzero(usable))
    past = whole[trajectories[:, None], steps[:, None] + np.arange(-PAST, 0)]
    residuals = (predicted - data.near(predicted))[trajectories, steps]
    return past.reshape(len(steps), PAST * whole.shape[2]), residuals
