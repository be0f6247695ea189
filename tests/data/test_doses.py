"""Doses in a column of the table of measurements."""

import numpy as np
import pandas as pd
import pytest

import node_fit
from node_fit.app.launching import complete
from node_fit.data.doses import check_doses
from node_fit.data.table_source import Table

HEADER = "id,t,c,dose [mg]\n"
ROWS = {
    "A": [(0, "0", "300"), (1, "2.0", ""), (3, "1.5", "100"), (5, "2.5", "0")],
    "B": [(0, "", "50"), (2, "1.0", "")],
}


def write(path, lines):
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return Table(str(path), "t", ["c"], trajectory="id", doses={"gut": "dose [mg]"})


def lines_of(rows=ROWS):
    return [",".join(map(str, (name, *row))) for name, record in rows.items() for row in record]


@pytest.fixture
def expected(tmp_path):
    """The same doses as a list of events."""
    path = tmp_path / "without.csv"
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines_of()))
    doses = [("A", 0, 300), ("A", 3, 100), ("B", 0, 50)]
    rows = [{"trajectory": name, "time": time, "state": "gut", "add": dose} for name, time, dose in doses]
    return Table(str(path), "t", ["c"], trajectory="id", events=rows).read(str(path))


def assert_same(found, expected):
    assert found.states == expected.states == ("c",)
    assert found.events.states == expected.events.states == ("gut",)
    for one, other in zip(
        (found.ts, found.ys, found.events.factor, found.events.shift),
        (expected.ts, expected.ys, expected.events.factor, expected.events.shift),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_a_column_of_doses_is_a_list_of_events(tmp_path, expected):
    table = write(tmp_path / "doses.csv", lines_of())
    found = table.read(table.path)
    assert_same(found, expected)
    assert "dose [mg]" not in found.units


def test_doses_may_have_rows_of_their_own(tmp_path, expected):
    measured = [f"{name},{time},{value}," for name, record in ROWS.items() for time, value, _ in record if value]
    doses = [f"{name},{time},,{dose}" for name, record in ROWS.items() for time, _, dose in record if dose]
    both = pd.DataFrame([line.split(",") for line in (*measured, *doses)]).sort_values([0, 1], kind="stable")
    table = write(tmp_path / "doses.csv", [",".join(row) for row in both.to_numpy()])
    assert_same(table.read(table.path), expected)


def test_two_doses_at_one_time_add_up(tmp_path):
    rows = {"A": [(0, "0.1", "100"), (0, "0.3", "200"), (1, "2.0", "0"), (1, "2.2", "0"), (2, "1.0", "0")]}
    table = write(tmp_path / "doses.csv", lines_of(rows))
    found = table.read(table.path)
    np.testing.assert_array_equal(found.events.shift[0, :, 0], [300, 0, 0])
    np.testing.assert_allclose(found.ys[0, :, 0], [0.2, 2.1, 1.0])


def test_deviations_and_doses_have_columns_of_their_own(tmp_path):
    path = tmp_path / "both.csv"
    path.write_text("t,c,sd,dose\n0,1.0,0.1,5\n1,0.5,0.2,\n2,0.2,0.3,\n")
    found = Table(str(path), "t", ["c"], sigma={"c": "sd"}, doses={"c": "dose"}).read(str(path))
    np.testing.assert_array_equal(found.sigma[0, :, 0], [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(found.events.shift[0, :, 0], [5, 0, 0])
    assert found.ys.shape == (1, 3, 1)


def test_doses_and_events_are_joined(tmp_path):
    path = tmp_path / "both.csv"
    path.write_text("t,c,dose\n0,1.0,5\n1,0.5,\n2,0.2,\n")
    events = [{"time": 1, "state": "c", "set": 0.0}]
    found = Table(str(path), "t", ["c"], doses={"gut": "dose"}, events=events).read(str(path))
    assert found.events.states == ("c", "gut")


def test_a_column_has_one_role(tmp_path):
    with pytest.raises(ValueError, match="doses: the column 'c' holds measurements of a state and doses of 'gut'"):
        Table("mine.csv", "t", ["c"], doses={"gut": "c"})
    with pytest.raises(ValueError, match=r"doses\.gut must be the column of the amounts that are added to it, got 5"):
        check_doses({"gut": 5}, ["c"], is_wide=False)
    with pytest.raises(ValueError, match="column 'u' is named twice"):
        Table("mine.csv", "t", ["c"], inputs=["u"], doses={"gut": "u"})


def test_columns_of_trajectories_take_events(tmp_path):
    with pytest.raises(ValueError, match="series"):
        Table("mine.csv", "t", ["c"], series=["well*"], doses={"gut": "dose"})


def test_a_missing_column_of_doses_is_named(tmp_path):
    table = write(tmp_path / "doses.csv", lines_of())
    with pytest.raises(ValueError, match=r"has no column 'dose'; .*Did you mean 'dose \[mg\]'"):
        Table(table.path, "t", ["c"], trajectory="id", doses={"gut": "dose"}).read(table.path)


def test_a_dose_that_is_no_number_is_named(tmp_path):
    table = write(tmp_path / "doses.csv", ["A,0,1.0,lots", "A,1,2.0,", "A,2,2.0,"])
    with pytest.raises(ValueError, match=r"line 2, column 'dose \[mg\]'.*lots"):
        table.read(table.path)


def test_rows_that_share_a_state_are_not_joined(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("t,x,y\n0,1,\n0,,2\n1,2,3\n2,1,4\n2,5,\n3,1,1\n")
    with pytest.raises(ValueError, match="times must increase strictly"):
        node_fit.Dataset.from_file(path, time="t", states=["x", "y"])
    path.write_text("t,x,y\n0,1,\n0,,2\n1,2,3\n2,1,4\n3,1,1\n")
    joined = node_fit.Dataset.from_file(path, time="t", states=["x", "y"])
    np.testing.assert_array_equal(joined.ys[0], [[1, 2], [2, 3], [1, 4], [1, 1]])
    assert not joined.notes


def test_a_command_may_leave_units_out(tmp_path, monkeypatch):
    write(tmp_path / "doses.csv", lines_of())
    monkeypatch.chdir(tmp_path)
    equations = ["field=known", "field.equations={c: -k*c, gut: -k*gut}"]
    found = complete(["doses.csv", *equations, "data.doses={gut: dose}"], "node_fit")
    assert 'data.doses={gut:"dose [mg]"}' in found and "data.states=[c]" in found
