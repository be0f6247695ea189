"""Checks that a model stays near the data for initial states and inputs between those of the training data.

A network that fits few trajectories well can run away for a dose or an initial state between two of them. The training
data cannot reveal this, and a single held-out trajectory only does so by chance.
"""

import itertools
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..data.dataset import Dataset
from ..model.initial_state.trained import Fitted
from ..model.make_model import is_equations_alone
from ..model.neural_ode import NeuralODE

# Interpolation fractions between two trajectories, minimum and maximum number of trajectories (more fill the space),
# and maximum number of probes.
SHARES, FEWEST_APART, MOST_APART, MOST_PROBES = (0.25, 0.5, 0.75), 3, 16, 48
# Distance beyond the training data at which a model has run away, in units of their range.
FAR_BEYOND = 1.0


def trajectories_between(train: Dataset, groups: Collection[str] = ()) -> Dataset | None:
    """Returns trajectories with inputs and starts between those of each pair; None if these would not be informative.

    All values of a trajectory are shifted along with its start, so that start rules that read several rows still work.
    Inputs that change within a trajectory, events and angles are not interpolated.

    **Arguments:** `groups`: covariates that label groups of trajectories and are not interpolated.
    """
    apart = FEWEST_APART <= len(train.trajectories) <= MOST_APART
    if not apart or train.is_driven or train.events is not None or train.angles:
        return None
    pairs = [(one, other, share) for one, other in itertools.combinations(range(len(train)), 2) for share in SHARES]
    numbers: list[int] = np.linspace(0, len(pairs) - 1, min(MOST_PROBES, len(pairs))).astype(int).tolist()
    chosen = [pairs[number] for number in numbers]
    one, other = np.array([pair[0] for pair in chosen]), np.array([pair[1] for pair in chosen])
    share = np.array([pair[2] for pair in chosen])[:, None, None]
    base = train.select(one)
    shift = np.nan_to_num(train.ys[other, :1] - train.ys[one, :1])
    rows = int(base.ts.shape[1])
    mixed = np.array([name not in groups for name in train.inputs], float)
    us = base.us + share * mixed * (train.us[other, :1] - train.us[one, :1])
    return replace(base.shift(share * shift), us=us[:, :rows])


def runs_away(model: NeuralODE, train: Dataset) -> bool:
    """Whether a model leaves the range of the training data by far, for starts and inputs between theirs."""
    probes = trajectories_between(train, {constant.by for constant in model.local} | set(train.levels))
    if probes is None:
        return False
    if isinstance(model.start, Fitted) and is_equations_alone(model.field):
        # A shifted trajectory is no solution of the equations, so that more rows would give it a false velocity.
        model = replace(model, start=model.start.reading(1))
    predicted = model.predict(probes)
    measured = np.where(train.mask, train.ys, np.nan)
    low, high = np.nanmin(measured, axis=(0, 1)), np.nanmax(measured, axis=(0, 1))
    margin = FAR_BEYOND * (high - low)
    # Rows before a start have no prediction.
    inside = (predicted >= low - margin) & (predicted <= high + margin)
    started = np.logical_or.accumulate(np.isfinite(predicted).all(axis=2), axis=1) & probes.valid
    return bool((started[..., None] & ~inside).any())
