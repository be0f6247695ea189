"""Right-hand sides as text: parsed by a small grammar to a checked syntax tree, and never run as Python code."""

import ast
import difflib
import keyword
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ...data.domains import LARGEST_BOUND
from ...data.tables.reading import missing
from ...runtime.serialization import stored_as
from ...runtime.validation import check_path
from . import operations

# The functions that an equation may call, and how many arguments each takes.
FUNCTIONS: dict[str, tuple[Callable[..., Array], int]] = {
    "exp": (operations.exp, 1),
    "log": (operations.log, 1),
    "log10": (operations.log10, 1),
    "sqrt": (operations.sqrt, 1),
    "sin": (jnp.sin, 1),
    "cos": (jnp.cos, 1),
    "tan": (operations.tan, 1),
    "sinh": (operations.sinh, 1),
    "cosh": (operations.cosh, 1),
    "tanh": (jnp.tanh, 1),
    "sigmoid": (jax.nn.sigmoid, 1),
    "abs": (jnp.abs, 1),
    "sign": (jnp.sign, 1),
    "minimum": (jnp.minimum, 2),
    "maximum": (jnp.maximum, 2),
}
# What to write for functions of NumPy and others.
SPELLED = {name: f"{name}(x)" if count == 1 else f"{name}(x, y)" for name, (_, count) in FUNCTIONS.items()} | {
    **dict.fromkeys(("pow", "power"), "x**y"),
    **dict.fromkeys(("absolute", "fabs"), "abs(x)"),
    **dict.fromkeys(("expit", "logistic"), "sigmoid(x)"),
    "ln": "log(x)",
    "max": "maximum(x, y)",
    "min": "minimum(x, y)",
}
OPERATORS: dict[type[ast.operator], Callable[[Array, Array], Array]] = {
    ast.Add: jnp.add,
    ast.Sub: jnp.subtract,
    ast.Mult: jnp.multiply,
    ast.Div: operations.divide,
    ast.Pow: operations.power,
}
SIGNS: dict[type[ast.unaryop], Callable[[Array], Array]] = {ast.UAdd: jnp.positive, ast.USub: jnp.negative}
# Python syntax that equations do not allow, described for error messages.
REFUSED: dict[type[ast.AST], str] = {
    ast.Attribute: "an attribute after a dot",
    ast.Subscript: "an index in brackets",
    ast.Compare: "a comparison",
    ast.BoolOp: "`and` or `or`",
    ast.IfExp: "`if`",
    ast.NamedExpr: "an assignment",
    ast.Lambda: "`lambda`",
    ast.JoinedStr: "text in quotes",
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "a comprehension"),
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set, ast.Dict), "a list of values"),
}
# Equations may come from untrusted files. These limits bound the time to parse and evaluate them.
LONGEST_EQUATION = 2000
DEEPEST = 100
# Integer powers up to this one become products, which are exact and differentiable at 0 and for negative values.
PRODUCT_POWER = 64
# A number with an underscore, which Python reads without it.
GROUPED = re.compile(r"(?<![\w.])[\d.]*\d_")

# What a text is, in the sentence about one that is wrong.
EQUATION = "equation of"


class EquationError(ValueError):
    """Raised for a text that is no equation.

    **Arguments:**

    - `state`, `kind`: whose text it is, and what: an equation, unless said otherwise.
    - `reason`: the sentence after `equation of 'STATE'`.
    - `column`, `text`: where in a text it is wrong, from 1; `None` if it is wrong as a whole.
    """

    def __init__(self, state: str, reason: str, column: int | None = None, text: str = "", kind: str = EQUATION):
        self.state, self.reason, self.column = state, reason, column
        place = "" if column is None else f" (column {column} of {text[:200]!r})."
        super().__init__(f"{kind} {state!r}{reason}{place}")


