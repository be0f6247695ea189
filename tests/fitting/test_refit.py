"""Validation data are given back to a model that they have chosen, and their scores stay those of the model before."""

from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest
from scipy.signal import lfilter

import node_fit as nf
from node_fit.fitting import refit
from node_fit.fitting.problem import build_problem, pooled_error
from node_fit.fitting.train import train as solve
from node_fit.training.callback import Callback


class Told(Callback):
    def __init__(self):
        self.attempts = []

    def on_attempt(self, name, why):
        self.attempts.append(name)


def lagging(rows, begin=0):
    """A part of a noisy record of a first-order lag that steps drive."""
    rng = np.random.default_rng(0)
    us = np.repeat(rng.normal(size=(80, 1)), 5, axis=0)
    ys = lfilter([0.1], [1, -0.9], np.tanh(us), axis=0) + 0.01 * rng.normal(size=us.shape)
    part = slice(begin, begin + rows)
    return nf.Dataset.from_arrays(np.arange(400.0)[part], ys[part], us[part], states=("y",), inputs=("u",))


@pytest.fixture(scope="module")
def first():
    """Few steps of a network in windows, with a prior."""
    training = nf.Training(window=25, stride=10, steps=20, chunk_steps=5)
    options = nf.Options(effort="quick", penalty=nf.Penalty(ridge=0.01), recipe="direct")
    return nf.fit(
        lagging(200),
        validation=lagging(100, 200),
        field=nf.MLP,
        start=nf.First,
        training=training,
        options=options,
        progress=False,
    )


def go_on(options, rows, model):
    return solve([build_problem(options, rows, None, earlier=model)], [Callback()])[0]


@pytest.fixture(scope="module")
def last(first):
    return refit.refit_to_all(first, go_on, Callback())


def test_a_model_is_trained_further_on_all_rows(first, last):
    assert last.validated is first.model and not eqx.tree_equal(last.model, first.model)
    assert pooled_error(last.model, first.data) < pooled_error(first.model, first.data)
    assert last.data is first.data and last.choices[-1].key == "refit"
    assert last.train_seconds > first.train_seconds and last.compiles + last.cached > first.compiles + first.cached


def test_all_rows_are_those_of_training_and_validation_with_the_settled_prior(first):
    seen = []
    refit.refit_to_all(first, lambda *given: seen.append(given) or first, Callback())
    ((options, rows, model),) = seen
    assert rows.mask.sum() == 300 and model is first.model
    assert options.penalty == first.options.penalty and options.training.window == 25 and options.training.steps == 100


@pytest.mark.parametrize("level", [None, 0.9])
def test_validation_scores_are_those_of_the_model_before(first, last, level):
    test = lagging(100, 300)
    before, after = (fit.assess({**first.data, "test": test}, level, gate=False) for fit in (first, last))
    assert after.scores["validation"].nrmse == pytest.approx(before.scores["validation"].nrmse, rel=1e-5)
    assert after.scores["train"].nrmse == pytest.approx(last.score(first.data["train"]).nrmse, rel=1e-3)
    assert after.scores["train"].nrmse != pytest.approx(before.scores["train"].nrmse, rel=1e-3)
    assert after.scores["test"].nrmse == pytest.approx(last.score(test).nrmse, rel=1e-3)
    if level is not None:
        drawn, old = after.simulated, before.simulated
        np.testing.assert_allclose(drawn.dense["validation"][1], old.dense["validation"][1], rtol=1e-4, atol=1e-5)
        assert not np.allclose(drawn.dense["train"][1], old.dense["train"][1], rtol=1e-4, atol=1e-5)


def test_the_verdict_is_not_on_the_training_before(first, last):
    """Validation losses that rose there say nothing of a model that was trained on these rows, too."""
    records = [replace(first.history[0], step=step, validation_loss=loss) for step, loss in ((1, 0.01), (2, 1.0))]
    old, new = (replace(fit, history=records, status="completed").assess(gate=False).case for fit in (first, last))
    assert list(old.history) == records and not new.history


def test_a_model_that_is_worse_on_all_rows_is_not_kept(first):
    weights = eqx.filter(first.model.field, eqx.is_inexact_array)
    spoilt = replace(first, model=replace(first.model, field=eqx.apply_updates(first.model.field, weights)))
    kept = refit.refit_to_all(first, lambda *_: spoilt, Callback())
    assert kept.model is first.model and kept.validated is None
    assert kept.choices[-1] == refit.KEPT_BEFORE and kept.train_seconds == 2 * first.train_seconds


def test_a_model_that_runs_away_is_not_kept(first, last, monkeypatch):
    monkeypatch.setattr(nf.Fit, "find_escape", lambda self, train: None if self.model is first.model else "away")
    assert refit.refit_to_all(first, lambda *_: last, Callback()).validated is None
    monkeypatch.setattr(nf.Fit, "find_escape", lambda self, train: "away")
    assert refit.refit_to_all(first, lambda *_: last, Callback()).validated is first.model


def raises(error):
    def attempt(*_):
        raise error

    return attempt


def test_a_fit_is_never_lost_to_a_later_one(first, caplog):
    kept = refit.refit_to_all(first, raises(ValueError("no room")), Callback())
    assert kept is first and "no room" in caplog.text
    assert refit.refit_to_all(first, lambda *_: replace(first, status="failed"), Callback()).validated is None
    for go in (
        raises(KeyboardInterrupt("by SIGTERM")),
        lambda *_: replace(first, status="interrupted", reason="by me"),
    ):
        ended = refit.refit_to_all(first, go, Callback())
        assert ended.status == "interrupted" and ended.model is first.model and ended.validated is None


@pytest.mark.parametrize(
    "change",
    [
        lambda fit: replace(fit, data={"train": fit.data["train"]}),
        lambda fit: replace(fit, options=fit.options.with_ridge(0.0)),
        lambda fit: replace(fit, options=replace(fit.options, training=nf.Training(window=None))),
        lambda fit: replace(fit, horizon=50),
        lambda fit: replace(fit, status="failed"),
        lambda fit: replace(fit, status="interrupted"),
        lambda fit: replace(fit, linear=fit.model),
        lambda fit: replace(fit, options=replace(fit.options, ensemble=nf.Members(4, vary="laplace"))),
    ],
    ids=[
        "no validation",
        "no prior",
        "whole trajectories",
        "chaos",
        "failed",
        "interrupted",
        "linear",
        "laplace",
    ],
)
def test_other_fits_are_as_they_were(first, change):
    told, fit = Told(), change(first)
    assert refit.refit_to_all(fit, go_on, told) is fit and not told.attempts
