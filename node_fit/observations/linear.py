"""Channels that are linear in the states."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..system import System
from .observation import AbstractObservation


class LinearReadout(AbstractObservation):
    """`channels = C state + d`, which begins with the first states themselves.

    **Arguments:** `system`: what it is for. `key`: not used.
    """

    matrix: Float[Array, "channel state"]
    shift: Float[Array, " channel"]

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.matrix = jnp.eye(system.channels, len(system.states))
        self.shift = jnp.zeros(system.channels)

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return self.matrix @ state + self.shift
