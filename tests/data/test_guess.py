"""What the columns of a table are taken for, by their names and values."""

import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.data.facts import find_oddities
from node_fit.data.tables.guess import (
    GuessedRoles,
    find_limit,
    find_records,
    find_time_by_values,
    guess_by_names,
    is_repeating,
    plain_name,
)


@pytest.mark.parametrize(
    ("names", "guess"),
    [
        (["x", "t", "y"], GuessedRoles("t")),
        (["id", "t", "s"], GuessedRoles("t", "id")),
        (["ID", "TIME", "DV", "AMT"], GuessedRoles("TIME", "ID", ("DV",))),
        (["trajectory", "Time [h]", "x"], GuessedRoles("Time [h]", "trajectory")),
        (["Subject", "date", "x"], GuessedRoles("date", "Subject")),
        (["run", "minutes", "x"], GuessedRoles("minutes", "run")),  # By its place, but for the records.
        (["u_V", "t_s", "y_V"], GuessedRoles("t_s")),
        (["year", "hare"], GuessedRoles("year")),
        (["identity", "timer"], GuessedRoles("identity")),
        (["id"], GuessedRoles(None, "id")),
    ],
)
def test_names_come_before_places(names, guess):
    assert guess_by_names(names) == guess


@pytest.mark.parametrize(
    ("rows", "time"),
    [
        (["Topf 0;0;20,5", "Topf 0;2;31,4", "Topf 1;0;19,9"], "stunde"),
        (["Topf 0;1.3.2024 10:00;20,5", "Topf 0;1.3.2024 11:00;31,4"], "stunde"),
        (["Topf 0;10:00;20,5", "Topf 0;11:00;31,4"], "stunde"),
        (["0;0;20,5", "0;2;31,4", "1;0;19,9"], "topf"),  # Numbers may be times.
        ([f"{pot};{hour};{20 + pot}" for pot in (7, 8) for hour in range(0, 12, 3)], "stunde"),
        ([f"{hour};{pot};{20 + pot}" for hour in (0, 3, 6, 9) for pot in (7, 8, 9)], "topf"),  # One row for each pot.
        ([f"{pot};{hour};{20 + pot}" for pot in (7, 8) for hour in (0, 3, 3, 6)], "topf"),
        (["2024-03-01;0;20,5", "2024-03-02;2;31,4"], "topf"),
        (["a;b;c", "a;b;d"], "topf"),  # The run then says what a time is.
    ],
    ids=[
        "hours",
        "dates",
        "times of day",
        "numbers",
        "numbers of records",
        "sorted by times",
        "times that stay",
        "dates first",
        "words alone",
    ],
)
def test_words_are_no_times(tmp_path, rows, time):
    (tmp_path / "pots.csv").write_text("\n".join(["topf;stunde;masse", *rows]) + "\n")
    assert find_time_by_values(tmp_path / "pots.csv", ["topf", "stunde", "masse"]) == time


@pytest.mark.parametrize("name", ["time", " TIME ", "Time (s)", "time [h]", "Time_s", "time_min"])
def test_units_are_no_part_of_a_name(name):
    assert plain_name(name) == "time"


def test_numbers_of_rows_name_no_records(tmp_path):
    (tmp_path / "a.csv").write_text("id,t,x\n1,0,1\n2,1,2\n3,2,3\n")
    (tmp_path / "b.csv").write_text("id,t,x\n1,0,1\n1,1,2\n2,0,3\n")
    assert not is_repeating(tmp_path / "a.csv", "id") and is_repeating(tmp_path / "b.csv", "id")


TIMES = (0, 1, 2, 0, 1, 2, 0, 1, 2)


