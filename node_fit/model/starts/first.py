"""Starts at the first measurement."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...data.batch import Batch
from ...runtime.arguments import checks_arguments
from ...runtime.stored_names import stored_as
from ..system import System
from .start import Absent, AbstractStart, Guess, Simulate, Starts


@stored_as("First")
class First(AbstractStart):
    """Each trajectory starts at the first measured value of each state; hidden states where the user says.

    A hidden state of which the user says nothing starts at a value that is trained, from 0 on.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `absent`: known start of states that a trajectory never shows, such as hidden ones, in the user's units: a number
      for all, or one for each by its name, such as `{"S": 1e4}`. It is not trained. If None, the start of a
      measured state is its training mean.
    - `key`: not used.
    """

    guess: Guess
    hidden: Float[Array, " unknown"] | None

    @checks_arguments
    def __init__(self, system: System, batch: Batch, *, absent: Absent = None, key: PRNGKeyArray | None = None):
        self.guess = Guess.of(system, batch, absent)
        hidden = len(system.states) > system.measured
        self.hidden = jnp.zeros(len(self.guess.unknown)) if hidden else None

    def __call__(self, batch: Batch) -> Starts:
        starts = self.guess(batch)
        unknown = np.array(self.guess.unknown, int)
        return starts if self.hidden is None else starts.at[:, unknown].set(self.hidden[None, :])

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    @property
    def reads_windows(self) -> bool:
        return not self.guess.knows_hidden  # That is the start of a trajectory, not of any window.

    @property
    def given(self) -> str:
        return "the first measurement of each state"
