"""The base class of observations."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from ...runtime.arguments import Part


class AbstractObservation(eqx.Module, metaclass=Part):
    """An observation: the measured channels as a function of the states, both in scaled units.

    A subclass is created with `(system, key=...)`.
    """

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        """The channels, shape `(channel,)`, at a state, shape `(state,)`."""
