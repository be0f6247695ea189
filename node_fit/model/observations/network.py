"""An observation by a small network."""

from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ..fields.mlp import Activation, Layers
from ..system import System
from .linear import LinearReadout
from .observation import AbstractObservation


@stored_as("NetworkReadout")
class NetworkReadout(AbstractObservation):
    """A linear readout plus a network, whose output is zero at first.

    **Arguments:**

    - `system`: gives the numbers of channels and states.
    - `width`, `depth`, `activation`: network options, as in `MLP`.
    - `key`: PRNG key of the initial weights.
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
