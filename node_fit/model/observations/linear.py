"""An observation that is linear in the states."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ..system import System
from .observation import AbstractObservation


@stored_as("LinearReadout")
class LinearReadout(AbstractObservation):
    """A linear readout `channels = C state + d`; initially, the channels are the first states.

    **Arguments:** `system`: gives the numbers of channels and states. `key`: not used.
    """

    matrix: Float[Array, "channel state"]
    shift: Float[Array, " channel"]

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.matrix = jnp.eye(system.channels, len(system.states))
        self.shift = jnp.zeros(system.channels)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return self.matrix @ state + self.shift
