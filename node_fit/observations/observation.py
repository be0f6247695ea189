"""What every observation is."""

import abc

import equinox as eqx
from jaxtyping import Array, Float


class AbstractObservation(eqx.Module):
    """The measured channels as a function of the states, both in scaled units.

    An observation is made by calling its class with `(system, key=...)`.
    """

    @abc.abstractmethod
    def __call__(self, state: Float[Array, " state"]) -> Float[Array, " channel"]:
        """The channels at a state."""
