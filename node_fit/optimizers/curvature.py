"""The curvature memory of L-BFGS: the last steps, and the change of the gradient along each.

Optax implements the same method as a recursion over the pairs. For several ensemble members at once, whose pairs are
in different slots, that takes a hundred gathers per step. The compact form takes a few products of all pairs with a
vector.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Pairs(NamedTuple):
    """Pairs of a step and the change of the gradient along it, in slots that are filled in turn.

    - `steps`, `changes`: one pair in each row.
    - `inverse`: inverse of the matrix of products of each step with its own and all later changes; zero in slots
      without a pair. In order of time, it is triangular, so its entries do not depend on later or dropped pairs.
    - `curvature`: product of each step with its own change.
    - `scale`: curvature of the newest pair divided by the square of its change; 0 if there is no pair.
    - `slot`: slot of the next pair.
    """

    steps: Float[Array, "slot parameter"]
    changes: Float[Array, "slot parameter"]
    inverse: Float[Array, "slot slot"]
    curvature: Float[Array, " slot"]
    scale: Float[Array, ""]
    slot: Int[Array, ""]


def no_pairs(memory: int, x: Float[Array, " parameter"]) -> Pairs:
    """An empty memory with `memory` slots for pairs of vectors like `x`."""
    rows, numbers = jnp.zeros((memory, x.size), x.dtype), jnp.zeros((memory, memory), x.dtype)
    return Pairs(rows, rows, numbers, numbers[0], numbers[0, 0], jnp.zeros((), jnp.int32))


def remember(
    pairs: Pairs,
    step: Float[Array, " parameter"],
    change: Float[Array, " parameter"],
    keep: Bool[Array, ""],
    forget: Bool[Array, ""],
) -> Pairs:
    """Updates the pairs: replaces the oldest pair if `keep`, drops all pairs if `forget`, else changes nothing."""
    slot = pairs.slot

    def placed(rows: Array, row: Array) -> Array:
        # Selects one row and writes it. Selecting between two whole memories would copy both.
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
    """L-BFGS's inverse Hessian times a gradient; without pairs, the gradient, scaled down to a norm of at most 1.

    Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods, Math.
    Program. 63, 1994, theorem 2.2, evaluated in the order of the two loops of Nocedal and Wright, algorithm 7.4.
    """
    scale = jnp.where(pairs.scale > 0, pairs.scale, 1 / jnp.maximum(jnp.linalg.norm(gradient), 1))
    weights = product(pairs.inverse, product(pairs.steps, gradient))
    rest = scale * (gradient - product(weights, pairs.changes))
    missing = pairs.curvature * weights - product(pairs.changes, rest)
    return rest + product(product(missing, pairs.inverse), pairs.steps)


def product(a: Array, b: Array) -> Array:
    # By default, a GPU rounds the arguments to ten bits, which is too coarse for differences of gradients.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
