"""The target `sbml`: known equations in SBML Level 3 Version 2, for simulators of systems biology."""

import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from ..expressions.evaluation import Tape
from ..expressions.mathml import has_mathml, write_mathml
from ..expressions.parsing import PETAB_DIALECT, parse_text
from ..expressions.tree import Expression, calls
from ..model.fields.equations import normalize, parse
from ..model.fields.known import Known
from ..runtime.serialization import __version__
from .formulas import equations_by_state, refusals_of_formulas, simulate_rates
from .functions import Exported
from .trials import CheckRecord, record_starts

TIME_SYMBOL = '<csymbol encoding="text" definitionURL="http://www.sbml.org/sbml/symbols/time">time</csymbol>'
# Reserved names of the language in which formulas are read back.
TAKEN = {"time", "avogadro", "pi", "exponentiale", "true", "false", "inf", "infinity", "nan", "notanumber"}


def refusals_of_sbml(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """Lists features that formulas don't support, and functions that SBML lacks."""
    refusals = refusals_of_formulas(exported, trials)
    if isinstance(exported.one.field, Known):
        used = {call.function for _, rate in rates_by_state(exported) for call in calls(rate)}
        refusals += [f"the function {name}, which SBML lacks" for name in sorted(used) if not has_mathml(name)]
    return refusals


def rates_by_state(exported: Exported) -> list[tuple[str, Expression]]:
    field = exported.one.field
    assert isinstance(field, Known)
    return [(state, parse(state, text)) for state, text in equations_by_state(field, exported.one.latent)]


def make_ids(names: Sequence[str]) -> dict[str, str]:
    """Returns a unique SBML identifier for each name, of letters, digits and underscores."""
    ids: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", normalize(name))
        plain = f"_{plain}" if plain[:1].isdigit() or plain.lower() in TAKEN else plain
        while plain in ids.values():
            plain += "_"
        ids[normalize(name)] = plain
    return ids


def render_sbml(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, str]:
    """Renders the file: states are parameters with rate rules and the initial values of the first record."""
    one, field = exported.one, exported.one.field
    assert isinstance(field, Known)
    constants = field.constants.as_dict()
    ids = make_ids([*one.latent, *one.inputs, *constants])
    math = {name: f"<ci>{identifier}</ci>" for name, identifier in ids.items()} | {
        normalize(one.system.time): TIME_SYMBOL
    }
    (first_row, start), *_ = record_starts(exported, trials[:1])
    begin = dict(zip(one.latent, start.tolist(), strict=False))
    begin |= dict(zip(one.inputs, trials[0].inputs[first_row].tolist(), strict=True))
    quantities = [
        f"<parameter id={quoteattr(ids[normalize(name)])} name={quoteattr(name)} value={quoteattr(repr(float(value)))} "
        f'constant="{"true" if name in constants else "false"}"/>'
        for name, value in [*begin.items(), *constants.items()]
    ]
    rules = [
        f'<rateRule variable={quoteattr(ids[normalize(state)])}><math xmlns="http://www.w3.org/1998/Math/MathML">'
        f"{write_mathml(rate, math)}</math></rateRule>"
        for state, rate in rates_by_state(exported)
    ]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<!-- Written by node_fit {__version__}. See README.md. Digest of the model: {exported.digest} -->",
        '<sbml xmlns="http://www.sbml.org/sbml/level3/version2/core" level="3" version="2">',
        '<model id="model">',
        "<listOfParameters>",
        *quantities,
        "</listOfParameters>",
        "<listOfRules>",
        *rules,
        "</listOfRules>",
        "</model>",
        "</sbml>",
    ]
    return {"model.xml": "\n".join(lines) + "\n"}


def run_sbml(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the file for some records: libSBML reads its rules, and SciPy solves them."""
    import libsbml

    document = libsbml.readSBMLFromString((folder / "model.xml").read_text(encoding="utf-8"))
    if document.getNumErrors():
        raise ValueError(f"libSBML refuses the file that was written: {document.getError(0).getMessage().strip()}")
    model, one = document.getModel(), exported.one
    rules = {rule.getVariable(): libsbml.formulaToL3String(rule.getMath()) for rule in model.getListOfRules()}
    values = {
        quantity.getId(): quantity.getValue() for quantity in model.getListOfParameters() if quantity.getConstant()
    }
    ids = make_ids([*one.latent, *one.inputs, *values])
    moving = [ids[normalize(name)] for name in (*one.latent, *one.inputs)]
    rates = [parse_text(rules[ids[normalize(name)]], PETAB_DIALECT) for name in one.latent]
    tape, constants = Tape(rates, ["time", *moving, *values]), list(values.values())

    def field(t: float, y: np.ndarray, u: np.ndarray) -> list[float]:
        return [float(rate) for rate in tape([t, *y, *u, *constants])]

    return simulate_rates(field, exported, trials)
