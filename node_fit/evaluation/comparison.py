"""Whether one model's errors are smaller than another's by more than chance, on the same rows."""

from typing import cast

import numpy as np
from jaxtyping import Bool, Float

# Groups of consecutive rows whose means are compared, and the least that tell how much they vary.
ROW_GROUPS, LEAST_GROUPS = 8, 3


def compare_squares(
    own: Float[np.ndarray, "trajectory time"],
    other: Float[np.ndarray, "trajectory time"],
    counted: Bool[np.ndarray, "trajectory time"],
) -> float:
    """The probability that the other model's squared errors are as much smaller, if both are as good.

    A t-test of the means of a few groups of consecutive rows: differences of neighbouring rows depend on each other,
    and those of long groups hardly do (Diebold and Mariano, J. Bus. Econ. Stat. 13, 1995, compare paired losses;
    Ibragimov and Müller, J. Bus. Econ. Stat. 28, 2010, their groups).

    **Arguments:** `own`, `other`: squared errors of each row. `counted`: rows that count.

    **Returns:** the probability; 1 of too few rows.
    """
    from scipy.special import stdtr

    differences = (own - other)[counted]
    groups = min(ROW_GROUPS, differences.size // 2)
    if groups < LEAST_GROUPS or not np.isfinite(differences).all():
        return 1.0
    means = np.array([group.mean() for group in np.array_split(differences, groups)])
    center, error = float(means.mean()), float(means.std(ddof=1)) / groups**0.5
    if error == 0:
        return 0.0 if center > 0 else 1.0
    return float(cast(np.floating, stdtr(groups - 1, -center / error)))
