"""Room for more held steps in the arrays of a program, which is then not compiled again for them."""

from typing import Any

from ..solver.held_steps import Shares, padded, room

# Steps of all trajectories up to which there is room for more of them, which costs memory.
ROOMY = 1 << 19


def roomy(programs: Any, grid: Shares | None) -> Shares | None:
    """Held steps in an array of the size that all programs share.

    **Arguments:** `programs`: the `StagePrograms` that read it.
    """
    objective = programs.stage.objective
    solver, between = objective.held_solver, objective.steps_between_rows(programs.rows[0])
    # A scan, which `direct` asks for, takes all steps.
    if grid is None or solver is None or between or solver.held_adjoint == "direct":
        return grid
    steps = room(grid.shape[-1] - 1)
    return padded(grid, steps) if programs.blocks * steps <= ROOMY else grid


def keeps_shape(programs: Any, grid: Shares | None) -> bool:
    """Whether the arrays of held steps, if there are any, are the same after steps are refined."""
    return grid is None or programs.stage.objective.held_solver is None or roomy(programs, grid) is not grid
