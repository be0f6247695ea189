"""The target `c`: a model as a header and a source in C99, and a program that simulates CSV records."""

import functools
import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..runtime.serialization import __version__
from ..solver.methods import tableau
from .c_printer import Printer
from .functions import Exported

# The functions of each member: how C calls them. Results are listed last.
SIGNATURES = {
    "rates": "real t, const real *z, const real *v | real *result",
    "slopes": "real t, const real *z, const real *v | real *result",
    "field": "real t, const real *y, const real *u | real *result",
    "jacobian": "real t, const real *y, const real *u | real *result",
    "levels": "real t, const real *z, const real *v | real *result",
    "jumped": "real t, const real *z, const real *v | real *result",
    "outputs": "const real *z | real *result",
    "channels": "const real *z | real *result",
    "states": "const real *z | real *result",
    "line": "const real *y | real *result",
    "start": "const real *first, const real *ys, const real *us, const real *ts, const real *there, real t"
    " | real *result",
}
DEGREES = {"hold": 0, "linear": 1, "cubic": 3}
# Radau IIA of order 5 (Hairer and Wanner, Solving Ordinary Differential Equations II, 1996, table IV.5.6).
ROOT = np.sqrt(6)
RADAU_A = np.array(
    [
        [(88 - 7 * ROOT) / 360, (296 - 169 * ROOT) / 1800, (-2 + 3 * ROOT) / 225],
        [(296 + 169 * ROOT) / 1800, (88 + 7 * ROOT) / 360, (-2 - 3 * ROOT) / 225],
        [(16 - ROOT) / 36, (16 + ROOT) / 36, 1 / 9],
    ]
)
RADAU_C = np.array([(4 - ROOT) / 10, (4 + ROOT) / 10, 1])
COMPILE = "cc -std=c99 -O2 main.c model.c -lm -o model"


@functools.cache
def tsitouras() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of earlier stages, weights of the result, and nodes, without the last stage, whose weight is 0."""
    table = tableau("tsit5")
    stages = int(np.flatnonzero(table.b)[-1]) + 1
    a = np.zeros((stages, stages))
    for stage, row in enumerate(table.a[: stages - 1], start=1):
        a[stage, : len(row)] = row
    return a, np.asarray(table.b[:stages], np.float64), np.array([0.0, *table.c[: stages - 1]])


def templates_with(filters: Mapping[str, Callable[[str], str]]) -> Any:
    """The templates of this folder, with filters that make literals of names.

    A name that is not known is an error, so that no part of a text stays empty unseen.
    """
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.PackageLoader("node_fit.export", "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    found.filters.update(filters)
    return found


def on_one_line(text: str) -> str:
    """A name in the first line of a CSV file, which holds no line breaks."""
    return "".join(c if c.isprintable() else " " for c in text)


def c_string(text: str) -> str:
    """A string literal of C, whatever the text: bytes other than letters, digits and spaces as octal numbers."""
    plain = string.ascii_letters + string.digits + " "
    return '"' + "".join(chr(byte) if chr(byte) in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def render_c(exported: Exported) -> dict[str, str]:
    """The files of the target by their names."""
    facts = c_facts(exported)
    sources = templates_with({"c": c_string})
    return {name: sources.get_template(name).render(facts) for name in ("model.h", "model.c", "main.c")}


def state_names(exported: Exported) -> tuple[str, ...]:
    """Names of the states of all members."""
    names, count = exported.one.latent, len(exported.members)
    return names if count == 1 else tuple(f"{name} of member {m}" for m in range(count) for name in names)


def c_facts(exported: Exported) -> dict[str, Any]:
    """What the templates of C say of a model."""
    printer, one, steps = Printer(exported.dtype), exported.one, exported.steps
    scaler, count = one.system.scaler, len(exported.members)
    used = needed_functions(exported)
    texts = [
        printer.function(f"{name}_{m}", program)
        for m, programs in enumerate(exported.members)
        for name, program in programs.items()
        if name in used
    ]
    if exported.is_driven:
        texts.append(printer.function("scale_inputs", exported.inputs_scaled))
    if exported.combined is not None:
        texts.append(printer.function("combine", exported.combined))

    def numbers(values: Any) -> str:
        return ", ".join(printer.bare(exported.dtype.type(each)) for each in values)

    a, b, c = tsitouras()
    return {
        "version": __version__,
        "digest": exported.digest,
        "real": exported.precision,
        "members": count,
        "states": tuple(map(on_one_line, state_names(exported))),
        "latent": one.latent,
        "channels": tuple(map(on_one_line, one.states)),
        "inputs": tuple(map(on_one_line, one.inputs)),
        "columns": tuple(map(on_one_line, exported.columns)),
        "time": on_one_line(one.system.time),
        "combined": exported.combined is not None,
        "triggers": len(getattr(one.field, "triggers", ())),
        "hold": one.solver.interpolation == "hold",
        "degree": DEGREES[one.solver.interpolation] if exported.is_driven else 0,
        "rows": exported.rows_read,
        "past": exported.reads_past,
        "washout": one.start.washout,
        "steady": exported.is_steady,
        "turns": exported.turns,
        "turns_text": numbers([turn or 0.0 for turn in exported.turns]),
        "horizon": literal(exported.horizon),
        "time_shift": literal(float(scaler.time_shift)),
        "time_scale": literal(float(scaler.time_scale)),
        "longest": literal(steps.longest),
        "fewest": steps.fewest,
        "implicit": steps.method == "radau5",
        "solves": steps.method == "radau5" or exported.is_steady,
        "settled": "1e-12" if exported.precision == "double" else "1e-6",
        "halvings": 50 if exported.precision == "double" else 22,
        "radau_a": ", ".join(f"{{{numbers(row)}}}" for row in RADAU_A),
        "radau_c": numbers(RADAU_C),
        "stages": len(b),
        "tsit_a": [numbers(row) for row in a],
        "tsit_b": numbers(b),
        "tsit_c": numbers(c),
        "preamble": printer.preamble(),
        "functions": texts,
        "signatures": {name: f", {text.replace(' | ', ', ')}" for name, text in SIGNATURES.items()},
        "dispatched": [(name, arguments_of(text)) for name, text in SIGNATURES.items() if name in used],
        "digits": 17 if exported.precision == "double" else 9,
    }


def needed_functions(exported: Exported) -> set[str]:
    """The functions of a member that the source calls."""
    unread = {"outputs"} if exported.combined is None else {"channels"}
    unread |= set() if exported.members[0].get("slopes") else {"slopes"}
    return set(exported.members[0]) - unread


def arguments_of(signature: str) -> str:
    return ", ".join(part.split()[-1].lstrip("*") for part in signature.replace("|", ",").split(","))


def literal(value: float | None) -> str:
    """A double of C; empty for None."""
    return "" if value is None else "HUGE_VAL" if np.isinf(value) else repr(float(value))
