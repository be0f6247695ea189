"""Starts at the first measurement."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ...data.batch import Batch
from ...runtime.arguments import checks_arguments
from ...runtime.stored_names import stored_as
from ..system import System
from .start import AbstractStart, Guess, Simulate, Starts


@stored_as("First")
class First(AbstractStart):
    """Each trajectory starts at the first measured value of each state; hidden states at values that are trained.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `absent`: start of a state that is never measured in a trajectory, in the user's units; its training mean if None.
    - `key`: not used.
    """

    guess: Guess
    hidden: Float[Array, " hidden"] | None

    @checks_arguments
    def __init__(self, system: System, batch: Batch, *, absent: float | None = None, key: PRNGKeyArray | None = None):
        self.guess = Guess.of(system, absent)
        count = len(system.states) - system.measured
        self.hidden = jnp.zeros(count) if count else None

    def __call__(self, batch: Batch) -> Starts:
        starts = self.guess(batch)
        return starts if self.hidden is None else starts.at[:, self.guess.measured :].set(self.hidden[None, :])

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    @property
    def reads_windows(self) -> bool:
        return True

    @property
    def given(self) -> str:
        return "the first measurement of each state"
