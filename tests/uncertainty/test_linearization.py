"""What the data say of constants, against linear regression: intervals, noise, and what is not determined."""

import functools
import math

import jax
import numpy as np
import pytest
import scipy.stats
from helpers.evidence import LinearEvidence

import node_fit as nf
from node_fit.likelihood.losses import LEAST_SQUARES, Huber
from node_fit.model.ensemble import factors_of_t
from node_fit.uncertainty.confidence import find_fisher_intervals, profile
from node_fit.uncertainty.likelihood import compute_likelihood
from node_fit.uncertainty.linearization import Information, Unsure, draw_standard

FREE, POSITIVE = (None, None), (0.0, None)


def groups(difference, bounds=FREE, unit=1.0, noise=0.05, seed=0, both=20):
    """`y = k t + difference m t`, of two groups, `m` of 0 and 1; `unit` is that of the difference."""
    rng, ts = np.random.default_rng(seed), np.tile(np.linspace(0, 1, 20), 2)
    mutant = (np.arange(40) >= 40 - both).astype(float)
    ts[0] = 0.01
    design = np.stack([ts, ts * mutant * unit], axis=1)
    errors = noise * rng.standard_normal(40)
    errors -= design @ np.linalg.lstsq(design, errors, rcond=None)[0]  # So the estimate is the difference itself.
    ys = design @ np.array([0.8, difference / unit]) + errors
    return LinearEvidence(design, ys, {"k": FREE, "shift": bounds})


@pytest.mark.parametrize("difference", [1e-4, -0.005, 0.3])
@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-6])
def test_a_difference_near_zero_is_determined(difference, unit):
    """Its interval is narrow beside the constant that it is added to, in any unit."""
    found = find_fisher_intervals(groups(difference, unit=unit), 0.95)
    assert found.undetermined == ()
    assert found.constants["shift"].lower < difference / unit < found.constants["shift"].upper


def test_a_difference_within_bounds_on_both_sides_of_zero_is_determined():
    """On the line of (-1, 1), whose middle is 0, a small difference is about half as far."""
    assert find_fisher_intervals(groups(0.002, bounds=(-1.0, 1.0)), 0.95).undetermined == ()


def test_a_difference_that_noise_hides_is_not_determined():
    """Without the group that it is measured against, but for a row in which nothing happens."""
    found = find_fisher_intervals(groups(0.0, both=39), 0.95)
    assert found.undetermined == ("k and shift are not determined by these data: only a combination of them is.",)


@pytest.mark.parametrize(("sign", "only"), [(1.0, "product"), (-1.0, "ratio")])
def test_constants_that_only_occur_together_are_named(sign, only):
    """As logarithms, which are added or subtracted."""
    ts = np.linspace(1, 2, 20)
    ys = ts + 0.01 * np.random.default_rng(0).standard_normal(20)
    evidence = LinearEvidence(np.stack([ts, sign * ts, ts**2], axis=1), ys, dict.fromkeys("abc", POSITIVE))
    found = find_fisher_intervals(evidence, 0.95)
    assert found.undetermined == (f"a and b are not determined by these data: only their {only} is.",)
    assert (found.constants["a"].lower, found.constants["a"].upper) == (0.0, math.inf)
    assert math.isfinite(found.constants["c"].standard_error)


def line(sigma=None, prior=0.0, rows=12):
    ts = np.linspace(0, 2, rows)
    ys = 1 + 1.5 * ts + 0.2 * np.random.default_rng(0).standard_normal(rows)
    return ts, ys, LinearEvidence(np.stack([ts, np.ones(rows)], axis=1), ys, {"k": FREE}, sigma=sigma, prior=prior)


@pytest.mark.parametrize("sigma", [None, 0.3])
def test_a_straight_line_has_the_interval_of_linear_regression(sigma):
    ts, ys, evidence = line(sigma)
    found = find_fisher_intervals(evidence, 0.95)
    k, expected = found.constants["k"], scipy.stats.linregress(ts, ys)
    error = expected.stderr if sigma is None else sigma / math.sqrt(((ts - ts.mean()) ** 2).sum())
    reach = scipy.stats.t.ppf(0.975, 10) if sigma is None else scipy.stats.norm.ppf(0.975)
    assert k.standard_error == pytest.approx(error, rel=1e-9)
    assert (k.lower, k.upper) == pytest.approx((expected.slope - reach * error, expected.slope + reach * error))
    assert (found.noise, found.degrees_of_freedom) == (("estimated", 10) if sigma is None else ("given", None))


