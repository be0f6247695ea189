"""Clipped sensors: marks against their definition, and ranges found in simulated signals."""

import numpy as np
import pytest

import node_fit
from node_fit.data.clipping import find_ends
from node_fit.data.scaling import Scaler
from node_fit.data.table_source import Table
from node_fit.sysid.linear_model import linear_models

ROWS = 400


def swing(rows=ROWS):
    ts = np.arange(rows)
    return np.sin(2 * np.pi * ts / 50) + 0.5 * np.sin(2 * np.pi * ts / 83 + 1)


def lag(us, pole=0.95):
    """A first-order lag behind an input."""
    ys = np.zeros(len(us))
    for row in range(1, len(us)):
        ys[row] = pole * ys[row - 1] + (1 - pole) * us[row - 1]
    return ys


def as_data(*records):
    """Trajectories of one state `y`."""
    ts = [np.arange(len(record), dtype=float) for record in records]
    return node_fit.Dataset.from_arrays(ts, [record[:, None] for record in records], states=["y"])


def test_values_at_or_beyond_an_end_are_censored():
    ys = np.array([0.0, 1.0, 2.5, np.nan, -1.0, -3.0, 1.9])
    clipped = as_data(ys).clip({"y": (-1, 2)})
    np.testing.assert_array_equal(clipped.ys[0, :, 0], [0, 1, 2, np.nan, -1, -1, 1.9])
    np.testing.assert_array_equal(clipped.censored[0, :, 0], [0, 0, 1, 0, -1, -1, 0])
    above = as_data(ys).clip({"y": (None, 2)})
    np.testing.assert_array_equal(above.censored[0, :, 0], [0, 0, 1, 0, 0, 0, 0])
    assert as_data(ys).clip({}).censored is None


def test_limits_of_cells_stay_as_they_are():
    ys, marks = np.array([[0.5], [3.0], [1.0]]), np.array([[-1], [1], [0]])
    data = node_fit.Dataset.from_arrays(np.arange(3.0), ys, states=["y"], censored=marks)
    clipped = data.clip({"y": (None, 2)})
    np.testing.assert_array_equal(clipped.ys[0], ys)
    np.testing.assert_array_equal(clipped.censored[0], marks)


def test_limits_are_missing_where_values_are_taken_as_exact():
    exact = as_data(np.array([0.0, 1.0, 2.5])).clip({"y": (None, 2)}).exact
    np.testing.assert_array_equal(exact.ys[0, :, 0], [0, 1, np.nan])
    assert exact.censored is None


def test_limits_are_not_interpolated():
    ts = np.delete(np.arange(12.0), 3)
    data = node_fit.Dataset.from_arrays(ts, np.minimum(ts, 7)[:, None], states=["y"]).clip({"y": (None, 7)})
    even = data.resample(1.0, "linear")
    np.testing.assert_array_equal(even.ys[0, :, 0], [*range(7), *[np.nan] * 5])


@pytest.mark.parametrize(
    ("ranges", "sentence"),
    [
        ({"z": (0, 1)}, "ranges names 'z', which is not a state"),
        ({"y": (0, 1, 2)}, r"ranges: that of 'y' must be \[lower, upper\], null for none"),
        ({"y": (1, 0)}, "ranges: the sensor of 'y' has bounds 1 and 0; the lower must be below the upper"),
    ],
)
def test_wrong_ranges_are_refused_by_a_sentence(ranges, sentence):
    with pytest.raises(ValueError, match=sentence):
        as_data(swing()).clip(ranges)


@pytest.mark.parametrize(("lower", "upper"), [(None, 1.0), (-0.9, None), (-0.9, 1.0)])
@pytest.mark.parametrize("noise", [0, 0.01])
def test_ends_of_a_range_are_found(lower, upper, noise):
    ys = swing() + noise * np.random.default_rng(0).normal(size=ROWS)
    assert find_ends(as_data(np.clip(ys, lower, upper))) == {"y": (lower, upper)}


def test_all_trajectories_show_an_end():
    low, high = 0.3 * swing(), swing(ROWS + 20)
    assert find_ends(as_data(low, np.minimum(high, 1.0))) == {"y": (None, 1.0)}


def test_an_end_is_found_where_most_values_are():
    ys = np.minimum(swing(), -0.2)
    assert 0.5 < np.mean(ys == -0.2) < 0.7 and find_ends(as_data(ys)) == {"y": (None, -0.2)}


