"""Time switches of a field, such as `piecewise(a, t > t1, b)`: steps do not cross them.

Intervals between rows are split at switches, whose times can depend on constants. Within an interval, the field is that
of one side, so the derivative of a solution with respect to a switch time is that of the ends of two intervals.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..data.events import Jumps
from ..runtime.placement import AnyArray
from .problem import Interval, Intervals, VectorField, at_row
from .triggers import has_triggers


@runtime_checkable
class SwitchedField(Protocol):
    """A vector field with switches; all methods are called for one trajectory, in the field's units.

    - `switch_times`: the times of its switches for given inputs, shape `(switch,)`; infinite for one that never acts.
    - `outcomes`: whether each condition holds at a time, shape `(switch,)`.
    - `between`: the derivatives while conditions have these outcomes.
    """

    def switch_times(self, u: Array) -> Array: ...
    def outcomes(self, t: Array, u: Array) -> Array: ...
    def between(self, t: Array, y: Array, u: Array, outcomes: Array) -> Array: ...


def has_switches(field: VectorField) -> bool:
    """Whether this field has time switches."""
    return bool(getattr(field, "switches", ()))


def has_stops(field: VectorField) -> bool:
    """Whether steps must end at times that the field determines, because of switches or triggers."""
    return has_triggers(field) or has_switches(field)


def rates_in(
    field: VectorField, origin: Float[Array, " trajectory"], interval: Interval
) -> Callable[[Float[Array, " trajectory"], Float[Array, "trajectory state"]], Float[Array, "trajectory state"]]:
    """Returns the derivatives of all trajectories within an interval, as a function of the time since the origin."""
    if not has_switches(field):
        return lambda t, y: jax.vmap(field)(origin + t, y, interval.inputs_at(t))
    switched = cast(SwitchedField, field)
    middle = jax.lax.stop_gradient((interval.begin + interval.end) / 2)
    held: Bool[Array, "trajectory switch"] = jax.vmap(switched.outcomes)(origin + middle, interval.inputs_at(middle))
    return lambda t, y: jax.vmap(switched.between)(origin + t, y, interval.inputs_at(t), held)


def split_at_switches(
    field: VectorField, origin: Float[Array, " trajectory"], intervals: Intervals
) -> tuple[Intervals, Int[Array, "trajectory interval"] | None]:
    """Splits intervals at switches, and returns the index of the new interval at the end of each given interval.

    Every switch adds one interval, of zero length if the switch is not within the given intervals. The index is None if
    the field has no switches.
    """
    if not has_switches(field):
        return intervals, None
    first = at_row(intervals, 0)
    times = jax.vmap(cast(SwitchedField, field).switch_times)(first.inputs_at(first.begin)) - origin[:, None]
    begin, end = jnp.asarray(intervals.begin)[:, :1], jnp.asarray(intervals.end)
    nodes = jnp.sort(jnp.concatenate([begin, end, jnp.clip(times, begin, end[:, -1:])], axis=1), axis=1)
    middle = (nodes[:, 1:] + nodes[:, :-1]) / 2
    search = jax.vmap(lambda sorted_times, wanted: jnp.searchsorted(sorted_times, wanted, side="right"))
    source = jnp.minimum(jax.vmap(jnp.searchsorted)(end, middle), end.shape[1] - 1)

    def take_source(x: AnyArray) -> Array:
        return jax.vmap(lambda row, index: row[index])(jnp.asarray(x), source)

    jumps = None
    if intervals.jumps is not None:
        opens = (nodes[:, :-1] == take_source(intervals.begin))[..., None]
        source_jumps: Jumps = jax.tree.map(take_source, intervals.jumps)
        jumps = Jumps(jnp.where(opens, source_jumps.factor, 1), jnp.where(opens, source_jumps.shift, 0))
    split = replace(
        intervals,
        begin=nodes[:, :-1],
        end=nodes[:, 1:],
        row=take_source(intervals.row),
        length=take_source(intervals.length),
        coefficients=tuple(take_source(part) for part in intervals.coefficients),
        jumps=jumps,
        after=None,
    )
    return split, search(nodes, end) - 2


def at_given_ends(
    found: Float[Array, "trajectory interval ..."], index: Int[Array, "trajectory given"] | None
) -> Float[Array, "trajectory given ..."]:
    """Selects values at the ends of the given intervals from those of intervals made by `split_at_switches`."""
    return found if index is None else jax.vmap(lambda row, indices: row[indices])(found, index)
