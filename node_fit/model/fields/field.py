"""The base class of vector fields."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from ...runtime.arguments import Part


class AbstractVectorField(eqx.Module, metaclass=Part):
    """A vector field: the right-hand side `dy/dt = f(t, y, u)` for one trajectory.

    Your own field need not inherit from this class: any `equinox.Module` with the call signature `(t, y, u)` works.
    It gets scaled states, inputs and time, which are of order one (see `Scaler`). With
    `scaling=node_fit.Scaling(affine=False)` in `fit`, it gets them in your units.
    """

    @abc.abstractmethod
    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        """The time derivative of the state.

        **Arguments:**

        - `t`: time, a scalar.
        - `y`: state, shape `(state,)`.
        - `u`: inputs (controls) at that time, shape `(input,)`; empty if there are none.

        **Returns:** `dy/dt`, shape `(state,)`.
        """
