"""Known equations, alone or combined with a network, and quantities derived from their constants.

Constants are fitted within bounds; states jump at triggers.
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ...data.domains import LARGEST_BOUND, Bounds, check_bounds, check_inside, from_line, is_real, to_line
from ...data.groups import BY_TRAJECTORY, Groups
from ...expressions.parsing import find_name
from ...expressions.tree import Application, Expression, Symbol, changes_once, comparisons, symbols
from ...runtime.placement import AnyArray, scope
from ...runtime.serialization import stored_as
from ...runtime.validation import is_list_or_tuple, is_mapping
from ..system import System
from .equations import (
    EquationError,
    Equations,
    as_mapping,
    check_symbol,
    evaluate_term,
    locate_error,
    nearest_symbol,
    normalize,
    parse,
)
from .field import AbstractVectorField
from .network import Activation, Layers, make_layers

# Characters that a name in an equation can't contain.
NO_LETTER = re.compile(r"\W")


@stored_as("Local")
class Local(eqx.Module):
    """A constant with a separate value for each group of trajectories.

    **Arguments:**

    - `name`, `by`: its name in equations, and the covariate that defines the groups.
    - `members`: the names of the constants that are fitted for it, one for each group.
    - `values`: the covariate in each group, in the user's units, increasing.
    """

    name: str = eqx.field(static=True)
    by: str = eqx.field(static=True)
    members: tuple[str, ...] = eqx.field(static=True)
    values: tuple[float, ...] = eqx.field(static=True)


@stored_as("Constants")
class Constants(eqx.Module):
    """Named numbers, such as reaction rates, that are fitted within their bounds; equal bounds fix a constant.

    A local constant, such as `k` by `strain`, is fitted as one constant per group, `k_1` and `k_2`.

    **Arguments:** (`Constants.of` makes and checks them.)

    - `raw`: the trained parameters, shape `(free,)`: the constants that are not fixed, mapped from their bounds to the
      real line and divided by their scales.
    - `names`: the names of all constants, fixed ones included.
    - `bounds`: lower and upper bound of each constant, `None` for no bound.
    - `scales`: the scale of each constant: its initial magnitude if it has no bounds, else 1.
    - `local`: the constants with a separate value for each group of trajectories.
    """

    raw: Float[Array, " free"]
    names: tuple[str, ...] = eqx.field(static=True)
    bounds: tuple[Bounds, ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)
    local: tuple[Local, ...] = ()

    @staticmethod
    def of(
        constants: Mapping[Any, object],
        local: Mapping[str, str] = MappingProxyType({}),
        groups: Mapping[str, Groups] = MappingProxyType({}),
    ) -> "Constants":
        """Makes constants from their initial values.

        **Arguments:**

        - `constants`: for each name a number, or `[value, lower, upper]` with `None` for no bound; in the user's units.
            Three equal numbers fix a constant.
        - `local`: the covariate that defines the groups, for each constant with a separate value per group.
        - `groups`: the groups of each covariate.

        **Raises:** `ValueError` if a name is invalid in an equation, or a value is not a number within its bounds.
        """
        constants, local_constants = with_members(constants, local, groups)
        values: list[float] = []
        bounds: list[Bounds] = []
        for name, entry in constants.items():
            check_symbol(name, "constant")
            value, pair = value_and_bounds(entry, f"constant {name!r}")
            values.append(value)
            bounds.append(pair)
        scales = [
            abs(value) or 1.0 if pair == (None, None) else 1.0 for value, pair in zip(values, bounds, strict=True)
        ]
        entries = zip(values, bounds, scales, strict=True)
        line = [
            to_line(np.asarray(value), pair) / scale for value, pair, scale in entries if not leaves_one_value(pair)
        ]
        raw = jnp.asarray(np.array(line, np.float64), float)
        return Constants(raw, tuple(constants), tuple(bounds), tuple(scales), local_constants)

    def free(self) -> list[tuple[str, Bounds, float]]:
        """Returns the fitted constants in the order of `raw`, with their bounds and scales."""
        entries = zip(self.names, self.bounds, self.scales, strict=True)
        return [entry for entry in entries if not leaves_one_value(entry[1])]

    def values(self) -> dict[str, Float[Array, ""]]:
        """Returns the constants by name, in the user's units and the dtype of `raw`."""
        return {name: jnp.asarray(value) for name, value in self.values_by_name(self.raw).items()}

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names that equations can use: those of constants and of local constants."""
        return (*self.names, *(constant.name for constant in self.local))

    def find_unused(self, symbols: Collection[str]) -> list[str]:
        """Returns the constants, by their user-defined names, that are not among the symbols of equations."""
        members = {member for constant in self.local for member in constant.members}
        return sorted({*self.names, *(constant.name for constant in self.local)} - members - set(symbols))

    def at(self, names: Mapping[str, Float[Array, ""]]) -> dict[str, Float[Array, ""]]:
        """Returns the constants by name in the user's units; local ones for the group defined by the covariates.

        **Arguments:** `names`: at least the values of inputs.
        """
        return self.values() | {constant.name: self.choose(constant, names[constant.by]) for constant in self.local}

    def choose(self, local: Local, key: Float[Array, ""]) -> Float[Array, ""]:
        """Returns the value of a local constant in the group with the nearest covariate."""
        free = self.free()
        places = [place for place, (name, _, _) in enumerate(free) if name in local.members]
        _, bounds, scale = free[places[0]]
        between = np.convolve(local.values, [0.5, 0.5], "valid")
        lower, upper = (jnp.asarray(np.array(ends), key.dtype) for ends in ((-np.inf, *between), (*between, np.inf)))
        is_in_group = ((key > lower) & (key <= upper)).astype(self.raw.dtype)
        return from_line(is_in_group @ self.raw[np.array(places)] * scale, bounds)

    def alone(self, by: str, value: float) -> "Constants":
        """Returns the constants of one group, without those of the other groups.

        **Arguments:** `by`, `value`: a covariate, and its value in the group.
        """
        mine = [constant for constant in self.local if constant.by == by]
        kept = {constant.members[constant.values.index(value)]: constant.name for constant in mine}
        dropped = {member for constant in mine for member in constant.members} - set(kept)
        free = np.array([name not in dropped for name, _, _ in self.free()], bool)
        places = [place for place, name in enumerate(self.names) if name not in dropped]
        return Constants(
            self.raw[np.flatnonzero(free)],
            tuple(kept.get(self.names[place], self.names[place]) for place in places),
            tuple(self.bounds[place] for place in places),
            tuple(self.scales[place] for place in places),
            tuple(constant for constant in self.local if constant.by != by),
        )

    def around(self, shares: Float[np.ndarray, "... free"], factor: float) -> Float[np.ndarray, "... free"]:
        """Returns parameters (`raw`) of constants at shares from 0 to 1 of the ranges around these.

        The distance of a constant from a single bound, or its size without bounds, varies log-uniformly by a factor;
        between two bounds a constant is uniform.
        """
        values = self.as_dict()
        line = [
            to_line(np.asarray(value_at(np.asarray(share), values[name], pair, factor)), pair) / scale
            for (name, pair, scale), share in zip(self.free(), np.moveaxis(shares, -1, 0), strict=True)
        ]
        return np.stack(line, axis=-1).astype(np.asarray(self.raw).dtype)

    def as_dict(self) -> dict[str, float]:
        """Returns the constants by name, in the user's units, as Python floats."""
        raw = np.asarray(jax.device_get(self.raw), np.float64)
        return {name: float(value) for name, value in self.values_by_name(raw).items()}

    def values_by_name(self, raw: Float[AnyArray, " free"]) -> dict[str, Float[AnyArray, ""]]:
        fitted = {
            name: from_line(part * scale, pair) for (name, pair, scale), part in zip(self.free(), raw, strict=True)
        }
        kind = np if isinstance(raw, np.ndarray) else jnp
        held = zip(self.names, self.bounds, strict=True)
        return {name: fitted[name] if name in fitted else kind.asarray(pair[0], raw.dtype) for name, pair in held}


