"""The compact form of L-BFGS's inverse Hessian, against its definition and Optax's recursion."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from node_fit.optimizers.gradient import newton_direction, no_pairs, remember
from node_fit.runtime.placement import dtype_of, scope

SIZE = 7
YES, NO = jnp.asarray(True), jnp.asarray(False)


def walk(count: int, dtype=np.float64, seed: int = 0):
    """Points, and the gradients of a convex, non-quadratic function at them."""
    draws = np.random.default_rng(seed)
    shape = draws.normal(size=(SIZE, SIZE))
    points = np.cumsum(draws.normal(size=(count, SIZE)), axis=0) / 3
    return points.astype(dtype), (points @ shape @ shape.T + points**3).astype(dtype)


def remembered(points, gradients, memory: int):
    pairs = no_pairs(memory, jnp.asarray(points[0]))
    for step, change in zip(np.diff(points, axis=0), np.diff(gradients, axis=0), strict=True):
        pairs = remember(pairs, jnp.asarray(step), jnp.asarray(change), YES, NO)
    return pairs


def by_definition(points, gradients, memory: int) -> np.ndarray:
    """The inverse Hessian: the BFGS update (Nocedal and Wright, equation 6.17) for each of the last pairs."""
    pairs = list(zip(np.diff(points, axis=0), np.diff(gradients, axis=0), strict=True))[-memory:]
    s, y = pairs[-1]
    inverse = np.eye(SIZE) * (s @ y) / (y @ y)
    for s, y in pairs:
        rho = 1 / (s @ y)
        left = np.eye(SIZE) - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


# Fewer pairs than slots, as many pairs as slots, and slots in their second and third use.
@pytest.mark.parametrize("points", [2, 4, 6, 8, 17])
@pytest.mark.parametrize("memory", [1, 5])
def test_it_is_the_metric_of_bfgs(points, memory):
    with scope("x64"):
        xs, gradients = walk(points)
        found = newton_direction(remembered(xs, gradients, memory), jnp.asarray(gradients[-1]))
    np.testing.assert_allclose(found, by_definition(xs, gradients, memory) @ gradients[-1], rtol=1e-10)


@pytest.mark.slow
def test_it_is_what_optax_gives_step_by_step():
    with scope("x64"):
        xs, gradients = walk(14)
        recursion = optax.scale_by_lbfgs(4)
        state = recursion.init(jnp.asarray(xs[0]))
        for index in range(len(xs)):
            expected, state = recursion.update(jnp.asarray(gradients[index]), state, jnp.asarray(xs[index]))
            pairs = remembered(xs[: index + 1], gradients[: index + 1], 4)
            found = newton_direction(pairs, jnp.asarray(gradients[index]))
            np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("points", [9, 200])
def test_the_last_change_gives_the_last_step(precision, points):
    """The secant equation holds; rounding errors of dropped pairs must not affect it."""
    with scope(precision):
        xs, gradients = walk(points, dtype_of(precision))
        found = newton_direction(remembered(xs, gradients, 5), jnp.asarray(gradients[-1] - gradients[-2]))
    assert found.dtype == dtype_of(precision)
    np.testing.assert_allclose(found, xs[-1] - xs[-2], rtol=2e-4 if precision == "x32" else 1e-11)


def test_pairs_that_are_forgotten_say_nothing():
    xs, gradients = walk(9, np.float32)
    pairs = remembered(xs, gradients, 4)
    same = remember(pairs, jnp.full(SIZE, jnp.nan), jnp.full(SIZE, jnp.nan), NO, NO)
    jax.tree.map(np.testing.assert_array_equal, same, pairs)
    empty = remember(pairs, jnp.full(SIZE, jnp.nan), jnp.full(SIZE, jnp.nan), NO, YES)
    gradient = jnp.asarray(gradients[0])
    np.testing.assert_allclose(newton_direction(empty, gradient), gradient / np.linalg.norm(gradient), rtol=1e-6)
    np.testing.assert_array_equal(newton_direction(empty, 1e-3 * gradient), 1e-3 * gradient)
    later = remember(empty, jnp.asarray(xs[1] - xs[0]), jnp.asarray(gradients[1] - gradients[0]), YES, NO)
    alone = remembered(xs[:2], gradients[:2], 4)
    np.testing.assert_allclose(newton_direction(later, gradient), newton_direction(alone, gradient), rtol=1e-5)


def test_members_have_slots_of_their_own():
    with scope("x64"):
        walks = [walk(count, seed=count) for count in (3, 6, 11)]
        apart = [remembered(xs, gradients, 5) for xs, gradients in walks]
        gradient = jnp.stack([gradients[-1] for _, gradients in walks])
        found = jax.jit(jax.vmap(newton_direction))(jax.tree.map(lambda *x: jnp.stack(x), *apart), gradient)
        expected = [newton_direction(pairs, g) for pairs, g in zip(apart, gradient, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
