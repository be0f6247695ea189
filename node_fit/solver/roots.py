"""Where functions on the line are zero, or turn."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

# Trials of the search for a zero.
TRIALS = 12


def turning_share(begin: Array, end: Array, slope: Array, last: Array) -> Array:
    """Where a cubic first turns between 0 and 1, by its values and slopes there; one half if nowhere."""
    rise = end - begin
    a, b = 3 * (slope + last) - 6 * rise, 6 * rise - 4 * slope - 2 * last
    q = -(b + jnp.where(b < 0, -1, 1) * jnp.sqrt(jnp.maximum(b**2 - 4 * a * slope, 0))) / 2
    roots = jnp.stack([q / jnp.where(a == 0, 1, a), slope / jnp.where(q == 0, 1, q)])
    first = jnp.where((roots > 0) & (roots < 1), roots, 1).min(axis=0)
    return jnp.where(first < 1, first, 0.5)


def false_position(level: Callable[[Array], Array], left: Array, right: Array) -> Array:
    """Where levels are zero between two places, by the Illinois variant of the method of false position."""

    def better(_: Any, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        left, above, right, below, _ = carry
        gap = jnp.where(above == below, 1, above - below)
        middle = left + (right - left) * jnp.clip(above / gap, 0, 1)
        value = level(middle)
        low = value <= 0
        # An end that stays counts half, so that it will move too.
        return (
            jnp.where(low, left, middle),
            jnp.where(low, above / 2, value),
            jnp.where(low, middle, right),
            jnp.where(low, value, below / 2),
            middle,
        )

    return jax.lax.fori_loop(0, TRIALS, better, (left, level(left), right, level(right), right))[-1]
