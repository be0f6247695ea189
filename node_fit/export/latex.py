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
# Digits of numbers.
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
    """The equations with symbols and with numbers, the variables with units, and the constants with intervals.

    **Arguments:**

    - `rates`: the time derivative of each state. `symbols`: by name, also of the time and of inputs.
    - `constants`: their fitted values.
    - `confidence`: `level` and `constants` with `lower` and `upper`, as in `summary.json`; may lack them.
    """
    variables = [time, *rates, *(name for name in symbols if name not in (*rates, *constants, time))]
    parts = [HEADER.format(version=version), align_equations(rates, symbols, time, {})]
    if constants:
        values = {symbols[name]: value for name, value in constants.items()}
        parts.append("% The same with the fitted numbers.\n" + align_equations(rates, symbols, time, values))
    parts.append(render_table(("Symbol", "Name", "Unit"), "lll", [name_row(name, units) for name in variables]))
    if constants:
        own = confidence.get("constants")
        intervals = own if is_json(own) else {}
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
    """An `align` environment of the equations, with these values in the places of constants."""
    import sympy

    # SymPy sorts factors by names, so that constants come first by other names: `k x`, not `X k`.
    places = sorted(symbols, key=lambda name: name in (*rates, time))
    stand_ins = {symbols[name]: sympy.Symbol(f"{place:06d}") for place, name in enumerate(places)}
    names = {stand_ins[symbol]: as_symbol(name) for name, symbol in symbols.items()}
    lines: list[str] = []
    for name, rate in rates.items():
        shown = rate.subs(values)
        rounded: dict[sympy.Expr, sympy.Expr] = {
            each: sympy.Float(each, DIGITS_SHOWN) for each in shown.atoms(sympy.Float)
        }
        shown = shown.xreplace({**rounded, **stand_ins})
        text = sympy.latex(shown, symbol_names=names, mul_symbol=r" \, ")
        left = rf"\frac{{\mathrm{{d}}\,{as_symbol(name)}}}{{\mathrm{{d}}\,{as_symbol(time)}}}"
        lines.append(f"{left} &= {text}")
    return "\\begin{align}\n" + " \\\\\n".join(lines) + "\n\\end{align}\n"


def render_table(titles: Sequence[str], columns: str, rows: Sequence[Sequence[str]]) -> str:
    body = [" & ".join(each) + r" \\" for each in rows]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", " & ".join(titles) + r" \\", r"\hline", *body, r"\hline"]
    return "\n".join(["\\begin{center}", *lines, r"\end{tabular}", "\\end{center}", ""])


def name_row(name: str, units: Mapping[str, str]) -> list[str]:
    return [f"${as_symbol(name)}$", as_text(name), as_unit(units.get(name, ""))]


def as_symbol(name: str) -> str:
    r"""A name in mathematics: `k_el` is `k_{\mathrm{el}}`.

    One letter is italic, a Greek one is drawn, a word is upright; what follows `_`, and digits at the end, are below.
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
    """A text without what LaTeX would read as more."""
    return "".join(SPECIAL.get(character, character) for character in text)


def as_unit(unit: str) -> str:
    """A unit as text, with its powers above the line."""
    powers = re.split(r"(?:\^|\*\*)(-?\d+)", unit)
    return "".join(f"$^{{{part}}}$" if place % 2 else as_text(part) for place, part in enumerate(powers))


def render_number(value: float) -> str:
    """A number with a few digits, and its power of ten as such."""
    if not math.isfinite(value):
        return r"$-\infty$" if value < 0 else r"$\infty$"
    digits, _, power = f"{value:.{DIGITS_SHOWN}g}".partition("e")
    return f"${digits}$" if not power else rf"${digits} \times 10^{{{int(power)}}}$"


def interval_of_constant(own: object) -> list[str]:
    """The ends of an interval, in which None stands for infinity; empty without one."""
    if not is_json(own):
        return []
    ends = {name: own.get(name) for name in ("lower", "upper")}
    low, high = (
        end if isinstance(end, float | int) else infinite
        for end, infinite in zip(ends.values(), (-math.inf, math.inf), strict=True)
    )
    return [f"{render_number(low)} to {render_number(high)}"]
