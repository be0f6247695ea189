"""Constructs of SBML in small models beside their exact solutions, and what is refused by name and line."""

import numpy as np
import pytest
from helpers.petab import DECAY, NAMESPACE, TIME, mathml, quantities, sbml

import node_fit
from node_fit.expressions.evaluation import evaluate
from node_fit.petab.sbml import read_sbml


def apply(function: str, *arguments: str) -> str:
    """A call in MathML; arguments are names, numbers or calls."""
    inside = "".join(
        each if each.startswith("<") else f"<cn>{each}</cn>" if each[0].isdigit() else f"<ci>{each}</ci>"
        for each in arguments
    )
    return f"<apply>{function if function.startswith('<') else f'<{function}/>'}{inside}</apply>"


def species(name: str, compartment: str, start: str, **given: str) -> str:
    flags = {"hasOnlySubstanceUnits": "false", "boundaryCondition": "false", "constant": "false"} | given
    words = " ".join(f'{key}="{value}"' for key, value in flags.items())
    return f'<species id="{name}" compartment="{compartment}" {start} {words}/>'


def decay(name: str, law: str, what: str) -> str:
    """A reaction that takes a species away."""
    return (
        f'<reaction id="{name}" reversible="false" fast="false"><listOfReactants>'
        f'<speciesReference species="{what}" stoichiometry="1" constant="true"/></listOfReactants>'
        f"<kineticLaw>{mathml(law)}</kineticLaw></reaction>"
    )


K, SIZE, GROWTH = 0.7, 2.0, 0.25


