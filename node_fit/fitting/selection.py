"""Selects what a fit keeps: which iterate, which member, which of several restarts, and what came of the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..evaluation.metrics import jsonable
from ..model.neural_ode import NeuralODE
from ..runtime.serialization import Json
from ..training.callback import RunState, Status
from ..training.decisions import Outcome
from ..training.loop import Loop
from ..training.step import TrainState
from .problem import FitProblem

# Losses that differ by less, relative to the best or absolutely, are of the same optimum.
SAME, EXACT_LOSS = 1e-2, 1e-10


@dataclass(frozen=True)
class Restart:
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
class Restarts:
    """Fits from several starts, of which the best was kept. The first began at the constants that were given.

    - `fits`: a `Start` for each, in their order.
    """

    fits: tuple[Restart, ...]

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

    def as_dict(self) -> Json:
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


def select_iterate(problem: FitProblem, loop: Loop, state: RunState, member: int) -> NeuralODE:
    """The best iterate of a member, or the last stage's, where few validation data favour one of an earlier stage.

    A derivative stage may end at a model that predicts two validation trajectories well and loses a training one. So an
    iterate's error counts as a third of that of the training data at least.

    **Arguments:** `problem`: that was solved. `loop`, `state`, `member`: a loop at its end.
    """
    best, chosen = loop.fitted(state, member), state.members[member].chosen
    if problem.picking is None or not is_earlier(loop, state, member) or not np.isfinite(chosen.loss):
        return best
    last = loop.fitted(state, member, chosen)
    train, held = problem.errors(best)
    flattered = train / FLATTERED
    if flattered <= held:
        return best
    last_train, last_held = problem.errors(last)
    return last if max(last_held, last_train / FLATTERED) < flattered else best


def keeps_beginning(problem: FitProblem, model: NeuralODE) -> bool:
    """Whether the linear model that a fit began with describes all its data better than the model it has ended at.

    Training sees windows, and validation data may be few and from one regime: both may prefer a model that drifts away
    over whole records.
    """
    return problem.begins_linear and problem.pooled_error(problem.model) < problem.pooled_error(model)


def is_earlier(loop: Loop, state: RunState, member: int) -> bool:
    """Whether a member's best iterate is of an earlier stage, since no chunk of the last one has improved on it."""
    last, length = state.members[member], loop.programs(state.stage).length
    return state.stage > 0 and int(last.step) > 0 and int(last.stale) >= -(-int(last.step) // length)


def steps_to_best(loop: Loop, state: RunState, member: int) -> int:
    """Steps of the last stage after which a member's best iterate was reached; a chunk's, if an earlier one is best."""
    last, length = state.members[member], loop.programs(state.stage).length
    return max(int(last.step) - int(last.stale) * length, length)


def merge_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """How a run of several members ended: like the first that was interrupted, else the first that did not fail."""
    if len(outcomes) == 1:
        return outcomes[0]
    order: list[Status] = ["interrupted", "completed", "converged", "stopped", "failed"]
    first = min(outcomes, key=lambda outcome: order.index(outcome.status))
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in order}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return Outcome(first.status, f"{len(outcomes)} members: {said}; the first of these {first.reason}")


def restarts_of(problem: FitProblem, loop: Loop, state: RunState, among: range) -> Restarts:
    """What came of each of several restarts.

    **Arguments:** `among`: the problem's members, one for each restart and each weight of the prior.
    """
    validated, outcomes = problem.picking is not None, loop.outcomes(state)
    fits: list[Restart] = []
    weights = len(problem.ridges)
    for first in among[::weights]:
        best = select_member(state, range(first, first + weights), outcomes, validated=validated)
        unjudged, loss = rank_outcome(state.members[best], validated)
        outcome, model = outcomes[best], select_iterate(problem, loop, state, best)
        status = "interrupted" if outcome is None else outcome.status
        fits.append(Restart(status, math.inf if unjudged else loss, model.constants()))
    return Restarts(tuple(fits))


def select_member(
    state: RunState, among: Sequence[int], outcomes: Sequence[Outcome | None], *, validated: bool = False
) -> int:
    """The member that is best, of some; one that has failed is only if all have.

    A member may predict short validation data well from the start, and run away on the training data.
    """

    def rank(member: int) -> tuple[bool, bool, float]:
        outcome = outcomes[member]
        failed = outcome is not None and outcome.status == "failed"
        return failed, *rank_outcome(state.members[member], validated)

    return min(among, key=rank)


def rank_outcome(state: TrainState, validated: bool) -> tuple[bool, float]:
    """What members are ordered by: those without a finite validation loss come last, by their training loss.

    Where held steps were refined in the last chunk, the chosen iterate is the best.
    """
    best, chosen = float(state.best.loss), float(state.chosen.loss)
    if np.isfinite(best):
        return False, best
    return validated, chosen if np.isfinite(chosen) else np.inf
