"""Decisions on the host at the end of a chunk: best iterate, progress, restart, whether to stop, finer held steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, PyTree

from ..runtime.placement import AnyArray, Placement
from ..solver.held_steps import ERROR_SAFETY, Shares, most_between_rows, pad_grid, room
from ..solver.solver import Solver
from .callback import Status
from .step import HOPELESS_STEPS, RESTARTS, Params, TrainState, restart
from .task import Stage, stack

# Minimum relative decrease of the training loss that counts as progress ...
PROGRESS = 1e-3
# ... within this many chunks.
PLATEAU = 5
NOTHING_SOLVED = "not one trajectory could be simulated to its end"
ADVICE = "check the scale of the data, loosen the tolerances, or choose an implicit solver for a stiff system"


def too_few_steps(most: int, error: float) -> str:
    """Formats a warning that the errors of held steps far exceed the tolerance since their number is limited.

    **Arguments:** `most`: `max_steps` of the solver. `error`: the maximum error of a step, over its tolerance.
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
    """Returns how a stage ended for one member; None if it has not.

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
    outcome = why_finished(stage, state, patience)
    if outcome is None:
        return None
    if not (state.best.is_usable(blocks) or state.chosen.is_usable(blocks)):
        return Outcome("failed", f"{NOTHING_SOLVED}; {ADVICE}")
    return outcome


def why_finished(stage: Stage, state: TrainState, patience: int | None) -> Outcome | None:
    """Returns how a stage ended if at least one solve succeeded; None if it has not."""
    if state.step >= stage.steps:
        return Outcome("completed", f"took all {stage.steps} steps of stage {stage.name}")
    grown = not stage.objective.grows or state.progress >= 1
    if state.stuck and grown:
        return Outcome("converged", stage.optimizer.why_stuck)
    if state.rejected >= HOPELESS_STEPS:
        return Outcome(
            "stopped",
            f"{HOPELESS_STEPS} evaluations in a row were not finite or solved nothing, and again after {RESTARTS} "
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


# Fraction of a stage's steps after which a growing objective is complete.
DIVERGED_GROWTH = 0.7
# Multiple of the reference loss above which a fit has diverged.
DIVERGED = 10.0


def judge_chunk(before: TrainState, after: TrainState, validation_loss: float | None) -> TrainState:
    """Updates the best iterate and the counters of the state after a chunk.

    **Arguments:**

    - `before`, `after`: the states before and after the chunk's steps.
    - `validation_loss`: that of the chosen iterate; None without validation data. Until one is finite, the iterate with
      the lowest training loss is the best, and its judged loss is infinite.
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


def restart_line_search(stage: Stage, state: TrainState, blocks: int) -> TrainState:
    """Restarts from the best iterate with smaller steps if the chunk made no progress."""
    best, chosen = state.best.is_usable(blocks), state.chosen.is_usable(blocks)
    spent = state.finished or state.restarts >= RESTARTS
    if spent or state.rejected < HOPELESS_STEPS or not (best or chosen):
        return state
    return restart(stage, state, state.best if best else state.chosen)


def forget_failures(state: TrainState) -> TrainState:
    """Clears the failures of a line search that reached the error limit of held steps, which will be refined."""
    return replace(state, rejected=like(state.rejected, 0), stuck=like(state.stuck, False))


def return_to_best(state: TrainState, *, validated: bool) -> TrainState:
    """Makes the stage's best iterate the chosen one if the training loss judges both.

    Once held steps are refined, losses on the old steps no longer compare, and the best iterate would be lost.
    """
    if validated or not state.best.loss < state.chosen.loss:
        return state
    return replace(state, chosen=state.best)


def has_diverged(state: TrainState) -> bool:
    """Whether the loss is far above its reference on the same held steps."""
    return bool(state.chosen.loss > DIVERGED * state.reference)


