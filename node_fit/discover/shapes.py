"""The shape of a term: what is the same in all its texts, however factors and summands are ordered."""

import ast
import functools
from collections import Counter
from collections.abc import Iterator

from ..model.fields.equations import parse


@functools.lru_cache(maxsize=16_384)
def shape_of_term(text: str) -> str:
    """The shape of a term, in which numbers are alike, and those that multiply the term are left out.

    So `b*a`, `a*b` and `2*a*b` have one shape, and `x/(1 + x)` and `x/(x + 0.3)`.
    """
    return write_product(parse("term", text), with_number=False)


def write_shape(node: ast.expr) -> str:
    match node:
        case ast.Constant():
            return "#"
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return f"{name}({', '.join(map(write_shape, arguments))})"
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            signed = [("-" if sign < 0 else "+") + write_shape(each) for sign, each in summands_of(node)]
            return f"({' '.join(sorted(signed))})"
        case ast.BinOp(op=ast.Pow(), left=left, right=right) if not is_integer_literal(right):
            return f"{write_shape(left)}^{write_shape(right)}"
        case _:
            return write_product(node, with_number=True)


def write_product(node: ast.expr, with_number: bool) -> str:
    powers: Counter[str] = Counter()
    for factor, power in factors_of(node):
        powers[write_shape(factor)] += power
    has_number = powers.pop("#", None) is not None
    factors = [f"{factor}^{power}" for factor, power in sorted(powers.items()) if power]
    return "*".join(["#"] * (has_number and with_number) + factors) or "#"


def is_integer_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def factors_of(node: ast.expr, power: int = 1) -> Iterator[tuple[ast.expr, int]]:
    """The factors of a tree, with their whole powers; a sign is a number."""
    match node:
        case ast.BinOp(op=ast.Mult() | ast.Div() as operator, left=left, right=right):
            yield from factors_of(left, power)
            yield from factors_of(right, power if isinstance(operator, ast.Mult) else -power)
        case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=int() as exponent)):
            yield from factors_of(left, power * exponent)
        case ast.UnaryOp(operand=inner):
            yield ast.Constant(-1), 1
            yield from factors_of(inner, power)
        case _:
            yield node, power


def summands_of(tree: ast.expr, sign: int = 1) -> Iterator[tuple[int, ast.expr]]:
    """The summands of a sum that are not 0, with their signs."""
    match tree:
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator, left=left, right=right):
            yield from summands_of(left, sign)
            yield from summands_of(right, sign if isinstance(operator, ast.Add) else -sign)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield from summands_of(inner, -sign)
        case _ if not is_zero(tree):
            own, tree = take_sign(tree)
            yield sign * own, tree
        case _:
            pass


def take_sign(tree: ast.expr) -> tuple[int, ast.expr]:
    """The sign of a product's first factor, and the product without it."""
    match tree:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -1, inner
        case ast.BinOp(op=ast.Mult() | ast.Div() as operator, left=left, right=right):
            sign, first = take_sign(left)
            return sign, ast.BinOp(first, operator, right)
        case _:
            return 1, tree


def is_zero(tree: ast.expr) -> bool:
    match tree:
        case ast.Constant(value=value):
            return value == 0
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return is_zero(left) or is_zero(right)
        case ast.BinOp(op=ast.Div(), left=left):
            return is_zero(left)
        case _:
            return False
