"""The time of day, of the week and of the year: phases against the calendar, and cycles found in simulated records."""

import jax
import numpy as np
import pandas as pd
import pytest

import node_fit
from node_fit.data.table_source import Table

DAYS = 20


def as_data(ys, begin="2024-03-04", step="h", us=None, name="y"):
    """A record with dates, Monday first, with noise; `us` is an input."""
    when = pd.date_range(begin, periods=len(ys), freq=step)
    noise = 0.05 * np.std(ys) * np.random.default_rng(0).normal(size=len(ys))
    columns = {"when": when, name: ys + noise} | ({} if us is None else {"u": us})
    return node_fit.from_frame(pd.DataFrame(columns), time="when", states=[name], inputs=[] if us is None else ["u"])


def heat(hours, *, begin=6, end=22, period=24):
    """A room that a heater warms at these hours, and that cools with a time constant of 4 hours."""
    ys, y = [], 0.0
    for hour in hours:
        ys.append(y)
        y += (begin <= hour % period < end) - 0.25 * y
    return np.array(ys)


HOURS = np.arange(24 * DAYS)


def test_phases_are_those_of_the_local_calendar():
    when = ["2024-02-29T06:00+01:00", "2024-03-01T00:00+01:00", "2024-12-31T12:00+01:00"]
    data = node_fit.from_frame(pd.DataFrame({"when": when, "y": [1.0, 2.0, 3.0]}), time="when", states=["y"])
    cycles = data.with_cycles(["day", "week", "year"])
    assert cycles.inputs == ("day_sin", "day_cos", "week_sin", "week_cos", "year_sin", "year_cos")
    turns = np.array([[0.25, 3.25 / 7, 59.25 / 366], [0, 4 / 7, 60 / 366], [0.5, 1.5 / 7, 365.5 / 366]])
    expected = np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)], axis=-1).reshape(1, 3, 6)
    np.testing.assert_allclose(cycles.us, expected, atol=1e-9)
    assert data.with_cycles([]) is data


def test_times_without_dates_count_from_zero():
    data = node_fit.Dataset.from_arrays(np.arange(48.0), np.ones((48, 1)), states=["y"], units={"t": "h"})
    np.testing.assert_allclose(data.with_cycles(["day"]).us[0, :, 0], np.sin(np.pi * np.arange(48) / 12), atol=1e-9)


@pytest.mark.parametrize(
    ("cycles", "change", "sentence"),
    [
        (["month"], {}, "cycles names 'month', which is not a cycle; choose from day, week, year"),
        (["days"], {}, "cycles names 'days', which is not a cycle; did you mean 'day'?"),
        (["day"], {"units": {"t": "turns"}}, "a day is no known number of time units; use dates as times, or give"),
        (["day"], {"inputs": ["day_cos"]}, "the data have an input 'day_cos' already; rename it"),
    ],
)
def test_wrong_cycles_are_refused_by_a_sentence(cycles, change, sentence):
    options = {"units": {"t": "h"}} | change
    us = np.ones((9, 1)) if "inputs" in options else None
    data = node_fit.Dataset.from_arrays(np.arange(9.0), np.ones((9, 1)), us, states=["y"], **options)
    with pytest.raises(ValueError, match=sentence):
        data.with_cycles(cycles)


def test_a_model_names_the_cycles_that_data_lack():
    data = as_data(heat(HOURS[:48]))
    model = node_fit.make_model(data.with_cycles(["day"]), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"but the data have \[\]; data.with_cycles\(\['day'\]\) adds the inputs"):
        model.predict(data)
    assert model.predict(data.with_cycles(["day"])).shape == (1, 48, 1)


