"""Right-hand sides as text, which are parsed to expressions and never run as code."""

import difflib
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ...data.tables.reading import missing
from ...expressions.evaluation import evaluate
from ...expressions.operations import PRODUCT_POWER
from ...expressions.parsing import EQUATION_DIALECT, FORMULA_DIALECT, INCREASE, Dialect, ParseError, parse_text
from ...expressions.python_syntax import TooDeepError, explain_fault
from ...expressions.tree import Application, Expression, calls, symbols, whole_number
from ...runtime.serialization import stored_as
from ...runtime.validation import check_path

# Equations can come from untrusted files. These limits bound the time to parse and evaluate them.
LONGEST_EQUATION, DEEPEST = 5000, EQUATION_DIALECT.most_nested

# Description of an equation in error messages.
EQUATION = "equation of"


class EquationError(ValueError):
    """Raised for a text that is not a valid equation.

    **Arguments:**

    - `state`, `kind`: the state that the text belongs to, and the kind of text, an equation by default.
    - `reason`: the sentence after `equation of 'STATE'`.
    - `column`, `text`: column of the error in the text, from 1; `None` if the whole text is wrong.
    """

    def __init__(self, state: str, reason: str, column: int | None = None, text: str = "", kind: str = EQUATION):
        self.state, self.reason, self.column = state, reason, column
        place = "" if column is None else f" (column {column} of {text[:200]!r})."
        super().__init__(f"{kind} {state!r}{reason}{place}")


def parse(state: str, text: str, kind: str = EQUATION, dialect: Dialect = EQUATION_DIALECT) -> Expression:
    """Parses a right-hand side.

    **Arguments:**

    - `state`, `kind`: name of the state, and kind of the text, for the error message.
    - `text`: an expression, in which `^` and `**` are powers.
    - `dialect`: its spelling, and the allowed functions.

    **Raises:** `EquationError` with the problem and its column.
    """
    if len(text) > LONGEST_EQUATION:
        raise EquationError(
            state, f" has {len(text)} characters, over the limit of {LONGEST_EQUATION}; shorten it.", kind=kind
        )
    try:
        return parse_text(text, dialect)
    except ParseError as error:
        refusal = error
    try:
        fault = explain_fault(text) if refusal.is_syntax else None
    except TooDeepError:
        refusal.is_deep = True
        fault = None
    if refusal.is_deep:
        deep = f" is nested more than {DEEPEST} deep; group the terms of a long sum in parentheses."
        raise EquationError(state, deep, kind=kind)
    reason, column = fault or (refusal.reason, refusal.column)
    raise EquationError(state, f": {reason}", column, text, kind)


NOTHING: Mapping[Expression, Array] = MappingProxyType({})


def evaluate_term(
    tree: Expression, values: Mapping[str, Array], dtype: DTypeLike, given: Mapping[Expression, Array] = NOTHING
) -> Array:
    """Evaluates an expression with its numbers as arrays of floats; `given` has the values of some parts."""
    return cast(Array, evaluate(tree, values, given, dtype))


# Beginning of the list of all names, and key of a constant's initial value.
NAMES_ARE, CONSTANT_KEY = "the names are", "+field.constants."


def is_product(exponent: Expression) -> bool:
    """Whether a power with this exponent is computed as a product."""
    value = whole_number(exponent)
    return value is not None and abs(value) <= PRODUCT_POWER


def nearest_symbol(name: str, names: Collection[str]) -> str:
    match = difflib.get_close_matches(name, names, 1)
    return f"did you mean {match[0]!r}?" if match else f"{NAMES_ARE} {', '.join(sorted(names))}."


# A line in a file of equations.
LINE, DERIVATIVE = re.compile(r"(?P<state>[^:=]*)[:=](?P<text>.*)"), re.compile(r"d(\w+)\s*/\s*dt")
# Maximum size of a file of equations [bytes].
MOST_EQUATION_BYTES = 1_000_000
# Hints for numbers that have a name elsewhere.
NUMBERS = {"e": "write exp(x) for e^x."}


