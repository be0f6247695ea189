"""Defines formulas with constants: libraries of terms, and right-hand sides that NumPy evaluates."""

import functools
import itertools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from ..expressions.evaluation import Tape
from ..expressions.operations import OPERATIONS
from ..expressions.tree import Application, Expression, Number, calls, symbols
from ..expressions.writing import write
from ..model.fields.equations import parse

# Maximum number of terms per library; larger libraries are not worth their search time.
MOST_LIBRARY_TERMS = 80
# Low-degree polynomials are searched together with every other group of libraries.
LOW_DEGREE, HIGH_DEGREE = ("linear", "quadratic"), ("cubic", "quintic")
GROUPS = (
    HIGH_DEGREE,
    ("trigonometric", "differences"),
    ("saturating", "growth", "quotients", "flows"),
    ("exponential", "switching", "friction"),
    ("inhibition",),
)
LIBRARIES = (*LOW_DEGREE, *itertools.chain.from_iterable(GROUPS))
# Quantiles of a state used as initial thresholds, and the maximum argument of an exponential.
THRESHOLDS, MOST_EXPONENT = (0.2, 0.5, 0.8), 20.0
# Initial half-saturations as shares of the largest value, and the maximum factor by which numbers within terms change
# before simulation refines them.
HALVES, MAX_MOVE = (0.3, 0.1, 0.9), 3.0
# An input whose distinct values are at most this share of its rows is held.
KEPT_SHARE = 0.5
# Negative values up to this share of the largest value count as noise of a positive quantity.
MAX_NEGATIVE = 0.05


@dataclass(frozen=True)
class Term:
    """A function of the states and inputs that a right-hand side can contain, times a constant.

    **Arguments:**

    - `text`: in the grammar of equations.
    - `size`: number of names, functions and operators in it.
    """

    text: str
    size: int


