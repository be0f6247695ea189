"""Draws from posteriors of populations: the density in closed form, and quantiles by quadrature."""

import functools
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import node_fit
from node_fit.population.fit import PopulationFit, build_population
from node_fit.runtime.placement import scope
from node_fit.sample.population import density_of_population, describe_spread, log_joint
from node_fit.uncertainty.linearization import Unsure

TIMES = np.array([1.0, 2.0, 4.0])
SLOPE, BETWEEN, NOISE, SUBJECTS = 2.0, 0.5, 0.4, 10
# `y` is the slope where times begin, at 1, and the slope times the time later.
START = functools.partial(node_fit.Stated, values={"y": "s0"}, constants={"s0": 1.0})
LINES = functools.partial(node_fit.Known, equations={"y": "y/t"})
X = np.array([SLOPE, np.log(BETWEEN), np.log(NOISE)])


@pytest.fixture(scope="module")
def lines() -> node_fit.Dataset:
    rng = np.random.default_rng(3)
    slopes = SLOPE + BETWEEN * rng.standard_normal(SUBJECTS)
    ys = slopes[:, None] * TIMES + NOISE * rng.standard_normal((SUBJECTS, len(TIMES)))
    return node_fit.Dataset.from_arrays(TIMES, ys[..., None], states=["y"])


def options() -> node_fit.Options:
    return node_fit.Options(field=LINES, start=START, solver=node_fit.Solver(rtol=1e-10), precision="x64")


def test_the_joint_density_is_normal_and_has_its_gradient(lines):
    population = build_population(lines, {"s0": "normal"}, node_fit.MixedEffects(), options())
    z = np.random.default_rng(0).standard_normal((SUBJECTS, 1))
    population = population.refine_steps(X, z)

    def exact(x, z):
        slopes = x[0] + np.exp(x[1]) * z
        return norm.logpdf(lines.ys[..., 0], slopes * TIMES, np.exp(x[2])).sum() + norm.logpdf(z).sum()

    with scope("x64"):
        value, slopes = jax.value_and_grad(lambda at: log_joint(population, at[0], at[1]))(
            (jnp.asarray(X), jnp.asarray(z))
        )
        other = log_joint(population, jnp.asarray(X + 0.1), jnp.asarray(z))
        x_slope, z_slope = np.asarray(slopes[0]), np.asarray(slopes[1])
    assert float(other - value) == pytest.approx(exact(X + 0.1, z) - exact(X, z), rel=1e-7)
    step = 1e-5
    for at in range(3):
        move = step * np.eye(3)[at]
        assert x_slope[at] == pytest.approx((exact(X + move, z) - exact(X - move, z)) / (2 * step), rel=1e-6)
    move = step * np.eye(SUBJECTS)[4][:, None]
    assert z_slope[4, 0] == pytest.approx((exact(X, z + move) - exact(X, z - move)) / (2 * step), rel=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_draws_of_a_population_have_the_quantiles_of_quadrature(lines):
    """Of a typical slope with a flat prior, a uniform deviation between subjects, and noise flat in its logarithm."""
    fit = node_fit.fit_population(lines, random={"s0": "normal"}, options=options())
    stages: list[str] = []
    posterior = node_fit.sample(fit, draws=1000, warmup=300, tell=stages.append)
    assert stages[1:] == ["warming up 4 chains by 300 steps", "drawing 1000 times from each of 4 chains"]
    slopes, between, noise = np.linspace(0.5, 3.5, 121), np.linspace(1e-3, 3, 240), np.exp(np.linspace(-2, 0.5, 90))
    means = lines.ys[..., 0] @ TIMES / (TIMES @ TIMES)
    rest = ((lines.ys[..., 0] - means[:, None] * TIMES) ** 2).sum()
    spread = between[:, None] ** 2 + noise**2 / (TIMES @ TIMES)
    off = ((means - slopes[:, None]) ** 2).sum(axis=1)[:, None, None]
    count = SUBJECTS * (len(TIMES) - 1)
    logs = -off / (2 * spread) - SUBJECTS / 2 * np.log(spread) - rest / (2 * noise**2) - count * np.log(noise)
    weights = np.exp(logs - logs.max())
    levels = [0.025, 0.5, 0.975]

    def quantiles(own, axis):
        total = weights.sum(axis=tuple(at for at in range(3) if at != axis))
        return np.interp(levels, np.cumsum(total) / total.sum(), own)

    found = posterior.quantiles()
    deviation = np.diff(quantiles(slopes, 0))[0] / 2
    assert found["s0"] == pytest.approx(quantiles(slopes, 0), abs=0.15 * deviation)
    assert found["variance_s0"] == pytest.approx(quantiles(between**2, 1), rel=0.15)
    assert found["y_additive"] == pytest.approx(quantiles(noise, 2), rel=0.04)
    assert max(posterior.rhat.values()) < 1.01 and not posterior.diverging.any()
    assert posterior.parameters.shape == (4, 1000, 3 + SUBJECTS)
    with pytest.raises(ValueError, match=r"use the population's fit\.predict"):
        posterior.predict(lines)


def test_a_variance_of_zero_has_no_posterior(lines):
    structure = build_population(lines, {"s0": "normal"}, node_fit.MixedEffects(), options()).structure
    fit = Mock(spec=PopulationFit, structure=structure, effects=("s0",), is_identified=np.array([True, False, True]))
    fit.optimum, fit.unidentified_occasions = SimpleNamespace(x=X), []
    with pytest.raises(Unsure, match="the variance of s0 has gone to zero"):
        density_of_population(fit, None)
    fit.is_identified, fit.unidentified_occasions = np.array([True, True, True]), ["s0"]
    with pytest.raises(Unsure, match=r"leave it out of population\.occasions"):
        density_of_population(fit, None)


def test_spread_has_variances_covariances_and_noise(lines):
    settings = node_fit.MixedEffects(occasions=["s0"])
    names = [f"{at // 2}/{at % 2}" for at in range(SUBJECTS)]
    data = node_fit.Dataset.from_arrays(TIMES, lines.ys, states=["y"], trajectories=names)
    structure = build_population(data, {"s0": "normal"}, settings, options()).structure
    x = np.array([[SLOPE, np.log(0.5), np.log(0.2), np.log(0.4)]])
    found = describe_spread(structure, x)
    assert {name: float(each[0]) for name, each in found.items()} == pytest.approx(
        {"variance_s0": 0.25, "occasion_variance_s0": 0.04, "y_additive": 0.4}
    )
