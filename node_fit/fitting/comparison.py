"""Errors for comparing fits to the same data, on the rows scored for all of them and in the same unit.

A start read from ten rows excludes these from the score; a start at the first row excludes only that row. The spread of
a few held-out rows is a different unit than that of the training data. Either difference could decide a comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..evaluation.baselines import mean
from ..evaluation.metrics import prediction_errors, root_mean, squared_errors

Squares = Float[np.ndarray, "trajectory time state"]
# Multiple of the training mean's error above which a fit is worse than no model, and the minimum of that error as a
# fraction of the spread of the training data.
TIMES_THE_MEAN, LEAST_MEAN = 3.0, 0.1


@dataclass(frozen=True)
class Misfit:
    """The squared errors of a fit on some data, in units of the variance of each state in the training data.

    - `squares`, `of_mean`: squared errors of the fit, and of the mean of the training data.
    - `counts`: mask of the values that count in the fit's score.
    """

    squares: Squares
    of_mean: Squares
    counts: Bool[np.ndarray, "trajectory time state"]

    @staticmethod
    def of(scored: Dataset, predicted: Squares, train: Dataset) -> "Misfit":
        """Computes the misfit of predictions.

        **Arguments:** `scored`: the data with the scored rows. `predicted`: predictions. `train`: all training data.
        """
        spread = prediction_errors(train)
        unit = np.where(spread > 0, spread, np.inf) ** 2  # A constant state can't distinguish fits.
        counts = scored.mask & (spread > 0)
        of_mean = squared_errors(scored, mean(train, scored))
        return Misfit(squared_errors(scored, predicted) / unit, of_mean / unit, counts)

    def error_on(self, counts: np.ndarray, *, of_mean: bool = False) -> float:
        """Computes the root mean square over states of their errors on these values; NaN without values."""
        squares = self.of_mean if of_mean else self.squares
        means = [squares[..., state][here].mean() for state, here in enumerate(np.moveaxis(counts, 2, 0)) if here.any()]
        return root_mean(np.array(means))


@dataclass(frozen=True)
class Errors:
    """The errors of a fit by role of the data, and whether one of them is far above that of the training mean."""

    by_role: Mapping[str, float]
    is_worse_than_mean: bool

    @staticmethod
    def of(misfits: Mapping[str, Misfit], counts: Mapping[str, np.ndarray] | None = None) -> "Errors":
        """Computes the errors on the scored values, or on the values of `counts`."""
        by_role: dict[str, float] = {}
        is_worse = False
        for role, misfit in misfits.items():
            here = misfit.counts if counts is None else counts[role]
            by_role[role] = misfit.error_on(here)
            is_worse |= by_role[role] > TIMES_THE_MEAN * max(misfit.error_on(here, of_mean=True), LEAST_MEAN)
        return Errors(by_role, is_worse)

    @property
    def worst(self) -> float:
        """The largest error; infinite if any is not finite."""
        worst = max(self.by_role.values())
        return worst if np.isfinite(worst) else np.inf


def errors_in_common(several: Sequence[Mapping[str, Misfit]]) -> list[Errors]:
    """Computes the errors of fits on the values scored for all of them; without common values, on each fit's own."""
    common: dict[str, np.ndarray] = {}
    for role in several[0] if several else ():
        counts = [misfits[role].counts for misfits in several]
        common[role] = np.logical_and.reduce(counts)
        if not common[role].any():
            return [Errors.of(misfits) for misfits in several]
    return [Errors.of(misfits, common) for misfits in several]
