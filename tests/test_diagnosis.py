"""What a fit has come to: each kind from data that are of that kind."""

import functools

import numpy as np
import pytest
from conftest import SMALL, rotation

import node_fit as nf
from node_fit.diagnosis import diagnose
from node_fit.observer import Record
from node_fit.prior import CANDIDATES, choose_ridge, is_short
from node_fit.smoothing import noise_levels


def record(loss, step=100, stage="main"):
    return Record(step, stage, loss, None, 0.0, 1.0, 100, 0, 1.0)


STALLED = [record(0.1), record(0.0999, 200)]


def said(predicted, data=None, status="stopped_early", history=STALLED, validation=None, validated=None):
    data = data or rotation()
    splits, predictions = {"train": data}, {"train": predicted}
    if validation is not None:
        splits["validation"], predictions["validation"] = validation, validated
    return diagnose(status, history, splits, predictions)


def test_good():
    data = rotation()
    assert said(data.ys + 1e-3).kind == "good"


def test_flat():
    data = rotation()
    flat = said(np.zeros_like(data.ys) + data.ys.mean(axis=(0, 1)))
    assert flat.kind == "flat" and "try recipe=default" in flat.sentence
    after_all = said(np.zeros_like(data.ys), history=[record(1.0, stage="derivative"), *STALLED])
    assert "shorter windows first" in after_all.sentence


def test_unstable_names_the_trajectory_and_the_time():
    data = rotation()
    broken = data.ys.copy()
    broken[1, 7:] = np.inf
    found = said(broken)
    assert found.kind == "unstable"
    assert f"'1' can't be simulated beyond t = {data.ts[1, 6]:g}" in found.sentence


def test_unfinished():
    data = rotation()
    falling = [record(0.2), record(0.1, 200)]
    assert said(data.ys + 0.1, status="completed", history=falling).kind == "unfinished"
    assert said(data.ys + 0.1, status="stopped_early", history=falling).kind != "unfinished"


def test_overfitted():
    data = rotation()
    assert said(data.ys + 1e-3, validation=data, validated=data.ys + 0.3).kind == "overfitted"
    assert said(data.ys + 1e-3, validation=data, validated=data.ys + 1e-3).kind == "good"


def test_limited_by_noise():
    clean = rotation(times=60)
    noise = 0.1 * np.random.default_rng(0).normal(size=clean.ys.shape)
    data = nf.Dataset.from_arrays(clean.ts[0], clean.ys + noise)
    assert said(clean.ys, data).kind == "noise-limited"
    assert said(data.ys, clean).kind != "noise-limited"


def test_poor():
    data = rotation()
    assert said(0.6 * data.ys).kind == "poor"


def test_failed():
    assert said(rotation().ys, status="failed").kind == "failed"


def test_the_noise_is_found():
    clean = rotation(trajectories=4, times=100)
    noise = np.array([0.2, 0.02]) * np.random.default_rng(1).normal(size=clean.ys.shape)
    np.testing.assert_allclose(noise_levels(clean.ts, clean.ys + noise), [0.2, 0.02], rtol=0.25)
    assert np.isnan(noise_levels(clean.ts[:, :3], clean.ys[:, :3])).all()


def test_a_fit_says_what_it_has_come_to():
    data = rotation()
    fit = nf.fit(data, field=nf.Linear, steps=50, precision="x64")
    assert fit.diagnose(data).kind == "good"


@pytest.mark.parametrize("best", CANDIDATES)
def test_the_prior_is_the_one_that_predicts_the_ends(best):
    """Of fits that only see beginnings."""
    data = rotation(times=20)
    seen = []

    def predict(beginning, ridge):
        seen.append(beginning)
        return data.ys + 0.1 * (1 + abs(ridge - best))

    assert choose_ridge(data, predict) == best
    assert all(not part.mask[:, 15:].any() and part.mask[:, :15].all() for part in seen)


def test_where_nothing_predicts_the_prior_is_strong():
    data = rotation()
    assert choose_ridge(data, lambda part, ridge: np.full(data.ys.shape, np.nan)) == max(CANDIDATES)


def test_what_is_short():
    assert is_short(rotation(1, 10), 42) and not is_short(rotation(3, 12), 42) and not is_short(rotation(20, 12), 4482)


def test_short_noisy_records_get_a_prior_by_themselves():
    """Fifteen noisy points of a slow decay: a large network forecasts it better with the prior that it chose."""
    rng = np.random.default_rng(3)
    ts = np.linspace(0, 3, 15)
    truth = np.stack([np.exp(-0.5 * ts) * np.cos(2 * ts), -np.exp(-0.5 * ts) * np.sin(2 * ts)], axis=1)
    data = nf.Dataset.from_arrays(ts, truth + 0.1 * rng.normal(size=truth.shape))

    class Notes(nf.observer.Silent):
        def begin(self, model, notes):
            self.notes = notes

    notes = Notes()
    nf.fit(data, field=functools.partial(nf.MLP, width=16), steps=50, precision="x64", observer=notes)
    assert "a prior of train.ridge=" in notes.notes[0]
    told = Notes()
    nf.fit(data, field=SMALL, steps=5, ridge=0.5, precision="x64", observer=told)
    assert not told.notes