def test_a_model_may_have_the_name_of_a_parameter(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text(sbml(quantities(x=1.0)).replace('<model id="m"', '<model id="x"'))
    assert "x" in read_sbml(path).initial


PIECES = f"<piece><cn>1</cn>{apply('lt', TIME, '1')}</piece><otherwise><cn>0</cn></otherwise>"
LEVEL_3 = sbml(
    "<listOfFunctionDefinitions><functionDefinition id='square'>"
    + mathml("<lambda><bvar><ci>u</ci></bvar>" + apply("times", "u", "u") + "</lambda>")
    + "</functionDefinition></listOfFunctionDefinitions><listOfCompartments>"
    f"<compartment id='c' size='{SIZE}' constant='true'/><compartment id='v' size='1' constant='false'/>"
    "</listOfCompartments><listOfSpecies>"
    + species("contained", "c", 'initialConcentration="3"')
    + species("amount", "c", 'initialConcentration="3"', hasOnlySubstanceUnits="true")
    + species("converted", "c", 'initialAmount="4"', hasOnlySubstanceUnits="true", conversionFactor="three")
    + species("bounded", "c", 'initialConcentration="5"', boundaryCondition="true")
    + species("diluted", "v", 'initialConcentration="6"')
    + species("fixed", "c", 'initialConcentration="7"', constant="true")
    + species("risen", "v", 'initialConcentration="8"')
    + f"</listOfSpecies><listOfParameters><parameter id='k' value='{K}' constant='true'/>"
    "<parameter id='three' value='3' constant='true'/><parameter id='twice' constant='false'/>"
    "<parameter id='squared' constant='false'/><parameter id='ramp' value='0' constant='false'/></listOfParameters>"
    "<listOfInitialAssignments><initialAssignment symbol='twice'>"
    + mathml(apply("times", "2", "k"))
    + "</initialAssignment></listOfInitialAssignments><listOfRules><assignmentRule variable='squared'>"
    + mathml(apply("<ci>square</ci>", "contained"))
    + "</assignmentRule><rateRule variable='ramp'>"
    + mathml(
        f"<piecewise><piece><cn>1</cn>{apply('lt', TIME, '1')}</piece><otherwise><cn>0</cn></otherwise></piecewise>"
    )
    + f"</rateRule><rateRule variable='v'>{mathml(f'<cn>{GROWTH}</cn>')}</rateRule>"
    + f"<rateRule variable='risen'>{mathml('<cn>0.5</cn>')}</rateRule></listOfRules><listOfReactions>"
    + decay("r1", apply("times", "c", "k", "contained"), "contained")
    + decay("r2", apply("times", "k", "amount"), "amount")
    + decay("r3", apply("times", "k", "converted"), "converted")
    + decay("r4", apply("times", "k", "bounded"), "bounded")
    + decay("r5", apply("times", "k", "fixed"), "fixed")
    + "</listOfReactions>"
)
EXACT = {
    "contained": lambda t: 3 * np.exp(-K * t),
    "amount": lambda t: 3 * SIZE * np.exp(-K * t),
    "converted": lambda t: 4 * np.exp(-3 * K * t),
    "bounded": lambda t: 5 + 0 * t,
    "diluted": lambda t: 6 / (1 + GROWTH * t),
    "fixed": lambda t: 7 + 0 * t,
    "risen": lambda t: 8 + 0.5 * t,
    "twice": lambda t: 2 * K + 0 * t,
    "squared": lambda t: 9 * np.exp(-2 * K * t),
    "ramp": lambda t: np.minimum(t, 1),
}
# Of Level 2: a parameter of a reaction alone, and a formula for a stoichiometry.
LEVEL_2 = (
    '<?xml version="1.0"?><sbml xmlns="http://www.sbml.org/sbml/level2/version4" level="2" version="4"><model id="m">'
    "<listOfCompartments><compartment id='c' size='1'/></listOfCompartments><listOfSpecies>"
    "<species id='x' compartment='c' initialConcentration='2'/><species id='y' compartment='c' initialAmount='0'/>"
    "</listOfSpecies><listOfParameters><parameter id='k' value='100'/></listOfParameters><listOfReactions>"
    "<reaction id='r' reversible='false'><listOfReactants><speciesReference species='x'/></listOfReactants>"
    "<listOfProducts><speciesReference species='y'><stoichiometryMath>"
    + mathml(apply("plus", "1", "2"))
    + f"</stoichiometryMath></speciesReference></listOfProducts><kineticLaw>{mathml(apply('times', 'k', 'x'))}"
    f"<listOfParameters><parameter id='k' value='{K}'/></listOfParameters></kineticLaw></reaction>"
    "</listOfReactions></model></sbml>"
)


@pytest.mark.parametrize(
    ("model", "exact"),
    [
        (LEVEL_3, EXACT),
        (LEVEL_2, {"x": lambda t: 2 * np.exp(-K * t), "y": lambda t: 6 * (1 - np.exp(-K * t))}),
    ],
    ids=["level 3", "level 2"],
)
def test_constructs_have_their_exact_solutions(model, exact, tmp_path):
    times = np.array([0.0, 0.5, 1.5, 3.0])
    (tmp_path / "model.xml").write_text(model)
    rows = [",".join(["time", *exact]), *(",".join([str(time), *["1"] * len(exact)]) for time in times)]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    problem = node_fit.SBML(
        str(tmp_path / "model.xml"), str(tmp_path / "table.csv"), observables={**{name: name for name in exact}},
        parameters=["k"],
    ).read()  # fmt: skip
    objective = node_fit.objective(problem)
    simulated = objective.simulate(objective.nominal)
    for each, value in zip(problem.measurements, simulated, strict=True):
        assert value == pytest.approx(float(exact[each.observable](each.time)), rel=1e-6, abs=1e-9), each.observable


def test_the_conversion_factor_of_a_model_is_that_of_species_without_one(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text(LEVEL_3.replace('<model id="m">', '<model id="m" conversionFactor="k">'))
    model = read_sbml(path)
    reaction, values = {"r1": 5.0, "r3": 5.0, "r2": 5.0}, {"k": K, "three": 3.0}
    for name, factor in {"contained": K, "amount": K, "converted": 3.0}.items():
        assert evaluate(model.rates[name], reaction | values) == pytest.approx(-5 * factor)


def test_a_trigger_that_need_not_persist(tmp_path):
    path = tmp_path / "model.xml"
    for persistent in (True, False):
        path.write_text(DECAY.replace("persistent='true'", f"persistent='{str(persistent).lower()}'"))
        (event,) = read_sbml(path).events
        assert event.is_persistent is persistent


def with_reaction(words: str) -> str:
    """A model with a reaction, on its second line."""
    start = species("x", "c", 'initialConcentration="1"')
    return sbml(
        f"<listOfCompartments><compartment id='c' size='1' constant='true'/></listOfCompartments>"
        f"<listOfSpecies>{start}</listOfSpecies>\n<listOfReactions>{words}</listOfReactions>"
    )


RATE_OF = '<csymbol encoding="text" definitionURL="http://www.sbml.org/sbml/symbols/rateOf">r</csymbol>'
REFUSED = {
    "the reaction 'r' is fast": with_reaction(decay("r", "<ci>x</ci>", "x").replace('fast="false"', 'fast="true"')),
    "rateOf of a state is not carried out": with_reaction(decay("r", apply(RATE_OF, "x"), "x"))
    .replace(NAMESPACE, NAMESPACE.replace("version1", "version2"))
    .replace('version="1"><model', 'version="2"><model')
    .replace('fast="false"', ""),
    "the species 'y' is not defined": with_reaction(decay("r", "<ci>x</ci>", "y")),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_carried_out_is_refused_by_name_and_line(reason, tmp_path):
    path = tmp_path / "model.xml"
    path.write_text(REFUSED[reason])
    with pytest.raises(ValueError, match=r"^model.xml, line 2: ") as caught:
        read_sbml(path)
    assert reason in str(caught.value)


def test_a_package_that_changes_the_mathematics_is_refused(tmp_path):
    path = tmp_path / "model.xml"
    words = 'level="3" version="1" xmlns:arrays="http://www.sbml.org/sbml/level3/version1/arrays/version1" '
    text = sbml("").replace('level="3" version="1"', words + 'arrays:required="true"', 1)
    path.write_text(text)
    with pytest.raises(ValueError, match="arrays"):
        read_sbml(path)


def simulate_with_rule(tmp_path, rate: str, start: float, event: str = ""):
    """The objective of three rows of `x`, whose rate is a formula of `k` and the time."""
    triggered = (
        f"<listOfEvents><event id='e' useValuesFromTriggerTime='true'><trigger initialValue='false' persistent='true'>"
        f"{mathml(event)}</trigger><listOfEventAssignments><eventAssignment variable='x'>{mathml('<cn>9</cn>')}"
        "</eventAssignment></listOfEventAssignments></event></listOfEvents>"
    )
    content = quantities(x=start, k=K) + f"<listOfRules><rateRule variable='x'>{mathml(rate)}</rateRule></listOfRules>"
    (tmp_path / "model.xml").write_text(sbml(content + (triggered if event else "")))
    (tmp_path / "table.csv").write_text("time,x\n0,1\n0.9,1\n2,1\n")
    return node_fit.objective(
        node_fit.SBML(str(tmp_path / "model.xml"), str(tmp_path / "table.csv"), parameters=["k"]).read()
    )


@pytest.mark.parametrize(
    "trigger",
    [
        apply("gt", TIME, "0.9"),
        apply("lt", "0.9", TIME),
        apply("not", apply("leq", TIME, "0.9")),
        apply("gt", apply("times", "0.7", TIME), "0.63"),
    ],
)
def test_a_strict_trigger_acts_just_after_its_time_and_the_simulation_goes_on(trigger, tmp_path):
    decays = apply("minus", apply("times", "k", "x"))
    objective = simulate_with_rule(tmp_path, decays, 2.0, trigger)
    expected = [2, 2 * np.exp(-K * 0.9), 9 * np.exp(-K * 1.1)]
    np.testing.assert_allclose(objective.simulate(objective.nominal), expected, rtol=1e-6)


@pytest.mark.parametrize("comparison", ["gt", "neq"])
def test_a_comparison_that_switches_at_the_start_has_a_gradient(comparison, tmp_path):
    during = apply("and", apply(comparison, TIME, "0"), apply("lt", TIME, "1.5"))
    switched = f"<piecewise><piece><ci>k</ci>{during}</piece><otherwise><cn>0</cn></otherwise></piecewise>"
    objective = simulate_with_rule(tmp_path, apply("minus", switched, apply("times", "k", "x")), 0.0)
    values, slope = objective.simulate(objective.nominal), np.asarray(objective.gradient(objective.nominal))
    filled = 1 - np.exp(-K * np.array([0, 0.9, 1.5]))
    np.testing.assert_allclose(values, [*filled[:2], filled[2] * np.exp(-K * 0.5)], rtol=1e-6)
    assert np.isfinite(slope).all()
    assert slope[0] != 0
