"""A field of the user's own, written in the user's units."""

from jaxtyping import Array, Float, PRNGKeyArray

from ..system import System
from .field import AbstractVectorField, VectorField


class Physical(AbstractVectorField):
    """A right-hand side in the user's units, for states and time that are solved at order one.

    **Arguments:**

    - `system`: what it is for.
    - `field`: called with time, state and inputs in the user's units; gives the time derivative in the user's units.
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
