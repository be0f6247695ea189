"""Ensembles: members equal separate fits, each member ends on its own, and bands have the stated coverage."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.callbacks import GoOn, Nowhere, Rows, Stop, assert_equal, rows
from helpers.problems import SMALL, Quadratic, fit_to, rotation
from jaxtyping import Array

import node_fit as nf
from node_fit.evaluation.metrics import coverage
from node_fit.model.ensemble import BAND_LEVELS, conformal
from node_fit.storage.model_file import ModelFileError, check_model

pytestmark = pytest.mark.slow

OPTIMIZERS = {"adam": nf.Adam(), "lbfgs": nf.LBFGS(), "lm": nf.LevenbergMarquardt()}
OBJECTIVES = {
    "trajectories": nf.TrajectoryMatching(),
    "derivatives": nf.DerivativeMatching(),
    "segments": nf.MultipleShooting(rows=5),
}
QUICK = {"steps": 20, "chunk_steps": 10, "ridge": 0.0, "recipe": "direct"}


def cheap(optimizer=None, steps: int = 20):
    return [nf.Stage(Quadratic(), optimizer or nf.LBFGS(), steps)]


def noisy(data: nf.Dataset, deviation: float = 0.05, seed: int = 0) -> nf.Dataset:
    noise = deviation * np.random.default_rng(seed).normal(size=data.ys.shape)
    return dataclasses.replace(data, ys=data.ys + noise)


@functools.cache
def turned() -> nf.Fit:
    """An ensemble fitted to resampled noisy rotations, with calibrated bands."""
    options = {"field": nf.Linear, "ensemble": nf.Members(5, "data"), **QUICK}
    return fit_to(noisy(rotation(6)), validation=noisy(rotation(8), seed=1), **options)


@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_member_is_the_fit_with_its_seed(name):
    """Equal up to rounding in the first chunk of every optimizer; later chunks of a chaotic search diverge."""
    options = {"field": SMALL, "precision": "x64", "chunk_steps": 10, "recipe": cheap(OPTIMIZERS[name], 10)}
    together = fit_to(rotation(), ensemble=nf.Members(3), seed=5, **options)
    assert together.compiles == 1
    for member in (0, 2):
        alone = fit_to(rotation(), seed=5 + member, **options).history[0]
        (mine,) = [r for r in together.history if r.member == member and r.step == alone.step]
        np.testing.assert_allclose(mine.train_loss, alone.train_loss, rtol=1e-8)
        assert mine.evaluations == alone.evaluations


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_members(name):
    stage = nf.Stage(OBJECTIVES[name], nf.LBFGS(), 4)
    options = {"field": nf.Linear, "recipe": [stage], "chunk_steps": 4, "precision": "x64"}
    together = fit_to(noisy(rotation()), ensemble=nf.Members(2), **options)
    losses = [fit_to(noisy(rotation()), seed=seed, **options).history[0].train_loss for seed in (0, 1)]
    np.testing.assert_allclose([r.train_loss for r in together.history if r.step == 4], losses, rtol=1e-8)


class Edge(eqx.Module):
    """A rotation that is NaN if its rate, which is drawn at random, is below a threshold."""

    rate: Array

    def __init__(self, states: int, inputs: int, *, key):
        self.rate = jax.random.uniform(key, (), minval=-1.0, maxval=1.0)

    def __call__(self, t, y, u):
        return jnp.stack([-y[1], y[0]]) * jnp.where(self.rate > 0, self.rate, jnp.nan)


def test_a_member_that_fails_holds_no_other_up():
    fit = fit_to(rotation(), field=Edge, ensemble=nf.Members(6), scale=False, **{**QUICK, "steps": 60})
    drawn = [fit_to(rotation(), field=Edge, seed=seed, scale=False, **{**QUICK, "steps": 1}) for seed in range(6)]
    lost = [one.status == "failed" for one in drawn]
    assert 0 < sum(lost) < 6
    assert [end.status == "failed" for end in fit.members] == lost
    assert fit.status != "failed" and len(fit.model.members) == 6 - sum(lost)
    np.testing.assert_allclose([float(m.field.rate) for m in fit.model.members], 1.0, rtol=1e-3)
    assert np.isfinite(fit.predict(rotation())).all()


def test_if_all_fail_the_fit_has():
    fit = fit_to(rotation(), field=SMALL, recipe=[nf.Stage(Nowhere(), nf.Adam(), 20)], ensemble=nf.Members(3))
    assert fit.status == "failed" and "3 failed" in fit.reason and len(fit.members) == 3


def test_members_end_each_for_itself():
    """Members that start close to the optimum stop early and then stay unchanged."""
    watcher = Rows()
    fit = fit_to(
        rotation(), validation=rotation(5, rate=0.8), field=SMALL, ensemble=nf.Members(6), patience=1, chunk_steps=3,
        recipe=cheap(nf.Adam(0.01, schedule="constant"), 400), callbacks=[watcher],
    )  # fmt: skip
    last = {r.member: r.step for r in fit.history}
    assert len(set(last.values())) > 1
    for member, step in last.items():
        state = watcher.state.members[member]
        assert int(state.step) == step
        best = min(r.validation_loss for r in fit.history if r.member == member)
        np.testing.assert_allclose(float(state.best.loss), best, rtol=1e-6)


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_ensemble_resumes_bit_for_bit(after, tmp_path):
    def fit(callback=None):
        recipe = [*cheap(nf.Adam(1e-2), 10), nf.Stage(Quadratic(), nf.LBFGS(memory=3), 10, "second")]
        options = {"field": SMALL, "recipe": recipe, "chunk_steps": 5, "callbacks": [callback]}
        return fit_to(noisy(rotation()), ensemble=nf.Members(3, "both"), **options)

    whole, part, rest = fit(), fit(Stop(tmp_path, after)), fit(GoOn(tmp_path))
    assert part.status == "interrupted"
    assert rows(part.history) + rows(rest.history) == rows(whole.history)
    assert_equal(rest.model, whole.model)


def test_what_varies():
    data = rotation(5)
    fields = {
        vary: [m.field for m in fit_to(data, field=SMALL, ensemble=nf.Members(2, vary), recipe=cheap()).model.members]
        for vary in ("seeds", "data")
    }
    start = [nf.make_model(data, field=SMALL, key=jax.random.split(jax.random.key(s))[0]).field for s in (0, 1)]
    first = lambda field: np.asarray(jax.tree.leaves(eqx.filter(field, eqx.is_array))[0])  # noqa: E731

    def nearest(field):
        return int(np.argmin([np.abs(first(field) - first(other)).max() for other in start]))

    assert [nearest(field) for field in fields["seeds"]] == [0, 1]
    assert [nearest(field) for field in fields["data"]] == [0, 0]
    assert (first(fields["data"][0]) != first(fields["data"][1])).any()


def test_the_best_of_several():
    data, held = noisy(rotation(4)), noisy(rotation(6), seed=1)
    fit = fit_to(data, validation=held, field=SMALL, ensemble=nf.Members(3, keep="best"), recipe=cheap())
    assert isinstance(fit.model, nf.NeuralODE)
    lowest = min(record.validation_loss for record in fit.history)
    loss = np.mean((fit.model.scaler.scale_states(held.ys) - fit.model.scaler.scale_states(fit.predict(held))) ** 2)
    np.testing.assert_allclose(loss, lowest, rtol=1e-4)


@functools.cache
def fresh() -> nf.Dataset:
    return noisy(rotation(40), seed=2)


def test_predictions_are_the_members_mean():
    fit, data = turned(), fresh()
    each = [member.predict(data) for member in fit.model.members]
    np.testing.assert_allclose(fit.predict(data), np.mean(each, axis=0), rtol=1e-4, atol=1e-5)
    narrow, wide = (fit.bands(data, level=level) for level in (0.5, 0.99))
    assert (wide.lower < narrow.lower).all() and (narrow.lower < narrow.ys).all()
    assert (narrow.ys < narrow.upper).all() and (narrow.upper < wide.upper).all()


def test_bands_cover_what_they_promise_of_new_data():
    fit, bands = turned(), turned().bands(fresh())
    assert fit.model.calibrated
    assert 0.8 <= coverage(fresh(), bands.lower, bands.upper) <= 0.97
    doubtful = noisy(fresh(), 0.5, seed=3)
    assert coverage(doubtful, bands.lower, bands.upper) < 0.5


def test_bands_stay_within_bounds():
    ts = np.linspace(0, 3, 10)
    data = nf.Dataset.from_arrays(ts, 0.02 * np.exp(-ts)[:, None], states=("share",))
    options = {"bounds": {"share": (0.0, 1.0)}, "ensemble": nf.Members(3)}
    fit = fit_to(data, field=nf.Linear, recipe=[nf.Stage(nf.DerivativeMatching(), nf.LBFGS(), 3)], **options)
    edges = fit.bands(data, level=0.99)
    assert (edges.lower > 0).all() and (edges.upper < 1).all()


def test_conformal_factors_are_ranks():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 200.0))
    factors = conformal(scores)
    for level in (0.1, 0.5, 0.9, 0.99):
        assert factors[np.searchsorted(BAND_LEVELS, level)] == np.ceil(200 * level)
    assert (conformal(np.full(3, np.inf)) == np.inf).all()


def test_scores_that_are_not_finite_count():
    """A trajectory that can't be predicted is one that the bands miss: the others' bands are wider for it."""
    scores = np.concatenate([np.arange(1.0, 200.0), np.full(100, np.inf)])
    factors = conformal(scores)
    for level, rank in ((0.1, 30), (0.5, 150)):
        assert factors[np.searchsorted(BAND_LEVELS, level)] == rank
    # More than are finite: the largest stands for them.
    assert factors[np.searchsorted(BAND_LEVELS, 0.9)] == 199
    assert (conformal(scores) >= conformal(scores[:199])).all()


def test_an_ensemble_is_saved_and_read(tmp_path):
    fit, data = turned(), fresh()
    fit.save(tmp_path / "model.safetensors")
    read = nf.load(tmp_path / "model.safetensors")
    assert isinstance(read, nf.Ensemble)
    for one, other in zip(vars(read.bands(data)).values(), vars(fit.bands(data)).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_ensemble_that_is_none_is_refused():
    model = turned().model
    for part, value in (("members", ()), ("noise", jnp.zeros(7)), ("members", (1, 2))):
        broken = dataclasses.replace(model)
        object.__setattr__(broken, part, value)
        with pytest.raises(ModelFileError):
            check_model(broken)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": 0}, "size"),
        ({"size": True}, "size"),
        ({"size": 2, "vary": "all"}, "vary"),
        ({"size": 2, "keep": "worst"}, "keep"),
    ],
)
def test_members_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        nf.Members(**options)


def test_one_trajectory_cannot_be_drawn_from():
    with pytest.raises(ValueError, match=r"training\.window"):
        fit_to(rotation(1), field=SMALL, ensemble=nf.Members(2, "data"), **QUICK)


def test_other_levels_are_refused():
    with pytest.raises(ValueError, match="level"):
        turned().bands(rotation(), level=1.0)
