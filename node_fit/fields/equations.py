"""Right-hand sides that are written as text, read by a small grammar and never run as Python code."""

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

from ..bounds import LARGEST

# What a text may call: the function, and how many arguments it takes.
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
# Parts of Python that are no parts of an equation, in words.
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
# A text may come from a file that somebody else wrote; these keep reading and evaluating it quick.
LONGEST = 2000
DEEPEST = 100
# Integer powers up to here are products, exact and differentiable at 0 and for negative values.
PRODUCT_POWER = 64


class Equations(eqx.Module):
    """Right-hand sides `d(state)/dt = expression`, written as text.

    An expression has numbers, names, `+ - * / **`, parentheses, and the functions exp, log, log10, sqrt, sin, cos,
    tan, sinh, cosh, tanh, sigmoid, abs, sign, minimum and maximum.

    **Arguments:**

    - `texts`: pairs of a state's name and its right-hand side. `Equations.of` makes and checks them.
    """

    texts: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @staticmethod
    def of(texts: Mapping[Any, Any]) -> "Equations":
        """Equations from a mapping of each state's name to its right-hand side, a text or a number.

        **Raises:** `ValueError` if a name can't stand in an equation, or a text is none; it says where.
        """
        if not texts:
            raise ValueError("equations is empty; write one for each state, such as {x: -a*x}.")
        pairs = []
        for name, text in texts.items():
            check_name(name, "state")
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                raise ValueError(f"equation of {name!r} must be a text such as '-a*x', got {text!r}.")
            pairs.append((name, " ".join(str(text).split())))
            parse(*pairs[-1])
        return Equations(tuple(pairs))

    def __call__(self, names: Mapping[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
        """Every right-hand side.

        **Arguments:**

        - `names`: the value of each name that occurs (states, inputs, time, constants, unknown terms), all of one
            floating dtype and, usually, scalars.

        **Returns:** for each state its time derivative, in the dtype of the values.

        **Raises:** `ValueError` if a name has no value.
        """
        self.check(names)
        values = {normal(name): value for name, value in names.items()}
        dtype = jnp.result_type(float, *values.values())
        return {state: evaluate(parse(state, text), values, dtype) for state, text in self.texts}

    def names_used(self) -> frozenset[str]:
        """All names in the right-hand sides, without the functions'; written as Python writes them (Unicode NFKC)."""
        return frozenset(node.id for state, text in self.texts for node in variables(parse(state, text)))

    def check(self, known: Collection[str]) -> None:
        """Refuses equations with a name that is not known.

        **Arguments:**

        - `known`: names of states, inputs, constants, unknown terms and the time.

        **Raises:** `ValueError` that says where the name stands, with the nearest known one.
        """
        names = {normal(name) for name in known}
        for state, text in self.texts:
            for node in variables(parse(state, text)):
                if node.id not in names:
                    raise ValueError(
                        f"equation of {state!r}: {node.id!r} is none of the states, inputs, constants or the time; "
                        f"{nearest(node.id, names)}"
                    )


def check_name(name: Any, kind: str) -> None:
    """Refuses a name that can't stand in an equation.

    **Arguments:**

    - `name`: what the user calls it.
    - `kind`: what it is, for the sentence: `state` or `constant`.

    **Raises:** `ValueError` that says why.
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r} has a name that is no text; in YAML, put quotes around it.")
    if name in FUNCTIONS:
        raise ValueError(f"{kind} {name!r} has the name of a function of equations; rename it.")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
        raise ValueError(
            f"{kind} {name!r} has a name that can't stand in an equation; rename it with letters, digits and single "
            "underscores, not beginning with a digit, and no keyword of Python."
        )


def parse(state: str, text: str) -> ast.expr:
    """The syntax tree of a right-hand side, all of whose nodes `evaluate` knows.

    **Arguments:**

    - `state`: whose it is, for the sentence.
    - `text`: an expression on one line.

    **Raises:** `ValueError` that says what is wrong, and at which column.
    """
    where = f"equation of {state!r}"
    deep = ValueError(f"{where} is nested more than {DEEPEST} deep; group the terms of a long sum in parentheses.")
    if len(text) > LONGEST:
        raise ValueError(f"{where} has {len(text)} characters, but may have {LONGEST}; shorten it.")

    def refusal(reason: str, column: int) -> ValueError:
        return ValueError(f"{where}: {reason} (column {column} of {text[:200]!r}).")

    if "#" in text:  # All that follows would be dropped in silence.
        raise refusal("a comment has no place in an equation", text.index("#") + 1)
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's own remarks on what is refused below.
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise refusal(str(error.msg).split(". ")[0], error.offset or 1) from None
    except (RecursionError, MemoryError):
        raise deep from None
    except ValueError:
        raise refusal("it has characters that are no text", 1) from None
    level = [tree]
    for _ in range(DEEPEST):
        for node in level:
            reason = fault(node)
            if reason:
                raise refusal(reason, column_of(node, text))
        level = [child for node in level for child in operands(node)]
    if level:
        raise deep
    return tree


def fault(node: ast.expr) -> str | None:
    """Why a node is no part of an equation, its operands aside."""
    match node:
        case ast.Constant(value=value):
            if isinstance(value, str | bytes):
                return "text in quotes has no place in an equation"
            if not isinstance(value, int | float) or isinstance(value, bool):
                return f"{value!r} is no real number"
            return None if abs(value) <= LARGEST else "a number is too large"
        case ast.Name(id=name):
            if name in FUNCTIONS:
                return f"the function {name!r} lacks its argument in parentheses"
            return f"{name!r} is not allowed as a name" if name.startswith("__") else None
        case ast.UnaryOp(op=operator):
            return None if type(operator) in SIGNS else "the operators are + - * / **"
        case ast.BinOp(op=ast.BitXor()):
            return "`^` is no operator; write ** for a power"
        case ast.BinOp(op=operator):
            return None if type(operator) in OPERATORS else "the operators are + - * / **"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name not in FUNCTIONS:
                return f"{name!r} is no function; for a product write *, or {nearest(name, FUNCTIONS)}".rstrip("?.")
            count = FUNCTIONS[name][1]
            plain = not keywords and not any(isinstance(argument, ast.Starred) for argument in arguments)
            return None if plain and len(arguments) == count else f"{name!r} takes {count} argument{'s' * (count > 1)}"
        case ast.Call():
            return "only a name of a function may stand before parentheses; for a product write *"
    return f"{REFUSED.get(type(node), 'this')} has no place in an equation"


def operands(node: ast.expr) -> list[ast.expr]:
    """What a node that has no fault is made of."""
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
    """The value of a tree that `parse` made; every number becomes a float array before anything is done with it."""
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
    raise TypeError(f"{type(node).__name__} has passed parse, and should not have.")


def integer(node: ast.expr) -> int | None:
    """The small integer that an exponent is, written as `2`, `2.0`, `-2` or `(-2)`."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = integer(operand)
            return None if value is None else -value
        case ast.Constant(value=int() | float() as value) if value == int(value) and value <= PRODUCT_POWER:
            return int(value)
    return None


def column_of(node: ast.expr, text: str) -> int:
    """The column, from 1, at which a node begins, or its operator stands; Python counts bytes."""
    source = text.encode()
    start = node.col_offset
    if isinstance(node, ast.BinOp) and node.left.end_col_offset is not None:
        between = source[node.left.end_col_offset :]
        start = node.left.end_col_offset + len(between) - len(between.lstrip(b" )"))
    return len(source[:start].decode()) + 1


def nearest(name: str, names: Collection[str]) -> str:
    match = difflib.get_close_matches(name, names, 1)
    return f"did you mean {match[0]!r}?" if match else f"the names are {', '.join(sorted(names))}."


def normal(name: str) -> str:
    """A name as Python's parser gives it back, which writes the micro sign as the Greek letter."""
    return unicodedata.normalize("NFKC", name)
