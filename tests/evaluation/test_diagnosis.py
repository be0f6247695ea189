"""The diagnosis of a fit: each kind, from data that produce it."""

import dataclasses
import functools
import logging
import time

import jax
import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, rotation
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.data.interpolation import noise_levels
from node_fit.data.scaling import Scaler
from node_fit.evaluation.advice import Untried, advise, more_training
from node_fit.evaluation.baselines import predict_baselines
from node_fit.evaluation.case import Case, estimate_noise_of, is_noise
from node_fit.evaluation.chaos import ChaosScores
from node_fit.evaluation.diagnosis import diagnose
from node_fit.evaluation.metrics import score_predictions
from node_fit.evaluation.outliers import find_apart, find_outlying_residuals
from node_fit.evaluation.stability import Escape
from node_fit.fitting.problem import build_problem
from node_fit.fitting.resolve import Choice
from node_fit.training.callback import Record


def record(loss, step=100, stage="main"):
    return Record(step, stage, loss, None, 0.0, 1.0, 100, 0, 1.0)


STALLED = [record(0.1), record(0.0999, 200)]


def said(predicted, data=None, status="converged", history=STALLED, validation=None, validated=None):
    data = data or rotation()
    splits, predictions = {"train": data}, {"train": predicted}
    if validation is not None:
        splits["validation"], predictions["validation"] = validation, validated
    return diagnose(Case(status, history, splits, predictions))


def test_good():
    data = rotation()
    assert said(data.ys + 1e-3).kind == "good"


@pytest.mark.parametrize(
    ("equation", "sentence"),
    [
        ("-k*sqrt(x)", "sqrt(x) in the equation of x has no value where x is below 0, and it has come to 0.2: write "
         "sqrt(maximum(x, 0))"),
        ("-k*x^0.5", "x**0.5 in the equation of x has no value where x is below 0, and it has come to 0.2: write "
         "maximum(x, 0)**0.5"),
        ("k*log(x)", "write log(maximum(x, 1e-6))"),
        ("-k*x^2", "check the scale of the data and the solver"),
        ("-k*sqrt(x + 5)", "check the scale of the data and the solver"),
    ],
)  # fmt: skip
def test_a_failed_fit_says_when_and_at_which_root(equation, sentence):
    ts = np.arange(8.0)
    data = nf.Dataset.from_arrays(ts, np.maximum(1.0 - 0.2 * ts, 0)[:, None], states=["x"])
    predicted = np.where(ts < 5, 1.0 - 0.2 * ts, np.nan)[None, :, None]
    options = nf.Options(field=functools.partial(nf.Known, equations={"x": equation}, constants={"k": 0.2}))
    found = diagnose(Case("failed", STALLED, {"train": data}, {"train": predicted}, options=options))
    assert found.kind == "failed"
    assert "trajectory '0' can't be simulated beyond t = 4" in found.sentence
    assert sentence in found.sentence


@pytest.mark.parametrize(("distribution", "helps"), [(0.1, False), (2.0, True), (np.inf, True)])
def test_chaos_has_a_verdict_of_its_own(distribution, helps):
    data = rotation()
    chaos = ChaosScores(4.0, 2.0, distribution, 0.1, 0.1)

    def of(predicted):
        return diagnose(Case("converged", STALLED, {"train": data}, {"train": predicted}, chaos=chaos))

    found = of(data.ys + 1e-3)
    assert found.kind == "chaotic" and "valid for 4 (2 Lyapunov times)" in found.sentence
    assert ("longer record" in found.sentence) == helps
    assert of(0 * data.ys).kind == "flat"


def test_nothing_is_advised_that_was_tried():
    """Keys of attempts count as chosen."""
    data = rotation()

    def of(predicted, options, chosen):
        return diagnose(Case("converged", STALLED, {"train": data}, {"train": predicted}, {}, options, 0.0, chosen))

    network, still = nf.Options(), np.zeros_like(data.ys)
    assert "training.window" in of(still, network, ()).sentence
    assert "training.window" not in of(still, network, {"training.window"}).sentence
    known = nf.Options(field=nf.Known(equations={"x": "-a*x", "y": "-a*y"}, constants={"a": 1.0}))
    assert all(key in of(still, known, ()).sentence for key in ("restarts=8", "start=fitted"))
    after = of(still, known, {"restarts", "start"}).sentence
    assert "restarts=8" not in after and "start=fitted" not in after and "field=hybrid" in after


def test_flat():
    data = rotation()
    flat = said(np.zeros_like(data.ys) + data.ys.mean(axis=(0, 1)))
    assert flat.kind == "flat" and "shorter windows first" in flat.sentence
    direct = nf.Options(recipe="direct")
    straight = diagnose(Case("converged", STALLED, {"train": data}, {"train": data.ys * 0}, options=direct))
    assert "try recipe=default" in straight.sentence
    after_all = said(np.zeros_like(data.ys), history=[record(1.0, stage="derivative"), *STALLED])
    assert "shorter windows first" in after_all.sentence


def test_unstable_names_the_trajectory_and_the_time():
    data = rotation()
    broken = data.ys.copy()
    broken[1, 7:] = np.inf
    found = said(broken)
    assert found.kind == "unstable"
    assert f"'1' can't be simulated beyond t = {data.ts[1, 6]:g}" in found.sentence


def test_the_advice_names_the_steps_that_ran():
    stages = [nf.Stage(nf.TrajectoryMatching(), nf.LBFGS(), steps=600, name="mine")]
    assert "stage mine (they were 600)" in more_training(nf.Options(recipe=stages))
    assert "training.steps (they were 70)" in more_training(nf.Options(training=nf.Training(steps=70)))


def test_unfinished():
    data = rotation()
    falling = [record(0.2), record(0.1, 200)]
    assert said(data.ys + 0.1, status="completed", history=falling).kind == "unfinished"
    assert said(data.ys + 0.1, status="converged", history=falling).kind != "unfinished"


