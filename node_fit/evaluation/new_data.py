"""Estimates an interval for the error on new data from the errors on held-out data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from .comparison import LEAST_GROUPS, Rows, row_groups
from .metrics import squared_errors

Squares = Float[np.ndarray, "trajectory time state"]
# Desired coverage of the interval on new data, and the level of the t interval that achieves it: blocks of one record
# are more similar than new data. Of 34 simulated records, an interval at 0.8 covered the errors of 20, one at 0.9 those
# of 26, and one at 0.95 those of 29.
SHARE_INSIDE, NOMINAL = 0.8, 0.95
# Minimum number of trajectories to estimate the variance of errors.
ENOUGH_TRAJECTORIES = 4


class HeldOut(NamedTuple):
    """Data with the scored rows, and predictions by a model that was not fitted to them."""

    data: Dataset
    predicted: Squares


@dataclass(frozen=True)
class ExpectedError:
    """A prediction interval for the NRMSE on new data, that is, on one more group like the held-out ones.

    - `low`, `high`: its ends, relative to the spread of all data. `level`: its coverage of such data.
    - `source`: the data from which it is estimated. `groups`: number of groups of rows, assumed independent.
    """

    low: float
    high: float
    level: float
    source: str
    groups: int

    def __str__(self) -> str:
        return f"an NRMSE of {self.low:.2g} to {self.high:.2g} ({100 * self.level:.0f} %, by {self.source})"


def expect_error(parts: Sequence[HeldOut], spread: Float[np.ndarray, " state"], source: str) -> ExpectedError | None:
    """Estimates the interval from errors on held-out data; None for too few rows, or a non-finite prediction.

    It is the prediction interval for the mean square of one more group, with logarithms assumed normal (G. J. Hahn,
    Technometrics 12, 1970). Groups are the parts. For a single part, they are its trajectories if numerous enough, and
    otherwise stretches of consecutive rows, whose means are nearly independent.

    **Arguments:** `spread`: scale that divides errors. `source`: name of the data, for text.
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
    """Returns the mean squares of the groups of a part, or of the part as one."""
    moves = spread > 0
    squares = squared_errors(*part) / np.where(moves, spread, np.inf) ** 2
    counts = part.data.mask & moves
    rows = np.asarray(counts.any(axis=2))
    groups = groups_alike(rows) if alone else [rows] * bool(rows.any())
    return [pool_squares(squares, counts & group[..., None]) for group in groups]


def groups_alike(rows: Rows) -> list[Rows]:
    """Splits rows into groups as independent as new data: trajectories, or stretches if trajectories are few."""
    present = np.flatnonzero(rows.any(axis=1))
    if len(present) < ENOUGH_TRAJECTORIES:
        return row_groups(rows)
    return [rows & (np.arange(len(rows)) == index)[:, None] for index in present]


def pool_squares(squares: Squares, counts: Bool[np.ndarray, "trajectory time state"]) -> float:
    """Computes the mean over states of their mean squares over the scored values."""
    means = [
        squares[..., state][counted].mean() for state, counted in enumerate(np.moveaxis(counts, 2, 0)) if counted.any()
    ]
    return float(np.mean(means))
