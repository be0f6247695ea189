"""Places at which hidden states may start, within their bounds and near the measured values."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.fitting.screening import SEARCH_FACTOR, Size, start_at

SHARES = np.linspace(0, 1, 11)


def test_starts_lie_between_two_bounds():
    found = start_at(SHARES, Size(100.0, signed=True), (2.0, 4.0))
    assert found[0] == pytest.approx(2.02) and found[-1] == pytest.approx(3.98) and (np.diff(found) > 0).all()


@pytest.mark.parametrize(("bounds", "sign", "shift"), [((1.0, None), 1, 1.0), ((None, 1.0), -1, 1.0)])
def test_starts_are_log_uniform_beyond_one_bound_whatever_sign_was_measured(bounds, sign, shift):
    for signed in (False, True):
        found = sign * (np.asarray(start_at(SHARES, Size(5.0, signed), bounds)) - shift)
        np.testing.assert_allclose(np.log(found / 5), (2 * SHARES - 1) * np.log(SEARCH_FACTOR), atol=1e-9)


def test_half_of_the_starts_are_negative_where_measured_values_are():
    found = np.asarray(start_at(SHARES, Size(5.0, signed=True), (None, None)))
    np.testing.assert_array_equal(np.sign(found), np.where(SHARES < 0.5, -1, 1))
    np.testing.assert_allclose(np.abs(found[[0, -1]]), 5.0 * SEARCH_FACTOR)
    assert (np.asarray(start_at(SHARES, Size(5.0, signed=False), (None, None))) > 0).all()


@pytest.mark.parametrize(("values", "signed"), [([1.0, -0.05, 4.0], False), ([1.0, -0.5, 4.0], True)])
def test_values_a_little_below_zero_are_noise(values, signed):
    data = nf.Dataset.from_arrays(np.arange(3.0), np.array(values)[:, None], states=("x",))
    assert Size.of(data) == Size(4.0, signed)