def test_the_last_records_are_those_of_one_member():
    """Records of members take turns; the best one has stalled, and the other's loss is ten times as large."""
    data = rotation()
    other = [dataclasses.replace(record(loss), member=1) for loss in (1.0, 0.9)]
    stalled, falling = [record(0.1), record(0.0999, 200)], [record(0.2), record(0.1, 200)]
    for history in ([other[0], stalled[0], other[1], stalled[1]], [stalled[0], other[0], stalled[1], other[1]]):
        assert said(data.ys + 0.1, status="completed", history=history).kind != "unfinished"
    for history in ([other[0], falling[0], other[1], falling[1]], [falling[0], other[0], falling[1], other[1]]):
        assert said(data.ys + 0.1, status="completed", history=history).kind == "unfinished"


def test_the_best_member_is_that_of_the_last_stage():
    """Losses of an earlier stage belong to another objective."""
    data = rotation()
    first = [record(1e-9, stage="derivative"), dataclasses.replace(record(1e-3, stage="derivative"), member=1)]
    last = [
        dataclasses.replace(record(loss), member=member) for loss, member in ((1.0, 0), (0.2, 1), (0.9, 0), (0.2, 1))
    ]
    assert said(data.ys + 0.1, status="completed", history=first + last).kind != "unfinished"


def test_steps_that_are_too_few_are_named():
    data = rotation()
    options = nf.Options(solver=nf.Solver(max_steps=8))

    def of(predicted, excess):
        return diagnose(Case("completed", STALLED, {"train": data}, {"train": predicted}, {}, options, excess))

    found = of(0 * data.ys, 2e4)
    assert found.kind == "coarse" and "solver.max_steps=8" in found.sentence and "20000 times" in found.sentence
    assert of(0 * data.ys, 2.0).kind == "flat"
    assert of(data.ys + 1e-3, 2e4).kind == "good"
    unstable = of(np.full_like(data.ys, np.inf), 2e4)
    assert unstable.kind == "unstable" and "solver.max_steps=8" in unstable.sentence


FAST = {"solver": nf.Solver(rtol=1e-6, max_steps=8), "recipe": "direct", "ridge": 0.0, "steps": 4, "chunk_steps": 2}


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 2])
def test_held_steps_that_may_be_no_more_are_warned_of(caplog, members):
    data = rotation(times=40, rate=8.0)
    with caplog.at_level(logging.WARNING):
        coarse = {**FAST, "solver": nf.Solver(rtol=1e-8, max_steps=8)}
        fit = fit_to(data, field=nf.Linear, optimizer=nf.LBFGS(), ensemble=members, **coarse)
    assert fit.step_excess > 1e3
    assert caplog.text.count("solver.max_steps=8") == 1
    assert "solver.max_steps=8" in fit.diagnose().sentence
    caplog.clear()
    enough = fit_to(data, field=nf.Linear, **{**FAST, "solver": nf.Solver(rtol=1e-6)})
    assert enough.step_excess == 0 and "max_steps" not in caplog.text


@pytest.mark.slow
def test_steps_between_rows_that_may_be_no_more_are_warned_of(caplog):
    data = rotation(times=12, rate=8.0)
    us = np.sin(5 * data.ts)[..., None]
    driven = nf.Dataset.from_arrays(data.ts, data.ys, us, states=("x", "y"), inputs=("u",))
    with caplog.at_level(logging.WARNING):
        fit = fit_to(driven, field=nf.Linear, **{**FAST, "solver": nf.Solver(rtol=1e-8, max_steps=2)})
    assert fit.step_excess > 10
    assert caplog.text.count("solver.max_steps=2") == 1


def test_overfitted():
    data = rotation()
    assert said(data.ys + 1e-3, validation=data, validated=data.ys + 0.3).kind == "overfitted"
    assert said(data.ys + 1e-3, validation=data, validated=data.ys + 1e-3).kind == "good"


def test_a_prior_that_was_chosen_is_not_advised_against():
    data = rotation()
    splits, predicted = {"train": data, "test": data}, {"train": data.ys + 1e-3, "test": data.ys + 0.3}
    advice = {
        chosen: diagnose(Case("converged", STALLED, splits, predicted, chosen=chosen)).sentence
        for chosen in [(), ("penalty.ridge",)]
    }
    assert "a prior (penalty.ridge=0.1)" in advice[()]
    chosen = advice["penalty.ridge",]
    assert "a prior" not in chosen and "more data" in chosen and "penalty.ridge was chosen by the data" in chosen


def test_limited_by_noise():
    clean = rotation(times=60)
    noise = 0.1 * np.random.default_rng(0).normal(size=clean.ys.shape)
    data = nf.Dataset.from_arrays(clean.ts[0], clean.ys + noise)
    assert said(clean.ys, data).kind == "noise-limited"
    assert said(data.ys, clean).kind != "noise-limited"


@pytest.mark.parametrize(("times", "kind"), [(1.5, "noise-limited"), (2.7, "good")])
def test_errors_held_out_that_exceed_the_noise_are_no_noise(times, kind):
    clean = rotation(times=60)
    noise = 0.05 * np.random.default_rng(0).normal(size=clean.ys.shape)
    data = nf.Dataset.from_arrays(clean.ts[0], clean.ys + noise)
    found = said(clean.ys, data, validation=data, validated=data.ys + times * noise)
    assert found.kind == kind
    if kind == "good":
        assert "that on validation data is 2.7 times that on training data" in found.sentence


@pytest.mark.parametrize(("rows", "kind"), [(20, "noise-limited"), (300, "good")])
def test_a_network_is_not_at_the_noise_where_new_data_surely_show_more(rows, kind):
    """Errors held out of 1.7 times the noise may be chance in few rows; the few constants of a law follow no noise."""
    clean = rotation(times=300)
    noise = 0.05 * np.random.default_rng(0).normal(size=clean.ys.shape)
    data = nf.Dataset.from_arrays(clean.ts[0], clean.ys + noise)
    held = dataclasses.replace(data, scored=data.scored & (np.arange(300) < rows))
    splits, predicted = {"train": data, "test": held}, {"train": clean.ys, "test": data.ys + 1.7 * noise}
    case = Case("converged", STALLED, splits, predicted)
    assert diagnose(case).kind == kind
    assert diagnose(dataclasses.replace(case, penalised=False)).kind == "noise-limited"


