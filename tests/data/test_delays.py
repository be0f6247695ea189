"""Delays of inputs: moved columns against their definition, and delays found in simulated tables."""

import numpy as np
import pytest

import node_fit
from node_fit.data.delays import stack_lags
from node_fit.data.table_source import Table

ROWS, DELAY = 400, 9


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def simulate_heater(rng, *, delay=DELAY, lags=1, held=True, noise=0.01):
    """A room that a heater warms through `lags` lags, `delay` rows later, beside a window without a delay."""
    heater, window = (np.repeat(rng.uniform(0, 1, ROWS // hold + 1), hold)[:ROWS] for hold in (14, 23))
    heater = heater if held else np.convolve(rng.normal(size=ROWS + 8), np.ones(9) / 9, "valid")
    x, rooms = np.full(lags, 0.4), []
    for row in range(ROWS):
        rooms.append(x[-1])
        given = heater[max(row - delay, 0)] - 0.5 * window[row]
        for _ in range(10):
            x = x + 0.02 * (np.append(given, x[:-1]) - x)
    ys = np.array(rooms)[:, None] + noise * rng.normal(size=(ROWS, 1))
    return node_fit.Dataset.from_arrays(
        0.5 * np.arange(ROWS), ys, np.stack([heater, window], axis=1), states=["room"], inputs=["heater", "window"]
    )


def test_held_inputs_move_by_whole_rows_and_others_along_lines():
    ts = np.arange(10) * 0.1
    us = np.stack([np.repeat([1.0, 4.0], 5), np.array([0.0, 1, 3, 2, 5, 4, 7, 6, 9, 8])], axis=1)
    data = node_fit.Dataset.from_arrays(ts, np.zeros((10, 1)), us, inputs=["valve", "load"])
    moved = data.delay_inputs({"valve": 0.2, "load": 0.15})
    np.testing.assert_array_equal(moved.us[0, :, 0], [1, 1, 1, 1, 1, 1, 1, 4, 4, 4])
    np.testing.assert_allclose(moved.us[0, :, 1], [0, 0, 0.5, 2, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5], atol=1e-4)
    assert data.delay_inputs({}).us.tolist() == data.us.tolist()


def test_rounded_times_do_not_move_a_held_input_by_a_row():
    us = np.repeat(np.random.default_rng(0).normal(size=15), 4)[:, None]
    data = node_fit.Dataset.from_arrays(np.arange(60) * 0.1, np.zeros((60, 1)), us, inputs=["u"])
    np.testing.assert_array_equal(data.delay_inputs({"u": 0.2}).us[0, 2:], us[:-2])


def test_a_smooth_input_keeps_its_first_value_before_the_first_row():
    ts = np.linspace(0, 6, 80)
    data = node_fit.Dataset.from_arrays(ts, np.zeros((80, 1)), np.sin(ts)[:, None] + ts[:, None], inputs=["u"])
    moved = data.delay_inputs({"u": 2.0}).us[0, :, 0]
    assert (moved[ts < 2] == 0).all()
    np.testing.assert_allclose(moved[ts > 2.1], np.sin(ts[ts > 2.1] - 2) + ts[ts > 2.1] - 2, atol=2e-3)


def test_rows_have_the_past_of_their_own_trajectory_alone():
    y, u = np.arange(8.0)[:, None], np.arange(10.0, 18)[:, None]
    y[2] = np.nan
    targets, regressors = stack_lags(y, u, 1, 2)
    assert targets[:, 0].tolist() == [4, 5, 6, 7]  # Row 2 is unknown, and row 3 follows it.
    assert regressors[0].tolist() == [1, 3, 13, 12]


def test_trajectories_of_different_lengths_keep_their_own_first_values():
    ts, us = [np.arange(4.0), np.arange(6.0)], [np.array([[2.0], [3], [3], [3]]), np.arange(5.0, 11)[:, None]]
    data = node_fit.Dataset.from_arrays(ts, [np.zeros((4, 1)), np.zeros((6, 1))], us, inputs=["u"])
    moved = data.delay_inputs({"u": 2.0})
    assert moved.us[0, :4, 0].tolist() == [2, 2, 2, 3] and moved.us[1, :, 0].tolist() == [5, 5, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("delays", "sentence"),
    [
        ({"heatr": 1.0}, "delays names 'heatr', which is not an input; did you mean 'heater'"),
        ({"room": 1.0}, "delays names 'room', which is not an input"),
        ({"heater": -1.0}, "the delay of 'heater' must be a number that is not negative, got -1.0"),
        ({"heater": np.inf}, "the delay of 'heater' must be a number that is not negative, got inf"),
        ({"heater": np.nan}, "the delay of 'heater' must be a number that is not negative, got nan"),
    ],
)
def test_wrong_delays_are_refused_by_a_sentence(rng, delays, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulate_heater(rng).delay_inputs(delays)


@pytest.mark.parametrize("held", [True, False])
def test_a_delay_is_found_in_units_of_time_and_gone_once_it_is_moved(rng, held):
    data = simulate_heater(rng, held=held)
    delays = node_fit.find_delays(data)
    assert delays == {"heater": pytest.approx(0.5 * DELAY, abs=0.5)}
    assert node_fit.find_delays(data.delay_inputs(delays)) == {}


@pytest.mark.parametrize("seed", [0, 4, 5])
@pytest.mark.parametrize(("lags", "noise"), [(1, 0.01), (1, 0.1), (2, 0.01), (3, 0.01)])
def test_no_delay_is_found_where_none_is_clear(lags, noise, seed):
    data = simulate_heater(np.random.default_rng(seed), delay=0, lags=lags, noise=noise)
    assert node_fit.find_delays(data) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_response_in_noise_is_no_delay(seed):
    data = simulate_heater(np.random.default_rng(seed), delay=0, lags=3, noise=0.1)
    assert node_fit.find_delays(data) == {}


def test_several_trajectories_and_missing_rows_are_read_with_their_own_past(rng):
    parts = [simulate_heater(rng) for _ in range(3)]
    ys = [np.where(rng.random((ROWS, 1)) < 0.02, np.nan, part.ys[0]) for part in parts]
    data = node_fit.Dataset.from_arrays(
        [part.ts[0] for part in parts], ys, [part.us[0] for part in parts], inputs=["heater", "window"]
    )
    assert node_fit.find_delays(data) == {"heater": pytest.approx(0.5 * DELAY, abs=0.5)}


def test_trajectories_of_different_lengths_are_searched_together(rng):
    data = simulate_heater(rng)
    cut = [slice(0, 150), slice(150, 400)]
    parts = node_fit.Dataset.from_arrays(
        *([values[0, rows] for rows in cut] for values in (data.ts, data.ys, data.us)), inputs=["heater", "window"]
    )
    assert node_fit.find_delays(parts) == {"heater": pytest.approx(0.5 * DELAY, abs=0.5)}


def test_nothing_is_found_without_inputs_that_move_or_in_few_rows(rng):
    data = simulate_heater(rng)
    assert node_fit.find_delays(data.until(0.5 * 20)) == {}
    assert node_fit.find_delays(node_fit.Dataset.from_arrays(data.ts, data.ys, np.ones_like(data.us))) == {}
    assert node_fit.find_delays(node_fit.Dataset.from_arrays(data.ts, data.ys)) == {}


def test_a_table_moves_inputs_as_it_is_read_and_names_further_delays(rng, tmp_path):
    path = tmp_path / "room.csv"
    simulate_heater(rng).to_frame().drop(columns="trajectory").to_csv(path, index=False)
    table = {"path": str(path), "time": "t", "states": ["room"], "inputs": ["heater", "window"]}
    plain, notes = Table(**table).load_with_notes()
    note = next(note for note in notes if note.startswith("inputs: "))
    assert "responses to 'heater' begin 9 rows later, as linear models show: 'data.delays={heater: 4.5}'" in note
    moved, notes = Table(**table, delays={"heater": 4.5}).load_with_notes()
    assert [note for note in notes if note.startswith("inputs: ")] == [
        "inputs: moved, since responses to 'heater' begin 9 rows later (data.delays)"
    ]
    np.testing.assert_array_equal(moved.train.us[0, DELAY:, 0], plain.train.us[0, :-DELAY, 0])
    # Rows held out begin with the inputs of the rows before them.
    np.testing.assert_array_equal(moved.train.us[0, :, 1], plain.train.us[0, :, 1])
