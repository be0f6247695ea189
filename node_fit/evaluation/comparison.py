"""Tests whether one model's errors are smaller than another's by more than chance, on the same rows."""

from typing import cast

import numpy as np
from jaxtyping import Bool, Float

Rows = Bool[np.ndarray, "trajectory time"]
# Number of groups of consecutive rows whose means are compared, and the minimum to estimate their variance.
ROW_GROUPS, LEAST_GROUPS = 8, 3


def compare_squares(
    own: Float[np.ndarray, "trajectory time"],
    other: Float[np.ndarray, "trajectory time"],
    counted: Rows,
) -> float:
    """Computes the p-value of the other model's smaller squared errors, if both models are equally good.

    Uses a t-test on the means of a few groups of consecutive rows: differences of neighbouring rows are dependent,
    those of long groups hardly (Diebold and Mariano, J. Bus. Econ. Stat. 13, 1995, compare paired losses; Ibragimov
    and Müller, J. Bus. Econ. Stat. 28, 2010, their groups).

    **Arguments:** `own`, `other`: squared errors of each row. `counted`: mask of the scored rows.

    **Returns:** the p-value; 1 for too few rows.
    """
    from scipy.special import stdtr

    groups = row_groups(counted)
    if len(groups) < LEAST_GROUPS or not np.isfinite((own - other)[counted]).all():
        return 1.0
    means = np.array([(own - other)[group].mean() for group in groups])
    center, error = float(means.mean()), float(means.std(ddof=1)) / len(groups) ** 0.5
    if error == 0:
        return 0.0 if center > 0 else 1.0
    return float(cast(np.floating, stdtr(len(groups) - 1, -center / error)))


def row_groups(counted: Rows) -> list[Rows]:
    """Splits rows into a few groups of at least two consecutive rows, whose means are nearly independent."""
    rows = np.flatnonzero(counted)
    groups = min(ROW_GROUPS, rows.size // 2)
    masks = np.zeros((groups, counted.size), bool)
    for mask, group in zip(masks, np.array_split(rows, max(groups, 1)), strict=False):
        mask[group] = True
    return [mask.reshape(counted.shape) for mask in masks]
