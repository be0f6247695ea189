"""Checks of residuals: whether what a model leaves still holds something that a model could say."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .page import numbers
from .predictions import Predictions

LAGS = 40
# Bins of a distribution: so many at the most, and as many as the root of the number of residuals.
BINS = 41
# Rows that the checks look at; more would tell nothing new and take seconds.
MOST_ROWS = 200_000
# Fewer rows say nothing; a correlation below this leaves little to gain.
FEW, NEARLY = 20, 0.3


def check_residuals(predictions: Predictions) -> list[dict[str, Any]]:
    """Autocorrelation and distribution of the residuals, by split.

    **Returns:** for each split, its name, the `limit` that white noise would rarely exceed, for each state the
    autocorrelation at lags of 0, 1, ... rows and the density of residuals in bins of standard deviations, the
    autocorrelation of neighbouring rows (`first`), and what it says.
    """
    found = []
    for role in dict.fromkeys(predictions.roles):
        rows = np.flatnonzero(predictions.rows_of(role))[:MOST_ROWS]
        residuals = predictions.residuals[rows]
        residuals = np.where(np.isfinite(residuals), residuals, np.nan)
        segment = np.searchsorted(predictions.starts, rows, side="right")
        count = int(np.isfinite(residuals).any(axis=1).sum())
        if count < 5:
            continue
        lags = min(LAGS, int(np.bincount(segment).max()) // 2)
        correlations = np.stack([autocorrelation(residuals[:, i], segment, lags) for i in range(residuals.shape[1])])
        limit = 1.96 / count**0.5
        first = correlations[:, 1] if lags else np.full(len(correlations), np.nan)
        found.append(
            {
                "role": role,
                "limit": limit,
                "correlations": numbers(correlations, 4),
                "densities": [density(residuals[:, i]) for i in range(residuals.shape[1])],
                "first": numbers(first, 2),
                "says": in_words(first, limit, count),
            }
        )
    return found


def autocorrelation(residuals: Float[np.ndarray, " row"], segment: np.ndarray, lags: int) -> Float[np.ndarray, " lag"]:
    """Mean product of residuals so many rows apart in the same segment, over their mean square; NaN for none."""
    centred = residuals - np.nanmean(residuals) if np.isfinite(residuals).any() else residuals
    known = np.isfinite(centred)
    values = np.where(known, centred, 0.0)
    square = np.square(values).sum() / max(known.sum(), 1)
    found = [1.0]
    for lag in range(1, lags + 1):
        together = (segment[lag:] == segment[:-lag]) & known[lag:] & known[:-lag]
        products = values[lag:] * values[:-lag]
        # Few pairs would tell nothing.
        enough = together.sum() >= 4 and square > 0
        found.append(products[together].mean() / square if enough else np.nan)
    return np.array(found)


def density(residuals: Float[np.ndarray, " row"]) -> list[float]:
    """Density of residuals in bins that span four standard deviations to each side; empty for few rows."""
    known = residuals[np.isfinite(residuals)]
    if known.size < FEW or known.std() == 0:
        return []
    bins = min(BINS, int(known.size**0.5) | 1)
    counts, _ = np.histogram((known - known.mean()) / known.std(), bins, (-4, 4))
    return numbers(counts / known.size / (8 / bins), 4)


def in_words(first: Float[np.ndarray, " state"], limit: float, count: int) -> str:
    """What the autocorrelation of neighbouring rows says."""
    worst = float(np.nanmax(np.abs(first))) if np.isfinite(first).any() else np.nan
    if np.isnan(worst) or count < FEW:
        return "too few rows to tell"
    if worst <= limit:
        return "like noise"
    if worst < NEARLY:
        return "nearly noise"
    return "no noise: the model misses something"
