"""The base class of vector fields, and a wrapper for custom fields in your units."""

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

    Custom fields do not have to inherit from this class: any `equinox.Module` with the call signature `(t, y, u)`
    works. It gets scaled states, inputs and time, which are of order one (see `Scaler`). With
    `scaling=node_fit.Scaling(affine=False)` in `fit`, it gets them in your units.

    Class attributes describe a field for `fit` and its advice before it is made:

    - `has_linear_part`: whether the field is the sum of a linear field `linear_part`, which can be initialized with a
      linear model of the data, and other terms; if it has a keyword `linear`, only if that is set.
    - `is_linear`: whether the whole field is linear.
    - `has_equations`: whether its right-hand sides are known equations, at least in part.
    - `is_polynomial`: whether it is a sum of monomials, few of which can be sufficient for the data.
    - `has_network`: whether it has a network, which could be smaller.
    """

    has_linear_part: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    has_equations: ClassVar[bool] = False
    is_polynomial: ClassVar[bool] = False
    has_network: ClassVar[bool] = True

    @property
    def linear_part(self) -> Any:
        """The linear field that a linear model of the data can initialize; None if the field has no linear part."""
        return None

    def texts(self) -> dict[str, str]:
        """Returns the right-hand sides as text, by state, in the user's units; empty if they are not equations."""
        return {}

    def coefficients(self) -> dict[tuple[int, ...], np.ndarray]:
        """Returns the coefficients of a polynomial by exponents of states and inputs; empty for other fields.

        They are in scaled units, with shape `(state,)`.
        """
        return {}

    @abc.abstractmethod
    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        """Computes the time derivative of the state.

        **Arguments:**

        - `t`: time, a scalar.
        - `y`: state, shape `(state,)`.
        - `u`: inputs (controls) at that time, shape `(input,)`; empty without inputs.

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
