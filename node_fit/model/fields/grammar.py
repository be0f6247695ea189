"""The grammar of equations: a text becomes a checked syntax tree, which is evaluated and never run as Python code."""

import ast
import difflib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike

from ...data.bounds import LARGEST

# The functions that an equation may call, and how many arguments each takes.
FUNCTIONS: dict[str, tuple[Callable[..., Array], int]] = {
    "exp": (jnp.exp, 1),
    "log": (jnp.log, 1),
    "log10": (jnp.log10, 1),
    "sqrt": (jnp.sqrt, 1),
    "sin": (jnp.sin, 1),
    "cos": (jnp.cos, 1),
    "tan": (jnp.tan, 1),
    "sinh": (jnp.sinh, 1),
    "cosh": (jnp.cosh, 1),
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
    ast.Div: jnp.divide,
    ast.Pow: jnp.power,
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
LONGEST = 2000
DEEPEST = 100
# Integer powers up to this one become products, which are exact and differentiable at 0 and for negative values.
PRODUCT_POWER = 64

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
    if len(text) > LONGEST:
        raise EquationError(state, f" has {len(text)} characters, over the limit of {LONGEST}; shorten it.", kind=kind)
    source, columns = as_python(text)

    def refusal(reason: str, offset: int) -> EquationError:
        return EquationError(state, f": {reason}", columns[min(max(offset, 1), len(columns)) - 1], text, kind)

    if "#" in source:  # Python would silently drop the rest.
        raise refusal("a comment is not allowed in an equation", source.index("#") + 1)
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
            return None if abs(value) <= LARGEST else "a number is too large"
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
                known = f"write {SPELLED[name]}" if name in SPELLED else nearest(name, FUNCTIONS)
                return f"{name!r} is not a function; write * for a product, or {known}".rstrip("?.")
            count = FUNCTIONS[name][1]
            plain = not keywords and not any(isinstance(argument, ast.Starred) for argument in arguments)
            return None if plain and len(arguments) == count else f"{name!r} takes {count} argument{'s' * (count > 1)}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if name in SPELLED:
            return f"write {SPELLED[name]} for {module}.{name}"
        case ast.Call():
            return "only a function name may come before parentheses; write * for a product"
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
    return []


def variables(node: ast.expr) -> Iterator[ast.Name]:
    """The names in a tree, from left to right."""
    if isinstance(node, ast.Name):
        yield node
    for child in operands(node):
        yield from variables(child)


def evaluate(node: ast.expr, values: Mapping[str, Array], dtype: DTypeLike) -> Array:
    """Evaluates a tree from `parse`; every number becomes a float array first."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return jnp.asarray(float(value), dtype)
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=sign, operand=operand):
            return SIGNS[type(sign)](evaluate(operand, values, dtype))
        case ast.BinOp(op=ast.Pow(), left=left, right=right) if (exponent := integer(right)) is not None:
            return jax.lax.integer_pow(evaluate(left, values, dtype), exponent)
        case ast.BinOp(op=operator, left=left, right=right):
            return OPERATORS[type(operator)](evaluate(left, values, dtype), evaluate(right, values, dtype))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name][0](*(evaluate(argument, values, dtype) for argument in arguments))
    raise TypeError(f"{type(node).__name__} passed `parse`, but `evaluate` does not know it.")


def integer(node: ast.expr) -> int | None:
    """The value of a small integer exponent, written as `2`, `2.0`, `-2` or `(-2)`; `None` for any other node."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = integer(operand)
            return None if value is None else -value
        case ast.Constant(value=int() | float() as value) if value == int(value) and value <= PRODUCT_POWER:
            return int(value)
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


def nearest(name: str, names: Collection[str]) -> str:
    match = difflib.get_close_matches(name, names, 1)
    return f"did you mean {match[0]!r}?" if match else f"the names are {', '.join(sorted(names))}."
