"""Decides when a stage has ended for a member of a run, and why."""

from dataclasses import dataclass

import numpy as np

from .callback import Status
from .stage import Stage
from .state import TrainState
from .step import HOPELESS, RESTARTS

# Progress that counts: the training loss falls by this fraction ...
PROGRESS = 1e-3
# ... within this many chunks.
PLATEAU = 5
NOTHING_SOLVED = "not one trajectory could be simulated to its end"
ADVICE = "check the scale of the data, loosen the tolerances, or choose an implicit solver for a stiff system"


def too_few_steps(most: int, error: float) -> str:
    """Says that held steps have errors far above the tolerance, since there may be no more of them.

    **Arguments:** `most`: `max_steps` of the solver. `error`: the largest of a step, over its tolerance.
    """
    return (
        f"training solves take the most steps that they may (solver.max_steps={most}), and their errors are up to "
        f"{float(f'{error:.2g}'):g} times the tolerance; raise solver.max_steps, loosen solver.rtol, or use "
        "solver=kvaerno5 if the system is stiff"
    )


@dataclass(frozen=True)
class Outcome:
    """How a member's run ended: `status`, and the `reason` in a sentence."""

    status: Status
    reason: str


def outcome_of(stage: Stage, state: TrainState, blocks: int, patience: int | None) -> Outcome | None:
    """How a stage ended for one member; None if it has not.

    **Arguments:**

    - `stage`, `state`: the stage, and the member's state in it, on the host.
    - `blocks`: number of solves in an evaluation.
    - `patience`: number of chunks without a better validation loss to wait for; None without validation data.
    """
    if state.finished and state.step == 0:
        return Outcome("failed", "failed in an earlier stage")
    if state.evaluations > 0 and not (state.best.is_evaluated or state.chosen.is_evaluated):
        return Outcome(
            "failed",
            f"no loss was finite in the first {state.evaluations} evaluations ({state.failed} failed solves); {ADVICE}",
        )
    found = why_finished(stage, state, patience)
    if found is None:
        return None
    if not (state.best.is_usable(blocks) or state.chosen.is_usable(blocks)):
        return Outcome("failed", f"{NOTHING_SOLVED}; {ADVICE}")
    return found


def why_finished(stage: Stage, state: TrainState, patience: int | None) -> Outcome | None:
    """How a stage of which something could be solved has ended; None if it has not."""
    if state.step >= stage.steps:
        return Outcome("completed", f"took all {stage.steps} steps of stage {stage.name}")
    grown = not stage.objective.grows or state.progress >= 1
    if state.stuck and grown:
        return Outcome("converged", stage.optimizer.why_stuck)
    if state.rejected >= HOPELESS:
        return Outcome(
            "stopped",
            f"{HOPELESS} evaluations in a row were not finite or solved nothing, and again after {RESTARTS} "
            "returns to the best iterate with smaller steps; lower the learning rate, or check the field for "
            "roots, logarithms and divisions",
        )
    if patience is not None and state.stale >= patience and not np.isfinite(state.best.loss):
        said = f"no validation loss was finite, and the training loss has not fallen for {patience} chunks"
        return Outcome("stopped", said)
    if patience is not None and state.stale >= patience:
        return Outcome("stopped", f"the validation loss has not improved for {patience} chunks")
    if grown and stage.optimizer.full_batch and state.plateau >= PLATEAU:
        return Outcome(
            "converged", f"the training loss has stalled: less than {PROGRESS:.1%} lower in {PLATEAU} chunks"
        )
    return None
