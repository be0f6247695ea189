"""Known equations with constants to fit."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ..system import System
from .constants import Constants
from .equations import Equations
from .field import AbstractVectorField

# An initial value, or [value, lower, upper] with null for no bound.
ConstantConfig = float | Sequence[float | None]


@stored_as("Known")
class Known(AbstractVectorField):
    """A vector field with known equations, written as text in the user's units; only the constants are fitted.

    **Arguments:**

    - `system`: names and units of the states, inputs and time.
    - `equations`: for each state, the text of its time derivative, such as `{x: -a*x + u}`; see `Equations`.
    - `constants`: for each name, an initial value, or `[value, lower, upper]` with null where there is no bound.
    - `terms`: further names that the equations may use; the caller of `rates` passes their values.
    - `key`: not used.

    **Raises:** `ValueError` if a state has no equation, or an equation uses an unknown name.
    """

    equations: Equations
    constants: Constants
    system: System

    def __init__(
        self,
        system: System,
        *,
        equations: Mapping[str, str],
        constants: Mapping[str, ConstantConfig],
        terms: Sequence[str] = (),
        key: PRNGKeyArray | None = None,
    ):
        self.equations = Equations.of(equations)
        self.constants = Constants.of(constants)
        self.system = system
        check_states(self.equations, system)
        names = (*system.states, *system.inputs, system.time, *self.constants.names, *terms)
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"constants: {duplicates[0]!r} is used twice among states, inputs, time and constants.")
        self.equations.check(names)
        unused = sorted(set(self.constants.names) - self.equations.names_used())
        if unused:
            raise ValueError(f"constants names {unused[0]!r}, which occurs in no equation; leave it out.")

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        return self.rates(t, y, u, {})

    def rates(
        self,
        t: Float[Array, ""],
        y: Float[Array, " state"],
        u: Float[Array, " input"],
        terms: Mapping[str, Float[Array, ""]],
    ) -> Float[Array, " state"]:
        """Time derivatives in the solver's units, given the values of the further names (`terms`)."""
        time, states, inputs = self.system.in_users_units(t, y, u)
        names = self.system.named(time, states, inputs) | self.constants.values() | dict(terms)
        found = self.equations(names)
        return self.system.scaled_rates(states, jnp.stack([found[name] for name in self.system.states]))


def check_states(equations: Equations, system: System) -> None:
    """Checks that there is one equation for each state of the system, and no other."""
    given = [name for name, _ in equations.texts]
    states = ", ".join(system.states)
    missing = [name for name in system.states if name not in given]
    if missing:
        raise ValueError(f"equations has no entry for the state {missing[0]!r}; the states are {states}.")
    unknown = [name for name in given if name not in system.states]
    if unknown:
        raise ValueError(
            f"equations has an entry for {unknown[0]!r}, which is not a state; the states are {states}. "
            f"If it is not measured, set hidden=[{unknown[0]}]."
        )
