"""A wrapper for your own vector field, written in your units."""

from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ...solver.vector_field import VectorField
from ..system import System
from .field import AbstractVectorField


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
