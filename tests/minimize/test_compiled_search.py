"""The compiled search: optima in closed form, parameters that nothing tells of, many at once, and its program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.minimize.compiled import (
    DampedSearch,
    Damping,
    least_squares_step,
    search_damped,
    search_least_squares,
)
from node_fit.runtime.placement import dtype_of, scope


def test_a_linear_problem_has_the_solution_of_regression(precision):
    rng = np.random.default_rng(0)
    table, wanted = rng.normal(size=(12, 3)), rng.normal(size=12)
    with scope(precision):
        dtype = dtype_of(precision)
        matrix, target, guess = (jnp.asarray(each, dtype) for each in (table, wanted, np.ones(3)))
        found = jax.jit(lambda: search_least_squares(lambda x: matrix @ x - target, guess, guess))()
    expected = np.linalg.lstsq(table, wanted)[0]
    # The sum of squares alone would tell it to the root of the rounding.
    np.testing.assert_allclose(found, expected, atol=1e-6 if precision == "x32" else 1e-15)


def test_a_curved_valley_is_followed_to_its_end():
    """Rosenbrock's function, and a valley that is as flat as single precision allows."""
    with scope("x64"):
        found = search_least_squares(
            lambda x: jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]), jnp.array([-1.2, 1.0]), jnp.zeros(2)
        )
        np.testing.assert_allclose(found, [1.0, 1.0], rtol=1e-8)
    flat = lambda x: jnp.stack([x[0] + x[1] - 1, 1e-3 * (x[0] - x[1] - 1)])  # noqa: E731
    np.testing.assert_allclose(search_least_squares(flat, jnp.zeros(2), jnp.zeros(2)), [1.0, 0.0], atol=1e-3)


def test_a_typical_start_is_taken_where_it_is_much_nearer():
    """Of two optima, the search ends in the one that it begins at."""
    double = lambda x: x**2 - 1 + 0.1 * x  # noqa: E731
    low, high = np.roots([1, 0.1, -1]).min(), np.roots([1, 0.1, -1]).max()
    for typical, expected in ((-1.04, low), (-1.9, high), (0.9, high)):
        found = search_least_squares(double, jnp.array([1.5]), jnp.array([typical]))
        np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_a_start_that_nothing_depends_on_stays():
    found = search_least_squares(
        lambda x: jnp.stack([x[0] - 2, 2 * x[0] - 4]), jnp.array([0.0, 7.0]), jnp.array([0.0, 7.0])
    )
    np.testing.assert_allclose(found, [2.0, 7.0], rtol=1e-5)


def test_a_solve_that_fails_turns_the_search_back():
    """Beyond 1 the residuals stand for a solve that failed, and have no derivative."""
    residuals = lambda x: jnp.where(x > 1, 1e3, jnp.tanh(x) - 0.76)  # noqa: E731
    found = search_least_squares(residuals, jnp.array([-2.0]), jnp.array([-2.0]))
    np.testing.assert_allclose(found, [np.arctanh(0.76)], rtol=1e-4)


def test_one_trajectory_holds_up_no_other():
    targets = jnp.array([[1.0], [jnp.nan], [3.0]])
    found = jax.vmap(lambda y: search_least_squares(lambda x: jnp.exp(x) - y, jnp.zeros(1), jnp.zeros(1)))(targets)
    np.testing.assert_allclose(found, [[0.0], [0.0], [np.log(3)]], atol=1e-5)


def test_the_solve_occurs_once_in_the_program():
    text = str(jax.make_jaxpr(lambda x: search_least_squares(lambda y: jnp.sin(y), x, x))(jnp.ones(2)))
    assert text.count(" sin ") == 1


@pytest.mark.parametrize("damping", [0.0, 1e-3, 10.0])
def test_a_step_minimises_the_damped_linear_problem(damping):
    rng = np.random.default_rng(1)
    table, left = rng.normal(size=(6, 2)), rng.normal(size=6)
    expected = -np.linalg.solve(table.T @ table + damping * np.eye(2), table.T @ left)
    with scope("x64"):
        step = least_squares_step(jnp.asarray(table), jnp.asarray(left), jnp.asarray(damping))
    np.testing.assert_allclose(step, expected, rtol=1e-9)


def test_a_search_without_an_optimum_ends():
    found = search_least_squares(lambda x: jnp.exp(-x), jnp.zeros(1), jnp.zeros(1), evaluations=5)
    assert np.isfinite(found).all() and found > 0


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_a_step_is_that_of_an_orthogonal_factorisation(damping):
    rng = np.random.default_rng(0)
    jacobian, residuals = rng.normal(size=(20, 4)) * [1e-3, 1.0, 1e2, 1.0], rng.normal(size=20)
    with scope("x64"):
        step = least_squares_step(*map(jnp.asarray, (jacobian, residuals, damping)))
    table = np.concatenate([jacobian, np.sqrt(damping) * np.eye(4)])
    wanted = np.concatenate([residuals, np.zeros(4)])
    assert step == pytest.approx(-np.linalg.lstsq(table, wanted, rcond=None)[0], rel=1e-8)


def test_the_search_calls_no_library_that_waits_for_threads():
    """Each of two batches of LAPACK's factorisations at the same time waits for the other's thread, without end."""
    search = lambda guess: search_least_squares(lambda start: start**2 - 1, guess, guess)  # noqa: E731
    text = jax.jit(jax.vmap(search)).lower(jnp.ones((5, 3))).as_text()
    assert "while" in text and "custom_call" not in text


def test_many_searches_that_end_at_different_times_are_as_each_alone():
    """Valleys of other curvatures take other numbers of evaluations."""

    def search(bend: jnp.ndarray) -> jnp.ndarray:
        return search_least_squares(lambda x: jnp.stack([bend * (x[1] - x[0] ** 2), 1 - x[0]]), jnp.array([-1.2, 1.0]))

    bends = jnp.array([0.1, 1.0, 10.0])
    together = jax.vmap(search)(bends)
    np.testing.assert_allclose(together, np.stack([search(bend) for bend in bends]), rtol=1e-5)
    np.testing.assert_allclose(together, 1.0, rtol=1e-4)


def test_bounds_are_those_of_the_proposed_points():
    """Beyond the bound the value is lower; the search ends at the bound, and its count of evaluations is its limit."""

    def look(x: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
        return jnp.sum((x - 3) ** 2), 2 * (x - 3)

    def propose(now: DampedSearch) -> tuple[jnp.ndarray, jnp.ndarray]:
        return jnp.minimum(now.best - now.at / (2 + now.damping), jnp.array([1.0, 5.0])), jnp.zeros((), bool)

    found = search_damped(look, propose, jnp.zeros(2), damping=Damping(), evaluations=12)
    np.testing.assert_allclose(found.best, [1.0, 3.0], rtol=1e-3)
    assert found.number <= 12 and found.value == pytest.approx(4.0)


def test_a_point_whose_derivatives_are_not_finite_is_not_taken():
    def look(x: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
        return jnp.sum(x**2), jnp.where(x < 0, jnp.nan, 2 * x)

    def propose(now: DampedSearch) -> tuple[jnp.ndarray, jnp.ndarray]:
        return now.best - 2 * now.at / (2 + now.damping), jnp.zeros((), bool)

    found = search_damped(look, propose, jnp.ones(1), damping=Damping(), evaluations=30)
    assert 0 <= float(found.best[0]) < 0.01
