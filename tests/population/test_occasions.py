"""Subjects with several records, on which constants differ again: the likelihood in closed form, and a study."""

import functools
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.optimize import minimize

import node_fit
from node_fit.app.population_run import describe_effects
from node_fit.model.neural_ode import NeuralODE
from node_fit.population.fit import PopulationFit, build_population
from node_fit.population.prediction import KnownPopulation
from node_fit.population.storage import read_population, write_population
from node_fit.population.subjects import subject_of

TIMES = np.array([1.0, 2.0, 4.0])
# The mean of slopes, the variances between subjects and between the records of one, and the noise.
SLOPE, BETWEEN, WITHIN, NOISE = 2.0, 0.3, 0.1, 0.2
NAMES = ("a/1", "b/1", "a/2", "c/1", "a/3", "b/2")


def make_lines(names=NAMES, seed=0) -> node_fit.Dataset:
    """Measurements of `y = slope t`, whose slope differs between subjects and between their records."""
    rng = np.random.default_rng(seed)
    own = {name: np.sqrt(BETWEEN) * rng.standard_normal() for name in sorted({subject_of(each) for each in names})}
    slopes = np.array([SLOPE + own[subject_of(name)] + np.sqrt(WITHIN) * rng.standard_normal() for name in names])
    ys = slopes[:, None] * TIMES + NOISE * rng.standard_normal((len(names), len(TIMES)))
    ys[-1, 1] = np.nan
    return node_fit.Dataset.from_arrays(TIMES, ys[..., None], states=["y"], trajectories=names)


# Times begin at 1, where `y` is the slope.
START = functools.partial(node_fit.Stated, values={"y": "s0"}, constants={"s0": 1.0})
LINES = functools.partial(node_fit.Known, equations={"y": "y/t"})


def make_population(data: node_fit.Dataset, **settings):
    options = node_fit.Options(field=LINES, start=START, solver=node_fit.Solver(rtol=1e-10), precision="x64")
    chosen = node_fit.MixedEffects(**{"occasions": ["s0"], **settings})
    return build_population(data, {"s0": "normal"}, chosen, options)


X = np.array([SLOPE, 0.5 * np.log(BETWEEN), 0.5 * np.log(WITHIN), np.log(NOISE)])


def closed_form(data: node_fit.Dataset, x: np.ndarray) -> float:
    """Minus twice the log-likelihood, which is normal: slopes are in each prediction as a factor."""
    subjects, total = [subject_of(name) for name in data.trajectories], 0.0
    for subject in set(subjects):
        rows = [at for at, name in enumerate(subjects) if name == subject]
        y, ts, record = data.ys[rows, :, 0].ravel(), np.tile(TIMES, len(rows)), np.repeat(rows, len(TIMES))
        known = np.isfinite(y)
        y, ts, record = y[known], ts[known], record[known]
        same = record[:, None] == record[None]
        covariance = np.outer(ts, ts) * (np.exp(2 * x[1]) + np.exp(2 * x[2]) * same) + np.exp(2 * x[3]) * np.eye(len(y))
        off = y - x[0] * ts
        total += np.linalg.slogdet(covariance)[1] + off @ np.linalg.solve(covariance, off)
    return total


def errors_of(data: node_fit.Dataset, x: np.ndarray) -> np.ndarray:
    """The standard errors of both variances, from differences of the likelihood in closed form."""
    step = 1e-3 * np.eye(len(x))

    def at(i: int, j: int, *sides: int) -> float:
        return closed_form(data, x + sides[0] * step[i] + sides[1] * step[j])

    hessian = np.array(
        [
            [(at(i, j, 1, 1) - at(i, j, 1, -1) - at(i, j, -1, 1) + at(i, j, -1, -1)) / 4e-6 for j in range(len(x))]
            for i in range(len(x))
        ]
    )
    return 2 * np.exp(2 * x[1:3]) * np.sqrt(np.diag(2 * np.linalg.inv(hessian)))[1:3]


