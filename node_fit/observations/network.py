"""Channels that a small network reads off the states."""

from jaxtyping import Array, Float, PRNGKeyArray

from ..fields.mlp import Activation, Layers
from ..system import System
from .linear import LinearReadout
from .observation import AbstractObservation


class NetworkReadout(AbstractObservation):
    """A linear readout and a network that corrects it.

    **Arguments:**

    - `system`: what it is for.
    - `width`, `depth`, `activation`: of the network, as of `MLP`.
    - `key`: for the initial weights.
    """

    linear: LinearReadout
    network: Layers

    def __init__(
        self,
        system: System,
        *,
        width: int = 16,
        depth: int = 1,
        activation: Activation = "tanh",
        key: PRNGKeyArray,
    ):
        self.linear = LinearReadout(system)
        states, channels = len(system.states), system.channels
        layers = Layers(states, channels, width=width, depth=depth, activation=activation, key=key)
        self.network = layers.silenced()

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return self.linear(state) + self.network(state)
