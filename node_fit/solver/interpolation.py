"""Inputs between the times at which they were measured."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Interpolation = Literal["linear", "hold", "cubic"]
INTERPOLATIONS = ("linear", "hold", "cubic")


def interpolate(
    t: Float[Array, ""], ts: Float[Array, " time"], us: Float[Array, "time ..."], kind: str
) -> Float[Array, "..."]:
    """The inputs at time `t`; outside the range of times, the first or last measured value.

    **Arguments:**

    - `t`: a time.
    - `ts`: increasing times, shape `(time,)`; padding repeats the last one.
    - `us`: inputs at these times, shape `(time, ...)`.
    - `kind`: `linear`, `hold` for the last measured value (zero-order hold), or `cubic` for cubic Hermite polynomials
      whose slope at a measured time is that of the parabola through it and its neighbours.
    """
    if us.shape[-1] == 0:
        return us[0]
    at = jnp.searchsorted(ts, t, side="right") - 1
    left = jnp.clip(at, 0, ts.shape[0] - 1)
    if kind == "hold":
        return us[left]
    right = jnp.clip(at + 1, 0, ts.shape[0] - 1)
    gap = ts[right] - ts[left]
    fraction = quotient(t - ts[left], gap)
    rise = us[right] - us[left]
    line = us[left] + fraction * rise
    if kind == "linear":
        return line
    bend = fraction * (1 - fraction)
    start, end = gap * slope_at(left, ts, us) - rise, rise - gap * slope_at(right, ts, us)
    return line + bend * ((1 - fraction) * start + fraction * end)


def slope_at(row: Int[Array, ""], ts: Float[Array, " time"], us: Float[Array, "time ..."]) -> Float[Array, "..."]:
    """The slope at a row of the parabola through it and its neighbours; at an end, of the line to its neighbour."""
    last = ts.shape[0] - 1
    before, after = jnp.clip(row - 1, 0, last), jnp.clip(row + 1, 0, last)
    back, ahead = ts[row] - ts[before], ts[after] - ts[row]
    # The slope of the nearer neighbour weighs more; a gap of 0, at an end or in padding, leaves the other alone.
    weight = jnp.where(back > 0, jnp.where(ahead > 0, quotient(back, back + ahead), 0), 1)
    return (1 - weight) * quotient(us[row] - us[before], back) + weight * quotient(us[after] - us[row], ahead)


def slopes(
    ts: Float[Any, "trajectory time"], us: Float[Any, "trajectory time input"]
) -> Float[Array, "trajectory time input"]:
    """The slope at every row; see `slope_at`."""
    rows = jnp.arange(ts.shape[1])
    return jax.vmap(lambda t, u: jax.vmap(lambda row: slope_at(row, t, u))(rows))(jnp.asarray(ts), jnp.asarray(us))


def quotient(part: Float[Array, "..."], gap: Float[Array, ""]) -> Float[Array, "..."]:
    """`part / gap`, or 0 if there is no gap."""
    return jnp.where(gap > 0, part / jnp.where(gap > 0, gap, 1), 0)