@dataclass(frozen=True)
class Formula:
    """A right-hand side: a sum of parts with separate constants.

    **Arguments:**

    - `parts`: each in the grammar of equations, with `{0}`, `{1}`, ... for its constants.
    - `constants`: the values of all parts' constants, part by part.
    - `terms`: for a sum of terms, their texts; empty for other formulas.
    - `size`: number of names, constants, functions and operators.
    """

    parts: tuple[str, ...]
    constants: tuple[float, ...]
    terms: tuple[str, ...]
    size: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of constants of each part."""
        return tuple(map(count_constants, self.parts))

    @property
    def text(self) -> str:
        """The sum, with `{0}`, `{1}`, ... for its constants."""
        first = 0
        summands: list[str] = []
        for part, many in zip(self.parts, self.counts, strict=True):
            summands.append(part.format(*[f"{{{first + at}}}" for at in range(many)]))
            first += many
        return " + ".join(summands) or "0"

    def with_names(self, names: Sequence[str]) -> str:
        """Returns the text with names for the constants."""
        return self.text.format(*names)

    def with_numbers(self, digits: int = 4) -> str:
        """Returns the text with numbers for the constants."""
        return fill_in(self.text, self.constants, digits)

    def without(self, place: int) -> "Formula":
        """Returns the sum without one of its parts."""
        first = sum(self.counts[:place])
        constants = self.constants[:first] + self.constants[first + self.counts[place] :]
        parts, terms = (tuple(np.delete(texts, place).tolist()) for texts in (self.parts, self.terms))
        return Formula(parts, constants, terms, self.size - count_part(self.parts[place]))

    def without_terms(self, texts: Container[str]) -> "Formula":
        """Returns the sum without the terms with these texts."""
        remaining = self
        for place in reversed(range(len(self.terms))):
            remaining = remaining.without(place) if self.terms[place] in texts else remaining
        return remaining

    def plus(self, term: Term, constant: float) -> "Formula":
        """Returns the sum with an added term."""
        more = sum_of([term], [constant])
        return Formula(
            self.parts + more.parts, self.constants + more.constants, self.terms + more.terms, self.size + more.size
        )


def fill_in(text: str, constants: Sequence[float], digits: int = 4) -> str:
    """Replaces `{0}`, `{1}`, ... in a text by numbers."""
    return put_in(text, [f"{value:.{digits}g}" for value in constants])


def put_in(text: str, factors: Sequence[str]) -> str:
    """Replaces `{0}`, `{1}`, ... in a text by numbers or names, which may have a sign."""
    text = text.format(*[f"({factor})" if factor.startswith("-") else factor for factor in factors])
    for factor in factors:
        text = text.replace(f" + ({factor})", f" - {factor[1:]}").replace(f" - ({factor})", f" + {factor[1:]}")
    # The first number of a sum or product needs no parentheses, but the base of a power does.
    return re.sub(r"(^|\()\((-[\w.+-]+)\)(?!\*\*)", r"\1\2", text)


@functools.lru_cache(maxsize=4096)
def count_constants(part: str) -> int:
    return len(re.findall(r"\{\d+\}", part))


@functools.lru_cache(maxsize=4096)
def count_part(part: str) -> int:
    """Returns the number of names, constants, functions and operators in a part, including the sign before it."""
    return 1 + count(parse("part", part.format(*["1"] * count_constants(part))))


@functools.lru_cache(maxsize=4096)
def are_in_denominators(part: str) -> tuple[bool, ...]:
    """Returns for each constant of a part whether it is in a denominator."""
    names = [f"constant{place}_" for place in range(count_constants(part))]
    expression = parse("part", part.format(*names))
    below = {name for call in calls(expression) if call.function == "/" for name in symbols(call.arguments[1])}
    return tuple(name in below for name in names)


def sum_of(terms: Sequence[Term], constants: Sequence[float] | np.ndarray, moves: Sequence[np.ndarray] = ()) -> Formula:
    """Returns the formula that is a weighted sum of terms; numbers within terms become constants too.

    **Arguments:** `moves`: changes of the numbers within each term, limited to a factor of `MAX_MOVE`.
    """
    lifted = [part_of(term.text) for term in terms]
    inner = [
        np.array(numbers) if not len(moves) else move_within(np.array(numbers), moves[at])
        for at, (_, numbers, _) in enumerate(lifted)
    ]
    return Formula(
        tuple(part for part, _, _ in lifted),
        tuple(
            float(value)
            for constant, numbers_within in zip(constants, inner, strict=True)
            for value in (constant, *numbers_within)
        ),
        tuple(term.text for term in terms),
        sum(size for _, _, size in lifted),
    )


def move_within(numbers: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Changes numbers by a factor of at most `MAX_MOVE`, keeping their signs."""
    edges = np.sort(np.stack([numbers / MAX_MOVE, numbers * MAX_MOVE]), axis=0)
    return np.clip(numbers + moves, *edges)


@functools.lru_cache(maxsize=4096)
def part_of(term: str) -> tuple[str, tuple[float, ...], int]:
    """Returns the part that is a term times a constant, the numbers within the term, and the part's size."""
    match read_term(term):
        case Number(1):
            product = "1.0"
        case Application("/", (Number(1), below)):
            product = f"1.0/({write(below)})"
        case _:
            product = f"1.0*{term}"
    lifted = lift(product, "sum")
    return lifted.parts[0], lifted.constants[1:], count_part(lifted.parts[0])


def lift(text: str, state: str) -> Formula:
    """Parses a text into a formula with a constant for each of its numbers except integer exponents and zeros.

    **Raises:** `EquationError` if the grammar refuses the text.
    """
    return lift_expression(parse(state, text))


def lift_expression(expression: Expression) -> Formula:
    """Does the same as `lift` for an expression."""
    constants: list[float] = []

    def constant(value: float) -> str:
        if value == 0:
            return "0"
        constants.append(value)
        return f"{{{len(constants) - 1}}}"

    return Formula((write(expression, constant),), tuple(constants), (), count(expression))


