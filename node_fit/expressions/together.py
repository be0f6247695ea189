"""Many expressions as few operations on vectors: all of one kind and depth at once.

The time that XLA takes for a program grows with its operations. Written one by one, those of hundreds of reactions take
minutes to compile; written together, their number hardly grows with that of the expressions.
"""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .operations import OPERATIONS, Value
from .tree import Application, Expression, Number, Symbol

# Operations that are compiled for a number in the place of one of their arguments, and which.
COMPILED_FOR = {"^": 1, "root": 0}
# Leaves, which have values and no operation.
LEAF_CONDITION, LEAF_NUMBER = "a condition", "a number"


class Node(NamedTuple):
    """An operation on earlier nodes, by their places; a leaf without operation.

    - `fixed`: the number that it is compiled for, None if there is none. `depth`: of the longest chain below it.
    """

    operation: str
    operands: tuple[int, ...] = ()
    fixed: float | None = None
    depth: int = 0

    @property
    def is_condition(self) -> bool:
        return self.operation == LEAF_CONDITION or (
            self.operation in OPERATIONS and OPERATIONS[self.operation].gives_condition
        )


class Operations(NamedTuple):
    """Operations of one kind and depth.

    - `operands`: for each argument, the places of its values. `takes_conditions`: of each argument.
    - `begin`: the place of the first result, which the others follow.
    """

    operation: str
    fixed: float | None
    operands: tuple[Int[np.ndarray, " node"], ...]
    takes_conditions: tuple[bool, ...]
    gives_conditions: bool
    begin: int

    def evaluate(self, numbers: Float[Array, " place"], conditions: Bool[Array, " place"]) -> Value:
        """The results, from all values so far."""
        kinds = zip(self.operands, self.takes_conditions, strict=True)
        arguments: list[Value] = [(conditions if is_condition else numbers)[at] for at, is_condition in kinds]
        if self.fixed is not None:
            arguments.insert(COMPILED_FOR[self.operation], self.fixed)
        return OPERATIONS[self.operation].evaluate(*arguments)


