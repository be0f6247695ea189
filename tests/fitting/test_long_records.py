"""Long driven records: which are asked for a linear system, what is kept, and that it is a model as any other."""

import functools
import re
from dataclasses import replace

import numpy as np
import pytest

import node_fit
from node_fit.fitting.long_records import (
    beside_options,
    comes_first,
    fit_long_record,
    hold_out_ends,
    is_long_and_even,
    is_open_to_modes,
    race_long_record,
    scaler_of_signals,
    signals_of,
)
from node_fit.sysid.realization import Signals

NOISE = 0.02


def record(rows=4000, inputs=1, noise=NOISE, step=0.5):
    """A lightly damped and a slow mode, both driven by held inputs."""
    rng = np.random.default_rng(0)
    us = rng.normal(size=(rows, inputs))
    x, ys = np.zeros(2, complex), np.empty((rows, 1))
    for row in range(rows):
        ys[row] = np.real(x[0]) + x[1].real
        x = np.exp([-0.05 + 0.7j, -0.2]) * x + us[row].sum()
    ys = ys / ys.std() + noise * rng.normal(size=ys.shape)
    names = {"states": ["y"], "inputs": [f"u{number}" for number in range(inputs)]}
    return node_fit.Dataset.from_arrays(step * np.arange(rows), ys, us, **names)


@pytest.fixture(scope="module")
def splits():
    return record().split()


@pytest.fixture(scope="module")
def long(splits):
    return fit_long_record(node_fit.Options(), splits.train, splits.validation, lambda said: None)


def test_system_is_found_and_simulates_to_the_noise(long, splits):
    assert long.states == 3
    assert long.fit.options.hidden == 2
    assert long.fit.score(splits.test).rmse < 1.1 * NOISE
    poles = np.linalg.eigvals(np.asarray(long.fit.model.field.layer.weight)[:, :3])
    poles = poles * 0.5 / float(long.fit.model.scaler.time_scale)  # 1/row
    np.testing.assert_allclose(np.sort_complex(poles), np.sort_complex([-0.2, -0.05 - 0.7j, -0.05 + 0.7j]), atol=0.02)


def test_system_is_saved_and_is_a_simple_model_to_beat(long, splits, tmp_path):
    long.fit.save(tmp_path / "model.safetensors")
    loaded = node_fit.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(splits.test), long.fit.predict(splits.test))
    other = replace(long.fit, linear=None, rival=long.fit.model)
    found = other.simple_predictions(splits.train, splits.test)["state-space"]
    np.testing.assert_array_equal(found, long.fit.predict(splits.test))


def test_network_beside_begins_as_the_system(long, splits):
    problem = long.build_beside(node_fit.Options(), splits.train, splits.validation)
    assert problem.begins_linear
    assert problem.model.field.linear_part is not None
    own, theirs = problem.model.predict(splits.test), long.fit.predict(splits.test)
    both = np.isfinite(own) & np.isfinite(theirs)
    np.testing.assert_allclose(own[both][200:], theirs[both][200:], atol=0.01)


def test_windows_beside_leave_out_the_rows_in_which_a_start_settles(long, splits):
    options = beside_options(long.fit, node_fit.Options(), 30)
    problem = long.build_beside(node_fit.Options(), splits.train, splits.validation)
    stage = problem.stages(0.0)[0]
    batch = stage.objective.prepare(splits.train, problem.model)
    assert options.start.keywords["washout"] == 30
    mask = np.asarray(batch.mask).any(axis=2)
    assert not mask[:, : long.settled].any()
    assert mask[:, long.settled + 1 :].all()
    with pytest.raises(ValueError, match="warm_up"):
        node_fit.TrajectoryMatching(warm_up=5)


@pytest.mark.parametrize(
    "changed",
    [
        {"hidden": 2},
        {"start": node_fit.First},
        {"field": functools.partial(node_fit.MLP, width=8)},
        {"observation": node_fit.NetworkReadout},
        {"solver": node_fit.Solver("dopri5")},
        {"recipe": "direct"},
    ],
)
def test_what_was_asked_for_is_not_replaced(changed):
    assert is_open_to_modes(node_fit.Options())
    assert not is_open_to_modes(node_fit.Options(**changed))