def count(node: Expression) -> int:
    """Computes the size of an expression: names, constants and operators count once, functions and divisions more.

    A power counts as a product, and a power of a number as a number. Functions rare in natural laws count more, as in
    the complexity measures of symbolic regression.
    """
    match node:
        case Application("^", (Number(), Number())):
            return 1
        case Application("^", (base, Number(int() as power))) if 2 <= power <= 9:
            return power * count(base) + power - 1
        case Application(name, arguments):
            operation = OPERATIONS[name]
            times = max(len(arguments) - 1, 1) if operation.folds else 1
            return operation.size * times + sum(map(count, arguments))
        case _:
            return 1


@functools.lru_cache(maxsize=16_384)
def read_term(text: str) -> Expression:
    """Parses a term."""
    return parse("term", text)


def read_tape(
    texts: Sequence[str],
    names: Sequence[str],
    sums: Mapping[str, Sequence[tuple[str, str | None]]] = MappingProxyType({}),
) -> Tape:
    """Creates a `Tape` from texts."""
    read = {name: [(read_term(text), gate) for text, gate in summands] for name, summands in sums.items()}
    return Tape([read_term(text) for text in texts], names, read)


def monomial(names: Sequence[str]) -> Term:
    """Returns the product of names, with powers."""
    powers = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    text = "*".join(name if power == 1 else f"{name}**{power}" for name, power in powers)
    return Term(text or "1", max(1, 2 * len(names) - 1))


def polynomial(names: Sequence[str], degree: int) -> list[Term]:
    """Returns all monomials up to a degree, the constant first."""
    every = (itertools.combinations_with_replacement(names, each) for each in range(degree + 1))
    return [monomial(each) for each in itertools.chain.from_iterable(every)]


def make_library(kind: str, names: Sequence[str], values: np.ndarray) -> list[Term]:
    """Returns the terms of one library; none if the library does not suit the data or has too many terms.

    **Arguments:** `kind`: one of `LIBRARIES`. `names`: names of states and inputs. `values`: their values,
    `(row, name)`, which give the initial values of constants within terms.
    """
    columns = dict(zip(names, values.T, strict=True))
    positive = bool((values > 0).all())
    concentrations = bool((values.min(axis=0) > -MAX_NEGATIVE * values.max(axis=0)).all())
    away = [name for name, column in columns.items() if np.abs(column).min() > 0.02 * np.abs(column).max()]
    waves = [Term(f"{wave}({name})", 2) for name in names for wave in ("sin", "cos")]
    pairs = list(itertools.combinations(names, 2))
    match kind:
        case "linear" | "quadratic" | "cubic":
            terms = polynomial(names, ("linear", "quadratic", "cubic").index(kind) + 1)
        case "quintic":
            terms = polynomial(names, 5) if len(names) <= 2 else []
        case "trigonometric":
            products = [Term(f"{a.text}*{b.text}", 5) for a, b in itertools.combinations(waves, 2)]
            mixed = [Term(f"{name}*{wave.text}", 4) for name in names for wave in waves]
            terms = waves + (products + mixed if len(names) <= 2 else [])
        case "differences":
            terms = [Term(f"{wave}({a} - {b})", 4) for a, b in pairs for wave in ("sin", "cos")]
        case "saturating":
            terms = saturating(columns, names) if concentrations else []
        case "inhibition":
            terms = inhibition(columns, names) if concentrations else []
        case "growth":
            terms = [Term(f"({name}*log({name}))", 4) for name in names] if positive else []
            terms += [Term(f"sqrt({name})", 2) for name in names] if positive else []
        case "flows":
            terms = flows(columns)
        case "exponential":
            terms = [Term(f"exp({sign}{name})", 3) for name in names for sign in ("", "-")]
            terms = terms if np.abs(values).max() < MOST_EXPONENT else []
        case "switching":
            terms = switching(columns)
        case "quotients":
            terms = [Term(f"1/{name}", 3) for name in away]
            terms += [Term(f"{a}/{b}", 3) for a, b in itertools.permutations(names, 2) if b in away]
            terms += [Term(f"{wave.text}/{b}", 4) for wave in waves for b in away] if len(names) <= 2 else []
        case "friction":
            terms = [Term(f"{name}*abs({name})", 4) for name in names if np.ptp(np.sign(columns[name]))]
        case _:
            raise ValueError(f"library {kind!r} is not known; the libraries are {', '.join(LIBRARIES)}.")
    return terms if len(terms) <= MOST_LIBRARY_TERMS else []


