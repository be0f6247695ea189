"""Trajectory matching: the distance between simulated and measured trajectories."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..model.neural_ode import NeuralODE
from ..runtime.arguments import check_fields
from ..solver.held_steps import Grid, Shares
from ..solver.solver import Solver, as_solver
from .objective import Target
from .penalty import Penalty
from .robust import AbstractResidualLoss, Squares
from .simulation import AbstractSimulation, misfit, nodes, rows, with_deviation


class TrajectoryMatching(AbstractSimulation):
    """Mean squared residual of simulated trajectories, over the measured values, in scaled units.

    A trajectory that can't be solved counts as far off where it broke, so the loss stays finite.

    **Arguments:**

    - `penalty`: penalties on the field and its weights.
    - `solver`: the solver in training, which may be looser than the model's own.
    - `window`, `stride`: rows of the windows into which trajectories are cut, and between the first rows of two windows
      (half a window if absent). Short solves are cheap and their gradients do not vanish, but they do not show how
      errors grow over a long record.
    - `horizon`: the initial fraction of each trajectory's time that counts; it grows to 1, chunk by chunk.
    - `residual_loss`: how much large residuals count: `Squares`, `Huber` or `StudentT`.

    **Raises:** `ValueError` if a number is out of range, or the start rule can't give the starts of windows.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    solver: Solver = eqx.field(converter=as_solver, default_factory=Solver)
    window: int | None = eqx.field(static=True, default=None)
    stride: int | None = eqx.field(static=True, default=None)
    horizon: float | None = eqx.field(static=True, default=None)
    residual_loss: AbstractResidualLoss = eqx.field(default_factory=Squares)

    def __check_init__(self):
        check_fields(self)
        if self.window is not None and self.window < 2:
            raise ValueError(f"window must be at least 2 rows, got {self.window}.")
        if self.stride is not None and (self.window is None or self.stride < 1):
            raise ValueError(f"stride must be at least 1 row, and needs a window, got {self.stride}.")
        if self.horizon is not None and not 0 < self.horizon <= 1:
            raise ValueError(f"horizon must be above 0 and at most 1, got {self.horizon}.")
        if self.horizon is not None and not self.solver.takes_given_steps:
            raise ValueError("horizon needs given steps; use solver.stepping=held or even.")

    def prepare(self, data: Dataset, model: NeuralODE) -> Batch:
        if self.window is not None:
            if not model.start.reads_windows:
                raise ValueError(
                    "window needs a start that can be read from any window, start=encoder, or start=first without a "
                    "known start of a hidden state (start.absent); or fit whole trajectories with window=null."
                )
            # The rows from which a start is read come before a window.
            data = data.windows(self.window + max(model.start.past - 1, 0), self.stride or max(self.window // 2, 1))
        return with_deviation(model.batch(data), data, model, self.residual_loss)

    def steps_between_rows(self, batch: Batch) -> bool:
        return batch.driven

    def first_grid(self, batch: Batch) -> Shares | None:
        return self.steps_for(batch)

    @property
    def grows(self) -> bool:
        return self.horizon is not None

    def on_whole_trajectories(self) -> "TrajectoryMatching | None":
        return None if self.window is None else replace(self, window=None, stride=None)

    def seen(self, target: Target) -> tuple[Batch, Grid | None]:
        batch: Batch = target.batch
        grid = nodes(target, batch)
        if self.horizon is None:
            return batch, grid
        share = self.horizon ** (1 - target.progress)
        end = batch.ts[:, :1] + share * (batch.ts[:, -1:] - batch.ts[:, :1])
        seen = replace(batch, mask=batch.mask & (batch.ts <= end)[..., None])
        # Steps beyond the horizon have zero length, so nothing beyond it is solved.
        if batch.driven:
            return replace(seen, ts=jnp.minimum(batch.ts, end)), grid
        return seen, None if grid is None else jnp.minimum(grid, end)

    def starts(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "trajectory state"]:
        return model.first_states(target.batch)

    def assemble(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, states: Float[Array, "trajectory time state"]
    ) -> Float[Array, "trajectory row"]:
        batch, _ = self.seen(target)
        return jnp.concatenate(
            [rows(misfit(model, batch, states, self.residual_loss)), self.penalty.along(model.field, batch, states)],
            axis=1,
        )
