"""Writes expressions as text, in the grammar of equations and in Python with SymPy."""

from collections.abc import Callable, Mapping

from .operations import OPERATIONS
from .tree import COMPARISONS, Application, Expression, Number, Symbol

# Text of an operator, its precedence, and the minimum precedence of its right operand.
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
# Precedence of `not`, and the lowest precedence, as within parentheses.
NOT, LOOSEST = -2, -5
# Integer exponents that count as part of the operation, not as constants.
EXPONENTS = (2, 3, 4, 5)


def write(expression: Expression, constant: Callable[[float], str] | None = None, least: int = LOOSEST) -> str:
    """Writes an expression as text.

    **Arguments:**

    - `constant`: writes numbers except small integer exponents; None to write them as they are.
    - `least`: minimum precedence of text without parentheses.
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
            text = write(first, constant, left) + "".join(
                sign + write(argument, constant, right) for argument in others
            )
            return enclose(text, binds < least)
        case Application(name, arguments):
            return f"{name}({', '.join(write(argument, constant) for argument in arguments)})"


def enclose(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def write_sympy(expression: Expression, names: Mapping[str, str]) -> str:
    """Writes an expression in Python with SymPy as `sp`.

    **Arguments:** `names`: Python text of each name.
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
            return OPERATIONS[name].sympy([write_sympy(argument, names) for argument in arguments])
