"""Ends of intervals: from the line to the user's units, at bounds, and of what follows from the constants."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from node_fit.uncertainty.confidence import (
    end_of,
    interval_of,
    join_names,
    quantile,
    simplest_set,
    strong_correlations,
)
from node_fit.uncertainty.linearization import Information, Place


def test_an_end_far_away_is_the_bound_of_its_side():
    bounds = (2.0, 5.0)
    assert end_of(0.0, 0.1, bounds, -1) == pytest.approx(3.5)
    assert end_of(-100.0, 0.0, bounds, -1) == 2.0 and end_of(100.0, 0.0, bounds, 1) == 5.0
    assert end_of(-math.inf, 0.0, (None, None), -1) == -math.inf and end_of(1e9, 0.0, (None, None), 1) == 1e9
    assert end_of(99.0, 0.0, (0.0, None), 1) == math.inf and end_of(-99.0, 0.0, (0.0, None), -1) == 0.0


def test_an_interval_on_the_line_is_one_in_the_users_units():
    found = interval_of(Place("k", 0, (None, None), 1.0), 3.0, 0.5, 2.0, 4.0)
    assert (found.estimate, found.standard_error, found.lower, found.upper) == (3.0, 0.5, 2.0, 4.0)
    # A positive constant is seen by its logarithm, or what is near it: the error is stretched as the line is there.
    found = interval_of(Place("k", 0, (0.0, None), 1.0), 0.3, 0.01, 0.29, 0.31)
    assert found.standard_error == pytest.approx((found.upper - found.lower) / 2, rel=1e-3)


@pytest.mark.parametrize(("noise", "law"), [("given", stats.norm()), ("estimated", stats.t(7))])
def test_half_of_an_interval_is_a_quantile_of_the_normal_or_of_students_distribution(noise, law):
    information = Mock(spec=Information, evidence=Mock(noise=noise), degrees_of_freedom=7.0, variance=1.0)
    assert quantile(information, 0.9) == pytest.approx(law.ppf(0.95))


def test_strong_correlations_of_either_sign_are_named():
    places = [Place(name, at, (None, None), 1.0) for at, name in enumerate("abc")]
    covariance = np.array([[1.0, -1.96, 0.5], [-1.96, 4.0, 0.0], [0.5, 0.0, 1.0]])
    errors = np.sqrt(np.diag(covariance))
    assert strong_correlations(Mock(spec=Information, places=places, errors=errors, covariance=covariance)) == (
        ("a", "b", -0.98),
    )
    unknown = np.array([np.inf, 2.0, 1.0])
    assert strong_correlations(Mock(spec=Information, places=places, errors=unknown, covariance=covariance)) == ()


def test_directions_that_move_few_constants():
    mixed = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]) / 2
    found = simplest_set(mixed)
    assert ((np.abs(found) > 1e-9).sum(axis=1) == 2).all() and np.abs(found).max() == pytest.approx(1.0)
    np.testing.assert_allclose(np.linalg.matrix_rank(np.vstack([mixed, found])), 2)


def test_names_are_joined():
    assert [join_names(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
