"""The model to play with: curves for other inputs, starts and times, against exact solutions."""

import jax
import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.evaluation.simulation import predictions_frame
from node_fit.workbench.play import Player

RATE = 0.5
TANK = nf.Known(equations={"x": f"-{RATE}*x + u"}, constants={})
LENGTH = 8.0


def write_played_run(folder, data, field):
    """A run's files whose model has the right constants, so that nothing need be fitted."""
    solver = nf.Solver(rtol=1e-6, atol=1e-6, inputs="hold")
    model = nf.make_model(data, field=field, solver=solver, key=jax.random.key(0))
    nf.save(model, folder / "model.safetensors")
    middle = float(np.median(data.ts))  # A record of the page is whole, whatever its splits.
    parts = {"train": data.until(middle), "test": data.after(middle)}
    frames = [predictions_frame(part, part.ys, split=role) for role, part in parts.items()]
    pd.concat(frames).assign(scored=1).to_csv(folder / "predictions.csv", index=False)
    (folder / "config.yaml").write_text("data:\n  _target_: node_fit.Table\n")
    return Player.of(folder)


@pytest.fixture(scope="module")
def tank(tmp_path_factory):
    """Two records of a tank at rest, whose inflow u is 1."""
    ts = np.linspace(0, LENGTH, 41)
    x = np.stack([filled(ts, start, 1.0) for start in (0.0, 4.0)])
    data = nf.Dataset.from_arrays(ts, x[..., None], np.ones((2, 41, 1)), states=["x"], inputs=["u"])
    return write_played_run(tmp_path_factory.mktemp("tank"), data, TANK)


def filled(ts, start, inflow):
    """x' = -RATE x + inflow."""
    return inflow / RATE + (start - inflow / RATE) * np.exp(-RATE * ts)


def swung(ts, start, middle, amplitude, period):
    """x' = -RATE x + middle + amplitude sin(2 pi t / period)."""
    omega = 2 * np.pi / period
    steady = (RATE * np.sin(omega * ts) - omega * np.cos(omega * ts)) * amplitude / (RATE**2 + omega**2)
    return filled(ts, start + omega * amplitude / (RATE**2 + omega**2), middle) + steady


def play(player, **asked):
    found = player.simulate(asked)
    return found, np.array(found["ts"]), np.array(found["ys"])[0]


def test_the_measured_input_gives_the_curve_of_the_fit(tank):
    found, ts, x = play(tank, trajectory=1)
    np.testing.assert_allclose(x, filled(ts, 4.0, 1.0), atol=1e-5)
    assert found["nrmse"] < 1e-3 and found["held"] == (True,) and set(found["us"][0]) == {1.0}


def test_an_input_is_replaced_by_a_constant(tank):
    found, ts, x = play(tank, inputs={"u": {"kind": "constant", "value": 3.0}})
    np.testing.assert_allclose(x, filled(ts, 0.0, 3.0), atol=1e-5)
    assert found["nrmse"] is None, "the measurements are of another input"
    assert set(found["us"][0]) == {3.0} and found["measured"]["ys"][0][-1] == pytest.approx(filled(LENGTH, 0.0, 1.0))


def test_an_input_is_replaced_by_a_step_at_a_time_between_rows(tank):
    at = 3.03
    found, ts, x = play(tank, inputs={"u": {"kind": "step", "before": 0.0, "value": 2.0, "at": at}})
    risen = np.where(ts < at, 0.0, filled(np.maximum(ts - at, 0), 0.0, 2.0))
    np.testing.assert_allclose(x, risen, atol=2.0 * LENGTH / 799)  # of a step that begins at the next time of the grid
    assert sorted(set(found["us"][0])) == [0.0, 2.0]


def test_an_input_is_replaced_by_a_sine_for_longer_than_the_record(tank):
    wave = {"kind": "sine", "value": 1.0, "amplitude": 0.5, "period": 5.0}
    found, ts, x = play(tank, inputs={"u": wave}, until=2 * LENGTH, start={"x": 2.5}, trajectory=1)
    assert ts[-1] == 2 * LENGTH and found["input_ts"][-1] == 2 * LENGTH
    np.testing.assert_allclose(x, swung(ts, 2.5, 1.0, 0.5, 5.0), atol=0.01)  # of an input held for 0.02


