"""Steps of Rodas5P: their order on rates that depend on the time, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.solver import rosenbrock
from node_fit.solver.rosenbrock import factorise, rosenbrock_step, solve_factorised


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def pulled_to_a_cosine(t, y):
    """A stiff rate whose solution from 1 at time 0 is the cosine."""
    return -20 * (y - jnp.cos(t)) - jnp.sin(t)


def march(steps: int) -> float:
    time, state, length = jnp.asarray(0.0), jnp.ones(1), jnp.asarray(2.0 / steps)
    step = jax.jit(lambda t, y: rosenbrock_step(pulled_to_a_cosine, t, y, length, depends_on_time=True)[0])
    for _ in range(steps):
        time, state = time + length, step(time, state)
    return float(state[0])


def test_steps_have_order_five_on_rates_that_depend_on_the_time():
    errors = np.array([abs(march(steps) - np.cos(2.0)) for steps in (20, 40, 80)])
    assert (np.log2(errors[:-1] / errors[1:]) > 4.4).all()


def test_the_estimated_error_is_about_that_of_the_step():
    after, estimate = rosenbrock_step(
        pulled_to_a_cosine, jnp.asarray(0.0), jnp.ones(1), jnp.asarray(0.2), depends_on_time=True
    )
    assert 0.01 < abs(float(estimate[0])) / abs(float(after[0]) - np.cos(0.2)) < 100


def test_derivatives_of_a_step_are_those_of_differences():
    def after(rate):
        return rosenbrock_step(
            lambda t, y: -rate * y**2, jnp.asarray(0.0), jnp.ones(1), jnp.asarray(0.3), depends_on_time=False
        )[0][0]

    slope = float(jax.grad(after)(2.0))
    assert slope == pytest.approx((float(after(2.0 + 1e-5)) - float(after(2.0 - 1e-5))) / 2e-5, rel=1e-7)


def test_a_system_with_a_known_inverse_has_the_derivative_of_the_solution():
    matrix, right = jnp.array([[2.0, 0.3], [-0.4, 1.5]]), jnp.array([1.0, 2.0])

    def solve(matrix):
        return solve_factorised(matrix, factorise(jax.lax.stop_gradient(matrix)), right)

    assert jax.jacfwd(solve)(matrix) == pytest.approx(jax.jacfwd(lambda a: jnp.linalg.solve(a, right))(matrix))


def test_large_matrices_have_factors_with_the_same_steps_and_derivatives(monkeypatch):
    """As if a matrix of four rows were large."""
    mix = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def after(y):
        return rosenbrock_step(lambda t, y: jnp.sin(mix @ y) - 50 * y, jnp.zeros(()), y, jnp.asarray(0.1), False)[0]

    y, members = jnp.linspace(-1, 1, 4), jnp.linspace(-1, 1, 12).reshape(3, 4)
    functions = (after, jax.jacfwd(after), jax.jacrev(after))
    expected = [function(y) for function in functions] + [jax.vmap(after)(members)]
    monkeypatch.setattr(rosenbrock, "LARGE_MATRIX", 4)
    assert isinstance(factorise(mix), tuple)
    found = [function(y) for function in functions] + [jax.vmap(after)(members)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
