"""Known equations with constants to fit, which have bounds, and with triggers at which states jump."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...data.bounds import LARGEST_BOUND, Bounds, check_bounds, check_inside, from_line, is_real, to_line
from ...runtime.serialization import stored_as
from ..system import System
from .equations import EquationError, Equations, as_mapping, check_symbol, placed
from .field import AbstractVectorField


@stored_as("Constants")
class Constants(eqx.Module):
    """Named numbers, such as reaction rates, that are fitted within their bounds.

    **Arguments:** (`Constants.of` makes and checks them.)

    - `raw`: the trained parameters, shape `(constant,)`: each constant, mapped from its bounds to the real line and
      divided by its scale.
    - `names`: the constants' names.
    - `bounds`: lower and upper bound of each constant, `None` where there is none.
    - `scales`: the scale of each constant: its initial magnitude if it has no bounds, else 1.
    """

    raw: Float[Array, " constant"]
    names: tuple[str, ...] = eqx.field(static=True)
    bounds: tuple[Bounds, ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)

    @staticmethod
    def of(constants: Mapping[Any, Any]) -> "Constants":
        """Makes constants from their initial values.

        **Arguments:**

        - `constants`: for each name a number, or `[value, lower, upper]` with `None` where there is no bound; in the
            user's units.

        **Raises:** `ValueError` if a name is invalid in an equation, or a value is not a number within its bounds.
        """
        values, bounds = [], []
        for name, entry in constants.items():
            check_symbol(name, "constant")
            value, pair = value_and_bounds(entry, f"constant {name!r}")
            values.append(value)
            bounds.append(pair)
        scales = [
            abs(value) or 1.0 if pair == (None, None) else 1.0 for value, pair in zip(values, bounds, strict=True)
        ]
        line = [to_line(np.asarray(value), pair) for value, pair in zip(values, bounds, strict=True)]
        raw = jnp.asarray(np.array(line, np.float64) / np.array(scales, np.float64), float)
        return Constants(raw, tuple(constants), tuple(bounds), tuple(scales))

    def values(self) -> dict[str, Float[Array, ""]]:
        """The constants by name, in the user's units and the dtype of `raw`."""
        return self.named(self.raw)

    def around(self, shares: Float[np.ndarray, "... constant"], factor: float) -> Float[np.ndarray, "... constant"]:
        """The parameters (`raw`) of other constants, at shares from 0 to 1 of the ranges around these.

        The distance of a constant from a single bound, or its size without bounds, varies by a factor, log-uniformly;
        between two bounds a constant is uniform.
        """
        given = zip(self.as_dict().values(), self.bounds, self.scales, np.moveaxis(shares, -1, 0), strict=True)
        line = [
            to_line(value_at(np.asarray(share), value, pair, factor), pair) / scale
            for value, pair, scale, share in given
        ]
        return np.stack(line, axis=-1).astype(np.asarray(self.raw).dtype)

    def as_dict(self) -> dict[str, float]:
        """The constants by name, in the user's units, as Python floats."""
        raw = np.asarray(jax.device_get(self.raw), np.float64)
        return {name: float(value) for name, value in self.named(raw).items()}

    def named(self, raw: Float[Any, " constant"]) -> dict[str, Any]:
        parts = zip(self.names, raw, self.scales, self.bounds, strict=True)
        return {name: from_line(part * scale, bounds) for name, part, scale, bounds in parts}


def value_at(share: np.ndarray, value: float, bounds: Bounds, factor: float) -> np.ndarray | np.floating:
    """Values around another, within its bounds, at shares of their range."""
    lower, upper = bounds
    if lower is not None and upper is not None:
        return lower + (upper - lower) * (0.01 + 0.98 * share)
    times = factor ** (2 * share - 1)
    if lower is not None:
        return lower + (value - lower) * times
    if upper is not None:
        return upper - (upper - value) * times
    return value * times if value else 2 * share - 1


def value_and_bounds(entry: Any, name: str) -> tuple[float, Bounds]:
    """Reads the initial value and the bounds of a constant from its entry."""
    if isinstance(entry, list | tuple) and len(entry) != 3:
        raise ValueError(f"{name} must be a number or [value, lower, upper], got a list of {len(entry)}.")
    value, *bounds = entry if isinstance(entry, list | tuple) else (entry, None, None)
    if not is_real(value):
        raise ValueError(f"{name} must be a number of magnitude up to {LARGEST_BOUND:g}, got {value!r:.40}.")
    pair = check_bounds(bounds, name)
    check_inside(np.asarray(value, np.float64), pair, name)
    return float(value), pair


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
