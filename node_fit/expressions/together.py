"""Evaluates many expressions with few vector operations: all operations of one kind and depth at once.

XLA's compile time grows with the number of operations. Written one by one, those of hundreds of reactions take minutes
to compile; grouped, their number hardly grows with the number of expressions.
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

# Operations that are specialised for a constant argument, and the index of this argument.
COMPILED_FOR = {"^": 1, "root": 0}
# Operation names of leaves.
LEAF_CONDITION, LEAF_NUMBER = "a condition", "a number"


class Node(NamedTuple):
    """An operation on earlier nodes, given by their indices; or a leaf without operation.

    - `fixed`: its constant argument, or None. `depth`: length of the longest chain below it.
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

    - `operands`: for each argument, the indices of its values. `takes_conditions`: whether each one is a condition.
    - `begin`: the index of the first result; the others follow.
    """

    operation: str
    fixed: float | None
    operands: tuple[Int[np.ndarray, " node"], ...]
    takes_conditions: tuple[bool, ...]
    gives_conditions: bool
    begin: int

    def evaluate(self, numbers: Float[Array, " place"], conditions: Bool[Array, " place"]) -> Value:
        """Computes the results from all previous values."""
        kinds = zip(self.operands, self.takes_conditions, strict=True)
        arguments: list[Value] = [(conditions if is_condition else numbers)[at] for at, is_condition in kinds]
        if self.fixed is not None:
            arguments.insert(COMPILED_FOR[self.operation], self.fixed)
        return OPERATIONS[self.operation].evaluate(*arguments)


class Together:
    """Expressions whose operations are computed together; shared parts are computed once.

    **Arguments:**

    - `expressions`: the expressions to compute. `names`: names of the values passed to a call.
    - `formulas`: definitions of other names.
    - `outcomes_of`: conditions whose outcomes are passed to a call.
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
        """Computes the value of each expression."""
        constants, blank = jnp.asarray(self.numbers, values.dtype), jnp.zeros(self.count, values.dtype)
        numbers = jnp.concatenate([values, constants, blank])
        conditions = jnp.concatenate([outcomes, jnp.zeros(self.conditions, bool)])
        for group in self.groups:
            results = jnp.asarray(group.evaluate(numbers, conditions))
            end = group.begin + len(group.operands[0])
            if group.gives_conditions:
                conditions = conditions.at[group.begin : end].set(results)
            else:
                numbers = numbers.at[group.begin : end].set(results)
        return numbers[self.results]

    @property
    def dependencies(self) -> Bool[np.ndarray, "expression name"]:
        """Whether each expression can change with each value passed to a call."""
        depends = np.zeros((len(self.nodes), self.given), bool)
        depends[np.arange(self.given), np.arange(self.given)] = True
        for at, node in enumerate(self.nodes):
            if node.operands and not node.is_condition:
                depends[at] = depends[[*node.operands]].any(axis=0)
        return depends[self.wanted]

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add(self, operation: str, *operands: int, fixed: float | None = None) -> int:
        """Returns the index of an operation, and adds it if it is new."""
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
        """Returns the index of an expression's value."""
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
                    others = (self.place(argument) for place, argument in enumerate(arguments) if place != at)
                    return self.add(name, *others, fixed=float(number.value))
                places = [self.place(argument) for argument in arguments]
                if OPERATIONS[name].folds:
                    return self.fold(name, places)
                return self.add(name, *places)

    def place_pieces(self, pieces: Sequence[Expression]) -> int:
        """Nests pieces so that every operation has three arguments."""
        pairs = len(pieces) // 2
        value = self.place(pieces[-1]) if len(pieces) % 2 else self.number(float("nan"))
        for at in range(2 * pairs - 2, -1, -2):
            value = self.add("piecewise", self.place(pieces[at]), self.place(pieces[at + 1]), value)
        return value

    def fold(self, operation: str, places: Sequence[int]) -> int:
        """Combines arguments pairwise in a tree, which is less deep than a chain."""
        if not places:
            return self.number(float(OPERATIONS[operation].empty or 0.0))
        while len(places) > 1:
            pairs = [self.add(operation, *pair) for pair in zip(places[::2], places[1::2], strict=False)]
            places = [*pairs, *places[len(pairs) * 2 :]]
        return places[0]

    def arrange(self) -> None:
        """Assigns indices among the numbers or the conditions: leaves first, then groups by depth."""
        leaves = [at for at, node in enumerate(self.nodes) if not node.operands]
        conditions = [at for at in leaves if self.nodes[at].is_condition]
        named = [at for at in leaves if not self.nodes[at].is_condition and at not in {*self.constants.values()}]
        numbers, self.numbers = [*named, *self.constants.values()], [*self.constants]
        places = {at: place for kind in (numbers, conditions) for place, at in enumerate(kind)}
        counts = {False: len(numbers), True: len(conditions)}
        self.groups: list[Operations] = []
        inner = sorted((at for at, node in enumerate(self.nodes) if node.operands), key=self.kind)
        for _, members in itertools.groupby(inner, self.kind):
            indices = [*members]
            group = [self.nodes[at] for at in indices]
            first = group[0]
            begin = counts[first.is_condition]
            counts[first.is_condition] += len(group)
            places |= {at: begin + place for place, at in enumerate(indices)}
            columns = zip(*(node.operands for node in group), strict=True)
            operands = tuple(np.array([places[at] for at in column]) for column in columns)
            kinds = tuple(self.nodes[at].is_condition for at in first.operands)
            self.groups.append(Operations(first.operation, first.fixed, operands, kinds, first.is_condition, begin))
        self.results = np.array([places[at] for at in self.wanted], int)
        self.count, self.conditions = counts[False] - len(numbers), counts[True] - len(conditions)

    def kind(self, at: int) -> tuple[int, str, int, tuple[float, ...], tuple[bool, ...]]:
        """Returns the key that the nodes of a group share."""
        node = self.nodes[at]
        kinds = tuple(self.nodes[operand].is_condition for operand in node.operands)
        return node.depth, node.operation, len(node.operands), () if node.fixed is None else (node.fixed,), kinds
