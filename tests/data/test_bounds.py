"""Maps between an interval and the real line: one-to-one, smooth, and finite arbitrarily far out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_fit.data.domains import check_bounds, check_inside, from_line, slope, to_line
from node_fit.runtime.placement import scope

BOUNDS = [(None, None), (0.0, None), (-2.5, None), (None, 3.0), (0.0, 1.0), (-1.0, 4.0), (0.1, 0.3), (10.0, 1e6)]
EXTREMES = [-1e4, -100.0, -30.0, 0.0, 30.0, 100.0, 1e4]


@pytest.mark.parametrize("bounds", BOUNDS)
@given(z=st.lists(st.floats(-8, 8), min_size=1, max_size=5))
@settings(deadline=None, max_examples=30)
def test_there_and_back_is_the_same(bounds, z):
    z = np.array(z)
    x = from_line(z, bounds)
    check_inside(x, bounds, "x")
    assert x.dtype == np.float64
    np.testing.assert_allclose(to_line(x, bounds), z, atol=1e-8)
    np.testing.assert_allclose(from_line(to_line(x, bounds), bounds), x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_map_is_the_one_that_is_documented(bounds):
    lower, upper = bounds
    x = np.linspace(-2 if lower is None else lower, 2.5 if upper is None else upper, 9)[1:-1]
    expected = {
        (True, True): lambda: x,
        (False, True): lambda: np.log(x - lower),
        (True, False): lambda: -np.log(upper - x),
        (False, False): lambda: np.log((x - lower) / (upper - x)),
    }[lower is None, upper is None]()
    np.testing.assert_allclose(to_line(x, bounds), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_slope_is_the_derivative(bounds):
    with scope("x64"):
        z = jnp.linspace(-5.0, 5.0, 11)
        x = from_line(z, bounds)
        exact = jax.vmap(jax.grad(lambda value: to_line(value, bounds)))(x)
        np.testing.assert_allclose(slope(x, bounds), exact, rtol=1e-9)
        np.testing.assert_allclose(slope(np.asarray(x), bounds), exact, rtol=1e-9)
        back = jax.vmap(jax.grad(lambda value: from_line(value, bounds)))(z)
        np.testing.assert_allclose(back * exact, 1.0, rtol=1e-7)
    x, exact = np.asarray(x), np.asarray(exact)
    step = 1e-4 / exact
    differences = (to_line(x + step, bounds) - to_line(x - step, bounds)) / (2 * step)
    np.testing.assert_allclose(differences, exact, rtol=1e-6)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_numpy_and_jax_agree(bounds, precision):
    with scope(precision):
        z = jnp.linspace(-6.0, 6.0, 7)
        x = from_line(z, bounds)
        tolerance = {"rtol": 2e-5, "atol": 1e-5} if precision == "x32" else {"rtol": 1e-12}
        assert x.dtype == z.dtype == to_line(x, bounds).dtype == slope(x, bounds).dtype
        host = np.asarray(z, np.float64)
        np.testing.assert_allclose(x, from_line(host, bounds), **tolerance)
        inside = from_line(jnp.linspace(-1.0, 1.0, 7), bounds)
        if bounds[1] != 1e6:  # In float32, these values are too close to the bound to resolve the distance.
            np.testing.assert_allclose(to_line(inside, bounds), to_line(np.asarray(inside, float), bounds), atol=1e-5)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_nothing_overflows_far_out(bounds, precision):
    with scope(precision):
        z = jnp.array(EXTREMES)
        x = from_line(z, bounds)
        lower, upper = bounds
        assert np.isfinite(x).all() and (np.diff(x) >= 0).all()
        assert lower is None or (x >= np.asarray(lower, x.dtype)).all()
        assert upper is None or (x <= np.asarray(upper, x.dtype)).all()
        for function, at in ((from_line, z), (to_line, x)):
            assert np.isfinite(function(at, bounds)).all()
            assert np.isfinite(jax.vmap(jax.grad(lambda value, f=function: f(value, bounds)))(at)).all()
        assert np.isfinite(slope(x, bounds)).all() and (slope(x, bounds) > 0).all()


@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_rate_on_the_line_has_finite_gradients_far_out(bounds, precision):
    """Near a bound, the derivative of the slope overflows, but the rate that the solver uses does not, even on it."""

    def rate(z, factor):
        x = from_line(z, bounds)
        return slope(x, bounds) * factor * (x - (bounds[0] or 0.0))

    with scope(precision):
        z = jnp.array(EXTREMES)
        gradients = jax.vmap(jax.grad(rate, argnums=(0, 1)), in_axes=(0, None))(z, jnp.array(-0.3))
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        if bounds == (0.0, None):
            np.testing.assert_allclose(gradients[1], 1.0, rtol=1e-4, err_msg="decay has one rate everywhere")


def test_what_is_missing_stays_missing():
    for bounds in BOUNDS:
        assert np.isnan(to_line(np.array([np.nan]), bounds)).all()
    check_inside(np.array([np.nan, 1.0]), (0.0, None), "state 'x'")


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ((1.0, 1.0), "rate has bounds 1 and 1; the lower must be below the upper"),
        ((2, -1), "rate has bounds 2 and -1"),
        ((np.inf, None), "rate has the bound inf; a bound is a number of magnitude up to 1e\\+30, or null"),
        ((None, np.nan), "rate has the bound nan"),
        (("0", None), "rate has the bound '0'"),
        ((True, None), "rate has the bound True"),
        ((10**400, None), "rate has the bound 1000"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_bounds(bounds, "rate")


def test_whole_numbers_are_bounds():
    assert check_bounds([0, None], "rate") == (0.0, None)
    assert all(isinstance(bound, float) for bound in check_bounds([0, 1], "rate"))


def test_the_first_value_outside_is_named():
    values = np.array([[0.5, 0.2], [0.0, -3.0]])
    with pytest.raises(ValueError, match=r"^state 'x' is 0 at \[1, 0\], but its bounds ask for values above 0;"):
        check_inside(values, (0.0, None), "state 'x'")
    with pytest.raises(ValueError, match=r"is -3 at \[1, 1\], .* above -1 and below 0.6;"):
        check_inside(values, (-1.0, 0.6), "state 'x'")
    with pytest.raises(ValueError, match=r"^state 'x' is 2, but its bounds ask for values below 1;"):
        check_inside(np.array(2.0), (None, 1.0), "state 'x'")
    check_inside(values, (None, None), "state 'x'")
