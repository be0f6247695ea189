"""An observation of the states themselves."""

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ..system import System
from .observation import AbstractObservation


@stored_as("MeasuredStates")
class MeasuredStates(AbstractObservation):
    """Direct measurement: the channels are the first states; the other states are hidden.

    **Arguments:** `system`: gives the number of channels. `key`: not used.
    """

    channels: int = eqx.field(static=True)

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.channels = system.channels

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return state[: self.channels]