@pytest.mark.parametrize("method", ["focei", "fo"])
def test_objective_is_that_of_the_normal_distribution(method):
    data = make_lines()
    population = make_population(data, method=method)
    assert population.subjects.names == ("a", "b", "c") and population.subjects.records == ((0, 2, 4), (1, 5), (3,))
    population = population.refine_steps(X, population.still)
    z = population.still if method == "fo" else population.find_modes(X)
    assert z.shape == (3, 1 + 3)
    value, gradient = population.objective(X, z, method)
    assert value == pytest.approx(closed_form(data, X), abs=1e-6)
    for at in range(len(X)):
        step = 1e-5 * np.eye(len(X))[at]
        slope = (closed_form(data, X + step) - closed_form(data, X - step)) / 2e-5
        assert gradient[at] == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_records_are_rows_of_their_subject():
    data = make_lines()
    subjects = make_population(data).subjects
    np.testing.assert_array_equal(subjects.mask[1, :, 0], [True] * 3 + [True, False, True] + [False] * 3)
    np.testing.assert_array_equal(subjects.mask.sum(axis=(1, 2)), [9, 5, 3])
    values = np.where(np.isfinite(data.ys), data.ys, 0)
    np.testing.assert_array_equal(subjects.by_trajectory(subjects.y), values)
    phi = np.arange(9.0).reshape(3, 3, 1)
    found = subjects.by_trajectory(np.asarray(subjects.expand(phi).f))[:, 0, 0]
    np.testing.assert_allclose(found, [0, 3, 1, 6, 2, 4], atol=1e-9)  # The slopes of a/1, b/1, a/2, c/1, a/3, b/2.


def test_without_occasions_each_trajectory_is_a_subject():
    population = make_population(make_lines(), occasions=None)
    assert population.subjects.names == NAMES and population.structure.total_effects == 1
    shared = make_population(make_lines(), occasions=[])
    assert shared.subjects.names == ("a", "b", "c") and shared.structure.total_effects == 1


@pytest.fixture(scope="module")
def fit():
    names = [f"s{subject}/{record}" for subject in range(40) for record in range(3)]
    options = node_fit.Options(field=LINES, start=START)
    settings = node_fit.MixedEffects(occasions=["s0"])
    return node_fit.fit_population(make_lines(names, 5), random={"s0": "normal"}, population=settings, options=options)


@pytest.mark.long
@pytest.mark.slow
def test_variances_within_and_between_subjects_are_told_apart(fit):
    """They are where the likelihood in closed form is largest, and the simulated ones not far."""
    assert fit.status == "converged"
    end = minimize(lambda x: closed_form(fit.data, x), X)
    np.testing.assert_allclose(fit.optimum.x, end.x, atol=2e-3)
    between, within = fit.variances["s0"], fit.occasion_variances["s0"]
    assert abs(between.value - BETWEEN) < 3 * between.error and abs(within.value - WITHIN) < 3 * within.error
    np.testing.assert_allclose([each.error for each in (between, within)], errors_of(fit.data, end.x), rtol=0.02)
    assert fit.population["occasions"]["variances"] == {"s0": within.value}
    assert "occasion variance of s0" in repr(fit) and fit.population["subjects"] == 40
    table = fit.individuals
    assert len(table) == 120 and table["s0"].nunique() == 120 and table["subject"].nunique() == 40
    assert set(fit.predictions["trajectory"]) == set(fit.data.trajectories)
    residuals = fit.predictions["weighted_residual"]
    # Of nine rows of a subject, four effects are fitted.
    assert 0.6 < residuals.std() < 1.0
    check = fit.check_by_simulation()
    assert check.inside > 0.7 and check.times.min() == 0, "times count from the begin of each record"


