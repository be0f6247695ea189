"""Constants of equations are those of the optimum of all rows that are fitted, whatever else a fit is given."""

import functools
import logging

import jax
import numpy as np
import pytest
from scipy.optimize import least_squares

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.fitting import screening
from node_fit.fitting.resolve import MAX_FITTED_STARTS, resolve
from node_fit.model.initial_state.rule import First
from node_fit.model.initial_state.trained import Fitted
from node_fit.model.make_model import is_equations_alone, made_of, make_model
from node_fit.optimizers.levenberg_marquardt import LevenbergMarquardt
from node_fit.options.recipes import DIRECT_RECIPE
from node_fit.uncertainty.linearization import Information

TS = np.linspace(0.0, 6.0, 31)
DECAY = functools.partial(nf.Known, equations={"y": "-k*y"}, constants={"k": [0.5, 0.0, None]})
X64 = nf.Options(precision="x64")


def decay(seed: int = 3, outlier: float = 0.0) -> nf.Dataset:
    """A decay to a plateau of noise, perhaps with a value far off."""
    ys = 5.0 * np.exp(-1.2 * TS) + 0.1 * np.random.default_rng(seed).standard_normal(31)
    ys[4] += outlier
    return nf.Dataset.from_arrays(TS, ys[:, None], states=["y"])


def optimum_of(data: nf.Dataset, scale: float = 1.0, **options) -> float:
    """SciPy's `k` with the least squares, the start being fitted."""
    ts, ys = data.ts[0][data.mask[0, :, 0]], data.ys[0, data.mask[0, :, 0], 0]
    found = least_squares(lambda x: (x[1] * np.exp(-x[0] * ts) - ys) / scale, [1.0, 5.0], xtol=1e-12, **options)
    return float(found.x[0])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [None, "adam", "lbfgs"])
def test_validation_rows_judge_and_never_pick(optimizer):
    train, validation, _ = nf.Split(validation=0.2, test=0.2)(decay())
    fit = nf.fit(train, validation=validation, field=DECAY, optimizer=optimizer, options=X64)
    assert fit.constants["k"] == pytest.approx(optimum_of(train), rel=1e-5)
    assert "validation" in fit.data and all(record.validation_loss is None for record in fit.history)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [nf.Squares(), nf.Huber(), nf.StudentT()])
def test_a_fit_that_ended_early_is_brought_to_the_optimum_of_its_own_loss(loss):
    data = decay(outlier=2.0)
    start = functools.partial(nf.Fitted, given=None)
    options = nf.Options(precision="x64", loss=loss, start=start, effort="quick", recipe="direct")
    short = nf.fit(data, field=DECAY, training=nf.Training(steps=4), optimizer="lm", options=options)
    assert Information(short.evidence).distance < 0.01
    longer = nf.fit(data, field=DECAY, training=nf.Training(steps=100), optimizer="lm", options=options)
    assert short.constants["k"] == pytest.approx(longer.constants["k"], rel=1e-4)
    if loss.robust:
        assert abs(short.constants["k"] - optimum_of(data)) > 0.02
    else:
        assert short.constants["k"] == pytest.approx(optimum_of(data), rel=1e-4)


@pytest.mark.slow
def test_a_start_measured_late_is_not_the_first_value():
    ts = np.linspace(0.0, 4.0, 41)
    ys = np.stack([3.0 * np.exp(-0.5 * ts), 3.0 * (1 - np.exp(-0.5 * ts))], axis=1)
    ys += 0.01 * np.random.default_rng(0).standard_normal(ys.shape)
    ys[:12, 0] = np.nan
    data = nf.Dataset.from_arrays(ts, ys, states=["x", "p"])
    field = functools.partial(nf.Known, equations={"x": "-k*x", "p": "k*x"}, constants={"k": [0.2, 0.0, None]})
    fit = nf.fit(data, field=field, options=X64)
    interval = fit.confidence().constants["k"]
    assert interval.lower < 0.5 < interval.upper < 0.52


def test_equations_alone_are_fitted_whole_from_fitted_starts_by_least_squares():
    facts = Facts(trajectories=6, rows=3000, longest=500, values=3000, driven=True, inputs="hold", validated=True)
    options = resolve(nf.Options(field=DECAY), facts).options
    assert options.start.keywords == {"given": None} and made_of(options.start) is Fitted
    assert options.training.window is None and options.recipe == DIRECT_RECIPE
    assert isinstance(options.optimizer, LevenbergMarquardt)
    assert not resolve(nf.Options(field=DECAY), facts).identify
    # What was asked for stays, and so does the default of networks.
    asked = resolve(nf.Options(field=DECAY, start="first", optimizer="adam"), facts).options
    assert made_of(asked.start) is First and type(asked.optimizer).__name__ == "Adam"
    many = Facts(trajectories=MAX_FITTED_STARTS + 1, rows=9000, longest=20, values=9000)
    assert made_of(resolve(nf.Options(field=DECAY), many).options.start) is First
    hybrid = functools.partial(nf.Hybrid, equations={"y": "-k*y"}, constants={"k": 1.0})
    assert not is_equations_alone(hybrid) and is_equations_alone(nf.Known) and not is_equations_alone(nf.MLP)
    assert resolve(nf.Options(field=hybrid), facts).options.training.window is not None


def test_starts_of_new_trajectories_are_fitted_to_a_few_rows():
    validation = nf.Dataset.from_arrays([TS, TS], np.ones((2, 31, 1)), states=["y"])
    facts = Facts.of(decay(), validation)
    assert facts.restarted and resolve(nf.Options(field=DECAY), facts).options.start is Fitted
    _, later, _ = nf.Split(validation=0.2, test=0.0)(decay())
    assert not Facts.of(decay(), later).restarted


def test_beginnings_of_a_start_without_constants_have_those_of_the_field_alone():
    start = functools.partial(nf.Stated, values={"y": "5"})
    model = make_model(decay(), field=DECAY, start=start, solver=nf.Solver().for_data(), key=jax.random.key(0))
    assert [group.names for group in screening.constants_of(model)] == [("k",)]


@pytest.mark.slow
def test_a_later_attempt_that_fails_does_not_cost_the_fit_that_is_there(monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("no beginning")

    monkeypatch.setattr("node_fit.fitting.problem.choose_beginnings", fail)
    wrong = functools.partial(nf.Known, equations={"y": "k*y"}, constants={"k": [0.5, 0.0, None]})
    with caplog.at_level(logging.WARNING):
        fit = nf.fit(decay(), field=wrong, options=X64)
    assert fit.status != "failed" and "several starts: no beginning" in caplog.text
