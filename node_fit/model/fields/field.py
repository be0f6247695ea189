"""The base class of vector fields, and a wrapper for your own, written in your units."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.serialization import stored_as
from ...runtime.validation import Part
from ...solver.problem import VectorField
from ..system import System


class AbstractVectorField(eqx.Module, metaclass=Part):
    """A vector field: the right-hand side `dy/dt = f(t, y, u)` for one trajectory.

    Your own field need not inherit from this class: any `equinox.Module` with the call signature `(t, y, u)` works.
    It gets scaled states, inputs and time, which are of order one (see `Scaler`). With
    `scaling=node_fit.Scaling(affine=False)` in `fit`, it gets them in your units.

    A class says what `fit` and its advice need to know before a field is made:

    - `has_linear_part`: whether `linear_part` is a linear field to which the rest is added, and which may begin as a
      linear model of the data; if a keyword `linear` asks for it, only then.
    - `is_linear`: whether it is linear altogether.
    - `has_equations`: whether its right-hand sides are equations that the user knows, at least in part.
    - `is_polynomial`: whether it is a sum of monomials, of which the data may ask for a few.
    - `has_network`: whether it has a network, which could be smaller.
    """

    has_linear_part: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    has_equations: ClassVar[bool] = False
    is_polynomial: ClassVar[bool] = False
    has_network: ClassVar[bool] = True

    @property
    def linear_part(self) -> Any:
        """The linear field that a linear model of the data may set; None if there is none."""
        return None

    def texts(self) -> dict[str, str]:
        """The right-hand sides as text, by state, in the user's units; empty if they are no equations."""
        return {}

    def coefficients(self) -> dict[tuple[int, ...], np.ndarray]:
        """The coefficients of a polynomial, by exponents of states and inputs; in scaled units, shape `(state,)`; empty
        of any other field."""
        return {}

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


@stored_as("Physical")
class Physical(AbstractVectorField):
    """A vector field in the user's units, wrapped for a solver that works in scaled units.

    **Arguments:**

    - `system`: names and units of the states, inputs and time.
    - `field`: called with time, state and inputs in the user's units; returns the time derivative in the user's units.
    - `key`: not used.
    """

    field: VectorField
    system: System

    def __init__(self, system: System, *, field: VectorField, key: PRNGKeyArray | None = None):
        self.field = field
        self.system = system

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        time, states, inputs = self.system.in_users_units(t, y, u)
        return self.system.scaled_rates(states, self.field(time, states, inputs))
