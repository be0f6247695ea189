"""A model as a system of equations: quantities with rates, held quantities, rules, and their values by name."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..expressions.evaluation import as_float, evaluate, stack_scalars
from ..expressions.operations import Value
from ..expressions.together import Together
from ..expressions.tree import (
    Application,
    Expression,
    ExpressionSize,
    Number,
    Symbol,
    comparisons,
    measure,
    split_sum,
    symbols,
)
from ..solver.sparsity import jacobian_of_sums
from .formulas import MAX_DEPTH_WRITTEN_OUT, TIME, is_affine_in_time

Constants = Mapping[str, Value]
ZERO = Number(0.0)
MAX_SHOWN = 8  # maximum number of names of a circle in its error message
# Number of names, numbers and operations in the rates above which operations of one kind are batched. Random networks
# of 25, 50, 100 and 200 states (500, 1,000, 2,000 and 3,900 of them) then compile in 1.0, 0.6, 0.5 and 0.35 of the
# time, and are simulated in 0.8, 0.9, 0.5 and 0.6 of it; Bachmann's model, with 460, takes 1.5 times as long.
MANY_PARTS = 1_000


@dataclass(frozen=True)
class Event:
    """Assignments that are executed when a condition begins to hold.

    - `trigger`: the condition. `initial`: its value before the start.
    - `delay`, `priority`: delay of the assignments, and their priority among simultaneous ones.
    - `assignments`: the new value of each name.
    - `is_persistent`: whether the assignments still happen if the condition ceases to hold during the delay.
    - `from_trigger_time`: whether their values are computed at the time of the trigger, not of the execution.
    """

    name: str
    trigger: Expression
    assignments: Mapping[str, Expression]
    delay: Expression = ZERO
    priority: Expression = ZERO
    initial: bool = True
    is_persistent: bool = True
    from_trigger_time: bool = True


@dataclass(frozen=True)
class Model:
    """The equations of a model, by name.

    Species are integrated as amounts. The value of a species that has a container is a concentration.

    - `place`: the file, for error messages.
    - `initial`: the initial values of all quantities without a rule.
    - `rates`: the time derivatives of the moving quantities; of amounts for species.
    - `rules`: quantities computed from the others at all times. `reactions`: the rates of reactions.
    - `containers`: the compartment of each species that is a concentration.
    """

    place: str
    initial: Mapping[str, Expression]
    rates: Mapping[str, Expression] = field(default_factory=dict[str, Expression])
    rules: Mapping[str, Expression] = field(default_factory=dict[str, Expression])
    reactions: Mapping[str, Expression] = field(default_factory=dict[str, Expression])
    containers: Mapping[str, str] = field(default_factory=dict[str, str])
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        lacking = self.without_value()
        without = f"; no value has {', '.join(lacking[:6])}{', ...' if len(lacking) > 6 else ''}" if lacking else ""
        return (
            f"Model {self.place}: {len(self.rates)} states, {len(self.initial) - len(self.rates)} other quantities, "
            f"{len(self.reactions)} reactions, {len(self.rules)} rules, {len(self.events)} events{without}"
        )

    def names(self) -> frozenset[str]:
        return frozenset((*self.initial, *self.rates, *self.rules, *self.reactions, TIME))

    def formulas(self) -> Iterator[tuple[str, Expression]]:
        """Yields all formulas, each with a description of its owner."""
        for kind, group in (("start", self.initial), ("rate", self.rates), ("rule", self.rules)):
            yield from ((f"the {kind} of {name!r}", formula) for name, formula in group.items())
        yield from ((f"the reaction {name!r}", formula) for name, formula in self.reactions.items())
        for event in self.events:
            for formula in (event.trigger, event.delay, event.priority, *event.assignments.values()):
                yield f"the event {event.name!r}", formula

    def without_value(self) -> list[str]:
        """Returns the quantities that are used but have no initial value."""
        used = {name for _, formula in self.formulas() for name in symbols(formula)} | set(self.rates)
        numbers = {name: each.value for name, each in self.initial.items() if isinstance(each, Number)}
        return [name for name, value in numbers.items() if value != value and name in used]

    def check(self, known: Iterable[str] = ()) -> None:
        """Refuses unknown names, and rules that form a circle or a chain that is too long."""
        names = self.names().union(known)
        for owner, formula in self.formulas():
            unknown = next((name for name in symbols(formula) if name not in names), None)
            if unknown is not None:
                raise ValueError(f"{self.place}: {owner} names {unknown!r}, which the model does not define.")
        always = {**self.rules, **self.reactions}
        for graph, kind in ((always, "rules"), ({**self.initial, **always}, "starts")):
            edges = {name: set(symbols(formula)) & graph.keys() for name, formula in graph.items()}
            try:
                order = tuple(TopologicalSorter(edges).static_order())
            except CycleError as error:
                names_in_circle = error.args[1]
                circle = " -> ".join(map(repr, names_in_circle[:MAX_SHOWN]))
                circle += " -> ..." if len(names_in_circle) > MAX_SHOWN else ""
                raise ValueError(f"{self.place}: {kind} refer to each other in a circle: {circle}.") from None
            sizes: dict[str, ExpressionSize] = {}
            for name in order:
                sizes[name] = measure(graph[name], sizes)
                if sizes[name].depth > MAX_DEPTH_WRITTEN_OUT:
                    raise ValueError(
                        f"{self.place}: {kind} refer to each other in a long chain that ends at {name!r}: written out, "
                        f"it is nested over {MAX_DEPTH_WRITTEN_OUT} deep; write the chain shorter."
                    )


class Change(NamedTuple):
    """A new value, and whether it replaces the old one."""

    is_given: Bool[Array, ""] | bool
    value: Value


class Scope(Mapping[str, Value]):
    """Values by name, computed on first access and cached."""

    def __init__(
        self,
        known: Mapping[str, Value],
        formulas: Mapping[str, Expression],
        frozen: Mapping[Expression, Value] = MappingProxyType({}),
    ):
        self.values_known = dict(known)
        self.formulas, self.frozen = formulas, frozen

    def __getitem__(self, name: str) -> Value:
        if name not in self.values_known:
            self.values_known[name] = evaluate(self.formulas[name], self, self.frozen)
        return self.values_known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.values_known, **self.formulas})

    def __len__(self) -> int:
        return len({**self.values_known, **self.formulas})


class StartScope(Scope):
    """Initial values, with changes that take precedence over everything else."""

    def __init__(self, known: Mapping[str, Value], formulas: Mapping[str, Expression], changes: Mapping[str, Change]):
        super().__init__({name: value for name, value in known.items() if name not in changes}, formulas)
        self.known, self.changes = known, changes

    def __getitem__(self, name: str) -> Value:
        if name in self.changes and name not in self.values_known:
            is_given, value = self.changes[name]
            if is_given is not True and (name in self.known or name in self.formulas):
                old = self.known[name] if name in self.known else evaluate(self.formulas[name], self)
                value = jnp.where(is_given, as_float(value), as_float(old))
            self.values_known[name] = value
        return super().__getitem__(name)


@dataclass(frozen=True)
class ReactionSystem:
    """A model with sorted quantities: `moving` ones have rates, `held` ones change in events and conditions.

    The state is a vector of the moving quantities, then the held ones; species are amounts. All others are constants.

    **Arguments:**

    - `model`: the equations.
    - `targets`: names that conditions change.
    """

    model: Model
    targets: tuple[str, ...] = ()

    @cached_property
    def moving(self) -> tuple[str, ...]:
        return tuple(self.model.rates)

    @cached_property
    def held_quantities(self) -> tuple[str, ...]:
        model = self.model
        changed = {name: None for event in model.events for name in event.assignments} | dict.fromkeys(self.targets)
        # Species in a container of changing size keep their amounts.
        resized = {*changed, *model.rates, *model.rules}
        changed |= {name: None for name, container in model.containers.items() if container in resized}
        return tuple(name for name in changed if name not in model.rates and name not in model.rules)

    @cached_property
    def states(self) -> tuple[str, ...]:
        return (*self.moving, *self.held_quantities)

    def start(
        self, parameters: Mapping[str, Value], changes: Mapping[str, Change], time: Value
    ) -> tuple[Float[Array, " state"], Constants]:
        """Returns the initial state and the constants.

        **Arguments:**

        - `parameters`: values that replace those of the model.
        - `changes`: values of the first condition, which replace both.
        """
        model = self.model
        scope = StartScope({TIME: time, **parameters}, {**model.initial, **model.rules, **model.reactions}, changes)
        state = stack_scalars([self.amount(name, scope) for name in self.states])
        constants = {name: scope[name] for name in model.initial if name not in self.states}
        return state, constants | {name: value for name, value in parameters.items() if name not in self.states}

    def amount(self, name: str, scope: Mapping[str, Value]) -> Value:
        container = self.model.containers.get(name)
        return scope[name] if container is None else as_float(scope[name]) * as_float(scope[container])

    def scope(
        self,
        time: Value,
        state: Float[Array, "... state"],
        constants: Constants,
        frozen: Mapping[Expression, Value] = MappingProxyType({}),
    ) -> Scope:
        """Returns the values by name.

        **Arguments:**

        - `time`, `state`: at one time, or at several along the first axis.
        - `frozen`: values of comparisons, which are used instead of computed ones.
        """
        known = {**constants, TIME: time}
        stored = {name: state[..., at] for at, name in enumerate(self.states)}
        formulas = {**self.model.rules, **self.model.reactions}
        contained = {name: where for name, where in self.model.containers.items() if name in stored}
        scope = Scope(
            known | {name: value for name, value in stored.items() if name not in contained}, formulas, frozen
        )
        for name, container in contained.items():
            scope.values_known[name] = stored[name] / scope[container]
        return scope

    def rates(
        self, time: Value, state: Float[Array, " state"], constants: Constants, modes: Bool[Array, " comparison"]
    ) -> Float[Array, " moving"]:
        """Computes the time derivatives of the moving quantities, with fixed outcomes of all comparisons."""
        if self.is_large:
            return jnp.asarray(self.weights) @ self.terms(time, state, constants, modes)
        frozen: dict[Expression, Value] = {formula: modes[at] for at, formula in enumerate(self.comparisons)}
        scope = self.scope(time, state, constants, frozen)
        return stack_scalars([evaluate(formula, scope, frozen) for formula in self.model.rates.values()])

    # Large systems

    @cached_property
    def is_large(self) -> bool:
        """Whether the rates have more than `MANY_PARTS` parts, so that operations of one kind are batched."""
        model = self.model
        every = (*model.rates.values(), *model.rules.values(), *model.reactions.values())
        return sum(measure(formula).nodes for formula in every) > MANY_PARTS

    @cached_property
    def sums(self) -> tuple[dict[Expression, float], ...]:
        """The terms of each rate with their factors."""
        return tuple(split_sum(formula) for formula in self.model.rates.values())

    @cached_property
    def distinct_terms(self) -> tuple[Expression, ...]:
        """The distinct terms of all rates."""
        return tuple(dict.fromkeys(term for terms in self.sums for term in terms))

    @cached_property
    def weights(self) -> Float[np.ndarray, "moving term"]:
        """The factor of each term in each rate: the stoichiometry, if the terms are reactions."""
        places = {term: at for at, term in enumerate(self.distinct_terms)}
        weights = np.zeros((len(self.sums), len(places)))
        for row, terms in zip(weights, self.sums, strict=True):
            row[[places[term] for term in terms]] = [*terms.values()]
        return weights

    @cached_property
    def constant_names(self) -> tuple[str, ...]:
        """The names that rates use besides the states and the time."""
        model = self.model
        formulas = (*model.rates.values(), *model.rules.values(), *model.reactions.values())
        used = dict.fromkeys(itertools.chain(*(symbols(formula) for formula in formulas), model.containers.values()))
        return tuple(name for name in used if name not in {TIME, *self.states, *model.rules, *model.reactions})

    @cached_property
    def together(self) -> Together:
        """The terms of all rates as a batched function of the state, the time and the constants."""
        model, stored = self.model, set(self.states) & set(self.model.containers)
        amounts = {name: f"amount of {name}" if name in stored else name for name in self.states}
        contents = {name: Application("/", (Symbol(amounts[name]), Symbol(model.containers[name]))) for name in stored}
        names = (*amounts.values(), TIME, *self.constant_names)
        return Together(self.distinct_terms, names, {**model.rules, **model.reactions, **contents}, self.comparisons)

    @cached_property
    def pattern(self) -> Bool[np.ndarray, "term moving"]:
        """The sparsity pattern of the terms' derivatives with respect to the moving quantities."""
        return self.together.dependencies[:, : len(self.moving)]

    def terms(
        self, time: Value, state: Float[Array, " state"], constants: Constants, modes: Bool[Array, " comparison"]
    ) -> Float[Array, " term"]:
        """Computes the terms of all rates."""
        values = stack_scalars([time, *(constants[name] for name in self.constant_names)])
        return self.together(jnp.concatenate([state, values]), modes)

    def jacobian(
        self, time: Value, state: Float[Array, " state"], constants: Constants, modes: Bool[Array, " comparison"]
    ) -> Float[Array, "moving moving"]:
        """Computes the Jacobian of the rates in the moving quantities; each term depends on few of them."""
        count = len(self.moving)

        def terms(moving: Float[Array, " moving"]) -> Float[Array, " term"]:
            return self.terms(time, jnp.concatenate([moving, state[count:]]), constants, modes)

        return jacobian_of_sums(terms, self.pattern, self.weights)(state[:count])

    @cached_property
    def comparisons(self) -> tuple[Application, ...]:
        """The comparisons in the rates, rules and reactions."""
        model = self.model
        every = (*model.rates.values(), *model.rules.values(), *model.reactions.values())
        return tuple(dict.fromkeys(call for formula in every for call in comparisons(formula)))

    @cached_property
    def depends_on_time(self) -> bool:
        """Whether the rates, rules or reactions contain the time."""
        formulas = [*self.model.rates.values(), *self.model.rules.values(), *self.model.reactions.values()]
        return any(TIME in symbols(formula) for formula in formulas)

    def change(
        self,
        state: Float[Array, " state"],
        scope: Mapping[str, Value],
        changes: Mapping[str, Change],
        keeps_concentrations: bool,
    ) -> Float[Array, " state"]:
        """Returns the state after simultaneous changes.

        **Arguments:**

        - `scope`: the values before. `changes`: the new values by name.
        - `keeps_concentrations`: whether species in a compartment that changes size keep their concentrations, as
          under PEtab's conditions, or their amounts, as in SBML's events.
        """
        after = {name: jnp.where(g, as_float(v), as_float(scope[name])) for name, (g, v) in changes.items()}
        new: list[Array] = []
        for at, name in enumerate(self.states):
            container = self.model.containers.get(name)
            moved = container in after and keeps_concentrations
            if name not in after and not moved:
                new.append(state[at])
            elif container is None:
                new.append(after[name])
            else:
                size = as_float(after[container] if container in after else scope[container])
                changed = after[name] * size if name in after else as_float(scope[name]) * size
                if name in after and container in after and not keeps_concentrations:
                    changed = jnp.where(changes[name].is_given, changed, state[at])
                new.append(changed)
        return jnp.stack(new) if new else state

    @cached_property
    def time_comparisons(self) -> tuple[Expression, ...]:
        """Differences of the two sides of comparisons whose sign changes at a time fixed by the constants."""
        model = self.model
        targets = {name for event in model.events for name in event.assignments}
        moving = frozenset((*model.rates, *model.rules, *model.reactions, *targets))
        of_events = (call for event in model.events for call in comparisons(event.trigger))
        differences = {Application("-", call.arguments): None for call in (*self.comparisons, *of_events)}
        return tuple(d for d in differences if TIME in symbols(d) and is_affine_in_time(d, moving))

    def break_times(self, state: Float[Array, " state"], constants: Constants) -> Float[Array, " break"]:
        """Computes the times at which rates or triggers jump; infinite if a comparison never changes."""
        ends = [self.scope(time, state, constants) for time in (0.0, 1.0)]
        breaks: list[Array] = []
        for difference in self.time_comparisons:
            at_zero, at_one = (as_float(evaluate(difference, scope)) for scope in ends)
            slope = at_one - at_zero
            breaks.append(jnp.where(slope == 0, jnp.inf, -at_zero / jnp.where(slope == 0, 1.0, slope)))
        return stack_scalars(breaks)
