"""Values between two limits: their probability, its derivatives, and residuals whose squares are that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from node_fit.likelihood.limits import NARROW_INTERVAL, NEAR_MIDDLE, deviance_root, log_probability_within
from node_fit.likelihood.losses import Predictors, Squares, differentiate_likelihood
from node_fit.runtime.placement import scope

SIGMA = 0.5
OFF = np.array([-1.2, -0.3, 0.0, 0.7, 1.6])


@pytest.fixture(autouse=True)
def double_precision():
    with scope("x64"):
        yield


def at(off=OFF, width=0.8, side=-1, sigma=SIGMA):
    off = jnp.asarray(off)
    ones = jnp.ones_like(off)
    return Predictors(off, jnp.log(sigma) * ones, (), 0 * ones, side * ones, width * ones)


@pytest.mark.parametrize(("side", "width"), [(-1, 0.8), (1, 0.8), (-1, 1e-3), (1, 30.0), (-1, np.inf)])
def test_probability_is_the_difference_of_the_distribution(side, width):
    """With the prediction `off` above the value that is written, between that and the other end."""
    ends = np.sort([0 * OFF, side * width + 0 * OFF], axis=0)
    wanted = [quad(stats.norm(off, SIGMA).pdf, *end)[0] for off, end in zip(OFF, ends.T, strict=True)]
    found = np.exp(-np.asarray(Squares().negative_log(at(width=width, side=side))))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_limits_beside_intervals_are_as_they_are_alone():
    mixed = at(width=np.array([np.inf, 0.5, np.inf, 0.5, np.inf]), side=np.array([-1, -1, 1, 1, 0]))
    alone = mixed._replace(width=None)
    for value in (Squares().negative_log, lambda each: Squares().rows(each)[0]):
        np.testing.assert_array_equal(value(mixed)[::2], value(alone)[::2])
    found, wanted = (differentiate_likelihood(Squares(), each) for each in (mixed, alone))
    np.testing.assert_allclose(found.gradient[:, ::2], wanted.gradient[:, ::2], rtol=1e-12)
    np.testing.assert_allclose(found.hessian[..., ::2], wanted.hessian[..., ::2], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1e-9, 1e-3, 0.3, 4.0, 60.0])
def test_derivatives_are_those_of_differences(width):
    """Of the location and of the scale, near and far, narrower than the noise and wider."""
    off = np.array([-40.0, -3.0, -1e-6, 0.0, 0.4, 25.0])
    loss, step, sigma = Squares(), 1e-5, 0.9
    found = differentiate_likelihood(loss, at(off, width, sigma=sigma))

    def moved(by, log_by):
        return np.asarray(loss.negative_log(at(off + by, width, sigma=sigma * np.exp(log_by))))

    for index, way in enumerate(np.eye(2)):
        slope = (moved(*(step * way)) - moved(*(-step * way))) / (2 * step)
        np.testing.assert_allclose(found.gradient[index], slope, rtol=2e-5, atol=2e-6)
    high, low = (differentiate_likelihood(loss, at(off + by, width, sigma=sigma)).gradient[0] for by in (1e-5, -1e-5))
    np.testing.assert_allclose(found.hessian[0, 0], (high - low) / 2e-5, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["x32", "x64"])
def test_all_is_finite_far_from_intervals_and_in_narrow_ones(precision):
    with scope(precision):
        kind = jnp.float64 if precision == "x64" else jnp.float32
        off, width = (
            jnp.asarray(each, kind) for each in np.meshgrid([-1e6, -1e3, -1, 0, 1e-3, 30, 1e5], [1e-6, 1, 1e3])
        )
        for function in (log_probability_within, deviance_root):
            derived = jax.jit(jax.vmap(jax.value_and_grad(jax.grad(function), (0, 1))))
            assert all(
                jnp.isfinite(each).all() for each in jax.tree.leaves(derived(off.reshape(-1), width.reshape(-1)))
            )
            assert jnp.isfinite(function(off, width)).all()
        # So far away, the probability is the density at the nearer end, over its fall.
        far = log_probability_within(jnp.asarray(-1e4, kind), jnp.asarray(2.0, kind))
        assert float(far) == pytest.approx(-(9999.0**2) / 2, rel=1e-6)
        slope = jax.grad(log_probability_within)(jnp.asarray(-1e4, kind), jnp.asarray(2.0, kind))
        assert float(slope) == pytest.approx(9999.0, rel=1e-4)


@pytest.mark.parametrize("width", [1e-3, 0.5, 3.0, 12.0])
def test_squares_of_rows_are_the_likelihood(width):
    """Up to a constant, with a fitted scale too; and of a narrow interval the first row is the distance."""
    loss, here = Squares(), at(width=width)

    def half_of_squares(at):
        return sum(np.asarray(row) ** 2 for row in loss.all_rows(at, has_scale=True)) / 2

    for other in (at(OFF + 0.31, width), at(OFF + 1e-6, width), at(width=width, sigma=0.8)):
        rise = np.asarray(loss.negative_log(other) - loss.negative_log(here))
        np.testing.assert_allclose(half_of_squares(other) - half_of_squares(here), rise, rtol=1e-6, atol=1e-8)
    rows = np.asarray(loss.rows(here)[0])
    assert (np.sign(rows) == np.sign(OFF + width / 2)).all()
    if width == 1e-3:
        np.testing.assert_allclose(rows, (OFF + width / 2) / SIGMA, rtol=1e-5)


def test_series_meet_what_they_stand_for():
    ends = np.array([1 - 1e-9, 1 + 1e-9])
    for width in (1e-4, 0.015, 0.7, 5.0):
        off = NEAR_MIDDLE / (1 + width / 2) * ends
        low, high = np.asarray(deviance_root(jnp.asarray(off), jnp.full(2, width)))
        assert low == pytest.approx(high, rel=1e-6)
    low, high = np.asarray(log_probability_within(jnp.full(2, 0.7), jnp.asarray(NARROW_INTERVAL / 1.7 * ends)))
    assert low == pytest.approx(high, rel=1e-8)
