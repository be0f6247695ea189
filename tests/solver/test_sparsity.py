"""Jacobians from few directions: those of all, and as few directions as columns that meet in a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.solver.rosenbrock import rosenbrock_step
from node_fit.solver.sparsity import group_columns, jacobian_of_sums

STATES = 12
BAND = np.abs(np.subtract.outer(np.arange(STATES), np.arange(STATES))) <= 1
WEIGHTS = np.where(np.random.default_rng(0).random((STATES, STATES)) < 0.3, 1.5, 0.0)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def neighbours(y):
    """Terms that depend on a state and its neighbours."""
    padded = jnp.pad(y, 1)
    return jnp.sin(padded[:-2]) * padded[1:-1] - padded[2:] ** 2


def rates(time, y):
    return WEIGHTS @ neighbours(y) - y


def test_columns_of_a_group_meet_in_no_row():
    groups = group_columns(BAND)
    assert groups.max() + 1 == 3
    full = np.random.default_rng(1).random((30, 40)) < 0.1
    groups = group_columns(full)
    for group in range(groups.max() + 1):
        assert full[:, groups == group].sum(axis=1).max() <= 1
    np.testing.assert_array_equal(group_columns(np.zeros((3, 4), bool)), 0)


def test_the_jacobian_is_that_of_all_directions():
    jacobian = jacobian_of_sums(neighbours, BAND, WEIGHTS)
    y = jnp.linspace(-1, 1, STATES)
    np.testing.assert_allclose(jacobian(y), jax.jacfwd(lambda y: WEIGHTS @ neighbours(y))(y), rtol=1e-13, atol=1e-14)
    assert not jacobian_of_sums(neighbours, BAND, np.zeros((2, STATES)))(y).any()


def test_steps_and_their_derivatives_are_the_same_with_it():
    sparse = jacobian_of_sums(neighbours, BAND, WEIGHTS)

    def after(y, jacobian):
        return rosenbrock_step(rates, jnp.zeros(()), y, jnp.asarray(0.1), False, jacobian)[0]

    y = jnp.linspace(-1, 1, STATES)
    with_it = lambda y: after(y, lambda y: sparse(y) - jnp.eye(STATES))  # noqa: E731
    without = lambda y: after(y, None)  # noqa: E731
    np.testing.assert_allclose(with_it(y), without(y), rtol=1e-12)
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(with_it)(y), derivative(without)(y), rtol=1e-10, atol=1e-12)
