"""PEtab problems: gradients, events, fits and what they write, and files that are hostile or wrong."""

import csv
import json
import math

import jax
import numpy as np
import pytest
from helpers.commands import node_fit as run_node_fit
from helpers.petab import FILES, TIME, mathml, quantities, sbml, write_problem
from omegaconf import OmegaConf

import node_fit
from node_fit.app.petab_run import PEtabRun
from node_fit.expressions.evaluation import as_float, evaluate
from node_fit.petab.formulas import parse_formula
from node_fit.petab.sbml import read_sbml
from node_fit.solver.rosenbrock import rosenbrock_step


@pytest.fixture(scope="module")
def objective(tmp_path_factory):
    return node_fit.objective(node_fit.read_petab(write_problem(tmp_path_factory.mktemp("petab") / "decay")))


@pytest.mark.slow
def test_the_gradient_agrees_with_finite_differences_through_an_event(objective):
    x, steps = objective.nominal + 0.01, 1e-4 * np.eye(5)
    values = [(objective.log_likelihood(x + step), objective.log_likelihood(x - step)) for step in steps]
    expected = [(above - below) / 2e-4 for above, below in values]
    np.testing.assert_allclose(objective.gradient(x), expected, rtol=1e-5, atol=1e-4)


def test_the_event_happens_when_the_level_is_reached(objective):
    """x = 2 exp(-k t) falls to 1 at t = log(2)/k, decays on from 1 + dose to 1, and so forth."""
    k, c, dose = 0.5, 1.0, {"low": 0.5, "high": 1.0}
    simulated = objective.simulate(objective.nominal)
    for measurement, found in zip(objective.problem.measurements, simulated, strict=True):
        if measurement.observable == "plain":
            begin, x = 0.0, 2.0
            while (hit := begin + math.log(x / c) / k) < measurement.time:
                begin, x = hit, c + dose[measurement.experiment]
            assert found == pytest.approx(x * math.exp(-k * (measurement.time - begin)), rel=1e-7)


def test_the_fisher_information_is_the_expected_curvature(objective):
    """For the noise's own scale, of which ten measurements tell 2 * log(10)^2 each."""
    at = objective.names.index("sigma")
    assert objective.fisher_information(objective.nominal)[at, at] == pytest.approx(20 * math.log(10) ** 2)


@pytest.mark.slow
def test_the_likelihood_can_be_traced_and_differentiated(objective):
    with jax.enable_x64(True):
        value, gradient = jax.value_and_grad(objective.log_likelihood)(jax.numpy.asarray(objective.nominal))
    assert float(value) == pytest.approx(objective.log_likelihood(objective.nominal))
    np.testing.assert_allclose(gradient, objective.gradient(objective.nominal), rtol=1e-6)


@pytest.mark.slow
def test_a_fit_is_at_a_maximum_and_is_read_back(tmp_path):
    """Without the event, which makes the likelihood jump, and without Laplace's noise, which gives it kinks."""
    rows = FILES["parameters.tsv"].replace("c\tlin\t0.1\t1.9\t1.0\t1", "c\tlin\t-2\t2\t-1\t0")
    smooth = {
        "parameters_tsv": rows.replace("dose\tlog\t0.1\t10\t1.0\t1", "dose\tlog\t0.1\t10\t1.0\t0"),
        "observables_tsv": FILES["observables.tsv"].replace("laplace", "normal"),
    }
    objective = node_fit.objective(node_fit.read_petab(write_problem(tmp_path / "smooth", **smooth)))
    fit = node_fit.fit_petab(objective, restarts=2)
    assert fit.log_likelihood > objective.log_likelihood(objective.nominal)
    lower, upper = objective.bounds
    inside = (fit.x > lower) & (fit.x < upper)
    assert np.abs(objective.gradient(fit.x)[inside]).max() < 0.1
    fit.write(tmp_path / "out")
    written = (tmp_path / "out" / "parameters.tsv").read_text()
    again = write_problem(tmp_path / "again", **{**smooth, "parameters_tsv": written})
    again = node_fit.objective(node_fit.read_petab(again))
    np.testing.assert_allclose(again.nominal, fit.x, rtol=1e-12)
    with (tmp_path / "out" / "simulations.tsv").open() as file:
        simulated = [float(row["simulation"]) for row in csv.DictReader(file, delimiter="\t")]
    np.testing.assert_allclose(simulated, objective.simulate(fit.x))
    interval = fit.intervals()["sigma"]
    assert 0 < interval.lower < interval.estimate == fit.parameters["sigma"] < interval.upper < math.inf
    # On the scale log10, the ends are as many standard errors away as the normal distribution has it.
    width = 2 * 1.959964 * interval.standard_error / interval.estimate
    assert math.log(interval.upper / interval.lower) == pytest.approx(width, rel=1e-5)


