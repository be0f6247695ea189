"""Starts that a network reads from measurements."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...data.batch import Batch, first_rows
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ..fields.network import Activation, Layers
from ..system import System
from .rule import Absent, AbstractStart, Guess, Simulate, Starts

# Trajectories of at least this multiple of the rows that are read have rows to spare before their start.
LONG_PAST = 8


@stored_as("Encoder")
class Encoder(AbstractStart):
    """A linear map and a network of neighbouring rows, which correct the measurement at the start.

    It is the rule for hidden states, which measurements shortly before or after determine (Forgione and Piga, European
    Journal of Control 59, 2021; Beintema, Toth and Schoukens, L4DC 2021). It reads the rows up to the start if
    trajectories are long enough to spare them, else a trajectory's first rows. Both parts are zero at first.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `rows`: number of rows that it reads.
    - `before`: whether these are the rows up to the start, so that a trajectory is simulated from the last of them on;
      by default if the training trajectories have at least eight times as many.
    - `washout`: rows that are simulated between the start and the first one that counts, where there are so many: the
      system's own damping takes away a part of the start's error.
    - `width`, `depth`, `activation`: of the network.
    - `absent`: where a state starts that a trajectory never shows, before the correction, in the user's units: a number
      for all, or one for each by its name; if None, its training mean, and 0 for a hidden state.
    - `key`: PRNG key of the initial weights.

    **Raises:** `ValueError` if a number is out of range.
    """

    guess: Guess
    matrix: Float[Array, "state feature"]
    shift: Float[Array, " state"]
    network: Layers
    rows: int = eqx.field(static=True)
    before: bool = eqx.field(static=True)
    washed: int = eqx.field(static=True)

    @checks_arguments
    def __init__(
        self,
        system: System,
        batch: Batch,
        *,
        rows: int = 10,
        before: bool | None = None,
        washout: int = 0,
        width: int = 32,
        depth: int = 1,
        activation: Activation = "tanh",
        absent: Absent = None,
        key: PRNGKeyArray,
    ):
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}.")
        if washout < 0:
            raise ValueError(f"washout must be at least 0, got {washout}.")
        self.guess = Guess.of(system, batch, absent)
        features = rows * (2 * batch.ys.shape[2] + batch.us.shape[2] + 1)
        layers = Layers(features, len(system.states), width=width, depth=depth, activation=activation, key=key)
        self.matrix = jnp.zeros((len(system.states), features))
        self.shift = jnp.zeros(len(system.states))
        self.network = layers.silenced()
        self.rows = rows
        self.washed = washout
        lengths = np.sum(np.diff(np.asarray(batch.ts, np.float64), axis=1) > 0, axis=1) + 1
        self.before = bool(np.median(lengths) >= LONG_PAST * rows) if before is None else before

    def __call__(self, batch: Batch) -> Starts:
        features = self.features(batch)
        return self.guess(batch) + features @ self.matrix.T + self.shift[None] + jax.vmap(self.network)(features)

    def features(self, batch: Batch) -> Float[Array, "trajectory feature"]:
        """Channels, whether they were measured, inputs, and times since the start, in the rows that it reads."""
        if self.before:
            return batch.past.reshape(batch.past.shape[0], -1)
        since = batch.ts - batch.ts[:, :1]
        ys = jnp.where(batch.known, batch.ys, 0)
        table = jnp.concatenate([ys, batch.known.astype(ys.dtype), batch.us, since[..., None]], axis=2)
        table = table[:, : self.rows]
        missing = self.rows - table.shape[1]
        table = jnp.pad(table, ((0, 0), (0, missing), (0, 0)))
        return table.reshape(table.shape[0], -1)

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    @property
    def past(self) -> int:
        return self.rows if self.before else 0

    @property
    def washout(self) -> int:
        return self.washed if self.before else 0

    @property
    def given_rows(self) -> int | None:
        return self.rows

    def needed(self, batch: Batch) -> Batch:
        return first_rows(batch, 1 if self.before else self.rows)

    @property
    def reads_windows(self) -> bool:
        return True

    @property
    def given(self) -> str:
        where = "the rows up to the start" if self.before else "the first rows"
        return f"{self.rows} rows, {where}, from which a linear map and a network estimate it"
