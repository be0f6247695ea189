"""Experiments of fitted PEtab problems as ordinary models: simulated, saved, exported, or refused by name."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.commands import node_fit as run_node_fit
from helpers.petab import CHAIN, DECAY, mathml, write_problem

import node_fit
from node_fit.expressions.evaluation import evaluate
from node_fit.petab.experiment_model import ExperimentModel, StateRecord
from node_fit.petab.fitting import FitFromStart, PEtabFit
from node_fit.petab.formulas import TIME, parse_formula
from node_fit.petab.tables import Condition, PEtabError


def fit_at_nominal(path) -> PEtabFit:
    return end_at_nominal(node_fit.objective(node_fit.read_petab(path)))


def end_at_nominal(objective) -> PEtabFit:
    """A fit that ended at the stored parameters."""
    x = objective.nominal
    return PEtabFit(objective, (FitFromStart(0, x, x, float(objective.log_likelihood(x)), 1, True),))


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    return fit_at_nominal(write_problem(tmp_path_factory.mktemp("petab") / "decay"))


def test_an_experiment_predicts_as_the_objective_does_through_its_events(fit, tmp_path):
    simulated = fit.objective.simulate(fit.x)
    own = [
        (m, value)
        for m, value in zip(fit.objective.problem.measurements, simulated, strict=True)
        if m.experiment == "high"
    ]
    node_fit.save(fit.to_model("high"), tmp_path / "high.safetensors")
    model = node_fit.load(tmp_path / "high.safetensors")
    times = np.array([0.0, *sorted({m.time for m, _ in own})])
    predicted = model.predict(ts=times)
    assert model.states == ("plain", "scaled", "sturdy")
    for measurement, value in own:
        at = times.tolist().index(measurement.time), model.states.index(measurement.observable)
        assert predicted[at] == pytest.approx(value, rel=1e-7)
    assert model.constants() == pytest.approx({"k": 0.5, "c": 1.0, "d": 1.0, "scale": 3.0})


@pytest.mark.slow
def test_a_switch_of_a_constant_and_placeholders_are_written_into_the_model(tmp_path):
    """x decays at 0.5 until 1 and at 2 from there on; what is measured is scaled by one factor, and then by another."""
    path = write_problem(
        tmp_path / "switched",
        model_xml=DECAY[: DECAY.index("<listOfEvents>")] + "</model></sbml>",
        conditions_tsv="conditionId\tk\nslow\t0.5\n",
        measurements_tsv="observableId\tsimulationConditionId\ttime\tmeasurement\tobservableParameters\n"
        "y\tslow\t0.5\t1.5\tscale\ny\tslow\t0.8\t1.2\t7\n",
        observables_tsv="observableId\tobservableFormula\tnoiseFormula\ny\tobservableParameter1_y * x\t0.1\n",
        parameters_tsv="parameterId\tparameterScale\tlowerBound\tupperBound\tnominalValue\testimate\n"
        "scale\tlog10\t0.1\t100\t3.0\t1\n",
    )
    problem = node_fit.read_petab(path)
    (slow,) = problem.experiments["slow"]
    fast = slow._replace(time=1.0, changes={"k": parse_formula("2", "k")})
    objective = node_fit.objective(replace(problem, experiments={"slow": (slow, fast)}))
    model = end_at_nominal(objective).to_model()
    ys = model.predict(ts=np.array([0.0, 1.0, 2.0]))
    decayed = np.array([2.0, 2 * math.exp(-0.5), 2 * math.exp(-2.5)])
    np.testing.assert_allclose(ys, np.stack([3 * decayed, 7 * decayed], axis=1), rtol=1e-6)
    assert model.states == ("y", "y_2")


def experiment_of(problem, **known) -> ExperimentModel:
    """An experiment of which only some properties are asked, the others being `known`."""
    record = StateRecord(np.zeros(1), np.zeros((1, 1)), {})
    model = ExperimentModel(SimpleNamespace(problem=problem), np.zeros(0), "e", record)
    model.__dict__.update(known)
    return model


def test_later_conditions_switch_a_constant_from_what_earlier_ones_made_it():
    periods = tuple(
        Condition(time, {"k": parse_formula(value, "k")}) for time, value in ((0.0, "9"), (1.0, "2"), (3.0, "4"))
    )
    model = experiment_of(SimpleNamespace(experiments={"e": periods}), first={"k": 0.5}, moving=())
    values = [float(evaluate(model.switched_constants["k"], {TIME: time})) for time in (0.5, 2.0, 3.5)]
    assert values == [0.5, 2.0, 4.0]


def test_the_rate_of_a_concentration_is_that_of_the_amount_over_the_compartment():
    parts = SimpleNamespace(rates={"s": parse_formula("-k*s", "s")}, containers={"s": "cell"})
    model = experiment_of(SimpleNamespace(model=parts), moving=("s", "y"), rules={})
    assert float(evaluate(model.rates["s"], {"k": 3.0, "s": 2.0, "cell": 4.0})) == -1.5
    assert float(evaluate(model.rates["y"], {})) == 0


DELAY = f"<delay>{mathml('<cn>1</cn>')}</delay>"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("</trigger>", f"</trigger>{DELAY}", "event 'dose' has a delay or a priority"),
        ("<apply><leq/><ci>x</ci><ci>c</ci></apply>", "<false/>", "the trigger of its event 'dose' compares nothing"),
    ],
)  # fmt: skip
def test_what_has_no_place_in_equations_is_refused_by_name(tmp_path, old, new, reason):
    fit = fit_at_nominal(write_problem(tmp_path / "odd", model_xml=DECAY.replace(old, new)))
    with pytest.raises(PEtabError, match=f"experiment 'low' of problem can't .*{reason}"):
        fit.to_model("low")


def test_several_experiments_are_told_apart_by_name(fit):
    with pytest.raises(ValueError, match="name one of the 2 experiments: low, high"):
        fit.to_model()
    with pytest.raises(ValueError, match="no experiment 'lo'; there are low, high"):
        fit.to_model("lo")


@pytest.mark.slow
def test_a_problem_answers_in_the_words_of_other_fits(fit):
    confidence = fit.confidence()
    assert confidence.constants == fit.intervals() and confidence.method == "fisher"
    assert fit.constants == fit.parameters
    assert fit.score().nrmse > 0
    with pytest.raises(ValueError, match="method"):
        fit.confidence("guess")


@pytest.mark.long
@pytest.mark.slow
def test_a_run_writes_models_that_export(tmp_path):
    path = write_problem(tmp_path / "decay")
    ran = run_node_fit(tmp_path, "data=petab", f"data.path={path}", "restarts=0", "hydra.run.dir=run", "report=false")
    assert f"models: {tmp_path / 'run/models/low.safetensors'} and 1 more" in ran.out
    models = json.loads((tmp_path / "run/summary.json").read_text())["models"]
    assert models["high"] == {"file": "models/high.safetensors"}
    target = "--to", "c", "--out", "low"
    exported = run_node_fit(tmp_path, "run/models/low.safetensors", *target, module="node_fit.export")
    assert "largest difference from node_fit.predict" in exported.out
    refused = run_node_fit(tmp_path, "run", *target, module="node_fit.export")
    assert "holds a model for each experiment, such as run/models/high.safetensors" in refused.sentence


@pytest.mark.slow
@pytest.mark.parametrize("observed", [("A", "B"), ("B",), ("B", "A")], ids="-".join)
def test_observables_that_are_states_need_no_formula(observed, tmp_path):
    (tmp_path / "model.xml").write_text(CHAIN)
    rows = [",".join(("time", *observed)), *[",".join([str(time), *["1"] * len(observed)]) for time in (0.5, 1, 4)]]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    source = node_fit.SBML(str(tmp_path / "model.xml"), str(tmp_path / "data.csv"), parameters=["k1", "k2"])
    objective = node_fit.objective(source.read())
    x = objective.on_scale([0.7, 0.25, *[0.1] * len(observed)])
    fit = PEtabFit(objective, (FitFromStart(0, x, x, 0.0, 1, True),))
    node_fit.save(fit.to_model("data"), tmp_path / "chain.safetensors")
    model = node_fit.load(tmp_path / "chain.safetensors")
    predicted = model.predict(ts=np.array([0.0, 0.5, 1.0, 4.0]))
    assert model.states == observed
    for measurement, value in zip(objective.problem.measurements, objective.simulate(x), strict=True):
        at = [0.0, 0.5, 1.0, 4.0].index(measurement.time), observed.index(measurement.observable)
        assert predicted[at] == pytest.approx(value, rel=1e-6)