@pytest.mark.parametrize(("size", "is_at_rest"), [(1.0, False), (0.1, True)])
def test_errors_name_their_unit_if_held_out_data_are_at_rest(size, is_at_rest):
    """The table beside the verdict has errors relative to the spread of each split."""
    data = rotation()
    held = dataclasses.replace(data, ys=size * data.ys)
    found = said(data.ys + 1e-3, data, validation=held, validated=held.ys + 1e-3)
    assert found.kind == "good" and ("data, relative to the spread of all data" in found.sentence) is is_at_rest


def test_a_good_fit_is_compared_with_the_best_simple_model():
    data = rotation()
    splits, predicted = {"train": data, "test": data}, {"train": data.ys + 1e-3, "test": data.ys + 1e-3}
    rivals = {name: predict_baselines(data, data) for name in splits}
    found = diagnose(Case("completed", STALLED, splits, predicted, rivals))
    assert found.kind == "good"
    best = min((score_predictions(data, ys) for ys in rivals["test"].values()), key=lambda each: each.nrmse)
    assert f"has {best.nrmse:.2g} on test data" in found.sentence and "a linear ODE" in found.sentence


def test_held_out_limits_show_no_better_model():
    """Any prediction beyond the limits is right there, that of a simple model as well."""
    data = rotation()
    limits = dataclasses.replace(data, ys=np.full_like(data.ys, -2.0), censored=np.ones(data.ys.shape, int))
    splits, predicted = {"train": data, "test": limits}, {"train": data.ys + 1e-3, "test": data.ys}
    found = diagnose(Case("completed", STALLED, splits, predicted, {"test": predict_baselines(data, limits)}))
    assert found.kind == "good" and "does as well" not in found.sentence
    assert found.sentence.endswith("All values of the test data are limits, which tell little.")
    partly = dataclasses.replace(limits, censored=(np.arange(data.ys.shape[1]) > 3)[None, :, None] * limits.censored)
    assert "limits" not in diagnose(Case("completed", STALLED, {**splits, "test": partly}, predicted)).sentence


@pytest.fixture(scope="module")
def turning() -> nf.Fit:
    return fit_to(rotation(), field=nf.Linear, steps=50, precision="x64")


@pytest.mark.slow
def test_a_fit_that_was_interrupted_is_judged_as_far_as_it_came(turning):
    cut = dataclasses.replace(turning, status="interrupted")
    assert cut.diagnose().sentence == f"so far {turning.diagnose().sentence}"


def test_known_noise_counts():
    """The residuals are as large as the first standard deviation, and ten times the second."""
    clean = rotation(times=6, rate=4.0)
    ys = clean.ys + 0.3 * np.random.default_rng(0).normal(size=clean.ys.shape)
    for sigma, limited in ((0.3, True), (0.03, False)):
        data = nf.Dataset.from_arrays(clean.ts[0], ys, states=("x", "y"), sigma=sigma)
        assert is_noise(data, clean.ys, nf.Options()) == limited
        # The deviation of a state of data.log is that of its logarithm.
        positive = dataclasses.replace(data, ys=np.exp(data.ys))
        logarithmic = nf.Options(scaling=nf.Scaling(log=("x", "y")))
        assert is_noise(positive, np.exp(clean.ys), logarithmic) == limited


def test_noise_of_logarithms_is_that_of_large_and_small_values():
    """At 5 % noise, an error of half of the small values is no noise, though it is far below that of the large ones."""
    rng, ts = np.random.default_rng(0), np.linspace(0, 8, 80)
    clean = (100 * np.exp(-ts))[None, :, None]
    data = nf.Dataset.from_arrays(ts, (clean * np.exp(0.05 * rng.normal(size=clean.shape)))[0], states=("x",))
    logarithmic = nf.Options(scaling=nf.Scaling(log=("x",)))
    assert is_noise(data, clean, logarithmic)
    for wrong in (clean + 0.5 * clean * (clean < 1), clean * 1.2):
        assert not is_noise(data, wrong, logarithmic)
    assert is_noise(data, clean + 0.5 * clean * (clean < 1), nf.Options(), noise=np.array([2.0]))
    assert estimate_noise_of(data, logarithmic) == pytest.approx(0.05, rel=0.3)


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


@pytest.mark.slow
def test_a_fit_says_what_it_has_come_to(turning):
    assert turning.diagnose(rotation()).kind == "good"


@pytest.mark.parametrize(
    ("trajectories", "times", "field", "ridge"),
    [(1, 10, SMALL, 0.01), (3, 12, SMALL, 0.0), (3, 12, nf.MLP, 0.01), (20, 12, nf.MLP, 0.0), (1, 10, nf.Linear, 0.0)],
    ids=["42 weights, 20 values", "42, 72", "4482, 72", "4482, 480", "4, 20"],
)
def test_a_network_of_more_weights_than_a_short_record_has_values_gets_a_prior(trajectories, times, field, ridge):
    problem = build_problem(nf.Options(field=field), rotation(trajectories, times), None)
    assert problem.ridges == (ridge,)
    assert [each.key for each in problem.choices] == (["penalty.ridge"] if ridge else [])
    given = build_problem(nf.Options(field=field, penalty=nf.Penalty(ridge=0.5)), rotation(trajectories, times), None)
    assert given.ridges == (0.5,) and not given.choices


@pytest.mark.slow
def test_short_noisy_records_get_a_prior_by_themselves():
    """On fifteen noisy points of a slow decay, a large network forecasts better with the chosen prior."""
    rng = np.random.default_rng(3)
    ts = np.linspace(0, 3, 15)
    truth = np.stack([np.exp(-0.5 * ts) * np.cos(2 * ts), -np.exp(-0.5 * ts) * np.sin(2 * ts)], axis=1)
    data = nf.Dataset.from_arrays(ts, truth + 0.1 * rng.normal(size=truth.shape))

    class Notes(nf.Callback):
        def on_fit_start(self, model, notes):
            self.notes = notes

    notes = Notes()
    fit = fit_to(data, field=functools.partial(nf.MLP, width=16), steps=50, precision="x64", callbacks=[notes])
    assert notes.notes[0].startswith("penalty.ridge=0.01: 30 values do not determine")
    assert "penalty.ridge" not in fit.assess().case.chosen, "no data have judged it, so that others may be advised"
    told = Notes()
    fit_to(data, field=SMALL, steps=5, ridge=0.5, precision="x64", callbacks=[told])
    assert not told.notes


