"""Selects the iterate, member and restart that a fit keeps, and records the others."""

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

# Relative and absolute differences in loss within which two fits belong to the same optimum.
SAME, EXACT_LOSS = 1e-2, 1e-10


@dataclass(frozen=True)
class Restart:
    """A fit from one of several starts.

    - `status`: final status.
    - `loss`: the validation loss of its best iterate, or the training loss without validation data; infinite if neither
      exists.
    - `constants`: its fitted constants.
    """

    status: Status
    loss: float
    constants: Mapping[str, float]


@dataclass(frozen=True)
class Restarts:
    """Fits from several starts; the best was kept, and the first began at the specified constants.

    - `fits`: a `Restart` for each start, in order.
    """

    fits: tuple[Restart, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(restart.loss for restart in self.fits)

    @property
    def best(self) -> float:
        return min(restart.loss for restart in self.fits)

    @property
    def found(self) -> int:
        """Number of fits that reached the best optimum, within 1 % of its loss."""
        limit = self.best * (1 + SAME) + EXACT_LOSS
        return sum(restart.loss <= limit for restart in self.fits) if math.isfinite(self.best) else 0

    @property
    def next_best(self) -> float | None:
        """The lowest loss of another optimum; None if no other was found."""
        limit = self.best * (1 + SAME) + EXACT_LOSS
        return min((restart.loss for restart in self.fits if limit < restart.loss < math.inf), default=None)

    def as_dict(self) -> Json:
        """Converts to JSON; None for a non-finite loss."""
        table = [
            {
                "start": index,
                "status": restart.status,
                "loss": jsonable(restart.loss),
                "constants": dict(restart.constants),
            }
            for index, restart in enumerate(self.fits)
        ]
        return {"found": self.found, "tolerance": SAME, "table": table}

    def __str__(self) -> str:
        next_optimum = "" if self.next_best is None else f"; the next optimum has {self.next_best:.3g}"
        return f"{self.found} of {len(self.fits)} starts found the best optimum, of loss {self.best:.3g}{next_optimum}"


# Validation data are not representative if a model fits them better than its training data by this factor.
FLATTERED = 3.0


def select_iterate(problem: FitProblem, loop: Loop, state: RunState, member: int) -> NeuralODE:
    """Returns the best iterate of a member, or the last stage's if few validation data favour an earlier stage.

    A derivative stage can end at a model that predicts two validation trajectories well but loses a training one. So an
    iterate's error counts as at least a third of its error on the training data.

    **Arguments:** `problem`: the solved problem. `loop`, `state`, `member`: a finished loop.
    """
    best, chosen = loop.fitted_model(state, member), state.members[member].chosen
    if problem.selection_data is None or not is_earlier(loop, state, member) or not np.isfinite(chosen.loss):
        return best
    last = loop.fitted_model(state, member, chosen)
    train, held = problem.errors(best)
    flattered = train / FLATTERED
    if flattered <= held:
        return best
    last_train, last_held = problem.errors(last)
    return last if max(last_held, last_train / FLATTERED) < flattered else best


def keeps_beginning(problem: FitProblem, model: NeuralODE) -> bool:
    """Whether the initial linear model of a fit describes all data better than the final model.

    Training only sees windows, and validation data can be few and from one regime. Both can prefer a model that drifts
    away over whole records.
    """
    return problem.begins_linear and problem.pooled_error(problem.model) < problem.pooled_error(model)


def is_earlier(loop: Loop, state: RunState, member: int) -> bool:
    """Whether a member's best iterate is from an earlier stage, because no chunk of the last stage improved on it."""
    last, length = state.members[member], loop.programs(state.stage).length
    return state.stage > 0 and int(last.step) > 0 and int(last.stale) >= -(-int(last.step) // length)


def steps_to_best(loop: Loop, state: RunState, member: int) -> int:
    """Returns the steps of the last stage up to a member's best iterate; one chunk if an earlier stage is best."""
    last, length = state.members[member], loop.programs(state.stage).length
    return max(int(last.step) - int(last.stale) * length, length)


def merge_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """Summarizes how a run of several members ended: as its first interrupted member, else the first not failed."""
    if len(outcomes) == 1:
        return outcomes[0]
    order: list[Status] = ["interrupted", "completed", "converged", "stopped", "failed"]
    first = min(outcomes, key=lambda outcome: order.index(outcome.status))
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in order}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return Outcome(first.status, f"{len(outcomes)} members: {summary}; the first of these {first.reason}")


def restarts_of(problem: FitProblem, loop: Loop, state: RunState, among: range) -> Restarts:
    """Returns the results of several restarts.

    **Arguments:** `among`: the problem's members, one for each restart and weight of the prior.
    """
    validated, outcomes = problem.selection_data is not None, loop.outcomes(state)
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
    """Returns the best of some members; a failed one only if all failed.

    A member can predict short validation data well from the start and still run away on the training data.
    """

    def rank(member: int) -> tuple[bool, bool, float]:
        outcome = outcomes[member]
        failed = outcome is not None and outcome.status == "failed"
        return failed, *rank_outcome(state.members[member], validated)

    return min(among, key=rank)


def rank_outcome(state: TrainState, validated: bool) -> tuple[bool, float]:
    """Returns the sort key of a member: those without a finite validation loss come last, by training loss.

    If fixed steps were refined in the last chunk, the chosen iterate is the best.
    """
    best, chosen = float(state.best.loss), float(state.chosen.loss)
    if np.isfinite(best):
        return False, best
    return validated, chosen if np.isfinite(chosen) else np.inf
