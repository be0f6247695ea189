"""The refinement of held steps: their estimated errors at a chunk's end, and room for more in a program's arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..solver.held_steps import ERROR_SAFETY, Shares, most_between_rows, pad_grid, room
from .decisions import has_diverged
from .members import stack
from .state import Params, TrainState
from .step import HOPELESS_STEPS

# Steps of all trajectories up to which there is room for more of them, which costs memory.
ROOMY = 1 << 19


def pad_to_room(programs: Any, grid: Shares | None) -> Shares | None:
    """Held steps in an array of the size that all programs share.

    **Arguments:** `programs`: the `StagePrograms` that read it.
    """
    objective = programs.stage.objective
    solver, between = objective.held_solver, objective.steps_between_rows(programs.rows[0])
    # A scan, which `direct` asks for, takes all steps.
    if grid is None or solver is None or between or solver.held_adjoint == "direct":
        return grid
    steps = room(grid.shape[-1] - 1)
    return pad_grid(grid, steps) if programs.blocks * steps <= ROOMY else grid


def keeps_shape(programs: Any, grid: Shares | None) -> bool:
    """Whether the arrays of held steps, if there are any, are the same after steps are refined."""
    return grid is None or programs.stage.objective.held_solver is None or pad_to_room(programs, grid) is not grid


# A line search may go where the errors of held steps reach this multiple of the tolerance, or this multiple of their
# value when the steps were refined, whichever is larger.
LIMIT, ERROR_GROWTH = 100.0, 10.0
# The share of that limit from which a line search that ends is taken to have come to it.
NEAR = 0.5


class StepErrors:
    """Errors of a stage's held steps, relative to their tolerance.

    **Arguments:**

    - `programs`: the `StagePrograms` of the stage.
    - `params`, `progress`: each member's, on the host.
    - `idle`: for each member whether its errors count as being within the tolerance, whatever they are.
    """

    def __init__(self, programs: Any, params: Sequence[Params], progress: Sequence[Any], idle: Sequence[bool]):
        place, members = programs.setup.place, len(params)
        put = place.shard if members > 1 else place.replicate
        self.programs = programs
        self.members = members
        self.order = programs.stage.objective.held_solver.error_order
        self.params, self.progress = put(stack(list(zip(params, progress, strict=True))))
        self.idle = np.array(idle)
        self.last: Float[np.ndarray, "member block step"] = np.zeros((members, 1, 1))

    @staticmethod
    def at_states(programs: Any, states: Sequence[TrainState], *, fresh: bool) -> "StepErrors":
        """At members' chosen iterates; or, if `fresh`, where they are."""
        # A member that waits, or that diverges, makes no steps shorter for all others; and nothing is learnt from where
        # a fit has diverged, however well that is solved.
        waits = [len(states) > 1 and bool(state.finished or state.chosen.failed_solves > 0) for state in states]
        idle = [has_diverged(state) or wait for state, wait in zip(states, waits, strict=True)]
        params = [state.params if fresh else state.chosen.params for state in states]
        return StepErrors(programs, params, [state.progress for state in states], idle)

    def of(self, grid: np.ndarray) -> Float[np.ndarray, "member block interval"]:
        """The errors of steps between rows, the largest in each interval."""
        errors = self.programs.step_errors(self.params, grid, self.progress)
        return self._judged(errors.reshape(self.members, -1, errors.shape[-1]))

    def of_padded(self, nodes: Shares, like: np.ndarray) -> Float[np.ndarray, "row step"]:
        """The errors of steps over trajectories, in rows of all members; `like` is a grid of the programs' shape."""
        steps = nodes.shape[1] - 1
        roomy = pad_grid(nodes, room(steps)).reshape(*like.shape[:-1], -1)
        errors = self.programs.step_errors(self.params, roomy, self.progress)
        errors = errors[..., :steps].reshape(self.members, -1, steps)
        if like.shape[-2] == 1:  # All trajectories share these steps.
            errors = errors.max(axis=1, keepdims=True)
        return self._judged(errors).reshape(-1, steps)

    def limits(self) -> list[float]:
        """The errors above which each member's loss counts as infinite, from the last errors."""
        worst = np.where(np.isfinite(self.last), self.last, np.inf).max(axis=(1, 2))
        return [max(LIMIT, ERROR_GROWTH * float(error)) for error in worst]

    def _judged(self, errors: np.ndarray) -> np.ndarray:
        self.last = np.where(self.idle[:, None, None], ERROR_SAFETY**self.order, errors)
        return self.last


def excess(programs: Any, states: Sequence[TrainState]) -> list[float]:
    """Each member's largest error of a held step over its tolerance, at its best iterate, where the solver allows no
    more steps; 0 elsewhere.

    Blocks that can't be solved do not count: no number of steps would help.
    """
    if not (holds_steps(programs, states) and at_most_steps(programs, states)):
        return [0.0] * len(states)
    errors = find_step_errors(programs, states, [state.best.params for state in states])
    solved = np.isfinite(errors).all(axis=2, keepdims=True)
    return np.where(solved, errors, 0).max(axis=(1, 2)).tolist()


def hold_back(programs: Any, states: Sequence[TrainState]) -> list[bool]:
    """Whether each member's chunk ended since its line search came to the limit of the errors of held steps.

    It can go further once the steps are refined, which must still be possible.
    """
    ended = [bool(state.stuck or state.rejected >= HOPELESS_STEPS) and not state.finished for state in states]
    if not (any(ended) and holds_steps(programs, states)) or at_most_steps(programs, states):
        return [False] * len(states)
    errors = find_step_errors(programs, states, [state.chosen.params for state in states]).max(axis=(1, 2))
    limits = np.array([state.error_limit for state in states])
    return [end and bool(near) for end, near in zip(ended, errors >= NEAR * limits, strict=True)]


def find_step_errors(
    programs: Any, states: Sequence[TrainState], params: Sequence[Params]
) -> Float[np.ndarray, "member block step"]:
    """The errors of each member's held steps at other parameters."""
    errors = StepErrors(programs, params, [state.progress for state in states], [False] * len(states))
    grid = stack([state.grid for state in states])
    if programs.stage.objective.steps_between_rows(programs.rows[0]):
        errors.of(grid)
    else:
        errors.of_padded(grid.reshape(-1, grid.shape[-1]), grid)
    return errors.last


def holds_steps(programs: Any, states: Sequence[TrainState]) -> bool:
    return programs.stage.objective.held_solver is not None and states[0].grid is not None


def at_most_steps(programs: Any, states: Sequence[TrainState]) -> bool:
    """Whether there are as many held steps as the solver allows."""
    objective, most = programs.stage.objective, programs.stage.objective.held_solver.max_steps
    most = most_between_rows(most) if objective.steps_between_rows(programs.rows[0]) else most
    return states[0].nodes - 1 >= most


def even_nodes(like: np.ndarray, steps: int) -> np.ndarray:
    """A grid of this many equal steps, in the shape of another grid except for the last axis."""
    return np.broadcast_to(np.linspace(0, 1, steps + 1), (*like.shape[:-1], steps + 1)).copy()
