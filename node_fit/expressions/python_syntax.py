"""Explains in terms of Python's grammar why a text is not an equation, since most users write equations like code."""

import ast
import re
import warnings

from .parsing import SPELLED, describe_count, is_function

PYTHON_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
PYTHON_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
PYTHON_SIGNS = (ast.UAdd, ast.USub, ast.Not)
# Python syntax that equations do not allow, described for error messages.
REFUSED: dict[type[ast.AST], str] = {
    ast.Attribute: "an attribute after a dot",
    ast.Subscript: "an index in brackets",
    ast.Compare: "a comparison",
    ast.IfExp: "`if`",
    ast.NamedExpr: "an assignment",
    ast.Lambda: "`lambda`",
    ast.JoinedStr: "text in quotes",
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "a comprehension"),
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set, ast.Dict), "a list of values"),
}
# Maximum number of nesting levels that are checked.
LEVELS = 100
# A number with an underscore, which Python would ignore.
GROUPED = re.compile(r"(?<![\w.])[\d.]*\d_")


class TooDeepError(ValueError):
    """Raised for a text that is nested too deeply to check."""


def explain_fault(text: str) -> tuple[str, int] | None:
    """Finds the fault of a text and its column, from 1; None if Python's grammar does not explain it.

    **Raises:** `TooDeepError`.
    """
    source, columns = as_python(text)

    def at(reason: str, offset: int) -> tuple[str, int]:
        return reason, columns[min(max(offset, 1), len(columns)) - 1]

    if "#" in source:  # Python would silently drop the comment.
        return at("a comment is not allowed in an equation", source.index("#") + 1)
    if underscore := GROUPED.search(source):
        return at("a number has no underscore", underscore.end())
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns about text that is rejected below.
            tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        return at(*fault_of(error, source))
    except (RecursionError, MemoryError):
        raise TooDeepError from None
    except ValueError:
        return at("it has invalid characters", 1)
    level = [tree]
    for _ in range(LEVELS):
        for node in level:
            if reason := rejection(node):
                return at(reason, offset_of(node, source))
        level = [child for node in level for child in inner_nodes(node)]
    if level:
        raise TooDeepError
    return None


def as_python(text: str) -> tuple[str, list[int]]:
    """Converts an equation to one line of Python, with the original column of each character and of the end."""
    spelled = [("**" if letter == "^" else " " if letter.isspace() else letter) for letter in text]
    source = "".join(spelled)
    columns = [column for column, piece in enumerate(spelled, start=1) for _ in piece]
    begin, end = len(source) - len(source.lstrip()), len(source.rstrip())
    return source[begin:end], [*columns[begin:end], (columns[end - 1] if end else 0) + 1]


def fault_of(error: SyntaxError, source: str) -> tuple[str, int]:
    """Returns the fault of a text that Python can't parse, and its offset, from 1."""
    reason, offset = str(error.msg).split(". ")[0], error.offset or 1
    if reason == "invalid syntax" and source.endswith(tuple("+-*/")) and offset == 1:
        return "it ends where a value should follow", len(source) + 1
    if (
        reason.startswith("invalid decimal literal") and source[offset : offset + 1].isalpha()
    ):  # Python points to the digit.
        return "write * between a number and a name", offset + 1
    return reason, offset


def rejection(node: ast.expr) -> str | None:
    """Returns why a node is not allowed in an equation, or `None` if it is; does not check its inner nodes."""
    match node:
        case ast.Constant(value=value):
            if isinstance(value, str | bytes):
                return "text in quotes is not allowed in an equation"
            if not isinstance(value, int | float) or isinstance(value, bool):
                return f"{value!r} is not a real number"
            return None
        case ast.Name():
            return None
        case ast.UnaryOp(op=operator):
            return None if isinstance(operator, PYTHON_SIGNS) else "the operators are + - * / **"
        case ast.BinOp(op=operator):
            return None if isinstance(operator, PYTHON_OPERATORS) else "the operators are + - * / **"
        case ast.Compare(ops=signs) if all(isinstance(sign, PYTHON_COMPARISONS) for sign in signs):
            return None
        case ast.BoolOp():
            return None
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            plain = not keywords and not any(isinstance(argument, ast.Starred) for argument in arguments)
            return None if plain or not is_function(name) else describe_count(name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if name in SPELLED or is_function(name):
            return f"write {SPELLED.get(name, f'{name}(x)')} for {module}.{name}"
        case ast.Call():
            return "only a function name may come before parentheses; write * for a product"
        case _:
            return f"{REFUSED.get(type(node), 'this')} is not allowed in an equation"


def inner_nodes(node: ast.expr) -> list[ast.expr]:
    """Returns the inner nodes of a node that `rejection` accepts."""
    match node:
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.BoolOp(values=values):
            return values
        case ast.Call(args=arguments):
            return arguments
        case _:
            return []


def offset_of(node: ast.expr, source: str) -> int:
    """Returns the offset of a node's start, or of the operator after its first part, in characters from 1."""
    text, start = source.encode(), node.col_offset
    first = node.left if isinstance(node, ast.BinOp | ast.Compare) else None
    if isinstance(node, ast.Tuple) and node.elts:
        first = node.elts[0]
    if first is not None and first.end_col_offset is not None:
        between = text[first.end_col_offset :]
        start = first.end_col_offset + len(between) - len(between.lstrip(b" )"))
    return len(text[:start].decode()) + 1
