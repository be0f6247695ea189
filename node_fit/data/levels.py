"""Levels that a column holds, but for the white noise of the sensor that reads it."""

import numpy as np
from jaxtyping import Float, Int

# Median of the absolute steps of white noise [standard deviations], and the step above which it is a jump. What levels
# leave counts as white noise below this many standard errors of its correlation, and this share of the variance.
MEDIAN_OF_STEPS, FAR_FROM_NOISE, LEAST_DRIFT, NOISE_OF_LEVELS = 0.954, 8.0, 3.0, 0.02
# Minimum number of jumps between levels.
FEWEST_LEVEL_JUMPS = 2


def level_out(values: Float[np.ndarray, " row"], pairs: Int[np.ndarray, " pair"]) -> Float[np.ndarray, " row"]:
    """Returns the levels between jumps if they leave little but white noise; else the values.

    **Arguments:** `pairs`: rows that another row of the same record follows.
    """
    steps = np.abs(values[pairs + 1] - values[pairs])
    noise = np.median(steps).item() / MEDIAN_OF_STEPS if len(steps) else 0.0
    jumps = steps > FAR_FROM_NOISE * noise
    if noise == 0 or jumps.sum() < FEWEST_LEVEL_JUMPS:
        return values
    continued, joins = pairs[~jumps], np.zeros(len(values), bool)
    joins[continued + 1] = True
    with np.errstate(over="ignore", invalid="ignore"):  # Numbers near the largest one have no levels.
        levels = merge_levels(values, np.cumsum(~joins), noise)
        off = values - levels
        variance, products = off[pairs].var(), off[continued] * off[continued + 1]
        is_white = products.mean() < LEAST_DRIFT * variance / np.sqrt(len(products))
        return levels if is_white and variance < NOISE_OF_LEVELS * values[pairs].var() else values


def merge_levels(
    values: Float[np.ndarray, " row"], stretch: Int[np.ndarray, " row"], noise: float
) -> Float[np.ndarray, " row"]:
    """Returns the level of each row: the mean of its stretch, or of all stretches whose means noise can't separate."""
    counts = np.bincount(stretch)
    means = np.bincount(stretch, values) / np.maximum(counts, 1)
    order = np.argsort(means)
    groups = np.empty(len(means), int)
    groups[order] = np.cumsum(np.diff(means[order], prepend=-np.inf) > FAR_FROM_NOISE / 2 * noise)
    totals = np.bincount(groups, means * counts) / np.maximum(np.bincount(groups, counts), 1)
    return totals[groups[stretch]]