def test_the_step_has_order_five():
    def rates(time, state):
        return -10 * (state - jax.numpy.sin(time)) + jax.numpy.cos(time)

    errors = []
    with jax.enable_x64(True):
        step = jax.jit(lambda t, y, h: rosenbrock_step(rates, t, y, h, True)[0])
        for count in (8, 16):
            state = jax.numpy.zeros(1)
            for at in range(count):
                state = step(jax.numpy.asarray(at / count), state, jax.numpy.asarray(1 / count))
            errors.append(abs(float(state[0]) - math.sin(1.0)))
    assert 4.5 < math.log2(errors[0] / errors[1]) < 6.5


@pytest.mark.parametrize(
    ("text", "value"),
    [("2^3^2", 512.0), ("-2^2", -4.0), ("1 - 2 - 3", -4.0), ("piecewise(1, a < 2, 5)", 1.0), ("min(a, 3) / 4", 0.25),
     ("log(8, 2)", 3.0), ("a > 0 && !(a > 5)", 1.0), ("1e-3 * 2E2", 0.2)],
)  # fmt: skip
def test_a_formula_is_evaluated_by_its_precedence(text, value):
    assert float(evaluate(parse_formula(text, "here"), {"a": 1.0})) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["sqrt(max(a, 0))", "max(a, 0)^b", "piecewise(b / a, a > 0, 0)", "max(log(a), -3)", "max(log(a, 2), -3)",
     "max(log10(a), -3)", "abs(a)^0.5", "min(a^-2, 5)", "arcsin(1 + max(a, 0))", "piecewise(a / a, a > 0, 1)"],
)  # fmt: skip
def test_the_gradient_of_a_guarded_formula_is_finite_at_the_edge(text):
    formula = parse_formula(text, "here")
    with jax.enable_x64(True):
        at = {"a": jax.numpy.asarray(0.0), "b": jax.numpy.asarray(0.5)}
        for differentiate in (jax.grad, jax.jacfwd):
            slopes = differentiate(lambda scope: as_float(evaluate(formula, scope)))(at)
            assert all(np.isfinite(float(slope)) for slope in slopes.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [("__import__('os')", "'__import__' is not a function"), ("a.b", "'.' is not expected"), ("(1", "not closed"),
     ("", "it ends"), ("sin(1, 2)", "takes 1 argument"), ("(" * 500 + "1", "nested more than")],
)  # fmt: skip
def test_a_wrong_formula_is_refused(text, reason):
    with pytest.raises(ValueError, match=r"here: .*column \d+") as caught:
        parse_formula(text, "here")
    assert reason in str(caught.value)


RULE = "<listOfRules>{}</listOfRules>"
WRONG_MODELS = {
    "document type": '<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><sbml>&b;</sbml>',
    "in a circle": sbml(
        quantities(x=1, y=1)
        + RULE.format(
            f"<assignmentRule variable='x'>{mathml('<ci>y</ci>')}</assignmentRule>"
            f"<assignmentRule variable='y'>{mathml('<ci>x</ci>')}</assignmentRule>"
        )
    ),
    "algebraic rule": sbml(quantities(x=1) + RULE.format(f"<algebraicRule>{mathml('<ci>x</ci>')}</algebraicRule>")),
    "delay of a state": sbml(
        quantities(x=1)
        + RULE.format(
            "<rateRule variable='x'>"
            + mathml(
                "<apply><csymbol encoding='text' definitionURL='http://www.sbml.org/sbml/symbols/delay'>d</csymbol>"
                "<ci>x</ci><cn>1</cn></apply>"
            )
            + "</rateRule>"
        )
    ),
    "names 'nobody'": sbml(
        quantities(x=1) + RULE.format(f"<rateRule variable='x'>{mathml('<ci>nobody</ci>')}</rateRule>")
    ),
    "elements are nested": "<sbml>" + "<a>" * 500 + "</a>" * 500 + "</sbml>",
    "mismatched tag": "<sbml><a></b></sbml>",
}