def constants_in(part: PyTree) -> list[Constants]:
    """Returns the groups of constants in a part of a model."""
    nodes = jax.tree.leaves(part, is_leaf=lambda node: isinstance(node, Constants))
    return [node for node in nodes if isinstance(node, Constants)]


def with_members(
    constants: Mapping[object, object], local: Mapping[str, str], groups: Mapping[str, Groups]
) -> tuple[Mapping[object, object], tuple[Local, ...]]:
    """Replaces local constants with one constant per group, and returns all constants and the local ones.

    **Raises:** `ValueError` if a local name is not a constant, or is fixed, or two constants get the same name.
    """
    for name in local:
        if name not in constants:
            raise ValueError(f"local names {name!r}, which is none of the constants; add its first value to constants.")
        if leaves_one_value(value_and_bounds(constants[name], f"constant {name!r}")[1]):
            raise ValueError(f"local names {name!r}, which is held at one value; leave it out of local.")
    result: dict[object, object] = {}
    local_constants: list[Local] = []
    for name, entry in constants.items():
        members = [name]
        if isinstance(name, str) and name in local:
            labels, values = groups[local[name]]
            members = [f"{name}_{NO_LETTER.sub('_', label)}" for label in labels]
            local_constants.append(Local(name, local[name], tuple(members), values))
        for member in members:
            if member in result or (member != name and member in constants):
                raise ValueError(f"constant {member!r} would have two meanings beside local {name!r}; rename one.")
            result[member] = entry
    return result, tuple(local_constants)


