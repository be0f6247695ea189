"""The decisions at the end of a chunk, for one member and on the host: best iterate, progress, restart."""

from dataclasses import replace
from typing import Any

import numpy as np

from ..solver.held_steps import Shares
from .stage import Stage
from .state import TrainState
from .step import HOPELESS, RESTARTS, restart
from .stopping import PROGRESS

# An objective that grows is complete after this fraction of its stage's steps.
GROWTH = 0.7
# A fit whose loss exceeds this multiple of its reference has diverged.
DIVERGED = 10.0


def judged(before: TrainState, after: TrainState, validation_loss: float | None) -> TrainState:
    """The state after a chunk with its best iterate and its counters brought up to date.

    **Arguments:**

    - `before`, `after`: the states before and after the chunk's steps.
    - `validation_loss`: of the chosen iterate; None if there are no validation data. Until one is finite, the iterate
      with the lowest training loss is the best, and its judged loss is infinite.
    """
    if before.finished:
        return replace(after, best=before.best, stale=before.stale, reference=before.reference, plateau=before.plateau)
    loss = after.chosen.loss
    judged_loss = loss if validation_loss is None else like(loss, validation_loss)
    falls = bool(loss < (1 - PROGRESS) * before.reference)
    unjudged = validation_loss is not None and not np.isfinite([before.best.loss, judged_loss]).any()
    better = falls if unjudged else bool(judged_loss < before.best.loss)
    return replace(
        after,
        best=replace(after.chosen, loss=judged_loss) if better else before.best,
        stale=like(before.stale, 0 if better else before.stale + 1),
        reference=loss if falls else before.reference,
        plateau=like(before.plateau, 0 if falls else before.plateau + 1),
    )


def restarted(stage: Stage, state: TrainState, blocks: int) -> TrainState:
    """The state, restarted from the best iterate with smaller steps if the chunk learnt nothing."""
    best, chosen = state.best.is_usable(blocks), state.chosen.is_usable(blocks)
    spent = state.finished or state.restarts >= RESTARTS
    if spent or state.rejected < HOPELESS or not (best or chosen):
        return state
    return restart(stage, state, state.best if best else state.chosen)


def let_go(state: TrainState) -> TrainState:
    """The state of a line search that came to the limit of the errors of held steps, which will be refined."""
    return replace(state, rejected=like(state.rejected, 0), stuck=like(state.stuck, False))


def at_lowest(state: TrainState, *, validated: bool) -> TrainState:
    """The state in which the stage's best iterate is the chosen one, where the training loss judges both.

    Once held steps are refined, losses on the old steps no longer compare, and the best iterate would be lost.
    """
    if validated or not state.best.loss < state.chosen.loss:
        return state
    return replace(state, chosen=state.best)


def has_diverged(state: TrainState) -> bool:
    """Whether the loss is far above its reference on the same held steps."""
    return bool(state.chosen.loss > DIVERGED * state.reference)


def renewed(
    stage: Stage,
    state: TrainState,
    grid: Shares | None,
    error_limit: Any,
    *,
    refined: bool,
    length: int,
    validated: bool,
) -> TrainState:
    """The state for the next chunk, whose objective may have grown or have refined steps.

    **Arguments:**

    - `state`: the state from `judged` and `restarted`.
    - `grid`, `error_limit`: held steps for the next chunk. `refined`: whether they differ from the last ones.
    - `length`: steps in a chunk.
    - `validated`: whether there are validation data.
    """
    grows = stage.objective.grows and bool(state.progress < 1)
    if not (refined or grows):
        return state
    state = replace(state, grid=grid, error_limit=error_limit)
    if state.finished:
        return state
    state = at_lowest(state, validated=validated)
    infinite, zero = like(state.reference, np.inf), like(state.plateau, 0)
    # Values of the last objective would mislead the optimizer and the stopping rules.
    reference = state.reference if has_diverged(state) and not grows else infinite
    if grows:
        progress = np.minimum(state.progress + length / (GROWTH * stage.steps), 1.0)
        state = replace(
            state, progress=like(state.progress, progress), plateau=zero, stale=zero, stuck=like(state.stuck, False)
        )
    if not validated:
        state = replace(state, best=replace(state.chosen, loss=infinite))
    opt_state = stage.optimizer.reopen(state.opt_state)
    return replace(state, params=state.chosen.params, reference=reference, opt_state=opt_state)


def like(leaf: Any, value: Any) -> np.ndarray:
    """A number as an array with the dtype of a leaf."""
    return np.asarray(value, leaf.dtype)
