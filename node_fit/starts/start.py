"""What every rule for the start of a trajectory is."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..batch import Batch
from ..system import System

Starts = Float[Array, "trajectory state"]
# From starts and a batch to the channels at its times, in scaled units; not finite where a solve fails. It can be
# differentiated forwards.
Simulate = Callable[[Starts, Batch], Float[Array, "trajectory time channel"]]


class Guess(eqx.Module):
    """A start from the first measured value of each channel; hidden states are 0.

    - `measured`: how many of the states are measured.
    - `absent`: scaled start of each state that a trajectory never shows.
    - `told`: whether the user said where that is.
    """

    measured: int = eqx.field(static=True)
    absent: tuple[float, ...] = eqx.field(static=True)
    told: bool = eqx.field(static=True)

    @staticmethod
    def of(system: System, absent: float | None) -> "Guess":
        """The guess for a system.

        **Arguments:** `absent`: where a state starts that a trajectory never shows, in the user's units; its mean over
        the training data if None.
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
        """Which states a trajectory shows, shape `(trajectory, state)`; hidden ones count as shown."""
        seen = batch.known.any(axis=1)[:, : self.measured]
        return jnp.concatenate([seen, jnp.ones((seen.shape[0], len(self.absent) - self.measured), bool)], axis=1)


class AbstractStart(eqx.Module):
    """A rule that gives the states at the first time of each trajectory, in scaled units.

    A rule is made by calling its class with `(system, batch, key=...)`, where `batch` holds the training data. It
    begins from a `guess`.
    """

    guess: eqx.AbstractVar[Guess]

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> Starts:
        """The starts of the training trajectories, or windows of them, in `batch`; what training differentiates."""

    @abc.abstractmethod
    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        """The starts of any trajectories by the same rule, with the rest of the model as it is."""

    @property
    @abc.abstractmethod
    def reads_windows(self) -> bool:
        """Whether the rule gives the start of any window of a trajectory."""

    @property
    @abc.abstractmethod
    def given(self) -> str:
        """What counts as known when a new trajectory is predicted, in words for the summary."""