# What is said must be true.


def held_out(train, predicted, test, tested, **more):
    """The verdict on training and test data with these predictions."""
    return diagnose(
        Case("converged", STALLED, {"train": train, "test": test}, {"train": predicted, "test": tested}, **more)
    )


def series(ys, ts=None, **more):
    """One record of the state x."""
    ts = np.arange(len(ys), dtype=float) if ts is None else ts
    return nf.Dataset.from_arrays(ts, np.asarray(ys, float)[:, None], states=("x",), **more)


def known(equation="-k*x", **constants):
    return functools.partial(nf.Known, equations={"x": equation}, constants=constants or {"k": [0.5, 0.0, None]})


def test_a_share_that_is_not_a_number_decides_nothing():
    """A test set of one row has no spread."""
    train, test = rotation(), rotation(1).until(0.1)
    assert np.isnan(score_predictions(test, test.ys + 0.01).r2)
    found = held_out(train, train.ys + 0.03, test, test.ys + 0.03)
    assert found.kind == "good" and "nan" not in found.sentence
    assert held_out(train, train.ys + 0.03, test, test.ys + 0.9).kind in ("overfitted", "poor")
    empty = dataclasses.replace(train, scored=np.zeros_like(train.scored))
    assert held_out(train, train.ys + 0.03, empty, empty.ys).kind == "good"


def test_a_prior_is_advised_for_networks_only():
    data = rotation()
    runaway = np.full_like(data.ys, np.inf)
    best = {"test": {"mean": data.ys + 1e-4}}
    cases = {"poor": data.ys + 0.3, "unstable": runaway, "beaten": data.ys + 0.3}
    for kind, tested in cases.items():
        rivals = best if kind == "beaten" else {}
        without = held_out(
            data, data.ys + 1e-2, data, tested, rivals=rivals, penalised=False, options=nf.Options(field=known())
        )
        assert (without.kind, "ridge" in without.sentence) == (kind, False), without
        assert "ridge" in held_out(data, data.ys + 1e-2, data, tested, rivals=rivals).sentence


def test_three_constants_do_not_overfit():
    """A fit of equations at R² 0.95 held out, and far better in training."""
    data = rotation()
    options = nf.Options(field=known())
    tested = data.ys + np.sqrt(0.049) * data.ys.std(axis=(0, 1))
    found = held_out(data, data.ys + 1e-2, data, tested, options=options, penalised=False)
    assert found.kind == "good" and "times that on training" in found.sentence
    assert held_out(data, data.ys + 1e-2, data, tested).kind == "overfitted"


def test_equations_that_leave_smooth_residuals_are_wrong_and_do_not_lack_rows():
    """A linear spring fitted to a pendulum of 48 rows without noise."""
    data = rotation(1, 48)
    smooth = 0.1 * data.ys.std(axis=(0, 1)) * np.sin(3 * data.ts)[..., None]
    arguments = (data, data.ys + smooth, data, data.ys + 1.2)
    scaler = nf.make_model(data, field=nf.Linear, key=jax.random.key(0)).scaler
    equations = held_out(*arguments, options=nf.Options(field=known()), penalised=False, scaler=scaler)
    assert equations.kind in ("poor", "beaten") and "the equations may be wrong" in equations.sentence
    assert "longer record" not in equations.sentence


@pytest.mark.parametrize(("times", "kind"), [(1.5, "noise-limited"), (5.0, "overfitted")])
def test_a_tail_is_judged_by_the_noise(times, kind):
    """The end of a decay hardly varies, so its own spread is about the noise."""
    rng, ts = np.random.default_rng(0), np.linspace(0, 6, 60)
    noise = 0.05 * rng.normal(size=60)
    truth = 2 * np.exp(-ts)
    data = series(truth + noise, ts, sigma=0.05)
    train, test = data.until(4.0), data.score_after(4.0)
    assert score_predictions(test, truth[None, :, None]).r2 < 0.9
    assert held_out(train, truth[None, :40, None], test, data.ys - times * noise[None, :, None]).kind == kind


@pytest.mark.parametrize(("error", "good"), [(0.02, True), (0.2, False)])
def test_a_small_error_of_a_tail_counts_in_the_spread_of_training(error, good):
    """Four times the noise, and more than the tail varies, but a thirtieth of what the training data do."""
    rng, ts = np.random.default_rng(0), np.linspace(0, 6, 60)
    truth = 2 * np.exp(-ts)
    data = series(truth + 0.005 * rng.normal(size=60), ts, sigma=0.005)
    train, test = data.until(4.0), data.score_after(4.0)
    options = nf.Options(field=known())
    predicted = truth[None, :, None] + error
    found = held_out(train, truth[None, :40, None], test, predicted, options=options, penalised=False)
    assert (found.kind == "good") == good, found


def test_little_held_out_data_count_in_the_spread_of_training():
    """Two rows that differ by 0.03, predicted up to 0.02, after training data of spread 0.7."""
    train, test = rotation(1, 12), series([0.50, 0.53])
    whole = nf.Dataset.from_arrays(train.ts[0], train.ys[..., :1], states=("x",))
    assert score_predictions(test, test.ys + np.array([[0.02], [-0.02]])).r2 < 0.5
    assert held_out(whole, whole.ys + 0.01, test, test.ys + np.array([[0.02], [-0.02]])).kind == "good"
    assert held_out(whole, whole.ys + 0.01, test, test.ys + np.array([[0.4], [-0.4]])).kind != "good"


def test_each_residual_is_weighed_by_its_own_deviation():
    """Ten deviations in the sure half of the rows; pooled, they would drown in the other half's noise."""
    clean = rotation(1, 40)
    sigma = np.where(np.arange(40) < 20, 0.5, 0.01)[:, None] * np.ones(2)
    data = nf.Dataset.from_arrays(clean.ts[0], clean.ys[0], states=("x", "y"), sigma=sigma)
    assert is_noise(data, data.ys + sigma, nf.Options())
    assert not is_noise(data, data.ys + np.where(sigma > 0.1, 0.1, 0.1), nf.Options())