def renew(
    stage: Stage,
    state: TrainState,
    grid: Shares | None,
    error_limit: AnyArray,
    *,
    refined: bool,
    length: int,
    validated: bool,
) -> TrainState:
    """Returns the state for the next chunk, after growth of the objective or refinement of its steps.

    **Arguments:**

    - `state`: the state from `judge_chunk` and `restart_line_search`.
    - `grid`, `error_limit`: held steps for the next chunk. `refined`: whether they differ from the last ones.
    - `length`: steps in a chunk.
    - `validated`: whether validation data exist.
    """
    grows = stage.objective.grows and bool(state.progress < 1)
    if not (refined or grows):
        return state
    state = replace(state, grid=grid, error_limit=error_limit)
    if state.finished:
        return state
    state = return_to_best(state, validated=validated)
    infinite, zero = like(state.reference, np.inf), like(state.plateau, 0)
    # Values of the last objective would mislead the optimizer and the stopping rules.
    reference = state.reference if has_diverged(state) and not grows else infinite
    if grows:
        progress = np.minimum(state.progress + length / (DIVERGED_GROWTH * stage.steps), 1.0)
        state = replace(
            state, progress=like(state.progress, progress), plateau=zero, stale=zero, stuck=like(state.stuck, False)
        )
    if not validated:
        state = replace(state, best=replace(state.chosen, loss=infinite))
    opt_state = stage.optimizer.reopen(state.opt_state)
    return replace(state, params=state.chosen.params, reference=reference, opt_state=opt_state)


def like(leaf: AnyArray, value: float | int | bool | AnyArray) -> np.ndarray:
    """Converts a number to an array with the dtype of a leaf."""
    return np.asarray(value, leaf.dtype)


# Maximum total number of steps up to which arrays are padded, which costs memory.
ROOMY = 1 << 19


@runtime_checkable
class HasPlace(Protocol):
    """The part of a run's setup that is used here."""

    @property
    def place(self) -> Placement: ...


@runtime_checkable
class HeldSteps(Protocol):
    """The part of a stage's programs that is used here; see `StagePrograms`."""

    @property
    def blocks(self) -> int: ...
    @property
    def rows(self) -> Sequence[PyTree]: ...
    @property
    def stage(self) -> Stage: ...
    @property
    def setup(self) -> HasPlace: ...
    def step_errors(self, params: PyTree, grid: np.ndarray, progress: AnyArray) -> np.ndarray: ...


def held_solver_of(programs: HeldSteps) -> Solver:
    """Returns the solver of a stage that has held steps."""
    solver = programs.stage.objective.held_solver
    assert solver is not None
    return solver


def pad_to_room(programs: HeldSteps, grid: Shares | None) -> Shares | None:
    """Pads held steps to the array size that all programs share.

    **Arguments:** `programs`: the `StagePrograms` that read the array.
    """
    objective = programs.stage.objective
    solver, between = objective.held_solver, objective.steps_between_rows(programs.rows[0])
    # The scan of `direct` takes all steps.
    if grid is None or solver is None or between or solver.held_adjoint == "direct":
        return grid
    # Simultaneous steps include the padding.
    tight = solver.may_march_together(programs.setup.place.own_device.platform)
    steps = room(grid.shape[-1] - 1, tight=tight)
    return pad_grid(grid, steps) if programs.blocks * steps <= ROOMY else grid


def keeps_shape(programs: HeldSteps, grid: Shares | None) -> bool:
    """Whether the arrays of held steps, if any, keep their shape after refinement."""
    return grid is None or programs.stage.objective.held_solver is None or pad_to_room(programs, grid) is not grid


# Maximum errors of held steps in a line search: this multiple of the tolerance, or this multiple of their value at the
# last refinement, whichever is larger.
LIMIT, ERROR_GROWTH = 100.0, 10.0
# Share of that limit above which a line search that ends has reached it.
NEAR = 0.5