def test_short_and_uneven_records_and_covariates_are_left_to_others():
    options = node_fit.Options()
    whole = record(2400)
    assert is_long_and_even(whole, options)
    assert not is_long_and_even(record(300), options)
    assert not is_long_and_even(record(2400, inputs=3), options)  # Long for one input, not for three.
    uneven = whole.ts + 0.1 * np.random.default_rng(0).uniform(size=whole.ts.shape)
    assert not is_long_and_even(replace(whole, ts=uneven), options)
    assert not is_long_and_even(replace(whole, us=np.ones_like(whole.us)), options)


def swinging(rows=500, channels=1, step=0.02, seed=0):
    """Two damped swings of periods .5 and .2, and damping ratios .01 and .02."""
    rng, ts = np.random.default_rng(seed), step * np.arange(rows)
    angles, ratios = 2 * np.pi / np.array([0.5, 0.2]), np.array([0.01, 0.02])
    turns = ts[:, None, None] * angles + rng.uniform(0, 6, (channels, 2))
    ys = (np.exp(-ts[:, None, None] * angles * ratios) * np.cos(turns) * rng.uniform(0.5, 1, (channels, 2))).sum(axis=2)
    return node_fit.Dataset.from_arrays(ts, ys + NOISE * rng.normal(size=ys.shape))


def test_free_response_is_fitted_to_the_noise_and_its_modes_are_named(tmp_path):
    splits = swinging().split()
    fit = node_fit.fit(splits.train, validation=splits.validation)
    assert fit.diagnose().kind == "noise-limited"
    assert fit.options.hidden == 3
    assert fit.score(splits.test).rmse < 1.15 * NOISE
    reason = next(choice.reason for choice in fit.choices if choice.key == "hidden")
    assert re.search(r"period 0\.(5|499|500)\d* \(damping ratio 0\.01", reason)
    assert re.search(r"period 0\.(2|199|200)\d* \(damping ratio 0\.0(2|19|20)", reason)
    fit.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(
        node_fit.load(tmp_path / "model.safetensors").predict(splits.test), fit.predict(splits.test)
    )


def test_free_response_comes_first_for_one_channel_and_later_for_several():
    """Several measured states may be all states, of which equations are sought first."""

    def find(data):
        return fit_long_record(node_fit.Options(), data, None, lambda said: None)

    one, two = swinging(), swinging(channels=2)
    assert comes_first(one)
    assert not comes_first(two)
    assert find(one).states == find(two).states == 4
    assert race_long_record(node_fit.Options(), two, None, node_fit.Callback()).tried == ()


def test_free_response_that_only_decays_or_is_measured_whole_is_left_to_equations():
    ts, rng = 0.02 * np.arange(300), np.random.default_rng(0)
    decays = np.exp(-ts / 0.3) + np.exp(-ts / 2)
    angle = 2 * np.pi * ts
    turning = np.exp(-0.1 * angle)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for ys in (decays[:, None], turning):
        data = node_fit.Dataset.from_arrays(ts, ys + 0.01 * rng.normal(size=ys.shape))
        assert fit_long_record(node_fit.Options(), data, None, lambda said: None) is None


def test_inputs_of_other_kinds_are_left_to_others(splits):
    options = node_fit.Options(solver=node_fit.Solver(inputs="cubic"))
    assert fit_long_record(options, splits.train, splits.validation, lambda said: None) is None


def test_missing_rows_do_not_count_and_held_rows_have_rows_before_them():
    data = record(400)
    ys = data.ys.copy()
    ys[0, 7] = np.nan
    split = replace(data, ys=ys, scored=np.arange(400)[None] >= 100)
    scaler = scaler_of_signals(data, node_fit.Options())
    kept = signals_of(split, scaler, before=20)[0]
    assert len(kept.us) == 320
    assert not signals_of(split, scaler)[0].counts[7]
    early, late = hold_out_ends([Signals(data.us[0], data.ys[0], np.ones(400, bool))], before=50)
    assert (len(early[0].us), len(late[0].us)) == (320, 130)
