"""Fits whose noise has constants, limits or counts: what they recover, and how sure they are."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import node_fit as nf
from node_fit.model.noise import make_noise
from node_fit.runtime.placement import scope_of

pytestmark = pytest.mark.slow

TIMES = np.linspace(0, 12, 40)
RATE, LIMIT = 0.55, 0.5
DECAY = nf.Known(equations={"c": "-k*c"}, constants={"k": [0.3, 0, None]})


def fit_decay(ys, *, loss="squares", **given):
    data = nf.Dataset.from_arrays(TIMES, np.reshape(ys, (1, -1, 1)), states=["c"], **given)
    return nf.fit(data, field=DECAY, start="fitted", options=nf.Options(loss=loss, precision="x64", effort="quick"))


@pytest.fixture(scope="module")
def noisy():
    return 20 * np.exp(-RATE * TIMES) + 0.3 * np.random.default_rng(0).standard_normal(40)


@pytest.fixture(scope="module")
def censored(noisy):
    below = noisy < LIMIT
    return fit_decay(np.where(below, LIMIT, noisy), censored=-below.reshape(1, -1, 1).astype(int))


def test_values_below_a_limit(noisy, censored):
    """Their likelihood is the normal's tail: the fit is its maximum, by another search."""
    from scipy.optimize import minimize

    def negative_log(theta):
        level, rate, sigma = np.exp(theta)
        mean = level * np.exp(-rate * TIMES)
        tail = stats.norm.logcdf(LIMIT, mean, sigma)
        return -np.where(noisy < LIMIT, tail, stats.norm.logpdf(noisy, mean, sigma)).sum()

    best = minimize(negative_log, np.log([20, 0.5, 0.3]), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
    assert censored.constants["k"] == pytest.approx(np.exp(best.x[1]), rel=1e-4)
    assert censored.model.constants()["sigma"] == pytest.approx(np.exp(best.x[2]), rel=1e-3)
    assert censored.likelihood().nll == pytest.approx(best.fun, abs=1e-4)
    found = censored.confidence().constants["k"]
    assert found.lower < RATE < found.upper


def test_the_verdict_sees_what_the_likelihood_sees(censored):
    """Values beyond a limit are no misfit, and do not make neighbours alike."""
    assert censored.diagnose().kind in ("good", "noise-limited")
    checks = censored.check_residuals()
    assert checks.says == () and checks.channels["c"].values == 40


@pytest.fixture(scope="module")
def rounded():
    """A decay in bins as wide as three standard deviations of the noise, from 0 on."""
    exact = 20 * np.exp(-RATE * TIMES) + 0.5 * np.random.default_rng(5).standard_normal(len(TIMES))
    lower = 1.5 * np.floor(exact / 1.5)
    return exact, lower, lower + 1.5


def most_likely(log_probability):
    """The most likely level, rate and noise of a decay, by another search, and the negative log-likelihood there."""
    from scipy.optimize import minimize

    def negative_log(theta):
        level, rate, sigma = np.exp(theta)
        return -log_probability(level * np.exp(-rate * TIMES), sigma).sum()

    best = minimize(negative_log, np.log([20, 0.5, 0.4]), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
    return np.exp(best.x), best.fun


def fit_bins(lower, upper, **given):
    return fit_decay(upper, censored=np.full((1, 40, 1), -1), other_end=lower.reshape(1, -1, 1), **given)


def test_values_in_bins(rounded):
    """Their likelihood is the probability of the bins: the fit is its maximum, and the verdict sees no misfit."""
    exact, lower, upper = rounded
    fit, of_exact = fit_bins(lower, upper), fit_decay(exact)
    (_, rate, sigma), nll = most_likely(
        lambda mean, sigma: np.log(stats.norm.cdf(upper, mean, sigma) - stats.norm.cdf(lower, mean, sigma))
    )
    assert fit.constants["k"] == pytest.approx(rate, rel=1e-4)
    assert fit.model.constants()["sigma"] == pytest.approx(sigma, rel=1e-3)
    assert fit.likelihood().nll == pytest.approx(nll, abs=1e-4)
    found, exactly = (each.confidence().constants["k"] for each in (fit, of_exact))
    assert found.lower < RATE < found.upper
    assert exactly.upper - exactly.lower < found.upper - found.lower < 2 * (exactly.upper - exactly.lower)
    assert fit.diagnose().kind in ("good", "noise-limited")
    assert fit.check_residuals().says == ()


def test_log_normal_noise_in_bins():
    """Bins whose lower ends are half of the upper ones, or 0, of noise in proportion."""
    exact = 20 * np.exp(-RATE * TIMES + 0.3 * np.random.default_rng(2).standard_normal(len(TIMES)))
    upper = np.maximum(2.0 ** np.ceil(np.log2(exact)), 1)
    lower = np.where(upper == 1, 0.0, upper / 2)
    fit = fit_bins(lower, upper, sigma="lognormal")
    with np.errstate(divide="ignore"):
        ends = np.log(lower), np.log(upper)

    def log_probability(mean, sigma):
        low, high = (stats.norm.cdf(end, np.log(mean), sigma) for end in ends)
        return np.log(high - low)

    (_, rate, sigma), nll = most_likely(log_probability)
    assert fit.constants["k"] == pytest.approx(rate, rel=1e-3) == pytest.approx(RATE, abs=0.05)
    assert fit.model.constants()["sigma_log"] == pytest.approx(sigma, rel=1e-2)
    assert fit.likelihood().nll == pytest.approx(nll, abs=1e-3)


def test_intervals_leave_less_bias_than_their_middles():
    """Of a decay into a lowest bin that is wide."""
    found = {"intervals": [], "middles": []}
    edges = np.array([-4.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0])
    for seed in range(8):
        exact = 20 * np.exp(-RATE * TIMES) + 0.5 * np.random.default_rng(seed).standard_normal(len(TIMES))
        place = np.digitize(exact, edges)
        lower, upper = edges[place - 1], edges[place]
        found["intervals"].append(fit_bins(lower, upper).constants["k"])
        found["middles"].append(fit_decay((lower + upper) / 2).constants["k"])
    bias = {name: abs(np.mean(values) - RATE) for name, values in found.items()}
    assert bias["intervals"] < 0.5 * bias["middles"]
    assert bias["intervals"] < 3 * np.std(found["intervals"]) / np.sqrt(8) < bias["middles"]


def test_profile_of_a_likelihood(censored):
    fisher, profile = (censored.confidence(method).constants for method in ("fisher", "profile"))
    assert profile["k"].lower == pytest.approx(fisher["k"].lower, rel=0.01)
    assert profile["sigma"].lower == pytest.approx(fisher["sigma"].lower, rel=0.1)


def test_fitted_constant_noise_is_least_squares(noisy):
    plain, fitted = fit_decay(noisy), fit_decay(noisy, sigma="additive")
    assert fitted.constants["k"] == pytest.approx(plain.constants["k"], rel=1e-6)
    assert fitted.likelihood().nll == pytest.approx(plain.likelihood().nll, abs=1e-6)
    mine, other = (fit.confidence().constants["k"] for fit in (fitted, plain))
    assert (mine.lower, mine.upper) == pytest.approx((other.lower, other.upper), rel=1e-3)


def test_counts_and_saved_models(tmp_path):
    means = 40 * np.exp(-0.3 * TIMES)
    counts = np.random.default_rng(1).poisson(means).astype(float)
    fit = fit_decay(counts, loss="poisson")
    predicted = fit.predict(fit.data["train"])[0, :, 0]
    nll = -stats.poisson.logpmf(counts, predicted).sum()
    assert fit.likelihood().nll == pytest.approx(nll, abs=0.01) and nll < -stats.poisson.logpmf(counts, means).sum()
    found = fit.confidence().constants["k"]
    assert found.lower < 0.3 < found.upper
    assert fit.confidence().noise == "given"
    fit.save(tmp_path / "model.nf")
    again = nf.load(tmp_path / "model.nf")
    np.testing.assert_array_equal(again.predict(fit.data["train"]), fit.predict(fit.data["train"]))


def test_counts_that_vary_more():
    means = 400 * np.exp(-0.3 * TIMES)
    counts = np.random.default_rng(2).negative_binomial(1 / 0.2, 1 / (1 + 0.2 * means)).astype(float)
    fit = fit_decay(counts, loss="negative_binomial")
    found = fit.confidence().constants
    assert found["k"].lower < 0.3 < found["k"].upper and found["dispersion"].lower < 0.2 < found["dispersion"].upper
    assert "loss=poisson says" in fit_decay(counts, loss="poisson").diagnose().sentence


def test_formula_of_the_noise_by_state():
    """Its constants are found, with intervals, beside those of the equations."""
    rng = np.random.default_rng(3)
    ts = np.linspace(0, 6, 60)
    xs, ys = 10 * np.exp(-0.5 * ts), 3 + 4 * np.exp(-ts)
    noisy = np.stack([xs * (1 + 0.1 * rng.standard_normal(60)), ys + 0.2 * rng.standard_normal(60)], axis=1)
    data = nf.Dataset.from_arrays(ts, noisy[None], states=["x", "y"], sigma={"x": "b*x", "y": "additive"})
    field = nf.Known(equations={"x": "-k*x", "y": "m*(3 - y)"}, constants={"k": [0.3, 0, None], "m": [0.5, 0, None]})
    fit = nf.fit(data, field=field, start="fitted", options=nf.Options(precision="x64", effort="quick"))
    found = fit.confidence().constants
    for name, true in {"k": 0.5, "m": 1.0, "b": 0.1, "sigma_y": 0.2}.items():
        assert found[name].lower < true < found[name].upper, name
    scored = fit.with_noise(data, fit.predict(data))
    assert scored.sigma is not None
    np.testing.assert_allclose(scored.sigma[0, :, 0], found["b"].estimate * fit.predict(data)[0, :, 0], rtol=1e-3)


def make(data, loss):
    import jax

    from node_fit.likelihood.losses import as_loss

    return nf.make_model(data, field=DECAY, loss=as_loss(loss), key=jax.random.key(0))


@pytest.mark.parametrize(
    ("loss", "given", "says"),
    [
        (
            "huber",
            {"censored": np.zeros((1, 40, 1), int)},
            "censored values need normal noise, loss=squares, not",
        ),
        ("poisson", {"sigma": 0.1}, "the noise of counts follows from loss=Poisson; leave"),
        ("poisson", {}, "Poisson needs counts, whole numbers from 0 on, got"),
        ("squares", {"sigma": "lognormal"}, "log-normal noise needs positive values, and 'c' has others"),
        ("squares", {"sigma": {"c": "s*unknown_("}}, "sigma of 'c': "),
        ("squares", {"sigma": {"c": {"formula": "s*c", "constants": {"r": 1.0}}}}, "name 'r', which is not in"),
        ("squares", {"sigma": {"c": "k*c"}}, None),
    ],
)
def test_what_does_not_go_together(noisy, loss, given, says):
    data = nf.Dataset.from_arrays(TIMES, (noisy - 1).reshape(1, -1, 1), states=["c"], **given)
    if says is None:
        assert make(data, loss).noise.constants.names == ()  # A constant of the field serves the noise, too.
        return
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        make(data, loss)


def test_plain_fits_have_no_noise_model(noisy):
    data = nf.Dataset.from_arrays(TIMES, noisy.reshape(1, -1, 1), states=["c"], sigma=0.3)
    model = make(data, "huber")
    assert model.noise is None
    with scope_of(model):
        assert make_noise(data, nf.StudentT(), model.system, {}) is None


def test_a_constant_that_vanishes_leaves_the_others_their_intervals():
    """Noise that is all relative: the constant part is open, and says nothing of the rest."""
    means = 40 * np.exp(-0.3 * TIMES)
    noisy = means * (1 + 0.1 * np.random.default_rng(7).standard_normal(40))
    vanished = {"formula": "s0 + s1*c", "constants": {"s0": [1e-200, 0, None]}}
    both, relative = (fit_decay(noisy, sigma={"c": sigma}) for sigma in (vanished, "s1*c"))
    found, alone = (fit.confidence().constants for fit in (both, relative))
    for name in ("k", "s1"):
        assert (found[name].lower, found[name].upper) == pytest.approx((alone[name].lower, alone[name].upper), rel=0.02)
    assert any("s0 is not determined" in sentence for sentence in both.confidence().undetermined)


def test_a_fit_that_goes_on_has_the_noise_of_its_data(noisy, censored):
    data = nf.Dataset.from_arrays(TIMES, noisy.reshape(1, -1, 1), states=["c"], sigma="combined")
    again = nf.fit(data, model=censored.model, options=nf.Options(precision="x64", effort="quick"))
    assert set(again.model.constants()) == {"k", "sigma", "sigma_rel"}
    plain = nf.fit(replace(data, noise={}), model=censored.model, options=nf.Options(precision="x64", effort="quick"))
    assert plain.model.noise is None
