"""Formulas of PEtab and SBML as trees of numbers, names and functions, evaluated with JAX; no text is run as code."""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..model.fields import operations

Value = float | bool | Float[Array, "..."] | Bool[Array, "..."]


class Number(NamedTuple):
    """A constant."""

    value: float | bool


class Symbol(NamedTuple):
    """A name; `TIME` is the time."""

    name: str


class Application(NamedTuple):
    """An operator or a function of `OPERATIONS`, and its arguments."""

    function: str
    arguments: tuple["Formula", ...]


Formula = Number | Symbol | Application
TIME = "time"
# Formulas come from files of others. These limits bound the time to parse and to trace them.
MAX_DEPTH, MAX_NODES = 100, 200_000
# The same of a formula of a table or a rule with all that it names written out: `evaluate` calls itself for each level.
MAX_DEPTH_WRITTEN_OUT, MAX_NODES_OF_TEXT = 250, 10_000
# Integer powers up to this one become products, which are exact and differentiable at 0 and for negative values.
MAX_INTEGER_POWER = 64


class FormulaError(ValueError):
    """Raised for a text that is no formula."""


def divide(numerator: Value, denominator: Value) -> Value:
    """A quotient; numbers divided by zero are infinite or not a number, as in JAX."""
    if isinstance(denominator, float) and denominator == 0.0:
        return operations.divide(jnp.asarray(numerator, float), jnp.asarray(denominator, float))
    if isinstance(denominator, float | bool):
        return numerator / denominator
    return operations.divide(jnp.asarray(numerator, float), jnp.asarray(denominator, float))


def power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, float) and exponent.is_integer() and abs(exponent) <= MAX_INTEGER_POWER:
        return operations.integer_power(jnp.asarray(base, float), int(exponent))
    return operations.power(jnp.asarray(base, float), jnp.asarray(exponent, float))


def piecewise(*pieces: Value) -> Value:
    """`value, condition, value, condition, ..., otherwise`: the value of the first condition that holds."""
    value = pieces[-1] if len(pieces) % 2 else jnp.nan
    for at in range(len(pieces) - len(pieces) % 2 - 2, -1, -2):
        value = jnp.where(pieces[at + 1], pieces[at], value)
    return value


def logarithm(value: Value, base: Value | None = None) -> Value:
    natural = operations.log(jnp.asarray(value, float))
    return natural if base is None else divide(natural, operations.log(jnp.asarray(base, float)))


def root(degree: Value, value: Value) -> Value:
    number = jnp.asarray(value, float)
    return (
        operations.sqrt(number) if isinstance(degree, float) and degree == 2.0 else power(number, divide(1.0, degree))
    )


def whole_quotient(a: Value, b: Value) -> Array:
    return jnp.trunc(divide(a, b))


def remainder(a: Value, b: Value) -> Array:
    return jnp.fmod(jnp.asarray(a, float), jnp.asarray(b, float))


def heaviside(x: Value) -> Array:
    return jnp.heaviside(jnp.asarray(x, float), 0.5)


def reduce_by(combine: Callable[[Value, Value], Value], empty: Value | None = None) -> Callable[..., Value]:
    """A function of any number of arguments, combined from left to right."""

    def reduced(*values: Value) -> Value:
        if not values:
            assert empty is not None
            return empty
        result = values[0]
        for value in values[1:]:
            result = combine(result, value)
        return result

    return reduced


def of_float(function: Callable[[Array], Array]) -> Callable[[Value], Value]:
    guarded = operations.with_finite_slopes(function)
    return lambda value: guarded(jnp.asarray(value, float))