@pytest.mark.parametrize(
    ("columns", "records"),
    [
        ({"Versuch": "AAABBBCCC"}, "Versuch"),
        ({"batch": (1, 1, 1, 2, 2, 2, 3, 3, 3)}, "batch"),
        ({"level": (1, 1, 1, 2, 2, 2, 3, 3, 3), "name": "AAABBBCCC"}, "name"),  # Text comes first.
        ({"dose": (5, 5, 5, 10, 10, 10, 20, 20, 20)}, None),  # Numbers that mean something.
        ({"operator": "AAABBBAAA"}, None),  # Times of A go back.
        ({"note": ("a", "b", "c", "d", "e", "f", "g", "h", "i")}, None),
        ({"name": ("A", "A", "", "B", "B", "B", "C", "C", "C")}, None),
        ({"mixed": "ABCABCABC"}, None),
    ],
    ids=["text", "count", "text first", "dose", "operator", "notes", "a blank", "no value for each time"],
)
def test_records_are_told_apart_where_times_go_back(tmp_path, columns, records):
    table = pd.DataFrame(
        {"t": TIMES, "x": np.linspace(0.1, 0.9, 9), **{name: list(each) for name, each in columns.items()}}
    )
    table.to_csv(tmp_path / "table.csv", index=False)
    assert find_records(tmp_path / "table.csv", "t", ["x", *columns]) == records
    table.assign(t=range(9)).to_csv(tmp_path / "on.csv", index=False)
    assert find_records(tmp_path / "on.csv", "t", ["x", *columns]) is None, "times that go on are one record"
    dates = pd.Timestamp("2024-03-13") + pd.to_timedelta(table["t"], unit="D")
    for written in ("%Y-%m-%d %H:%M", "%d.%m.%Y"):
        table.assign(t=dates.dt.strftime(written)).to_csv(tmp_path / "dated.csv", index=False)
        assert find_records(tmp_path / "dated.csv", "t", ["x", *columns]) == records


def test_plants_that_are_measured_on_the_same_days_are_told_apart(tmp_path):
    """Row after row of another plant on one date would be averaged otherwise."""
    rows = [f"2024-04-{day:02},{plant},{day / 10 + (plant == 'B'):.2f}" for day in range(1, 9) for plant in "ABC"]
    (tmp_path / "plants.csv").write_text("\n".join(["date,plant,height", *rows]) + "\n")
    assert find_records(tmp_path / "plants.csv", "date", ["plant", "height"]) == "plant"
    (tmp_path / "wrong.csv").write_text("date,plant,height\n2024-13-41,A,1\n2024-04-01,B,2\n")
    assert find_records(tmp_path / "wrong.csv", "date", ["plant", "height"]) is None


@pytest.mark.parametrize(
    ("scale", "unit"), [(1e3, "millisecond"), (1e6, "microsecond"), (1e9, "nanosecond"), (1, None), (1e-9, None)]
)
def test_times_since_1970_in_another_unit_than_seconds_are_named(scale, unit):
    """Rates are per such a unit, and constants are not what they seem."""
    ts = (1.73e9 + np.arange(40.0)) * scale
    data = nf.Dataset.from_arrays(ts, np.sin(np.arange(40.0))[:, None], states=["x"])
    said = [each for each in find_oddities(data, nf.Scaling()) if "Unix" in each]
    assert len(said) == (unit is not None)
    assert unit is None or (f"per {unit}" in said[0] and f"divide the times by {scale:g} for seconds" in said[0])


def test_columns_of_several_levels_are_to_be_joined():
    frame = pd.DataFrame(np.ones((3, 2)), columns=pd.MultiIndex.from_tuples([("t", ""), ("x", "a")]))
    with pytest.raises(ValueError, match="data frame has columns of 2 levels; join their names first"):
        nf.from_frame(frame, time="t", states=["x"])


def test_a_file_of_times_alone_needs_a_first_row(tmp_path):
    (tmp_path / "times.csv").write_text("t\n0\n1\n2\n")
    with pytest.raises(ValueError, match="if these are times alone, add the states, with values in the first row"):
        nf.read_table(tmp_path / "times.csv", time="t", states=["x"])


@pytest.mark.parametrize(
    ("cell", "is_one"),
    [
        ("<0.5", True),
        ("> 100", True),
        ("≤2", True),
        ("0.2..0.5", True),
        ("0.5", False),
        ("<LOQ", False),
        ("a..b", False),
    ],
)
def test_limits_are_numbers_with_a_sign(tmp_path, cell, is_one):
    (tmp_path / "a.csv").write_text(f"t,x,y\n0,1,1\n1,2,{cell}\n2,3,3\n")
    assert find_limit(tmp_path / "a.csv", ["x", "y"]) == ((cell, "y") if is_one else None)
    assert find_limit(tmp_path / "a.csv", ["x"]) is None