def parse(state: str, text: str, kind: str = EQUATION) -> ast.expr:
    """Parses a right-hand side into a syntax tree that only has nodes known to `evaluate`.

    **Arguments:**

    - `state`, `kind`: name of the state, and what the text is, for the error message.
    - `text`: an expression, in which `^` means `**`.

    **Returns:** the root of the tree.

    **Raises:** `EquationError` that says what is wrong, and at which column.
    """
    deep = f" is nested more than {DEEPEST} deep; group the terms of a long sum in parentheses."
    if len(text) > LONGEST_EQUATION:
        raise EquationError(
            state, f" has {len(text)} characters, over the limit of {LONGEST_EQUATION}; shorten it.", kind=kind
        )
    source, columns = as_python(text)

    def refusal(reason: str, offset: int) -> EquationError:
        return EquationError(state, f": {reason}", columns[min(max(offset, 1), len(columns)) - 1], text, kind)

    if "#" in source:  # Python would silently drop the rest.
        raise refusal("a comment is not allowed in an equation", source.index("#") + 1)
    if underscore := GROUPED.search(source):
        raise refusal("a number has no underscore", underscore.end())
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's warnings about text that is refused below.
            tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise refusal(*fault_of(error, source)) from None
    except (RecursionError, MemoryError):
        raise EquationError(state, deep, kind=kind) from None
    except ValueError:
        raise refusal("it has invalid characters", 1) from None
    level = [tree]
    for _ in range(DEEPEST):
        for node in level:
            reason = rejection(node)
            if reason:
                raise refusal(reason, offset_of(node, source))
        level = [child for node in level for child in operands(node)]
    if level:
        raise EquationError(state, deep, kind=kind)
    return tree


def as_python(text: str) -> tuple[str, list[int]]:
    """Python's spelling of an equation on one line, and the column in the text of each character and of the end."""
    spelled = [("**" if letter == "^" else " " if letter.isspace() else letter) for letter in text]
    source = "".join(spelled)
    columns = [at for at, piece in enumerate(spelled, start=1) for _ in piece]
    begin, end = len(source) - len(source.lstrip()), len(source.rstrip())
    return source[begin:end], [*columns[begin:end], (columns[end - 1] if end else 0) + 1]


def fault_of(error: SyntaxError, source: str) -> tuple[str, int]:
    """What is wrong with a text that Python can't parse, and at which offset, from 1."""
    reason, at = str(error.msg).split(". ")[0], error.offset or 1
    if reason == "invalid syntax" and source.endswith(tuple("+-*/")) and at == 1:
        return "it ends where a value should follow", len(source) + 1
    if reason.startswith("invalid decimal literal") and source[at : at + 1].isalpha():  # Python points to the digit.
        return "write * between a number and a name", at + 1
    return reason, at


def rejection(node: ast.expr) -> str | None:
    """Why a node is not allowed in an equation, or `None` if it is; does not check its operands."""
    match node:
        case ast.Constant(value=value):
            if isinstance(value, str | bytes):
                return "text in quotes is not allowed in an equation"
            if not isinstance(value, int | float) or isinstance(value, bool):
                return f"{value!r} is not a real number"
            return None if abs(value) <= LARGEST_BOUND else "a number is too large"
        case ast.Name(id=name):
            if name in FUNCTIONS:
                return f"the function {name!r} needs its argument in parentheses"
            return f"{name!r} is not allowed as a name" if name.startswith("__") else None
        case ast.UnaryOp(op=operator):
            return None if type(operator) in SIGNS else "the operators are + - * / **"
        case ast.BinOp(op=operator):
            return None if type(operator) in OPERATORS else "the operators are + - * / **"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name not in FUNCTIONS:
                known = f"write {SPELLED[name]}" if name in SPELLED else nearest_symbol(name, FUNCTIONS)
                return f"{name!r} is not a function; write * for a product, or {known}".rstrip("?.")
            count = FUNCTIONS[name][1]
            plain = not keywords and not any(isinstance(argument, ast.Starred) for argument in arguments)
            return None if plain and len(arguments) == count else f"{name!r} takes {count} argument{'s' * (count > 1)}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if name in SPELLED:
            return f"write {SPELLED[name]} for {module}.{name}"
        case ast.Call():
            return "only a function name may come before parentheses; write * for a product"
        case _:
            return f"{REFUSED.get(type(node), 'this')} is not allowed in an equation"


def operands(node: ast.expr) -> list[ast.expr]:
    """The operands of a node that `rejection` accepts."""
    match node:
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Call(args=arguments):
            return arguments
        case _:
            return []


def variables(node: ast.expr) -> Iterator[ast.Name]:
    """The names in a tree, from left to right."""
    if isinstance(node, ast.Name):
        yield node
    for child in operands(node):
        yield from variables(child)


