"""Counts in a population: their probability, its integral over effects, what is drawn, and what is refused."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import nbinom, norm, poisson

import node_fit
from node_fit.population.fit import build_population, with_noise_of
from node_fit.population.measurements import Measurements, measurement_misfit, weights
from node_fit.population.noise import ResidualNoise
from node_fit.runtime.placement import scope

RATE, VARIANCE, DISPERSION, FIRST = 0.5, 0.09, 0.2, 12.0
TIMES = np.array([0.0, 1.0, 2.0, 4.0, 6.0])
KINDS = ["poisson", "negative_binomial"]


def mean_counts(rates):
    return FIRST * np.exp(-np.asarray(rates)[:, None] * TIMES)


def draw_counts(kind, subjects=6, seed=1):
    """Counts around decays whose rate is log-normal."""
    rng = np.random.default_rng(seed)
    means = mean_counts(RATE * np.exp(np.sqrt(VARIANCE) * rng.standard_normal(subjects)))
    rates = means if kind == "poisson" else rng.gamma(1 / DISPERSION, DISPERSION * means)
    return node_fit.Dataset.from_arrays(TIMES, rng.poisson(rates)[..., None].astype(float), states=["y"])


def fitted_options():
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": RATE})
    start = functools.partial(node_fit.Stated, values={"y": FIRST})
    return node_fit.Options(field=field, start=start, solver=node_fit.Solver(rtol=1e-9), precision="x64")


def random_rate():
    return {"k": {"kind": "lognormal", "variance": VARIANCE}}


def make_population(data, kind, method="focei"):
    noise = {"y": {"dispersion": DISPERSION}} if kind == "negative_binomial" else {"y": kind}
    population = build_population(
        data, random_rate(), node_fit.MixedEffects(method=method, noise=noise), fitted_options()
    )
    return population.refine_steps(parameters(kind), population.still)


def parameters(kind):
    return np.array([np.log(RATE), 0.5 * np.log(VARIANCE)] + [np.log(DISPERSION)] * (kind != "poisson"))


def log_probability(kind, y, mean, dispersion=DISPERSION):
    if kind == "poisson":
        return poisson.logpmf(y, mean)
    return nbinom.logpmf(y, 1 / dispersion, 1 / (1 + dispersion * mean))


def exact_objective(data, x, kind):
    """Minus twice the log-likelihood, by integrals over one effect."""
    total = 0.0
    for ys in data.ys[..., 0]:

        def density(z, ys=ys):
            mean = FIRST * np.exp(-np.exp(x[0] + np.exp(x[1]) * z) * TIMES)
            return np.exp(log_probability(kind, ys, mean, np.exp(x[-1])).sum() + norm.logpdf(z))

        total -= 2 * np.log(quad(density, -8, 8, epsabs=0, epsrel=1e-10, points=[-2, 0, 2], limit=200)[0])
    return total


@pytest.mark.long
@pytest.mark.parametrize("kind", ["poisson", pytest.param("negative_binomial", marks=pytest.mark.slow)])
def test_quadrature_is_the_integral_and_the_expansion_is_near_it(kind):
    data, x = draw_counts(kind), parameters(kind)
    population = make_population(data, kind)
    z = population.find_modes(x)
    population = population.refine_steps(x, z)
    exact = exact_objective(data, x, kind)
    assert population.quadrature(x, z, 25) == pytest.approx(exact, abs=1e-5)
    assert population.objective(x, z, "laplace")[0] == pytest.approx(exact, abs=0.1)
    assert population.objective(x, z, "focei")[0] == pytest.approx(exact, abs=0.5)


@pytest.mark.parametrize("kind", [pytest.param("poisson", marks=pytest.mark.slow), "negative_binomial"])
@pytest.mark.parametrize("method", ["focei", pytest.param("laplace", marks=pytest.mark.slow)])
def test_gradients_are_those_of_differences(kind, method):
    population, x = make_population(draw_counts(kind), kind), parameters(kind)

    def objective(x):
        return population.objective(x, population.find_modes(x), method)

    found = objective(x)[1]
    for at in range(len(x)):
        step = 1e-4 * (np.arange(len(x)) == at)
        slope = (objective(x + step)[0] - objective(x - step)[0]) / 2e-4
        assert found[at] == pytest.approx(slope, rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_misfit_of_counts_is_their_probability_beside_other_channels(kind):
    noise = ResidualNoise.of({"y": kind, "x": "additive"}, ["y", "x"])
    x = np.log([DISPERSION] * (kind != "poisson") + [0.5])
    y, f = np.array([[0.0, 1.5], [7.0, 2.0]]), np.array([[0.4, 1.0], [5.0, 2.5]])
    seen = Measurements(y, np.array([[True, True], [True, False]]))
    with scope("x64"):
        h = noise.transform(jnp.asarray(f))
        found = float(measurement_misfit(noise, jnp.asarray(x), h, seen))
        weight = np.asarray(weights(noise, jnp.asarray(x), h, seen))
        fixed = np.asarray(weights(noise, jnp.asarray(x), h, seen, jnp.full((2, 2), 9.0)))
    wanted = -2 * log_probability(kind, y[:, 0], f[:, 0]).sum() + (0.5 / 0.5) ** 2 + 2 * np.log(0.5)
    assert found == pytest.approx(wanted)
    mean = f[:, 0]
    information = mean if kind == "poisson" else mean / (1 + DISPERSION * mean)
    np.testing.assert_allclose(weight, np.stack([information, [4.0, 0.0]], axis=1), rtol=1e-12)
    # Counts have the information of their own mean, whatever variance other channels are given.
    np.testing.assert_allclose(fixed, np.stack([information, [1 / 9, 0.0]], axis=1), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_counts_have_the_mean_and_the_variance_of_their_kind(kind):
    noise = ResidualNoise.of(kind, ["y"])
    x = np.log([DISPERSION] * (kind != "poisson"))
    found = noise.simulate(np.full((200_000, 1), 6.0), x, np.random.default_rng(0))
    assert np.array_equal(found, np.round(found)) and found.min() >= 0
    variance = 6.0 + (0.0 if kind == "poisson" else DISPERSION * 36.0)
    assert found.mean() == pytest.approx(6.0, rel=0.01) and found.var() == pytest.approx(variance, rel=0.03)
    np.testing.assert_allclose(noise.deviation(np.array([[6.0]]), x), np.sqrt(variance))
    assert np.isnan(noise.simulate(np.array([[np.nan], [np.inf]]), x, np.random.default_rng(0))).all()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["focei", "saem"])
def test_a_population_of_counts_is_fitted(kind, method):
    data = draw_counts(kind, 60, seed=3)
    settings = node_fit.MixedEffects(method=method, noise=kind)
    fit = node_fit.fit_population(data, random=["k"], population=settings, options=fitted_options())
    assert fit.constants["k"] == pytest.approx(RATE, rel=0.15)
    assert fit.variances["k"].value == pytest.approx(VARIANCE, abs=0.06)
    if kind == "negative_binomial":
        assert fit.noise["y"]["dispersion"].value == pytest.approx(DISPERSION, rel=0.5)
    residuals = fit.predictions["weighted_residual"]
    assert residuals.std() == pytest.approx(1.0, abs=0.2)
    check = fit.check_by_simulation()
    assert check.inside > 0.7
    bands = fit.predict(data, level=0.9)
    inside = np.mean((data.ys >= bands.lower) & (data.ys <= bands.upper))
    assert inside > 0.88
    assert fit.status == "converged"


@pytest.mark.parametrize(
    ("settings", "change", "sentence"),
    [
        ({"noise": "poisson", "method": "fo"}, {}, "method fo takes measurements as normal, and counts are not"),
        ({"noise": "poisson"}, {"half": True}, "noise of 'y' is poisson, which is of counts, and 0.5 is none"),
        ({"noise": "poisson"}, {"limit": True}, "a value of 'y' is a limit, and its noise poisson is of counts"),
        ({"noise": {"y": {}}}, {}, "noise of 'y' must be one of additive, .*negative_binomial, got {}"),
    ],
)
def test_what_are_no_counts_is_refused(settings, change, sentence):
    data = draw_counts("poisson")
    ys, sides = data.ys.copy(), np.zeros(data.ys.shape, int)
    if change.get("half"):
        ys[1, 2, 0] = 0.5
    if change.get("limit"):
        sides[0, 1, 0] = -1
    censored = sides if change.get("limit") else None
    data = node_fit.Dataset.from_arrays(TIMES, ys, states=["y"], censored=censored)
    with pytest.raises(ValueError, match=sentence):
        node_fit.fit_population(
            data, random=["k"], population=node_fit.MixedEffects(**settings), options=fitted_options()
        )


def test_the_objective_of_counts_is_computed_at_given_parameters():
    data = draw_counts("poisson")
    settings = node_fit.MixedEffects(noise="poisson", evaluate=True, nodes=25)
    fit = node_fit.fit_population(data, random=random_rate(), population=settings, options=fitted_options())
    assert fit.quadrature == pytest.approx(exact_objective(data, parameters("poisson"), "poisson"), abs=1e-4)


def test_a_loss_of_counts_is_the_noise_of_a_population_and_others_are_refused():
    assert with_noise_of("poisson", node_fit.MixedEffects()).noise == "poisson"
    assert with_noise_of(node_fit.NegativeBinomial(), node_fit.MixedEffects()).noise == "negative_binomial"
    given = node_fit.MixedEffects(noise="combined")
    assert with_noise_of("squares", given) is given
    with pytest.raises(ValueError, match=r"loss=poisson and population\.noise='combined' contradict each other"):
        with_noise_of("poisson", given)
    with pytest.raises(ValueError, match="loss=Huber is not one of populations, whose noise is that of population"):
        node_fit.fit_population(
            draw_counts("poisson"), random=["k"], options=dataclasses.replace(fitted_options(), loss="huber")
        )
