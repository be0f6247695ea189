"""Parses expressions from text in the spelling of equations or of PEtab; no text is run as code."""

import difflib
import functools
import keyword
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from ..data.domains import LARGEST_BOUND
from .operations import ANY, OPERATIONS
from .tree import COMPARISONS, Application, Expression, Number, Symbol, calls, measure


@dataclass(frozen=True, eq=False)
class Dialect:
    """The spelling of expressions in a kind of text.

    **Arguments:**

    - `token`: pattern of a token, with the groups `number`, `name`, `operator`, `end` and `wrong`.
    - `functions`: alternative names of functions.
    - `numbers`: names that stand for numbers.
    - `words`: names that are operators.
    - `joins`: whether a chain such as a sum is one call with many arguments, rather than nested calls.
    - `most_nested`: maximum nesting depth.
    - `largest`: largest allowed number.
    - `is_strict`: whether numbers and conditions are distinguished, and a text must compute a number.
    - `reserved`: functions whose names can't be anything else.
    - `given`: functions of one argument that are in no table; the code that evaluates the expression supplies values.
    """

    token: re.Pattern[str]
    functions: Mapping[str, str]
    numbers: Mapping[str, float | bool]
    words: Mapping[str, str]
    joins: bool
    most_nested: int
    largest: float = math.inf
    is_strict: bool = False
    reserved: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()


def tokens(names: str, operators: str, flags: re.RegexFlag) -> re.Pattern[str]:
    return re.compile(
        rf"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>{names})|"
        rf"(?P<operator>{operators})|(?P<end>$)|(?P<wrong>.))",
        flags | re.DOTALL,
    )


# Precedence of binary operators; powers bind to the right.
BINDING = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "^": 8,
}  # fmt: skip
NAMES = {"||": "or", "&&": "and"}
# Operators whose chains are one call with many arguments.
CHAINED = ("+", "*", "and", "or")
# Precedence of signs, PEtab's `!` and the word `not`.
SIGNS = {"-": 7, "+": 7, "!": 7, "not": 2}
# Operations that are written only as operators.
NO_FUNCTIONS = ("and", "or", "xor", "not", "negative")


class ParseError(ValueError):
    """Raised for a text that is not an expression.

    **Arguments:** `reason`: description of the fault. `column`: its column, from 1. `is_syntax`: whether the text can't
    be parsed, rather than has forbidden content. `is_deep`: whether it is nested too deeply.
    """

    def __init__(self, reason: str, column: int, *, is_syntax: bool = False, is_deep: bool = False):
        super().__init__(reason)
        self.reason, self.column, self.is_syntax, self.is_deep = reason, column, is_syntax, is_deep


