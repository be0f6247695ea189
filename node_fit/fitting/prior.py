"""Chooses the weight of the prior on a field's weights: by how well short fits predict the end of the training data."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..data.dataset import Dataset
from ..evaluation.metrics import score
from ..model import parameters
from ..model.neural_ode import NeuralODE

# A record with fewer measured values is short.
SHORT = 200
# The share of each trajectory's rows that is held back.
HELD_BACK = 0.25
CANDIDATES = (0.0, 0.01, 0.1, 1.0)


def is_short(data: Dataset, model: NeuralODE) -> bool:
    """Whether there are few measured values, and fewer than weights, so that the data do not determine the weights."""
    values = int(data.mask.sum())
    return values < SHORT and values < sum(leaf.size for leaf in parameters.weights(model.field))


def choose_ridge(data: Dataset, predict: Callable[[Dataset, float], np.ndarray], *, hide: bool = True) -> float:
    """The candidate whose fit to the beginnings of the trajectories predicts their ends best.

    **Arguments:**

    - `data`: the training data.
    - `predict`: fits the field to data with a given weight of the prior, and predicts at all of their times.
    - `hide`: whether the beginnings hold no value of the ends; a start may be fitted to rows that do not count.

    **Returns:** one of `CANDIDATES`; the largest if no fit predicts anything.
    """
    last = data.lengths - np.maximum((HELD_BACK * data.lengths).astype(int), 1)
    early = np.arange(data.ts.shape[1])[None, :] < last[:, None]
    known = np.where(early[..., None], data.ys, np.nan) if hide else data.ys
    beginning, end = replace(data, ys=known, scored=data.scored & early), replace(data, scored=data.scored & ~early)
    if not (beginning.mask.any() and end.mask.any()):
        return 0.0
    errors = [score(end, predict(beginning, ridge)).nrmse for ridge in CANDIDATES]
    best = np.inf if np.isnan(errors).all() else np.nanmin(errors)
    return max(ridge for ridge, error in zip(CANDIDATES, errors, strict=True) if error <= best or not np.isfinite(best))