@stored_as("Equations")
class Equations(eqx.Module):
    """Right-hand sides `d(state)/dt = expression`, written as text.

    An expression consists of numbers, names, `pi`, `+ - * / **`, parentheses, and functions: exp, log (or ln), log10,
    log2, sqrt, sin, cos, tan, their inverses (arcsin or asin, ...), sinh, cosh, tanh, sigmoid, abs, sign, floor, ceil,
    minimum and maximum (or min and max), and `piecewise(x, a > b, y)`, which is `x` if the condition holds, else `y`;
    conditions are combined with `and`, `or` and `not`. `^` is another way to write `**`. Derivatives of a guarded
    expression, such as `sqrt(maximum(h, 0))`, are finite at the edge of the guard.

    **Arguments:**

    - `texts`: pairs of a state's name and its right-hand side. `Equations.of` makes and checks them.
    """

    texts: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @staticmethod
    def of(texts: Mapping[Any, object], dialect: Dialect = EQUATION_DIALECT) -> "Equations":
        """Makes equations from a mapping of each state's name to its right-hand side, a text or a number.

        **Arguments:** `dialect`: `FORMULA_DIALECT` for formulas of channels, which can contain `increase(x)`.

        **Raises:** `ValueError` with the position if a name or a text is not valid in an equation.
        """
        if not texts:
            raise ValueError("equations is empty; write one for each state, such as {x: -a*x}.")
        pairs: list[tuple[str, str]] = []
        for name, text in texts.items():
            check_symbol(name, "state")
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                raise ValueError(f"equation of {name!r} must be a string such as '-a*x', got {text!r}.")
            parse(name, str(text), dialect=dialect)  # as written, for the columns in errors
            pairs.append((name, " ".join(str(text).replace("^", "**").split())))
        return Equations(tuple(pairs))

    @property
    def trees(self) -> dict[str, Expression]:
        """The right-hand sides by state."""
        return {state: parse(state, text, dialect=FORMULA_DIALECT) for state, text in self.texts}

    @property
    def increases(self) -> tuple[Application, ...]:
        """The distinct calls of `increase` in formulas of channels."""
        increase_calls = (call for tree in self.trees.values() for call in calls(tree) if call.function == INCREASE)
        return tuple(dict.fromkeys(increase_calls))

    def __call__(
        self, names: Mapping[str, Float[Array, "..."]], given: Mapping[Expression, Array] = NOTHING
    ) -> dict[str, Float[Array, "..."]]:
        """Evaluates all right-hand sides.

        **Arguments:**

        - `names`: the values of all names in the equations (states, inputs, time, constants, unknown terms), with the
            same floating dtype and usually scalars.
        - `given`: the values of `increases`.

        **Returns:** the time derivative of each state, in the dtype of the values.

        **Raises:** `ValueError` if a name has no value.
        """
        self.check(names)
        values = {normalize(name): value for name, value in names.items()}
        dtype = jnp.result_type(float, *values.values())
        return {state: evaluate_term(tree, values, dtype, given) for state, tree in self.trees.items()}

    def names_used(self) -> frozenset[str]:
        """Returns all names in the right-hand sides except functions, normalised like Python identifiers (NFKC)."""
        return frozenset(name for tree in self.trees.values() for name in symbols(tree))

    def edges(self) -> Iterator[tuple[str, Application, Expression]]:
        """Yields roots, logarithms and powers that are undefined if their argument is below 0.

        **Returns:** the state of the equation, the operation and its argument.
        """
        for state, tree in self.trees.items():
            for call in calls(tree):
                match call:
                    case Application("sqrt" | "log" | "log10" | "log2", (argument, *_)):
                        yield state, call, argument
                    case Application("^", (argument, exponent)) if not is_product(exponent):
                        yield state, call, argument
                    case _:
                        pass

    def check(self, known: Collection[str]) -> None:
        """Checks that the equations use only known names.

        **Arguments:**

        - `known`: names of states, inputs, constants, unknown terms and the time.

        **Raises:** `ValueError` with the equation, the unknown name, and the nearest known name.
        """
        names = {normalize(name) for name in known}
        for state, tree in self.trees.items():
            for name in symbols(tree):
                if name not in names:
                    hint = NUMBERS.get(name) or nearest_symbol(name, names)
                    if hint.startswith(NAMES_ARE):
                        key = f"{CONSTANT_KEY}{name}=1"
                        hint = f"{hint.rstrip('.')}; if it is a constant, give its first value, {key}."
                    problem = "is not a state, an input, a constant or the time"
                    raise EquationError(state, f": {name!r} {problem}; {hint}")


