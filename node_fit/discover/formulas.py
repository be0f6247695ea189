"""Formulas with constants: libraries of terms, and right-hand sides that NumPy evaluates."""

import ast
import functools
import itertools
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..model.fields.equations import operands, parse

Value = float | np.ndarray
# How much functions and divisions count in the size of a formula.
OF_FUNCTION, OF_DIVISION = 4, 3
# Terms of one library: with more, their elimination costs more than it finds.
MOST_LIBRARY_TERMS = 80
LIBRARIES = (
    "linear", "quadratic", "cubic", "quintic", "trigonometric", "differences", "saturating", "growth", "exponential",
    "switching", "quotients", "friction", "inhibition",
)  # fmt: skip
# Quantiles of a state at which thresholds begin, and the largest argument of an exponential.
THRESHOLDS, MOST_EXPONENT = (0.2, 0.5, 0.8), 20.0
# Shares of the largest value at which half-saturations begin, and the factor by which these and other numbers within
# terms move at the most before they are refined by simulation.
HALVES, MAX_MOVE = (0.3, 0.1, 0.9), 3.0
# Share of the largest value below 0 that is taken for noise of what is positive.
MAX_NEGATIVE = 0.05


def pass_where(gate: np.ndarray, value: np.ndarray) -> np.ndarray:
    """A value where its gate is not 0; a product with 0 would let infinite values through, as NaN."""
    return np.where(gate, value, 0.0)


def logistic(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


ARRAY: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in ("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh")},
    **{name: getattr(np, name) for name in ("tanh", "abs", "sign", "minimum", "maximum")},
    "sigmoid": logistic,
}
ARITHMETIC: dict[type[ast.operator], Callable[..., np.ndarray]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
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
    """A right-hand side: a sum of parts, each with constants of its own.

    **Arguments:**

    - `parts`: each in the grammar of equations, with `{0}`, `{1}`, ... for its constants.
    - `constants`: the values of all parts' constants, one part after the other.
    - `terms`: for a sum of terms, the text of each; empty for others.
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
        found: list[str] = []
        for part, many in zip(self.parts, self.counts, strict=True):
            found.append(part.format(*[f"{{{first + at}}}" for at in range(many)]))
            first += many
        return " + ".join(found) or "0"

    def named(self, names: Sequence[str]) -> str:
        """The text with names for the constants."""
        return self.text.format(*names)

    def shown(self, digits: int = 4) -> str:
        """The text with numbers for the constants."""
        return fill_in(self.text, self.constants, digits)

    def without(self, place: int) -> "Formula":
        """The sum without one of its parts."""
        first = sum(self.counts[:place])
        constants = self.constants[:first] + self.constants[first + self.counts[place] :]
        parts, terms = (tuple(np.delete(each, place).tolist()) for each in (self.parts, self.terms))
        return Formula(parts, constants, terms, self.size - count_part(self.parts[place]))

    def without_terms(self, texts: Container[str]) -> "Formula":
        """The sum without the terms of these texts."""
        found = self
        for place in reversed(range(len(self.terms))):
            found = found.without(place) if self.terms[place] in texts else found
        return found

    def plus(self, term: Term, constant: float) -> "Formula":
        """The sum with another term."""
        more = sum_of([term], [constant])
        return Formula(
            self.parts + more.parts, self.constants + more.constants, self.terms + more.terms, self.size + more.size
        )


def fill_in(text: str, constants: Sequence[float], digits: int = 4) -> str:
    """A text with numbers in the places of `{0}`, `{1}`, ..."""
    numbers = [f"{value:.{digits}g}" for value in constants]
    text = text.format(*[f"({number})" if number.startswith("-") else number for number in numbers])
    for number in numbers:
        text = text.replace(f" + ({number})", f" - {number[1:]}").replace(f" - ({number})", f" + {number[1:]}")
    # The first number of a sum or product needs no parentheses, but the base of a power does.
    return re.sub(r"(^|\()\((-[\d.e+-]+)\)(?!\*\*)", r"\1\2", text)


@functools.lru_cache(maxsize=4096)
def count_constants(part: str) -> int:
    return len(re.findall(r"\{\d+\}", part))


@functools.lru_cache(maxsize=4096)
def count_part(part: str) -> int:
    """Number of names, constants, functions and operators of a part, and the sign before it."""
    return 1 + count(parse("part", part.format(*["1"] * count_constants(part))))


def sum_of(terms: Sequence[Term], constants: Sequence[float] | np.ndarray, moves: Sequence[np.ndarray] = ()) -> Formula:
    """The formula that is a sum of terms, each times its constant; numbers within terms become constants too.

    **Arguments:** `moves`: how much to add to the numbers within each term, by a factor of `MAX_MOVE` at the most.
    """
    each = [part_of(term.text) for term in terms]
    inner = [
        np.array(numbers) if not len(moves) else move_within(np.array(numbers), moves[at])
        for at, (_, numbers, _) in enumerate(each)
    ]
    return Formula(
        tuple(part for part, _, _ in each),
        tuple(float(value) for constant, own in zip(constants, inner, strict=True) for value in (constant, *own)),
        tuple(term.text for term in terms),
        sum(size for _, _, size in each),
    )


def move_within(numbers: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Numbers that move by a factor of `MAX_MOVE` at the most, and keep their signs."""
    edges = np.sort(np.stack([numbers / MAX_MOVE, numbers * MAX_MOVE]), axis=0)
    return np.clip(numbers + moves, *edges)


@functools.lru_cache(maxsize=4096)
def part_of(term: str) -> tuple[str, tuple[float, ...], int]:
    """The part that is a term times a constant, the numbers within the term, and the part's size."""
    match read_term(term):
        case ast.Constant(value=1):
            product = "1.0"
        case ast.BinOp(op=ast.Div(), left=ast.Constant(value=1), right=below):
            product = f"1.0/({ast.unparse(below)})"
        case _:
            product = f"1.0*{term}"
    lifted = lift(product, "sum")
    return lifted.parts[0], lifted.constants[1:], count_part(lifted.parts[0])


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
            case _:
                raise TypeError(f"{type(node).__name__} passed the grammar, but is not known here.")

    tree = parse(state, text)
    return Formula((written(tree),), tuple(found), (), count(tree))


def count(node: ast.expr) -> int:
    """The size of a tree: names, constants and operators count once, functions and divisions more.

    A power counts as the product that it is, that of a number as a number. What is rare in equations of nature counts
    as more, as in the complexities of symbolic regression.
    """
    match node:
        case ast.BinOp(op=ast.Pow(), left=ast.Constant(), right=ast.Constant()):
            return 1
        case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=int() as power)) if 2 <= power <= 9:
            return power * count(left) + power - 1
        case ast.Call():
            own = OF_FUNCTION
        case ast.BinOp(op=ast.Div()):
            own = OF_DIVISION
        case _:
            own = 1
    return own + sum(map(count, operands(node)))