def test_noise_is_independent():
    """A slow wave of the size of the noise is no noise, whatever its size."""
    data = dataclasses.replace(rotation(1, 200), sigma=np.full((1, 200, 2), 0.1))
    scaler = nf.make_model(data, field=nf.Linear, key=jax.random.key(0)).scaler
    chance = 0.1 * np.random.default_rng(0).normal(size=data.ys.shape)
    wave = 0.1 * np.sin(4 * data.ts)[..., None]
    kinds = {
        each: diagnose(Case("converged", STALLED, {"train": data}, {"train": data.ys + left}, scaler=scaler)).kind
        for each, left in (("chance", chance), ("wave", wave))
    }
    assert kinds == {"chance": "noise-limited", "wave": "close"}


def test_more_hidden_states_are_not_advised_after_they_were_tried():
    data, predicted = pendulum_with(0.6)
    fits = {
        tried: Case("converged", STALLED, {"train": data}, {"train": predicted}, enough_hidden=tried)
        for tried in (False, True)
    }
    said = {tried: diagnose(case).sentence for tried, case in fits.items()}
    assert (
        "hidden=1" in said[False] and "more hidden states were no better" in said[True] and "hidden=" not in said[True]
    )
    flat = {"train": np.zeros_like(predicted)}
    found = diagnose(Case("converged", STALLED, {"train": data}, flat, enough_hidden=True))
    assert found.kind == "flat" and "hidden states were tried" in found.sentence and "hidden=" not in found.sentence


def pendulum_with(left):
    data = rotation(2, 200, rate=4.0)
    return data, data.ys + left * np.roll(data.ys, 1, axis=2)


@pytest.mark.parametrize("size", [0.6, 1.2])
def test_wrong_equations_are_no_hidden_states(size):
    """All states are measured, and past rows predict the residuals: the equations are wrong, or the start is."""
    data, predicted = pendulum_with(size)
    split = {"train": data}, {"train": predicted}
    equations = {"x": "a*y", "y": "-a*x"}
    field = functools.partial(nf.Known, equations=equations, constants={"a": 1.0})
    options = nf.Options(field=field)
    found = diagnose(Case("converged", STALLED, *split, options=options, penalised=False))
    assert found.kind == ("poor" if size < 1 else "flat")
    assert "equations" in found.sentence and "start" in found.sentence and "hidden" not in found.sentence
    assert "equations" not in diagnose(Case("converged", STALLED, *split)).sentence


@pytest.mark.parametrize(("size", "lost"), [(0.6, False), (0.8, True)])
def test_a_simulation_that_has_lost_the_phase_may_want_shorter_windows(size, lost):
    """Past rows predict its residuals, which are mostly the data, whether or not a state is hidden."""
    data, predicted = pendulum_with(size)
    said = diagnose(Case("converged", STALLED, {"train": data}, {"train": predicted})).sentence
    assert said.startswith("poor") and "hidden=1" in said and ("shorter windows" in said) == lost


def test_advice_is_not_the_contrary_of_a_warning():
    """What past rows do not predict may be a random walk, whose neighbours depend on each other."""
    data = rotation(2, 200, rate=4.0)
    left = np.random.default_rng(0).normal(size=data.ys.shape)
    said = [advise(nf.Options(), data, data.ys + left, overfits=False, misfit=each) for each in (None, "they depend")]
    assert [("past rows" in each) for each in said] == [True, False]


def epidemic(infected):
    """Times, shares of susceptible and infected people, and the equations."""
    ts, equations = np.linspace(0, 30, 31), {"S": "-beta*S*I", "I": "beta*S*I - gamma*I"}
    rates = lambda t, y: [-0.9 * y[0] * y[1], 0.9 * y[0] * y[1] - 0.3 * y[1]]  # noqa: E731
    ys = solve_ivp(rates, (0, 30), [1 - infected, infected], t_eval=ts, rtol=1e-9).y.T
    constants = {"beta": [0.5, 0.0, None], "gamma": [0.2, 0.0, None]}
    return ts, ys, functools.partial(nf.Known, equations=equations, constants=constants)


@pytest.mark.slow
def test_a_wrong_start_is_not_put_on_the_constants():
    """An epidemic whose first row says nobody is ill: nothing moves, so no constant matters, from this start."""
    ts, ys, field = epidemic(0.01)
    ys[0, 1] = 0.0
    wrong = nf.Dataset.from_arrays(ts, ys, states=("S", "I"))
    fit = fit_to(wrong, field=field, steps=20, recipe="direct", precision="x64", start=nf.First)
    found, sure = fit.diagnose(), fit.confidence()
    assert found.kind == "flat" and "stands still" in found.sentence and "start=fitted" in found.sentence
    (said,) = sure.undetermined
    assert "not determined" not in said and "start" in said
    fitted = fit_to(wrong, field=field, steps=200, recipe="direct", precision="x64", start=nf.Fitted)
    assert "(row 1 of trajectory '0'" in fitted.diagnose().sentence and not fitted.confidence().undetermined


def test_a_constant_column_is_not_good():
    data = series(np.full(12, 3.0))
    for predicted in (data.ys, data.ys + 1e-7):
        found = diagnose(Case("converged", STALLED, {"train": data}, {"train": predicted}))
        assert (
            found.kind == "flat" and "constant in the training data" in found.sentence and "nan" not in found.sentence
        )


def test_a_right_model_is_not_tied_at_rest():
    """Where nothing moves any more, the last known value is as near as the truth."""
    ts, rng = np.arange(60.0), np.random.default_rng(0)
    exact = np.exp(-0.15 * ts)
    noisy = exact + 0.015 * rng.normal(size=60)
    train, test = series(noisy[:40], ts[:40]), series(noisy[40:], ts[40:])
    predicted = exact[:40, None][None], exact[40:, None][None] + 0.015
    assert score_predictions(test, predicted[1]).nrmse > 1
    close = {"test": {"persistence": scaled_errors(test, predicted[1], 1.02)}}
    assert held_out(train, predicted[0], test, predicted[1], rivals=close).kind in ("good", "noise-limited")
    off = exact[40:, None][None] + 0.2  # A fifth of what moved before is no small error.
    close = {"test": {"persistence": scaled_errors(test, off, 1.02)}}
    assert held_out(train, predicted[0], test, off, rivals=close).kind == "tied"