@pytest.mark.parametrize("sigma", [None, 0.3])
def test_the_profile_of_a_straight_line_is_its_interval(sigma):
    _, _, evidence = line(sigma)
    fisher, found = (find(evidence, 0.95).constants["k"] for find in (find_fisher_intervals, profile))
    assert (found.lower, found.upper) == pytest.approx((fisher.lower, fisher.upper), rel=5e-3)


def test_an_interval_that_reaches_too_far_ends_at_the_bound():
    """A factor of 1e13 and more is no end."""
    rng, ts = np.random.default_rng(0), np.linspace(0, 1, 20)
    ys = ts + rng.standard_normal(20)
    evidence = LinearEvidence(np.stack([0.01 * ts, np.ones(20)], axis=1), ys, {"k": POSITIVE})
    k = find_fisher_intervals(evidence, 0.95).constants["k"]
    assert (k.lower, k.upper) == (0.0, math.inf) and math.isfinite(k.standard_error)


def test_constants_that_are_strongly_correlated_are_named():
    rng, ts = np.random.default_rng(0), np.linspace(1, 1.5, 40)
    design = np.stack([ts, np.ones(40)], axis=1)
    ys = design @ [1.0, 2.0] + 0.01 * rng.standard_normal(40)
    ((one, other, value),) = find_fisher_intervals(LinearEvidence(design, ys, {"a": FREE, "b": FREE}), 0.9).correlations
    covariance = np.linalg.inv(design.T @ design)
    expected = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
    assert (one, other) == ("a", "b") and value == pytest.approx(expected, abs=1e-4) and value < -0.95
    assert find_fisher_intervals(groups(0.3), 0.9).correlations == ()


@pytest.mark.parametrize("sigma", [None, 0.3])
def test_the_likelihood_is_that_of_normal_residuals(sigma):
    """H. Akaike, 1974, and G. Schwarz, 1978: the noise counts as a parameter if it is estimated."""
    _, ys, evidence = line(sigma)
    left = evidence.design @ evidence.x - ys
    spread, free = (math.sqrt(left @ left / 12), 3) if sigma is None else (sigma, 2)
    nll = -scipy.stats.norm.logpdf(left, scale=spread).sum()
    found = compute_likelihood(evidence)
    assert (found.nll, found.aic) == pytest.approx((nll, 2 * nll + 2 * free))
    assert found.bic == pytest.approx(2 * nll + free * math.log(12))
    assert found.chi2_per_dof == (None if sigma is None else pytest.approx(left @ left / sigma**2 / 10))


def test_a_prior_counts_as_part_of_a_parameter():
    """Ridge regression's effective degrees of freedom (Hastie, Tibshirani and Friedman, 2009, equation 3.50)."""
    ts, _, evidence = line(prior=np.array([3.0, 0.0]))
    design = np.stack([ts, np.ones(12)], axis=1)
    hat = design @ np.linalg.solve(design.T @ design + np.diag([3.0, 0.0]), design.T)
    assert Information(evidence).parameters == pytest.approx(np.trace(hat))
    assert Information(evidence).degrees_of_freedom == pytest.approx(12 - np.trace(hat))


@pytest.mark.parametrize("pairs", [2, 16])
def test_pairs_of_draws_have_the_covariance_of_the_parameters(pairs):
    """Exactly, from two pairs on, since there are two parameters."""
    ts, ys, evidence = line()
    design = np.stack([ts, np.ones(12)], axis=1)
    moves = Information(evidence).draw(2 * pairs + 1, np.random.default_rng(0))
    left = ys - design @ evidence.x
    assert not moves[0].any() and moves.sum(axis=0) == pytest.approx(0, abs=1e-9)
    assert moves.T @ moves / (2 * pairs) == pytest.approx(left @ left / 10 * np.linalg.inv(design.T @ design))


def test_more_parameters_than_pairs_are_drawn_independently():
    found = draw_standard(500, 600, np.random.default_rng(0))
    assert found.std() == pytest.approx(1, abs=0.01) and np.cov(found[:, :2].T)[0, 1] == pytest.approx(0, abs=0.15)


def test_data_that_leave_a_direction_open_have_no_draws_without_a_prior():
    ts = np.linspace(1, 2, 20)
    design, ys = np.stack([ts, ts + 1e-5 * ts**2], axis=1), ts + 0.1 * np.random.default_rng(0).standard_normal(20)
    open_, bounded = (LinearEvidence(design, ys, {"a": FREE, "b": FREE}, prior=prior) for prior in (0.0, 1.0))
    with pytest.raises(Unsure, match=r"leave directions of the parameters open, .* set penalty\.ridge"):
        Information(open_).draw(5, np.random.default_rng(0))
    assert np.isfinite(Information(bounded).draw(5, np.random.default_rng(0))).all()


