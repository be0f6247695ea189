"""Problems and solutions of a solver: a field, its inputs between rows, and the times of a record.

Inputs can have a kink or a jump at every row, and states jump at events. A step that ends at the row and uses the
polynomial of its own interval crosses neither.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.domains import Numbers, namespace
from ..data.events import Jumps
from ..data.inputs import Interpolations, are_held, kinds_by_input
from ..runtime.placement import AnyArray

VectorField = Callable[[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]], Float[Array, " state"]]


class InitialValueProblem(eqx.Module):
    """Trajectories of one vector field with their own initial states and inputs.

    - `field`: called with `(t, y, u)` of one trajectory.
    - `ts`: times of the inputs since `origin`, shape `(trajectory, time)`; a trajectory starts at its first.
    - `y0`: states at the first time, shape `(trajectory, state)`.
    - `us`: inputs at `ts`, shape `(trajectory, time, input)`.
    - `origin`: the field's time at which `ts` is 0, shape `(trajectory,)`.
    - `bound`: magnitude of each state beyond which a solution over held steps has diverged, shape `(state,)`; no bound
      if None.
    - `jumps`: jumps of the states just after the times `ts`, shape `(trajectory, time, state)`; None for no jumps.
    - `guess`: states near the solution at the times `ts`, shape `(trajectory, time, state)`; None if unknown.
    """

    field: VectorField
    ts: Float[AnyArray, "trajectory time"]
    y0: Float[Array, "trajectory state"]
    us: Float[AnyArray, "trajectory time input"]
    origin: Float[AnyArray, " trajectory"]
    bound: Float[Array, " state"] | None = None
    jumps: Jumps | None = None
    guess: Float[Array, "trajectory time state"] | None = None


class Solution(eqx.Module):
    """Solved trajectories.

    - `ys`: states at the requested times, shape `(trajectory, time, state)`; not finite once a solve has failed.
    - `ok`: whether each trajectory was solved to its end, shape `(trajectory,)`.
    """

    ys: Float[Array, "trajectory time state"]
    ok: Bool[Array, " trajectory"]


class HeldSolution(eqx.Module):
    """Trajectories solved over held steps.

    - `ys`, `ok`: as in `Solution`.
    - `errors`: the estimated error of each step relative to its tolerance, shape `(trajectory, step)`.
    """

    ys: Float[Array, "trajectory time state"]
    ok: Bool[Array, " trajectory"]
    errors: Float[Array, "trajectory step"]


def interpolate(
    t: Float[Array, ""], ts: Float[AnyArray, " time"], us: Float[AnyArray, "time ... input"], kind: Interpolations
) -> Float[Array, "... input"]:
    """Interpolates the inputs at time `t`; outside the range of times, they have the first or last measured value.

    **Arguments:**

    - `t`: a time.
    - `ts`: increasing times, shape `(time,)`; padding repeats the last one.
    - `us`: inputs at these times, shape `(time, ..., input)`.
    - `kind`: `linear`, `hold` for the last measured value (zero-order hold), or `cubic` for cubic Hermite polynomials
      whose slope at a measured time is that of the parabola through it and its neighbours; or one of them for each
      input.
    """
    if us.shape[-1] == 0:
        return us[0]
    if not isinstance(kind, str):
        return combine_kinds(kind, us.shape[-1], lambda one: (interpolate(t, ts, us, one),))[0]
    row = jnp.searchsorted(ts, t, side="right") - 1
    left = jnp.clip(row, 0, ts.shape[0] - 1)
    if kind == "hold":
        return us[left]
    right = jnp.clip(row + 1, 0, ts.shape[0] - 1)
    gap = ts[right] - ts[left]
    fraction = quotient(t - ts[left], gap)
    rise = us[right] - us[left]
    line = us[left] + fraction * rise
    if kind == "linear":
        return line
    bend = fraction * (1 - fraction)
    start, end = gap * slope_at(left, ts, us) - rise, rise - gap * slope_at(right, ts, us)
    return line + bend * ((1 - fraction) * start + fraction * end)


def combine_kinds(
    kinds: Interpolations, inputs: int, interpolate_as: Callable[[str], tuple[Numbers, ...]]
) -> tuple[Numbers, ...]:
    """Takes each input, the last axis, from the arrays of its own kind of interpolation; arrays it lacks are zero."""
    by_input = np.array(kinds_by_input(kinds, inputs))
    combined: tuple[Numbers, ...] = ()
    for kind in dict.fromkeys(kinds):
        parts = interpolate_as(kind)
        pairs = itertools.zip_longest(parts, combined, fillvalue=namespace(parts[0]).zeros_like(parts[0]))
        combined = tuple(namespace(part).where(by_input == kind, part, other) for part, other in pairs)
    return combined


def slope_at(row: Int[Array, ""], ts: Float[AnyArray, " time"], us: Float[AnyArray, "time ..."]) -> Float[Array, "..."]:
    """Computes the slope at a row of the parabola through it and its neighbours, or of the line at an end."""
    last = ts.shape[0] - 1
    before, after = jnp.clip(row - 1, 0, last), jnp.clip(row + 1, 0, last)
    back, ahead = ts[row] - ts[before], ts[after] - ts[row]
    # The slope of the nearer neighbour weighs more; a gap of 0, at an end or in padding, has no weight.
    weight = jnp.where(back > 0, jnp.where(ahead > 0, quotient(back, back + ahead), 0), 1)
    return (1 - weight) * quotient(us[row] - us[before], back) + weight * quotient(us[after] - us[row], ahead)


def slopes(
    ts: Float[AnyArray, "trajectory time"], us: Float[AnyArray, "trajectory time input"]
) -> Float[Array, "trajectory time input"]:
    """Computes the slope at every row; see `slope_at`."""
    rows = jnp.arange(ts.shape[1])
    return jax.vmap(lambda t, u: jax.vmap(lambda row: slope_at(row, t, u))(rows))(jnp.asarray(ts), jnp.asarray(us))


def quotient(part: Float[Array, "..."], gap: Float[Array, ""]) -> Float[Array, "..."]:
    """Returns `part / gap`, or 0 if the gap is 0."""
    return jnp.where(gap > 0, part / jnp.where(gap > 0, gap, 1), 0)


class Driven(eqx.Module):
    """The field with its inputs, as Diffrax calls it.

    It is a module, not a closure, since an adjoint that solves backwards only differentiates leaves.

    - `us`: inputs at `ts`, with an axis for trajectories if the state has one.
    - `origin`: the field's time at which `ts` is 0.
    """

    field: VectorField
    ts: Float[AnyArray, " time"]
    us: Float[AnyArray, "time ..."]
    origin: Float[AnyArray, ""]
    inputs: Interpolations = eqx.field(static=True)

    def __call__(self, t: PyTree, y: PyTree, args: PyTree) -> Array:
        u = interpolate(t, self.ts, self.us, self.inputs)
        field = self.field if y.ndim == 1 else jax.vmap(self.field, in_axes=(None, 0, 0))
        return field(self.origin + t, y, u)


class Intervals(eqx.Module):
    """Intervals between the requested times of a solution; they do not cross rows.

    - `begin`, `end`: ends of each interval, shape `(trajectory, interval)`; equal in padding.
    - `row`, `length`: time of the row before the interval, and from that row to the next, of the same shape.
    - `coefficients`: the inputs as a polynomial in the fraction of the way from that row to the next, constant term
      first, arrays of shape `(trajectory, interval, input)`.
    - `jumps`: jumps of the states at the beginning of each interval, `(trajectory, interval, state)`; None for no
      jumps.
    - `after`: the inputs at the end of each interval, after the step of held inputs, `(trajectory, interval, input)`;
      None if nothing there depends on them.
    - `has_steps`: whether an input is held, and steps from interval to interval.
    """

    begin: Float[AnyArray, "trajectory interval"]
    end: Float[AnyArray, "trajectory interval"]
    row: Float[AnyArray, "trajectory interval"]
    length: Float[AnyArray, "trajectory interval"]
    coefficients: tuple[Float[AnyArray, "trajectory interval input"], ...]
    jumps: Jumps | None = None
    after: Float[AnyArray, "trajectory interval input"] | None = None
    has_steps: bool = eqx.field(static=True, default=False)

    @property
    def are_smooth(self) -> bool:
        """Whether the derivative of the states is continuous from each interval to the next."""
        return not self.has_steps and self.jumps is None


class Interval(eqx.Module):
    """One interval of each trajectory, with the fields of `Intervals` but without the axis of intervals.

    In a scan, that axis comes first.
    """

    begin: Float[Array, "*interval trajectory"]
    end: Float[Array, "*interval trajectory"]
    row: Float[Array, "*interval trajectory"]
    length: Float[Array, "*interval trajectory"]
    coefficients: tuple[Float[Array, "*interval trajectory input"], ...]
    jumps: Jumps | None = None

    def begin_at(self, y: Float[Array, "trajectory state"]) -> Float[Array, "trajectory state"]:
        """Returns states at the beginning, after the jumps there; padding has no jumps."""
        if self.jumps is None:
            return y
        return jnp.where((self.end > self.begin)[:, None], self.jumps.after(y), y)

    def inputs_at(self, t: Float[Array, " trajectory"]) -> Float[Array, "trajectory input"]:
        """Returns the inputs at one time per trajectory within the interval."""
        return evaluate_inputs(self.coefficients, self.row, self.length, t)


def evaluate_inputs(coefficients: Sequence[Numbers], row: Numbers, length: Numbers, t: Numbers) -> Numbers:
    """Evaluates the polynomials of inputs at one time per trajectory; arguments as in `Interval`."""
    first, *others = coefficients[::-1]
    if not others:
        return first
    xp = namespace(t)
    share = xp.clip((t - row) / xp.where(length > 0, length, 1), 0, 1)[:, None]
    for coefficient in others:
        first = cast(Numbers, coefficient + first * share)
    return first


def at_row(intervals: Intervals, index: int) -> Interval:
    """Returns the interval with this index of each trajectory."""
    one = jax.tree.map(lambda x: jnp.asarray(x)[:, index], intervals)
    return Interval(one.begin, one.end, one.row, one.length, one.coefficients, one.jumps)


def by_interval(intervals: Intervals) -> Interval:
    """Moves the axis of intervals to the front, for a scan."""
    turned = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), intervals)
    return Interval(turned.begin, turned.end, turned.row, turned.length, turned.coefficients, turned.jumps)


def between_rows(problem: InitialValueProblem, kind: Interpolations) -> Intervals:
    """Returns the intervals between consecutive rows of a problem's trajectories.

    **Arguments:** `kind`: interpolation of inputs, as in `interpolate`.
    """
    begin, end = problem.ts[:, :-1], problem.ts[:, 1:]
    jumps = problem.jumps and problem.jumps.at((slice(None), slice(-1)))
    coefficients, steps = polynomials(problem.ts, problem.us, kind), any(are_held(kind, problem.us.shape[2]))
    return Intervals(begin, end, begin, end - begin, coefficients, jumps, has_steps=steps)


def polynomials(
    ts: Float[AnyArray, "trajectory time"], us: Float[AnyArray, "trajectory time input"], kind: Interpolations
) -> tuple[Float[AnyArray, "trajectory interval input"], ...]:
    """Computes polynomial coefficients of the inputs in each interval between rows, constant term first."""
    if us.shape[2] and not isinstance(kind, str):
        return combine_kinds(kind, us.shape[2], lambda one: polynomials(ts, us, one))
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
