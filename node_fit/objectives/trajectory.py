"""Trajectory matching: the distance of simulated trajectories from the measured ones."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..batch import Batch
from ..dataset import Dataset
from ..grid import Shares
from ..model import NeuralODE
from ..solver import Solver
from .objective import Problem
from .penalty import Penalty
from .simulation import AbstractSimulation, View, misfit, nodes, rows


class TrajectoryMatching(AbstractSimulation):
    """Mean squared residual of simulated trajectories, over the measured values, in scaled units.

    A trajectory that can't be solved counts as far off where it broke, so the loss stays finite.

    **Arguments:**

    - `penalty`: what is asked of the field besides.
    - `solver`: how trajectories are solved in training; may be looser than the model's own.
    - `window`, `stride`: number of rows of the windows that trajectories are cut into, and of those between the first
      rows of two windows (half a window if absent). Short solves are cheap and never go flat; what they do not tell is
      how errors grow over a long record.
    - `horizon`: the share of each trajectory's time that is looked at first; it grows to all, chunk by chunk.

    **Raises:** `ValueError` if a number is out of range, or the windows' starts can't be read off the data.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    solver: Solver = eqx.field(default_factory=Solver)
    window: int | None = eqx.field(static=True, default=None)
    stride: int | None = eqx.field(static=True, default=None)
    horizon: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.window is not None and self.window < 2:
            raise ValueError(f"window must be at least 2 rows, got {self.window}.")
        if self.stride is not None and (self.window is None or self.stride < 1):
            raise ValueError(f"stride must be at least 1 row, and needs a window, got {self.stride}.")
        if self.horizon is not None and not 0 < self.horizon <= 1:
            raise ValueError(f"horizon must be above 0 and at most 1, got {self.horizon}.")
        if self.horizon is not None and self.solver.steps == "adaptive":
            raise ValueError("horizon needs steps that are given; use solver.steps=held or even.")

    def why_not(self, model: NeuralODE, data: Dataset) -> str | None:
        return None

    def prepare(self, data: Dataset, model: NeuralODE) -> Batch:
        if self.window is not None:
            if not model.start.reads_windows:
                raise ValueError("window needs a start that any window tells, start=first or start=encoder.")
            data = data.windows(self.window, self.stride)
        return Batch.from_dataset(data, model.scaler)

    def own(self, model: NeuralODE, batch: Batch) -> PyTree:
        return None

    def first_grid(self, batch: Batch) -> Shares | None:
        return self.steps_for(batch)

    @property
    def grows(self) -> bool:
        return self.horizon is not None

    def view(self, problem: Problem) -> View:
        batch = problem.batch
        grid = nodes(problem, batch)
        if self.horizon is None:
            return View(batch, grid)
        share = self.horizon ** (1 - problem.progress)
        end = batch.ts[:, :1] + share * (batch.ts[:, -1:] - batch.ts[:, :1])
        # Steps beyond the horizon have no length, so that nothing beyond it is solved for.
        grid = None if grid is None else jnp.minimum(grid, end)
        seen = replace(batch, mask=batch.mask & (batch.ts <= end)[..., None])
        return View(seen, grid)

    def starts(self, model: NeuralODE, own: PyTree, problem: Problem) -> Float[Array, "trajectory state"]:
        return model.start(problem.batch)

    def assemble(
        self, model: NeuralODE, own: PyTree, problem: Problem, states: Float[Array, "trajectory time state"]
    ) -> Float[Array, "trajectory row"]:
        batch = self.view(problem).batch
        return jnp.concatenate(
            [rows(misfit(model, batch, states)), self.penalty.along(model.field, batch, states)], axis=1
        )
