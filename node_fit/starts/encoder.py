"""Starts that a network reads off the first samples."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..batch import Batch
from ..fields.mlp import Activation, Layers
from ..system import System
from .start import AbstractStart, Guess, Simulate, Starts


class Encoder(AbstractStart):
    """A network of the first samples of channels, inputs and times corrects the first measurement.

    It is the rule for hidden states: what they are at the start shows in what is measured shortly after
    (Forgione and Piga, European Journal of Control 59, 2021; Beintema, Toth and Schoukens, L4DC 2021).

    **Arguments:**

    - `system`, `batch`: what it is for.
    - `rows`: number of samples that it sees.
    - `width`, `depth`, `activation`: of the network.
    - `absent`: where a state starts that a trajectory never shows, before the correction, in the user's units; its
      training mean if None.
    - `key`: for the initial weights.
    """

    guess: Guess
    network: Layers
    rows: int = eqx.field(static=True)

    def __init__(
        self,
        system: System,
        batch: Batch,
        *,
        rows: int = 10,
        width: int = 32,
        depth: int = 1,
        activation: Activation = "tanh",
        absent: float | None = None,
        key: PRNGKeyArray,
    ):
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}.")
        self.guess = Guess.of(system, absent)
        features = 2 * batch.ys.shape[2] + batch.us.shape[2] + 1
        layers = Layers(rows * features, len(system.states), width=width, depth=depth, activation=activation, key=key)
        self.network = layers.silenced()
        self.rows = rows

    def __call__(self, batch: Batch) -> Starts:
        return self.guess(batch) + jax.vmap(self.network)(self.features(batch))

    def features(self, batch: Batch) -> Float[Array, "trajectory feature"]:
        """The first rows of channels, of whether they were measured, of inputs, and of times since the start."""
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
    def reads_windows(self) -> bool:
        return True

    @property
    def given(self) -> str:
        return f"the first {self.rows} rows, from which a network estimates the start"
