"""The section on residuals: whether what a model leaves still holds something that a model could say."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..evaluation.residuals import (
    FEW,
    MOST,
    ResidualChecks,
    autocorrelation,
    check_channels,
    inputs_in_words,
    neighbours_in_words,
)
from .page import numbers
from .predictions import Predictions

# Lags of the picture.
PICTURED = 40
# Bins of a distribution: so many at the most, and as many as the root of the number of residuals.
BINS = 41


def describe_residuals(predictions: Predictions, checked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Autocorrelation and distribution of the residuals, by split.

    **Arguments:** `checked`: what the summary says of the residuals of each split; those of others are checked here, in
    the user's units.

    **Returns:** for each split, its name, the `limit` that white noise would rarely exceed, for each state the
    autocorrelation at lags of 0, 1, ... rows and the density of residuals in bins of standard deviations, the
    autocorrelation of neighbouring rows (`first`), and what it says, in a word and in sentences.
    """
    found = []
    for role in dict.fromkeys(predictions.roles):
        rows = np.flatnonzero(predictions.rows_of(role))[:MOST]
        residuals = predictions.residuals[rows]
        residuals = np.where(np.isfinite(residuals), residuals, np.nan)
        segment = np.searchsorted(predictions.starts, rows, side="right")
        count = int(np.isfinite(residuals).any(axis=1).sum())
        if count < 5:
            continue
        lags = min(PICTURED, int(np.bincount(segment).max()) // 2)
        correlations = np.stack([autocorrelation(residuals[:, i], segment, lags) for i in range(residuals.shape[1])])
        checks = checked.get(role) or check(predictions, residuals, segment, predictions.us[rows])
        limit = 1.96 / count**0.5
        first = [checks["channels"].get(name, {}).get("lag1") for name in predictions.states]
        found.append(
            {
                "role": role,
                "limit": limit,
                "correlations": numbers(correlations, 4),
                "densities": [density(residuals[:, i]) for i in range(residuals.shape[1])],
                "first": first,
                "word": in_a_word([value for value in first if value is not None], limit, checks["says"]),
                "says": checks["says"],
            }
        )
    return found


def check(
    predictions: Predictions,
    residuals: Float[np.ndarray, "row state"],
    segment: Int[np.ndarray, " row"],
    us: Float[np.ndarray, "row input"],
) -> dict[str, Any]:
    """The checks of a split whose summary holds none."""
    channels = check_channels(residuals, segment, us, predictions.states, predictions.inputs)
    return ResidualChecks(channels, tuple(neighbours_in_words(channels) + inputs_in_words(channels))).as_dict()


def density(residuals: Float[np.ndarray, " row"]) -> list[float]:
    """Density of residuals in bins that span four standard deviations to each side; empty for few rows."""
    known = residuals[np.isfinite(residuals)]
    if known.size < FEW or known.std() == 0:
        return []
    bins = min(BINS, int(known.size**0.5) | 1)
    counts, _ = np.histogram((known - known.mean()) / known.std(), bins, (-4, 4))
    return numbers(counts / known.size / (8 / bins), 4)


def in_a_word(first: Sequence[float], limit: float, says: Sequence[str]) -> str:
    """What the autocorrelations of neighbouring rows say, and the tests, which allow for the number of channels."""
    worst = max(map(abs, first), default=None)
    if worst is None:
        return "too few rows to tell"
    if any(sentence.startswith("Neighbouring") for sentence in says):
        return "no noise: the model misses something"
    return "like noise" if worst <= limit else "nearly noise"
