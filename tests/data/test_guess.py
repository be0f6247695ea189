"""What the columns of a table are taken for: by their names, and by how they move."""

import time

import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.data.facts import find_oddities
from node_fit.data.tables.guess import (
    GuessedRoles,
    find_followers,
    find_inputs_by_steps,
    find_likely_inputs,
    find_records,
    find_time_by_values,
    guess_by_names,
    is_repeating,
    plain_name,
    unexplained_share,
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
        (["2024-03-01;0;20,5", "2024-03-02;2;31,4"], "topf"),
        (["a;b;c", "a;b;d"], "topf"),  # The run then says what a time is.
    ],
    ids=["hours", "dates", "times of day", "numbers", "dates first", "words alone"],
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


def driven(kind: str, rows: int = 200) -> np.ndarray:
    """An input and what follows it, columns `u` and `y`; or two states that move each other."""
    rng = np.random.default_rng(0)
    if kind == "swing":
        phase = np.linspace(0, 12, rows)
        return np.stack([np.cos(phase), np.sin(phase)], axis=1) + 0.01 * rng.normal(size=(rows, 2))
    if kind == "decay":  # Of one substance into another, which follows it.
        decay = np.exp(-np.linspace(0, 4, rows))
        return np.stack([decay, 1 - decay], axis=1)
    levels = np.repeat(rng.integers(0, 3, rows // 20), 20) if kind == "levels" else rng.normal(size=rows)
    u, y = levels.astype(float), np.zeros(rows)
    for row in range(rows - 1):
        y[row + 1] = 0.8 * y[row] + 0.5 * u[row]
    return np.stack([u, y], axis=1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("levels", "stays at one of 3 levels"), ("random", "is followed by 'y'"), ("swing", None), ("decay", None)],
)
def test_what_is_set_from_outside_looks_so(kind, why):
    values = driven(kind)
    found = find_inputs_by_steps(values[:-1], np.diff(values, axis=0), ["u", "y"])
    assert {name: likely.reason for name, likely in found.items()} == ({} if why is None else {"u": why})


def leaping(rng: np.random.Generator) -> np.ndarray:
    """Five levels in any order, each held for 6 to 20 rows."""
    held = [np.full(rng.integers(6, 20), level) for level in rng.choice([-1.0, 0, 0.5, 1, 2], 40)]
    return np.concatenate(held)


def coarse(rng: np.random.Generator) -> np.ndarray:
    """A damped swing that a sensor of six levels measures with some noise."""
    ts = np.arange(240)
    swing = np.exp(-0.005 * ts) * np.cos(rng.uniform(0.03, 0.1) * ts) + 0.02 * rng.normal(size=240)
    return np.round(2.5 * swing)


def counted(rng: np.random.Generator) -> np.ndarray:
    """Rare events of a day."""
    return rng.poisson(0.3, 240).clip(0, 5).astype(float)


def spiking(rng: np.random.Generator) -> np.ndarray:
    """Spikes from rest to a high level, which a sensor of six levels sees decay."""
    values = np.zeros(240)
    for row in range(10, 230, 20):
        values[row : row + 6] = [5, 5, 3, 3, 1, 1]
    return np.roll(values, int(rng.integers(10)))


def stairs(_: np.random.Generator) -> np.ndarray:
    """Up and down, one level at a time but for two."""
    return np.repeat([0.0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 2, 3, 2, 1, 3, 2, 1], 12)


@pytest.mark.parametrize(
    ("draw", "is_input"), [(leaping, True), (coarse, False), (counted, False), (spiking, False), (stairs, False)]
)
def test_a_column_is_surely_an_input_if_it_leaps_over_levels_and_stays(draw, is_input):
    for seed in range(20):
        values = draw(np.random.default_rng(seed))[:, None]
        found = find_inputs_by_steps(values[:-1], np.diff(values, axis=0), ["u"])
        assert [likely.is_certain for likely in found.values()] == [is_input], seed


def test_a_level_that_is_visited_once_does_not_make_an_input():
    """Analyses of the laboratory, repeated until the next one."""
    values = np.repeat([1.0, 7, 3, 5, 2, 6, 4], 12)[:, None]
    (likely,) = find_inputs_by_steps(values[:-1], np.diff(values, axis=0), ["x"]).values()
    assert not likely.is_certain


def test_steps_from_one_record_to_the_next_are_none(tmp_path):
    """Two records of few rows each, whose states differ by much at their beginnings."""
    values = driven("levels", 100)
    lines = [f"{row // 50},{row % 50},{u},{y}" for row, (u, y) in enumerate(values)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["run,t,u,y", *lines]))
    assert list(find_likely_inputs(path, "t", "run", ["u", "y"])) == ["u"]
    path.write_text("\n".join(["run,t,u,y", *lines[:20]]))
    assert find_likely_inputs(path, "t", "run", ["u", "y"]) == {}, "too few rows"


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


def test_a_column_follows_another_as_least_squares_of_each_pair_says():
    rng = np.random.default_rng(0)
    values = np.concatenate([driven("random"), driven("swing"), np.ones((200, 1))], axis=1)
    values = np.concatenate([values, values[:, :1], rng.normal(size=(200, 2)).cumsum(axis=0)], axis=1)
    before, steps = values[:-1], np.diff(values, axis=0)

    def left(columns, other):
        share = unexplained_share(before[:, columns], steps[:, [other]])
        return float(share[0])

    follows = find_followers(before, steps)
    for at in range(values.shape[1]):
        for other in range(values.shape[1]):
            is_better = at != other and left([other, at], other) < 0.8 * left([other], other)
            assert follows[at, other] == is_better, (at, other)


def test_many_columns_are_looked_at_together():
    values = np.random.default_rng(0).normal(size=(60, 1000))
    began = time.process_time()
    find_inputs_by_steps(values[:-1], np.diff(values, axis=0), [f"c{at}" for at in range(1000)])
    assert time.process_time() - began < 10, "each pair alone takes minutes"


def test_a_sensor_that_is_read_less_often_hides_no_input(tmp_path):
    rows = np.arange(80)
    pump = np.where(rows // 10 % 2, 4.0, 1.5)
    level = np.convolve(pump, np.exp(-np.arange(30) / 6), "full")[:80]
    rare = np.where(rows % 2, np.nan, np.where(rows // 16 % 2, 1.0, 2.0))  # It would look like an input itself.
    frame = pd.DataFrame({"t": rows, "level": level, "pump": pump, "rare": rare})
    frame.to_csv(tmp_path / "tank.csv", index=False)
    likely = find_likely_inputs(tmp_path / "tank.csv", "t", None, ["level", "pump", "rare"])
    assert {name: found.is_certain for name, found in likely.items()} == {"pump": True}
    frame.assign(pump=rare).to_csv(tmp_path / "tank.csv", index=False)
    assert "rare" not in find_likely_inputs(tmp_path / "tank.csv", "t", None, ["level", "pump", "rare"])
