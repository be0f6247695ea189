"""Blocks of the data are predicted by models that have not seen them, which tells what to expect on new data."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

import node_fit as nf
from node_fit.evaluation.diagnosis import diagnose
from node_fit.evaluation.new_data import HeldOut
from node_fit.fitting import left_out
from node_fit.fitting.problem import build_problem
from node_fit.fitting.train import train as solve
from node_fit.training.callback import Callback


def lagging(rows=400):
    """A noisy record of a first-order lag that steps drive."""
    rng = np.random.default_rng(0)
    us = np.repeat(rng.normal(size=(80, 1)), 5, axis=0)
    ys = lfilter([0.1], [1, -0.9], np.tanh(us), axis=0) + 0.01 * rng.normal(size=us.shape)
    return nf.Dataset.from_arrays(np.arange(400.0)[:rows], ys[:rows], us[:rows], states=("y",), inputs=("u",))


@pytest.fixture(scope="module")
def chosen():
    """Few steps of a network in windows, with a prior."""
    splits = lagging().split(test=0.0)
    return nf.fit(
        splits.train,
        validation=splits.validation,
        field=nf.MLP,
        start=nf.First,
        training=nf.Training(window=25, stride=10, steps=20, chunk_steps=5),
        options=nf.Options(effort="quick", penalty=nf.Penalty(ridge=0.01), recipe="direct"),
        progress=False,
    )


def anew(options, rows):
    return solve([build_problem(options, rows, None)], [Callback()])[0]


class Told(Callback):
    def __init__(self):
        self.trials = []

    def on_trial(self, what):
        self.trials.append(what)


@pytest.mark.slow
@pytest.mark.long
def test_each_block_is_predicted_by_a_model_that_has_not_seen_it(chosen):
    seen, told = [], Told()

    def note(options, rows):
        seen.append((options, rows))
        return anew(options, rows)

    fit = left_out.predict_left_out(chosen, note, told)
    assert len(fit.left_out) == len(seen) == len(told.trials) == 8 and fit.model is chosen.model
    assert "2 of 8" in told.trials[1] and fit.train_seconds > chosen.train_seconds
    whole = lagging()
    covered = np.zeros(400, int)
    for (options, rows), part in zip(seen, fit.left_out, strict=True):
        absent = ~rows.scored[0]
        assert absent.sum() == 50 and part.data.ts.shape == (1, 50)
        np.testing.assert_array_equal(part.data.ts[0], rows.ts[0, absent])
        np.testing.assert_array_equal(rows.ys, whole.ys)
        # The first row gives the start.
        assert part.data.mask.sum() == 49
        assert options.penalty.ridge == chosen.options.penalty.ridge and options.training.window == 25
        covered += absent
    assert (covered == 1).all()
    case = fit.assess(gate=False).case
    assert case.expected.groups == 8 and "blocks left out in turn" in diagnose(case).sentence


def test_of_many_rows_each_model_does_without_two_blocks(chosen, monkeypatch):
    monkeypatch.setattr(left_out, "ROWS_OF_ONE_BLOCK", 399)
    seen = []
    fit = left_out.predict_left_out(chosen, lambda options, rows: seen.append(rows) or chosen, Callback())
    assert len(seen) == 4 and len(fit.left_out) == 8
    assert [float(part.data.ts[0, 0]) for part in fit.left_out] == [0, 200, 50, 250, 100, 300, 150, 350]
    for number, rows in enumerate(seen):
        absent = np.flatnonzero(~rows.scored[0])
        np.testing.assert_array_equal(
            absent, np.r_[50 * number : 50 * number + 50, 200 + 50 * number : 250 + 50 * number]
        )


@pytest.mark.slow
def test_the_models_of_blocks_share_their_programs(chosen):
    compiled = []

    def note(options, rows):
        compiled.append((fit := anew(options, rows)).compiles + fit.cached)
        return fit

    left_out.predict_left_out(chosen, note, Callback())
    assert compiled[1:7] == [0] * 6, compiled


def test_a_fit_is_trained_as_long_as_validation_data_liked_it(chosen):
    """A run that is resumed has the state at its end, and not the losses before."""
    best = min(chosen.history, key=lambda record: record.judged_loss)
    assert chosen.steps_to_best == best.step
    assert left_out.options_of_folds(replace(chosen, history=[], steps_to_best=15)).training.steps == 15
    assert left_out.options_of_folds(replace(chosen, steps_to_best=0)).training.steps == 100


def test_many_trajectories_are_left_out_in_groups():
    data = nf.Dataset.from_arrays([np.arange(20.0)] * 10, [np.ones((20, 1))] * 10, states=("y",))
    blocks = left_out.make_folds(data, 10, 1)
    assert [[row for row, _, _ in block.pieces] for block in blocks] == [
        [0, 1],
        [2, 3],
        *([row] for row in range(4, 10)),
    ]
    assert blocks[0].rows[:2].all() and not blocks[0].rows[2:].any()
    assert len(left_out.make_folds(data.select([0, 1, 2, 3, 4]), 10, 1)) == 5


def test_few_trajectories_are_left_out_in_stretches_of_enough_rows():
    data = nf.Dataset.from_arrays([np.arange(64.0)] * 2, [np.ones((64, 1))] * 2, states=("y",))
    eight = left_out.make_folds(data, 2, 2)
    assert len(eight) == 8 and eight[1].pieces == [(0, 8, 16), (1, 8, 16)]
    assert eight[1].rows[:, 8:16].all() and eight[1].rows.sum() == 16
    four = left_out.make_folds(data, 3, 5)
    assert [block.pieces[0] for block in four] == [(0, 0, 15), (0, 15, 30), (0, 30, 45), (0, 45, 60)]
    assert left_out.make_folds(data, 2, 6) == [], "blocks of 16 rows tell nothing of starts of six"


def test_records_that_were_cut_in_time_are_whole_again(chosen):
    whole = left_out.all_rows(chosen)
    assert whole.ts.shape == (1, 400) and whole.scored.all()
    apart = replace(chosen, data={**chosen.data, "validation": lagging(80)})
    assert len(left_out.all_rows(apart)) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda fit: replace(fit, data={"train": fit.data["train"]}),
        lambda fit: replace(fit, options=fit.options.with_ridge(0.0)),
        lambda fit: replace(fit, horizon=50),
        lambda fit: replace(fit, status="interrupted"),
    ],
    ids=["nothing held out", "no prior", "windows of chaos", "interrupted"],
)
def test_other_fits_are_left_as_they_are(chosen, change):
    fit = change(chosen)
    assert left_out.predict_left_out(fit, lambda *_: pytest.fail("trained"), Callback()) is fit


def test_long_records_are_left_as_they_are(chosen, monkeypatch):
    monkeypatch.setattr(left_out, "MOST_ROWS_LEFT_OUT", 399)
    assert left_out.predict_left_out(chosen, lambda *_: pytest.fail("trained"), Callback()) is chosen


def raises(error):
    def attempt(*_):
        raise error

    return attempt


def test_a_fit_is_never_lost_to_what_is_said_of_it(chosen, caplog):
    with caplog.at_level(logging.WARNING):
        assert left_out.predict_left_out(chosen, raises(ValueError("no room")), Callback()) is chosen
    assert "no room" in caplog.text
    assert left_out.predict_left_out(chosen, lambda *_: replace(chosen, status="failed"), Callback()) is chosen
    ended = left_out.predict_left_out(chosen, raises(KeyboardInterrupt("by SIGTERM")), Callback())
    assert ended.status == "interrupted" and ended.reason == "by SIGTERM" and ended.model is chosen.model


def test_errors_are_no_noise_where_blocks_left_out_show_more(chosen):
    """Training and validation data may be at the noise, and what no model has seen far above it."""
    whole = lagging()
    smooth = np.convolve(whole.ys[0, :, 0], np.ones(5) / 5, "same")[None, :, None]
    case = replace(chosen, history=[]).assess(gate=False).case
    exact = {
        name: part.ys + 0.01 * np.random.default_rng(1).normal(size=part.ys.shape) for name, part in case.splits.items()
    }
    case = replace(case, predicted=exact, rivals={})
    near, far = (HeldOut(whole, whole.ys + size * np.sign(smooth)) for size in (0.01, 0.05))
    assert (
        replace(case, left_out=(near,) * 4).is_all_noise
        and not replace(case, left_out=(near, near, far, far)).is_all_noise
    )
