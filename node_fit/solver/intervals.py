"""A record between its rows: times, and the inputs as a polynomial in each interval.

Inputs may have a kink or a jump in every row. A step that ends at the row, and sees the polynomial of its own interval
up to there, meets neither.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from .interpolation import slopes


class Intervals(eqx.Module):
    """The intervals between the times at which a solution is wanted, none of which crosses a row.

    - `begin`, `end`: of each interval, shape `(trajectory, interval)`; equal in padding.
    - `row`, `length`: where the row before it is, and how far it is from there to the next one, of the same shape.
    - `coefficients`: of the inputs as a polynomial in the share of the way from that row to the next, from the constant
      on, each of shape `(trajectory, interval, input)`.
    """

    begin: Float[Any, "trajectory interval"]
    end: Float[Any, "trajectory interval"]
    row: Float[Any, "trajectory interval"]
    length: Float[Any, "trajectory interval"]
    coefficients: tuple[Float[Any, "trajectory interval input"], ...]


class Interval(eqx.Module):
    """One interval of each trajectory; fields as of `Intervals`, without their axis, or with it before all others to be
    scanned over."""

    begin: Float[Any, "*interval trajectory"]
    end: Float[Any, "*interval trajectory"]
    row: Float[Any, "*interval trajectory"]
    length: Float[Any, "*interval trajectory"]
    coefficients: tuple[Float[Any, "*interval trajectory input"], ...]

    def inputs_at(self, t: Float[Any, " trajectory"]) -> Float[Any, "trajectory input"]:
        """The inputs at a time of each trajectory within the interval."""
        first, *rest = self.coefficients[::-1]
        if not rest:
            return first
        share = jnp.clip((t - self.row) / jnp.where(self.length > 0, self.length, 1), 0, 1)[:, None]
        for coefficient in rest:
            first = coefficient + first * share
        return first


def at_row(intervals: Intervals, index: int) -> Interval:
    """The interval of this number of each trajectory."""
    one = jax.tree.map(lambda x: x[:, index], intervals)
    return Interval(one.begin, one.end, one.row, one.length, one.coefficients)


def by_interval(intervals: Intervals) -> Interval:
    """The intervals with their own axis before that of the trajectories, to be scanned over."""
    turned = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), intervals)
    return Interval(turned.begin, turned.end, turned.row, turned.length, turned.coefficients)


def between_rows(ts: Float[Any, "trajectory time"], us: Float[Any, "trajectory time input"], kind: str) -> Intervals:
    """The intervals between consecutive rows.

    **Arguments:**

    - `ts`, `us`: times and inputs, of NumPy or JAX.
    - `kind`: as of `interpolation.interpolate`.
    """
    begin, end = ts[:, :-1], ts[:, 1:]
    return Intervals(begin, end, begin, end - begin, polynomials(ts, us, kind))


def polynomials(
    ts: Float[Any, "trajectory time"], us: Float[Any, "trajectory time input"], kind: str
) -> tuple[Float[Any, "trajectory interval input"], ...]:
    """Coefficients of the inputs in each interval between rows, from the constant on."""
    left, rise = us[:, :-1], us[:, 1:] - us[:, :-1]
    if us.shape[2] == 0 or kind == "hold":
        return (left,)
    if kind == "linear":
        return left, rise
    gap = (ts[:, 1:] - ts[:, :-1])[..., None]
    slope = slopes(ts, us)
    first, last = gap * slope[:, :-1], gap * slope[:, 1:]
    # The cubic with these values and slopes at both ends, in the share of the interval.
    return left, first, 3 * rise - 2 * first - last, first + last - 2 * rise
