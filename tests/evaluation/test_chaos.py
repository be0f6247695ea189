"""Scores of chaotic systems: how long forecasts are valid, how fast errors grow, and where simulations go."""

import functools

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.evaluation import chaos
from node_fit.evaluation.chaos import (
    distance_of_spectra,
    distance_of_values,
    expected_distance,
    lyapunov_time,
    score_chaos,
    valid_time,
)
from node_fit.model.make_model import make_model

LORENZ = {"x": "s*(y - x)", "y": "x*(r - z) - y", "z": "x*y - b*z"}
CONSTANTS = {"s": 10.0, "r": 28.0, "b": 8 / 3}


def lorenz(t, y):
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


@pytest.fixture(scope="module")
def record():
    begin = solve_ivp(lorenz, (0, 30), (1.0, 1.0, 1.0), rtol=1e-9, atol=1e-9).y[:, -1]
    ts = np.arange(2000) * 0.02
    ys = solve_ivp(lorenz, (0, ts[-1]), begin, t_eval=ts, rtol=1e-9, atol=1e-9).y.T
    return nf.Dataset.from_arrays(ts, ys, states=("x", "y", "z"))


def model_of(record, **constants):
    field = functools.partial(nf.Known, equations=LORENZ, constants=CONSTANTS | constants)
    return make_model(record, field=field, solver=nf.Solver().for_data(), key=jax.random.key(0))


def test_errors_of_lorenz_grow_by_its_published_exponent(record):
    """0.906 (J. C. Sprott, Chaos and Time-Series Analysis, 2003)."""
    scores = score_chaos(model_of(record), record, record)
    assert scores.lyapunov_time == pytest.approx(1 / 0.906, rel=0.07)
    assert scores.valid_lyapunov_times > 5 and scores.stays
    assert "Lyapunov times" in str(scores)


@pytest.mark.parametrize("every", [10, 50])
def test_the_growth_of_errors_does_not_depend_on_how_far_rows_are_apart(record, every):
    """Half a row is longer than Runge and Kutta's steps may be."""
    coarse = nf.Dataset.from_arrays(record.ts[0, ::every], record.ys[0, ::every], states=("x", "y", "z"))
    assert lyapunov_time(model_of(record), coarse) == pytest.approx(1 / 0.906, rel=0.1)


def test_growth_that_is_no_more_than_chance_has_no_time(record, monkeypatch):
    monkeypatch.setattr(chaos, "GROWTH_STEPS", 200)
    assert np.isnan(lyapunov_time(model_of(record), record))


@pytest.mark.slow
def test_other_constants_have_another_attractor(record):
    good, bad = (score_chaos(model_of(record, r=r), record, record) for r in (28.5, 50.0))
    assert good.stays and not bad.stays
    assert bad.valid_time < good.valid_time and bad.distribution > 2 * good.distribution


def test_a_model_at_rest_grows_no_error(record):
    scores = score_chaos(model_of(record, r=0.5), record, record)
    assert scores.lyapunov_time == np.inf and not scores.stays
    assert scores.valid_lyapunov_times == 0 and "Lyapunov" not in str(scores)


def test_a_model_that_runs_away_has_no_distribution(record):
    scores = score_chaos(model_of(record, b=-8.0), record, record)
    assert scores.distribution == scores.spectrum == np.inf and not scores.stays
    assert "runs away" in str(scores)


def test_the_distance_of_values_is_a_shift_of_them(record):
    spread = record.ys[0].std(axis=0)
    assert distance_of_values(record, record.ys + 0.3 * spread) == pytest.approx(0.3, rel=1e-6)


def test_the_distance_to_expect_is_that_of_two_records_as_long():
    draw = np.random.default_rng(0)
    ts, found = np.arange(400.0), []
    for _ in range(30):
        one, other = draw.normal(size=(2, 400, 1))
        data = nf.Dataset.from_arrays(ts, one, states=("x",))
        found.append((distance_of_values(data, other[None]), expected_distance(data)))
    distance, expected = np.mean(found, axis=0)
    assert expected == pytest.approx(distance, rel=0.15)


def test_spectra_of_sines_differ_by_their_frequencies():
    ts = np.linspace(0, 100, 1000)
    one, other = np.sin(ts)[:, None], np.sin(5 * ts)[:, None]
    data = nf.Dataset.from_arrays(ts, one, states=("x",))
    assert distance_of_spectra(data, 3 * one[None] + 1) == pytest.approx(0, abs=1e-6)
    assert distance_of_spectra(data, other[None]) > 0.8
    uneven = nf.Dataset.from_arrays(ts**1.5, one, states=("x",))
    assert np.isnan(distance_of_spectra(uneven, other[None]))


def test_a_forecast_is_valid_until_its_error_exceeds_two_fifths_of_the_spread():
    ts = np.arange(10.0)
    ys = np.where(np.arange(10) % 2, 1.0, -1.0)[:, None]  # of a standard deviation of 1
    data = nf.Dataset.from_arrays(ts, ys, states=("x",))
    assert valid_time(data, ys[None] + 0.39) == 9
    assert valid_time(data, ys[None] + 0.1 * ts[None, :, None]) == 4


@pytest.mark.slow
def test_forecasts_begin_where_rows_count(record):
    """Of later rows of a record, the earlier ones are no forecast."""
    exact = score_chaos(model_of(record), record, record.score_after(float(record.ts[0, 1599])))
    assert exact.valid_time == pytest.approx(199 * 0.02)
