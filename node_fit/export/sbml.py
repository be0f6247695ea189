"""The target `sbml`: known equations as a model that simulators of systems biology read, in SBML Level 3 Version 2."""

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
# Names of the language that formulas are read back in.
TAKEN = {"time", "avogadro", "pi", "exponentiale", "true", "false", "inf", "infinity", "nan", "notanumber"}


def refusals_of_sbml(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """What SBML can't carry: what formulas can't, and functions that it lacks."""
    found = refusals_of_formulas(exported, trials)
    if isinstance(exported.one.field, Known):
        used = {call.function for _, rate in rates_by_state(exported) for call in calls(rate)}
        found += [f"the function {name}, which SBML lacks" for name in sorted(used) if not has_mathml(name)]
    return found


def rates_by_state(exported: Exported) -> list[tuple[str, Expression]]:
    field = exported.one.field
    assert isinstance(field, Known)
    return [(state, parse(state, text)) for state, text in equations_by_state(field, exported.one.latent)]


def make_ids(names: Sequence[str]) -> dict[str, str]:
    """An identifier of SBML for each name: letters, digits and underscores, and none twice."""
    ids: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", normalize(name))
        plain = f"_{plain}" if plain[:1].isdigit() or plain.lower() in TAKEN else plain
        while plain in ids.values():
            plain += "_"
        ids[normalize(name)] = plain
    return ids


def render_sbml(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, str]:
    """The file: states are parameters that move by rate rules, and start as the first record does."""
    one, field = exported.one, exported.one.field
    assert isinstance(field, Known)
    constants = field.constants.as_dict()
    ids = make_ids([*one.latent, *one.inputs, *constants])
    math = {name: f"<ci>{each}</ci>" for name, each in ids.items()} | {normalize(one.system.time): TIME_SYMBOL}
    (at, start), *_ = record_starts(exported, trials[:1])
    begin = dict(zip(one.latent, start.tolist(), strict=False))
    begin |= dict(zip(one.inputs, trials[0].inputs[at].tolist(), strict=True))
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
    """What the file predicts of some records: libSBML reads its rules, and SciPy solves them."""
    import libsbml

    document = libsbml.readSBMLFromString((folder / "model.xml").read_text(encoding="utf-8"))
    if document.getNumErrors():
        raise ValueError(f"libSBML refuses the file that was written: {document.getError(0).getMessage().strip()}")
    model, one = document.getModel(), exported.one
    rules = {rule.getVariable(): libsbml.formulaToL3String(rule.getMath()) for rule in model.getListOfRules()}
    values = {each.getId(): each.getValue() for each in model.getListOfParameters() if each.getConstant()}
    ids = make_ids([*one.latent, *one.inputs, *values])
    moving = [ids[normalize(name)] for name in (*one.latent, *one.inputs)]
    rates = [parse_text(rules[ids[normalize(name)]], PETAB_DIALECT) for name in one.latent]
    tape, constants = Tape(rates, ["time", *moving, *values]), list(values.values())

    def field(t: float, y: np.ndarray, u: np.ndarray) -> list[float]:
        return [float(each) for each in tape([t, *y, *u, *constants])]

    return simulate_rates(field, exported, trials)