class Parser:
    """A precedence parser (V. R. Pratt, 1973)."""

    def __init__(self, text: str, dialect: Dialect):
        self.text, self.dialect, self.at, self.depth = text, dialect, 0, 0
        self.kind: str = ""
        self.token: str = ""
        self.column: int = 1
        # Columns of conditions by their `id`; these stay unique, since the expression holds the conditions.
        self.conditions: dict[int, int] = {}
        self.advance()

    def advance(self) -> None:
        match = self.dialect.token.match(self.text, self.at)
        assert match is not None
        self.kind = match.lastgroup or "end"
        self.token = match.group(self.kind)
        self.column, self.at = match.start(self.kind) + 1, match.end()
        self.token = "^" if self.token == "**" else self.token
        if self.kind == "name" and self.token in self.dialect.words:
            self.kind, self.token = "operator", self.dialect.words[self.token]

    def refuse(self, reason: str, column: int | None = None, *, is_syntax: bool = False) -> ParseError:
        return ParseError(reason, self.column if column is None else column, is_syntax=is_syntax)

    def too_deep(self) -> ParseError:
        return ParseError(f"it is nested more than {self.dialect.most_nested} deep", self.column, is_deep=True)

    def take(self, token: str) -> bool:
        matches = self.kind == "operator" and self.token == token
        if matches:
            self.advance()
        return matches

    def whole(self) -> Expression:
        """Parses the whole text."""
        expression = self.expression(0)
        if self.kind != "end":
            raise self.refuse(f"{self.token!r} is not expected here", is_syntax=True)
        if self.dialect.is_strict:
            self.check_number(expression)
            if measure(expression).depth > self.dialect.most_nested:
                raise self.too_deep()
        return expression

    def expression(self, binding: int) -> Expression:
        self.depth += 1
        if self.depth > self.dialect.most_nested:
            raise self.too_deep()
        left, joined = self.operand(), ""
        while self.kind == "operator" and BINDING.get(self.token, -1) > binding:
            sign, column = self.token, self.column
            self.advance()
            right = self.expression(BINDING[sign] - (sign == "^"))
            name = NAMES.get(sign, sign)
            terms = left.arguments if isinstance(left, Application) and joined == name else (left,)
            if len(terms) == ANY:
                raise self.refuse(f"over {ANY} values are joined by {sign!r}; group them in parentheses")
            left = self.make_call(name, (*terms, right), column)
            joined = name if name in CHAINED and self.dialect.joins else ""
        self.depth -= 1
        return left

    def operand(self) -> Expression:
        kind, token, column = self.kind, self.token, self.column
        if kind == "end":
            raise self.refuse("it ends where a value should follow", is_syntax=True)
        if kind == "wrong":
            raise self.refuse(f"{token!r} is not allowed in a formula", is_syntax=True)
        if kind == "operator" and token in SIGNS:
            self.advance()
            inside = self.expression(SIGNS[token])
            return inside if token == "+" else self.make_call("negative" if token == "-" else "not", (inside,), column)
        if self.take("("):
            inside = self.expression(0)
            if not self.take(")"):
                raise self.refuse("a parenthesis is not closed", is_syntax=True)
            return inside
        if kind == "operator":
            raise self.refuse(f"a value should come before {token!r}", is_syntax=True)
        self.advance()
        if kind == "number":
            return self.number(token, column)
        return self.call(token, column) if self.take("(") else self.name(token, column)

    def number(self, token: str, column: int) -> Expression:
        if float(token) > self.dialect.largest:
            raise self.refuse("a number is too large", column)
        return Number(int(token) if self.dialect.is_strict and token.isdigit() else float(token))

    def name(self, token: str, column: int) -> Expression:
        if self.dialect.is_strict:
            if keyword.iskeyword(token) or not token.isidentifier():
                raise self.refuse(f"{token!r} is not allowed as a name", column, is_syntax=True)
            if token.startswith("__"):
                raise self.refuse(f"{token!r} is not allowed as a name", column)
            if token in self.dialect.reserved:
                raise self.refuse(f"the function {token!r} needs its argument in parentheses", column)
            token = unicodedata.normalize("NFKC", token)
        return Number(self.dialect.numbers[token]) if token in self.dialect.numbers else Symbol(token)

    def call(self, token: str, column: int) -> Expression:
        name = self.dialect.functions.get(token, token)
        is_given = token in self.dialect.given
        if not is_given and not is_function(token, self.dialect.functions):
            raise self.refuse(self.describe_unknown(token), column)
        arguments: list[Expression] = []
        while not self.take(")"):
            if arguments and not self.take(","):
                raise self.refuse("a parenthesis is not closed", is_syntax=True)
            arguments.append(self.expression(0))
        if is_given:
            return self.make_given(token, arguments, column)
        fewest, most = OPERATIONS[name].fewest, OPERATIONS[name].most
        lacks = self.dialect.is_strict and (
            (OPERATIONS[name].folds and len(arguments) < 2) or (name == "piecewise" and len(arguments) % 2 == 0)
        )
        if lacks or not fewest <= len(arguments) <= most:
            raise self.refuse(describe_count(token, self.dialect.functions), column)
        return self.make_call(name, tuple(arguments), column)

    def make_given(self, token: str, arguments: list[Expression], column: int) -> Application:
        if len(arguments) != 1:
            raise self.refuse(f"{token!r} takes 1 argument", column)
        self.check_number(arguments[0])
        if any(call.function in self.dialect.given for call in calls(arguments[0])):
            raise self.refuse(f"{token!r} is not allowed within itself", column)
        return Application(token, tuple(arguments))

    def describe_unknown(self, token: str) -> str:
        reason = f"{token!r} is not a function; write * for a product"
        if token in SPELLED:
            return f"{reason}, or {SPELLED[token]}"
        names = [*self.dialect.functions, *(name for name in OPERATIONS if name.isidentifier())]
        close = difflib.get_close_matches(token, names, 1) if self.dialect.is_strict else []
        return f"{reason}, or did you mean {close[0]!r}" if close else reason

    def make_call(self, name: str, arguments: tuple[Expression, ...], column: int) -> Application:
        """Creates a call; checks that its arguments are numbers or conditions, as the operation requires."""
        made = Application(name, arguments)
        if not self.dialect.is_strict:
            return made
        takes = OPERATIONS[name].takes_conditions
        for place, argument in enumerate(arguments):
            if not takes and not (name == "piecewise" and place % 2):
                self.check_number(argument)
            elif id(argument) not in self.conditions:
                raise self.refuse(NO_CONDITION.get(name, NO_CONDITION["and"]), column)
        if OPERATIONS[name].gives_condition:
            self.conditions[id(made)] = column
        return made

    def check_number(self, expression: Expression) -> None:
        if id(expression) in self.conditions:
            what = "a comparison" if cast(Application, expression).function in COMPARISONS else "`and` or `or`"
            raise self.refuse(f"{CONDITIONS_GO} {what} is not allowed in an equation", self.conditions[id(expression)])


