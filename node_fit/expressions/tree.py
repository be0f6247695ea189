"""Expressions as immutable trees of numbers, names and calls of operations."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Number(NamedTuple):
    """A constant; integers stay integers, and a truth value is a condition."""

    value: float | int | bool


class Symbol(NamedTuple):
    """A name."""

    name: str


class Application(NamedTuple):
    """An operation of the table in `operations.py`, and its arguments."""

    function: str
    arguments: tuple["Expression", ...]


Expression = Number | Symbol | Application
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def parts(expression: Expression) -> Iterator[Expression]:
    """Yields an expression and all its subexpressions, outer ones first, from left to right."""
    stack = [expression]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Application):
            stack.extend(reversed(node.arguments))


def symbols(expression: Expression) -> Iterator[str]:
    """Yields the names in an expression, from left to right."""
    return (node.name for node in parts(expression) if isinstance(node, Symbol))


def calls(expression: Expression) -> Iterator[Application]:
    """Yields the calls in an expression, outer ones first."""
    return (node for node in parts(expression) if isinstance(node, Application))


def comparisons(expression: Expression) -> Iterator[Application]:
    """Yields the comparisons in an expression."""
    return (call for call in calls(expression) if call.function in COMPARISONS)


def degree(expression: Expression, name: str) -> float:
    """Returns the degree of an expression as a polynomial in a name; infinite if it is not a polynomial."""
    match expression:
        case Symbol(found):
            return 1 if found == name else 0
        case Application("+" | "-" | "negative", arguments):
            return max(degree(argument, name) for argument in arguments)
        case Application("*", arguments):
            return sum(degree(argument, name) for argument in arguments)
        case Application("/", (numerator, denominator)) if degree(denominator, name) == 0:
            return degree(numerator, name)
        case Application(_, arguments):
            return math.inf if any(degree(argument, name) > 0 for argument in arguments) else 0
        case _:
            return 0


def changes_once(comparison: Application, name: str, constants: Collection[str]) -> bool:
    """Whether an inequality is linear in a name and otherwise constant, so that it switches at one value."""
    if comparison.function not in COMPARISONS[:4]:
        return False
    is_known = all(symbol == name or symbol in constants for symbol in symbols(comparison))
    return is_known and max(degree(side, name) for side in comparison.arguments) == 1


def operands(expression: Expression) -> tuple[Expression, ...]:
    return expression.arguments if isinstance(expression, Application) else ()


def whole_number(expression: Expression) -> int | None:
    """Returns the value of an integer, possibly with a sign; None for any other expression."""
    match expression:
        case Application("negative", (Number() as number,)):
            value = whole_number(number)
            return None if value is None else -value
        case Number(bool()):
            return None
        case Number(value) if float(value).is_integer():
            return int(value)
        case _:
            return None


class ExpressionSize(NamedTuple):
    """The number of parts of an expression and their nesting depth."""

    nodes: int
    depth: int


def measure(expression: Expression, names: Mapping[str, ExpressionSize] = MappingProxyType({})) -> ExpressionSize:
    """Returns the size of an expression after names are replaced by expressions of known sizes."""
    nodes, deepest, stack = 0, 0, [(expression, 1)]
    while stack:
        node, depth = stack.pop()
        inside = names.get(node.name) if isinstance(node, Symbol) else None
        nodes += 1 if inside is None else inside.nodes
        deepest = max(deepest, depth if inside is None else depth - 1 + inside.depth)
        stack.extend((operand, depth + 1) for operand in operands(node))
    return ExpressionSize(nodes, deepest)


def split_sum(expression: Expression) -> dict[Expression, float]:
    """Returns the terms of a sum with their factors."""
    match expression:
        case Application("+", terms):
            parts = [split_sum(summand) for summand in terms]
        case Application("-", (left, right)):
            parts = [split_sum(left), {term: -factor for term, factor in split_sum(right).items()}]
        case Application("negative", (inside,)):
            parts = [{term: -factor for term, factor in split_sum(inside).items()}]
        case Application("*", (Number(factor), inside)):
            parts = [{term: float(factor) * inner for term, inner in split_sum(inside).items()}]
        case _:
            return {expression: 1.0}
    totals: dict[Expression, float] = {}
    for term, factor in itertools.chain.from_iterable(part.items() for part in parts):
        totals[term] = totals.get(term, 0.0) + factor
    return totals


def substitute(expression: Expression, replacements: Mapping[str, Expression]) -> Expression:
    """Replaces names in an expression by expressions."""
    if isinstance(expression, Symbol):
        return replacements.get(expression.name, expression)
    if isinstance(expression, Application):
        return Application(
            expression.function, tuple(substitute(argument, replacements) for argument in expression.arguments)
        )
    return expression
