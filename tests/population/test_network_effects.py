"""Populations whose equations hold a network: exact derivatives by its weights, and laws that nobody knew."""

import functools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy.optimize import OptimizeResult

import node_fit
from node_fit.app.config.build import add_random_constants
from node_fit.population import search
from node_fit.population.fit import build_population
from node_fit.population.search import Descent
from node_fit.population.storage import read_population, write_population
from node_fit.population.subjects import multi_indices

TIMES = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0])
RANDOM = ("s", "k")


def saturate(rates: np.ndarray, ks: np.ndarray, v: float = 20.0) -> np.ndarray:
    """Concentrations after a dose of 100 that is taken up by a saturating law, by small steps of Heun's method."""
    gut, c = np.full(len(rates), 100.0), np.zeros(len(rates))
    found, step = [c], 0.002

    def slopes(gut: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        taken = rates * 40 * gut / (25 + gut)
        return -taken, taken / v - ks * c

    for begin, end in pairwise(TIMES):
        for _ in range(round((end - begin) / step)):
            first = slopes(gut, c)
            second = slopes(gut + step * first[0], c + step * first[1])
            gut, c = (at + step * (a + b) / 2 for at, a, b in zip((gut, c), first, second, strict=True))
        found.append(c)
    return np.stack(found, axis=1)


def simulate(subjects: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rates, ks = np.exp(0.3 * rng.standard_normal(subjects)), 0.3 * np.exp(0.3 * rng.standard_normal(subjects))
    clean = saturate(rates, ks)
    return clean + 0.05 * rng.standard_normal(clean.shape)


def as_data(ys: np.ndarray, prefix: str = "s") -> node_fit.Dataset:
    names = [f"{prefix}{at}" for at in range(len(ys))]
    data = node_fit.Dataset.from_arrays(TIMES, ys[..., None], states=["c"], trajectories=names)
    return node_fit.with_events(data, [{"time": 0.0, "state": "gut", "add": 100.0}])


EQUATIONS = {"gut": "-s*gut*exp(f)", "c": "s*gut*exp(f)/20 - k*c"}
FIELD = functools.partial(
    node_fit.Hybrid, equations=EQUATIONS, constants={"s": 0.3, "k": 0.5}, terms={"f": 1.0}, sees=["gut"], rest=False
)


def make_options(field=FIELD, rtol=1e-9) -> node_fit.Options:
    return node_fit.Options(field=field, solver=node_fit.Solver(rtol=rtol), precision="x64")


@pytest.fixture(scope="module")
def problem():
    """Three subjects, one of whose constants is shared, with weights that are not zero."""
    field = functools.partial(FIELD, width=2, depth=1)
    settings = node_fit.MixedEffects(noise="combined")
    population = build_population(as_data(simulate(3, 0)), ["s"], settings, make_options(field))
    structure, rng = population.structure, np.random.default_rng(1)
    x = np.concatenate([population.subjects.first(), [-0.8], [-1.0, -2.0]])
    x[list(structure.weights)] = 0.7 * rng.standard_normal(len(structure.weights))
    return population.refine_steps(x, population.still), x


def test_weights_are_coordinates_without_effects(problem):
    population, x = problem
    coordinates = population.structure.coordinates
    assert [c.name for c in coordinates[:2]] == ["s", "k"] and len(population.structure.weights) == 2 * 2 + 2 + 1
    assert all(c.kind is None and c.is_weight for c in coordinates[2:])
    model = population.subjects.model_at(x[: len(coordinates)])
    np.testing.assert_allclose(replace(population.subjects, model=model).first(), x[: len(coordinates)], rtol=1e-12)
    assert set(population.subjects.constants(x[:9])) == {"s", "k"}


def test_derivatives_grow_with_the_weights_and_not_with_their_squares():
    effects = (True, False, True, *[False] * 50)
    assert len(multi_indices(effects, 2)) == 3 + 2 * 51 and len(multi_indices(effects, 3)) == 4 + 3 * 51
    assert all(sum(not effects[at] for at in row) <= 1 for row in multi_indices(effects, 3))


def test_derivatives_by_weights_are_differences(problem):
    population, x = problem
    phi, step = population.phi(x, np.array([[0.3], [-0.5], [1.0]])), 1e-5
    found = population.subjects.expand(phi, 2)
    for at in range(phi.shape[-1]):
        ends = [population.subjects.expand(phi + side * step * np.eye(phi.shape[-1])[at], 1) for side in (1, -1)]
        slope = (np.asarray(ends[0].f) - np.asarray(ends[1].f)) / (2 * step)
        np.testing.assert_allclose(np.asarray(found.first)[..., at], slope, rtol=1e-5, atol=1e-7)
        # Of second order with the effect, that of `s`.
        bend = (np.asarray(ends[0].first) - np.asarray(ends[1].first))[..., 0] / (2 * step)
        np.testing.assert_allclose(np.asarray(found.second)[..., 0, at], bend, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(np.asarray(found.second)[..., 0, at], np.asarray(found.second)[..., at, 0])
    assert not np.asarray(found.second)[..., 1:, 1:].any()


@pytest.mark.long
@pytest.mark.parametrize(
    "method", ["focei", pytest.param("foce", marks=pytest.mark.slow), pytest.param("laplace", marks=pytest.mark.slow)]
)
def test_gradient_by_weights_is_exact(problem, method):
    population, x = problem

    def objective(x: np.ndarray):
        return population.objective(x, population.find_modes(x, interaction=method != "foce"), method)

    _, gradient = objective(x)
    for at in range(len(x)):
        step = 1e-4 * np.eye(len(x))[at]
        ends = [objective(x + side * step)[0] for side in (1, -1)]
        assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-4, abs=1e-4)


def test_a_search_sees_the_gradient_by_all_coordinates(problem):
    """The search for modes has derivatives by those with effects alone."""
    population, x = problem
    value, gradient = Descent(population, "focei")(x)
    wanted, wanted_gradient = population.objective(x, population.find_modes(x), "focei")
    assert value == pytest.approx(wanted, rel=1e-9)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-6, atol=1e-6)


def test_prior_of_weights_is_in_the_objective(problem):
    population, x = problem
    z = population.find_modes(x)
    free = replace(population, structure=replace(population.structure, weight_scale=np.inf))
    value, slopes = population.objective(x, z, "focei")
    plain, plain_slopes = free.objective(x, z, "focei")
    weights = x[list(population.structure.weights)]
    assert value - plain == pytest.approx(np.sum(weights**2), rel=1e-9)
    wanted = np.zeros(len(x))
    wanted[list(population.structure.weights)] = 2 * weights
    np.testing.assert_allclose(slopes - plain_slopes, wanted, atol=1e-9)


def test_an_optimum_is_judged_from_its_own_modes(problem, monkeypatch):
    """And not from those of the last trial point, which may lie far away and lead to no modes at all."""
    population, x = problem
    begun = list[np.ndarray]()

    def search_far(objective, x, **_):
        objective(x)
        objective.z = np.full_like(objective.z, 30.0)
        return OptimizeResult(x=x)

    find = Descent.modes
    monkeypatch.setattr(search, "minimize", search_far)
    monkeypatch.setattr(Descent, "modes", lambda self, x: (begun.append(self.z), find(self, x))[1])
    optimum = search.minimize_objective(population, x, "focei")
    np.testing.assert_allclose(begun[-1], optimum.z, atol=1e-6)


@pytest.fixture(scope="module")
def fit():
    return node_fit.fit_population(as_data(simulate(24, 3)), random=RANDOM, field=FIELD)


@pytest.mark.long
@pytest.mark.slow
def test_a_law_that_nobody_knew_is_found(fit):
    """Left-out subjects are predicted by their first five rows much better than by what all share."""
    assert fit.status == "converged" and fit.population["weights"] == 13
    assert fit.fixed["k"].lower < 0.3 < fit.fixed["k"].upper
    assert fit.variances["s"].value == pytest.approx(0.09, rel=0.6)
    assert fit.noise["c"]["additive"].value == pytest.approx(0.05, rel=0.2)
    ys = simulate(12, 4)
    few = ys.copy()
    few[:, 5:] = np.nan
    own, shared = (fit.predict(as_data(known, "new")).ys[:, 5:, 0] for known in (few, np.full_like(ys, np.nan)))
    errors = [np.sqrt(np.mean((predicted - ys[:, 5:]) ** 2)) for predicted in (own, shared)]
    assert errors[0] < 0.5 * errors[1]
    assert "13 weights" in repr(fit) and "weight 1" not in repr(fit)


@pytest.mark.long
@pytest.mark.slow
def test_a_population_with_a_network_is_read_back(fit, tmp_path):
    write_population(fit.known, tmp_path)
    again = read_population(tmp_path)
    data = as_data(simulate(2, 5), "other")
    np.testing.assert_allclose(again.predict(data).ys, fit.predict(data).ys, rtol=1e-9)


def test_what_has_no_weights_of_its_own_is_refused():
    data = as_data(simulate(3, 0))
    large = functools.partial(FIELD, width=32, depth=2)
    with pytest.raises(ValueError, match=r"network has \d+ weights, .* use a smaller one"):
        build_population(data, ["s"], node_fit.MixedEffects(), make_options(large))
    with pytest.raises(ValueError, match="method saem has no network"):
        build_population(data, ["s"], node_fit.MixedEffects(method="saem"), make_options())
    with pytest.raises(ValueError, match="weight_scale must be positive"):
        node_fit.MixedEffects(weight_scale=0.0)
    plain = node_fit.Dataset.from_arrays(TIMES, simulate(3, 0)[..., None], states=["c"])
    with pytest.raises(ValueError, match="the model has no constants"):
        build_population(plain, ["s"], node_fit.MixedEffects(), make_options(functools.partial(node_fit.MLP, width=3)))


@pytest.mark.parametrize(("target", "given"), [("Hybrid", {"s": 1.0}), ("Known", {"s": 1.0}), ("MLP", {})])
def test_constants_in_equations_begin_at_one_in_commands(target, given):
    field = {"_target_": f"node_fit.{target}", "equations": EQUATIONS, "constants": {}}
    config = OmegaConf.create({"random": ["s", "other"], "field": field})
    add_random_constants(config)
    assert OmegaConf.to_container(config.field)["constants"] == given