# Inverse functions have two names.
ARCS = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "cot", "sec", "csc")}
FUNCTIONS = {"ln": "log", "min": "minimum", "max": "maximum", "pow": "^", "power": "^", **ARCS}
# Function for the increase of an expression between two rows of a record.
INCREASE = "increase"
# Replacements for functions of NumPy and other libraries.
SPELLED = {
    **dict.fromkeys(("pow", "power"), "x**y"),
    **dict.fromkeys(("absolute", "fabs"), "abs(x)"),
    **dict.fromkeys(("expit", "logistic"), "sigmoid(x)"),
    **dict.fromkeys(("maximum", "fmax"), "maximum(x, y)"),
    **dict.fromkeys(("minimum", "fmin"), "minimum(x, y)"),
    **dict.fromkeys(("where", "if_else", "ifelse", "select"), "piecewise(x, condition, y)"),
    INCREASE: f"{INCREASE}(x) in observation.formulas, the only place for it",
}
CONDITIONS_GO = "outside of a condition, as in piecewise(1, x > 0, 0),"
# Messages for expressions in place of a condition.
NO_CONDITION = {
    "piecewise": "piecewise takes values, each with its condition, and a last value, as in piecewise(1, x > 0, 0)",
    "not": "the operators are + - * / **, and `not` is for comparisons",
    "and": "`and` or `or` is not allowed but between comparisons",
}


def is_function(token: str, functions: Mapping[str, str] = FUNCTIONS) -> bool:
    """Whether a name is that of a function in a dialect."""
    name = functions.get(token, token)
    return token.isidentifier() and name in OPERATIONS and name not in NO_FUNCTIONS


def describe_count(token: str, functions: Mapping[str, str] = FUNCTIONS) -> str:
    """Describes the number of arguments of a function."""
    name = functions.get(token, token)
    fewest, most = OPERATIONS[name].fewest, OPERATIONS[name].most
    if name == "piecewise":
        return NO_CONDITION[name]
    if OPERATIONS[name].folds:
        return f"{token!r} takes 2 arguments or more"
    return f"{token!r} takes {fewest if fewest == most else f'{fewest} or {most}'} argument{'s' * (most > 1)}"


# Functions whose names states and constants of equations can't have.
RESERVED = frozenset((
    "exp", "log", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sigmoid", "abs", "sign", "minimum",
    "maximum",
))  # fmt: skip
EQUATION_DIALECT = Dialect(
    tokens(r"[^\W\d]\w*", r"\*\*|[=!<>]=|[-+*/^<>(),]", re.NOFLAG),
    FUNCTIONS | {"absolute": "abs", "fabs": "abs", "expit": "sigmoid", "logistic": "sigmoid"},
    {"pi": math.pi},
    {"and": "&&", "or": "||", "not": "not"},
    joins=False,
    most_nested=100,
    largest=LARGEST_BOUND,
    is_strict=True,
    reserved=RESERVED,
)
# For channels that are formulas.
FORMULA_DIALECT = replace(EQUATION_DIALECT, given=frozenset({INCREASE}))
PETAB_DIALECT = Dialect(
    tokens(r"[A-Za-z_]\w*", r"\*\*|\|\||&&|[=!<>]=|[-+*/^<>!(),]", re.ASCII),
    FUNCTIONS,
    {"true": True, "false": False, "pi": math.pi, "exponentiale": math.e, "inf": math.inf},
    {},
    joins=True,
    most_nested=100,
)


@functools.lru_cache(maxsize=16_384)
def parse_text(text: str, dialect: Dialect) -> Expression:
    """Parses a text.

    **Raises:** `ParseError`.
    """
    return Parser(text, dialect).whole()


def find_name(name: str, text: str, dialect: Dialect = EQUATION_DIALECT) -> int:
    """Returns the column, from 1, of the first occurrence of a name in a parsed text."""
    offset = 0
    while offset < len(text) and (match := dialect.token.match(text, offset)) is not None:
        if match.lastgroup == "name" and unicodedata.normalize("NFKC", match["name"]) == name:
            return match.start("name") + 1
        offset = match.end()
    raise ValueError(f"{name!r} is not in {text!r:.80}.")