class Together:
    """Expressions whose operations are computed together, each shared part once.

    **Arguments:**

    - `expressions`: what to compute. `names`: of the values that a call is given.
    - `formulas`: what other names stand for.
    - `outcomes_of`: conditions whose outcomes a call is given.
    """

    def __init__(
        self,
        expressions: Sequence[Expression],
        names: Sequence[str],
        formulas: Mapping[str, Expression] = MappingProxyType({}),
        outcomes_of: Sequence[Expression] = (),
    ):
        self.nodes: list[Node] = []
        self.known: dict[Node, int] = {}
        self.formulas = formulas
        self.by_name = {name: self.append(Node(LEAF_NUMBER)) for name in names}
        self.given = len(names)
        self.by_condition = {condition: self.append(Node(LEAF_CONDITION)) for condition in outcomes_of}
        self.constants: dict[float, int] = {}
        self.wanted = [self.place(expression) for expression in expressions]
        self.arrange()

    def __call__(
        self, values: Float[Array, " name"], outcomes: Bool[Array, " condition"]
    ) -> Float[Array, " expression"]:
        """The value of each expression."""
        constants, blank = jnp.asarray(self.numbers, values.dtype), jnp.zeros(self.count, values.dtype)
        numbers = jnp.concatenate([values, constants, blank])
        conditions = jnp.concatenate([outcomes, jnp.zeros(self.conditions, bool)])
        for group in self.groups:
            found = jnp.asarray(group.evaluate(numbers, conditions))
            end = group.begin + len(group.operands[0])
            if group.gives_conditions:
                conditions = conditions.at[group.begin : end].set(found)
            else:
                numbers = numbers.at[group.begin : end].set(found)
        return numbers[self.results]

    @property
    def dependencies(self) -> Bool[np.ndarray, "expression name"]:
        """Whether each expression may change with each value that a call is given."""
        found = np.zeros((len(self.nodes), self.given), bool)
        found[np.arange(self.given), np.arange(self.given)] = True
        for at, node in enumerate(self.nodes):
            if node.operands and not node.is_condition:
                found[at] = found[[*node.operands]].any(axis=0)
        return found[self.wanted]

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add(self, operation: str, *operands: int, fixed: float | None = None) -> int:
        """The place of an operation, which is computed once."""
        depth = 1 + max(self.nodes[at].depth for at in operands)
        node = Node(operation, operands, fixed, depth)
        if node not in self.known:
            self.known[node] = self.append(node)
        return self.known[node]

    def number(self, value: float) -> int:
        if value not in self.constants:
            self.constants[value] = self.append(Node(LEAF_NUMBER))
        return self.constants[value]

    def place(self, expression: Expression) -> int:
        """The place of the value of an expression."""
        if expression in self.by_condition:
            return self.by_condition[expression]
        match expression:
            case Number(bool() as value):
                one = self.number(1.0)
                return self.add("==" if value else "!=", one, one)
            case Number(value):
                return self.number(float(value))
            case Symbol(name):
                if name not in self.by_name:
                    self.by_name[name] = self.place(self.formulas[name])
                return self.by_name[name]
            case Application("piecewise", pieces):
                return self.place_pieces(pieces)
            case Application(name, arguments):
                at = COMPILED_FOR.get(name)
                if at is not None and isinstance(number := arguments[at], Number):
                    rest = (self.place(each) for place, each in enumerate(arguments) if place != at)
                    return self.add(name, *rest, fixed=float(number.value))
                places = [self.place(each) for each in arguments]
                if OPERATIONS[name].folds:
                    return self.fold(name, places)
                return self.add(name, *places)

    def place_pieces(self, pieces: Sequence[Expression]) -> int:
        """Pieces one within another, so that each has three arguments."""
        pairs = len(pieces) // 2
        value = self.place(pieces[-1]) if len(pieces) % 2 else self.number(float("nan"))
        for at in range(2 * pairs - 2, -1, -2):
            value = self.add("piecewise", self.place(pieces[at]), self.place(pieces[at + 1]), value)
        return value

    def fold(self, operation: str, places: Sequence[int]) -> int:
        """Many arguments in pairs, and their values in pairs, since a chain would be deep."""
        if not places:
            return self.number(float(OPERATIONS[operation].empty or 0.0))
        while len(places) > 1:
            pairs = [self.add(operation, *pair) for pair in zip(places[::2], places[1::2], strict=False)]
            places = [*pairs, *places[len(pairs) * 2 :]]
        return places[0]

    def arrange(self) -> None:
        """Gives each node its place among the numbers or the conditions: leaves first, and groups by their depth."""
        leaves = [at for at, node in enumerate(self.nodes) if not node.operands]
        conditions = [at for at in leaves if self.nodes[at].is_condition]
        named = [at for at in leaves if not self.nodes[at].is_condition and at not in {*self.constants.values()}]
        numbers, self.numbers = [*named, *self.constants.values()], [*self.constants]
        places = {at: place for kind in (numbers, conditions) for place, at in enumerate(kind)}
        counts = {False: len(numbers), True: len(conditions)}
        self.groups: list[Operations] = []
        inner = sorted((at for at, node in enumerate(self.nodes) if node.operands), key=self.kind)
        for _, members in itertools.groupby(inner, self.kind):
            every = [*members]
            group = [self.nodes[at] for at in every]
            first = group[0]
            begin = counts[first.is_condition]
            counts[first.is_condition] += len(group)
            places |= {at: begin + place for place, at in enumerate(every)}
            columns = zip(*(node.operands for node in group), strict=True)
            operands = tuple(np.array([places[at] for at in column]) for column in columns)
            kinds = tuple(self.nodes[at].is_condition for at in first.operands)
            self.groups.append(Operations(first.operation, first.fixed, operands, kinds, first.is_condition, begin))
        self.results = np.array([places[at] for at in self.wanted], int)
        self.count, self.conditions = counts[False] - len(numbers), counts[True] - len(conditions)

    def kind(self, at: int) -> tuple[int, str, int, tuple[float, ...], tuple[bool, ...]]:
        """What nodes of a group share."""
        node = self.nodes[at]
        kinds = tuple(self.nodes[each].is_condition for each in node.operands)
        return node.depth, node.operation, len(node.operands), () if node.fixed is None else (node.fixed,), kinds