class EquationFile(dict[str, str]):
    """The equations in a text file, by state; `lines` holds their positions, for errors."""

    lines: dict[str, str]


def read_equation_lines(path: str | Path) -> EquationFile:
    """Reads equations from a text file with one equation per line, `v: m*(1 - x^2)*v - x`, and comments after `#`.

    A line can also begin with `v =`, `v' =` or `dv/dt =`.

    **Raises:** `FileNotFoundError`, or `ValueError` with the file, the line and the column.
    """
    path = Path(path).expanduser()
    check_path(path)
    if not path.exists():
        raise FileNotFoundError(f"equations: {missing(path)}")
    if not path.is_file() or path.stat().st_size > MOST_EQUATION_BYTES:
        raise ValueError(
            f"equations: {path} is not a text file of at most {MOST_EQUATION_BYTES // 1000} kB; give each state a line."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"equations: {path} is not a text in UTF-8; save it as one.") from None
    return read_equation_text(text, str(path))


def read_equation_text(text: str, origin: str) -> EquationFile:
    """Reads equations from the lines of a text, as `read_equation_lines` does.

    **Arguments:** `origin`: the file or another source of the text, for errors.

    **Raises:** `ValueError` with the origin, the line and the column.
    """
    equations = EquationFile()
    places: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        written, place = line.partition("#")[0], f"{origin}, line {number}"
        if not written.strip():
            continue
        if (parts := LINE.fullmatch(written)) is None:
            raise ValueError(
                f"{place}: write a state and its equation, such as v: m*(1 - x^2)*v - x; got {line!r:.80}."
            )
        state = parts["state"].strip().removesuffix("'").strip()
        if derivative := DERIVATIVE.fullmatch(state):
            state = derivative[1]
        try:
            check_symbol(state, "state")
            parse(state, parts["text"])
        except EquationError as error:
            if error.column is not None:
                error = EquationError(state, error.reason, error.column + parts.start("text"), line)
            raise ValueError(f"{place}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if state in equations:
            raise ValueError(f"{place}: {places[state]} gives an equation of {state!r} already; remove one.")
        equations[state], places[state] = parts["text"].strip(), place
    if not equations:
        place = "" if origin == "equations" else f"{origin} holds none; "
        raise ValueError(f"equations: {place}write a line for each state, such as v: m*(1 - x^2)*v - x.")
    equations.lines = places
    return equations


def as_mapping(equations: Mapping[Any, object] | str | Path) -> Mapping[Any, object]:
    """Returns equations by state, read from a file if a path is given."""
    return read_equation_lines(equations) if isinstance(equations, str | Path) else equations


def locate_error(error: EquationError, equations: Mapping[Any, object]) -> ValueError:
    """Returns the error, with its file and line if the equations come from a file."""
    place = equations.lines.get(error.state) if isinstance(equations, EquationFile) else None
    return error if place is None else ValueError(f"{place}: {error}")


def check_symbol(name: object, kind: str) -> None:
    """Checks that a name is valid in an equation.

    **Arguments:**

    - `name`: the user's name.
    - `kind`: kind of the named quantity, for the error message: `state`, `constant` or `term`.

    **Raises:** `ValueError` with the reason if the name is not valid.
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r:.80} has a name that is not a string; in YAML, put quotes around it.")
    if name in EQUATION_DIALECT.reserved:
        raise ValueError(f"{kind} {name!r:.80} has the name of a function; rename it.")
    if name in EQUATION_DIALECT.numbers:
        raise ValueError(f"{kind} {name!r:.80} has the name of a number; rename it.")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
        raise ValueError(
            f"{kind} {name!r:.80} has a name that is not valid in an equation; rename it (data.rename in a "
            "command): use letters, digits and single underscores, do not start with a digit, and avoid Python "
            "keywords."
        )


def normalize(name: str) -> str:
    """Normalises a name as Python's parser does, which turns the micro sign into the Greek letter."""
    return unicodedata.normalize("NFKC", name)