def test_the_noise_has_its_degrees_of_freedom():
    """Of each channel: its sum of squares over its values less the leverages of its rows."""
    _, _, evidence = line()
    noise, freedom = Information(evidence).noise_of_channels
    left = evidence.at(evidence.x).residuals[0]
    assert freedom == pytest.approx(10) and noise == pytest.approx([math.sqrt(left @ left / 10)])
    evidence.states, evidence.weight = ("x", "y"), np.tile([1.0, 2.0], 6)[None]
    noise, freedom = Information(evidence).noise_of_channels
    hat = evidence.design @ np.linalg.pinv(evidence.design)
    for channel, factor in ((0, 1.0), (1, 2.0)):
        rows = slice(channel, None, 2)
        expected = (left[rows] / factor) @ (left[rows] / factor) / (6 - np.trace(hat[rows, rows]))
        assert noise[channel] == pytest.approx(math.sqrt(expected))
    assert freedom == pytest.approx(min(6 - np.trace(hat[at::2, at::2]) for at in (0, 1)))


def test_a_channel_of_few_values_has_the_noise_of_all():
    _, _, evidence = line()
    evidence.states = tuple("abcdefghijkl")
    noise, freedom = Information(evidence).noise_of_channels
    assert noise == pytest.approx(math.sqrt(Information(evidence).variance)) and freedom == pytest.approx(10)


def test_gross_outliers_do_not_widen_the_noise_of_a_robust_loss():
    rng, ts = np.random.default_rng(0), np.linspace(0, 1, 200)
    ys = ts + 0.1 * rng.standard_normal(200)
    ys[::40] += 5.0
    design = np.stack([ts, np.ones(200)], axis=1)
    robust, plain = (
        Information(LinearEvidence(design, ys, {"k": FREE}, loss=loss, spread=spread)).noise_of_channels[0][0]
        for loss, spread in ((Huber(), 0.1), (LEAST_SQUARES, None))
    )
    assert 0.08 < robust < 0.3 and plain > 0.7


def test_factors_are_those_of_student_s_t():
    at = [49, 89, 98]
    assert factors_of_t(5.0)[at] == pytest.approx(scipy.stats.t.ppf([0.75, 0.95, 0.995], 5))
    assert factors_of_t(math.inf)[at] == pytest.approx(scipy.stats.norm.ppf([0.75, 0.95, 0.995]))


def members_alike(given, ts, noise) -> tuple[nf.Ensemble, nf.Dataset, nf.NeuralODE]:
    """An ensemble of one model of a decay, whose start is fitted to the first `given` rows; its data, and the model."""
    data = nf.Dataset.from_arrays(ts, np.exp(-0.7 * ts)[:, None], states=["x"])
    field = functools.partial(nf.Known, equations={"x": "-k*x"}, constants={"k": 0.7})
    start = functools.partial(nf.Fitted, given=given)
    model = nf.make_model(data, field=field, start=start, scaling=nf.Scaling(affine=False), key=jax.random.key(0))
    return nf.Ensemble.of([model] * 33, data, None, gain=100.0, noise=np.array([noise]), freedom=5.0), data, model


@pytest.mark.parametrize("given", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_the_start_is_as_uncertain_as_the_rows_that_it_is_fitted_to(given):
    """Of members that are alike, the spread is the error of the start alone, which regression knows."""
    ts, noise = np.linspace(0, 3, 16), 0.1
    ensemble, data, _ = members_alike(given, ts, noise)
    width = np.asarray(ensemble.moments(data)[1])[0, :, 0]
    reads = np.exp(-0.7 * ts)[:given]
    expected = np.hypot(noise, noise * np.exp(-0.7 * ts) / np.linalg.norm(reads))
    assert width == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("given", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_bands_are_of_students_t_and_a_start_that_is_stated_is_sure(given):
    ts, noise = np.linspace(0, 3, 16), 0.1
    ensemble, data, model = members_alike(given, ts, noise)
    width = np.asarray(ensemble.moments(data)[1])[0, :, 0]
    bands = ensemble.bands(data, level=0.9)
    assert (bands.upper - bands.lower)[0, :, 0] == pytest.approx(2 * scipy.stats.t.ppf(0.95, 5) * width, rel=1e-3)
    stated = ensemble.moments(model.starting_from({"x": 1.0}, ts, None))[1]
    assert np.asarray(stated) == pytest.approx(noise, rel=1e-3)