@pytest.mark.parametrize("reason", WRONG_MODELS)
def test_a_hostile_or_wrong_model_is_refused_with_a_sentence(reason, tmp_path):
    path = tmp_path / "model.xml"
    path.write_text(WRONG_MODELS[reason])
    with pytest.raises(ValueError, match=r"^model.xml.*\.$") as caught:
        read_sbml(path)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"problem_yaml": FILES["problem.yaml"].replace("model.xml", "../model.xml")}, "outside the problem's folder"),
        ({"problem_yaml": FILES["problem.yaml"].replace("model.xml", "https://a.b/c.xml")}, "not the path of a file"),
        ({"problem_yaml": "format_version: 7"}, "format_version must be 1 or 2"),
        ({"problem_yaml": "a: [1"}, "is not YAML"),
        ({"conditions_tsv": "conditionId\td\nlow\t0.5\n"}, "line 7: the condition 'high'"),
        ({"conditions_tsv": "conditionId\td\nlow\topen('x')\nhigh\t1\n"}, "conditions.tsv, line 2, column 'd'"),
        ({"observables_tsv": FILES["observables.tsv"].replace("scaled\t", "b\t")}, "line 12: the observable 'scaled'"),
        ({"parameters_tsv": FILES["parameters.tsv"].replace("0.01", "much")}, "'much' is not a number"),
        ({"parameters_tsv": FILES["parameters.tsv"].replace("0.01", "-1")}, "must be positive on the scale log10"),
        ({"parameters_tsv": FILES["parameters.tsv"].replace("scale\tlog10", "other\tlog10")}, "names 'scale'"),
    ],
)  # fmt: skip
def test_a_wrong_problem_is_refused_with_a_sentence(changed, reason, tmp_path):
    with pytest.raises(ValueError, match=r".") as caught:
        node_fit.read_petab(write_problem(tmp_path / "wrong", **changed))
    assert reason in str(caught.value)


def test_delays_and_priorities_of_events(tmp_path):
    """At t = 1 two events act on x, doubling it first by priority; a third gives it its value of t = 1 at t = 1.5.

    A fourth never acts: its condition ceases to hold during its delay, and it is not persistent.
    """
    reached = f"<apply><geq/>{TIME}<cn>1</cn></apply>"
    briefly = f"<apply><and/>{reached}<apply><lt/>{TIME}<cn>1.2</cn></apply></apply>"

    def event(
        name: str, formula: str, priority: int, delay: str = "", trigger: str = reached, persistent: str = "true"
    ) -> str:
        assignment = f"<eventAssignment variable='x'>{mathml(formula)}</eventAssignment>"
        return (
            f"<event id='{name}' useValuesFromTriggerTime='{'true' if delay else 'false'}'>"
            f"<trigger initialValue='true' persistent='{persistent}'>{mathml(trigger)}</trigger>"
            f"{delay}<priority>{mathml(f'<cn>{priority}</cn>')}</priority>"
            f"<listOfEventAssignments>{assignment}</listOfEventAssignments></event>"
        )

    model = sbml(
        quantities(x=3.0)
        + RULE.format(f"<rateRule variable='x'>{mathml('<cn>0</cn>')}</rateRule>")
        + "<listOfEvents>"
        + event("add", "<apply><plus/><ci>x</ci><cn>1</cn></apply>", 1)
        + event("double", "<apply><times/><cn>2</cn><ci>x</ci></apply>", 2)
        + event("later", "<ci>x</ci>", 3, f"<delay>{mathml('<cn>0.5</cn>')}</delay>")
        + event("never", "<cn>100</cn>", 0, f"<delay>{mathml('<cn>0.3</cn>')}</delay>", briefly, "false")
        + "</listOfEvents>"
    )
    path = write_problem(
        tmp_path / "events",
        model_xml=model,
        conditions_tsv="conditionId\nonly\n",
        observables_tsv="observableId\tobservableFormula\tnoiseFormula\nplain\tx\ts\n",
        parameters_tsv="parameterId\tparameterScale\tlowerBound\tupperBound\tnominalValue\testimate\ns\tlin\t0\t9\t1\t1\n",
        measurements_tsv="observableId\tsimulationConditionId\ttime\tmeasurement\n"
        + "".join(f"plain\tonly\t{time}\t0\n" for time in (0.5, 1.0, 1.4, 1.5, 2.0)),
    )
    problem = node_fit.objective(node_fit.read_petab(path))
    np.testing.assert_allclose(problem.simulate(problem.nominal), [3.0, 7.0, 7.0, 3.0, 3.0])


