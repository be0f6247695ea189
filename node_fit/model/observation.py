"""Observations: the measured channels as functions of the states, which are states, linear or a network."""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..runtime.serialization import stored_as
from ..runtime.validation import Part
from .fields.network import Activation, Layers
from .system import System


class AbstractObservation(eqx.Module, metaclass=Part):
    """An observation: the measured channels as a function of the states, both in scaled units.

    A subclass is created with `(system, key=...)`.

    - `is_direct`: whether the channels are states.
    - `is_nonlinear`: whether they are no linear function of the states, so that no linear model describes them.
    """

    is_direct: ClassVar[bool] = False
    is_nonlinear: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        """The channels, shape `(channel,)`, at a state, shape `(state,)`."""


class AbstractFeatureReadout(AbstractObservation):
    """An observation that is linear in the states and in features of these."""

    @abc.abstractmethod
    def features(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """What the channels are linear in, beside the states."""

    @abc.abstractmethod
    def with_readout(self, coefficients: Float[np.ndarray, "term channel"]) -> "AbstractFeatureReadout":
        """The observation with other coefficients: of 1, of the states, and of the features."""


@stored_as("MeasuredStates")
class MeasuredStates(AbstractObservation):
    """Direct measurement: the channels are the first states; the other states are hidden.

    **Arguments:** `system`: gives the number of channels. `key`: not used.
    """

    is_direct: ClassVar[bool] = True
    channels: int = eqx.field(static=True)

    def __init__(self, system: System, *, key: PRNGKeyArray | None = None):
        self.channels = system.channels

    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        return state[: self.channels]


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


@stored_as("NetworkReadout")
class NetworkReadout(AbstractFeatureReadout):
    """A linear readout plus a network, whose output is zero at first.

    **Arguments:**

    - `system`: gives the numbers of channels and states.
    - `width`, `depth`, `activation`: network options, as in `MLP`.
    - `key`: PRNG key of the initial weights.
    """

    is_nonlinear: ClassVar[bool] = True
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

    def features(self, state: Float[Array, " state"]) -> Float[Array, " feature"]:
        """The network's last hidden layer."""
        last = self.network.layers[-1]
        hidden = eqx.tree_at(
            lambda n: (n.layers[-1].weight, n.layers[-1].bias),
            self.network,
            (jnp.eye(last.in_features), jnp.zeros(last.in_features)),
        )
        return hidden(state)

    def with_readout(self, coefficients: Float[np.ndarray, "term channel"]) -> "NetworkReadout":
        matrix = self.linear.matrix
        shift, states, hidden = np.split(coefficients, [1, 1 + matrix.shape[1]])
        return eqx.tree_at(
            lambda o: (o.linear.shift, o.linear.matrix, o.network.layers[-1].weight),
            self,
            tuple(jnp.asarray(x, matrix.dtype) for x in (shift[0], states.T, hidden.T)),
        )
