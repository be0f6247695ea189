"""A stage's objective as a function of the parameters alone, as optimizers see it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..model.neural_ode import NeuralODE
from ..objectives.objective import AbstractObjective, Loss, Target
from ..optimizers.optimizer import Linearised
from .state import Params

Vector = Float[Array, " parameter"]


class StageLoss:
    """The loss as a function of the parameters and, for sums of squares, residuals as a function of one flat vector.

    **Arguments:**

    - `static`, `frozen`: parts of the model that are not trained.
    - `objective`, `target`: the objective, and its data.
    - `params`: parameters of the structure that it is called with.
    """

    def __init__(self, static: PyTree, frozen: PyTree, objective: AbstractObjective, target: Target, params: Params):
        self.unravel = ravel_pytree(params)[1]
        self.static = static
        self.frozen = frozen
        self.objective = objective
        self.target = target

    def __call__(self, params: Params) -> Loss:
        return self.objective.loss(self.model(params), params.auxiliary, self.target)

    def residuals(self, x: Vector) -> tuple[Float[Array, " row"], Int[Array, ""]]:
        found = self.objective.residuals(*self.build(x), self.target)
        values = self.target.limited(found.values, found.excess)
        return values.reshape(-1) / jnp.sqrt(found.count), found.failed

    def linearised(self, x: Vector) -> Linearised:
        found, jacobian = self.objective.linearised(self.build, x, self.target)
        root = jnp.sqrt(found.count)
        return Linearised(found.values.reshape(-1) / root, found.failed, jacobian / root, self.prior(x))

    def pushed(self, x: Vector, direction: Vector) -> Float[Array, " row"]:
        count = self.objective.residuals(*self.build(x), self.target).count
        return self.objective.pushed(self.build, x, direction, self.target).reshape(-1) / jnp.sqrt(count)

    def prior(self, x: Vector) -> Vector:
        params: Params = self.unravel(x)
        blank = jax.tree.map(jnp.zeros_like, params)
        parts = (params.model.field, params.model.start)
        weights = eqx.tree_at(lambda p: (p.model.field, p.model.start), blank, self.objective.prior(parts))
        count = self.objective.residuals(*self.build(x), self.target).count
        return ravel_pytree(weights)[0] / count

    def build(self, x: Vector) -> tuple[NeuralODE, PyTree]:
        params: Params = self.unravel(x)
        return self.model(params), params.auxiliary

    def model(self, params: Params) -> NeuralODE:
        return eqx.combine(params.model, self.frozen, self.static)
