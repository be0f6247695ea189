"""Expressions as text, in the spelling of equations, and in Python with SymPy's functions."""

from collections.abc import Callable, Mapping

from .operations import OPERATIONS
from .tree import COMPARISONS, Application, Expression, Number, Symbol

# How an operator is written, how it binds, and how tightly its right operand has to.
INFIX_TEXT: dict[str, tuple[str, int, int]] = {
    "or": (" or ", -4, -3),
    "and": (" and ", -3, -2),
    **{name: (f" {name} ", -1, 0) for name in COMPARISONS},
    "+": (" + ", 1, 1),
    "-": (" - ", 1, 2),
    "*": ("*", 2, 2),
    "/": ("/", 2, 3),
    "^": ("**", 3, 4),
}
# How `not` binds; and what binds less than anything, as within parentheses.
NOT, LOOSEST = -2, -5
# Whole exponents that are part of an operation rather than numbers in it.
EXPONENTS = (2, 3, 4, 5)


def write(expression: Expression, constant: Callable[[float], str] | None = None, least: int = LOOSEST) -> str:
    """The text of an expression.

    **Arguments:**

    - `constant`: writes numbers, but for small whole exponents; None if they are written as they are.
    - `least`: parentheses enclose what binds less than this.
    """

    def number(value: float | int) -> str:
        if constant is not None:
            return constant(float(value))
        return enclose(repr(value), value < 0 and least > 0)

    match expression:
        case Number(value):
            return number(value)
        case Symbol(name):
            return name
        case Application("negative", (Number(value),)) if constant is not None:
            return number(-value)
        case Application("negative", (inner,)):
            return enclose(f"-{write(inner, constant, 2)}", least > 0)
        case Application("not", (inner,)):
            return enclose(f"not {write(inner, constant, NOT)}", least > NOT)
        case Application("^", (base, Number(power))) if power in EXPONENTS:
            return enclose(f"{write(base, constant, 4)}**{int(power)}", least > 3)
        case Application(name, (first, *others)) if name in INFIX_TEXT and others:
            sign, binds, right = INFIX_TEXT[name]
            # Powers bind to the right, and comparisons to neither side.
            left = 4 if name == "^" else right if name in COMPARISONS else binds
            text = write(first, constant, left) + "".join(sign + write(each, constant, right) for each in others)
            return enclose(text, binds < least)
        case Application(name, arguments):
            return f"{name}({', '.join(write(each, constant) for each in arguments)})"


def enclose(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def write_sympy(expression: Expression, names: Mapping[str, str]) -> str:
    """An expression in Python with SymPy as `sp`.

    **Arguments:** `names`: how each name is written there.
    """
    match expression:
        case Number(bool() as value):
            return f"sp.{'true' if value else 'false'}"
        case Number(int() as value):
            return f"sp.Integer({value})"
        case Number(value):
            return f"sp.Float({value!r})"
        case Symbol(name):
            return names[name]
        case Application(name, arguments):
            return OPERATIONS[name].sympy([write_sympy(each, names) for each in arguments])
