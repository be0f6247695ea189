"""A stage's sum of squares and its Jacobian at given parameters, for what is said of a fit after it."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..objectives.objective import Target
from ..runtime.compilation import PROGRAMS, Compilations
from ..runtime.processes import to_host
from ..solver.held_steps import Shares
from .programs import StagePrograms
from .rooms import roomy
from .stage_loss import StageLoss
from .state import Params, TrainState
from .step import StageData


class Found(NamedTuple):
    """A sum of squares at some parameters; NumPy arrays in float64.

    - `residuals`: of each block; `jacobian`: their derivatives, one row for each.
    - `prior`: the weight of each parameter's square.
    - `failed`: number of failed solves.
    """

    residuals: Float[np.ndarray, "block row"]
    jacobian: Float[np.ndarray, "residual parameter"]
    prior: Float[np.ndarray, " parameter"]
    failed: int


class LinearisedStage:
    """The sum of squares of a stage of one member, as a function of a flat vector of its parameters.

    **Arguments:** `programs`: of the stage. `state`: where the fit is, with held steps that meet the tolerance.
    """

    def __init__(self, programs: StagePrograms, state: TrainState):
        self.programs = programs
        self.state = state
        flat, self._unravel = ravel_pytree(state.params)
        self.kind = np.dtype(flat.dtype)
        self.x = np.asarray(flat, np.float64)

    def at(self, x: Float[np.ndarray, " parameter"]) -> Found:
        """The sum of squares at other parameters, over the same held steps."""
        state, programs, place = self.state, self.programs, self.programs.setup.place
        params = place.replicate(self._unravel(jnp.asarray(x, self.kind)))
        grid, progress = place.shard(roomy(programs, state.grid)), place.replicate(state.progress)
        arguments = (params, grid, progress, programs.own, programs.shared)
        run = PROGRAMS.get(linearised, programs.static, arguments, Compilations())
        residuals, jacobian, prior, failed = to_host(run(*arguments))
        return Found(
            np.asarray(residuals, np.float64),
            np.asarray(jacobian, np.float64),
            np.asarray(prior, np.float64),
            int(failed),
        )

    def params(self, x: Float[np.ndarray, " parameter"]) -> Params:
        """The parameters of a flat vector."""
        return self._unravel(jnp.asarray(x, self.kind))

    def numbered(self) -> Params:
        """The parameters' places in the flat vector, in their structure."""
        return self._unravel(jnp.arange(self.x.size).astype(self.kind))

    def refined_at(self, points: list[Float[np.ndarray, " parameter"]]) -> "LinearisedStage":
        """The same with held steps that meet the tolerance at further points, too."""
        state = self.state
        for x in points:
            there = eqx.tree_at(lambda s: s.params, state, self.programs.setup.place.host(self.params(x)))
            (there,) = self.programs.refined([there])
            state = eqx.tree_at(lambda s: s.grid, state, there.grid, is_leaf=lambda leaf: leaf is None)
        return LinearisedStage(self.programs, state)


def linearised(
    static: tuple, params: Params, grid: Shares | None, progress: Float[Array, ""], own: StageData, shared: StageData
) -> tuple[PyTree, Array, Array, Int[Array, ""]]:
    """The residuals of each block, their Jacobian, the prior and the failed solves; `static` is `(model, stage)`."""
    model_static, stage_static = static
    data: Any = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    loss = StageLoss(model_static, data.frozen, stage.objective, Target(data.batch, grid, progress), params)
    x = ravel_pytree(params)[0]
    found, jacobian = stage.objective.linearised(loss.build, x, loss.target)
    return found.values, jacobian, loss.prior(x) * found.count, found.failed