def scaled_errors(data, predicted, factor):
    """Predictions whose errors are so many times as large."""
    return data.ys + factor * (predicted - data.ys)


@pytest.mark.parametrize(("rows", "kind"), [(12, "good"), (2000, "beaten")])
def test_a_simple_model_is_ahead_by_more_than_chance(rows, kind):
    """Squared errors that differ by a tenth on average, and by more from row to row."""
    data, rng = series(np.sin(0.5 * np.arange(rows))), np.random.default_rng(0)
    own, other = (data.ys + size * rng.normal(size=data.ys.shape) for size in (0.1, 0.092))
    assert held_out(data, own, data, own, rivals={"test": {"linear": other}}).kind == kind


def test_what_ties_with_a_simple_model_says_so():
    data = rotation()
    predicted = data.ys + 0.05
    for name, kind in (("mean", "tied"), ("persistence", "tied"), ("linear", "good"), ("state-space", "good")):
        close, far = ({"test": {name: scaled_errors(data, predicted, factor)}} for factor in (1.05, 2.0))
        found = held_out(data, predicted, data, predicted, rivals=close)
        assert (found.kind, "does as well" in found.sentence) == (kind, True)
        assert ("field=linear" in found.sentence) == (kind == "good")
        assert "does as well" not in held_out(data, predicted, data, predicted, rivals=far).sentence
    close, linear = {"test": {"linear": scaled_errors(data, predicted, 1.05)}}, nf.Options(field=nf.Linear)
    assert "as well" not in held_out(data, predicted, data, predicted, rivals=close, options=linear).sentence


def test_what_is_predicted_well_and_by_nothing_else_is_not_overfitted():
    """R² 0.998 held out, five times better than the best simple model, and better still in training."""
    data = rotation()
    tested = data.ys + np.sqrt(0.002) * data.ys.std(axis=(0, 1))
    assert score_predictions(data, tested).r2 == pytest.approx(0.998)
    for times, kind in ((5.0, "good"), (1.5, "overfitted")):
        rivals = {"test": {"linear": scaled_errors(data, tested, times)}}
        assert held_out(data, data.ys + 2e-3, data, tested, rivals=rivals).kind == kind


def test_test_data_outside_the_range_of_training_are_named():
    train, test = series(np.linspace(0, 2, 30)), series(np.linspace(1, 5.3, 30))
    said = held_out(train, train.ys + 0.02, test, test.ys + 0.02).sentence
    assert said.endswith("The test data leave the range of the training data: x reaches 5.3 (trained on 0 to 2).")
    inside = series(np.linspace(0, 2.1, 30))
    assert "range" not in held_out(train, train.ys + 0.02, inside, inside.ys + 0.02).sentence


@pytest.mark.slow
def test_a_verdict_has_one_door(turning):
    """What a run says is what `diagnose` says of its splits."""
    assert not hasattr(nf.Fit, "judge")
    data, fit = rotation(), turning
    splits = {"train": data, "test": rotation(rate=1.1)}
    report = fit.assess(splits)
    assert fit.diagnose(splits) == report.verdict
    assert len(report.frame()) == sum(part.lengths.sum() for part in splits.values())
    assert fit.assess(splits, level=0.9).simulated.level == 0.9
    for name, part in splits.items():
        assert report.scores[name] == fit.score(part)
        assert report.baselines[name] == fit.simple_scores(data, part)
        assert report.residuals[name].as_dict() == fit.check_residuals(part).as_dict()
    assert "test data" in fit.diagnose(splits).sentence and fit.diagnose(data) == fit.diagnose()


def scaler_of(data):
    return Scaler.from_dataset(data)


def of_law(data, predicted, **more):
    """The verdict on equations without a network."""
    more = {"options": nf.Options(field=known()), "penalised": False, "scaler": scaler_of(data), **more}
    return diagnose(Case("converged", STALLED, {"train": data}, {"train": predicted}, **more))


def test_a_plateau_held_out_is_judged_in_the_spread_of_all_data():
    """A decay that has ended before the test rows, where its error is a fifth of what moved there, and the noise."""
    rng, ts = np.random.default_rng(1), np.linspace(0, 12, 60)
    exact = 5 * np.exp(-1.2 * ts)
    data = series(exact + 0.02 * rng.normal(size=60), ts)
    train, test = data.until(6.0), data.score_after(6.0)
    tested = exact[None, :, None]
    assert score_predictions(test, tested).nrmse > 0.9
    found = held_out(
        train, tested[:, : train.ts.shape[1]], test, tested, options=nf.Options(field=known()), penalised=False
    )
    assert found.kind == "good" and "times that on training" not in found.sentence
    assert "0.01" in found.sentence and " 1 on test" not in found.sentence


def test_a_law_at_the_noise_is_limited_by_it_whatever_its_share_of_the_variance():
    """Few rows, and noise as large as the motion: nothing says that another law would do better."""
    ts = np.linspace(0, 4, 15)
    exact = np.exp(-0.2 * ts)
    kinds = []
    for seed in range(20):
        data = series(exact + 0.4 * np.random.default_rng(seed).normal(size=15), ts)
        kinds.append(of_law(data, exact[None, :, None]).kind)
    assert kinds.count("noise-limited") >= 19


@pytest.mark.parametrize(("rows", "noise", "few"), [(12, 0.8, True), (12, 0.1, False), (60, 0.8, False)])
def test_few_rows_do_not_tell_noise_from_what_equations_lack(rows, noise, few):
    """Of 12 rows whose noise is most of the variance; of little noise, and of 60 rows, the residuals tell."""
    ts = np.linspace(0, 6, rows)
    data = series(np.exp(-ts) + noise * np.random.default_rng(0).normal(size=rows), ts)
    found = of_law(data, np.exp(-ts)[None, :, None])
    assert found.kind == "noise-limited"
    assert ("too few to tell it from what equations lack" in found.sentence) == few
    assert ("only more data would help" in found.sentence) != few


