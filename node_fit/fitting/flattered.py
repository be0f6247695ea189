"""Whether validation data have judged an iterate, or only flattered it."""

import numpy as np

from ..data.dataset import Dataset
from ..model.neural_ode import NeuralODE
from ..training.callback import RunState
from ..training.loop import Loop

# Validation data that a model fits better than its own training data by this factor do not stand for them.
FLATTERED = 3.0
# Trajectories that are enough to tell.
ENOUGH = 64


def fairly_best(loop: Loop, state: RunState, member: int, train: Dataset, validation: Dataset | None) -> NeuralODE:
    """The best iterate of a member, or the last stage's, where few validation data favour one of an earlier stage.

    A derivative stage may end at a model that predicts two validation trajectories well and loses a training one. So an
    iterate's error counts as a third of that of the training data at least.

    **Arguments:** `loop`, `state`, `member`: a loop at its end. `train`, `validation`: its data.
    """
    best, chosen = loop.fitted(state, member), state.members[member].chosen
    if validation is None or not is_earlier(loop, state, member) or not np.isfinite(chosen.loss):
        return best
    last = loop.fitted(state, member, chosen)
    train, validation = train.sample(ENOUGH), validation.sample(ENOUGH)
    flattered = error(best, train) / FLATTERED
    if flattered <= error(best, validation):
        return best
    return last if max(error(last, validation), error(last, train) / FLATTERED) < flattered else best


def is_earlier(loop: Loop, state: RunState, member: int) -> bool:
    """Whether a member's best iterate is of an earlier stage, since no chunk of the last one has improved on it."""
    last, length = state.members[member], loop.programs(state.stage).length
    return state.stage > 0 and int(last.step) > 0 and int(last.stale) >= -(-int(last.step) // length)


def error(model: NeuralODE, data: Dataset) -> float:
    """The root of the mean squared error in scaled units; infinite where a prediction is not finite."""
    predicted, scaler = model.scaler.scale_states(model.predict(data)), model.scaler
    counted = data.mask
    off = (predicted - scaler.near(scaler.scale_states(data.ys), predicted))[counted]
    found = float(np.sqrt(np.mean(off**2))) if off.size else 0.0
    return found if np.isfinite(found) else np.inf
