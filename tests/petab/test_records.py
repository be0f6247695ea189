"""Measurements sorted into records, and what is drawn of them."""

import numpy as np
import pytest
from helpers.petab import FILES, write_problem

import node_fit
from node_fit.petab.fitting import CURVE_POINTS, simulate_records, sort_into_records


@pytest.fixture(scope="module")
def objective(tmp_path_factory):
    """A problem with a second measurement of a time, and one with another factor."""
    rows = FILES["measurements.tsv"] + "plain\tlow\t1.0\t1.2\t\nscaled\tlow\t3.0\t4.0\t2\n"
    folder = tmp_path_factory.mktemp("petab") / "replicates"
    return node_fit.objective(node_fit.read_petab(write_problem(folder, measurements_tsv=rows)))


def test_replicates_and_other_overrides_have_records_of_their_own(objective):
    data = simulate_records(objective, objective.nominal).data
    assert data.trajectories == ("low", "low (2)", "high")
    assert data.states == ("plain", "scaled", "sturdy")
    second = data.select([1])
    np.testing.assert_array_equal(second.ts[0, :2], [1.0, 3.0])
    np.testing.assert_array_equal(second.ys[0, :2], [[1.2, np.nan, np.nan], [np.nan, 4.0, np.nan]])


def test_curves_pass_what_is_simulated(objective):
    drawn = simulate_records(objective, objective.nominal)
    simulated = objective.simulate(objective.nominal)
    problem = objective.problem
    for each, value in zip(problem.measurements[:10], simulated[:10], strict=True):
        record, column = drawn.data.trajectories.index(each.experiment), drawn.data.states.index(each.observable)
        row = drawn.data.ts[record].tolist().index(each.time)
        assert drawn.predicted[record, row, column] == pytest.approx(value, rel=1e-6)
    times, curves = drawn.curves.dense["train"]
    assert curves.shape == (3, CURVE_POINTS, 3) and times[0, 0] == 0.0
    assert curves[0, 0, 0] == pytest.approx(2.0)  # x begins at 2
    # The record with a factor of 2, beside that with a factor of 3.
    scaled = [np.interp(2.5, times[at], curves[at, :, 1]) for at in range(2)]
    assert scaled[0] == pytest.approx(1.5 * scaled[1], rel=1e-3)


def test_equilibria_are_no_rows(objective):
    measurement = objective.problem.measurements[0]
    records = sort_into_records([measurement._replace(time=np.inf), measurement])
    assert [list(record.values) for record in records] == [[measurement.time]]
