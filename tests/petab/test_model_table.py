"""A model in SBML beside a table of measurements: which parameters are fitted, to which columns, and wrong words."""

import json

import numpy as np
import pytest
from helpers.commands import node_fit as run_node_fit
from helpers.petab import CHAIN

import node_fit

K1, K2 = 0.7, 0.25


def chain(time, start):
    """A and B after a time, if A begins at `start` and B at zero."""
    a = start * np.exp(-K1 * time)
    return a, start * K1 / (K2 - K1) * (np.exp(-K1 * time) - np.exp(-K2 * time))


@pytest.fixture
def files(tmp_path):
    """The model, and three times its values for two starts, of which the table has a column."""
    (tmp_path / "model.xml").write_text(CHAIN)
    rng, rows = np.random.default_rng(0), ["id,A0,time,A,signal"]
    for name, start in (("low", 1.0), ("high", 4.0)):
        for time in np.linspace(0.5, 8, 12):
            a, b = chain(time, start)
            noise = rng.normal(size=2) * 0.01
            rows.append(f"{name},{start},{time},{'' if time > 7 else a + noise[0]},{3 * (a + b) + noise[1]}")
    (tmp_path / "data.csv").write_text("\n".join(rows).replace("A0", "start") + "\n")
    return tmp_path


def sbml_and_table(files, **given):
    return node_fit.SBML(str(files / "model.xml"), str(files / "data.csv"), **{"trajectory": "id", **given})


def test_a_column_is_a_species_or_a_formula_and_another_sets_the_start(files):
    text = (files / "data.csv").read_text()
    (files / "data.csv").write_text(text.replace("A,signal", "total,signal").replace("start", "A"))
    observables = {"total": "A", "signal": "scale * (A + B)"}
    problem = sbml_and_table(files, observables=observables, conditions=["A"], parameters=["k1", "k2"]).read()
    objective = node_fit.objective(problem)
    assert objective.names == ("k1", "k2", "scale", "sigma_total", "sigma_signal")
    x = objective.on_scale([K1, K2, 3.0, 0.01, 0.01])
    exact = {"total": lambda a, b: a, "signal": lambda a, b: 3 * (a + b)}
    for each, found in zip(problem.measurements, objective.simulate(x), strict=True):
        expected = exact[each.observable](*chain(each.time, {"low": 1.0, "high": 4.0}[each.experiment]))
        assert found == pytest.approx(expected, rel=1e-6)
    assert len(problem.measurements) == 44  # Four cells are empty.


def test_bounds_are_decades_around_a_value_or_given(files):
    problem = sbml_and_table(
        files, observables=["A"], parameters=["k1", "k2", "B"], decades=1, bounds={"B": (0, 2)}
    ).read()
    found = {name: (each.scale, each.lower, each.upper) for name, each in problem.parameters.items()}
    assert found["k2"] == ("log10", pytest.approx(0.01), pytest.approx(1.0))
    assert found["B"] == ("lin", 0.0, 2.0)
    assert problem.parameters["B"].nominal == 0.0
    assert np.isnan(problem.parameters["k1"].nominal)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "'start' is nothing in model.xml; leave it out, data.observables=[A]"),
        ({"time": "hour", "observables": ["A"]}, "no column 'hour'"),
        ({"observables": ["A"], "parameters": ["k2"]}, "'k1' has no value; add it"),
        ({"observables": ["A"], "parameters": ["k3"]}, "'k3' is no quantity of model.xml"),
        ({"observables": ["A"], "parameters": ["k1", "B"]}, "give its bounds: '+data.bounds.B=[0,1]'"),
        ({"observables": ["A"], "bounds": {"k2": (0, 1)}}, "'k2' is not estimated"),
        ({"observables": ["A"], "conditions": ["start"]}, "'start' is no quantity"),
        ({"observables": {"signal": "open('x')"}}, "'open' is not a function"),
        ({"observables": ["A"], "sigma": -1.0}, "sigma must be `estimate` or a positive number"),
        ({"observables": ["A"], "noise": "gauss"}, "noise must be one of normal"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused_with_a_sentence(given, reason, files):
    with pytest.raises(ValueError, match=r"\.$") as caught:
        sbml_and_table(files, **given).read()
    assert reason in str(caught.value)


def test_a_model_whose_quantities_all_have_values_asks_which_to_fit(files):
    (files / "model.xml").write_text(CHAIN.replace("id='k1'", "id='k1' value='1'"))
    with pytest.raises(ValueError, match=r"name those to estimate, as in data.parameters=\[k1,k2\]"):
        sbml_and_table(files, observables=["A"]).read()


@pytest.mark.slow
def test_the_command_fits_a_model_to_a_table(files):
    rows = [row.split(",") for row in (files / "data.csv").read_text().splitlines()]
    (files / "data.csv").write_text("".join(f"{row[2]},{row[3]}\n" for row in rows if row[0] != "low"))
    text = (files / "model.xml").read_text()
    (files / "model.xml").write_text(text.replace("initialConcentration='2'", "initialConcentration='4'"))
    ran = run_node_fit(
        files, "data=sbml", "data.path=model.xml", "data.table=data.csv", "restarts=3", "hydra.run.dir=run"
    )
    assert ran.code == 0, ran.err
    found = json.loads((files / "run" / "summary.json").read_text())["confidence"]["constants"]["k1"]
    assert found["lower"] < K1 < found["upper"] and found["upper"] - found["lower"] < 0.05