def leaves_one_value(bounds: Bounds) -> bool:
    """Whether bounds leave only one value."""
    return bounds[0] is not None and bounds[0] == bounds[1]


def value_at(share: np.ndarray, value: float, bounds: Bounds, factor: float) -> np.ndarray | np.floating:
    """Returns values around another value, within its bounds, at shares of their range."""
    lower, upper = bounds
    if lower is not None and upper is not None:
        return lower + (upper - lower) * (0.01 + 0.98 * share)
    times = factor ** (2 * share - 1)
    if lower is not None:
        return lower + (value - lower) * times
    if upper is not None:
        return upper - (upper - value) * times
    return value * times if value else 2 * share - 1


def value_and_bounds(entry: object, name: str) -> tuple[float, Bounds]:
    """Reads the initial value and the bounds of a constant from its entry."""
    entries = entry if is_list_or_tuple(entry) else (entry, None, None)
    if len(entries) != 3:
        raise ValueError(f"{name} must be a number or [value, lower, upper], got a list of {len(entries)}.")
    value, *bounds = entries
    if not is_real(value):
        raise ValueError(f"{name} must be a number of magnitude up to {LARGEST_BOUND:g}, got {value!r:.40}.")
    if is_real(bounds[0]) and value == bounds[0] == bounds[1]:
        return float(value), (float(value), float(value))
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
    def of(given: object, states: tuple[str, ...]) -> "Trigger":
        """Makes a trigger from `{when: expression, set: {state: expression}}`.

        **Raises:** `ValueError` if it has another form, or sets a name that is not a state.
        """
        if not is_mapping(given) or set(given) != {WHEN, "set"} or not is_mapping(jumps := given["set"]):
            raise ValueError(f"a trigger must have the form {SHAPE}, got {given!r:.80}.")
        unknown = [name for name in jumps if name not in states]
        if unknown:
            known = ", ".join(states)
            raise ValueError(f"a trigger sets {unknown[0]!r}, which is not a state; the states are {known}.")
        return Trigger(Equations.of({WHEN: given[WHEN]}), Equations.of(jumps))

    def value(self, names: Mapping[str, Float[Array, ""]]) -> Float[Array, ""]:
        """Computes the level from the values of all names."""
        return self.level(names)[WHEN]


