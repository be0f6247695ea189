"""Right-hand sides as text, parsed by a small grammar and never run as Python code."""

import ast
import difflib
import keyword
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ...data.bounds import LARGEST
from ...runtime.stored_names import stored_as

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


@stored_as("Equations")
class Equations(eqx.Module):
    """Right-hand sides `d(state)/dt = expression`, written as text.

    An expression consists of numbers, names, `+ - * / **`, parentheses, and the functions exp, log, log10, sqrt, sin,
    cos, tan, sinh, cosh, tanh, sigmoid, abs, sign, minimum and maximum.

    **Arguments:**

    - `texts`: pairs of a state's name and its right-hand side. `Equations.of` makes and checks them.
    """

    texts: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @staticmethod
    def of(texts: Mapping[Any, Any]) -> "Equations":
        """Makes equations from a mapping of each state's name to its right-hand side, a text or a number.

        **Raises:** `ValueError` if a name or a text is not valid in an equation; it says where.
        """
        if not texts:
            raise ValueError("equations is empty; write one for each state, such as {x: -a*x}.")
        pairs = []
        for name, text in texts.items():
            check_name(name, "state")
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                raise ValueError(f"equation of {name!r} must be a string such as '-a*x', got {text!r}.")
            pairs.append((name, " ".join(str(text).split())))
            parse(*pairs[-1])
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
        values = {normalised(name): value for name, value in names.items()}
        dtype = jnp.result_type(float, *values.values())
        return {state: evaluate(parse(state, text), values, dtype) for state, text in self.texts}

    def names_used(self) -> frozenset[str]:
        """All names in the right-hand sides except functions, normalised like Python identifiers (Unicode NFKC)."""
        return frozenset(node.id for state, text in self.texts for node in variables(parse(state, text)))

    def check(self, known: Collection[str]) -> None:
        """Checks that the equations use only known names.

        **Arguments:**

        - `known`: names of states, inputs, constants, unknown terms and the time.

        **Raises:** `ValueError` with the equation, the unknown name, and the nearest known one.
        """
        names = {normalised(name) for name in known}
        for state, text in self.texts:
            for node in variables(parse(state, text)):
                if node.id not in names:
                    raise ValueError(
                        f"equation of {state!r}: {node.id!r} is not a state, an input, a constant or the time; "
                        f"{nearest(node.id, names)}"
                    )


def check_name(name: Any, kind: str) -> None:
    """Checks that a name is valid in an equation.

    **Arguments:**

    - `name`: the user's name.
    - `kind`: what the name is of, for the error message: `state`, `constant` or `term`.

    **Raises:** `ValueError` that says why the name is not valid.
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r} has a name that is not a string; in YAML, put quotes around it.")
    if name in FUNCTIONS:
        raise ValueError(f"{kind} {name!r} has the name of a function; rename it.")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
        raise ValueError(
            f"{kind} {name!r} has a name that is not valid in an equation; rename it: use letters, digits and single "
            "underscores, do not start with a digit, and avoid Python keywords."
        )


def parse(state: str, text: str) -> ast.expr:
    """Parses a right-hand side into a syntax tree that only has nodes known to `evaluate`.

    **Arguments:**

    - `state`: name of the state, for the error message.
    - `text`: an expression on one line.

    **Returns:** the root of the tree.

    **Raises:** `ValueError` that says what is wrong, and at which column.
    """
    where = f"equation of {state!r}"
    too_deep = ValueError(f"{where} is nested more than {DEEPEST} deep; group the terms of a long sum in parentheses.")
    if len(text) > LONGEST:
        raise ValueError(f"{where} has {len(text)} characters, over the limit of {LONGEST}; shorten it.")

    def refusal(reason: str, column: int) -> ValueError:
        return ValueError(f"{where}: {reason} (column {column} of {text[:200]!r}).")

    if "#" in text:  # Python would silently drop the rest.
        raise refusal("a comment is not allowed in an equation", text.index("#") + 1)
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's warnings about text that is refused below.
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise refusal(str(error.msg).split(". ")[0], error.offset or 1) from None
    except (RecursionError, MemoryError):
        raise too_deep from None
    except ValueError:
        raise refusal("it has invalid characters", 1) from None
    level = [tree]
    for _ in range(DEEPEST):
        for node in level:
            reason = rejection(node)
            if reason:
                raise refusal(reason, column_of(node, text))
        level = [child for node in level for child in operands(node)]
    if level:
        raise too_deep
    return tree


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
        case ast.BinOp(op=ast.BitXor()):
            return "`^` is not an operator; write ** for a power"
        case ast.BinOp(op=operator):
            return None if type(operator) in OPERATORS else "the operators are + - * / **"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name not in FUNCTIONS:
                return f"{name!r} is not a function; write * for a product, or {nearest(name, FUNCTIONS)}".rstrip("?.")
            count = FUNCTIONS[name][1]
            plain = not keywords and not any(isinstance(argument, ast.Starred) for argument in arguments)
            return None if plain and len(arguments) == count else f"{name!r} takes {count} argument{'s' * (count > 1)}"
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


def column_of(node: ast.expr, text: str) -> int:
    """The column of a node's start, or of its binary operator, counted in characters from 1; Python counts bytes."""
    source = text.encode()
    start = node.col_offset
    if isinstance(node, ast.BinOp) and node.left.end_col_offset is not None:
        between = source[node.left.end_col_offset :]
        start = node.left.end_col_offset + len(between) - len(between.lstrip(b" )"))
    return len(source[:start].decode()) + 1


def nearest(name: str, names: Collection[str]) -> str:
    match = difflib.get_close_matches(name, names, 1)
    return f"did you mean {match[0]!r}?" if match else f"the names are {', '.join(sorted(names))}."


def normalised(name: str) -> str:
    """Normalises a name as Python's parser does, which turns the micro sign into the Greek letter."""
    return unicodedata.normalize("NFKC", name)