def test_cycles_are_found():
    assert node_fit.find_cycles(as_data(heat(HOURS))) == ["day"]
    assert node_fit.find_cycles(as_data(heat(HOURS) + 0.01 * HOURS, begin="2024-03-04 17:30")) == ["day"]
    assert node_fit.find_cycles(as_data(heat(HOURS[::4] * 0.25), step="15min")) == []  # some days are needed
    hours = np.arange(24 * 7 * 10)
    assert node_fit.find_cycles(as_data(heat(hours))) == ["day"]
    assert node_fit.find_cycles(as_data(heat(hours) * (hours // 24 % 7 < 5))) == ["day", "week"]
    assert node_fit.find_cycles(as_data(heat(HOURS) * np.where(HOURS < 240, 0.25, 1))) == ["day"]  # the sun of spring
    days = np.arange(1500)
    assert node_fit.find_cycles(as_data(np.sin(days / 40) - 2 * (days % 7 > 4), step="D")) == ["week"]
    weeks = np.arange(52 * 8)
    assert node_fit.find_cycles(as_data(np.cos(2 * np.pi * weeks * 7 / 365.25), step="7D")) == ["year"]


def test_seasons_are_found_in_two_years():
    weeks = np.arange(110)
    season = np.cos(2 * np.pi * (weeks * 7 + 20) / 365.25)
    assert node_fit.find_cycles(as_data(season + 0.02 * weeks, step="7D")) == ["year"]
    assert node_fit.find_cycles(as_data(season[:90], step="7D")) == []  # a hump and a half
    assert node_fit.find_cycles(as_data(np.cos(2 * np.pi * weeks * 7 / 250), step="7D")) == []
    assert node_fit.find_cycles(as_data(np.cumsum(np.random.default_rng(2).normal(size=110)), step="7D")) == []
    assert node_fit.find_cycles(as_data(season, step="7D", us=season)) == []  # measured


def test_cycles_are_found_beside_gaps_and_without_dates():
    ys = heat(HOURS)
    ys[np.random.default_rng(0).random(len(HOURS)) < 0.3] = np.nan
    ys[100:130] = np.nan
    data = node_fit.Dataset.from_arrays(HOURS.astype(float), ys[:, None], states=["y"], units={"t": "h"})
    assert node_fit.find_cycles(data) == ["day"]


def test_no_cycle_is_found_where_there_is_none():
    rng = np.random.default_rng(1)
    assert node_fit.find_cycles(as_data(heat(HOURS, end=20, period=21))) == []
    assert node_fit.find_cycles(as_data(heat(HOURS[: 24 * 9], end=21, period=23))) == []
    assert node_fit.find_cycles(as_data(np.cumsum(rng.normal(size=len(HOURS))))) == []
    assert node_fit.find_cycles(as_data(np.exp(-HOURS / 100))) == []
    assert node_fit.find_cycles(as_data(np.ones(len(HOURS)))) == []
    unknown = node_fit.Dataset.from_arrays(HOURS.astype(float), heat(HOURS)[:, None], states=["y"])
    assert node_fit.find_cycles(unknown) == []


def test_inputs_that_explain_a_profile_are_enough():
    us = (HOURS % 24 >= 6) & (HOURS % 24 < 22)
    assert node_fit.find_cycles(as_data(heat(HOURS), us=us.astype(float))) == []
    assert node_fit.find_cycles(as_data(heat(HOURS), us=np.random.default_rng(1).normal(size=len(HOURS)))) == ["day"]


def test_experiments_that_begin_at_one_hour_have_no_cycle():
    """The hours since the start are the time of day there."""
    records = [
        pd.DataFrame({"when": pd.date_range(f"2024-03-{day:02} 09:00", periods=24, freq="h"), "id": day,
                      "y": np.exp(-np.arange(24) / 5)})
        for day in range(4, 24)
    ]  # fmt: skip
    data = node_fit.from_frame(pd.concat(records), time="when", states=["y"], trajectory="id")
    assert len(data) == 20 and node_fit.find_cycles(data) == []


def test_a_table_gets_its_cycles_and_names_those_that_it_shows(tmp_path):
    path = tmp_path / "room.csv"
    frame = pd.DataFrame({"when": pd.date_range("2024-03-04", periods=len(HOURS), freq="h"), "room": heat(HOURS)})
    frame.to_csv(path, index=False)
    table = {"path": str(path), "time": "when", "states": ["room"]}
    plain, notes = Table(**table).load_with_notes()
    assert "inputs: states follow the time of day: 'data.cycles=[day]'" in notes
    parts, notes = Table(**table, cycles=["day"]).load_with_notes()
    assert "inputs: day_sin, day_cos tell the time of day (data.cycles)" in notes
    assert not plain.train.inputs and parts.train.inputs == ("day_sin", "day_cos")
    # Rows held out go on with the phases.
    np.testing.assert_allclose(parts.test.us[0, :, 0], np.sin(2 * np.pi * parts.test.ts[0] / 24), atol=1e-9)
