"""`python -m node_fit.benchmark`: published protocols, and the table of ours beside other figures."""

import numpy as np
import pandas as pd
import pytest
from commands import node_fit

from node_fit.benchmark.__main__ import chosen
from node_fit.benchmark.odebench import read_equations, solved, write_table
from node_fit.benchmark.protocols import PROTOCOLS, Figure, Measure
from node_fit.benchmark.table import line, odebench_lines, outcome

SMALL = ("--set", "field.width=8", "field.depth=1", "train.steps=60", "report=false")


def test_a_protocol_prints_its_table(tmp_path):
    ran = node_fit(tmp_path, "odebench_24", "cascaded_tanks", "--data", "absent", *SMALL, module="node_fit.benchmark")
    assert ran.code == 0, ran
    lines = [each for each in ran.out.splitlines() if each.startswith("| odebench_24")]
    assert len(lines) == 2 and all("harmonic oscillator" in each for each in lines)
    fitted, other = (float(each.split("|")[3]) for each in lines)
    assert 0.5 < fitted <= 1 and other <= 1
    assert "cascaded_tanks: left out" in ran.err and "10.4121/12960104" in ran.err


def test_an_unknown_protocol_is_refused(tmp_path):
    ran = node_fit(tmp_path, "odebench_64", module="node_fit.benchmark")
    assert ran.code == 1 and "there is no protocol 'odebench_64'" in ran.sentence


@pytest.mark.parametrize("equation", read_equations(), ids=lambda equation: str(equation.number))
def test_the_tables_of_odebench_obey_their_equations(equation, tmp_path):
    write_table(equation, tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 300 and table["t"].max() == 10
    rates, times = equation.rates(), np.linspace(0, 10, 149 * 40 + 1)
    fine = solved(equation, times)
    for start, states, (_, rows) in zip(equation.starts, fine, table.groupby("trajectory"), strict=True):
        np.testing.assert_allclose(states[0], start)
        # Chaos makes the last digits of a solve grow.
        np.testing.assert_allclose(rows[equation.states], states[::40], rtol=1e-3, atol=1e-3 * np.abs(states).max())
        chosen = slice(20, -1, 40)
        found = np.gradient(states, times, axis=0)[chosen]
        expected = np.array([rates(state) for state in states[chosen]])
        np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


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


def test_a_group_is_chosen_by_its_name():
    assert len(chosen(["odebench"])) == 63 and list(chosen(["robot_arm", "odebench_2"])) == ["robot_arm", "odebench_2"]
    assert chosen(["all"]) == PROTOCOLS


def test_every_protocol_names_its_data_and_their_source():
    assert all(bool(each.file) != bool(each.make) and each.source for each in PROTOCOLS.values())
