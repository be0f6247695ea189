"""When a stage has ended for a member of a run, and why."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .objectives import AbstractSimulation
from .observer import Status
from .stage import Stage
from .training import HOPELESS, RESTARTS, TrainState

# Progress that counts: the training loss falls by this fraction ...
PROGRESS = 1e-3
# ... within so many chunks.
PLATEAU = 5
NOTHING_SOLVED = "not one trajectory could be simulated to its end"
ADVICE = "check the scale of the data, loosen the tolerances, or choose an implicit solver for a stiff system"


@dataclass(frozen=True)
class End:
    """How a member's run ended: `status`, and the `reason` in a sentence."""

    status: Status
    reason: str


class Counters(NamedTuple):
    """What decides whether a stage goes on: numbers of a `TrainState`, on the host, for one member or for all.

    - `best`, `chosen`: the losses of these iterates; `best_unsolved`, `chosen_unsolved`: their solves that failed.
    """

    step: Any
    progress: Any
    evaluations: Any
    failed: Any
    rejected: Any
    stale: Any
    plateau: Any
    done: Any
    over: Any
    best: Any
    best_unsolved: Any
    chosen: Any
    chosen_unsolved: Any

    @staticmethod
    def of(state: TrainState) -> "Counters":
        return Counters(
            state.step,
            state.progress,
            state.evaluations,
            state.failed,
            state.rejected,
            state.stale,
            state.plateau,
            state.done,
            state.over,
            state.best.loss,
            state.best.unsolved,
            state.chosen.loss,
            state.chosen.unsolved,
        )

    def nothing_solved(self, blocks: int) -> bool:
        """Whether neither iterate solved one of so many blocks."""
        pairs = ((self.best, self.best_unsolved), (self.chosen, self.chosen_unsolved))
        return all(not np.isfinite(loss) or unsolved >= blocks for loss, unsolved in pairs)


def end_of(stage: Stage, at: Counters, blocks: int, patience: int | None) -> End | None:
    """How a stage has ended for one member; None while it goes on.

    **Arguments:**

    - `stage`: that it is in. `at`: where it is.
    - `blocks`: how many solves an evaluation takes.
    - `patience`: chunks without a better validation loss that are waited for; None without validation data.
    """
    if at.over and at.step == 0:
        return End("failed", "failed in an earlier stage")
    if at.evaluations > 0 and not (np.isfinite(at.best) or np.isfinite(at.chosen)):
        return End(
            "failed",
            f"no loss was finite in the first {at.evaluations} evaluations ({at.failed} failed solves); {ADVICE}",
        )
    reason = why_over(stage, at, patience)
    if reason is None:
        return None
    if at.nothing_solved(blocks):
        return End("failed", f"{NOTHING_SOLVED}; {ADVICE}")
    return End("completed" if at.step >= stage.steps else "stopped_early", reason)


def why_over(stage: Stage, at: Counters, patience: int | None) -> str | None:
    if at.step >= stage.steps:
        return f"took all {stage.steps} steps of stage {stage.name}"
    grown = not grows(stage) or at.progress >= 1
    if at.done and grown:
        return "the line search finds no lower training loss, not even along the gradient"
    if at.rejected >= HOPELESS:
        return (
            f"{HOPELESS} evaluations in a row were not finite or solved nothing, and again after {RESTARTS} "
            "returns to the best iterate with smaller steps; lower the learning rate, or check the field for "
            "roots, logarithms and divisions"
        )
    if patience is not None and at.stale >= patience:
        return f"the validation loss has not improved for {patience} chunks"
    if grown and stage.optimizer.full_batch and at.plateau >= PLATEAU:
        return f"the training loss has stalled: less than {PROGRESS:.1%} lower in {PLATEAU} chunks"
    return None


def grows(stage: Stage) -> bool:
    return isinstance(stage.objective, AbstractSimulation) and stage.objective.grows
