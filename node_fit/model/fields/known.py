"""Known equations with constants to fit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from ..system import System
from .constants import Constants
from .equations import Equations, as_mapping, placed
from .field import AbstractVectorField
from .grammar import EquationError
from .trigger import Trigger

# An initial value, or [value, lower, upper] with null for no bound.
ConstantConfig = float | Sequence[float | None]


@stored_as("Known")
class Known(AbstractVectorField):
    """A vector field with known equations, written as text in the user's units; only the constants are fitted.

    ```python
    field = node_fit.Known(equations={"x": "y", "y": "-k*x"}, constants={"k": [1.0, 0, None]})
    fit = node_fit.fit(train, field=field)
    ```

    **Arguments:**

    - `system`: names and units of the states, inputs and time; given by `fit`.
    - `equations`: for each state, the text of its time derivative, such as `{x: -a*x + u}`, see `Equations`; or the
      path of a text file with a line for each, `x: -a*x + u`.
    - `constants`: for each name, an initial value, or `[value, lower, upper]` with null where there is no bound.
    - `terms`: further names that the equations may use; the caller of `rates` passes their values.
    - `triggers`: jumps of states where an expression falls through zero, such as `{when: x, set: {v: -e*v}}` of a ball
      that bounces off the floor at `x = 0`. The times follow the constants, and are differentiated. Needs an explicit
      method with held steps.
    - `key`: not used.

    **Raises:** `ValueError` if a state has no equation, or an equation uses an unknown name.
    """

    equations: Equations
    constants: Constants
    system: System
    triggers: tuple[Trigger, ...]

    def __init__(
        self,
        system: System,
        *,
        equations: Mapping[str, str] | str | Path,
        constants: Mapping[str, ConstantConfig] = MappingProxyType({}),
        terms: Sequence[str] = (),
        triggers: Sequence[Mapping[str, Any]] = (),
        key: PRNGKeyArray | None = None,
    ):
        texts = as_mapping(equations)
        self.equations = Equations.of(texts)
        self.triggers = tuple(Trigger.of(each, system.states) for each in triggers)
        self.constants = Constants.of(constants)
        self.system = system
        check_states(self.equations, system)
        names = (*system.states, *system.inputs, system.time, *self.constants.names, *terms)
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"constants: {duplicates[0]!r} is used twice among states, inputs, time and constants.")
        used = [self.equations]
        for trigger in self.triggers:
            used += [trigger.level, trigger.jumps]
        try:
            for each in used:
                each.check(names)
        except EquationError as error:
            raise placed(error, texts) from None
        unused = sorted(set(self.constants.names).difference(*(each.names_used() for each in used)))
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
        names = self.names(t, y, u)
        found = self.equations(names | dict(terms))
        states = jnp.stack([names[name] for name in self.system.states])
        return self.system.scaled_rates(states, jnp.stack([found[name] for name in self.system.states]))

    def levels(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        """The levels that trigger events as they fall through zero."""
        names = self.names(t, y, u)
        return jnp.stack([trigger.value(names) for trigger in self.triggers])

    def sizes(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        """The sum of the terms of each level to first order, without their signs: what its rounding scales with."""
        names = self.names(t, y, u)
        slopes = [jax.grad(trigger.value)(names) for trigger in self.triggers]
        return jnp.stack([sum(jnp.abs(slope[name] * names[name]) for name in names) for slope in slopes])

    def jumped(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, "trigger state"]:
        """States just after the event of each trigger, in the solver's units."""
        names = self.names(t, y, u)
        time, inputs = names[self.system.time], [names[name] for name in self.system.inputs]
        after = []
        for trigger in self.triggers:
            new = names | trigger.jumps(names)
            states = jnp.stack([new[name] for name in self.system.states])
            after.append(self.system.in_solver_units(time, states, jnp.stack(inputs) if inputs else u)[1])
        return jnp.stack(after)

    def names(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> dict[str, Float[Array, ""]]:
        """The values of the states, inputs, time and constants in the user's units, by their names."""
        return self.system.named(*self.system.in_users_units(t, y, u)) | self.constants.values()


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
