"""Writes expressions in SBML's MathML; operations without an element are expressed by others."""

from collections.abc import Mapping, Sequence

from .operations import OPERATIONS
from .parsing import EQUATION_DIALECT, parse_text
from .tree import Application, Expression, Number, Symbol

# Operations without an SBML name, expressed by those with one.
WRITTEN_OUT = {
    "log2": "log(x)/log(2.0)",
    "sign": "piecewise(1, x > 0, -1, x < 0, 0)",
    "heaviside": "piecewise(1, x > 0, 0, x < 0, 0.5)",
    "sigmoid": "1/(1 + exp(-x))",
}
# Elements whose names differ from those of the operations here.
OTHER_NAMES = {
    "+": "plus", "-": "minus", "negative": "minus", "*": "times", "/": "divide", "^": "power",
    "<": "lt", "<=": "leq", ">": "gt", ">=": "geq", "==": "eq", "!=": "neq",
    "minimum": "min", "maximum": "max", "remainder": "rem", "ceil": "ceiling", "log": "ln", "log10": "log",
}  # fmt: skip
LACKING = ("erf", "sqrt", *WRITTEN_OUT)
# The element of each operation.
ELEMENTS = {name: OTHER_NAMES.get(name, name) for name in OPERATIONS if name not in LACKING}


def has_mathml(operation: str) -> bool:
    """Whether an operation can be written in SBML's MathML."""
    return operation in ELEMENTS or operation in WRITTEN_OUT or operation == "sqrt"


def write_mathml(expression: Expression, names: Mapping[str, str]) -> str:
    """Writes an expression in MathML; its operations must satisfy `has_mathml`.

    **Arguments:** `names`: element of each name.
    """

    def apply(element: str, arguments: Sequence[Expression]) -> str:
        return f"<apply><{element}/>{''.join(write_mathml(argument, names) for argument in arguments)}</apply>"

    match expression:
        case Number(bool() as value):
            return f"<{'true' if value else 'false'}/>"
        case Number(int() as value):
            return f'<cn type="integer">{value}</cn>'
        case Number(value):
            digits, _, power = repr(float(value)).partition("e")
            return f'<cn type="e-notation">{digits}<sep/>{int(power)}</cn>' if power else f"<cn>{digits}</cn>"
        case Symbol(name):
            return names[name]
        case Application("piecewise", arguments):
            texts = [write_mathml(argument, names) for argument in arguments]
            pieces = [f"<piece>{value}{where}</piece>" for value, where in zip(texts[::2], texts[1::2], strict=False)]
            otherwise = f"<otherwise>{texts[-1]}</otherwise>" if len(texts) % 2 else ""
            return f"<piecewise>{''.join(pieces)}{otherwise}</piecewise>"
        case Application("sqrt", arguments):
            return apply("root", arguments)
        case Application("root", (degree, value)):
            inside = write_mathml(value, names)
            return f"<apply><root/><degree>{write_mathml(degree, names)}</degree>{inside}</apply>"
        case Application("log", (value, base)):
            return apply("divide", [Application("log", (value,)), Application("log", (base,))])
        case Application(name, (value,)) if name in WRITTEN_OUT:
            return write_mathml(parse_text(WRITTEN_OUT[name], EQUATION_DIALECT), {"x": write_mathml(value, names)})
        case Application(name, arguments):
            return apply(ELEMENTS[name], arguments)