# An initial value, or [value, lower, upper] with null for no bound.
ConstantConfig = float | int | Sequence[float | int | None]


@stored_as("Known")
class Known(AbstractVectorField):
    """A vector field with known equations, written as text in the user's units; only the constants are fitted.

    ```python
    field = node_fit.Known(equations={"x": "y", "y": "-k*x"}, constants={"k": [1.0, 0, None]})
    fit = node_fit.fit(train, field=field)
    ```

    **Arguments:**

    - `system`: names and units of the states, inputs and time; set by `fit`.
    - `equations`: for each state, the text of its time derivative, such as `{x: -a*x + u}`, see `Equations`; or the
      path of a text file with one line per state, `x: -a*x + u`.
    - `constants`: for each name, an initial value, or `[value, lower, upper]` with null for no bound.
    - `local`: constants with a separate value for each group of trajectories, with the covariate that defines the
      groups, such as `{k: strain}`, or with `trajectory` for one value per trajectory.
    - `terms`: further names that the equations can use; the caller of `rates` passes their values.
    - `groups`: the groups of each covariate of `local`, from the training data; set by `fit`.
    - `triggers`: jumps of states when an expression falls through zero, such as `{when: x, set: {v: -e*v}}` for a ball
      that bounces off the floor at `x = 0`. The event times depend on the constants, and are differentiated.
    - `key`: not used.

    **Raises:** `ValueError` if a state has no equation, or an equation uses an unknown name.
    """

    has_equations: ClassVar[bool] = True
    has_network: ClassVar[bool] = False
    is_sought: ClassVar[bool] = False  # Whether `fit` finds the equations in the training data.
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
        local: Mapping[str, str] = MappingProxyType({}),
        terms: Sequence[str] = (),
        triggers: Sequence[Mapping[str, object]] = (),
        groups: Mapping[str, Groups] = MappingProxyType({}),
        key: PRNGKeyArray | None = None,
    ):
        texts = as_mapping(equations)
        self.equations = Equations.of(texts)
        self.triggers = tuple(Trigger.of(part, system.states) for part in triggers)
        self.constants = Constants.of(constants, local, groups)
        self.system = system
        check_states(self.equations, system)
        names = (*system.states, *system.inputs, system.time, *self.constants.symbols, *terms)
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"constants: {duplicates[0]!r} is used twice among states, inputs, time and constants.")
        used = [self.equations]
        for trigger in self.triggers:
            used += [trigger.level, trigger.jumps]
        try:
            for part in used:
                part.check(names)
        except EquationError as error:
            raise locate_error(error, texts) from None
        unused = self.constants.find_unused({symbol for part in used for symbol in part.names_used()})
        if unused:
            raise ValueError(
                f"constants names {unused[0]!r}, which occurs in no equation; leave it out, or, if a formula of a "
                "measured channel has it, move it to observation.constants."
            )

    def texts(self) -> dict[str, str]:
        return dict(self.equations.texts)

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
        outcomes: Bool[Array, " switch"] | None = None,
    ) -> Float[Array, " state"]:
        """Computes time derivatives in the solver's units.

        **Arguments:** `terms`: the values of the further names. `outcomes`: of `switches`; None for those at this time.
        """
        names = self.names(t, y, u)
        values: Mapping[Expression, Array] = {} if outcomes is None else dict(zip(self.switches, outcomes, strict=True))
        rates = self.equations(names | dict(terms), values)
        states = jnp.stack([names[name] for name in self.system.states])
        return self.system.scaled_rates(states, jnp.stack([rates[name] for name in self.system.states]))

    @property
    def switches(self) -> tuple[Application, ...]:
        """The distinct conditions in the equations that change at a single time, such as `t > t1`."""
        constants, time = {normalize(name) for name in self.constants.symbols}, normalize(self.system.time)
        conditions = [call for tree in self.equations.trees.values() for call in comparisons(tree)]
        return tuple(dict.fromkeys(condition for condition in conditions if changes_once(condition, time, constants)))

    def switch_times(self, u: Float[Array, " input"]) -> Float[Array, " switch"]:
        """Computes the times at which `switches` change, in the solver's units; infinite if they never do."""
        names, zero = self.names_at(jnp.zeros((), u.dtype), u), jnp.zeros((), u.dtype)
        time, scale = normalize(self.system.time), self.system.scaler.time_scale
        start = names[time]
        times: list[Array] = []
        for condition in self.switches:
            left, right = condition.arguments

            def level(t: Array, left: Expression = left, right: Expression = right) -> Array:
                sides = (evaluate_term(side, names | {time: t}, start.dtype) for side in (left, right))
                return next(sides) - next(sides)

            value, slope = jax.jvp(level, (start,), (jnp.ones_like(start),))
            moves = slope != 0
            times.append(jnp.where(moves, zero - value / jnp.where(moves, slope, 1) / scale, jnp.inf))
        return jnp.stack(times)

    def outcomes(self, t: Float[Array, ""], u: Float[Array, " input"]) -> Bool[Array, " switch"]:
        """Evaluates the conditions `switches` at a time."""
        names = self.names_at(t, u)
        dtype = names[normalize(self.system.time)].dtype
        return jnp.stack([jnp.asarray(evaluate_term(condition, names, dtype), bool) for condition in self.switches])

    def names_at(self, t: Float[Array, ""], u: Float[Array, " input"]) -> dict[str, Float[Array, ""]]:
        """Returns the time, the inputs and the constants in the user's units by normalised name."""
        names = self.names(t, jnp.zeros(len(self.system.states), t.dtype), u)
        return {normalize(name): value for name, value in names.items()}

    def between(
        self,
        t: Float[Array, ""],
        y: Float[Array, " state"],
        u: Float[Array, " input"],
        outcomes: Bool[Array, " switch"],
    ) -> Float[Array, " state"]:
        """Computes time derivatives in the solver's units while `switches` have these outcomes."""
        return self.rates(t, y, u, {}, outcomes)

    def levels(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        """Computes the levels that trigger events as they fall through zero."""
        names = self.names(t, y, u)
        return jnp.stack([trigger.value(names) for trigger in self.triggers])

    def sizes(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        """Computes the first-order sum of the absolute terms of each level, which its rounding error scales with."""
        names = self.names(t, y, u)
        slopes = [jax.grad(trigger.value)(names) for trigger in self.triggers]
        return jnp.stack([sum(jnp.abs(slope[name] * names[name]) for name in names) for slope in slopes])

    def apply_triggers(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, "trigger state"]:
        """Computes states just after the event of each trigger, in the solver's units."""
        names = self.names(t, y, u)
        time, inputs = names[self.system.time], [names[name] for name in self.system.inputs]
        after: list[Array] = []
        for trigger in self.triggers:
            new = names | trigger.jumps(names)
            states = jnp.stack([new[name] for name in self.system.states])
            after.append(self.system.in_solver_units(time, states, jnp.stack(inputs) if inputs else u)[1])
        return jnp.stack(after)

    def names(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> dict[str, Float[Array, ""]]:
        """Returns the states, inputs, time and constants by name, in the user's units."""
        named = self.system.values_by_name(*self.system.in_users_units(t, y, u))
        return named | self.constants.at(named)


def check_states(equations: Equations, system: System) -> None:
    """Checks that every state of the system has an equation, and that all equations are for states."""
    names = [name for name, _ in equations.texts]
    states = ", ".join(system.states)
    missing = [name for name in system.states if name not in names]
    if missing:
        raise ValueError(f"equations has no entry for the state {missing[0]!r}; the states are {states}.")
    unknown = [name for name in names if name not in system.states]
    if unknown:
        raise ValueError(
            f"equations has an entry for {unknown[0]!r}, which is not a state; the states are {states}. "
            f"If it is not measured, set hidden=[{unknown[0]}]."
        )


KIND = "derived quantity"


@dataclass(frozen=True)
class Quantity:
    """An expression of constants.

    - `name`, `text`: its name and its expression.
    """

    name: str
    text: str

    @property
    def tree(self) -> Expression:
        return parse(self.name, self.text, KIND)

    @property
    def names(self) -> tuple[str, ...]:
        """The normalised names of its constants."""
        return tuple(dict.fromkeys(symbols(self.tree)))

    def uses(self, constant: str) -> bool:
        return normalize(constant) in self.names

    def of(self, values: Mapping[str, float | AnyArray]) -> float | AnyArray:
        """Computes its value in double precision; an array of values if a constant has an array of values."""
        with scope("x64"), np.errstate(all="ignore"):
            value = np.asarray(self.evaluate(values))
        return value if value.ndim else float(value)

    def evaluate(self, values: Mapping[str, float | AnyArray]) -> Array:
        """Computes its value as a differentiable JAX array; call it in the scope of double precision."""
        arrays = {normalize(name): jnp.asarray(value, jnp.float64) for name, value in values.items()}
        return evaluate_term(self.tree, arrays, jnp.float64)

    def is_positive(self, bounds: Mapping[str, Bounds]) -> bool:
        """Whether its form guarantees a positive value for all constants within their bounds."""

        def positive(node: Expression) -> bool:
            match node:
                case Symbol(name):
                    lower = next(pair[0] for key, pair in bounds.items() if normalize(key) == name)
                    return lower is not None and lower >= 0
                case Application("+" | "*" | "/" | "minimum" | "maximum", arguments):
                    return all(map(positive, arguments))
                case Application("^" | "sqrt", (argument, *_)):
                    return positive(argument)
                case Application("exp" | "sigmoid"):
                    return True
                case _:
                    # An expression without constants is a number.
                    return not any(symbols(node)) and float(evaluate_term(node, {}, float)) > 0

        return positive(self.tree)


def quantities(texts: Mapping[str, str | float] | None, constants: Sequence[str] | None = None) -> tuple[Quantity, ...]:
    """Reads derived quantities.

    **Arguments:** `texts`: their expressions by name. `constants`: the constants that they can use, if known.

    **Raises:** `ValueError` with the name of the quantity, the problem, and the column.
    """
    result: list[Quantity] = []
    for name, text in (texts or {}).items():
        check_symbol(name, KIND)
        check_expression(name, text)
        result.append(Quantity(name, " ".join(str(text).split())))
        _ = result[-1].tree
    if constants is not None and result:
        check_quantities(result, constants)
    return tuple(result)


def check_expression(name: str, text: object) -> None:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{KIND} {name!r} must be a string such as 'log(2)/k', got {text!r:.60}.")


def check_quantities(found: Sequence[Quantity], constants: Sequence[str]) -> None:
    """Raises an error if a quantity uses a name that is not a constant, or has the name of a constant."""
    if not constants:
        raise ValueError(
            f"{KIND} {found[0].name!r} needs constants, and the model has none; give field.constants with field=known "
            "or field=hybrid."
        )
    allowed = [normalize(name) for name in constants]
    for quantity in found:
        if normalize(quantity.name) in allowed:
            raise ValueError(f"{KIND} {quantity.name!r} has the name of a constant; rename it.")
        for name in symbols(quantity.tree):
            if name not in allowed:
                raise ValueError(
                    f"{KIND} {quantity.name!r}: {name!r} is not a constant (column {find_name(name, quantity.text)} of "
                    f"{quantity.text[:200]!r}); {nearest_symbol(name, allowed)}"
                )


@stored_as("Hybrid")
class Hybrid(AbstractVectorField):
    """Known equations with a network for unknown terms in them, or for a remainder that is added to the derivatives.

    The network gets scaled inputs of order one. Its initial output is zero, so the first simulation is that of the
    equations alone.

    **Arguments:**

    - `system`, `equations`, `constants`, `local`, `groups`: as in `Known`.
    - `terms`: names in the equations that the network provides, with their typical magnitudes in the user's units.
    - `rest`: whether the network adds a remainder to the derivatives, or the names of the states whose derivatives it
      adds to. By default, it does so if there are no terms.
    - `sees`: names of the network's inputs: states, inputs, or the time; by default all states and inputs, without
      the number of the trajectory.
    - `width`, `depth`: units in each hidden layer, and number of layers; if None 32 and 2, in a population 4 and 1.
    - `activation`: as in `MLP`.
    - `triggers`: as in `Known`.
    - `key`: PRNG key of the initial weights.
    """

    has_equations: ClassVar[bool] = True
    known: Known
    network: Layers
    terms: tuple[tuple[str, float], ...] = eqx.field(static=True)
    rest: tuple[int, ...] = eqx.field(static=True)
    sees: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        system: System,
        *,
        equations: Mapping[str, str] | str | Path,
        constants: Mapping[str, ConstantConfig] = MappingProxyType({}),
        local: Mapping[str, str] = MappingProxyType({}),
        terms: Mapping[str, float] | None = None,
        rest: bool | Sequence[str] | None = None,
        width: int | None = None,
        depth: int | None = None,
        activation: Activation = "tanh",
        sees: Sequence[str] | None = None,
        triggers: Sequence[Mapping[str, object]] = (),
        groups: Mapping[str, Groups] = MappingProxyType({}),
        key: PRNGKeyArray,
    ):
        terms = dict(terms or {})
        for name in terms:
            check_symbol(name, "term")
        self.known = Known(
            system,
            equations=equations,
            constants=constants,
            local=local,
            terms=tuple(terms),
            triggers=triggers,
            groups=groups,
        )
        unused = sorted(set(terms) - self.known.equations.names_used())
        if unused:
            raise ValueError(f"terms names {unused[0]!r}, which occurs in no equation.")
        self.terms = tuple((name, float(size)) for name, size in terms.items())
        self.rest = corrected_states(system, not terms if rest is None else rest)
        numbered = BY_TRAJECTORY in groups
        self.sees = tuple(
            name for name in input_names(system, sees) if sees is not None or not numbered or name != BY_TRAJECTORY
        )
        outputs = len(self.terms) + len(self.rest)
        if outputs == 0:
            raise ValueError("rest and terms leave the network without outputs; use the field `known`.")
        turns = dict(zip(system.states, system.scaler.turns, strict=False))
        angles = {index: system.states.index(name) for index, name in enumerate(self.sees) if turns.get(name)}
        size = {"width": 32 if width is None else width, "depth": 2 if depth is None else depth}
        self.network = make_layers(
            len(self.sees), outputs, system.scaler, angles, activation=activation, key=key, **size
        ).with_zero_output()

    def texts(self) -> dict[str, str]:
        states, network = self.known.system.states, f"network({', '.join(self.sees)})"
        added = {states[state] for state in self.rest}
        return {name: f"{text} + {network}" if name in added else text for name, text in self.known.texts().items()}

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        return self.between(t, y, u, None)

    def between(
        self,
        t: Float[Array, ""],
        y: Float[Array, " state"],
        u: Float[Array, " input"],
        outcomes: Bool[Array, " switch"] | None,
    ) -> Float[Array, " state"]:
        """Computes `Known.between` with the network; if `outcomes` is None, conditions are evaluated at this time."""
        output = self.correction(t, y, u)
        terms = {name: size * output[index] for index, (name, size) in enumerate(self.terms)}
        rates = self.known.rates(t, y, u, terms, outcomes)
        return rates.at[jnp.array(self.rest, int)].add(output[len(self.terms) :]) if self.rest else rates

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return self.known.triggers

    @property
    def switches(self) -> tuple[Application, ...]:
        return self.known.switches

    def switch_times(self, u: Float[Array, " input"]) -> Float[Array, " switch"]:
        return self.known.switch_times(u)

    def outcomes(self, t: Float[Array, ""], u: Float[Array, " input"]) -> Bool[Array, " switch"]:
        return self.known.outcomes(t, u)

    def levels(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        return self.known.levels(t, y, u)

    def sizes(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " trigger"]:
        return self.known.sizes(t, y, u)

    def apply_triggers(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, "trigger state"]:
        return self.known.apply_triggers(t, y, u)

    def correction(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " output"]:
        """Evaluates the network in scaled units: first the terms, then the remainder of the derivatives."""
        names = self.known.system.values_by_name(t, y, u)
        return self.network(jnp.stack([names[name] for name in self.sees]))


def input_names(system: System, names: Sequence[str] | None) -> tuple[str, ...]:
    """Checks and returns the names of the network's inputs."""
    known = (*system.states, *system.inputs, system.time)
    if names is not None and not names:
        raise ValueError(f"sees is empty, so the network has no inputs; the names are {', '.join(known)}.")
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(known)}."
            raise ValueError(f"sees names {name!r}, which is not a state, an input or the time; {hint}")
    return known[:-1] if names is None else tuple(names)


def corrected_states(system: System, rest: bool | Sequence[str]) -> tuple[int, ...]:
    """Returns the indices of the states whose derivatives the network adds to."""
    if isinstance(rest, bool):
        return tuple(range(len(system.states))) if rest else ()
    for name in rest:
        if name not in system.states:
            raise ValueError(f"rest names {name!r}, which is not a state; the states are {', '.join(system.states)}.")
    return tuple(system.states.index(name) for name in rest)


class Sparse(Known):
    """Equations with few terms, which `fit` discovers in the training data before it fits their constants.

    ```python
    fit = node_fit.fit(train, field=node_fit.Sparse)
    print(fit.options.field.keywords["equations"], fit.constants)
    ```

    `node_fit.discover` also returns competing equations and more details. All states must be measured. The arguments
    are those of `node_fit.discover`.

    **Raises:** `ValueError` if it is called, since equations are discovered in data.
    """

    is_sought: ClassVar[bool] = True

    def __init__(
        self,
        system: System,
        *,
        libraries: Sequence[str] | None = None,
        terms: Sequence[str] = (),
        required: Sequence[str] = (),
        forbidden: Sequence[str] = (),
        conserved: Sequence[str] = (),
        mass_action: bool = False,
        effort: str = "normal",
        key: PRNGKeyArray | None = None,
    ):
        raise ValueError("sparse equations are found in data; pass field=node_fit.Sparse to node_fit.fit.")


class Mechanical(Known):
    """The equations of motion of a mechanism, which `fit` discovers in positions, velocities and forces.

    It then fits their constants: masses, gravity, springs and friction.

    ```python
    fit = node_fit.fit(train, field=node_fit.Mechanical)
    print(fit.equations, fit.constants)
    ```

    Up to three coordinates are written as masses on springs, as a chain of links or as pendulums on a cart, whichever
    explains the records best. States are all positions and all velocities; inputs are forces or torques, each on a
    different coordinate.

    **Arguments:** `positions`, `velocities`: names of states, in the same order; by default, velocities are paired with
    the positions whose changes equal their integrals.

    **Raises:** `ValueError` if it is called, since equations are discovered in data.
    """

    is_sought: ClassVar[bool] = True

    def __init__(
        self,
        system: System,
        *,
        positions: Sequence[str] | None = None,
        velocities: Sequence[str] | None = None,
        key: PRNGKeyArray | None = None,
    ):
        raise ValueError("mechanisms are found in data; pass field=node_fit.Mechanical to node_fit.fit.")
