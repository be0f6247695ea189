"""Simulations that are three times longer, from other starts and inputs: what runs away, and what only grows."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.evaluation.stability import find_escape, make_trials


def record(values, inputs=None):
    ts = np.linspace(0.0, 4.0, len(values))
    us = None if inputs is None else np.asarray(inputs, float)[:, None]
    names = () if inputs is None else ("u",)
    return nf.Dataset.from_arrays(ts, np.asarray(values, float)[:, None], us, states=["x"], inputs=names)


def law(rate):
    """Simulates `x' = rate * x` from the first measurement."""

    def simulate(data, times):
        return data.ys[:, :1] * np.exp(rate * (times - times[:, :1]))[..., None]

    return simulate


ts = np.linspace(0.0, 4.0, 40)


def test_a_model_that_runs_away_is_found():
    wave = record(np.sin(3 * ts))
    escape = find_escape(law(2.0), wave)
    assert (
        escape is not None
        and escape.state == "x"
        and abs(escape.reached) > 1e3
        and "measured: -0.997 to 0.999" in str(escape)
    )
    assert find_escape(law(-0.5), wave) is None
    lost = find_escape(lambda data, times: np.where(times > 6, np.nan, 0.0)[..., None], wave)
    assert lost is not None and "x is lost" in str(lost)


@pytest.mark.parametrize("rate", [0.3, 1.0, 1.5])
def test_growth_that_the_data_show_is_no_escape(rate):
    """Exponential growth goes on as it was, over three records more."""
    assert find_escape(law(rate), record(np.exp(rate * ts))) is None
    assert find_escape(law(3 * rate), record(np.exp(rate * ts))) is not None


def test_rows_that_a_start_is_read_from_have_no_prediction():
    def simulate(data, times):
        values = np.zeros((*times.shape, 1))
        values[:, :5] = np.nan
        return values + 100.0

    assert find_escape(simulate, record(100 + np.sin(3 * ts))) is None


def test_trials_begin_within_the_data_and_last_three_times_longer():
    wave = record(np.sin(3 * ts), np.where(ts > 2, 1.0, 0.0))
    trials = make_trials(wave, 10)
    assert (np.isfinite(trials.ys).sum(axis=1) == 10).all() and np.nanmax(np.abs(trials.ys)) <= 1.0
    np.testing.assert_allclose(trials.ts[:, -1] - trials.ts[:, 0], 3 * 4.0, rtol=0.05)
    assert ((trials.us >= 0) & (trials.us <= 1)).all() and (np.ptp(trials.us, axis=1) > 0).all()
    first = trials.ys[:, 0, 0]
    assert np.unique(first).size == first.size and not np.isin(first, wave.ys).any()
    assert make_trials(record([1.0, 2.0]), 10) is None
