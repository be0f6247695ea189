"""`python -m node_fit.benchmark`: published protocols, and the table of ours beside other figures."""

import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit
from scipy.integrate import solve_ivp

from node_fit.benchmark.__main__ import choose_problems, has_same_terms
from node_fit.benchmark.protocols import (
    PROTOCOLS,
    Figure,
    Measure,
    divergence,
    judge_neuron,
    line,
    neuron_states,
    odebench_lines,
    on_attractor,
    orbit,
    outcome,
    random_times,
    read_equations,
    regular_times,
    solve_equation,
    van_der_pol_data,
    write_neuron,
    write_table,
    write_van_der_pol,
)

SMALL = ("--set", "field.width=8", "field.depth=1", "training.steps=60", "report=false")


@pytest.mark.slow
def test_a_protocol_prints_its_table(tmp_path):
    ran = node_fit(tmp_path, "odebench_24", "cascaded_tanks", "--data", "absent", *SMALL, module="node_fit.benchmark")
    assert ran.code == 0, ran
    lines = [each for each in ran.out.splitlines() if each.startswith("| odebench_24")]
    assert len(lines) == 2 and all("harmonic oscillator" in each for each in lines)
    fitted, other = (float(each.split("|")[3]) for each in lines)
    assert 0.5 < fitted <= 1 and other <= 1
    assert "cascaded_tanks: left out" in ran.err and "10.4121/12960104" in ran.err


@pytest.mark.slow
def test_an_unknown_protocol_is_refused(tmp_path):
    ran = node_fit(tmp_path, "odebench_64", module="node_fit.benchmark")
    assert ran.code == 1 and "there is no protocol 'odebench_64'" in ran.sentence


FIRST_OF_THEIR_SIZE = (1, 24, 52, 62)  # of one to four states