@pytest.mark.parametrize(("share", "kind"), [(0.0, "noise-limited"), (0.1, "misfit"), (3e-4, "good")])
def test_what_a_law_leaves_does_not_depend_on_an_input(share, kind):
    """The input is new in each row, so neighbours are independent; tiny errors, as of interpolation, are none."""
    rng, ts = np.random.default_rng(2), np.linspace(0, 6, 60)
    us, exact = rng.uniform(-1, 1, 60), 2 * np.exp(-ts)
    noise = 0.15 * rng.standard_normal(60) if share == 0 else 0.1 * share * rng.standard_normal(60)
    data = dataclasses.replace(series(exact + noise + share * us, ts), us=us[None, :, None], inputs=("u",))
    found = of_law(data, exact[None, :, None])
    assert found.kind == kind
    assert ("depend on the input u" in found.sentence) == (kind == "misfit")


def test_what_a_law_leaves_is_noise_or_it_is_wrong():
    """R² 0.99, and residuals whose neighbours are alike; of a network, the same is close."""
    ts = np.linspace(0, 6, 60)
    data = series(2 * np.exp(-ts) + 0.01 * np.random.default_rng(0).normal(size=60), ts)
    off = data.ys + 0.05 * np.sin(ts)[None, :, None]
    found = of_law(data, off)
    assert found.kind == "misfit" and "neighbouring residuals depend on each other" in found.sentence
    assert "the equations may be wrong" in found.sentence
    assert of_law(data, off, options=nf.Options(), penalised=True).kind == "close"
    found = of_law(data, off, has_found_equations=True)
    assert found.kind == "close" and "the equations may be wrong" not in found.sentence
    assert of_law(data, 2 * np.exp(-ts)[None, :, None]).kind == "good"


@pytest.mark.slow
def test_a_fit_says_whether_its_equations_were_found():
    ts = np.linspace(0, 6, 60)
    data = series(2 * np.exp(-ts) + 0.1 * np.sin(3 * ts), ts)
    fit = fit_to(data, field=known(), start="first", steps=5, recipe="direct", effort="quick", progress=False)
    assert fit.diagnose().kind == "misfit"
    found = dataclasses.replace(fit, choices=(Choice("field", "sparse", "found an equation"),))
    assert found.diagnose().kind == "close"


def test_errors_of_the_solver_are_no_misfit():
    ts = np.linspace(0, 6, 60)
    data = series(2 * np.exp(-ts), ts)
    assert of_law(data, data.ys + 1e-4 * np.sin(ts)[None, :, None]).kind == "good"


def test_pooled_groups_are_not_good():
    """Two strains as one law: half of the trajectories lie above it, and half below."""
    rng, ts = np.random.default_rng(0), np.linspace(0, 5, 8)
    rates = np.where(np.arange(6) < 3, 0.7, 0.9)[:, None]
    ys = 3 * np.exp(-rates * ts) + 0.02 * rng.normal(size=(6, 8))
    data = nf.Dataset.from_arrays(ts, ys[..., None], states=["x"])
    pooled = np.broadcast_to(3 * np.exp(-0.8 * ts), ys.shape)[..., None].copy()
    found = of_law(data, pooled)
    assert found.kind == "misfit" and "the residuals of trajectories differ by more than chance" in found.sentence
    assert "data.covariates" in found.sentence and "(random)" in found.sentence
    assert of_law(data, 3 * np.exp(-rates * ts)[..., None]).kind in ("good", "noise-limited")


def test_a_model_that_runs_away_is_unstable_whatever_its_fit():
    data = rotation()
    escape = Escape("x", 2e6, -1.0, 1.0)

    def of(found, predicted):
        return diagnose(Case("converged", STALLED, {"train": data}, {"train": predicted}, escape=lambda: found))

    found = of(escape, data.ys + 1e-3)
    assert found.kind == "unstable" and "x reaches 2e+06 (measured: -1 to 1)" in found.sentence
    assert of(None, data.ys + 1e-3).kind == "good" and of(escape, 0.6 * data.ys).kind == "poor"


