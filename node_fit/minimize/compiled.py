"""Least squares inside a compiled program: one loop of damped steps, also of many problems under `jax.vmap`.

It evaluates a function at one place of the program; a library's search does so in several places, and compiles for
three times as long.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..runtime.batching import vary_together
from .host import Damping

Vector = Float[Array, " parameter"]
# Of parameters of order one.
UNIT_DAMPING = Damping(1.0, 0.1, 10.0, 1e-12, 1e10)
# A search begins at the other point where the value there is below this share of the first one's.
MUCH_NEARER = 0.1
# A sum of squares is flat where the undamped step would lower it by less than this many of its roundings. One more step
# then finds the optimum more exactly than the sum tells.
FLAT_ROUNDINGS = 10


class DampedSearch(NamedTuple):
    """The state of a search.

    - `best`, `value`, `at`: the best point so far, its value, and what steps from there need.
    - `damping`, `number`: of the next step, and of evaluations so far. `done`: whether the search has ended.
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
    """Lowers a function by damped steps (Levenberg and Marquardt's method).

    **Arguments:**

    - `look`: the value at a point and what steps from it need; a point where either is not finite is not taken.
    - `propose`: the next point by a step with the damping, and whether the value is flat at the best point.
    - `begin`, `other`: where the search begins, and another point to begin at if the value there is much lower.
    - `evaluations`: maximum number of evaluations.
    """
    beginnings = [begin] if other is None else [begin, other]
    look = jax.jit(look)  # Its shapes and the loop share a trace.

    def advance(old: DampedSearch) -> DampedSearch:
        trial, flat = propose(old)
        flat &= old.number >= len(beginnings)
        for number, point in enumerate(beginnings):
            trial = jnp.where(old.number == number, point, trial)
        value, at = look(trial)
        limit = jnp.where(flat, 1 + FLAT_ROUNDINGS * jnp.finfo(value.dtype).eps, 1)
        limit = jnp.where((old.number == 1) & (len(beginnings) == 2), MUCH_NEARER, limit)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(at)]).all()
        better = (value < limit * old.value) & finite
        best, value, at = jax.tree.map(
            lambda new, kept: jnp.where(better, new, kept), (trial, value, at), (old.best, old.value, old.at)
        )
        decreased = jnp.maximum(old.damping * damping.decrease, damping.minimum)
        after = jnp.where(better, decreased, old.damping * damping.increase)
        after = jnp.where(old.number < len(beginnings), damping.initial, after)
        return DampedSearch(best, value, at, after, old.number + 1, flat | (after > damping.maximum))

    value, at = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(look, begin))
    initial, zero = jnp.full((), damping.initial, value.dtype), jnp.zeros((), jnp.int32)
    start = DampedSearch(begin, value + jnp.inf, at, initial, zero, jnp.zeros((), bool))
    start = vary_together(start, begin)
    return jax.lax.while_loop(lambda now: ~now.done & (now.number < evaluations), advance, start)


def search_least_squares(
    residuals: Callable[[Vector], Float[Array, " residual"]],
    begin: Vector,
    other: Vector | None = None,
    *,
    evaluations: int = 60,
) -> Vector:
    """The point with the least sum of squared residuals that is found from `begin`, or from `other` if it is much
    better.

    **Arguments:** `residuals`: finite, of a point. `evaluations`: maximum number of evaluations.
    """

    def look(x: Vector) -> tuple[Float[Array, ""], tuple[Array, Array]]:
        basis = jnp.eye(x.shape[0], dtype=x.dtype)
        found, columns = jax.vmap(lambda along: jax.jvp(residuals, (x,), (along,)), out_axes=(None, 1))(basis)
        return found @ found, (found, columns)

    def propose(now: DampedSearch) -> tuple[Vector, Bool[Array, ""]]:
        found, jacobian = now.at
        whole, damped = (least_squares_step(jacobian, found, d) for d in (jnp.zeros_like(now.damping), now.damping))
        # What the linearised problem would gain.
        gain = now.value - jnp.sum((found + jacobian @ whole) ** 2)
        return now.best + damped, gain <= FLAT_ROUNDINGS * jnp.finfo(gain.dtype).eps * now.value

    return search_damped(look, propose, begin, other, damping=UNIT_DAMPING, evaluations=evaluations).best


def least_squares_step(
    jacobian: Float[Array, "residual parameter"], residuals: Float[Array, " residual"], damping: Float[Array, ""]
) -> Vector:
    """The step that minimises the linearised sum of squares with `damping` times its own square; by an orthogonal
    factorisation, since the normal equations would lose half of the digits."""
    states = jacobian.shape[1]
    tiny = jnp.finfo(jacobian.dtype).eps * jnp.linalg.norm(jacobian) + jnp.finfo(jacobian.dtype).tiny
    size = jnp.maximum(jnp.sqrt(damping), tiny)  # A parameter that nothing depends on stays.
    table = jnp.concatenate([jacobian, size * jnp.eye(states, dtype=jacobian.dtype)])
    wanted = jnp.concatenate([residuals, jnp.zeros(states, residuals.dtype)])
    triangle = triangularise(jnp.column_stack([table, wanted]))
    return -substitute_back(triangle[:states, :states], triangle[:states, states])


def triangularise(table: Float[Array, "row column"]) -> Float[Array, "row column"]:
    """Householder's reflections of all columns but the last, which make them upper triangular.

    Written as arithmetic, since batches of LAPACK's factorisations that XLA runs at the same time on the CPU wait for
    the threads of each other, without end. Golub and Van Loan, Matrix Computations, 4th ed. 2013, algorithm 5.2.1.
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
    """The solution of equations whose matrix is upper triangular."""
    columns = sides.shape[0]

    def solve_row(number: Array, x: Array) -> Array:
        at = columns - 1 - number
        return x.at[at].set((sides[at] - triangle[at] @ x) / triangle[at, at])

    return jax.lax.fori_loop(0, columns, solve_row, jnp.zeros_like(sides))
