"""Ranges of derived quantities against closed forms: poles, extremes, ratios, and what the data leave open."""

import math

import numpy as np
import pytest
import scipy.stats
from helpers.evidence import LinearEvidence

from node_fit.model.fields.known import Quantity
from node_fit.uncertainty.confidence import find_fisher_intervals, with_derived
from node_fit.uncertainty.derived import Region, find_range
from node_fit.uncertainty.linearization import Place

FREE, POSITIVE = (None, None), (0.0, None)


def range_of(text, lower=0.3, upper=0.36, bounds=POSITIVE):
    region = Region.between(Place("k", 0, bounds, 1.0), lower, upper, (lower + upper) / 2)
    return find_range(Quantity("q", text), region, {"k": (lower + upper) / 2}, positive=False)


@pytest.mark.parametrize("bounds", [FREE, POSITIVE], ids=["free", "positive"])
@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [
        ("1/(k - 0.33)", -math.inf, math.inf),
        ("k + 1e-9/(0.66 - 2*k)", -math.inf, math.inf),
        ("1/(k - 0.33)**2", 0.03**-2, math.inf),
        ("-(k - 0.33)**-2", -math.inf, -(0.03**-2)),
        ("log(abs(k - 0.33))", -math.inf, math.log(0.03)),
        ("tan(k*pi_)", -math.inf, math.inf),
        ("k/(exp(k) - exp(0.33))", -math.inf, math.inf),
        ("sqrt(k - 0.33)", -math.inf, math.inf),
        ("1/(k - 0.2)", 1 / 0.16, 1 / 0.1),
        ("(k**2 - 0.331**2)/(k - 0.331)", 0.631, 0.691),
        ("(k - 0.32)**2", 0.0, 0.04**2),
        ("log(2)/k", math.log(2) / 0.36, math.log(2) / 0.3),
    ],
)
def test_a_quantity_of_one_constant_has_the_range_of_its_interval(text, lower, upper, bounds):
    found = range_of(text.replace("pi_", repr(math.pi / 0.66)), bounds=bounds)
    assert (found.lower, found.upper) == pytest.approx((lower, upper), rel=1e-6, abs=1e-12)
    assert bool(found.why) == math.isinf(found.upper - found.lower)


def test_an_interval_without_an_end_has_the_limit_there():
    evidence = LinearEvidence(np.zeros((9, 1)), np.arange(9.0), {"k": POSITIVE})
    found = derive(evidence, {"q": "exp(-k)"})
    assert (found.derived["q"].lower, found.derived["q"].upper) == (0.0, 1.0)


def derive(evidence, texts, level=0.95):
    return with_derived(find_fisher_intervals(evidence, level), evidence, texts)


def regression(slopes, seed=0, rows=40, bounds=FREE, noise=0.1):
    """`y = a u + b v + noise` with correlated regressors; the exact covariance is that of linear regression."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((rows, 2)) @ np.array([[1.0, 0.4], [0.0, 1.0]])
    ys = design @ slopes + noise * rng.standard_normal(rows)
    evidence = LinearEvidence(design, ys, {"a": bounds, "b": bounds})
    estimate = evidence.x
    left = ys - design @ estimate
    covariance = left @ left / (rows - 2) * np.linalg.inv(design.T @ design)
    return evidence, estimate, covariance, scipy.stats.t.ppf(0.975, rows - 2)


def test_a_linear_quantity_has_the_interval_of_its_contrast():
    evidence, (a, b), covariance, reach = regression([1.0, 0.6])
    gap = derive(evidence, {"gap": "a - 2*b"}).derived["gap"]
    error = math.sqrt(np.array([1, -2]) @ covariance @ np.array([1, -2]))
    assert gap.standard_error == pytest.approx(error, rel=1e-6)
    assert (gap.lower, gap.upper) == pytest.approx((a - 2 * b - reach * error, a - 2 * b + reach * error), rel=1e-6)


def test_a_ratio_has_fieller_s_interval():
    """E. C. Fieller, J. R. Statist. Soc. B 16:175, 1954."""
    evidence, (a, b), ((saa, sab), (_, sbb)), reach = regression([1.0, 0.3])
    roots = np.sort(np.roots([b**2 - reach**2 * sbb, -2 * (a * b - reach**2 * sab), a**2 - reach**2 * saa]))
    found = derive(evidence, {"q": "a/b"}).derived["q"]
    assert (found.lower, found.upper) == pytest.approx(tuple(roots), rel=1e-5)


def test_a_ratio_whose_divisor_may_be_zero_has_no_ends():
    evidence, *_ = regression([1.0, 0.02])
    found = derive(evidence, {"q": "a/b"})
    assert (found.derived["q"].lower, found.derived["q"].upper) == (-math.inf, math.inf)
    assert found.notes[-1] == "q has a pole within the interval, where b is zero, so its own has no ends."


def test_a_square_at_its_minimum_has_the_interval_of_its_root():
    evidence, (a, b), covariance, reach = regression([0.5, 0.5])
    c = float(a - b)
    error = math.sqrt(np.array([1, -1]) @ covariance @ np.array([1, -1]))
    found = derive(evidence, {"q": f"(a - b - {c!r})**2", "p": f"a - b - {c!r}"}).derived
    assert (found["q"].lower, found["q"].upper) == pytest.approx((0.0, (reach * error) ** 2), rel=1e-5, abs=1e-12)
    # The square of a normal variable of mean 0 has this standard deviation.
    assert found["q"].standard_error == pytest.approx(math.sqrt(2) * error**2, rel=1e-5)


def test_a_positive_ratio_is_symmetric_in_its_logarithm():
    evidence, (a, b), covariance, reach = regression([1.0, 0.6], bounds=POSITIVE)
    found = derive(evidence, {"q": "a/b"}).derived["q"]
    error = math.sqrt(np.array([1, -1]) @ covariance @ np.array([1, -1]))
    assert found.standard_error == pytest.approx(math.exp(a - b) * error, rel=1e-6)
    assert (found.lower, found.upper) == pytest.approx(
        (math.exp(a - b - reach * error), math.exp(a - b + reach * error)), rel=1e-6
    )


@pytest.mark.parametrize(
    ("text", "is_known"),
    [("a + b", True), ("(a + b)**2", True), ("a", False), ("a - b", False), ("(a - b)**2", False), ("5", True)],
)
def test_what_the_data_leave_open_has_no_ends(text, is_known):
    """They determine the sum, and the least squares of least norm have equal parts, where `(a - b)**2` is flat."""
    shared = np.linspace(1, 2, 20)
    noise = 0.01 * np.random.default_rng(0).standard_normal(20)
    evidence = LinearEvidence(np.stack([shared, shared], 1), shared + noise, {"a": FREE, "b": FREE})
    found = derive(evidence, {"q": text}).derived["q"]
    assert math.isfinite(found.standard_error) == math.isfinite(found.upper) == is_known
