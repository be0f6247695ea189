"""Small PEtab problems and SBML models for tests."""

from pathlib import Path

NAMESPACE = "http://www.sbml.org/sbml/level3/version1/core"


def sbml(content: str) -> str:
    """An SBML document of Level 3 with a model of this content."""
    return (
        f'<?xml version="1.0"?><sbml xmlns="{NAMESPACE}" level="3" version="1"><model id="m">{content}</model></sbml>'
    )


def mathml(content: str) -> str:
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML">{content}</math>'


def quantities(**values: float) -> str:
    """Parameters that may change."""
    rows = (f'<parameter id="{name}" value="{value}" constant="false"/>' for name, value in values.items())
    return f"<listOfParameters>{''.join(rows)}</listOfParameters>"


TIME = '<csymbol encoding="text" definitionURL="http://www.sbml.org/sbml/symbols/time">t</csymbol>'
# x decays at the rate k until it falls to the level c; then a dose d is added, each time.
DECAY = sbml(
    quantities(x=2.0, k=0.5, c=1.0, d=1.0) + f"<listOfRules><rateRule variable='x'>"
    f"{mathml('<apply><minus/><apply><times/><ci>k</ci><ci>x</ci></apply></apply>')}</rateRule></listOfRules>"
    "<listOfEvents><event id='dose' useValuesFromTriggerTime='true'>"
    "<trigger initialValue='true' persistent='true'>"
    f"{mathml('<apply><leq/><ci>x</ci><ci>c</ci></apply>')}</trigger><listOfEventAssignments>"
    f"<eventAssignment variable='x'>{mathml('<apply><plus/><ci>x</ci><ci>d</ci></apply>')}</eventAssignment>"
    "</listOfEventAssignments></event></listOfEvents>"
)
FILES = {
    "problem.yaml": "format_version: 1\nparameter_file: parameters.tsv\n"
    "problems:\n- condition_files: [conditions.tsv]\n  measurement_files: [measurements.tsv]\n"
    "  observable_files: [observables.tsv]\n  sbml_files: [model.xml]\n",
    "model.xml": DECAY,
    "conditions.tsv": "conditionId\td\nlow\t0.5\nhigh\tdose\n",
    "observables.tsv": "observableId\tobservableFormula\tnoiseFormula\tobservableTransformation\tnoiseDistribution\n"
    "plain\tx\tsigma\tlin\tnormal\nscaled\tobservableParameter1_scaled * x^2\t0.1 + 0.1 * x\tlog10\tnormal\n"
    "sturdy\tx + 1\t0.3\tlog\tlaplace\n",
    "parameters.tsv": "parameterId\tparameterScale\tlowerBound\tupperBound\tnominalValue\testimate\n"
    "k\tlog10\t0.01\t10\t0.5\t1\nc\tlin\t0.1\t1.9\t1.0\t1\ndose\tlog\t0.1\t10\t1.0\t1\nsigma\tlog10\t1e-3\t10\t0.05\t1\n"
    "scale\tlog10\t0.1\t100\t3.0\t1\n",
    "measurements.tsv": "observableId\tsimulationConditionId\ttime\tmeasurement\tobservableParameters\n"
    + "".join(
        f"{name}\t{condition}\t{time}\t{value}\t{'scale' if name == 'scaled' else ''}\n"
        for name, values in {
            "plain": [1.58, 1.19, 1.62, 0.99, 1.02], "scaled": [7.1, 4.6, 7.4, 2.8, 1.9],
            "sturdy": [2.5, 2.3, 2.6, 2.1, 2.0],
        }.items()
        for condition in ("low", "high")
        for time, value in zip([0.5, 1.0, 2.0, 3.0, 4.0], values, strict=True)
    ),
}  # fmt: skip
SPECIES = "".join(
    f"<species id='{name}' compartment='c' initialConcentration='{value}' hasOnlySubstanceUnits='false' "
    "boundaryCondition='false' constant='false'/>"
    for name, value in {"A": 2, "B": 0}.items()
)
# A turns into B at the rate k1, and B decays at the rate k2.
CHAIN = sbml(
    "<listOfCompartments><compartment id='c' size='1' constant='true'/></listOfCompartments>"
    f"<listOfSpecies>{SPECIES}</listOfSpecies><listOfParameters><parameter id='k1' constant='true'/>"
    "<parameter id='k2' value='0.1' constant='true'/></listOfParameters><listOfReactions>"
    "<reaction id='turn' reversible='false' fast='false'>"
    "<listOfReactants><speciesReference species='A' stoichiometry='1' constant='true'/></listOfReactants>"
    "<listOfProducts><speciesReference species='B' stoichiometry='1' constant='true'/></listOfProducts>"
    f"<kineticLaw>{mathml('<apply><times/><ci>c</ci><ci>k1</ci><ci>A</ci></apply>')}</kineticLaw></reaction>"
    "<reaction id='decay' reversible='false' fast='false'>"
    "<listOfReactants><speciesReference species='B' stoichiometry='1' constant='true'/></listOfReactants>"
    f"<kineticLaw>{mathml('<apply><times/><ci>c</ci><ci>k2</ci><ci>B</ci></apply>')}</kineticLaw></reaction>"
    "</listOfReactions>"
)


def write_problem(folder: Path, **changed: str) -> Path:
    """Writes the problem above, or one with other files: names with `_` in place of the dot."""
    folder.mkdir(exist_ok=True)
    for name, text in {**FILES, **{name.replace("_", "."): text for name, text in changed.items()}}.items():
        (folder / name).write_text(text)
    return folder / "problem.yaml"
