"""Cross-validates a selected model: retrains it without one block of the data at a time, and predicts that block.

Validation data are a single stretch of a record and were used to select an iterate, a weight of the prior and an
attempt, so their error is optimistic. Unseen blocks, simulated from their own start as a user would, are not (M. Stone,
J. R. Stat. Soc. B 36, 1974; blocks of rows: D. R. Roberts et al., Ecography 40, 2017).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from ..data.dataset import Dataset
from ..data.trajectories import cut
from ..evaluation.metrics import score_values
from ..evaluation.new_data import HeldOut
from ..evaluation.simulation import concatenate_splits
from ..options.options import Options
from ..options.recipes import DIRECT_RECIPE
from ..training.callback import Callback
from .refit import STEPS_ON_ALL, is_worth_refitting
from .result import Fit

LEFT_OUT_LOG = logging.getLogger(__name__)
# Number of blocks, and for short records; maximum rows for leaving out one block at a time, and any blocks at all.
BLOCKS, FEWEST_BLOCKS, ROWS_OF_ONE_BLOCK, MOST_ROWS_LEFT_OUT = 8, 4, 1_000, 5_000
# Minimum size of a block, as a multiple of the rows from which its start is read.
LEAST_BLOCK = 3

# Fits with other options to other data.
Anew = Callable[[Options, Dataset], Fit]


class Fold(NamedTuple):
    """Left-out rows, and their trajectory pieces: index, first row, row after the last."""

    rows: Bool[np.ndarray, "trajectory time"]
    pieces: Sequence[tuple[int, int, int]]

    @staticmethod
    def of(data: Dataset, pieces: Sequence[tuple[int, int, int]]) -> "Fold":
        rows = np.zeros(data.scored.shape, bool)
        for row, first, after in pieces:
            rows[row, first:after] = True
        return Fold(rows, pieces)


def predict_left_out(fit: Fit, anew: Anew, callback: Callback) -> Fit:
    """Adds predictions of data blocks by models that have not seen them, if the fit needs them.

    **Arguments:** `anew`: makes a fit. `callback`: notified of each fit; a `KeyboardInterrupt` from it ends the fit.
    """
    if not is_worth_refitting(fit):
        return fit
    rows, start = all_rows(fit), fit.model.typical.start
    reads = max(start.given_rows or 1, start.past + start.washout)
    folds, count = make_folds(rows, int(fit.options.training.stride or 1), reads), int(rows.lengths.sum())
    if not folds or count > MOST_ROWS_LEFT_OUT:
        return fit
    # With many rows, each model omits two distant blocks, which halves the time.
    times = len(folds) if count <= ROWS_OF_ONE_BLOCK else -(-len(folds) // 2)
    options, predictions, seconds = options_of_folds(fit), list[HeldOut](), fit.train_seconds
    try:
        for number in range(times):
            callback.on_trial(
                f"the fit without a part of the rows, to see how they are predicted: {number + 1} of {times}"
            )
            absent = folds[number::times]
            refit = anew(options, replace(rows, scored=rows.scored & ~np.any([fold.rows for fold in absent], axis=0)))
            if refit.status == "failed":
                return fit
            predictions += [predict_fold(refit, rows, fold) for fold in absent]
            seconds += refit.train_seconds + refit.compile_seconds
    except KeyboardInterrupt as ended:
        return replace(fit, status="interrupted", reason=str(ended) or "by Ctrl-C")
    except Exception as error:  # Failing cross-validation must not lose the fit.
        LEFT_OUT_LOG.warning("blocks left out: %s", error)
        return fit
    return replace(fit, left_out=tuple(predictions), train_seconds=seconds)


def predict_fold(fit: Fit, rows: Dataset, fold: Fold) -> HeldOut:
    """Returns the scored rows of a fold, as separate trajectories, with a fit's predictions."""
    part = cut(rows, fold.pieces, [f"{rows.trajectories[row]}[{first}:{after}]" for row, first, after in fold.pieces])
    return HeldOut(score_values(fit.model, part), np.asarray(fit.model.predict(part)))


def all_rows(fit: Fit) -> Dataset:
    """Returns training and validation data together; records that were split in time are rejoined."""
    train, held = fit.data["train"], fit.data["validation"]
    rows = int(train.ts.shape[1])
    alike = held.trajectories == train.trajectories and int(held.ts.shape[1]) >= rows
    if not (alike and np.array_equal(held.ts[:, :rows][train.valid], train.ts[train.valid])):
        return concatenate_splits(dict(fit.data))
    scored = held.scored.copy()
    scored[:, :rows] |= train.scored
    return replace(held, scored=scored)


def make_folds(data: Dataset, stride: int, reads: int) -> list[Fold]:
    """Returns blocks of about equal size: groups of trajectories, or stretches of each if they are few.

    Returns no blocks if they would be too short. Stretches begin at multiples of the window stride, so that the number
    of remaining windows is constant and all fits share a program.
    """
    lengths = data.lengths.tolist()
    for count in (BLOCKS, FEWEST_BLOCKS):
        if len(lengths) >= FEWEST_BLOCKS:
            groups = np.array_split(np.arange(len(lengths)), min(count, len(lengths)))
            pieces = [[(int(row), 0, lengths[row]) for row in group] for group in groups]
        else:
            sizes = [length // count // stride * stride for length in lengths]
            pieces = [[(row, k * size, (k + 1) * size) for row, size in enumerate(sizes)] for k in range(count)]
        if all(after - first >= LEAST_BLOCK * reads for block in pieces for _, first, after in block):
            return [Fold.of(data, block) for block in pieces]
    return []


def options_of_folds(fit: Fit) -> Options:
    """Returns the final options of the fit, with the number of steps that gave the best validation error."""
    training = replace(fit.options.training, steps=fit.steps_to_best or STEPS_ON_ALL)
    return replace(fit.options, recipe=DIRECT_RECIPE, training=training, restarts=1)