def test_a_record_to_plot_that_the_problem_lacks_is_refused_before_the_fit(tmp_path):
    problem = node_fit.read_petab(write_problem(tmp_path))
    PEtabRun(OmegaConf.create({"plot": ["low"]}), None, None, 0.0, {}).check_plotted(problem)
    with pytest.raises(ValueError, match=r"no trajectory 'lwo' to plot; .*did you mean 'low'\?"):
        PEtabRun(OmegaConf.create({"plot": ["lwo"]}), None, None, 0.0, {}).check_plotted(problem)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_writes_tables_pictures_and_a_page_and_goes_on(tmp_path):
    rows = FILES["parameters.tsv"].replace("c\tlin\t0.1\t1.9\t1.0\t1", "c\tlin\t-2\t2\t-1\t0")
    path = write_problem(tmp_path / "problem", parameters_tsv=rows.replace("1.0\t1\nsigma", "1.0\t0\nsigma"))
    ran = run_node_fit(tmp_path, "data=petab", f"data.path={path}", "restarts=2", "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    assert "start 2 of 2: log-likelihood" in ran.out and "of 3 fits came within 0.1" in ran.out
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "converged" and len(summary["starts"]["table"]) == 3
    found = node_fit.read_petab(
        write_problem(tmp_path / "written", parameters_tsv=(run / "parameters.tsv").read_text())
    )
    assert found.parameters["k"].nominal == summary["constants"]["k"]
    assert summary["confidence"]["constants"]["k"]["estimate"] == summary["constants"]["k"]
    with (run / "predictions.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["trajectory"] == "low"]
    assert [float(row["time"]) for row in rows] == [0.5, 1.0, 2.0, 3.0, 4.0]
    assert all(float(row["scaled_predicted"]) > 0 for row in rows)
    assert (run / "plots" / "fit.png").exists() and (run / "plots" / "starts.png").exists()
    assert "to which" in (run / "report.html").read_text()

    # Killed after two fits, it makes the third again, and ends at the same values.
    kept = json.loads((run / "starts.json").read_text())
    (run / "starts.json").write_text(json.dumps(kept[:2]))
    (run / "summary.json").unlink()
    ran = run_node_fit(tmp_path, f"resume={run}")
    assert ran.code == 0, ran.err
    assert "start 1 of 2" not in ran.out and "start 2 of 2" in ran.out
    assert json.loads((run / "starts.json").read_text()) == kept
    measurements = (path.parent / "measurements.tsv").read_text()
    (path.parent / "measurements.tsv").write_text(measurements.replace("1.58", "1.85"))
    assert "the problem is not the one" in run_node_fit(tmp_path, f"resume={run}").err


@pytest.mark.slow
@pytest.mark.parametrize("word", ["optimizer=adam", "training.steps=5", "+derived.half=k"])
def test_options_that_would_change_nothing_are_refused(tmp_path, word):
    path = write_problem(tmp_path / "decay")
    ran = run_node_fit(tmp_path, "data=petab", f"data.path={path}", "restarts=0", word, "hydra.run.dir=run")
    assert ran.code == 1 and ran.sentence.startswith(f"{word}: ") and "restarts, loss, confidence" in ran.sentence
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.long
@pytest.mark.slow
def test_field_hybrid_is_a_network_in_the_equations(tmp_path):
    path = write_problem(tmp_path / "decay")
    given = "data=petab", f"data.path={path}", "field=hybrid", "restarts=0", "report=false"
    asks = run_node_fit(tmp_path, *given, "hydra.run.dir=asks")
    assert asks.code == 1 and "it may be the constant k, c, d; or a part of the derivative of x." in asks.err
    assert not (tmp_path / "asks" / "config.yaml").exists()
    wide = run_node_fit(tmp_path, *given, "+data.networks.k=[x]", "field.width=3", "hydra.run.dir=wide")
    assert wide.code == 1 and "field.width=3: " in wide.err and "data.width" in wide.err
    other = run_node_fit(tmp_path, "data=petab", f"data.path={path}", "field=linear", "hydra.run.dir=other")
    assert other.code == 1 and "put a network in them with field=hybrid" in other.err
    ran = run_node_fit(tmp_path, *given, "+data.networks.k=[x]", "data.width=1", "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    assert "k_1_x" in json.loads((tmp_path / "run" / "summary.json").read_text())["constants"]
    ran = run_node_fit(tmp_path, "resume=run")
    assert ran.code == 0, ran.err