@functools.lru_cache(maxsize=16_384)
def read_term(text: str) -> ast.expr:
    """The tree of a term, which is to be read only."""
    return parse("term", text)


class Tape:
    """Expressions as one list of operations on arrays, in which whatever they share is computed once.

    **Arguments:** `texts`: in the grammar of equations. `names`: of the values that a call is given. `sums`: by further
    names, the summands of what these stand for, each with the name of its gate or None; they may be more than one text
    can hold.
    """

    def __init__(
        self,
        texts: Sequence[str],
        names: Sequence[str],
        sums: Mapping[str, Sequence[tuple[str, str | None]]] = MappingProxyType({}),
    ):
        self.places = {name: at for at, name in enumerate(names)}
        self.steps: list[tuple[Callable[..., Value], tuple[int, ...]]] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.first = self.free = len(names)
        for name, summands in sums.items():
            places = [self.place_behind(gate, text) for text, gate in summands] or [self.number(0.0)]
            self.places[name] = functools.reduce(lambda left, right: self.add(np.add, left, right), places)
        self.results = [self.place(read_term(text)) for text in texts]

    def __call__(self, values: Sequence[Value]) -> list[Value]:
        """The value of each text."""
        held: list[Value] = [*values]
        for function, places in self.steps:
            if len(places) == 2:
                held.append(function(held[places[0]], held[places[1]]))
            else:
                held.append(function(*[held[at] for at in places]))
        return [held[at] for at in self.results]

    def add(self, function: Callable[..., Value], *places: int) -> int:
        key = (function, places)
        if key not in self.known:
            self.steps.append(key)
            self.known[key] = self.free
            self.free += 1
        return self.known[key]

    def place_behind(self, gate: str | None, text: str) -> int:
        """The place of a text's value where its gate is open, and of 0 elsewhere."""
        place = self.place(read_term(text))
        return place if gate is None else self.add(pass_where, self.places[gate], place)

    def number(self, value: float) -> int:
        """The place of a number, which an operation without operands yields."""
        key = ("number", value)
        if key not in self.known:
            self.steps.append((lambda: value, ()))
            self.known[key] = self.free
            self.free += 1
        return self.known[key]

    def place(self, node: ast.expr) -> int:
        """The place of the value of a tree."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return self.number(float(value))
            case ast.Name(id=name):
                return self.places[name]
            case ast.UnaryOp(op=operator, operand=inner):
                return self.add(np.negative, self.place(inner)) if isinstance(operator, ast.USub) else self.place(inner)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self.add(ARRAY[name], *map(self.place, arguments))
            case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=int() as power)) if 1 <= power <= 9:
                base = found = self.place(left)
                for _ in range(power - 1):
                    found = self.add(np.multiply, found, base)
                return found
            case ast.BinOp(op=operator, left=left, right=right):
                return self.add(ARITHMETIC[type(operator)], self.place(left), self.place(right))
            case _:
                raise TypeError(f"{type(node).__name__} passed the grammar, but is not known here.")


def monomial(names: Sequence[str]) -> Term:
    """The product of names, with powers."""
    powers = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    text = "*".join(name if power == 1 else f"{name}**{power}" for name, power in powers)
    return Term(text or "1", max(1, 2 * len(names) - 1))


def polynomial(names: Sequence[str], degree: int) -> list[Term]:
    """All monomials up to a degree, the constant first."""
    every = (itertools.combinations_with_replacement(names, each) for each in range(degree + 1))
    return [monomial(each) for each in itertools.chain.from_iterable(every)]


def make_library(kind: str, names: Sequence[str], values: np.ndarray) -> list[Term]:
    """The terms of one library, or none where it has no sense or too many terms.

    **Arguments:** `kind`: one of `LIBRARIES`. `names`: of states and inputs. `values`: of them, `(row, name)`, from
    which terms with constants inside take what these begin with.
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
    """Whether angles stand in sines, cosines and products alone, as they do in mechanics; other functions of them only
    imitate these: `exp(x) - exp(-x)` is nearly a sine.
    """
    for node in ast.walk(read_term(term.text)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in ("sin", "cos"):
                inside: ast.AST = node
            case ast.BinOp(op=ast.Div(), right=inside):
                pass
            case _:
                continue
        if any(isinstance(each, ast.Name) and each.id in angles for each in ast.walk(inside)):
            return False
    return True


def saturating(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Term]:
    """Michaelis and Menten's terms, Hill's, and those of another state times these, at several half-saturations."""
    found: list[Term] = []
    for name, half in half_saturations(columns):
        found.append(Term(f"({name}/({half} + {name}))", 6))
        found.append(Term(f"({name}**2/({half}**2 + {name}**2))", 8))
        for other in names:
            if other != name:
                found.append(Term(f"({other}*{name}/({half} + {name}))", 8))
                found.append(Term(f"({other}*{name}/({half}**2 + {name}**2))", 8))
                found.append(Term(f"({other}*{name}**2/({half}**2 + {name}**2))", 10))
    return found


def inhibition(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Term]:
    """Terms that fall with a name: of repression, and of growth on what inhibits in excess (J. B. S. Haldane, 1930)."""
    found: list[Term] = []
    for name, half in half_saturations(columns):
        found.append(Term(f"(1/({half} + {name}))", 6))
        found.append(Term(f"(1/({half}**2 + {name}**2))", 8))
        factors = ["", *[f"{other}*" for other in names if other != name]]
        found += [Term(f"({factor}{name}/({half} + {name} + {name}**2/{half}))", 12) for factor in factors]
    return found


def half_saturations(columns: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """Names, each with the half-saturations at which its terms begin."""
    for share in HALVES:
        for name, column in columns.items():
            yield name, f"{share * float(column.max()):.3g}"


def switching(columns: Mapping[str, np.ndarray]) -> list[Term]:
    """Sigmoids of each name, at several thresholds and widths."""
    found: list[Term] = []
    for name, column in columns.items():
        for share in THRESHOLDS:
            middle, width = float(np.quantile(column, share)), float(column.std()) or 1.0
            found += [Term(f"sigmoid(({name} - {middle:.3g})/{width * part:.3g})", 7) for part in (0.25, 1.0)]
    return [Term(term.text.replace("- -", "+ "), term.size) for term in found]
