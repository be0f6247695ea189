"""The base class of rules for the start of a trajectory."""

import abc
from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...data.batch import Batch, first_rows, start_rows
from ...data.dataset import Dataset
from ...runtime.arguments import Part
from ...runtime.stored_names import stored_as
from ...solver.vector_field import VectorField
from ..system import System

Starts = Float[Array, "trajectory state"]
# From starts and a batch to the channels at its times, in scaled units; not finite where a solve fails. Only
# forward-mode derivatives exist.
Simulate = Callable[[Starts, Batch], Float[Array, "trajectory time channel"]]


@stored_as("Guess")
class Guess(eqx.Module):
    """A start from the first measured value of each channel; hidden states are 0.

    - `measured`: number of measured states.
    - `absent`: scaled start of each state that is never measured in a trajectory.
    - `told`: whether the user gave that start.
    """

    measured: int = eqx.field(static=True)
    absent: tuple[float, ...] = eqx.field(static=True)
    told: bool = eqx.field(static=True)

    @staticmethod
    def of(system: System, absent: float | None) -> "Guess":
        """The guess for a system.

        **Arguments:** `absent`: start of a state that is never measured in a trajectory, in the user's units; its mean
        over the training data if None.
        """
        count = len(system.states)
        if absent is None:
            return Guess(system.measured, (0.0,) * count, told=False)
        scaled = system.scaler.scale_states(np.full(count, float(absent)))
        return Guess(system.measured, tuple(scaled.tolist()), told=True)

    def __call__(self, batch: Batch) -> Starts:
        count, rows = self.measured, batch.first.shape[0]
        absent = jnp.asarray(self.absent, batch.first.dtype)[None, :count]
        measured = jnp.where(self.shows(batch)[:, :count], batch.first[:, :count], absent)
        return jnp.concatenate([measured, jnp.zeros((rows, len(self.absent) - count), measured.dtype)], axis=1)

    def shows(self, batch: Batch) -> Array:
        """Which states are measured in a trajectory, shape `(trajectory, state)`; hidden ones count as measured."""
        seen = batch.seen[:, : self.measured]
        return jnp.concatenate([seen, jnp.ones((seen.shape[0], len(self.absent) - self.measured), bool)], axis=1)


class AbstractStart(eqx.Module, metaclass=Part):
    """A rule that gives the states at the first time of each trajectory, in scaled units.

    A rule is made by calling its class with `(system, batch, key=...)`, where `batch` holds the training data. Its
    initial guess is `guess`.
    """

    guess: eqx.AbstractVar[Guess]

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> Starts:
        """The starts of the training trajectories, or windows of them, in `batch`; training differentiates this."""

    @abc.abstractmethod
    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        """The starts of any trajectories by the same rule, for the current model."""

    def completed(self, starts: Starts, field: VectorField, batch: Batch) -> Starts:
        """The starts, where they depend on the vector field too."""
        return starts

    @property
    def past(self) -> int:
        """Number of rows that it reads up to a trajectory's start, that row included; 0 if it reads no earlier rows."""
        return 0

    @property
    def washout(self) -> int:
        """How many rows are simulated between the start and the first row that counts, if there are so many."""
        return 0

    @property
    def given_rows(self) -> int | None:
        """Number of rows that give a start, and so do not test the model; all rows if None."""
        return 1

    def scored(self, data: Dataset) -> Dataset:
        """The data, in which the rows that give the starts do not count, since they do not test the model.

        If a trajectory has rows before the first that counts, those give its start. A dataset in which no row would
        count is returned unchanged.
        """
        given = self.past or self.given_rows
        rows = np.arange(data.ts.shape[1])[None, :]
        if self.past:
            last = start_rows(data, self.past, self.washout)
        else:
            opens = data.mask[:, 0].any(axis=1) | ~(data.valid & ~data.scored).any(axis=1)
            last = np.where(opens, data.ts.shape[1] if given is None else given - 1, -1)
        part = replace(data, scored=data.scored & (rows > last[:, None]))
        return part if part.mask.any() else data

    def needed(self, batch: Batch) -> Batch:
        """The rows of a batch that `estimate` needs, on the host: few, so that a long record compiles nothing new."""
        return first_rows(batch, 1)

    def adapted(self, batch: Batch) -> "AbstractStart":
        """The rule for other training trajectories, given in `batch`."""
        return self

    @property
    @abc.abstractmethod
    def reads_windows(self) -> bool:
        """Whether the rule gives the start of any window of a trajectory."""

    @property
    @abc.abstractmethod
    def given(self) -> str:
        """What a prediction of a new trajectory uses of it, in words for the summary."""
