"""States that are measured themselves."""

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from ..system import System
from .observation import AbstractObservation


class MeasuredStates(AbstractObservation):
    """The channels are the first states; the others are hidden.

    **Arguments:** `system`: what it is for. `key`: not used.
    """

    channels: int = eqx.field(static=True)

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.channels = system.channels

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return state[: self.channels]
