"""Channels that respond to held inputs at once, and controllers that only look so."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.sysid.feedthrough import LAGS, ROWS_PER_COLUMN, estimate_feedthrough, without_feedthrough

ROWS = 120


def switched(rng, rows=ROWS, inputs=1):
    """Inputs that are held for six rows."""
    return np.repeat(rng.choice([0.0, 1.0], (rows // 6 + 1, inputs)), 6, axis=0)[:rows]


def lag(us, rng, direct=(), noise=0.01):
    """A state that lags behind the sum of the inputs, and a direct part of them, with noise."""
    state, rows = 0.0, []
    for u in us:
        rows.append(state)
        state += 0.3 * (u.sum() - state)
    direct = np.resize(direct or 0.0, us.shape[1])
    return np.array(rows) + us @ direct + noise * rng.normal(size=len(us))


def record(us, ys):
    return nf.Dataset.from_arrays(np.arange(len(us)) * 0.5, ys.reshape(1, len(us), -1), us[None])


@pytest.mark.parametrize("direct", [-0.05, 0.4])
def test_a_direct_response_is_estimated(direct):
    rng = np.random.default_rng(1)
    us = switched(rng)
    data = record(us, lag(us, rng, (direct,), noise=0.005))
    found = estimate_feedthrough(data)
    assert found is not None and found.shape == (1, 1)
    np.testing.assert_allclose(found, direct, rtol=0.2)
    rest = without_feedthrough(data, found)
    assert estimate_feedthrough(rest) is None and rest.ys[0, 5, 0] == data.ys[0, 5, 0] - found[0, 0] * us[5, 0]


def test_noise_of_a_sensor_hides_no_direct_response():
    rng = np.random.default_rng(1)
    us = switched(rng, 2 * ROWS) + 0.01 * rng.normal(size=(2 * ROWS, 1))
    direct = estimate_feedthrough(record(us, lag(us, rng, (0.1,), noise=0.02)))
    assert direct is not None
    np.testing.assert_allclose(direct, 0.1, rtol=0.3)


def test_only_the_input_and_the_channel_of_a_direct_response_have_one():
    rng = np.random.default_rng(2)
    us = switched(rng, 2 * ROWS, inputs=2)
    ys = np.stack([lag(us, rng), lag(us, rng, (0.0, 0.7))], axis=1)
    np.testing.assert_allclose(estimate_feedthrough(record(us, ys)), [[0, 0], [0, 0.7]], atol=0.05)


def test_a_held_input_responds_at_once_beside_one_that_always_moves():
    rng = np.random.default_rng(3)
    us = np.concatenate([np.cumsum(rng.normal(size=(ROWS, 1)), axis=0), switched(rng)], axis=1)
    np.testing.assert_allclose(estimate_feedthrough(record(us, lag(us, rng, (0.0, 0.7)))), [[0, 0.7]], atol=0.05)
    assert estimate_feedthrough(record(us, lag(us, rng, (0.7, 0.0)))) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_lag_has_none(seed):
    rng = np.random.default_rng(seed)
    us = switched(rng)
    assert estimate_feedthrough(record(us, lag(us, rng))) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_thermostat_that_switches_by_a_noisy_row_has_none(seed):
    """The input knows the noise of its row, since it was chosen by it."""
    rng = np.random.default_rng(seed)
    temperature, on, us, ys = 18.0, 1.0, [], []
    for _ in range(ROWS):
        ys.append(temperature + 0.5 * rng.normal())
        on = 1.0 if ys[-1] < 20 else 0.0
        us.append([on])
        temperature += 0.2 * (12 + 16 * on - temperature)
    assert estimate_feedthrough(record(np.array(us), np.array(ys))) is None


def test_few_rows_or_rows_without_values_tell_nothing():
    rng = np.random.default_rng(3)
    us = switched(rng)
    ys = lag(us, rng, (0.4,))
    enough = LAGS + ROWS_PER_COLUMN * (2 * LAGS + 2)
    assert estimate_feedthrough(record(us[:enough], ys[:enough])) is not None
    assert estimate_feedthrough(record(us[: enough - 1], ys[: enough - 1])) is None
    ys[::LAGS] = np.nan
    assert estimate_feedthrough(record(us, ys)) is None


def test_trajectories_of_few_rows_tell_nothing():
    rng = np.random.default_rng(6)
    us, ys = rng.choice([0.0, 1.0], (30, LAGS, 1)), rng.normal(size=(30, LAGS, 1))
    assert estimate_feedthrough(nf.Dataset.from_arrays(np.arange(LAGS), ys, us)) is None


def test_an_input_that_stays_constant_has_none():
    rng = np.random.default_rng(4)
    us = np.concatenate([switched(rng), np.ones((ROWS, 1))], axis=1)
    found = estimate_feedthrough(record(us, lag(us[:, :1], rng, (0.4,))))
    np.testing.assert_allclose(found, [[0.4, 0]], atol=0.05)


def test_an_input_that_is_linear_between_rows_has_none():
    """It moves the states before its row."""
    rng = np.random.default_rng(5)
    us = np.cumsum(rng.normal(size=(ROWS, 1)), axis=0)
    state, ys = 0.0, []
    for before, after in zip(us[[0, *range(ROWS - 1)], 0], us[:, 0], strict=True):
        for part in np.linspace(0, 1, 20):
            state += 0.3 / 20 * (before + part * (after - before) - state)
        ys.append(state + 0.01 * rng.normal())
    assert estimate_feedthrough(record(us, np.array(ys))) is None
