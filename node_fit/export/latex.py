r"""Known equations as LaTeX: a file to `\input` into a paper, with variables and constants in tables."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..runtime.serialization import Json, is_json

if TYPE_CHECKING:
    import sympy

HEADER = r"""% The equations of a model that node_fit {version} fitted.
% \input this file into a document that has \usepackage{{amsmath}}.
"""
GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|phi|chi|psi|"
    "omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega"
)
SPECIAL = {
    **{character: f"\\{character}" for character in "#$%&_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"°": r"$^\circ$", "µ": r"$\mu$", "μ": r"$\mu$", "·": r"$\cdot$", "Ω": r"$\Omega$", "\n": " "},
}
# Significant digits of numbers.
DIGITS_SHOWN = 4


def render_latex(
    rates: Mapping[str, "sympy.Expr"],
    symbols: Mapping[str, "sympy.Symbol"],
    time: str,
    constants: Mapping[str, float],
    units: Mapping[str, str],
    confidence: Json,
    version: str,
) -> str:
    """Renders equations with symbols and with numbers, variables with units, and constants with intervals.

    **Arguments:**

    - `rates`: the time derivative of each state. `symbols`: by name, including the time and inputs.
    - `constants`: fitted values.
    - `confidence`: `level` and `constants` with `lower` and `upper`, as in `summary.json`; both are optional.
    """
    variables = [time, *rates, *(name for name in symbols if name not in (*rates, *constants, time))]
    parts = [HEADER.format(version=version), align_equations(rates, symbols, time, {})]
    if constants:
        values = {symbols[name]: value for name, value in constants.items()}
        parts.append("% The same with the fitted numbers.\n" + align_equations(rates, symbols, time, values))
    parts.append(render_table(("Symbol", "Name", "Unit"), "lll", [name_row(name, units) for name in variables]))
    if constants:
        stored = confidence.get("constants")
        intervals = stored if is_json(stored) else {}
        rows = [
            [f"${as_symbol(name)}$", render_number(value), *interval_of_constant(intervals.get(name))]
            for name, value in constants.items()
        ]
        level = confidence.get("level")
        share = rf"{100 * level:.3g}\,\% interval" if isinstance(level, float) and intervals else ""
        parts.append(render_table(("Constant", "Value", *[share] * bool(share)), "lr" + "l" * bool(share), rows))
    return "\n".join(parts)


def align_equations(
    rates: Mapping[str, "sympy.Expr"],
    symbols: Mapping[str, "sympy.Symbol"],
    time: str,
    values: Mapping["sympy.Symbol", float],
) -> str:
    """Returns an `align` environment of the equations, with these values substituted for constants."""
    import sympy

    # SymPy sorts factors by name; stand-in names put constants first: `k x`, not `X k`.
    places = sorted(symbols, key=lambda name: name in (*rates, time))
    stand_ins = {symbols[name]: sympy.Symbol(f"{place:06d}") for place, name in enumerate(places)}
    names = {stand_ins[symbol]: as_symbol(name) for name, symbol in symbols.items()}
    lines: list[str] = []
    for name, rate in rates.items():
        shown = rate.subs(values)
        rounded: dict[sympy.Expr, sympy.Expr] = {
            number: sympy.Float(number, DIGITS_SHOWN) for number in shown.atoms(sympy.Float)
        }
        shown = shown.xreplace({**rounded, **stand_ins})
        text = sympy.latex(shown, symbol_names=names, mul_symbol=r" \, ")
        derivative = rf"\frac{{\mathrm{{d}}\,{as_symbol(name)}}}{{\mathrm{{d}}\,{as_symbol(time)}}}"
        lines.append(f"{derivative} &= {text}")
    return "\\begin{align}\n" + " \\\\\n".join(lines) + "\n\\end{align}\n"


def render_table(titles: Sequence[str], columns: str, rows: Sequence[Sequence[str]]) -> str:
    body = [" & ".join(row) + r" \\" for row in rows]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", " & ".join(titles) + r" \\", r"\hline", *body, r"\hline"]
    return "\n".join(["\\begin{center}", *lines, r"\end{tabular}", "\\end{center}", ""])


def name_row(name: str, units: Mapping[str, str]) -> list[str]:
    return [f"${as_symbol(name)}$", as_text(name), as_unit(units.get(name, ""))]


def as_symbol(name: str) -> str:
    r"""Returns a name in mathematical notation: `k_el` becomes `k_{\mathrm{el}}`.

    Single letters are italic, names of Greek letters become symbols, and words are upright. The part after `_` and
    trailing digits become subscripts.
    """
    ended = re.fullmatch(r"([^\W\d_]+?)(\d+)", name)
    head, *below = ended.groups() if ended else [part for part in name.split("_") if part] or [name]
    return as_word(head) + (f"_{{{','.join(map(as_word, below))}}}" if below else "")


def as_word(text: str) -> str:
    if GREEK.fullmatch(text):
        return f"\\{text}"
    if re.fullmatch(r"[A-Za-z]|\d+", text):
        return text
    return rf"\mathrm{{{text}}}" if text.isascii() and text.isalnum() else rf"\text{{{as_text(text)}}}"


def as_text(text: str) -> str:
    """Escapes the special characters of LaTeX in a text."""
    return "".join(SPECIAL.get(character, character) for character in text)


def as_unit(unit: str) -> str:
    """Returns a unit as text, with superscript powers."""
    powers = re.split(r"(?:\^|\*\*)(-?\d+)", unit)
    return "".join(f"$^{{{part}}}$" if place % 2 else as_text(part) for place, part in enumerate(powers))


def render_number(value: float) -> str:
    """Formats a number with a few digits and a power of ten."""
    if not math.isfinite(value):
        return r"$-\infty$" if value < 0 else r"$\infty$"
    digits, _, power = f"{value:.{DIGITS_SHOWN}g}".partition("e")
    return f"${digits}$" if not power else rf"${digits} \times 10^{{{int(power)}}}$"


def interval_of_constant(own: object) -> list[str]:
    """Returns the ends of an interval, in which None stands for infinity; empty without an interval."""
    if not is_json(own):
        return []
    ends = {name: own.get(name) for name in ("lower", "upper")}
    low, high = (
        end if isinstance(end, float | int) else infinite
        for end, infinite in zip(ends.values(), (-math.inf, math.inf), strict=True)
    )
    return [f"{render_number(low)} to {render_number(high)}"]
