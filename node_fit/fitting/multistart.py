"""What came of several starts: which found the same optimum, and which iterate validation data have judged."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.dataset import Dataset
from ..evaluation.metrics import jsonable
from ..model.neural_ode import NeuralODE
from ..training.callback import RunState, Status
from ..training.loop import Loop

# Losses that differ by less, relative to the best or absolutely, are of the same optimum.
SAME, EXACT_LOSS = 1e-2, 1e-10


@dataclass(frozen=True)
class Start:
    """A fit from one of several starts.

    - `status`: how it ended.
    - `loss`: the validation loss of its best iterate, or the training loss without validation data; infinite if there
      is none.
    - `constants`: its fitted constants.
    """

    status: Status
    loss: float
    constants: Mapping[str, float]


@dataclass(frozen=True)
class Starts:
    """Fits from several starts, of which the best was kept. The first began at the constants that were given.

    - `fits`: a `Start` for each, in their order.
    """

    fits: tuple[Start, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(each.loss for each in self.fits)

    @property
    def best(self) -> float:
        return min(each.loss for each in self.fits)

    @property
    def found(self) -> int:
        """How many have found the best optimum, up to 1 % of its loss."""
        limit = self.best * (1 + SAME) + EXACT_LOSS
        return sum(each.loss <= limit for each in self.fits) if math.isfinite(self.best) else 0

    @property
    def next_best(self) -> float | None:
        """The lowest loss of another optimum; None if there is none."""
        limit = self.best * (1 + SAME) + EXACT_LOSS
        return min((each.loss for each in self.fits if limit < each.loss < math.inf), default=None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; None for a loss that is not finite."""
        table = [
            {"start": index, "status": each.status, "loss": jsonable(each.loss), "constants": dict(each.constants)}
            for index, each in enumerate(self.fits)
        ]
        return {"found": self.found, "tolerance": SAME, "table": table}

    def __str__(self) -> str:
        other = "" if self.next_best is None else f"; the next optimum has {self.next_best:.3g}"
        return f"{self.found} of {len(self.fits)} starts found the best optimum, of loss {self.best:.3g}{other}"


# Validation data that a model fits better than its own training data by this factor do not stand for them.
FLATTERED = 3.0
# Trajectories that are enough to tell.
ENOUGH_VALUES = 64


def select_iterate(loop: Loop, state: RunState, member: int, train: Dataset, validation: Dataset | None) -> NeuralODE:
    """The best iterate of a member, or the last stage's, where few validation data favour one of an earlier stage.

    A derivative stage may end at a model that predicts two validation trajectories well and loses a training one. So an
    iterate's error counts as a third of that of the training data at least.

    **Arguments:** `loop`, `state`, `member`: a loop at its end. `train`, `validation`: its data.
    """
    best, chosen = loop.fitted(state, member), state.members[member].chosen
    if validation is None or not is_earlier(loop, state, member) or not np.isfinite(chosen.loss):
        return best
    last = loop.fitted(state, member, chosen)
    train, validation = train.sample(ENOUGH_VALUES), validation.sample(ENOUGH_VALUES)
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