def inverted(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """One over a function."""
    return lambda value: 1 / function(value)


def of_inverse(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of one over a number."""
    return lambda value: function(1 / value)


def factorial(value: Array) -> Array:
    return jnp.exp(jax.scipy.special.gammaln(value + 1.0))


ANY = 1000
# Each function: what computes it, and the fewest and the most arguments that it takes.
OPERATIONS: dict[str, tuple[Callable[..., Value], int, int]] = {
    "+": (reduce_by(lambda a, b: a + b, 0.0), 0, ANY),
    "*": (reduce_by(lambda a, b: a * b, 1.0), 0, ANY),
    "-": (operator.sub, 2, 2),
    "negative": (operator.neg, 1, 1),
    "/": (divide, 2, 2),
    "^": (power, 2, 2),
    "pow": (power, 2, 2),
    "<": (operator.lt, 2, 2),
    "<=": (operator.le, 2, 2),
    ">": (operator.gt, 2, 2),
    ">=": (operator.ge, 2, 2),
    "==": (operator.eq, 2, 2),
    "!=": (operator.ne, 2, 2),
    "and": (reduce_by(jnp.logical_and, True), 0, ANY),
    "or": (reduce_by(jnp.logical_or, False), 0, ANY),
    "xor": (reduce_by(jnp.logical_xor, False), 0, ANY),
    "not": (jnp.logical_not, 1, 1),
    "piecewise": (piecewise, 1, ANY),
    "minimum": (reduce_by(jnp.minimum), 1, ANY),
    "maximum": (reduce_by(jnp.maximum), 1, ANY),
    "log": (logarithm, 1, 2),
    "root": (root, 2, 2),
    "quotient": (whole_quotient, 2, 2),
    "remainder": (remainder, 2, 2),
    "heaviside": (heaviside, 1, 1),
} | {
    name: (of_float(function), 1, 1)
    for name, function in {
        "exp": jnp.exp, "sqrt": jnp.sqrt, "log10": jnp.log10, "log2": jnp.log2, "abs": jnp.abs, "sign": jnp.sign,
        "floor": jnp.floor, "ceil": jnp.ceil, "factorial": factorial,
        "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "sinh": jnp.sinh, "cosh": jnp.cosh, "tanh": jnp.tanh,
        "sec": inverted(jnp.cos), "csc": inverted(jnp.sin), "cot": inverted(jnp.tan),
        "sech": inverted(jnp.cosh), "csch": inverted(jnp.sinh), "coth": inverted(jnp.tanh),
        "arcsin": jnp.arcsin, "arccos": jnp.arccos, "arctan": jnp.arctan,
        "arcsinh": jnp.arcsinh, "arccosh": jnp.arccosh, "arctanh": jnp.arctanh,
        "arccot": of_inverse(jnp.arctan), "arcsec": of_inverse(jnp.arccos),
        "arccsc": of_inverse(jnp.arcsin), "arccoth": of_inverse(jnp.arctanh),
        "arcsech": of_inverse(jnp.arccosh), "arccsch": of_inverse(jnp.arcsinh),
    }.items()
}  # fmt: skip
# How formulas in text spell functions that have another name in `OPERATIONS`.
SPELLINGS = {"ln": "log", "min": "minimum", "max": "maximum", "power": "pow"} | {
    f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "cot", "sec", "csc")
}
NAMED_NUMBERS = {"true": True, "false": False, "pi": math.pi, "exponentiale": math.e, "inf": math.inf}
# Binary operators by how strongly they bind; powers bind to the right.
BINDING = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "^": 8,
}  # fmt: skip
NAMES = {"||": "or", "&&": "and"}
# Operators of which a chain is one call with many arguments, not calls nested in each other.
CHAINED = ("+", "*", "and", "or")
SIGN = 7
TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|"
    r"(?P<operator>\*\*|\|\||&&|[=!<>]=|[-+*/^<>!(),])|(?P<end>$)|(?P<wrong>.))",
    re.ASCII | re.DOTALL,
)


class Parser:
    """A parser by precedence for the formulas in PEtab's tables."""

    def __init__(self, text: str, place: str):
        self.text, self.place, self.at, self.depth = text, place, 0, 0
        self.advance()

    def advance(self) -> None:
        match = TOKEN.match(self.text, self.at)
        assert match is not None
        self.kind = match.lastgroup or "end"
        self.token = match.group(self.kind)
        self.column, self.at = match.start(self.kind) + 1, match.end()
        self.token = "^" if self.token == "**" else self.token

    def refusal(self, reason: str) -> FormulaError:
        return FormulaError(f"{self.place}: {reason} (column {self.column} of {self.text[:200]!r}).")

    def take(self, token: str) -> bool:
        found = self.kind == "operator" and self.token == token
        if found:
            self.advance()
        return found

    def whole(self) -> Formula:
        formula = self.expression(0)
        if self.kind != "end":
            raise self.refusal(f"{self.token!r} is not expected here")
        refuse_large(measure_formula(formula), self.place)
        return formula

    def expression(self, binding: int) -> Formula:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refusal(f"it is nested more than {MAX_DEPTH} deep")
        left, joined = self.operand(), ""
        while self.kind == "operator" and BINDING.get(self.token, -1) > binding:
            name = self.token
            self.advance()
            right = self.expression(BINDING[name] - (name == "^"))
            function = NAMES.get(name, name)
            terms = left.arguments if isinstance(left, Application) and joined == function else (left,)
            if len(terms) == ANY:
                raise self.refusal(f"over {ANY} values are joined by {name!r}; group them in parentheses")
            left = Application(function, (*terms, right))
            joined = function if function in CHAINED else ""
        self.depth -= 1
        return left

    def operand(self) -> Formula:
        kind, token = self.kind, self.token
        if kind == "end":
            raise self.refusal("it ends where a value should follow")
        if kind == "wrong":
            raise self.refusal(f"{token!r} is not allowed in a formula")
        if kind == "operator" and token in ("-", "+", "!"):
            self.advance()
            inside = self.expression(SIGN)
            return inside if token == "+" else Application("negative" if token == "-" else "not", (inside,))
        if self.take("("):
            inside = self.expression(0)
            if not self.take(")"):
                raise self.refusal("a parenthesis is not closed")
            return inside
        if kind == "operator":
            raise self.refusal(f"a value should come before {token!r}")
        start = self.column
        self.advance()
        if kind == "number":
            return Number(float(token))
        return self.call(token, start) if self.take("(") else self.name(token)

    def name(self, token: str) -> Formula:
        return Number(NAMED_NUMBERS[token]) if token in NAMED_NUMBERS else Symbol(token)

    def call(self, token: str, start: int) -> Formula:
        name = SPELLINGS.get(token, token)
        if name not in OPERATIONS or not name.isidentifier() or name in ("and", "or", "xor", "not", "negative"):
            self.column = start
            raise self.refusal(f"{token!r} is not a function; write * for a product")
        arguments: list[Formula] = []
        while not self.take(")"):
            if arguments and not self.take(","):
                raise self.refusal("a parenthesis is not closed")
            arguments.append(self.expression(0))
        fewest, most = OPERATIONS[name][1:]
        if not fewest <= len(arguments) <= most:
            self.column = start
            raise self.refusal(f"{token!r} has {len(arguments)} arguments")
        return Application(name, tuple(arguments))


def parse_formula(text: str | float, place: str) -> Formula:
    """Parses a formula in the grammar of PEtab: `+ - * / ^`, comparisons, `&& || !`, `piecewise`, functions.

    **Arguments:**

    - `text`: the formula, or a number.
    - `place`: where it is written, for the sentence about one that is wrong.

    **Raises:** `FormulaError` that says what is wrong, and at which column.
    """
    return Number(float(text)) if isinstance(text, int | float) else Parser(text, place).whole()


def symbols(formula: Formula) -> Iterator[str]:
    """The names in a formula, from left to right."""
    stack = [formula]
    while stack:
        node = stack.pop()
        if isinstance(node, Symbol):
            yield node.name
        elif isinstance(node, Application):
            stack.extend(reversed(node.arguments))


def calls(formula: Formula) -> Iterator[Application]:
    """The calls in a formula, outer ones first."""
    stack = [formula]
    while stack:
        node = stack.pop()
        if isinstance(node, Application):
            yield node
            stack.extend(reversed(node.arguments))


class FormulaSize(NamedTuple):
    """How many parts a formula has, and how deep they are nested."""

    nodes: int
    depth: int


def measure_formula(formula: Formula, names: Mapping[str, FormulaSize] = MappingProxyType({})) -> FormulaSize:
    """The size of a formula once names are replaced by formulas of known sizes."""
    nodes, deepest, stack = 0, 0, [(formula, 1)]
    while stack:
        node, depth = stack.pop()
        inside = names.get(node.name) if isinstance(node, Symbol) else None
        nodes += 1 if inside is None else inside.nodes
        deepest = max(deepest, depth if inside is None else depth - 1 + inside.depth)
        if isinstance(node, Application):
            stack.extend((each, depth + 1) for each in node.arguments)
    return FormulaSize(nodes, deepest)


def refuse_large(size: FormulaSize, place: str) -> None:
    """Refuses a formula that takes too long to trace, or too many calls of `evaluate` within each other."""
    if size.depth > MAX_DEPTH_WRITTEN_OUT or size.nodes > MAX_NODES_OF_TEXT:
        raise FormulaError(
            f"{place}: with what it names written out, the formula is nested over {MAX_DEPTH_WRITTEN_OUT} deep or has "
            f"over {MAX_NODES_OF_TEXT:,} parts; write it shorter."
        )


def substitute(formula: Formula, replacements: Mapping[str, Formula]) -> Formula:
    """The formula with names replaced by formulas."""
    if isinstance(formula, Symbol):
        return replacements.get(formula.name, formula)
    if isinstance(formula, Application):
        return Application(formula.function, tuple(substitute(each, replacements) for each in formula.arguments))
    return formula


def evaluate(
    formula: Formula, scope: Mapping[str, Value], frozen: Mapping[Formula, Value] = MappingProxyType({})
) -> Value:
    """The value of a formula.

    **Arguments:**

    - `scope`: the value of each name: scalars, or arrays of one shape.
    - `frozen`: values of parts that are not computed.
    """
    if isinstance(formula, Number):
        return formula.value
    if isinstance(formula, Symbol):
        return scope[formula.name]
    if formula in frozen:
        return frozen[formula]
    return OPERATIONS[formula.function][0](*(evaluate(each, scope, frozen) for each in formula.arguments))


COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def comparisons(formula: Formula) -> Iterator[Application]:
    """The comparisons in a formula."""
    return (call for call in calls(formula) if call.function in COMPARISONS)


def is_affine_in_time(formula: Formula, moving: frozenset[str]) -> bool:
    """Whether a formula is of first degree in the time, and holds no name that moves."""
    if isinstance(formula, Number):
        return True
    if isinstance(formula, Symbol):
        return formula.name not in moving
    inside = [TIME in symbols(each) for each in formula.arguments]
    affine = all(is_affine_in_time(each, moving) for each in formula.arguments)
    if not any(inside) or formula.function in ("+", "-", "negative"):
        return affine
    return affine and ((formula.function == "*" and sum(inside) == 1) or (formula.function == "/" and not inside[1]))


def as_float(value: Value) -> Float[Array, "..."]:
    """A value as an array of floats."""
    return jnp.asarray(value, float)


def stack_scalars(values: Sequence[Value]) -> Float[Array, " value"]:
    """Values as one vector of floats."""
    return jnp.stack([as_float(value) for value in values]) if values else jnp.zeros(0)
