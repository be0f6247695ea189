"""What L-BFGS knows of the curvature: the last steps, and how the gradient changed along each.

Optax has the same method as a recursion, one pair after another. For several members at once, whose pairs stand in
different slots, that is a hundred gathers a step; the compact form is four products of all pairs with a vector.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int


class Pairs(NamedTuple):
    """Pairs of a step and the change of the gradient along it, in slots that are used in turn.

    - `steps`, `changes`: a pair in each row.
    - `products`: of each step with each change, in the order of time, the newest pair last; those of a step with
      earlier changes mean nothing.
    - `kept`: pairs that were kept since the last were forgotten.
    """

    steps: Float[Array, "slot parameter"]
    changes: Float[Array, "slot parameter"]
    products: Float[Array, "slot slot"]
    kept: Int[Array, ""]


def no_pairs(memory: int, x: Float[Array, " parameter"]) -> Pairs:
    """Room for so many pairs of vectors like `x`."""
    rows = jnp.zeros((memory, x.size), x.dtype)
    return Pairs(rows, rows, jnp.zeros((memory, memory), x.dtype), jnp.zeros((), jnp.int32))


def remember(
    pairs: Pairs,
    step: Float[Array, " parameter"],
    change: Float[Array, " parameter"],
    keep: Bool[Array, ""],
    forget: Bool[Array, ""],
) -> Pairs:
    """Pairs with a new one in the place of the oldest if `keep`, none of them if `forget`, the same ones otherwise."""
    slot = pairs.kept % len(pairs.steps)

    def placed(rows: Array, row: Array) -> Array:
        # One row is chosen and written, since to choose between two memories would be to copy both.
        return rows.at[slot].set(jnp.where(keep, row, rows[slot]))

    new = pairs._replace(
        steps=placed(pairs.steps, step),
        changes=placed(pairs.changes, change),
        kept=jnp.where(forget, 0, pairs.kept + keep),
    )
    products = jnp.zeros_like(pairs.products).at[:-1, :-1].set(pairs.products[1:, 1:])
    products = products.at[:, -1].set(product(new.steps, change)[by_time(new)])
    return new._replace(products=jnp.where(keep, products, pairs.products))


def newton_direction(pairs: Pairs, gradient: Float[Array, " parameter"]) -> Float[Array, " parameter"]:
    """The inverse of L-BFGS's Hessian times a gradient; without pairs, the gradient, no longer than 1.

    Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods, Math.
    Program. 63, 1994, section 2, with the two loops of Nocedal and Wright, algorithm 7.4, as two triangular systems.
    """
    order = by_time(pairs)
    known = jnp.arange(len(order)) >= len(order) - pairs.kept
    upper = jnp.triu(jnp.where(known[:, None] & known[None, :], pairs.products, 0))
    curvature = jnp.diagonal(upper)
    upper = upper + jnp.diag(jnp.where(known, 0, 1).astype(upper.dtype))

    def of_slots(numbers: Array) -> Array:
        return jnp.zeros_like(numbers).at[order].set(jnp.where(known, numbers, 0))

    newest = pairs.changes[order[-1]]
    scale = jnp.where(
        pairs.kept > 0,
        curvature[-1] / jnp.where(pairs.kept > 0, newest @ newest, 1),
        1 / jnp.maximum(jnp.linalg.norm(gradient), 1),
    )
    weights = solve_triangular(upper, jnp.where(known, product(pairs.steps, gradient)[order], 0))
    rest = scale * (gradient - product(of_slots(weights), pairs.changes))
    missing = curvature * weights - jnp.where(known, product(pairs.changes, rest)[order], 0)
    return rest + product(of_slots(solve_triangular(upper, missing, trans=1)), pairs.steps)


def by_time(pairs: Pairs) -> Int[Array, " slot"]:
    """The slots, the oldest pair's first."""
    slots = len(pairs.steps)
    return (pairs.kept + jnp.arange(slots)) % slots


def product(a: Array, b: Array) -> Array:
    # A GPU would round its arguments to ten bits, which is too coarse for differences of gradients.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
