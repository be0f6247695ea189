"""PEtab problems that contradict themselves, or take long to read, get a sentence; none of it is chosen silently."""

import math
import re
import time

import numpy as np
import pytest
from helpers.petab import CHAIN, FILES, mathml, quantities, sbml, write_problem

import node_fit
from node_fit.expressions.tree import Application
from node_fit.petab.densities import log_priors
from node_fit.petab.fitting import FitFromStart, Optimizer
from node_fit.petab.formulas import parse_formula
from node_fit.petab.objective import Screen
from node_fit.petab.tables import Prior, TableParameter

# The longest that a file may take until it is refused [s].
LONGEST = 2.0


def refusal_of(folder, **changed: str) -> str:
    path = write_problem(folder / "wrong", **changed)
    began = time.perf_counter()
    with pytest.raises(ValueError, match=r"\.$") as caught:
        node_fit.read_petab(path)
    assert time.perf_counter() - began < LONGEST
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    return str(caught.value)


def with_line(name: str, line: str) -> dict[str, str]:
    return {name.replace(".", "_"): FILES[name] + line + "\n"}


def with_column(name: str, column: str) -> dict[str, str]:
    head, *rows = FILES[name].splitlines()
    return {name.replace(".", "_"): "\n".join([f"{head}\t{column}", *(f"{row}\t1" for row in rows)]) + "\n"}


def with_noise(text: str) -> dict[str, str]:
    return {"observables_tsv": FILES["observables.tsv"].replace("\tsigma\t", f"\t{text}\t")}


