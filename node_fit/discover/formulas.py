"""Formulas with constants: libraries of terms, and right-hand sides that NumPy evaluates."""

import ast
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.fields.equations import operands, parse

Value = float | np.ndarray
Compiled = Callable[[Sequence[Value]], Value]
# Terms of one library: with more, their elimination costs more than it finds.
MOST_LIBRARY_TERMS = 80
LIBRARIES = ("linear", "quadratic", "cubic", "quintic", "trigonometric", "differences", "saturating", "growth")
SCALAR: dict[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in ("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh")},
    "tanh": math.tanh,
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(0.5 * x),
    "abs": abs,
    "sign": lambda x: math.copysign(1.0, x) if x else 0.0,
    "minimum": min,
    "maximum": max,
}
ARRAY: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in SCALAR if name != "sigmoid"},
    "sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
}


@dataclass(frozen=True)
class Term:
    """A function of the states and inputs that a right-hand side may contain, times a constant.

    **Arguments:**

    - `text`: in the grammar of equations.
    - `size`: number of names, functions and operators in it.
    """

    text: str
    size: int


@dataclass(frozen=True)
class Formula:
    """A right-hand side whose constants are called `c0`, `c1`, ...

    **Arguments:**

    - `text`: in the grammar of equations, with `{0}`, `{1}`, ... for the constants.
    - `constants`: their values.
    - `terms`: texts of the terms, for formulas that are sums of terms; empty for others.
    - `size`: number of names, constants, functions and operators.
    """

    text: str
    constants: tuple[float, ...]
    terms: tuple[str, ...]
    size: int

    def named(self, names: Sequence[str]) -> str:
        """The text with names for the constants."""
        return self.text.format(*names)

    def shown(self, digits: int = 4) -> str:
        """The text with numbers for the constants."""
        numbers = [f"{value:.{digits}g}" for value in self.constants]
        text = self.text.format(*[f"({number})" if number.startswith("-") else number for number in numbers])
        for number in numbers:
            text = text.replace(f" + ({number})", f" - {number[1:]}").replace(f" - ({number})", f" + {number[1:]}")
        # The first number of a sum or product needs no parentheses, but the base of a power does.
        return re.sub(r"^\((-[\d.e+-]+)\)(?!\*\*)", r"\1", text)


def sum_of(terms: Sequence[Term], constants: Sequence[float] | np.ndarray) -> Formula:
    """The formula that is a sum of terms, each times its constant; numbers within terms become constants too."""
    pairs = zip(terms, constants, strict=True)
    parts = [repr(float(value)) + ("" if term.text == "1" else f"*{term.text}") for term, value in pairs]
    size = sum(term.size + 2 for term in terms)
    return replace(lift(" + ".join(parts) or "0", "sum"), terms=tuple(term.text for term in terms), size=size)


# How an operator is written, how it binds, and how tightly its right operand has to.
SIGNS_AND_BINDING: dict[type[ast.operator], tuple[str, int, int]] = {
    ast.Add: (" + ", 1, 1),
    ast.Sub: (" - ", 1, 2),
    ast.Mult: ("*", 2, 2),
    ast.Div: ("/", 2, 3),
    ast.Pow: ("**", 3, 4),
}


