"""`python -m node_fit.benchmark`: published protocols, and the table of ours beside other figures."""

import numpy as np
import pandas as pd
import pytest
from commands import node_fit

from node_fit.benchmark.odebench import PART, write_table
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


@pytest.mark.parametrize("equation", PART, ids=lambda equation: str(equation.number))
def test_the_tables_of_odebench_obey_their_equations(equation, tmp_path):
    write_table(equation, tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 300 and table["t"].max() == 10
    for start, (_, rows) in zip(equation.starts, table.groupby("trajectory"), strict=True):
        states = rows[equation.states].to_numpy()
        np.testing.assert_allclose(states[0], start)
        rates = np.array([equation.rates(state) for state in states])
        found = np.gradient(states, rows["t"].to_numpy(), axis=0)[1:-1]
        # Differences over 0.067 are coarse for the fast ones: a wrong equation has no such correlation.
        assert np.corrcoef(found.ravel(), rates[1:-1].ravel())[0, 1] > 0.9


def test_outcomes_are_wins_and_losses():
    assert outcome(0.2, 0.3, lower=True) == "win" and outcome(0.2, 0.3, lower=False) == "loss"
    assert outcome(0.30001, 0.3, lower=True) == "equal" and outcome(None, 0.3, lower=True) == "loss"
    assert outcome(0.2, None, lower=False) == "win"
    measure = Measure("RMSE", lambda summary: summary["rmse"])
    assert line("a", measure, 0.5, Figure(lambda summary: summary["simple"], "theirs"), {"simple": 0.4}) == (
        "| a | RMSE | 0.5 | 0.4 | theirs | loss |"
    )


def test_the_share_of_odebench_counts_what_is_above_its_threshold():
    found = [{"metrics": {"train": {"r2": 1.0}, "test": {"r2": value}}} for value in (0.95, 0.5, None)]
    fitted, other = odebench_lines(found)
    assert "3 of 3 (100 %)" in fitted and "1 of 3 (33 %)" in other and "3 of 63" in other


def test_every_protocol_names_its_data_and_their_source():
    assert all(bool(each.file) != bool(each.make) and each.source for each in PROTOCOLS.values())
