"""Solver tolerances: one number, or one for each state."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def by_state(key: str, tolerance: Any, y0: Float[Array, "... state"]) -> Any:
    """A tolerance as Diffrax takes it: a scalar, or an array that broadcasts with the states."""
    if not isinstance(tolerance, tuple):
        return tolerance
    states = y0.shape[-1]
    if len(tolerance) != states:
        raise ValueError(f"{key} has {len(tolerance)} numbers; it needs one, or one for each of the {states} states.")
    return jnp.stack([jnp.asarray(number, y0.dtype) for number in tolerance]).reshape((1,) * (y0.ndim - 1) + (-1,))


def check_positive(key: str, given: int | float | Sequence[float] | None) -> None:
    """Refuses a number, or one of several, that is not positive."""
    numbers = given if isinstance(given, Sequence) else [] if given is None else [given]
    if not all(number > 0 for number in numbers):
        raise ValueError(f"{key} must be positive, got {given}.")


def smallest(rtol: Any) -> Any:
    """The tightest of the tolerances, which may be numbers or traced arrays."""
    if not isinstance(rtol, tuple):
        return rtol
    known = all(isinstance(number, float | int) for number in rtol)
    return min(rtol) if known else jnp.stack(rtol).min()


def with_defaults(rtol: Any, atol: Any, driven: bool = False) -> tuple[Any, Any]:
    """Complete tolerances.

    **Arguments:** `driven`: whether inputs drive the records, whose steps then end at every row.
    """
    if rtol is None:
        rtol = 1e-4 if driven else 1e-5
    if atol is None:
        # States are of order one; near zero, a relative tolerance alone would demand more than a noisy record can show.
        atol = smallest(rtol) / (1 if driven else 100)
    return rtol, atol
