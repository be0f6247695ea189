"""Held steps between rows: a Runge-Kutta method with the same number of equal steps in every interval between rows.

Inputs may have a kink or a jump at every row, which no step crosses. The number of steps is fixed, so the solution is a
smooth function of the parameters and can be differentiated in forward and reverse mode.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .initial_value_problem import InitialValueProblem
from .intervals import Interval, Intervals, by_interval
from .tableau import combined, tableau
from .triggers import Triggers, Watch, has_triggers

# As many steps are compiled one after another; for more of them, a loop is.
UNROLLED = 3
# States, their derivatives, and what is remembered of triggers, if there are any.
Carry = tuple[Array, Array, Watch | None]


class RowMarch(NamedTuple):
    """A solution over held steps between rows.

    - `ys`: states at all rows, shape `(trajectory, time, state)`.
    - `errors`: the largest error of a step in each interval relative to its tolerance, `(trajectory, interval)`.
    """

    ys: Float[Array, "trajectory time state"]
    errors: Float[Array, "trajectory interval"]


def march_rows(
    method: str, problem: InitialValueProblem, intervals: Intervals, substeps: int, tolerances: tuple[Any, Any]
) -> RowMarch:
    """Solves through all intervals between rows.

    **Arguments:**

    - `method`: a name in `EXPLICIT`.
    - `problem`: the trajectories. The field sees states beyond their bound as if they were on it, so that a solution
      that diverges, and its gradient, stay finite.
    - `intervals`: the intervals between its rows.
    - `substeps`: steps in each interval.
    - `tolerances`: relative and absolute, as `Solver.tolerances` gives them.
    """
    table = tableau(method)
    rtol, atol = tolerances
    bound = problem.bound
    field = jax.vmap(problem.field)

    def triggers_of(interval: Interval) -> Triggers:
        span = interval.end - interval.begin
        return Triggers(problem.field, problem.origin, interval.inputs_at, span, tolerances)

    def step(
        y: Array, slope: Array, t: Array, h: Array, interval: Interval
    ) -> tuple[Array, Float[Array, " trajectory"], Array]:
        def rates(t: Array, y: Array) -> Array:
            y = y if bound is None else jnp.clip(y, -bound[None], bound[None])
            return field(problem.origin + t, y, interval.inputs_at(t))

        stages = [slope if reuses else rates(t, y)]
        for row, c in zip(table.a, table.c, strict=True):
            stages.append(rates(t + float(c) * h, y + h[:, None] * combined(row, stages)))
        after = y + h[:, None] * combined(table.b, stages)
        error = h[:, None] * combined(table.error, stages)
        allowed = atol + rtol * jnp.maximum(jnp.abs(y), jnp.abs(after))
        return after, jnp.sqrt(jnp.mean((error / allowed) ** 2, axis=1)), stages[-1]

    @jax.checkpoint
    def through(carry: Carry, interval: Interval) -> tuple[Carry, tuple[Array, Array]]:
        y, slope, watch = carry
        y = interval.begun(y)
        h = (interval.end - interval.begin) / substeps

        triggers = triggers_of(interval) if has_triggers(problem.field) else None

        def substep(carry: Carry, number: Array) -> tuple[Carry, Array]:
            y, slope, watch = carry
            t = interval.begin + number * h
            if triggers is not None and watch is not None:
                y, watch = triggers.settle(t, y, watch, interval.end > interval.begin)
            after, error, slope = step(y, slope, t, h, interval)
            if triggers is not None and watch is not None:
                again = lambda y, t, h: step(y, y, t, h, interval)[:2]  # noqa: E731
                after, error, watch = triggers.passed(again, t, h, y, after, error, watch)
            return (after, slope, watch), error

        numbers = jnp.arange(substeps, dtype=h.dtype)
        unroll = substeps if substeps <= UNROLLED else 1
        carry, errors = jax.lax.scan(substep, (y, slope, watch), numbers, unroll=unroll)
        y, _, watch = carry
        y = y if watch is None else jnp.where(watch.endless[:, None], jnp.inf, y)
        return carry, (y, errors.max(axis=0))

    # The last stage of a step is the first of the next one, unless inputs or states jump at the row.
    reuses = table.fsal and intervals.are_smooth and not has_triggers(problem.field)
    each = by_interval(intervals)
    first = jax.tree.map(lambda x: x[0], each)
    y0 = problem.y0
    slope = field(problem.origin + first.begin, y0, first.inputs_at(first.begin)) if reuses else jnp.zeros_like(y0)
    watch = triggers_of(first).begin(first.begin, y0) if has_triggers(problem.field) else None
    _, (ys, errors) = jax.lax.scan(through, (y0, slope, watch), each)
    whole = jnp.concatenate([y0[None], ys])
    return RowMarch(jnp.swapaxes(whole, 0, 1), jnp.swapaxes(errors, 0, 1))
