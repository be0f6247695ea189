"""Expressions as immutable trees of numbers, names and calls of operations."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Number(NamedTuple):
    """A constant; a whole number stays one, and a truth value is a condition."""

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
    """An expression and all expressions in it, outer ones first, from left to right."""
    stack = [expression]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Application):
            stack.extend(reversed(node.arguments))


def symbols(expression: Expression) -> Iterator[str]:
    """The names in an expression, from left to right."""
    return (node.name for node in parts(expression) if isinstance(node, Symbol))


def calls(expression: Expression) -> Iterator[Application]:
    """The calls in an expression, outer ones first."""
    return (node for node in parts(expression) if isinstance(node, Application))


def comparisons(expression: Expression) -> Iterator[Application]:
    """The comparisons in an expression."""
    return (call for call in calls(expression) if call.function in COMPARISONS)


def operands(expression: Expression) -> tuple[Expression, ...]:
    return expression.arguments if isinstance(expression, Application) else ()


def whole_number(expression: Expression) -> int | None:
    """The value of a number without a fraction, which may have a sign; None for any other expression."""
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
    """How many parts an expression has, and how deep they are nested."""

    nodes: int
    depth: int


def measure(expression: Expression, names: Mapping[str, ExpressionSize] = MappingProxyType({})) -> ExpressionSize:
    """The size of an expression once names are replaced by expressions of known sizes."""
    nodes, deepest, stack = 0, 0, [(expression, 1)]
    while stack:
        node, depth = stack.pop()
        inside = names.get(node.name) if isinstance(node, Symbol) else None
        nodes += 1 if inside is None else inside.nodes
        deepest = max(deepest, depth if inside is None else depth - 1 + inside.depth)
        stack.extend((each, depth + 1) for each in operands(node))
    return ExpressionSize(nodes, deepest)


def substitute(expression: Expression, replacements: Mapping[str, Expression]) -> Expression:
    """The expression with names replaced by expressions."""
    if isinstance(expression, Symbol):
        return replacements.get(expression.name, expression)
    if isinstance(expression, Application):
        return Application(expression.function, tuple(substitute(each, replacements) for each in expression.arguments))
    return expression
