"""Known equations with constants to be fitted."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..system import System
from .constants import Constants
from .equations import Equations
from .field import AbstractVectorField

# A number, or [value, lower, upper] with null for no bound.
ConstantConfig = float | Sequence[float | None]


class Known(AbstractVectorField):
    """A right-hand side written down in the user's units, of which only the constants are fitted.

    **Arguments:**

    - `system`: what it is for.
    - `equations`: for each state the text of its time derivative, such as `{x: -a*x + u}`; see `Equations`.
    - `constants`: for each name an initial value, or `[value, lower, upper]` with null where there is no bound.
    - `terms`: further names that may stand in the equations, for a field that gives their values to `rates`.
    - `key`: not used.

    **Raises:** `ValueError` if a state has no equation, or an equation has a name that nobody knows.
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
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"constants: {twice[0]!r} is used twice among states, inputs, time and constants.")
        self.equations.check(names)

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
        """Time derivatives in the solver's units, given the values of further names in the equations."""
        time, states, inputs = self.system.in_users_units(t, y, u)
        names = self.system.named(time, states, inputs) | self.constants.values() | dict(terms)
        found = self.equations(names)
        return self.system.scaled_rates(states, jnp.stack([found[name] for name in self.system.states]))


def check_states(equations: Equations, system: System) -> None:
    """Refuses equations that are not those of the system's states."""
    given = [name for name, _ in equations.texts]
    states = ", ".join(system.states)
    lacking = [name for name in system.states if name not in given]
    if lacking:
        raise ValueError(f"equations has none for the state {lacking[0]!r}; the states are {states}.")
    foreign = [name for name in given if name not in system.states]
    if foreign:
        raise ValueError(
            f"equations has one for {foreign[0]!r}, which is no state; the states are {states}. "
            f"If nobody measured it, set hidden=[{foreign[0]}]."
        )
