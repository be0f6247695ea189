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
    - `ridge`: weight of the sum of the field's squared weights, beside the sum of squared residuals; for short or
      noisy records. The constants of known equations are none of them.
    - `window`, `stride`: number of rows of the windows that trajectories are cut into, and of those between the first
      rows of two windows (half a window if absent). Short solves are cheap and never go flat; what they do not tell is
      how errors grow over a long record.

    **Raises:** `ValueError` if the windows' starts can't be read off the data.
    """

    solver: Solver = eqx.field(default_factory=Solver)
    ridge: float | Float[Array, ""] = 0.0
    window: int | None = eqx.field(static=True, default=None)
    stride: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.window is not None and self.window < 2:
            raise ValueError(f"window must be at least 2 rows, got {self.window}.")
        if self.stride is not None and (self.window is None or self.stride < 1):
            raise ValueError(f"stride must be at least 1 row, and needs a window, got {self.stride}.")

    def prepare(self, data: Dataset, model: NeuralODE) -> Batch:
        if self.window is not None:
            if not model.start.reads_windows:
                raise ValueError("window needs a start that any window tells, start=first or start=encoder.")
            data = data.windows(self.window, self.stride)
        return Batch.from_dataset(data, model.scaler)

    def loss(self, model: NeuralODE, batch: Batch) -> Loss:
        solution = model.train(batch, self.solver)
        misfit = masked_mean(residuals(solution.ys, batch) ** 2, batch.mask)
        return Loss(misfit + ridge_penalty(model.field, self.ridge, batch.mask), (~solution.ok).sum())


def residuals(ys: Float[Array, "trajectory time state"], batch: Batch) -> Float[Array, "trajectory time state"]:
    solved: Bool[Array, "trajectory time state"] = jnp.isfinite(ys)
    return jnp.where(solved, jnp.where(solved, ys, 0) - batch.ys, jnp.asarray(UNSOLVED, ys.dtype))
