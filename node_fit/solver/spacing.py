"""How far apart the times of a trajectory are."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def first_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The first step of a time grid; 1 if there is none."""
    gap = ts[1] - ts[0] if ts.shape[0] > 1 else jnp.zeros((), ts.dtype)
    return jnp.where(gap > 0, gap, 1)


def mean_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The mean step of a time grid, without the repeated times that pad it; 1 if there is no step."""
    gaps = (jnp.diff(ts) > 0).sum().astype(ts.dtype)
    return jnp.where(gaps > 0, (ts[-1] - ts[0]) / jnp.maximum(gaps, 1), 1)