VERSION_2 = {
    "problem_yaml": "format_version: 2.0.0\nparameter_files: [parameters.tsv]\ncondition_files: [conditions.tsv]\n"
    "model_files:\n  m: {location: model.xml, language: sbml}\nobservable_files: [observables.tsv]\n"
    "measurement_files: [measurements.tsv]\nexperiment_files: [experiments.tsv]\n",
    "observables_tsv": "observableId\tobservableFormula\tnoiseFormula\nplain\tx\t1\n",
    "parameters_tsv": "parameterId\tlowerBound\tupperBound\tnominalValue\testimate\nk\t0.01\t10\t0.5\ttrue\n",
    "conditions_tsv": "conditionId\ttargetId\ttargetValue\nlow\td\t1\nother\td\t2\n",
    "experiments_tsv": "experimentId\ttime\tconditionId\none\t0\tlow\n",
    "measurements_tsv": "observableId\texperimentId\ttime\tmeasurement\nplain\tone\t1\t1\n",
}
REPEATED = {
    "an observable": (
        with_line("observables.tsv", "plain\t2*x\tsigma\tlin\tnormal"),
        "observables.tsv, line 5: the observable 'plain' is in observables.tsv, line 2 already; remove or rename one.",
    ),
    "a parameter": (
        with_line("parameters.tsv", "k\tlog10\t0.1\t10\t5\t1"),
        "parameters.tsv, line 7: the parameter 'k' is in parameters.tsv, line 2 already; remove or rename one.",
    ),
    "a condition": (
        with_line("conditions.tsv", "low\t5"),
        "conditions.tsv, line 4: the condition 'low' is in conditions.tsv, line 2 already; remove or rename one.",
    ),
    "a column": (with_column("conditions.tsv", "d"), "conditions.tsv, line 1: the column 'd' is given twice"),
    "a column of measurements": (with_column("measurements.tsv", "measurement "), "the column 'measurement' is given"),
    "a file": (
        {"problem_yaml": FILES["problem.yaml"].replace("[measurements.tsv]", "[measurements.tsv, ./measurements.tsv]")},
        "problem.yaml: `measurement_files` names 'measurements.tsv' twice; remove one.",
    ),
    "a key": (
        {"problem_yaml": FILES["problem.yaml"] + "parameter_file: conditions.tsv\n"},
        "problem.yaml is not YAML: line 8 repeats the key 'parameter_file'; remove one.",
    ),
    "a target of a condition": (
        VERSION_2 | {"conditions_tsv": VERSION_2["conditions_tsv"] + "low\td\t3\n"},
        "conditions.tsv, line 4: the target of the condition 'low', 'd' is in conditions.tsv, line 2 already",
    ),
    "a change at a time": (
        VERSION_2 | {"experiments_tsv": VERSION_2["experiments_tsv"] + "one\t0\tother\n"},
        "line 3: the change at the time 0 of the experiment 'one' of 'd' is in experiments.tsv, line 2",
    ),
    "a name of the model": (
        {"model_xml": FILES["model.xml"].replace("</listOfP", "<parameter id='x' constant='false'/></listOfP")},
        "The <parameter> id 'x' conflicts with the previously defined <parameter> id 'x'",
    ),
    "a name of a species and a parameter": (
        {"model_xml": CHAIN.replace("<parameter id='k2'", "<parameter id='B'")},
        "The <parameter> id 'B' conflicts with the previously defined <species> id 'B'",
    ),
    "a start": (
        {
            "model_xml": sbml(
                quantities(x=1.0)
                + "<listOfInitialAssignments>"
                + 2 * f"<initialAssignment symbol='x'>{mathml('<cn>2</cn>')}</initialAssignment>"
                + "</listOfInitialAssignments>"
            )
        },
        "the start of 'x' is assigned twice; remove one",
    ),
    "a rule": (
        {
            "model_xml": sbml(
                quantities(x=1.0)
                + "<listOfRules>"
                + 2 * f"<assignmentRule variable='x'>{mathml('<cn>2</cn>')}</assignmentRule>"
                + "</listOfRules>"
            )
        },
        "The <assignmentRule> variable 'x' conflicts with the previously defined",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REPEATED)
def test_what_is_given_twice_is_refused_by_name_and_place(what, tmp_path):
    changed, reason = REPEATED[what]
    assert reason in refusal_of(tmp_path, **changed)


def test_what_is_given_once_is_read(tmp_path):
    problem = node_fit.read_petab(write_problem(tmp_path / "right", **VERSION_2))
    assert [period.time for period in problem.experiments["one"]] == [0.0]


WRONG_NUMBERS = {
    "an underscore": (
        {"measurements_tsv": FILES["measurements.tsv"].replace("\t0.5\t", "\t0_5\t")},
        "measurements.tsv, line 2, column 'time': '0_5' is not a number.",
    ),
    "an underscore in a prior": (
        {
            "parameters_tsv": "\n".join(
                line + ("\tobjectivePriorType\tobjectivePriorParameters" if at == 0 else "\tnormal\t0;1_0")
                for at, line in enumerate(FILES["parameters.tsv"].splitlines())
            )
        },
        "'0;1_0' is not numbers",
    ),
    "noise of 0": (with_noise("0"), "the noise of the observable 'plain' is 0; its noiseFormula must be positive"),
    "negative noise": (with_noise("0.1 - 1"), "the noise of the observable 'plain' is -0.9; its noiseFormula must"),
    "noise that is not a number": (with_noise("0/0"), "the noise of the observable 'plain' is nan; its noiseFormula"),
    "noise of a fixed parameter of 0": (
        {"parameters_tsv": re.sub("sigma\t.*", "sigma\tlin\t0\t1\t0\t0", FILES["parameters.tsv"])},
        "the noise of the observable 'plain' is 0; its noiseFormula must be positive and finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_NUMBERS)
def test_wrong_numbers_are_refused(what, tmp_path):
    changed, reason = WRONG_NUMBERS[what]
    assert reason in refusal_of(tmp_path, **changed)


def test_observables_of_observables_are_written_out(tmp_path):
    problem = node_fit.read_petab(
        write_problem(
            tmp_path / "right",
            observables_tsv="observableId\tobservableFormula\tnoiseFormula\nscaled\t2*plain*observableParameter1_scaled\t"
            "0.1*plain\nplain\tx + 1\t1\nsturdy\tscaled2\t1\nscaled2\tplain\t1\n",
        )
    )
    plain = parse_formula("x + 1", "")
    assert problem.observables["sturdy"].formula == plain
    assert problem.observables["scaled"].noise == parse_formula("0.1*(x + 1)", "")


def test_a_long_sum_is_one_call():
    formula = parse_formula("+".join(["x"] * 1000), "")
    assert isinstance(formula, Application) and len(formula.arguments) == 1000
    assert parse_formula("a - b + c + d", "") == parse_formula("(a - b) + c + d", "")
    assert parse_formula("a + (b + c)", "") != parse_formula("a + b + c", "")


def test_a_start_at_which_nothing_can_be_simulated_is_named(tmp_path, monkeypatch):
    objective = node_fit.objective(node_fit.read_petab(write_problem(tmp_path / "decay")))

    def maximise(self, start, held=(), evaluations=1, number=0):
        return None if number == 1 else FitFromStart(number, start, start, -float(number), 1, True)

    monkeypatch.setattr(Optimizer, "maximise", maximise)
    monkeypatch.setattr(Screen, "choose", lambda self, points: points[0])
    failed: list[int] = []
    fit = node_fit.fit_petab(objective, restarts=2, on_failure=failed.append)
    assert [each.number for each in fit.attempts] == [0, 2] and fit.failed == (1,) and failed == [1]
    assert "to which 1 of 2 fits came within 0.1 (at 1 more starts nothing could be simulated)" in fit.sentence


def test_a_point_that_can_t_be_simulated_is_not_chosen(tmp_path, monkeypatch):
    screen = Screen(node_fit.objective(node_fit.read_petab(write_problem(tmp_path / "decay"))))
    points = [np.array([value]) for value in (math.nan, 1.0, 3.0, 2.0)]
    monkeypatch.setattr(screen, "adapt", lambda x: (float(x[0]), x))
    assert screen.choose(points) == [3.0]


def test_a_truncated_prior_has_the_mass_1_between_its_bounds():
    """Half of a standard normal distribution lies above zero, so the density there doubles."""
    for is_truncated, factor in ((True, 2.0), (False, 1.0)):
        prior = Prior("normal", (0.0, 1.0), False, is_truncated)
        parameter = TableParameter("k", "lin", 0.0, math.inf, 1.0, True, prior, {})
        density = math.exp(-0.5) / math.sqrt(2 * math.pi)
        assert float(log_priors({"k": parameter}, {"k": 1.0})["k"]) == pytest.approx(
            math.log(factor * density), rel=1e-5
        )


def test_a_prior_of_version_2_is_truncated_at_the_bounds(tmp_path):
    table = VERSION_2["parameters_tsv"].replace("estimate\n", "estimate\tpriorDistribution\tpriorParameters\n")
    table = re.sub("true\n", "true\tnormal\t0;1\n", table)
    problem = node_fit.read_petab(write_problem(tmp_path / "right", **VERSION_2 | {"parameters_tsv": table}))
    assert problem.parameters["k"].prior == Prior("normal", (0.0, 1.0), False, True)