def evaluate_term(node: ast.expr, values: Mapping[str, Array], dtype: DTypeLike) -> Array:
    """Evaluates a tree from `parse`; every number becomes a float array first."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return jnp.asarray(float(value), dtype)
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=sign, operand=operand):
            return SIGNS[type(sign)](evaluate_term(operand, values, dtype))
        case ast.BinOp(op=ast.Pow(), left=left, right=right) if (exponent := integer(right)) is not None:
            return operations.integer_power(evaluate_term(left, values, dtype), exponent)
        case ast.BinOp(op=operator, left=left, right=right):
            return OPERATORS[type(operator)](evaluate_term(left, values, dtype), evaluate_term(right, values, dtype))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name][0](*(evaluate_term(argument, values, dtype) for argument in arguments))
        case _:
            raise TypeError(f"{type(node).__name__} passed `parse`, but `evaluate_term` does not know it.")


def integer(node: ast.expr) -> int | None:
    """The value of a small integer exponent, written as `2`, `2.0`, `-2` or `(-2)`; `None` for any other node."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = integer(operand)
            return None if value is None else -value
        case ast.Constant(value=int() | float() as value) if value == int(value) and value <= PRODUCT_POWER:
            return int(value)
        case _:
            return None


def offset_of(node: ast.expr, source: str) -> int:
    """The offset of a node's start, or of the operator after its first part, in characters from 1, not in bytes."""
    text, start = source.encode(), node.col_offset
    first = node.left if isinstance(node, ast.BinOp | ast.Compare) else None
    if isinstance(node, ast.Tuple) and node.elts:
        first = node.elts[0]
    if first is not None and first.end_col_offset is not None:
        between = text[first.end_col_offset :]
        start = first.end_col_offset + len(between) - len(between.lstrip(b" )"))
    return len(text[:start].decode()) + 1


def column_of(node: ast.expr, text: str) -> int:
    """Where a node begins in a text as it was written, from 1."""
    source, columns = as_python(text)
    return columns[min(offset_of(node, source), len(columns)) - 1]


# How the list of all names begins, and the key of a constant's first value.
NAMES_ARE, CONSTANT_KEY = "the names are", "+field.constants."


def nearest_symbol(name: str, names: Collection[str]) -> str:
    match = difflib.get_close_matches(name, names, 1)
    return f"did you mean {match[0]!r}?" if match else f"{NAMES_ARE} {', '.join(sorted(names))}."


# A line of a file of equations.
LINE, DERIVATIVE = re.compile(r"(?P<state>[^:=]*)[:=](?P<text>.*)"), re.compile(r"d(\w+)\s*/\s*dt")
# A file of equations is not larger [bytes].
MOST_EQUATION_BYTES = 1_000_000
# What to write for numbers that have a name elsewhere.
NUMBERS = {"e": "write exp(x) for e^x.", "pi": f"write {math.pi} for pi."}


