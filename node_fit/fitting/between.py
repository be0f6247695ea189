"""Whether a model stays near the data where it starts, and what drives it, lie between those of the training data.

A network that fits few trajectories well may run away from a dose or a start between two of theirs, which no trajectory
of theirs tells; and one trajectory held out tells it by chance.
"""

import itertools
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..data.dataset import Dataset
from ..model.neural_ode import NeuralODE

# How far from one trajectory to another, of how many at the least and at the most: more of them fill the space.
SHARES, FEWEST_APART, MOST_APART, MOST_PROBES = (0.25, 0.5, 0.75), 3, 16, 48
# A model has run away this many ranges of the training data beyond them.
FAR_BEYOND = 1.0


def trajectories_between(train: Dataset, groups: Collection[str] = ()) -> Dataset | None:
    """Trajectories whose inputs and starts lie between those of each two; None where these tell nothing more.

    All values of a trajectory are moved by as much as its start, so that rules that read a start from several rows
    find one. Inputs that change within a trajectory, events and angles are not mixed.

    **Arguments:** `groups`: covariates that tell groups of trajectories apart, between which there is none.
    """
    apart = FEWEST_APART <= len(train.trajectories) <= MOST_APART
    if not apart or train.is_driven or train.events is not None or train.angles:
        return None
    pairs = [(one, other, share) for one, other in itertools.combinations(range(len(train)), 2) for share in SHARES]
    numbers: list[int] = np.linspace(0, len(pairs) - 1, min(MOST_PROBES, len(pairs))).astype(int).tolist()
    chosen = [pairs[number] for number in numbers]
    one, other = np.array([pair[0] for pair in chosen]), np.array([pair[1] for pair in chosen])
    share = np.array([pair[2] for pair in chosen])[:, None, None]
    own = train.select(one)
    shift = np.nan_to_num(train.ys[other, :1] - train.ys[one, :1])
    rows = int(own.ts.shape[1])
    mixed = np.array([name not in groups for name in train.inputs], float)
    us = own.us + share * mixed * (train.us[other, :1] - train.us[one, :1])
    return replace(own.shifted(share * shift), us=us[:, :rows])


def runs_away(model: NeuralODE, train: Dataset) -> bool:
    """Whether a model leaves the range of the training data by far, from starts and by inputs between theirs."""
    probes = trajectories_between(train, {each.by for each in model.local})
    if probes is None:
        return False
    predicted = model.predict(probes)
    known = np.where(train.mask, train.ys, np.nan)
    low, high = np.nanmin(known, axis=(0, 1)), np.nanmax(known, axis=(0, 1))
    margin = FAR_BEYOND * (high - low)
    # Rows before a start have no prediction.
    inside = (predicted >= low - margin) & (predicted <= high + margin)
    started = np.logical_or.accumulate(np.isfinite(predicted).all(axis=2), axis=1) & probes.valid
    return bool((started[..., None] & ~inside).any())