def fits_angles(term: Term, angles: Sequence[str]) -> bool:
    """Whether angles occur only in sines, cosines and products, as in mechanics; other functions merely imitate these:
    `exp(x) - exp(-x)` is nearly a sine.
    """
    for node in calls(read_term(term.text)):
        match node:
            case Application("sin" | "cos" | "+" | "-" | "*" | "^" | "negative"):
                continue
            case Application("/", (_, inside)):
                pass
            case _:
                inside = node
        if any(name in angles for name in symbols(inside)):
            return False
    return True


def saturating(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Term]:
    """Returns Michaelis-Menten and Hill terms, alone and times another state, at several half-saturations."""
    terms: list[Term] = []
    for name, half in half_saturations(columns):
        terms.append(Term(f"({name}/({half} + {name}))", 6))
        terms.append(Term(f"({name}**2/({half}**2 + {name}**2))", 8))
        for other in names:
            if other != name:
                terms.append(Term(f"({other}*{name}/({half} + {name}))", 8))
                terms.append(Term(f"({other}*{name}/({half}**2 + {name}**2))", 8))
                terms.append(Term(f"({other}*{name}**2/({half}**2 + {name}**2))", 10))
    return terms


def inhibition(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Term]:
    """Returns decreasing terms of repression, and of growth with substrate inhibition (J. B. S. Haldane, 1930)."""
    terms: list[Term] = []
    for name, half in half_saturations(columns):
        terms.append(Term(f"(1/({half} + {name}))", 6))
        terms.append(Term(f"(1/({half}**2 + {name}**2))", 8))
        factors = ["", *[f"{other}*" for other in names if other != name]]
        terms += [Term(f"({factor}{name}/({half} + {name} + {name}**2/{half}))", 12) for factor in factors]
    return terms


def flows(columns: Mapping[str, np.ndarray]) -> list[Term]:
    """Returns flows driven by a pressure or a level, or by a difference of two, alone and through a valve.

    Such a flow grows as the square root (E. Torricelli, 1644). A valve is an input that keeps its values for several
    rows; without one, only `growth` has roots. The noise of an empty tank is below zero.
    """
    valves = [name for name, column in columns.items() if keeps_values(column) and column.min() >= 0]
    levels = [name for name in columns if name not in valves and columns[name].min() > 0]
    empty = [
        f"max({name}, 0)"
        for name, column in columns.items()
        if name not in valves and -MAX_NEGATIVE * column.max() <= column.min() <= 0
    ]
    falls = [
        f"{upper} - {lower}"
        for upper, lower in itertools.permutations(levels, 2)
        if (columns[upper] - columns[lower]).min() > 0
    ]
    roots = [Term(f"sqrt({head})", size) for heads, size in ((levels, 2), (empty, 3), (falls, 4)) for head in heads]
    return [*(roots if valves else []), *(Term(f"({v}*{root.text})", root.size + 2) for v in valves for root in roots)]


def keeps_values(column: Float[np.ndarray, " row"]) -> bool:
    """Whether an input repeats its values, as it does if it is held for several rows."""
    return len(np.unique(column)) <= KEPT_SHARE * len(column)


def half_saturations(columns: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """Yields pairs of a name and an initial half-saturation."""
    for share in HALVES:
        for name, column in columns.items():
            yield name, f"{share * float(column.max()):.3g}"


def switching(columns: Mapping[str, np.ndarray]) -> list[Term]:
    """Returns sigmoids of each name at several thresholds and widths."""
    terms: list[Term] = []
    for name, column in columns.items():
        for share in THRESHOLDS:
            middle, width = float(np.quantile(column, share)), float(column.std()) or 1.0
            terms += [Term(f"sigmoid(({name} - {middle:.3g})/{width * part:.3g})", 7) for part in (0.25, 1.0)]
    return [Term(term.text.replace("- -", "+ "), term.size) for term in terms]
