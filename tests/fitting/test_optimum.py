"""Constants of equations are those of the optimum of all rows that are fitted, whatever else a fit is given."""

import functools
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from helpers.evidence import LinearEvidence, LinearStage
from scipy.optimize import least_squares

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.evaluation.metrics import score_values
from node_fit.fitting import screening
from node_fit.fitting.optimum import search_optimum
from node_fit.fitting.problem import FitProblem
from node_fit.fitting.resolve import MAX_FITTED_STARTS, resolve
from node_fit.model.initial_state.rule import First
from node_fit.model.initial_state.trained import Fitted
from node_fit.model.make_model import is_equations_alone, make_model, maker_class
from node_fit.optimizers.levenberg_marquardt import LevenbergMarquardt
from node_fit.options.recipes import DIRECT_RECIPE
from node_fit.training.programs import SumOfSquares
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
    assert options.start.keywords == {"given": None} and maker_class(options.start) is Fitted
    assert options.training.window is None and options.recipe == DIRECT_RECIPE
    assert isinstance(options.optimizer, LevenbergMarquardt)
    assert not resolve(nf.Options(field=DECAY), facts).identify
    # What was asked for stays, and so does the default of networks.
    asked = resolve(nf.Options(field=DECAY, start="first", optimizer="adam"), facts).options
    assert maker_class(asked.start) is First and type(asked.optimizer).__name__ == "Adam"
    many = Facts(trajectories=MAX_FITTED_STARTS + 1, rows=9000, longest=20, values=9000)
    assert maker_class(resolve(nf.Options(field=DECAY), many).options.start) is First
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


def bent(x: np.ndarray) -> SumOfSquares:
    """Residuals of a decay that are not linear in its rate, with their Jacobian."""
    ts = np.linspace(0.0, 3.0, 9)
    ys = 2.0 * np.exp(-0.7 * ts) + 0.01 * np.cos(9 * ts)
    model = x[1] * np.exp(-x[0] * ts)
    return SumOfSquares((model - ys)[None], np.stack([-ts * model, np.exp(-x[0] * ts)], axis=1), np.zeros(2), 0)


def evidence_at(x: np.ndarray, **options) -> LinearEvidence:
    evidence = LinearEvidence(np.eye(9)[:, :2], np.zeros(9), {"k": (None, None)}, **options)
    evidence.at = bent
    evidence.stage = LinearStage(np.asarray(x, float), bent)
    return evidence


def test_the_search_ends_where_the_gradient_of_the_loss_is_zero():
    for loss, spread in ((nf.Squares(), None), (nf.Huber(0.5), 0.01), (nf.StudentT(2.0), 0.01)):
        evidence = evidence_at([0.5, 1.5], loss=loss, spread=spread)
        x = search_optimum(evidence)
        found = bent(x)
        scaled = found.residuals[0] / (spread or 1.0)
        gradient = found.jacobian.T @ loss.influence(scaled)[0]
        start = bent(np.array([0.5, 1.5]))
        before = start.jacobian.T @ loss.influence(start.residuals[0] / (spread or 1.0))[0]
        assert np.abs(gradient).max() < 1e-3 * np.abs(before).max()
        assert evidence_at(x, loss=loss, spread=spread).misfit < evidence.misfit


def test_residuals_of_a_robust_loss_are_those_whose_squares_it_sums():
    evidence = evidence_at([0.5, 1.5], loss=nf.Huber(1.0), spread=0.05)
    z = bent(evidence.x).residuals[0] / 0.05
    rho = np.where(np.abs(z) <= 1, z**2 / 2, np.abs(z) - 0.5)
    assert evidence.misfit == pytest.approx(2 * 0.05**2 * rho.sum())


def test_only_equations_alone_are_not_picked_by_validation_data():
    rows, known = decay(), make_model(decay(), field=DECAY, key=jax.random.key(0))
    for model, picking in ((known, None), (Mock(field=object()), rows)):
        assert FitProblem.selection_data.fget(SimpleNamespace(model=model, validation=rows)) is picking


def test_rows_that_a_fitted_start_was_trained_on_count():
    data = nf.Dataset.from_arrays(TS, np.ones((31, 1)), states=["y"])
    model = make_model(data, field=DECAY, start=nf.Fitted, key=jax.random.key(0))
    assert score_values(model, data).mask.sum() == 21 and score_values(model, data, trained=True).mask.sum() == 31
    first = make_model(data, field=DECAY, key=jax.random.key(0))
    assert score_values(first, data, trained=True).mask.sum() == 30


@pytest.mark.slow
def test_constants_that_rounding_moves_are_at_their_optimum():
    """Without noise, standard errors are less than what single precision tells apart."""
    ts, w = np.linspace(0, 8, 41), np.sqrt(2.2 - 0.25**2)
    x = np.exp(-0.25 * ts) * (np.cos(w * ts) + 0.25 / w * np.sin(w * ts))
    v = -2.2 / w * np.exp(-0.25 * ts) * np.sin(w * ts)
    data = nf.Dataset.from_arrays(ts, np.stack([x, v], axis=1)[None], states=["x", "v"])
    constants = {"k": [1.8, 0, None], "c": [0.7, 0, None]}
    fit = nf.fit(data, field=functools.partial(nf.Known, equations={"x": "v", "v": "-k*x - c*v"}, constants=constants))
    assert fit.constants["k"] == pytest.approx(2.2, rel=1e-5) and fit.constants["c"] == pytest.approx(0.5, rel=1e-5)
    assert fit.diagnose().kind == "good", fit.diagnose().sentence