@pytest.mark.parametrize(
    "equation",
    [
        pytest.param(
            equation,
            id=str(equation.number),
            marks=() if equation.number in FIRST_OF_THEIR_SIZE else pytest.mark.slow,
        )
        for equation in read_equations()
    ],
)
def test_the_tables_of_odebench_obey_their_equations(equation, tmp_path):
    write_table(equation, tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 300 and table["t"].max() == 10
    rates, times = equation.rates(), np.linspace(0, 10, 149 * 40 + 1)
    fine = solve_equation(equation, times)
    for start, states, (_, rows) in zip(equation.starts, fine, table.groupby("trajectory"), strict=True):
        np.testing.assert_allclose(states[0], start)
        # Chaos makes the last digits of a solve grow.
        np.testing.assert_allclose(rows[equation.states], states[::40], rtol=1e-3, atol=1e-3 * np.abs(states).max())
        chosen = slice(20, -1, 40)
        found = np.gradient(states, times, axis=0)[chosen]
        expected = rates(states[chosen].T).T
        np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


@pytest.mark.parametrize("times", [regular_times(), random_times()], ids=["regular", "random"])
def test_the_table_of_van_der_pol_is_that_of_its_protocol(times, tmp_path):
    write_van_der_pol(tmp_path / "table.csv", times)
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 50 and table["t"][0] == 0 and (np.diff(table["t"]) > 0).all()
    assert (table["t"] <= 7 + 1e-9).sum() == 25 and table["t"].iloc[-1] < 14.5
    exact = solve_ivp(van_der_pol_data, (0, 15), [-1.5, 2.5], t_eval=times, rtol=1e-9, atol=1e-9).y.T
    off = table[["x", "y"]].to_numpy() - exact
    assert np.abs(off[25:]).max() < 1e-5
    assert off[:25].var() == pytest.approx(0.05, rel=0.4)


def test_the_neuron_is_judged_where_it_was_not_measured(tmp_path):
    write_neuron(tmp_path / "table.csv")
    table, (times, states, hidden) = pd.read_csv(tmp_path / "table.csv"), neuron_states()
    assert table["x"].isna().tolist() == hidden.tolist() and 2 <= hidden.sum() <= 12
    assert (table["x"] - states[:, 0])[~hidden].var() == pytest.approx(0.025, rel=0.6)
    found = pd.DataFrame({"t": times, "x_predicted": states[:, 0] + 0.3, "y_predicted": states[:, 1]})
    found[~hidden] = found[~hidden] + 5
    found["t"] = times
    found.to_csv(tmp_path / "predictions.csv", index=False)
    assert judge_neuron(tmp_path)["mse"] == pytest.approx(0.045)


def test_the_divergence_of_attractors():
    begin = on_attractor()
    one, other = orbit(begin, 4000), orbit(begin + 0.1, 4000)
    assert divergence(one, one) == 0
    near, shifted, still = (divergence(one, each) for each in (other, one + 4.0, np.tile(one.mean(axis=0), (4000, 1))))
    assert 0 < near < shifted < still
    assert divergence(one, one + 1000.0) > 10  # all of it outside


def test_outcomes_are_wins_and_losses():
    assert outcome(0.2, 0.3, lower=True) == "win" and outcome(0.2, 0.3, lower=False) == "loss"
    assert outcome(0.30001, 0.3, lower=True) == "equal" and outcome(None, 0.3, lower=True) == "loss"
    assert outcome(0.2, None, lower=False) == "win"
    measure = Measure("RMSE", lambda summary: summary["rmse"])
    assert line("a", measure, 0.5, Figure(lambda summary: summary["simple"], "theirs"), {"simple": 0.4}) == (
        "| a | RMSE | 0.5 | 0.4 | theirs | loss |"
    )
    elsewhere = Figure(0.6, "theirs", comparable=False)
    assert line("a", measure, 0.5, elsewhere, {}).endswith("| theirs | other rows |")


def test_the_share_of_odebench_counts_what_is_above_its_threshold():
    found = [{"metrics": {"train": {"r2": 1.0}, "test": {"r2": value}}} for value in (0.95, 0.5, None)]
    fitted, other = odebench_lines(found)
    assert "3 of 3 (100 %)" in fitted and "1 of 3 (33 %)" in other and "3 of 63" in other
    assert fitted.endswith("| other equations |"), "a part of the equations is no comparison"
    fitted, other = odebench_lines(found * 21)
    assert fitted.endswith("| win |") and other.endswith("| win |")


@pytest.mark.parametrize(
    ("true", "found", "same"),
    [
        ("0.4*x*(1 - x/95) - x**2/(1 + x**2)", "0.399*x - 0.0042*x**2 - 0.998*(x**2/(1.003**2 + x**2))", True),
        ("0.4*x*(1 - x/95) - x**2/(1 + x**2)", "0.399*x - 0.0042*x**2 - 0.998*(x**2/(1.003 + x))", False),
        ("1/(1 + exp(0.5 - x/0.96)) - 0.5", "-0.499 + 1.01*sigmoid((x - 0.48)/0.959)", True),
        ("1/(1 + exp(0.5 - x/0.96)) - 0.5", "-0.499 + 1.01*sigmoid((x - 0.48)/0.959) + 0.001*x", False),
        ("0.032*x*log(2.29*x)", "0.0265*x + 0.032*(x*log(x))", True),
        ("sin(x)*(cos(y)**2 + 4.2*sin(y)**2)", "1.01*sin(x) + 3.2*(sin(x)*sin(y)**2)", True),
        ("sin(x - y)", "-0.9*sin(y - x)", True),
        ("1.2 - exp(-x)", "1.2 - 1.01*exp(x)", False),
        ("y*abs(y)", "y**2", False),
        ("x", "0", False),
    ],
)
def test_terms_are_compared_whatever_their_constants_and_their_form(true, found, same):
    pytest.importorskip("sympy")
    assert has_same_terms(true, found, ["x", "y"]) == same


def test_a_group_is_chosen_by_its_name():
    assert len(choose_problems(["odebench"])) == 63 and list(choose_problems(["robot_arm", "odebench_2"])) == [
        "robot_arm",
        "odebench_2",
    ]
    assert choose_problems(["all"]) == PROTOCOLS


def test_every_protocol_names_its_data_and_their_source():
    assert all(bool(each.file) != bool(each.make) and each.source for each in PROTOCOLS.values())
