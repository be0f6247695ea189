"""Computes the shape of a term, which does not depend on the order of factors and summands."""

import functools
from collections import Counter
from collections.abc import Iterator

from ..expressions.tree import Application, Expression, Number, Symbol
from ..model.fields.equations import parse


@functools.lru_cache(maxsize=16_384)
def shape_of_term(text: str) -> str:
    """Returns the shape of a term, which ignores the values of numbers and omits numeric factors of the term.

    For example, `b*a`, `a*b` and `2*a*b` share one shape, and so do `x/(1 + x)` and `x/(x + 0.3)`.
    """
    return write_product(parse("term", text), with_number=False)


def write_shape(node: Expression) -> str:
    match node:
        case Number():
            return "#"
        case Symbol(name):
            return name
        case Application("+" | "-"):
            signed = [("-" if sign < 0 else "+") + write_shape(summand) for sign, summand in summands_of(node)]
            return f"({' '.join(sorted(signed))})"
        case Application("^", (base, exponent)) if not is_integer_literal(exponent):
            return f"{write_shape(base)}^{write_shape(exponent)}"
        case Application("*" | "/" | "^" | "negative"):
            return write_product(node, with_number=True)
        case Application(name, arguments):
            return f"{name}({', '.join(map(write_shape, arguments))})"


def write_product(node: Expression, with_number: bool) -> str:
    powers: Counter[str] = Counter()
    for factor, power in factors_of(node):
        powers[write_shape(factor)] += power
    has_number = powers.pop("#", None) is not None
    factors = [f"{factor}^{power}" for factor, power in sorted(powers.items()) if power]
    return "*".join(["#"] * (has_number and with_number) + factors) or "#"


def is_integer_literal(node: Expression) -> bool:
    return isinstance(node, Number) and isinstance(node.value, int)


def factors_of(node: Expression, power: int = 1) -> Iterator[tuple[Expression, int]]:
    """Yields the factors of an expression with their integer powers; a sign is a number."""
    match node:
        case Application("*", arguments):
            for argument in arguments:
                yield from factors_of(argument, power)
        case Application("/", (above, below)):
            yield from factors_of(above, power)
            yield from factors_of(below, -power)
        case Application("^", (base, Number(int() as exponent))):
            yield from factors_of(base, power * exponent)
        case Application("negative", (inner,)):
            yield Number(-1), 1
            yield from factors_of(inner, power)
        case _:
            yield node, power


def summands_of(node: Expression, sign: int = 1) -> Iterator[tuple[int, Expression]]:
    """Yields the nonzero summands of a sum with their signs."""
    match node:
        case Application("+", arguments):
            for argument in arguments:
                yield from summands_of(argument, sign)
        case Application("-", (left, right)):
            yield from summands_of(left, sign)
            yield from summands_of(right, -sign)
        case Application("negative", (inner,)):
            yield from summands_of(inner, -sign)
        case _ if not is_zero(node):
            inner_sign, node = take_sign(node)
            yield sign * inner_sign, node
        case _:
            pass


def take_sign(node: Expression) -> tuple[int, Expression]:
    """Returns the sign of a product's first factor, and the product without it."""
    match node:
        case Application("negative", (inner,)):
            return -1, inner
        case Application("*" | "/" as name, (first, *others)):
            sign, first = take_sign(first)
            return sign, Application(name, (first, *others))
        case _:
            return 1, node


def is_zero(node: Expression) -> bool:
    match node:
        case Number(value):
            return value == 0
        case Application("*", arguments):
            return any(map(is_zero, arguments))
        case Application("/", (above, _)):
            return is_zero(above)
        case _:
            return False
