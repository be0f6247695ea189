"""Errors by which fits to the same data are compared: on the rows that count for all of them, and in one unit.

A start that is read from ten rows leaves them out of the score, one that is the first row leaves out that alone; and
the spread of a few held-out rows is another unit than that of the training data. Either would decide between two fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..evaluation.baselines import mean
from ..evaluation.metrics import prediction_errors, root_mean, squared_errors

Squares = Float[np.ndarray, "trajectory time state"]
# A fit is worse than no model if its error is so many times that of the training mean, in which less than this share of
# the spread of the training data does not count.
TIMES_THE_MEAN, LEAST_MEAN = 3.0, 0.1


@dataclass(frozen=True)
class Misfit:
    """The squared errors of a fit on some data, in units of the variance of each state in the training data.

    - `squares`, `of_mean`: of the fit, and of the mean of the training data.
    - `counts`: which values count in the score of the fit.
    """

    squares: Squares
    of_mean: Squares
    counts: Bool[np.ndarray, "trajectory time state"]

    @staticmethod
    def of(scored: Dataset, predicted: Squares, train: Dataset) -> "Misfit":
        """The misfit of predictions.

        **Arguments:** `scored`: the data with the rows that count. `predicted`: of the fit. `train`: all training data.
        """
        spread = prediction_errors(train)
        unit = np.where(spread > 0, spread, np.inf) ** 2  # A state that never moves tells nothing apart.
        counts = scored.mask & (spread > 0)
        of_mean = squared_errors(scored, mean(train, scored))
        return Misfit(squared_errors(scored, predicted) / unit, of_mean / unit, counts)

    def error_on(self, counts: np.ndarray, *, of_mean: bool = False) -> float:
        """The root mean square over the states of their errors on these values; NaN if there are none."""
        squares = self.of_mean if of_mean else self.squares
        means = [squares[..., state][here].mean() for state, here in enumerate(np.moveaxis(counts, 2, 0)) if here.any()]
        return root_mean(np.array(means))


@dataclass(frozen=True)
class Errors:
    """The errors of a fit by roles of data, and whether one of them is far above that of the training mean."""

    by_role: Mapping[str, float]
    is_worse_than_mean: bool

    @staticmethod
    def of(misfits: Mapping[str, Misfit], counts: Mapping[str, np.ndarray] | None = None) -> "Errors":
        """The errors on the values that count, or on others."""
        found: dict[str, float] = {}
        is_worse = False
        for role, misfit in misfits.items():
            here = misfit.counts if counts is None else counts[role]
            found[role] = misfit.error_on(here)
            is_worse |= found[role] > TIMES_THE_MEAN * max(misfit.error_on(here, of_mean=True), LEAST_MEAN)
        return Errors(found, is_worse)

    @property
    def worst(self) -> float:
        """The largest; infinite if one is not finite."""
        worst = max(self.by_role.values())
        return worst if np.isfinite(worst) else np.inf


def errors_in_common(several: Sequence[Mapping[str, Misfit]]) -> list[Errors]:
    """The errors of fits on the values that count for all of them; on its own values for each where none does."""
    common: dict[str, np.ndarray] = {}
    for role in several[0] if several else ():
        counts = [misfits[role].counts for misfits in several]
        common[role] = np.logical_and.reduce(counts)
        if not common[role].any():
            return [Errors.of(misfits) for misfits in several]
    return [Errors.of(misfits, common) for misfits in several]
