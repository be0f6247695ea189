"""A trigger: a level of the states at which some of them jump, as equations."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from ...runtime.stored_names import stored_as
from .equations import Equations

WHEN = "when"
SHAPE = "{when: x, set: {v: -0.9*v}}"


@stored_as("Trigger")
class Trigger(eqx.Module):
    """States that jump when a level falls through zero.

    **Arguments:** (`Trigger.of` makes and checks them.)

    - `level`: the expression of the level, under the name `when`.
    - `jumps`: the expressions of the states just after, from the values just before.
    """

    level: Equations
    jumps: Equations

    @staticmethod
    def of(given: Any, states: tuple[str, ...]) -> "Trigger":
        """Makes a trigger from `{when: expression, set: {state: expression}}`.

        **Raises:** `ValueError` if it has another shape, or sets what is not a state.
        """
        if not isinstance(given, Mapping) or set(given) != {WHEN, "set"} or not isinstance(given["set"], Mapping):
            raise ValueError(f"a trigger must have the form {SHAPE}, got {given!r:.80}.")
        unknown = [name for name in given["set"] if name not in states]
        if unknown:
            known = ", ".join(states)
            raise ValueError(f"a trigger sets {unknown[0]!r}, which is not a state; the states are {known}.")
        return Trigger(Equations.of({WHEN: given[WHEN]}), Equations.of(given["set"]))

    def value(self, names: Mapping[str, Float[Array, ""]]) -> Float[Array, ""]:
        """The level, from the values of all names."""
        return self.level(names)[WHEN]
