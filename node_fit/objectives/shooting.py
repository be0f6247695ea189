"""Multiple shooting: trajectories in segments with their own starts, whose gaps close during training."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch, data_from_start
from ..data.dataset import Dataset, cut
from ..data.smoothing import smooth
from ..model.neural_ode import NeuralODE
from ..runtime.validation import check_fields
from ..solver.held_steps import Grid, Shares
from ..solver.solver import Solver, as_solver
from .objective import Target
from .penalty import Penalty
from .robust import AbstractResidualLoss, Squares
from .trajectory import AbstractSimulation, misfit, rows_of_batch, simulation_nodes, with_deviation


class Segments(eqx.Module):
    """Trajectories cut into segments, each of which ends where the next begins.

    - `batch`: the segments as trajectories; their `index` is that of the trajectory.
    - `opens`: whether a segment is the first of its trajectory, shape `(segment,)`.
    - `next`, `row`: index of the next segment, and the row at which it begins; the last segment is its own next one.
    - `guess`: states at the segments' first rows, shape `(segment, state)`.
    """

    batch: Batch
    opens: Bool[Any, " segment"]
    next: Int[Any, " segment"]
    row: Int[Any, " segment"]
    guess: Float[Any, "segment state"]


class MultipleShooting(AbstractSimulation):
    """Mean squared residual of short segments, solved in parallel, with a penalty on the gaps between them that grows.

    Short solves can't diverge far, their gradients do not vanish, and the starts of segments smooth the data (Bock,
    "Numerical treatment of inverse problems in chemical reaction kinetics", 1981). The result still has gaps, so a
    stage on whole trajectories should follow.

    **Arguments:**

    - `penalty`, `solver`, `residual_loss`: as in `TrajectoryMatching`.
    - `rows`: number of intervals between measured times in a segment.
    - `least`, `most`: weights of the mean squared gap, at the beginning and at the end of the stage.

    **Raises:** `ValueError` if a number is out of range.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    solver: Solver = eqx.field(converter=as_solver, default_factory=Solver)
    rows: int = eqx.field(static=True, default=10)
    least: float | Float[Array, ""] = 0.01
    most: float | Float[Array, ""] = 10.0
    residual_loss: AbstractResidualLoss = eqx.field(default_factory=Squares)

    def __check_init__(self):
        check_fields(self)
        if self.rows < 1:
            raise ValueError(f"rows of a segment must be at least 1, got {self.rows}.")
        weights = self.least, self.most
        if all(isinstance(w, float | int) for w in weights) and not 0 < self.least <= self.most:
            raise ValueError(f"least must be positive and at most as large as most, got {self.least} and {self.most}.")

    def why_not(self, model: NeuralODE, data: Dataset) -> str | None:
        longest = int(data.lengths.max()) - 1
        if longest > self.rows:
            return None
        return f"no shooting stage, since no trajectory is longer than a segment of {self.rows} intervals"

    def prepare(self, data: Dataset, model: NeuralODE) -> Segments:
        past = model.batch(data).past
        data = data_from_start(data, model.start.past, model.start.washout) if model.start.past else data
        pieces = data.pieces(self.rows + 1, self.rows)
        parts = cut(data, pieces, [f"{row}[{begin}]" for row, begin, _ in pieces])
        batch = with_deviation(
            Batch.from_dataset(parts, model.scaler, jumps=model.system.jumps), parts, model, self.residual_loss
        )
        row, begin = (np.array(column, dtype=np.int32) for column in list(zip(*pieces, strict=True))[:2])
        numbers = np.arange(len(pieces), dtype=np.int32)
        follows = np.append(row[1:] == row[:-1], False)
        after = np.where(follows, np.minimum(numbers + 1, numbers[-1]), numbers).astype(np.int32)
        return Segments(
            # The start of a trajectory's first segment is read from the rows before it; the others are trained.
            batch=eqx.tree_at(lambda b: (b.index, b.past), batch, (row, past[row])),
            opens=np.append(True, row[1:] != row[:-1]),
            next=after,
            row=(begin[after] - begin).astype(np.int32),
            guess=guess(data, model, row, begin, batch),
        )

    def resample(self, count: int, seed: int | None) -> None:
        return None  # Segments belong together.

    @property
    def takes_minibatches(self) -> bool:
        return False

    def initial_auxiliary(self, model: NeuralODE, batch: Segments) -> PyTree:
        return batch.guess

    def steps_between_rows(self, batch: Segments) -> bool:
        return batch.batch.driven

    def first_grid(self, batch: Segments) -> Shares | None:
        return self.steps_for(batch.batch)

    @property
    def grows(self) -> bool:
        return True

    def seen(self, target: Target) -> tuple[Batch, Grid | None]:
        batch = target.batch.batch
        return batch, simulation_nodes(target, batch)

    def starts(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "segment state"]:
        segments: Segments = target.batch
        return jnp.where(segments.opens[:, None], model.first_states(segments.batch), auxiliary)

    def assemble(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, states: Float[Array, "segment time state"]
    ) -> Float[Array, "segment row"]:
        segments: Segments = target.batch
        batch, numbers = segments.batch, jnp.arange(segments.next.shape[0])
        follows = segments.next != numbers
        ends = states[numbers, segments.row]
        begins = model.system.scaler.near(auxiliary[segments.next], ends)
        gaps = jnp.where(follows[:, None] & jnp.isfinite(ends), ends - begins, 0)
        ratio = batch.mask.sum() / jnp.maximum(follows.sum() * auxiliary.shape[1], 1)
        weight = self.least * (self.most / self.least) ** target.progress
        return jnp.concatenate(
            [
                rows_of_batch(misfit(model, batch, states, self.residual_loss)),
                gaps * jnp.sqrt(weight * ratio).astype(gaps.dtype),
                self.penalty.along(model.field, batch, states),
            ],
            axis=1,
        )


def guess(
    data: Dataset, model: NeuralODE, row: np.ndarray, begin: np.ndarray, batch: Batch
) -> Float[np.ndarray, "segment state"]:
    """States at the segments' first rows: smoothed measurements where possible, 0 for hidden states."""
    found = np.zeros((len(row), len(model.latent)))
    count = len(data.states) if model.latent[: len(data.states)] == data.states else 0
    known = np.where(data.mask, model.scaler.scale_states(data.ys), np.nan)
    smoothed, _ = smooth(model.scaler.scale_times(data.ts), known)
    at_begin = smoothed[row, begin]
    found[:, :count] = np.where(np.isfinite(at_begin), at_begin, batch.first)[:, :count]
    return found