@stored_as("Equations")
class Equations(eqx.Module):
    """Right-hand sides `d(state)/dt = expression`, written as text.

    An expression consists of numbers, names, `+ - * / **`, parentheses, and the functions exp, log, log10, sqrt, sin,
    cos, tan, sinh, cosh, tanh, sigmoid, abs, sign, minimum and maximum. `^` is another way to write `**`. Derivatives
    of a guarded expression, such as `sqrt(maximum(h, 0))`, are finite where the guard begins.

    **Arguments:**

    - `texts`: pairs of a state's name and its right-hand side. `Equations.of` makes and checks them.
    """

    texts: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @staticmethod
    def of(texts: Mapping[Any, object]) -> "Equations":
        """Makes equations from a mapping of each state's name to its right-hand side, a text or a number.

        **Raises:** `ValueError` if a name or a text is not valid in an equation; it says where.
        """
        if not texts:
            raise ValueError("equations is empty; write one for each state, such as {x: -a*x}.")
        pairs: list[tuple[str, str]] = []
        for name, text in texts.items():
            check_symbol(name, "state")
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                raise ValueError(f"equation of {name!r} must be a string such as '-a*x', got {text!r}.")
            parse(name, str(text))  # as written, for the columns in errors
            pairs.append((name, " ".join(str(text).replace("^", "**").split())))
        return Equations(tuple(pairs))

    def __call__(self, names: Mapping[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
        """Evaluates all right-hand sides.

        **Arguments:**

        - `names`: the value of each name in the equations (states, inputs, time, constants, unknown terms), all of one
            floating dtype and usually scalars.

        **Returns:** the time derivative of each state, in the dtype of the values.

        **Raises:** `ValueError` if a name has no value.
        """
        self.check(names)
        values = {normalize(name): value for name, value in names.items()}
        dtype = jnp.result_type(float, *values.values())
        return {state: evaluate_term(parse(state, text), values, dtype) for state, text in self.texts}

    def names_used(self) -> frozenset[str]:
        """All names in the right-hand sides except functions, normalised like Python identifiers (Unicode NFKC)."""
        return frozenset(node.id for state, text in self.texts for node in variables(parse(state, text)))

    def edges(self) -> Iterator[tuple[str, ast.expr, ast.expr]]:
        """Roots, logarithms and powers that have no value where their argument is below 0.

        **Returns:** for each the state of its equation, the operation and its argument.
        """
        for state, text in self.texts:
            level = [parse(state, text)]
            while level:
                for node in level:
                    match node:
                        case ast.Call(func=ast.Name(id="sqrt" | "log" | "log10"), args=[argument]):
                            yield state, node, argument
                        case ast.BinOp(op=ast.Pow(), left=argument, right=exponent) if integer(exponent) is None:
                            yield state, node, argument
                        case _:
                            pass
                level = [child for node in level for child in operands(node)]

    def check(self, known: Collection[str]) -> None:
        """Checks that the equations use only known names.

        **Arguments:**

        - `known`: names of states, inputs, constants, unknown terms and the time.

        **Raises:** `ValueError` with the equation, the unknown name, and the nearest known one.
        """
        names = {normalize(name) for name in known}
        for state, text in self.texts:
            for node in variables(parse(state, text)):
                if node.id not in names:
                    hint = NUMBERS.get(node.id) or nearest_symbol(node.id, names)
                    if hint.startswith(NAMES_ARE):
                        key = f"{CONSTANT_KEY}{node.id}=1"
                        hint = f"{hint.rstrip('.')}; if it is a constant, give its first value, {key}."
                    what = "is not a state, an input, a constant or the time"
                    raise EquationError(state, f": {node.id!r} {what}; {hint}")


class EquationFile(dict[str, str]):
    """The equations that a text file holds, by state; `lines` says where each is, for errors."""

    lines: dict[str, str]


def read_equation_lines(path: str | Path) -> EquationFile:
    """Reads equations from a text file: a line each, `v: m*(1 - x^2)*v - x`, with `#` before comments.

    A line may also begin with `v =`, `v' =` or `dv/dt =`.

    **Raises:** `FileNotFoundError`, or `ValueError` that names the file, the line and the column.
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
    found = EquationFile()
    places: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        written, place = line.partition("#")[0], f"{path}, line {number}"
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
        if state in found:
            raise ValueError(f"{place}: {places[state]} gives an equation of {state!r} already; remove one.")
        found[state], places[state] = parts["text"].strip(), place
    if not found:
        raise ValueError(f"equations: {path} holds none; write a line for each state, such as v: m*(1 - x^2)*v - x.")
    found.lines = places
    return found


def as_mapping(equations: Mapping[Any, object] | str | Path) -> Mapping[Any, object]:
    """Equations by state; those of a file are read."""
    return read_equation_lines(equations) if isinstance(equations, str | Path) else equations


def placed(error: EquationError, equations: Mapping[Any, object]) -> ValueError:
    """The error, with its file and line if the equations come from a file."""
    place = equations.lines.get(error.state) if isinstance(equations, EquationFile) else None
    return error if place is None else ValueError(f"{place}: {error}")


def check_symbol(name: object, kind: str) -> None:
    """Checks that a name is valid in an equation.

    **Arguments:**

    - `name`: the user's name.
    - `kind`: what the name is of, for the error message: `state`, `constant` or `term`.

    **Raises:** `ValueError` that says why the name is not valid.
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r:.80} has a name that is not a string; in YAML, put quotes around it.")
    if name in FUNCTIONS:
        raise ValueError(f"{kind} {name!r:.80} has the name of a function; rename it.")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
        raise ValueError(
            f"{kind} {name!r:.80} has a name that is not valid in an equation; rename it (data.rename in a "
            "command): use letters, digits and single underscores, do not start with a digit, and avoid Python "
            "keywords."
        )


def normalize(name: str) -> str:
    """Normalises a name as Python's parser does, which turns the micro sign into the Greek letter."""
    return unicodedata.normalize("NFKC", name)
