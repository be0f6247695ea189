"""Solves least squares inside a compiled program with one loop of damped steps, which also works under `jax.vmap`.

The function is evaluated at one place in the program; library solvers evaluate it at several, and take three times as
long to compile.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..runtime.batching import vary_together
from .host import Damping

Vector = Float[Array, " parameter"]
# Damping for parameters of order one.
UNIT_DAMPING = Damping(1.0, 0.1, 10.0, 1e-12, 1e10)
# A search starts at the other point if its value is below this share of the first point's value.
MUCH_NEARER = 0.1
# A sum of squares counts as flat if the undamped step would lower it by less than this many rounding errors. One more
# step then locates the optimum more accurately than the sum can show.
FLAT_ROUNDINGS = 10


class DampedSearch(NamedTuple):
    """The state of a search.

    - `best`, `value`, `at`: the best point so far, its value, and the data for steps from there.
    - `damping`, `number`: damping of the next step, and number of evaluations so far. `done`: whether the search ended.
    """

    best: Vector
    value: Float[Array, ""]
    at: PyTree[Array]
    damping: Float[Array, ""]
    number: Int[Array, ""]
    done: Bool[Array, ""]


def search_damped(
    look: Callable[[Vector], tuple[Float[Array, ""], PyTree[Array]]],
    propose: Callable[[DampedSearch], tuple[Vector, Bool[Array, ""]]],
    begin: Vector,
    other: Vector | None = None,
    *,
    damping: Damping,
    evaluations: int,
) -> DampedSearch:
    """Minimises a function with damped steps (Levenberg-Marquardt method).

    **Arguments:**

    - `look`: computes the value at a point and the data for steps from it; points with non-finite results are rejected.
    - `propose`: returns the next point of a damped step, and whether the value is flat at the best point.
    - `begin`, `other`: the initial point, and an alternative to use if its value is much lower.
    - `evaluations`: maximum number of evaluations.
    """
    beginnings = [begin] if other is None else [begin, other]
    look = jax.jit(look)  # Its shapes and the loop share a trace.

    def advance(old: DampedSearch) -> DampedSearch:
        trial, flat = propose(old)
        flat &= old.number >= len(beginnings)
        for number, point in enumerate(beginnings):
            trial = jnp.where(old.number == number, point, trial)
        value, data = look(trial)
        limit = jnp.where(flat, 1 + FLAT_ROUNDINGS * jnp.finfo(value.dtype).eps, 1)
        limit = jnp.where((old.number == 1) & (len(beginnings) == 2), MUCH_NEARER, limit)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(data)]).all()
        better = (value < limit * old.value) & finite
        best, value, data = jax.tree.map(
            lambda new, kept: jnp.where(better, new, kept), (trial, value, data), (old.best, old.value, old.at)
        )
        decreased = jnp.maximum(old.damping * damping.decrease, damping.minimum)
        after = jnp.where(better, decreased, old.damping * damping.increase)
        after = jnp.where(old.number < len(beginnings), damping.initial, after)
        return DampedSearch(best, value, data, after, old.number + 1, flat | (after > damping.maximum))

    value, data = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(look, begin))
    initial, zero = jnp.full((), damping.initial, value.dtype), jnp.zeros((), jnp.int32)
    start = DampedSearch(begin, value + jnp.inf, data, initial, zero, jnp.zeros((), bool))
    start = vary_together(start, begin)
    return jax.lax.while_loop(lambda now: ~now.done & (now.number < evaluations), advance, start)


def search_least_squares(
    residuals: Callable[[Vector], Float[Array, " residual"]],
    begin: Vector,
    other: Vector | None = None,
    *,
    evaluations: int = 60,
) -> Vector:
    """Minimises the sum of squared residuals from `begin`, or from `other` if it is much better.

    **Arguments:** `residuals`: computes finite residuals at a point. `evaluations`: maximum number of evaluations.
    """

    def look(x: Vector) -> tuple[Float[Array, ""], tuple[Array, Array]]:
        basis = jnp.eye(x.shape[0], dtype=x.dtype)
        values, columns = jax.vmap(lambda along: jax.jvp(residuals, (x,), (along,)), out_axes=(None, 1))(basis)
        return values @ values, (values, columns)

    def propose(now: DampedSearch) -> tuple[Vector, Bool[Array, ""]]:
        values, jacobian = now.at
        undamped, damped = (least_squares_step(jacobian, values, d) for d in (jnp.zeros_like(now.damping), now.damping))
        # Gain predicted by the linearised problem.
        gain = now.value - jnp.sum((values + jacobian @ undamped) ** 2)
        return now.best + damped, gain <= FLAT_ROUNDINGS * jnp.finfo(gain.dtype).eps * now.value

    return search_damped(look, propose, begin, other, damping=UNIT_DAMPING, evaluations=evaluations).best


def least_squares_step(
    jacobian: Float[Array, "residual parameter"], residuals: Float[Array, " residual"], damping: Float[Array, ""]
) -> Vector:
    """Computes the step that minimises the linearised sum of squares plus `damping` times its square.

    Uses an orthogonal factorisation, since the normal equations would lose half of the digits.
    """
    states = jacobian.shape[1]
    tiny = jnp.finfo(jacobian.dtype).eps * jnp.linalg.norm(jacobian) + jnp.finfo(jacobian.dtype).tiny
    size = jnp.maximum(jnp.sqrt(damping), tiny)  # Keeps parameters that nothing depends on.
    table = jnp.concatenate([jacobian, size * jnp.eye(states, dtype=jacobian.dtype)])
    wanted = jnp.concatenate([residuals, jnp.zeros(states, residuals.dtype)])
    triangle = triangularise(jnp.column_stack([table, wanted]))
    return -substitute_back(triangle[:states, :states], triangle[:states, states])


def triangularise(table: Float[Array, "row column"]) -> Float[Array, "row column"]:
    """Makes all columns but the last upper triangular with Householder reflections.

    Written as arithmetic, since batched LAPACK factorisations that XLA runs concurrently on the CPU deadlock on each
    other's threads. Golub and Van Loan, Matrix Computations, 4th ed. 2013, algorithm 5.2.1.
    """
    rows, columns = table.shape
    row = jnp.arange(rows)

    def reflect(at: Array, table: Array) -> Array:
        below = jnp.where(row >= at, table[:, at], 0)
        normal = below + jnp.where(row == at, jnp.copysign(jnp.linalg.norm(below), below[at]), 0)
        length = normal @ normal
        return table - jnp.outer(
            normal, jnp.where(length > 0, 2 / jnp.where(length > 0, length, 1), 0) * normal @ table
        )

    return jax.lax.fori_loop(0, columns - 1, reflect, table)


def substitute_back(triangle: Float[Array, "column column"], sides: Float[Array, " column"]) -> Float[Array, " column"]:
    """Solves linear equations with an upper triangular matrix."""
    columns = sides.shape[0]

    def solve_row(number: Array, x: Array) -> Array:
        row = columns - 1 - number
        return x.at[row].set((sides[row] - triangle[row] @ x) / triangle[row, row])

    return jax.lax.fori_loop(0, columns, solve_row, jnp.zeros_like(sides))