@pytest.mark.slow
def test_what_is_known_of_a_subject_holds_on_another_occasion(fit, tmp_path):
    """A known record has its own slope, a new one that of its subject, and a new subject that of all."""
    write_population(fit.known, tmp_path)
    names = ["s3/2", "s3/new", "other/1"]
    empty = node_fit.Dataset.from_arrays(TIMES, np.full((3, 3, 1), np.nan), states=["y"], trajectories=names)
    found, again = fit.predict(empty), read_population(tmp_path).predict(empty)
    np.testing.assert_allclose(again.ys, found.ys, rtol=1e-9)
    slopes, own = found.ys[:, 0, 0], fit.individuals.set_index("trajectory")["s0"]
    assert found.ways == ("known", "known", "population")
    assert slopes[0] == pytest.approx(own["s3/2"], rel=1e-6)
    assert slopes[1] == pytest.approx(fit.constants["s0"] + fit.eta[3, 0], rel=1e-6)
    assert slopes[2] == pytest.approx(fit.constants["s0"], rel=1e-6)
    width = (found.upper - found.lower)[:, -1, 0]
    assert width[0] < 0.7 * width[1] < 0.7 * width[2]


def test_an_occasion_that_was_not_fitted_has_no_effect_and_all_of_the_variance():
    structure = make_population(make_lines()).structure
    z, spread = np.arange(1.0, 5.0)[None], np.array([[[4.0, 1, 2, 3], [1, 5, 2, 2], [2, 2, 6, 2], [3, 2, 2, 7]]])
    records = (("a/1", "a/2", "a/3"),)
    known = KnownPopulation(Mock(spec=NeuralODE), structure, X, "focei", ("a",), z, spread, 1, records)
    assert known.effects_of("b", ["b/1"]) is None
    found, covariance = known.effects_of("a", ["a/3", "a/new"])
    np.testing.assert_array_equal(found, [1, 4, 0])
    np.testing.assert_array_equal(covariance, [[4, 3, 0], [3, 7, 0], [0, 0, 1]])


def test_occasions_that_the_data_do_not_tell_are_named():
    variances = {"k": SimpleNamespace(value=1e-7), "v": SimpleNamespace(value=0.1)}
    fit = SimpleNamespace(
        occasion_variances=variances,
        evaluated=False,
        unidentified_effects=[],
        at_ends={},
        condition_number=1.0,
        unidentified_occasions=["k"],
    )
    assert PopulationFit.unidentified_occasions.fget(fit) == ["k"]
    (sentence,) = describe_effects(fit)
    assert "k differs between occasions (variance 1e-07); leave it out of population.occasions" in sentence


def test_subjects_may_have_one_record_each_where_no_constant_differs_on_another():
    population = make_population(make_lines(["a/1", "b/1", "c/1", "d/1", "e/1", "f/1"]), occasions=[])
    assert population.structure.total_effects == 1 and population.subjects.names == tuple("abcdef")


def test_what_has_no_occasions_is_refused():
    plain = make_lines(["a", "b", "c", "d", "e", "f"])
    with pytest.raises(ValueError, match=r"each subject has one: a, b, c; .*data\.occasion"):
        make_population(plain)
    with pytest.raises(ValueError, match="occasions names 'k', which does not differ"):
        make_population(make_lines(), occasions=["k"])
    with pytest.raises(ValueError, match="saem has no occasions"):
        node_fit.MixedEffects(occasions=["k"], method="saem")
    with pytest.raises(ValueError, match=r"occasions\.k must be a positive number, got 0"):
        node_fit.MixedEffects(occasions={"k": 0})
    with pytest.raises(ValueError, match="occasions must be a list"):
        node_fit.MixedEffects(occasions="k")


@pytest.mark.parametrize(("name", "subject"), [("a/1", "a"), ("f/a/1", "f/a"), ("a", "a"), ("/1", "/1")])
def test_a_subject_is_what_comes_before_the_last_slash(name, subject):
    assert subject_of(name) == subject