class StepErrors:
    """Errors of a stage's held steps, relative to their tolerance.

    **Arguments:**

    - `programs`: the `StagePrograms` of the stage.
    - `params`, `progress`: those of each member, on the host.
    - `idle`: for each member, whether its errors always count as within the tolerance.
    """

    def __init__(
        self, programs: HeldSteps, params: Sequence[Params], progress: Sequence[AnyArray], idle: Sequence[bool]
    ):
        place, members = programs.setup.place, len(params)
        put = place.shard if members > 1 else place.replicate
        self.programs = programs
        self.members = members
        self.order = held_solver_of(programs).error_order
        self.params, self.progress = put(stack(list(zip(params, progress, strict=True))))
        self.idle = np.array(idle)
        self.last: Float[np.ndarray, "member block step"] = np.zeros((members, 1, 1))

    @staticmethod
    def at_states(programs: HeldSteps, states: Sequence[TrainState], *, fresh: bool) -> "StepErrors":
        """Makes the errors at the members' chosen iterates or, if `fresh`, at their current parameters."""
        # A waiting or diverged member must not shorten the steps of the others; accurate solves of a diverged fit are
        # useless anyway.
        waits = [len(states) > 1 and bool(state.finished or state.chosen.failed_solves > 0) for state in states]
        idle = [has_diverged(state) or wait for state, wait in zip(states, waits, strict=True)]
        params = [state.params if fresh else state.chosen.params for state in states]
        return StepErrors(programs, params, [state.progress for state in states], idle)

    def of(self, grid: np.ndarray) -> Float[np.ndarray, "member block interval"]:
        """Computes the errors of steps between rows, the maximum in each interval."""
        errors = self.programs.step_errors(self.params, grid, self.progress)
        return self._judge(errors.reshape(self.members, -1, errors.shape[-1]))

    def of_padded(self, nodes: Shares, like: np.ndarray) -> Float[np.ndarray, "row step"]:
        """Computes the errors of steps over trajectories, in rows of all members; `like` has the programs' shape."""
        steps = nodes.shape[1] - 1
        roomy = pad_grid(nodes, room(steps)).reshape(*like.shape[:-1], -1)
        errors = self.programs.step_errors(self.params, roomy, self.progress)
        errors = errors[..., :steps].reshape(self.members, -1, steps)
        if like.shape[-2] == 1:  # All trajectories share these steps.
            errors = errors.max(axis=1, keepdims=True)
        return self._judge(errors).reshape(-1, steps)

    def limits(self) -> list[float]:
        """Computes the errors above which each member's loss counts as infinite, from the last errors."""
        worst = np.where(np.isfinite(self.last), self.last, np.inf).max(axis=(1, 2))
        return [max(LIMIT, ERROR_GROWTH * float(error)) for error in worst]

    def _judge(self, errors: np.ndarray) -> np.ndarray:
        self.last = np.where(self.idle[:, None, None], ERROR_SAFETY**self.order, errors)
        return self.last


def excess(programs: HeldSteps, states: Sequence[TrainState]) -> list[float]:
    """Computes each member's maximum error of a held step over its tolerance, at its best iterate, if the solver allows
    no more steps; else 0.

    Failed solves do not count, since no number of steps would help.
    """
    if not (holds_steps(programs, states) and at_most_steps(programs, states)):
        return [0.0] * len(states)
    errors = find_step_errors(programs, states, [state.best.params for state in states])
    solved = np.isfinite(errors).all(axis=2, keepdims=True)
    return np.where(solved, errors, 0).max(axis=(1, 2)).tolist()


def hold_back(programs: HeldSteps, states: Sequence[TrainState]) -> list[bool]:
    """Whether each member's chunk ended because its line search reached the error limit of held steps.

    The search can continue once the steps are refined, if that is still possible.
    """
    ended = [bool(state.stuck or state.rejected >= HOPELESS_STEPS) and not state.finished for state in states]
    if not (any(ended) and holds_steps(programs, states)) or at_most_steps(programs, states):
        return [False] * len(states)
    errors = find_step_errors(programs, states, [state.chosen.params for state in states]).max(axis=(1, 2))
    limits = np.array([state.error_limit for state in states])
    return [end and bool(near) for end, near in zip(ended, errors >= NEAR * limits, strict=True)]


def find_step_errors(
    programs: HeldSteps, states: Sequence[TrainState], params: Sequence[Params]
) -> Float[np.ndarray, "member block step"]:
    """Computes the errors of each member's held steps at other parameters."""
    errors = StepErrors(programs, params, [state.progress for state in states], [False] * len(states))
    grid = stack([state.grid for state in states])
    if programs.stage.objective.steps_between_rows(programs.rows[0]):
        errors.of(grid)
    else:
        errors.of_padded(grid.reshape(-1, grid.shape[-1]), grid)
    return errors.last


def holds_steps(programs: HeldSteps, states: Sequence[TrainState]) -> bool:
    return programs.stage.objective.held_solver is not None and states[0].grid is not None


def at_most_steps(programs: HeldSteps, states: Sequence[TrainState]) -> bool:
    """Whether the number of held steps has reached the solver's maximum."""
    objective, most = programs.stage.objective, held_solver_of(programs).max_steps
    most = most_between_rows(most) if objective.steps_between_rows(programs.rows[0]) else most
    return states[0].nodes - 1 >= most


def even_nodes(like: np.ndarray, steps: int) -> np.ndarray:
    """Makes a grid of this many equal steps, in the shape of another grid except for the last axis."""
    return np.broadcast_to(np.linspace(0, 1, steps + 1), (*like.shape[:-1], steps + 1)).copy()
