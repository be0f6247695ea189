"""SAEM against what is known exactly: linear models with normal effects, whose likelihood has a closed form."""

import functools

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

import node_fit
from node_fit.population.fit import build_population
from node_fit.population.saem import MeasuredSubjects, begin_chains, draw_effects
from node_fit.runtime.placement import scope

SUBJECTS, TIMES = 60, np.array([0.0, 1.0, 2.0, 3.0])
# Columns: what the start, the slope and the drive do to a measurement.
DESIGN = np.stack([np.ones_like(TIMES), TIMES], axis=1)


@pytest.fixture(scope="module")
def lines():
    """Lines whose starts and slopes differ, and are correlated."""
    rng = np.random.default_rng(3)
    covariance = np.array([[0.5, 0.1], [0.1, 0.2]])
    effects = rng.multivariate_normal([2.0, -0.7], covariance, SUBJECTS)
    ys = effects @ DESIGN.T + 0.4 * rng.standard_normal((SUBJECTS, len(TIMES)))
    return node_fit.Dataset.from_arrays(TIMES, ys[..., None], states=["y"])


def describe(random, noise="additive"):
    """A line's model, as arguments."""
    field = functools.partial(node_fit.Known, equations={"y": "b"}, constants={"b": [-1.0, None, None]})
    start = functools.partial(node_fit.Stated, values={"y": "y0"}, constants={"y0": [1.0, None, None]})
    return {"field": field, "start": start, "random": dict.fromkeys(random, "normal")}


def exact_objective(ys, x, design, spread):
    """Minus twice the log-likelihood without 2 pi: measurements are normal with a covariance that is known."""
    mean, root, noise = x[:2], spread(x[2:-1]), np.exp(x[-1])
    covariance = design @ root @ root.T @ design.T + noise**2 * np.eye(len(design))
    off = ys - DESIGN @ mean
    return len(ys) * np.linalg.slogdet(covariance)[1] + np.einsum("si,ij,sj->", off, np.linalg.inv(covariance), off)


def full(x):
    return np.array([[np.exp(x[0]), 0.0], [x[1], np.exp(x[2])]])


@pytest.mark.long
@pytest.mark.slow
def test_estimates_are_those_of_the_largest_likelihood(lines):
    ys = lines.ys[..., 0]
    exact = minimize(lambda x: exact_objective(ys, x, DESIGN, full), [2, -0.7, -0.3, 0, -0.8, -0.9], method="BFGS")
    settings = node_fit.MixedEffects(method="saem", covariance="full", iterations=600)
    fit = node_fit.fit_population(lines, population=settings, **describe(["y0", "b"]))
    root = full(exact.x[2:5])
    covariance = root @ root.T
    errors = {name: each.error for name, each in fit.fixed.items()}
    assert fit.constants["y0"] == pytest.approx(exact.x[0], abs=0.1 * errors["y0"])
    assert fit.constants["b"] == pytest.approx(exact.x[1], abs=0.1 * errors["b"])
    found = {name: each.value for name, each in fit.variances.items()}
    assert found["y0"] == pytest.approx(covariance[0, 0], rel=0.03)
    assert found["b"] == pytest.approx(covariance[1, 1], rel=0.03)
    assert found.get("y0,b", found.get("b,y0")) == pytest.approx(covariance[0, 1], abs=0.02)
    assert fit.noise["y"]["additive"].value == pytest.approx(np.exp(exact.x[-1]), rel=0.02)
    assert fit.status == "converged"
    # First-order conditional estimation is exact of a linear model.
    assert exact.fun - 1e-6 <= fit.objective <= exact.fun + 0.1


@pytest.mark.slow
def test_constants_without_effects_are_estimated_too(lines):
    """Of starts that differ and a slope that does not."""
    ys = lines.ys[..., 0]
    exact = minimize(
        lambda x: exact_objective(ys, x, DESIGN[:, :1], lambda x: np.exp(x)[:, None]),
        [2, -0.7, -0.3, -0.9],
        method="BFGS",
    )
    settings = node_fit.MixedEffects(method="saem", iterations=400)
    fit = node_fit.fit_population(lines, population=settings, **describe(["y0"]))
    assert fit.constants["y0"] == pytest.approx(exact.x[0], abs=0.01)
    assert fit.constants["b"] == pytest.approx(exact.x[1], abs=0.01)
    assert fit.variances["y0"].value == pytest.approx(np.exp(2 * exact.x[2]), rel=0.03)
    assert fit.noise["y"]["additive"].value == pytest.approx(np.exp(exact.x[3]), rel=0.02)


def test_draws_are_of_the_posterior(lines):
    """Effects given the parameters of a linear model are normal, with means and variances in closed form."""
    settings = node_fit.MixedEffects()
    given = describe(["y0", "b"])
    options = node_fit.Options(field=given["field"], start=given["start"], precision="x64")
    few = node_fit.Dataset.from_arrays(TIMES, lines.ys[:5], states=["y"])
    population = build_population(few, given["random"], settings, options)
    names = [c.name for c in population.structure.coordinates]
    design = DESIGN[:, [["y0", "b"].index(name) for name in names]]
    x = np.array([{"y0": 2.0, "b": -0.7}[name] for name in names] + [np.log(0.6), np.log(0.4), np.log(0.5)])
    subjects = population.subjects
    with scope("x64"):
        measured = MeasuredSubjects.of(subjects)

        def step(chains, _):
            chains, _ = draw_effects(population.structure, measured, chains)
            return chains, chains.phi

        run = jax.jit(lambda chains: jax.lax.scan(step, chains, None, length=400)[1])
        draws = np.asarray(run(begin_chains(population, x, 1)))[20:]
    precision = design.T @ design / 0.5**2 + np.diag([0.6**-2, 0.4**-2])
    pull = (few.ys[..., 0] - design @ x[:2]) @ design / 0.5**2
    covariance = np.linalg.inv(precision)
    deviations = np.sqrt(np.diag(covariance))
    assert np.abs((draws.mean(axis=(0, 1)) - x[:2] - pull @ covariance) / deviations).max() < 0.15
    np.testing.assert_allclose(draws.std(axis=(0, 1)), np.tile(deviations, (5, 1)), rtol=0.1)


def test_settings_of_saem_are_checked():
    with pytest.raises(ValueError, match="iterations must be at least"):
        node_fit.MixedEffects(method="saem", iterations=10)
    with pytest.raises(ValueError, match="use focei"):
        node_fit.MixedEffects(method="saem", evaluate=True)
    with pytest.raises(ValueError, match="errors must be"):
        node_fit.MixedEffects(errors="bootstrap")  # pyright: ignore[reportArgumentType]
