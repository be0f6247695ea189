"""Inputs between the times at which they were measured."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

Interpolation = Literal["linear", "hold"]
INTERPOLATIONS = ("linear", "hold")


def interpolate(
    t: Float[Array, ""], ts: Float[Array, " time"], us: Float[Array, "time ..."], kind: str
) -> Float[Array, "..."]:
    """The inputs at time `t`; the first or last measured value outside of their range.

    **Arguments:**

    - `t`: a time.
    - `ts`: increasing times, shape `(time,)`; padding repeats the last one.
    - `us`: inputs at these times, shape `(time, ...)`.
    - `kind`: `linear`, or `hold` for the last measured value (zero-order hold).
    """
    if us.shape[-1] == 0:
        return us[0]
    at = jnp.searchsorted(ts, t, side="right") - 1
    left = jnp.clip(at, 0, ts.shape[0] - 1)
    if kind == "hold":
        return us[left]
    right = jnp.clip(at + 1, 0, ts.shape[0] - 1)
    gap = ts[right] - ts[left]
    fraction = jnp.where(gap > 0, (t - ts[left]) / jnp.where(gap > 0, gap, 1), 0)
    return us[left] + fraction * (us[right] - us[left])
