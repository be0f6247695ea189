"""What every vector field is."""

import abc
from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float

VectorField = Callable[[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]], Float[Array, " state"]]


class AbstractVectorField(eqx.Module):
    """A right-hand side `dy/dt = f(t, y, u)` for one trajectory.

    A field of the user's own need not inherit from this: any `equinox.Module` that is called with `(t, y, u)` will do.
    It sees states, inputs and time of order one (see `Scaler`); with `scale=False` in `fit`, the user's units.
    """

    @abc.abstractmethod
    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        """The time derivative of the state.

        **Arguments:**

        - `t`: time, a scalar.
        - `y`: state, shape `(state,)`.
        - `u`: inputs at that time, shape `(input,)`; empty if there are none.
        """
