"""What L-BFGS knows of the curvature: the last steps, and how the gradient changed along each.

Optax has the same method as a recursion, one pair after another. For several members at once, whose pairs stand in
different slots, that is a hundred gathers a step; the compact form is a few products of all pairs with a vector.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Pairs(NamedTuple):
    """Pairs of a step and the change of the gradient along it, in slots that are used in turn.

    - `steps`, `changes`: a pair in each row.
    - `inverse`: of the products of each step with each later change and its own, zero in slots without a pair. In the
      order of time it is triangular, so its slots do not depend on pairs that came later, or that are gone.
    - `curvature`: the product of each step with its own change.
    - `scale`: of the newest pair, its curvature over the square of its change; 0 if there is none.
    - `slot`: where the next pair goes.
    """

    steps: Float[Array, "slot parameter"]
    changes: Float[Array, "slot parameter"]
    inverse: Float[Array, "slot slot"]
    curvature: Float[Array, " slot"]
    scale: Float[Array, ""]
    slot: Int[Array, ""]


def no_pairs(memory: int, x: Float[Array, " parameter"]) -> Pairs:
    """Room for so many pairs of vectors like `x`."""
    rows, numbers = jnp.zeros((memory, x.size), x.dtype), jnp.zeros((memory, memory), x.dtype)
    return Pairs(rows, rows, numbers, numbers[0], numbers[0, 0], jnp.zeros((), jnp.int32))


def remember(
    pairs: Pairs,
    step: Float[Array, " parameter"],
    change: Float[Array, " parameter"],
    keep: Bool[Array, ""],
    forget: Bool[Array, ""],
) -> Pairs:
    """Pairs with a new one in the place of the oldest if `keep`, none of them if `forget`, the same ones otherwise."""
    slot = pairs.slot

    def placed(rows: Array, row: Array) -> Array:
        # One row is chosen and written, since to choose between two memories would be to copy both.
        return rows.at[slot].set(jnp.where(keep, row, rows[slot]))

    steps, changes = placed(pairs.steps, step), placed(pairs.changes, change)
    here = jnp.arange(len(steps)) == slot
    others = jnp.where(here[:, None] | here[None, :], 0, pairs.inverse)
    products = product(steps, change)
    curvature = step @ change
    column = jnp.where(here, 1, -product(others, products)) / curvature
    inverse = jnp.where(here[None, :], column[:, None], others)
    return Pairs(
        steps,
        changes,
        jnp.where(keep, inverse, jnp.where(forget, 0, pairs.inverse)),
        jnp.where(keep & here, curvature, pairs.curvature),
        jnp.where(keep, curvature / (change @ change), jnp.where(forget, 0, pairs.scale)),
        (slot + keep) % len(steps),
    )


def newton_direction(pairs: Pairs, gradient: Float[Array, " parameter"]) -> Float[Array, " parameter"]:
    """The inverse of L-BFGS's Hessian times a gradient; without pairs, the gradient, no longer than 1.

    Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods, Math.
    Program. 63, 1994, theorem 2.2, taken in the order of the two loops of Nocedal and Wright, algorithm 7.4.
    """
    scale = jnp.where(pairs.scale > 0, pairs.scale, 1 / jnp.maximum(jnp.linalg.norm(gradient), 1))
    weights = product(pairs.inverse, product(pairs.steps, gradient))
    rest = scale * (gradient - product(weights, pairs.changes))
    missing = pairs.curvature * weights - product(pairs.changes, rest)
    return rest + product(product(missing, pairs.inverse), pairs.steps)


def product(a: Array, b: Array) -> Array:
    # A GPU would round its arguments to ten bits, which is too coarse for differences of gradients.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
