"""Trajectory matching: the distance of simulated trajectories from the measured ones."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..batch import Batch
from ..dataset import Dataset
from ..model import NeuralODE
from ..solver import Solver
from .objective import AbstractObjective, Loss, masked_mean, ridge_penalty

# A residual that stands for "not solved": far beyond any honest one (states are of order one), and small enough that
# a line search in float32 can compare its square with others.
UNSOLVED = 1e3


class TrajectoryMatching(AbstractObjective):
    """Mean squared residual of simulated trajectories, over the measured values, in scaled units.

    A trajectory that can't be solved counts as far off where it broke, so the loss stays finite.

    **Arguments:**

    - `solver`: how trajectories are solved in training; may be looser than the model's own.
    - `ridge`: weight of the sum of the field's squared parameters, beside the sum of squared residuals; for short or
      noisy records.
    """

    solver: Solver = eqx.field(default_factory=Solver)
    ridge: float | Float[Array, ""] = 0.0

    def prepare(self, data: Dataset, model: NeuralODE) -> Batch:
        return Batch.from_dataset(data, model.scaler)

    def loss(self, model: NeuralODE, batch: Batch) -> Loss:
        solution = model.simulate(batch, self.solver, joint=batch.joint)
        misfit = masked_mean(residuals(solution.ys, batch) ** 2, batch.mask)
        return Loss(misfit + ridge_penalty(model.field, self.ridge, batch.mask), (~solution.ok).sum())


def residuals(ys: Float[Array, "trajectory time state"], batch: Batch) -> Float[Array, "trajectory time state"]:
    solved: Bool[Array, "trajectory time state"] = jnp.isfinite(ys)
    return jnp.where(solved, jnp.where(solved, ys, 0) - batch.ys, jnp.asarray(UNSOLVED, ys.dtype))
