"""An objective as a function of the parameters alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from .model import NeuralODE
from .objectives import AbstractLeastSquares, AbstractObjective, Loss, Problem
from .optimizers.optimizer import Linearised


class Unknowns(eqx.Module):
    """What is found in training: the `model`'s parameters, and the objective's `own` if it has any."""

    model: PyTree
    own: PyTree


Vector = Float[Array, " parameter"]


class Goal:
    """The objective as a function of the parameters alone.

    **Arguments:**

    - `static`, `frozen`: parts of the model that are not trained.
    - `objective`, `problem`: what it is of.
    - `params`: of the kind that it is called with.
    """

    def __init__(
        self, static: PyTree, frozen: PyTree, objective: AbstractObjective, problem: Problem, params: Unknowns
    ):
        self.unravel = ravel_pytree(params)[1]
        self.static = static
        self.frozen = frozen
        self.objective = objective
        self.problem = problem

    def __call__(self, params: Unknowns) -> Loss:
        return self.objective.loss(self.model(params), params.own, self.problem)

    def residuals(self, x: Vector) -> tuple[Float[Array, " row"], Int[Array, ""]]:
        found = self.squares.residuals(*self.build(x), self.problem)
        return found.values.reshape(-1) / jnp.sqrt(found.count), found.failed

    def linearised(self, x: Vector) -> Linearised:
        found, jacobian = self.squares.linearised(self.build, x, self.problem)
        root = jnp.sqrt(found.count)
        return Linearised(found.values.reshape(-1) / root, found.failed, jacobian / root, self.prior(x))

    def prior(self, x: Vector) -> Vector:
        params: Unknowns = self.unravel(x)
        blank = jax.tree.map(jnp.zeros_like, params)
        weights = eqx.tree_at(lambda p: p.model.field, blank, self.squares.penalty.prior(params.model.field))
        count = self.squares.residuals(*self.build(x), self.problem).count
        return ravel_pytree(weights)[0] / count

    @property
    def squares(self) -> AbstractLeastSquares:
        if not isinstance(self.objective, AbstractLeastSquares):
            raise ValueError(
                f"{type(self.objective).__name__} is no sum of squares, as this optimizer needs; use lbfgs."
            )
        return self.objective

    def build(self, x: Vector) -> tuple[NeuralODE, PyTree]:
        params: Unknowns = self.unravel(x)
        return self.model(params), params.own

    def model(self, params: Unknowns) -> NeuralODE:
        return eqx.combine(params.model, self.frozen, self.static)
