"""A whole fit of a population: estimates, individuals, predictions, storage, tests of effects, and what is refused."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import node_fit
from node_fit.population.effects import Coordinate
from node_fit.population.fit import PopulationFit
from node_fit.population.prediction import bin_times
from node_fit.population.storage import write_population

SUBJECTS = 40


@pytest.fixture(scope="module")
def study():
    """Decays from a start that differs, too, at a rate that depends on a weight, with a little additive noise."""
    rng = np.random.default_rng(2)
    ts = np.linspace(0, 4, 6)
    weight = rng.uniform(50, 90, SUBJECTS)
    rates = 0.6 * (weight / 70) ** 0.75 * np.exp(0.3 * rng.standard_normal(SUBJECTS))
    starts = 8.0 * np.exp(0.2 * rng.standard_normal(SUBJECTS))
    ys = starts[:, None] * np.exp(-rates[:, None] * ts) + 0.1 * rng.standard_normal((SUBJECTS, len(ts)))
    us = np.broadcast_to(weight[:, None, None], (SUBJECTS, len(ts), 1))
    return node_fit.Dataset.from_arrays(ts, ys[..., None], us, states=["y"], inputs=["weight"]), rates, starts


def make_fit(data, random=("k", "y0"), **settings):
    field = functools.partial(node_fit.Known, equations={"y": "-k*(weight/70)^0.75*y"}, constants={"k": 1.0})
    start = functools.partial(node_fit.Stated, values={"y": "y0"}, constants={"y0": 5.0})
    settings = node_fit.MixedEffects(**settings)
    return node_fit.fit_population(data, random=list(random), field=field, start=start, population=settings)


@pytest.fixture(scope="module")
def fit(study):
    return make_fit(study[0])


@pytest.mark.slow
def test_estimates_are_those_of_the_simulation(fit, study):
    _, _, starts = study
    assert fit.status == "converged" and fit.distance < 1e-4
    for name, true in (("k", 0.6), ("y0", 8.0)):
        each = fit.fixed[name]
        assert each.lower < true < each.upper
        assert each.error < 0.1 * true
    assert fit.variances["k"].value == pytest.approx(0.09, rel=0.4)
    assert fit.variances["y0"].value == pytest.approx(0.04, rel=0.5)
    assert fit.noise["y"]["additive"].value == pytest.approx(0.1, rel=0.15)
    assert all(each < 0.1 for each in fit.shrinkage.values())
    np.testing.assert_allclose(fit.individuals["y0"], starts, rtol=0.1)
    content = fit.population
    assert {"objective", "fixed", "variances", "noise", "shrinkage", "method"} <= set(content)
    assert "condition number" in repr(fit)


@pytest.mark.slow
def test_standard_errors_follow_from_the_information(fit):
    """Doubling the data halves the variances of all estimates, for subjects that are alike."""
    twice = node_fit.Dataset.from_arrays(
        fit.data.ts[0],
        np.concatenate([fit.data.ys] * 2),
        np.concatenate([fit.data.us] * 2),
        states=["y"],
        inputs=["weight"],
    )
    larger = make_fit(twice)
    assert larger.objective == pytest.approx(2 * fit.objective, rel=1e-6)
    np.testing.assert_allclose(np.diag(larger.estimate_covariance), np.diag(fit.estimate_covariance) / 2, rtol=1e-3)


@pytest.mark.slow
def test_sandwich_is_near_the_information_of_a_right_model(fit):
    """And is what the gradients of the subjects say, each of which is not zero while their sum is."""
    sandwich = replace(fit, settings=replace(fit.settings, errors="sandwich"))
    slopes, inverse = fit.optimum.slopes, np.linalg.inv(fit.hessian)
    assert np.abs(slopes.sum(axis=0)).max() < 1e-3 < np.abs(slopes).max(axis=0).min()
    np.testing.assert_allclose(sandwich.estimate_covariance, inverse @ slopes.T @ slopes @ inverse, rtol=1e-8)
    ratio = np.sqrt(np.diag(sandwich.estimate_covariance) / np.diag(fit.estimate_covariance))
    assert ((ratio > 0.6) & (ratio < 1.6)).all() and np.abs(ratio - 1).max() > 1e-3
    assert sandwich.fixed["k"].error != fit.fixed["k"].error and sandwich.status == "converged"


@pytest.mark.slow
def test_subjects_are_predicted_by_what_is_known_of_them(fit, study):
    data, _, _ = study
    empty = node_fit.Dataset.from_arrays(
        data.ts[0],
        np.full_like(data.ys[:1], np.nan),
        data.us[:1],
        states=["y"],
        inputs=["weight"],
        trajectories=["new"],
    )
    first = data.ys[:1].copy()
    first[:, 3:] = np.nan
    few = node_fit.Dataset.from_arrays(
        data.ts[0], first, data.us[:1], states=["y"], inputs=["weight"], trajectories=["other"]
    )
    known = node_fit.Dataset.from_arrays(
        data.ts[0],
        np.full_like(data.ys[:1], np.nan),
        data.us[:1],
        states=["y"],
        inputs=["weight"],
        trajectories=[data.trajectories[0]],
    )
    found = {each.ways[0]: each for each in (fit.predict(part) for part in (empty, few, known))}
    assert set(found) == {"population", "measured", "known"}
    errors = {way: np.abs(each.ys - data.ys[0]).mean() for way, each in found.items()}
    widths = {way: (each.upper - each.lower).mean() for way, each in found.items()}
    assert errors["known"] < 0.2 and errors["measured"] < errors["population"]
    assert widths["known"] <= 1.1 * widths["measured"] < 0.5 * widths["population"]
    assert list(found["known"].frame()["from"]) == ["known"] * 6


@pytest.mark.slow
def test_stored_population_predicts_the_same(fit, study, tmp_path):
    write_population(fit.known, tmp_path)
    again = node_fit.read_population(tmp_path)
    np.testing.assert_allclose(again.predict(study[0]).ys, fit.predict(study[0]).ys, rtol=1e-10)
    path = tmp_path / "population.json"
    path.write_text(path.read_text().replace('"focei"', '"magic"'))
    with pytest.raises(ValueError, match="restore the file"):
        node_fit.read_population(tmp_path)


@pytest.mark.slow
def test_predictive_check_holds_the_data(fit):
    assert fit.check_by_simulation().inside > 0.8


@pytest.mark.long
@pytest.mark.slow
def test_effect_that_the_data_do_not_tell_is_named_and_tested(study):
    """All subjects start at the same value: the variance of its effect goes to zero, and nothing is lost without it."""
    data, rates, _ = study
    rng = np.random.default_rng(3)
    ys = 8.0 * np.exp(-rates[:, None] * data.ts[0]) + 0.1 * rng.standard_normal(data.ys.shape[:2])
    same = node_fit.Dataset.from_arrays(data.ts[0], ys[..., None], data.us, states=["y"], inputs=["weight"])
    fit = make_fit(same)
    assert fit.unidentified_effects == ["y0"]
    test = fit.compare_without("y0")
    assert test.p > 0.1 and "do not show" in str(test)
    assert make_fit(data).compare_without("y0").p < 1e-6
    with pytest.raises(ValueError, match="has no effect"):
        fit.compare_without("z")


def test_subject_without_a_measurement_is_refused(study):
    data, _, _ = study
    ys = data.ys.copy()
    ys[3] = np.nan
    empty = node_fit.Dataset.from_arrays(data.ts[0], ys, data.us, states=["y"], inputs=["weight"])
    with pytest.raises(ValueError, match=f"subject '{data.trajectories[3]}' has no measurement"):
        make_fit(empty)


def test_single_subject_is_refused(study):
    data, _, _ = study
    with pytest.raises(ValueError, match="several subjects"):
        make_fit(data.select([0]))


def test_networks_and_fitted_starts_are_refused(study):
    data, _, _ = study
    with pytest.raises(ValueError, match="no constants; write equations with them, field=known"):
        node_fit.fit_population(data, random=["k"])
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": 1.0})
    with pytest.raises(ValueError, match="start=stated"):
        node_fit.fit_population(data, random=["k"], field=field, start=node_fit.Fitted)
    with pytest.raises(ValueError, match="solver=tsit5"):
        node_fit.fit_population(data, random=["k"], field=field, options=node_fit.Options(solver="kvaerno5"))


def test_given_parameters_are_only_evaluated_with_their_noise(study):
    with pytest.raises(ValueError, match="give the noise"):
        make_fit(study[0], evaluate=True)


def test_constants_at_the_ends_of_their_bounds_are_named():
    """Weights of a network, and constants with one bound or none, have no such end."""
    coordinates = (
        Coordinate("emax", (0.0, 1.0)), Coordinate("f", (0.0, 1.0), "logit"), Coordinate("low", (2.0, 4.0)),
        Coordinate("k", (0.0, None)), Coordinate("weight 1", (None, None), is_weight=True),
    )  # fmt: skip
    fixed = {
        name: SimpleNamespace(value=each) for name, each in {"emax": 0.9999, "f": 0.99, "low": 2.0, "k": 0}.items()
    }
    fit = SimpleNamespace(structure=SimpleNamespace(coordinates=coordinates), fixed=fixed)
    assert PopulationFit.at_ends.fget(fit) == {"emax": 1.0, "low": 2.0}


def test_bins_hold_measurements_of_one_time_together():
    times = np.repeat(np.arange(4.0), 10)
    bins = bin_times(times)
    assert sum(chosen.sum() for chosen in bins) == 40
    assert all((chosen[times == time].all() or not chosen[times == time].any()) for chosen in bins for time in range(4))