WHOLE = {
    "a swing": swing(),
    "a coarse swing": np.round(swing() / 0.1) * 0.1,
    "a decay to zero": np.round(np.exp(-np.arange(ROWS) / 40), 2),
    "growth to a level": np.round(1 / (1 + np.exp(-(np.arange(ROWS) - 100) / 10)), 3),
    "a coarse lag that settles": np.round(lag(np.repeat([0.5, 1.0, 0.0, 1.0], [50, 200, 50, 100])), 2),
    "a switch": np.repeat([0.0, 1.0, 0.0, 1.0], ROWS // 4),
    "spikes of one height": np.where(np.arange(ROWS) % 20 < 3, 1.0, 0.1 * swing()),
    "a flow that rests at zero": np.maximum(swing() + 0.5, 0),
    "nearly always at its end": np.maximum(swing(), 1.25),
    "one value": np.ones(ROWS),
    "nothing": np.full(ROWS, np.nan),
}


@pytest.mark.parametrize("name", WHOLE)
def test_other_plateaus_are_no_ends_of_a_range(name):
    data = node_fit.Dataset.from_arrays(
        np.arange(float(ROWS)), np.stack([WHOLE[name], swing()], axis=1), states=["y", "other"]
    )
    assert find_ends(data) == {}


def test_angles_and_limits_of_cells_have_no_ranges():
    ys = np.minimum(swing(), 1.0)
    data = as_data(ys)
    assert find_ends(node_fit.Scaling(angles=["y"]).mark_angles(data)) == {}
    marks = (ys == 1.0).astype(int)[:, None]
    limits = node_fit.Dataset.from_arrays(data.ts[0], ys[:, None], states=["y"], censored=marks)
    assert find_ends(limits) == {}


def test_a_table_names_a_range_that_it_shows_and_takes_the_one_it_gets(tmp_path):
    path = tmp_path / "swing.csv"
    lines = [f"{row},{value:.6f}" for row, value in enumerate(np.minimum(swing(), 1.0))]
    path.write_text("\n".join(["t,y", *lines]))
    table = {"path": str(path), "time": "t", "states": ["y"]}
    parts, notes = Table(**table).load_with_notes()
    count = int((parts.train.ys >= 1).sum())
    stays = f"'y' stays at 1 in {count} rows, like a sensor at the end of its range"
    assert f"states: {stays}: 'data.ranges={{y: [null, 1.0]}}'" in notes and parts.train.censored is None
    with pytest.raises(
        ValueError, match=r"ranges: no value of 'y' lies between the ends \[5.0, 9.0\]; give wider ones"
    ):
        Table(**table, ranges={"y": [5.0, 9.0]}).load()
    parts, notes = Table(**table, ranges={"y": [None, 1.0]}).load_with_notes()
    assert f"states: {stays} (data.ranges)" in notes and parts.train.censored.sum() == count


def simulate_spring():
    """A driven spring with a slight friction, whose position is clipped in a third of the rows."""
    rng = np.random.default_rng(3)
    us, (x, v), ys = np.repeat(rng.uniform(-1, 1, 30), 20), (0.0, 0.0), []
    for u in us:
        ys.append(x)
        for _ in range(10):
            v += 0.005 * (9 * u - 9 * x - 0.8 * v)
            x += 0.005 * v
    ys = np.clip(np.array(ys) + 0.005 * rng.normal(size=600), -0.5, 0.5)
    return node_fit.Dataset.from_arrays(0.05 * np.arange(600), ys[:, None], us[:, None], states=["y"], inputs=["u"])


def test_linear_models_leave_clipped_values_out():
    """The rates of the spring are -.4 +- 2.973i, the roots of its characteristic polynomial."""
    measured = simulate_spring()

    def find_rates(data):
        scaler = Scaler.from_dataset(data)
        windows = node_fit.Batch.from_dataset(data.windows(128, 16), scaler, 10)
        (model,) = linear_models(windows, windows, node_fit.Batch.from_dataset(data, scaler), "hold", 1)
        return np.linalg.eigvals(model.system.a) / 0.05

    true = np.sort_complex(np.roots([1, 0.8, 9]))
    known, unknown = (np.sort_complex(find_rates(data)) for data in (measured.clip({"y": (-0.5, 0.5)}), measured))
    assert np.abs(known - true).max() < 0.05 < 0.1 < np.abs(unknown - true).max()


def fill_tank():
    """The level of the lower of two tanks, which overflows at 1."""
    us, upper, lower, ys = np.repeat(np.random.default_rng(1).uniform(0, 1.4, 30), 20), 0.5, 0.5, []
    for u in us:
        ys.append(lower)
        for _ in range(10):
            upper, lower = upper + 0.02 * (u - upper**0.5), min(lower + 0.02 * (upper**0.5 - lower**0.5), 1.0)
    ys = np.array(ys)
    ys = np.where(ys < 1, np.minimum(ys + 0.003 * np.random.default_rng(2).normal(size=600), 1.0), 1.0)
    return node_fit.Dataset.from_arrays(np.arange(600.0), ys[:, None], us[:, None], states=["level"], inputs=["u"])


def test_sensors_have_ranges_and_states_that_may_stop_have_none():
    assert node_fit.find_ranges(simulate_spring()) == {"y": (-0.5, 0.5)}
    assert find_ends(fill_tank()) == {"level": (None, 1.0)} and node_fit.find_ranges(fill_tank()) == {}
    assert node_fit.find_ranges(as_data(np.minimum(swing(), 1.0))) == {}  # without inputs
    assert node_fit.find_ranges(simulate_spring().until(2.9)) == {}  # with few rows


@pytest.mark.slow
def test_a_clipped_record_begins_with_a_linear_system():
    parts = simulate_spring().split()
    known = [part.clip({"y": (-0.5, 0.5)}) for part in parts]
    fit = node_fit.fit(known[0], validation=known[1])
    assert [attempt.name for attempt in fit.attempts] == ["linear system"]
    assert fit.diagnose().kind in ("good", "noise-limited") and fit.score(known[2]).nrmse < 0.015