def enclose(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def lift(text: str, state: str) -> Formula:
    """The formula of a text, with a constant for each of its numbers except integer exponents.

    **Raises:** `EquationError` if the grammar refuses the text.
    """
    found: list[float] = []

    def constant(value: float) -> str:
        found.append(value)
        return f"{{{len(found) - 1}}}"

    def written(node: ast.expr, least: int = 0) -> str:
        """The text, in parentheses where its operator binds less than `least`."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return constant(float(value))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return constant(-float(value))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return enclose(f"-{written(inner, 2)}", least > 0)
            case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=power)) if power in (2, 3, 4, 5):
                return enclose(f"{written(left, 4)}**{int(power)}", least > 3)
            case ast.BinOp(op=operator, left=left, right=right):
                sign, binds, right_binds = SIGNS_AND_BINDING[type(operator)]
                left_binds = 4 if isinstance(operator, ast.Pow) else binds
                return enclose(f"{written(left, left_binds)}{sign}{written(right, right_binds)}", binds < least)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return f"{name}({', '.join(map(written, arguments))})"
            case ast.Name(id=name):
                return name
        raise TypeError(f"{type(node).__name__} passed the grammar, but is not known here.")

    tree = parse(state, text)
    return Formula(written(tree), tuple(found), (), count(tree))


def count(node: ast.expr) -> int:
    """Number of names, constants, functions and operators of a tree."""
    return 1 + sum(map(count, operands(node)))


def compile_text(text: str, names: Sequence[str], functions: Mapping[str, Callable[..., Value]]) -> Compiled:
    """A function of the values of `names`, which evaluates an equation without running its text.

    **Arguments:** `functions`: `SCALAR` for floats, or `ARRAY` for arrays.
    """
    places = {name: at for at, name in enumerate(names)}

    def made(node: ast.expr) -> Compiled:
        match node:
            case ast.Constant(value=int() | float() as value):
                number = float(value)
                return lambda _: number
            case ast.Name(id=name):
                place = places[name]
                return lambda values: values[place]
            case ast.UnaryOp(op=operator, operand=inner):
                inside = made(inner)
                return (lambda values: -inside(values)) if isinstance(operator, ast.USub) else inside
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                function, inside = functions[name], made(argument)
                return lambda values: function(inside(values))
            case ast.Call(func=ast.Name(id=name), args=[first, second]):
                function, one, two = functions[name], made(first), made(second)
                return lambda values: function(one(values), two(values))
            case ast.BinOp(op=operator, left=left, right=right):
                one, two = made(left), made(right)
                return {
                    ast.Add: lambda values: one(values) + two(values),
                    ast.Sub: lambda values: one(values) - two(values),
                    ast.Mult: lambda values: one(values) * two(values),
                    ast.Div: lambda values: one(values) / two(values),
                    ast.Pow: lambda values: one(values) ** two(values),
                }[type(operator)]
        raise TypeError(f"{type(node).__name__} passed the grammar, but is not known here.")

    return made(parse("term", text))


def monomial(names: Sequence[str]) -> Term:
    """The product of names, with powers."""
    powers = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    text = "*".join(name if power == 1 else f"{name}**{power}" for name, power in powers)
    return Term(text or "1", max(1, 2 * len(names) - 1))


def polynomial(names: Sequence[str], degree: int) -> list[Term]:
    """All monomials up to a degree, the constant first."""
    every = (itertools.combinations_with_replacement(names, each) for each in range(degree + 1))
    return [monomial(each) for each in itertools.chain.from_iterable(every)]


def make_library(kind: str, names: Sequence[str], typical: Mapping[str, float]) -> list[Term]:
    """The terms of one library, or none where it has no sense or too many terms.

    **Arguments:**

    - `kind`: one of `LIBRARIES`.
    - `names`: of states and inputs.
    - `typical`: a positive scale of each, the half-saturation that saturating terms begin with.
    """
    linear, square = polynomial(names, 1), polynomial(names, 2)
    waves = [Term(f"{wave}({name})", 2) for name in names for wave in ("sin", "cos")]
    pairs = list(itertools.combinations(names, 2))
    match kind:
        case "linear":
            terms = linear
        case "quadratic":
            terms = square
        case "cubic":
            terms = polynomial(names, 3)
        case "quintic":
            terms = polynomial(names, 5) if len(names) <= 2 else []
        case "trigonometric":
            terms = square + waves
        case "differences":
            terms = linear + [Term(f"{wave}({a} - {b})", 4) for a, b in pairs for wave in ("sin", "cos")] + waves
        case "saturating":
            halves = {name: f"{typical[name]:.3g}" for name in names}
            single = [Term(f"({name}/({half} + {name}))", 6) for name, half in halves.items()]
            hill = [Term(f"({name}**2/({half}**2 + {name}**2))", 8) for name, half in halves.items()]
            terms = square + single + hill if all(value > 0 for value in typical.values()) else []
        case "growth":
            own = [Term(f"({name}*log({name}))", 4) for name in names]
            roots = [Term(f"sqrt({name})", 2) for name in names]
            terms = linear + own + roots if all(value > 0 for value in typical.values()) else []
        case _:
            raise ValueError(f"library {kind!r} is not known; the libraries are {', '.join(LIBRARIES)}.")
    return terms if len(terms) <= MOST_LIBRARY_TERMS else []
