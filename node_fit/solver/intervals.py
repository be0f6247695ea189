"""A record between its rows: times, and the inputs as a polynomial in each interval.

Inputs may have a kink or a jump at every row, and states jump at events. A step that ends at the row and uses the
polynomial of its own interval crosses neither.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..data.events import Jumps
from .initial_value_problem import InitialValueProblem
from .interpolation import slopes


class Intervals(eqx.Module):
    """Intervals between the times at which a solution is wanted; none of them crosses a row.

    - `begin`, `end`: ends of each interval, shape `(trajectory, interval)`; equal in padding.
    - `row`, `length`: time of the row before the interval, and from that row to the next, of the same shape.
    - `coefficients`: the inputs as a polynomial in the fraction of the way from that row to the next, constant term
      first, each of shape `(trajectory, interval, input)`.
    - `jumps`: jumps of the states at the beginning of each interval, `(trajectory, interval, state)`; None if there are
      none.
    """

    begin: Float[Any, "trajectory interval"]
    end: Float[Any, "trajectory interval"]
    row: Float[Any, "trajectory interval"]
    length: Float[Any, "trajectory interval"]
    coefficients: tuple[Float[Any, "trajectory interval input"], ...]
    jumps: Jumps | None = None

    @property
    def are_smooth(self) -> bool:
        """Whether the derivative of the states is continuous from each interval to the next."""
        held = len(self.coefficients) == 1 and self.coefficients[0].shape[2] > 0
        return not held and self.jumps is None


class Interval(eqx.Module):
    """One interval of each trajectory, with the fields of `Intervals` but without the axis of intervals.

    In a scan, that axis comes first.
    """

    begin: Float[Any, "*interval trajectory"]
    end: Float[Any, "*interval trajectory"]
    row: Float[Any, "*interval trajectory"]
    length: Float[Any, "*interval trajectory"]
    coefficients: tuple[Float[Any, "*interval trajectory input"], ...]
    jumps: Jumps | None = None

    def begun(self, y: Float[Array, "trajectory state"]) -> Float[Array, "trajectory state"]:
        """States at the beginning, from those before; nothing jumps in padding."""
        if self.jumps is None:
            return y
        return jnp.where((self.end > self.begin)[:, None], self.jumps.after(y), y)

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
    """The interval with this index of each trajectory."""
    one = jax.tree.map(lambda x: x[:, index], intervals)
    return Interval(one.begin, one.end, one.row, one.length, one.coefficients, one.jumps)


def by_interval(intervals: Intervals) -> Interval:
    """The intervals with their axis first, for a scan."""
    turned = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), intervals)
    return Interval(turned.begin, turned.end, turned.row, turned.length, turned.coefficients, turned.jumps)


def between_rows(problem: InitialValueProblem, kind: str) -> Intervals:
    """The intervals between consecutive rows of a problem's trajectories.

    **Arguments:** `kind`: of the interpolation of inputs, as in `interpolation.interpolate`.
    """
    begin, end = problem.ts[:, :-1], problem.ts[:, 1:]
    jumps = problem.jumps and problem.jumps.at((slice(None), slice(-1)))
    return Intervals(begin, end, begin, end - begin, polynomials(problem.ts, problem.us, kind), jumps)


def polynomials(
    ts: Float[Any, "trajectory time"], us: Float[Any, "trajectory time input"], kind: str
) -> tuple[Float[Any, "trajectory interval input"], ...]:
    """Coefficients of the inputs in each interval between rows, constant term first."""
    left, rise = us[:, :-1], us[:, 1:] - us[:, :-1]
    if us.shape[2] == 0 or kind == "hold":
        return (left,)
    if kind == "linear":
        return left, rise
    gap = (ts[:, 1:] - ts[:, :-1])[..., None]
    slope = slopes(ts, us)
    first, last = gap * slope[:, :-1], gap * slope[:, 1:]
    # The cubic with these values and slopes at both ends, in the fraction of the interval.
    return left, first, 3 * rise - 2 * first - last, first + last - 2 * rise
