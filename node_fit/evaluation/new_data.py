"""What error to expect on new data: an interval, from the errors of data that were held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from .comparison import LEAST_GROUPS, Rows, row_groups
from .metrics import squared_errors

Squares = Float[np.ndarray, "trajectory time state"]
# The share of new data whose errors the interval should hold, and the level of the t interval that does: blocks of one
# record are more alike than new data are. Of 34 simulated records, an interval at 0.8 held the errors of 20, one at 0.9
# those of 26, and one at 0.95 those of 29.
SHARE_INSIDE, NOMINAL = 0.8, 0.95
# Trajectories that tell how errors vary.
ENOUGH_TRAJECTORIES = 4


class HeldOut(NamedTuple):
    """Data with the rows that count, and what a model that was not fitted to them predicts."""

    data: Dataset
    predicted: Squares


@dataclass(frozen=True)
class ExpectedError:
    """An interval that holds the NRMSE on new data: on one more group like those that were held out.

    - `low`, `high`: its ends, in the spread of all data. `level`: the share of such data for which it should hold.
    - `source`: the data that tell it. `groups`: of their rows, taken as independent.
    """

    low: float
    high: float
    level: float
    source: str
    groups: int

    def __str__(self) -> str:
        return f"an NRMSE of {self.low:.2g} to {self.high:.2g} ({100 * self.level:.0f} %, by {self.source})"


def expect_error(parts: Sequence[HeldOut], spread: Float[np.ndarray, " state"], source: str) -> ExpectedError | None:
    """The interval that errors on data held out tell; None of too few rows, or of a prediction that is not finite.

    It is the prediction interval for the mean square of one more group, of which the logarithms are taken as normal
    (G. J. Hahn, Technometrics 12, 1970). Groups are the parts; of a single one, trajectories where there are enough,
    and else stretches of consecutive rows, whose means hardly depend on each other.

    **Arguments:** `spread`: that errors are divided by. `source`: of the data, for words.
    """
    from scipy.special import stdtrit

    means = np.array([mean for part in parts for mean in group_means(part, spread, alone=len(parts) == 1)])
    if len(means) < LEAST_GROUPS or not (np.isfinite(means).all() and means.min() > 0):
        return None
    logs = np.log(means) / 2
    error = float(logs.std(ddof=1)) * (1 + 1 / len(means)) ** 0.5
    reach, center = float(cast(np.floating, stdtrit(len(means) - 1, (1 + NOMINAL) / 2))) * error, np.exp(logs.mean())
    return ExpectedError(
        float(center * np.exp(-reach)), float(center * np.exp(reach)), SHARE_INSIDE, source, len(means)
    )


def group_means(part: HeldOut, spread: Float[np.ndarray, " state"], *, alone: bool) -> list[float]:
    """The mean squares of the groups of a part, or of the part as one."""
    moves = spread > 0
    squares = squared_errors(*part) / np.where(moves, spread, np.inf) ** 2
    counts = part.data.mask & moves
    rows = np.asarray(counts.any(axis=2))
    groups = groups_alike(rows) if alone else [rows] * bool(rows.any())
    return [pool_squares(squares, counts & group[..., None]) for group in groups]


def groups_alike(rows: Rows) -> list[Rows]:
    """Groups of rows that are as independent as those of new data: trajectories, or stretches of few of them."""
    there = np.flatnonzero(rows.any(axis=1))
    if len(there) < ENOUGH_TRAJECTORIES:
        return row_groups(rows)
    return [rows & (np.arange(len(rows)) == index)[:, None] for index in there]


def pool_squares(squares: Squares, counts: Bool[np.ndarray, "trajectory time state"]) -> float:
    """The mean over the states of their mean squares, of the values that count."""
    each = [squares[..., state][here].mean() for state, here in enumerate(np.moveaxis(counts, 2, 0)) if here.any()]
    return float(np.mean(each))
