"""Derivatives from samples: convergence on clean data, robustness to noise and gaps."""

from pathlib import Path

import numpy as np
import pytest

from node_fit.data.interpolation import FEWEST_SMOOTHED, estimate_noise, noise_levels, smooth


def waves(times: int, noise: float = 0.0, seed: int = 0, trajectories: int = 4) -> tuple[np.ndarray, ...]:
    """Times, noisy samples, and true derivatives of two channels of order one."""
    ts = np.broadcast_to(np.linspace(0.0, 6.0, times), (trajectories, times)).copy()
    angle = ts[..., None] + np.array([0.0, 1.0]) + np.arange(trajectories)[:, None, None]
    ys = np.sqrt(2) * np.sin(angle)
    noisy = ys + noise * np.random.default_rng(seed).standard_normal(ys.shape)
    return ts, noisy, np.sqrt(2) * np.cos(angle)


def error(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((estimate - truth) ** 2)))


def test_on_clean_data_the_error_falls_with_the_spacing():
    errors = []
    for times in (21, 41, 81):
        ts, ys, rates = waves(times)
        values, estimate = smooth(ts, ys)
        assert np.allclose(values, ys, atol=1e-6), "clean data must not change"
        errors.append(error(estimate, rates))
    assert errors[0] < 0.02
    # The derivative of an interpolating cubic spline is of third order.
    assert errors[1] < errors[0] / 6 and errors[2] < errors[1] / 6


def test_where_times_span_many_decades_samples_are_interpolated():
    """There, SciPy finds no penalty, and says that the problem is ill-posed."""
    table = np.loadtxt(Path(__file__).parents[2] / "data" / "robertson.csv", delimiter=",", skiprows=1)
    ts, ys = table[None, :, 1] / table[-1, 1], table[None, :, 2:] / table[:, 2:].std(axis=0)
    with pytest.raises(ValueError, match="ill-posed"):
        estimate_noise(ts, ys[..., 0], np.array([0]))
    values, rates = smooth(ts, ys)
    assert np.allclose(values, ys, atol=1e-9) and np.isfinite(rates).all()


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_noisy_data_it_is_better_than_finite_differences(noise, seed):
    ts, ys, rates = waves(101, noise, seed)
    values, estimate = smooth(ts, ys)
    differences = np.gradient(ys, ts[0], axis=1)
    assert error(estimate, rates) < error(differences, rates) / 2
    assert error(estimate, rates) < 0.5
    clean = waves(101)[1]
    assert error(values, clean) < 0.7 * error(ys, clean), "the values must be smoothed, too"


def test_irregular_times():
    ts = np.sort(np.random.default_rng(0).uniform(0, 6, (3, 120)), axis=1)
    ys = np.sin(ts)[..., None]
    assert np.abs(smooth(ts, ys)[1][..., 0] - np.cos(ts))[:, 3:-3].max() < 0.02


def test_missing_values_are_bridged_and_empty_rows_skipped():
    ts, ys, rates = waves(81)
    gaps = np.random.default_rng(0).uniform(size=ys.shape) < 0.3
    gaps[:, [0, -1]] = False
    values, estimate = smooth(ts, np.where(gaps, np.nan, ys))
    empty = gaps.all(axis=2)
    assert np.isnan(values[empty]).all() and np.isnan(estimate[empty]).all()
    assert np.allclose(values[~gaps], ys[~gaps], atol=1e-6)
    assert error(estimate[~empty], rates[~empty]) < 0.02


def test_channels_measured_in_turn_still_meet():
    ts, ys, rates = waves(81)
    ys[:, ::2, 0] = np.nan
    ys[:, 1::2, 1] = np.nan
    estimate = smooth(ts, ys)[1]
    both = np.isfinite(estimate).all(axis=2)
    assert both[:, 1:-1].all()
    assert error(estimate[both], rates[both]) < 0.02


def test_a_trajectory_does_not_depend_on_the_gaps_of_others():
    ts, ys, _ = waves(41)
    holed = ys.copy()
    holed[1:, 3::7] = np.nan
    assert np.allclose(smooth(ts, holed)[1][0], smooth(ts, ys)[1][0], atol=1e-9)


def test_padding_stays_empty_and_has_no_say():
    ts, ys, _ = waves(41)
    padded_ts = np.concatenate([ts, np.repeat(ts[:, -1:], 5, axis=1)], axis=1)
    padded_ys = np.concatenate([ys, np.full((4, 5, 2), np.nan)], axis=1)
    values, rates = smooth(padded_ts, padded_ys)
    assert np.isnan(values[:, 41:]).all() and np.isnan(rates[:, 41:]).all()
    assert np.array_equal(rates[:, :41], smooth(ts, ys)[1])


@pytest.mark.parametrize("known", [0, FEWEST_SMOOTHED - 1, FEWEST_SMOOTHED])
def test_fewer_than_five_points_have_no_derivative(known):
    ts, ys, _ = waves(30)
    ys[1, known:, 0] = np.nan
    values, rates = smooth(ts, ys)
    enough = known >= FEWEST_SMOOTHED
    assert np.isfinite(rates[1, :known, 0]).all() == enough or known == 0
    assert np.isnan(rates[1, known:, 0]).all()
    if not enough:
        assert np.isnan(rates[1, :, 0]).all() and np.isnan(values[1, :, 0]).all()
    assert np.isfinite(rates[1, :, 1]).all() and np.isfinite(rates[0]).all()


def test_nothing_known_gives_nothing():
    ts, ys, _ = waves(10)
    values, rates = smooth(ts, np.full_like(ys, np.nan))
    assert np.isnan(values).all() and np.isnan(rates).all()


def test_a_constant_has_no_slope():
    ts, ys, _ = waves(20)
    values, rates = smooth(ts, np.full_like(ys, 3.0))
    assert np.allclose(values, 3) and np.allclose(rates, 0, atol=1e-9)


def test_the_noise_of_a_long_record_is_found():
    t = np.arange(50_000) * 0.1
    noise = np.random.default_rng(0).normal(scale=0.1, size=t.size)
    found = noise_levels(t[None], (np.sin(t) + noise)[None, :, None])
    np.testing.assert_allclose(found, 0.1, rtol=0.1)
