"""The damped step of Levenberg and Marquardt beside the linear system that it solves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.optimizers.levenberg_marquardt import dense, plain_step, size_of
from node_fit.optimizers.optimizer import Linearised


@pytest.mark.parametrize(("rows", "parameters"), [(7, 3), (3, 7)], ids=["primal", "dual"])
def test_a_damped_step_solves_its_equations(rows, parameters):
    rng = np.random.default_rng(0)
    r, jacobian = rng.normal(size=rows), rng.normal(size=(rows, parameters))
    prior, x, damping = rng.uniform(0.1, 1, parameters), 40 * rng.normal(size=parameters), 0.3
    with jax.enable_x64(True):
        at = Linearised(jnp.asarray(r), jnp.array(0), jnp.asarray(jacobian), jnp.asarray(prior))
        linear = dense(at, jnp.asarray(x))
        size = np.maximum(1, np.abs(x) / 10)
        slope = jacobian.T @ r + prior * x
        np.testing.assert_allclose(linear.slope, slope)
        np.testing.assert_allclose(linear.size, size)
        np.testing.assert_allclose(linear.largest, ((jacobian * size) ** 2).sum(axis=0).max())
        matrix = jacobian.T @ jacobian + np.diag(prior + damping / size**2)
        step, again, there = plain_step(linear, lambda y: (y[:2], jnp.array(0)), jnp.asarray(x), jnp.asarray(damping))
        np.testing.assert_allclose(step, np.linalg.solve(matrix, -slope), rtol=1e-9)
        np.testing.assert_allclose(again, step)
        np.testing.assert_allclose(there, (x + step)[:2])
        v, w = rng.normal(size=parameters), rng.normal(size=rows)
        np.testing.assert_allclose(linear.push(v), jacobian @ v)
        np.testing.assert_allclose(linear.pull(w), jacobian.T @ w)


def test_a_parameter_near_zero_has_the_size_one():
    np.testing.assert_allclose(size_of(jnp.array([0.0, -3.0, 50.0, -200.0])), [1.0, 1.0, 5.0, 20.0])