def with_outlier(rows=40):
    ts = np.linspace(0, 6, rows)
    exact = 2 * np.exp(-0.3 * ts)
    ys = exact + 0.02 * np.random.default_rng(0).normal(size=rows)
    ys[rows // 2] = 0.1 * exact[rows // 2]
    return series(ys, ts), exact[None, :, None]


def test_a_robust_loss_has_robust_scores_and_names_what_lies_apart():
    data, exact = with_outlier()
    assert score_predictions(data, exact).nrmse > 0.2
    found = of_law(data, exact, options=nf.Options(field=known(), loss="student"))
    assert found.kind in ("good", "noise-limited")
    named = f"x = {data.ys[0, 20, 0]:.3g} at t = {data.ts[0, 20]:g} (row 21 of trajectory '0'"
    assert "Far from all other values lies " + named in found.sentence
    squares = of_law(data, exact)
    assert squares.kind in ("misfit", "poor") and named in squares.sentence and "loss=student" in squares.sentence


def test_what_lies_apart_is_larger_than_the_known_residuals_beside_it_in_its_trajectory():
    column = np.array([[9.0, 1.0, 1.0, 9.0], [1.0, 9.0, np.nan, 9.0], [5.0, 9.0, 1.0, -9.0]])
    far = np.abs(column) > 8
    assert find_apart(column, far).tolist() == [0, 3, 11]
    assert find_apart(np.full((1, 3), np.nan), np.zeros((1, 3), bool)).tolist() == []
    many = np.tile([1.0, 9.0], 100_000)[None]
    began = time.process_time()
    assert find_apart(many, many > 8).size == 100_000
    assert time.process_time() - began < 1


def test_noise_is_rarely_said_to_lie_apart():
    draws = [series(np.random.default_rng(seed).normal(size=30)) for seed in range(100)]
    scaler, flat = Scaler.from_dataset(draws[0], identity=True), np.zeros((1, 30, 1))
    assert sum(bool(find_outlying_residuals(data, flat, scaler)) for data in draws) <= 1


def test_training_that_made_validation_worse_is_not_unfinished():
    """The training loss still fell, and the validation loss has risen since the first chunk."""
    data = rotation()

    def history(validation):
        losses = zip((0.3, 0.28, 0.24), validation, (100, 200, 300), strict=True)
        return [dataclasses.replace(record(loss, step), validation_loss=held) for loss, held, step in losses]

    adam = nf.Options(optimizer=nf.Adam(learning_rate=0.03))
    worse = Case("completed", history((0.026, 0.1, 0.2)), {"train": data}, {"train": data.ys + 0.3}, options=adam)
    found = diagnose(worse)
    assert found.kind == "worsened" and "from 0.026 to 0.2" in found.sentence
    assert "optimizer.learning_rate=0.003" in found.sentence and "optimizer=lbfgs" in found.sentence
    better = dataclasses.replace(worse, history=history((0.2, 0.1, 0.05)))
    assert diagnose(better).kind == "unfinished"
    # A beginning that is good stays good.
    good = diagnose(dataclasses.replace(worse, predicted={"train": data.ys + 0.1}))
    assert good.kind == "good"
    assert "Training raised the validation loss from 0.026 to 0.2, so that its beginning is kept." in good.sentence


def test_what_beats_a_fit_comes_before_how_it_was_trained():
    """A fit whose loss still falls, or has risen, is beaten, tied or overfitted all the same, and the advice knows."""
    data = rotation()
    falling = [record(loss, 100 * (at + 1)) for at, loss in enumerate((0.4, 0.3, 0.2))]
    rising = [
        dataclasses.replace(each, validation_loss=held) for each, held in zip(falling, (0.02, 0.1, 0.2), strict=True)
    ]
    splits = {"train": data, "validation": data}
    off = {"train": data.ys + 0.1, "validation": data.ys + 0.4}
    linear, mean = {"linear": data.ys + 0.01}, {"mean": data.ys + 0.41}
    for history in (falling, rising):
        case = Case("completed", history, splits, {**off, "train": data.ys + 0.3}, {"validation": linear})
        assert diagnose(case).kind == "beaten"
        assert "training.steps" in diagnose(dataclasses.replace(case, history=falling)).sentence
        assert diagnose(dataclasses.replace(case, rivals={"validation": mean})).kind == "tied"
        assert diagnose(dataclasses.replace(case, rivals={}, predicted=off)).kind == "overfitted"
        flat = {role: np.zeros_like(data.ys) for role in splits}
        assert diagnose(dataclasses.replace(case, predicted=flat)).kind in ("unfinished", "worsened")


def test_unfinished_training_is_not_put_on_hidden_states():
    """All steps were used, at a rate that ended at zero: the last chunks fell less, and past rows predict the rest."""
    data, predicted = pendulum_with(0.6)
    losses = (0.34, 0.28, 0.267, 0.237, 0.228, 0.223)
    history = [record(loss, 100 * (at + 1)) for at, loss in enumerate(losses)]
    case = Case("completed", history, {"train": data}, {"train": predicted})
    found = diagnose(case)
    assert found.kind == "unfinished" and "hidden" not in found.sentence and "training.steps" in found.sentence
    # A fit that had come to rest lacks something else.
    stalled = [record(loss, 100 * (at + 1)) for at, loss in enumerate((0.34, 0.24, 0.224, 0.224, 0.224, 0.223))]
    assert "hidden=1" in diagnose(dataclasses.replace(case, history=stalled)).sentence


def test_advice_names_nothing_that_the_run_has():
    """Of each setting that advice may name: it is named to a plain run, and not to one that has it or has tried it."""
    named = {
        "hidden=1 start=encoder": ({"hidden": 1, "start": nf.Encoder}, lambda untried: untried.more_hidden()),
        "training.window=20": ({"training": nf.Training(window=20)}, lambda untried: untried.shorter_windows(20)),
        "penalty.ridge=0.1": ({"penalty": nf.Penalty(ridge=0.1)}, lambda untried: untried.prior()),
        "field.width=16": ({"field": functools.partial(nf.MLP, width=16)}, lambda untried: untried.smaller_network()),
        "start=fitted": ({"field": known(), "start": nf.Fitted}, lambda untried: untried.other_equations()),
        "restarts=8": ({"field": known(), "restarts": 8}, lambda untried: untried.other_equations()),
    }
    for text, (given, advice) in named.items():
        plain = {"field": given["field"]} if "known" in str(given.get("field")).lower() else {}
        assert text in (advice(Untried(nf.Options(**plain))) or ""), text
        assert f"{text} " not in f"{advice(Untried(nf.Options(**given)))} ".replace(";", " ").replace(")", " "), text
    assert Untried(nf.Options(training=nf.Training(window=5))).shorter_windows(20) is None
    tried = Untried(nf.Options(), ("penalty.ridge", "training.window", "field.width"))
    assert tried.prior() is tried.shorter_windows(20) is tried.smaller_network() is None


def test_a_flat_fit_with_a_hidden_state_is_not_told_to_take_one():
    data = rotation()
    options = nf.Options(hidden=1, start=nf.Encoder)
    found = diagnose(Case("converged", STALLED, {"train": data}, {"train": 0 * data.ys}, options=options))
    assert found.kind == "flat" and "hidden=2" in found.sentence and "start=encoder" not in found.sentence


def test_a_true_law_is_not_beaten_by_the_best_of_several_models():
    """Three models, each of which forecasts noise of its own beside the truth, on two held-out parts."""
    ts = np.arange(12.0)
    kinds = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        parts = {name: series(np.sin(0.5 * ts) + 0.2 * rng.normal(size=12)) for name in ("train", "validation", "test")}
        predicted = {name: np.sin(0.5 * ts)[None, :, None] + 0.06 * rng.normal(size=(1, 12, 1)) for name in parts}
        rivals = {
            name: {kind: np.sin(0.5 * ts)[None, :, None] + 0.06 * rng.normal(size=(1, 12, 1)) for kind in "abc"}
            for name in parts
        }
        kinds.append(diagnose(Case("converged", STALLED, parts, predicted, rivals, penalised=False)).kind)
    assert kinds.count("beaten") <= 1


def test_the_spread_of_all_data_is_their_standard_deviation():
    """Also where the parts move little around different levels."""
    ts, rng = np.linspace(0, 6, 40), np.random.default_rng(0)
    train, test = series(5 + 0.1 * rng.normal(size=40), ts), series(1 + 0.1 * rng.normal(size=40), ts)
    splits = {"train": train, "test": test}
    case = Case("converged", STALLED, splits, {name: data.ys for name, data in splits.items()})
    assert case.spread == pytest.approx(np.concatenate([train.ys, test.ys], axis=1).std(axis=(0, 1)), rel=0.01)