def test_a_measured_input_goes_on_as_it_was_last(tank):
    found, ts, x = play(tank, until=3 * LENGTH)
    np.testing.assert_allclose(x, filled(ts, 0.0, 1.0), atol=1e-5)
    assert set(found["us"][0]) == {1.0}
    with pytest.raises(ValueError, match="until must be a time after 0, at most 10 times as far as 8"):
        play(tank, until=11 * LENGTH)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"v": {"kind": "constant", "value": 1.0}}, "mapping of the model's inputs"),
        ({"u": {"kind": "ramp"}}, "must be one of measured, constant, step, sine, got 'ramp'"),
        ({"u": {"kind": "step", "value": 1.0, "at": 1.0}}, "before of an input must be a number, got None"),
        ({"u": {"kind": "sine", "value": 1.0, "amplitude": 1.0, "period": 0}}, "period of an input must be positive"),
        ({"u": {"kind": "constant", "value": float("nan")}}, "value of an input must be a number"),
    ],
)
def test_an_input_that_is_none_ends_in_a_sentence(tank, inputs, words):
    with pytest.raises(ValueError, match=words):
        tank.simulate({"inputs": inputs})


@pytest.mark.parametrize("unit", ["min", "h", "d"])
def test_a_table_of_dates_is_played_in_the_unit_of_its_model(tmp_path, unit):
    """The table of predictions has stamps, whose spacing would be counted in minutes, whatever the model counts in."""
    hours = np.arange(0, 20, 0.5)
    rate = 0.2  # per hour
    frame = pd.DataFrame({"when": pd.Timestamp("2024-03-30 22:00") + pd.to_timedelta(hours, "h")})
    frame["x"] = 5 * np.exp(-rate * hours)
    data = nf.from_frame(frame, time="when", states=["x"], time_unit=unit)
    per_unit = rate * {"min": 1 / 60, "h": 1.0, "d": 24.0}[unit]
    player = write_played_run(tmp_path, data, nf.Known(equations={"x": "-k*x"}, constants={"k": per_unit}))
    last = 19.5 * rate / per_unit
    described = player.describe({})
    assert described["trajectories"][0]["span"] == pytest.approx([0, last]) and described["units"]
    assert described["constants"][0]["value"] == pytest.approx(per_unit)
    found, ts, x = play(player)
    np.testing.assert_allclose(x, 5 * np.exp(-per_unit * ts), rtol=1e-4)
    np.testing.assert_allclose(found["measured"]["ts"], hours * rate / per_unit, rtol=1e-5, atol=1e-9)
    assert found["nrmse"] < 1e-3
    _, ts, x = play(player, constants={"k": 2 * per_unit}, until=2 * last)
    np.testing.assert_allclose(x, 5 * np.exp(-2 * per_unit * ts), rtol=1e-3, atol=1e-5)


def test_records_of_several_dates_begin_where_their_own_clock_does(tmp_path):
    """A column of trajectories: each is counted as the model counts it."""
    hours = np.arange(0, 10, 0.5)
    frames = [
        pd.DataFrame(
            {
                "id": name,
                "when": pd.Timestamp(begin) + pd.to_timedelta(hours, "h"),
                "x": start * np.exp(-0.2 * hours),
            }
        )
        for name, begin, start in (("a", "2024-01-01", 5.0), ("b", "2024-01-03 06:00", 2.0))
    ]
    data = nf.from_frame(pd.concat(frames), time="when", states=["x"], trajectory="id", time_unit="h")
    player = write_played_run(tmp_path, data, nf.Known(equations={"x": "-k*x"}, constants={"k": 0.2}))
    for row, start in enumerate((5.0, 2.0)):
        found, ts, x = play(player, trajectory=row)
        np.testing.assert_allclose(x, start * np.exp(-0.2 * (ts - ts[0])), rtol=1e-4)
        assert found["nrmse"] < 1e-3
        assert [ts[0], ts[-1]] == pytest.approx(data.ts[row, [0, -1]], abs=1e-6)
