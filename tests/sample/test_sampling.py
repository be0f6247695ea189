"""Draws from posteriors: against quadrature, with priors, of noise models, and what they say of themselves."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.petab import DECAY as DECAY_SBML
from helpers.petab import write_problem

import node_fit as nf
from node_fit.runtime.placement import scope
from node_fit.sample.density import ConstantPrior, find_mode, log_prior_of_constants, read_priors
from node_fit.sample.sampling import Posterior
from node_fit.uncertainty.linearization import Place

TIMES = np.linspace(0, 5, 12)
DECAY = nf.Known(equations={"c": "-k*c"}, constants={"k": [0.3, 0, None]})


def fit_decay(ys, **options):
    data = nf.Dataset.from_arrays(TIMES, np.reshape(ys, (1, -1, 1)), states=["c"], **options.pop("given", {}))
    made = nf.Options(precision="x64", effort="quick", **options)
    return nf.fit(data, field=DECAY, start=options.pop("start", "fitted"), options=made)


@pytest.fixture(scope="module")
def noisy():
    return 10 * np.exp(-0.5 * TIMES) + 1.0 * np.random.default_rng(0).standard_normal(12)


@pytest.fixture(scope="module")
def given(noisy):
    return fit_decay(noisy, given={"sigma": 1.0}, derived={"half_life": "log(2)/k"})


def quadrature(density):
    """Quantiles of the rate, from a density of the logarithm of the rate and of the start, on a grid."""
    logs, starts = np.linspace(-2.5, 1.0, 701), np.linspace(2, 18, 401)
    values = density(np.exp(logs)[:, None, None], starts[None, :, None])
    weights = np.exp(values - values.max()).sum(axis=1)
    return np.exp(np.interp([0.025, 0.5, 0.975], np.cumsum(weights) / weights.sum(), logs))


@pytest.mark.long
@pytest.mark.slow
def test_posterior_of_a_decay_equals_quadrature(noisy, given):
    def with_given_noise(rate, start):
        return -((noisy - start * np.exp(-rate * TIMES)) ** 2).sum(axis=2) / 2

    posterior = nf.sample(given, draws=1000, warmup=200)
    exact = quadrature(with_given_noise)
    assert posterior.quantiles()["k"] == pytest.approx(exact, rel=0.02)
    assert max(posterior.rhat.values()) < 1.01 and not posterior.diverging.any()
    np.testing.assert_allclose(posterior.constants["half_life"], np.log(2) / posterior.constants["k"])
    assert posterior.to_frame().shape == (4000, 6)
    assert posterior.to_arviz().posterior["k"].shape == (4, 1000)
    low, high = posterior.bands(given.data["train"], 0.9)
    assert 0.5 < ((noisy > low[0, :, 0]) & (noisy < high[0, :, 0])).mean() <= 1


@pytest.mark.long
@pytest.mark.slow
def test_unknown_noise_is_integrated_out(noisy):
    """As in the formula: the sum of squares to the power of minus half the number of values."""
    fit = fit_decay(noisy)

    def marginal(rate, start):
        return -6 * np.log(((noisy - start * np.exp(-rate * TIMES)) ** 2).sum(axis=2))

    assert nf.sample(fit, draws=1000, warmup=200).quantiles()["k"] == pytest.approx(quadrature(marginal), rel=0.03)


@pytest.mark.long
@pytest.mark.slow
def test_prior_of_a_constant(noisy, given):
    def density(rate, start):
        likelihood = -((noisy - start * np.exp(-rate * TIMES)) ** 2).sum(axis=2) / 2
        # In the logarithm of the rate, a normal density of the rate has its volume.
        return likelihood + (-(((rate - 0.3) / 0.03) ** 2) / 2 + np.log(rate))[..., 0]

    posterior = nf.sample(given, draws=1000, warmup=200, prior={"k": ("normal", 0.3, 0.03)})
    assert posterior.quantiles()["k"] == pytest.approx(quadrature(density), rel=0.02)
    assert posterior.prior.startswith("k normal(0.3, 0.03)")


@pytest.mark.long
@pytest.mark.slow
def test_noise_models_have_posteriors_of_their_constants():
    counts = np.random.default_rng(1).poisson(40 * np.exp(-0.3 * TIMES)).astype(float)
    posterior = nf.sample(fit_decay(counts, loss="poisson"), draws=500, warmup=200)
    low, _, high = posterior.quantiles()["k"]
    assert low < 0.3 < high
    predicted = posterior.predict(posterior.fit.data["train"], noise=True, size=20)
    assert predicted.shape == (20, 1, 12, 1) and (predicted == np.round(predicted)).all()
    noisy = 10 * np.exp(-0.5 * TIMES) * np.exp(0.1 * np.random.default_rng(2).standard_normal(12))
    found = nf.sample(fit_decay(noisy, given={"sigma": "proportional"}), draws=500, warmup=200).quantiles()
    assert found["sigma_rel"][0] < 0.1 < found["sigma_rel"][2]


def drawn(constants, diverging=0):
    constants = {name: np.asarray(values, float) for name, values in constants.items()}
    shape = next(iter(constants.values())).shape
    flags = np.zeros(shape, bool)
    flags.flat[:diverging] = True
    return Posterior(constants, np.zeros((*shape, 1)), np.zeros(shape), flags, "", 0.0, 0.0)


@pytest.mark.parametrize(
    ("apart", "draws", "diverging", "says"),
    [
        (0.0, 500, 0, "effective draws (k), no divergences."),
        (1.0, 500, 0, "the chains do not agree, so do not use them"),
        (0.0, 500, 1, "1 divergence; the posterior has corners that were left out"),
        (0.0, 50, 0, "ends of intervals are rough: draw more"),
    ],
)
def test_sentence(apart, draws, diverging, says):
    values = np.random.default_rng(0).standard_normal((4, draws)) + apart * np.arange(4)[:, None]
    assert says in drawn({"k": values}, diverging).sentence


def test_parquet(tmp_path):
    import pandas as pd

    posterior = drawn({"k": np.arange(8.0).reshape(2, 4)})
    posterior.save(tmp_path / "draws.parquet")
    frame = pd.read_parquet(tmp_path / "draws.parquet")
    assert list(frame) == ["chain", "draw", "k", "log_density", "diverging"]
    assert frame.k.tolist() == list(range(8)) and frame.chain.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("entry", [("gamma", 1.0, 2.0), ("normal", 1.0), ("normal", 0.0, -1.0), ("uniform", 2.0, 1.0)])
def test_priors_are_checked(entry):
    with pytest.raises(ValueError, match="prior of 'k' must be"):
        read_priors({"k": entry}, ["k"])
    with pytest.raises(ValueError, match="prior names 'm', which is no constant of the fit; they are k"):
        read_priors({"m": ("normal", 0.0, 1.0)}, ["k"])


def test_densities_of_priors_are_scipys():
    from scipy import stats

    x = np.array([0.3, 0.5, 2.0])
    for prior, dist in (
        (ConstantPrior("normal", 0.3, 0.5), stats.norm(0.3, 0.5)),
        (ConstantPrior("lognormal", 0.3, 0.5), stats.lognorm(0.5, scale=np.exp(0.3))),
        (ConstantPrior("uniform", 0.1, 3.0), stats.uniform(0.1, 2.9)),
    ):
        found, exact = np.asarray(prior.log(x)), dist.logpdf(x)
        np.testing.assert_allclose(found - found[0], exact - exact[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"draws": 2}, "draws, chains and warmup must be at least 4, 2 and 20"),
        ({"acceptance": 1.5}, "acceptance must be above 0 and below 1"),
        ({}, "fit must be a fit, a population's or a PEtab fit, or a PEtab problem"),
    ],
)
def test_arguments_are_checked(given, says):
    with pytest.raises(ValueError, match=says):
        nf.sample(SimpleNamespace(), **given)


@pytest.mark.slow
def test_what_has_no_posterior_is_refused(noisy):
    with pytest.raises(ValueError, match=r"fit the scale, too: data\.sigma=additive"):
        nf.sample(fit_decay(noisy, loss="huber"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("lower", [0.01, 0.6])
def test_posterior_of_a_petab_problem_equals_quadrature(tmp_path, lower):
    """Of x = 2 exp(-k t) with noise of known size, and log10 k uniform; also where the best k is at a bound."""
    times, values = np.array([0.5, 1.0, 2.0, 3.0]), np.array([1.6, 1.15, 0.8, 0.4])
    rows = "".join(f"y\tonly\t{time}\t{value}\n" for time, value in zip(times, values, strict=True))
    path = write_problem(
        tmp_path / "decay",
        model_xml=DECAY_SBML[: DECAY_SBML.index("<listOfEvents>")] + "</model></sbml>",
        conditions_tsv="conditionId\nonly\n",
        measurements_tsv="observableId\tsimulationConditionId\ttime\tmeasurement\n" + rows,
        observables_tsv="observableId\tobservableFormula\tnoiseFormula\ny\tx\t0.2\n",
        parameters_tsv="parameterId\tparameterScale\tlowerBound\tupperBound\tnominalValue\testimate\n"
        f"k\tlog10\t{lower}\t10\t0.7\t1\n",
    )
    posterior = nf.sample(nf.fit_petab(nf.read_petab(path)), draws=600, warmup=200, chains=2)
    logs = np.linspace(np.log10(lower), 1, 4001)
    misfit = (values - 2 * np.exp(-(10 ** logs[:, None]) * times)) / 0.2
    weights = np.exp(-0.5 * (misfit**2).sum(axis=1))
    mean = np.average(10**logs, weights=weights)
    deviation = np.sqrt(np.average((10**logs - mean) ** 2, weights=weights))
    drawn = posterior.constants["k"]
    assert drawn.mean() == pytest.approx(mean, abs=0.15 * deviation)
    assert drawn.std() == pytest.approx(deviation, rel=0.15)


def test_the_mode_between_bounds_is_found_from_one_of_them():
    """Of the normal density of p = logistic(z) around 1.2, beyond the bound of 1, in the coordinate z."""
    with scope("x64"):
        mode = find_mode(lambda z: jnp.sum(-(((jax.nn.sigmoid(z) - 1.2) / 0.3) ** 2) / 2 - jnp.abs(z)), np.array([2.9]))
        sigmoid = 1 / (1 + np.exp(-mode))
    assert (1.2 - sigmoid) / 0.09 * sigmoid * (1 - sigmoid) == pytest.approx(1.0, abs=1e-4) and mode[0] > 0


@pytest.mark.parametrize("bounds", [(None, None), (0.0, None), (0.0, 8.0)])
def test_the_prior_of_a_coordinate_has_the_mass_of_that_of_its_constant(bounds):
    prior = ConstantPrior("normal", 3.0, 0.4)
    place, line = Place("k", 0, bounds, 2.0), np.linspace(-40, 40, 400_001)
    with scope("x64"):
        priors = {place: prior}
        logs = jax.vmap(lambda z: log_prior_of_constants(priors, z[None]))(jnp.asarray(line / 2.0))
    assert np.trapezoid(np.exp(np.asarray(logs)), line) == pytest.approx(0.4 * np.sqrt(2 * np.pi), rel=1e-6)
