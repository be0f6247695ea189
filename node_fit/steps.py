"""Held steps, made anew where they no longer keep to the tolerance."""

from dataclasses import replace

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from . import grid as grids
from .compilation import PROGRAMS, Compilations
from .objectives import AbstractSimulation
from .processes import to_host
from .stage import Stage
from .supply import Supply
from .training import TrainState, step_errors

# A fit whose loss is so many times what it was has gone astray.
ASTRAY = 10.0


def astray(state: TrainState) -> np.ndarray:
    """Which members have gone to where the loss is far above what it was on steps like these."""
    return np.asarray(state.chosen.loss > ASTRAY * state.mark)


def settled(supply: Supply, stage: Stage, model_static: PyTree, state: TrainState, fresh: bool) -> TrainState:
    """The state with steps that keep to the tolerance.

    **Arguments:**

    - `supply`, `stage`, `model_static`: of the stage, and the part of the model that is no array.
    - `state`: on the host.
    - `fresh`: for the parameters where it is, and not for the chosen ones.
    """
    objective, crew = stage.objective, supply.crew
    if not isinstance(objective, AbstractSimulation) or objective.error_order is None or state.grid is None:
        return state
    order, most = objective.error_order, objective.solver.max_steps
    put = supply.place.spread if crew.size > 1 else supply.place
    params, progress = put((state.params if fresh else state.chosen.params, state.progress))
    static = (model_static, eqx.partition(stage, eqx.is_array_like)[1])
    before = state.grid
    # A member that waits, or that runs away, makes no steps shorter for all others; and nothing is learnt from where a
    # fit has gone astray, however well that is solved.
    idle = ((state.over | (state.chosen.unsolved > 0)) & (crew.size > 1)) | astray(state)

    def errors_of(nodes: np.ndarray) -> np.ndarray:
        steps = nodes.shape[1] - 1
        room = grids.padded(nodes, grids.room(steps)).reshape(*before.shape[:-1], -1)
        arguments = (params, supply.place.spread(room), progress, supply.own, supply.shared)
        axes = crew.axes(True, True, True, True, False)
        errors = to_host(PROGRAMS.get(step_errors, static, arguments, Compilations(), axes=axes)(*arguments))
        errors = errors[..., :steps].reshape(crew.size, -1, steps)
        if before.shape[-2] == 1:  # steps that all trajectories share
            errors = errors.max(axis=1, keepdims=True)
        return np.where(np.reshape(idle, (-1, 1, 1)), grids.SAFETY**order, errors).reshape(-1, steps)

    rows = before.reshape(-1, before.shape[-1])
    after = grids.settle(errors_of, rows, order, most)
    if after is rows:
        return state
    return replace(state, grid=after.reshape(*before.shape[:-1], -1).astype(before.dtype))
