"""Held steps between rows: a fixed number of equal steps in every interval, with derivatives of both modes.

Steps do not cross rows, since inputs can have a kink and states can jump there.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .methods import Tableau, Tolerances, combine, runge_kutta_step, tableau
from .problem import InitialValueProblem, Interval, Intervals, by_interval
from .recurrence import solve_recurrence
from .switches import at_given_ends, has_stops, rates_in, split_at_switches
from .triggers import SolveWithError, Triggers, TriggerWatch, has_triggers

# Maximum number of steps that are unrolled; more steps, and the large steps of triggers, are compiled as a loop.
UNROLLED = 3
# States, their derivatives, and the state of triggers, if any.
Carry = tuple[Array, Array, TriggerWatch | None]


class RowMarch(NamedTuple):
    """A solution over held steps between rows.

    - `ys`: states at all rows, shape `(trajectory, time, state)`.
    - `errors`: the largest error of a step in each interval relative to its tolerance, `(trajectory, interval)`;
      intervals also end at switches.
    """

    ys: Float[Array, "trajectory time state"]
    errors: Float[Array, "trajectory interval"]


def estimate_error(
    table: Tableau, h: Array, y: Array, after: Array, stages: Sequence[Array], tolerances: Tolerances
) -> Float[Array, " trajectory"]:
    """Estimates the error of a step relative to its tolerance, as a root mean square over the states."""
    rtol, atol = tolerances
    allowed = atol + rtol * jnp.maximum(jnp.abs(y), jnp.abs(after))
    return jnp.sqrt(jnp.mean((h[:, None] * combine(table.error, stages) / allowed) ** 2, axis=1))


def bounded_rates(problem: InitialValueProblem, interval: Interval) -> Callable[[Array, Array], Array]:
    """Returns the derivatives within an interval, with states clipped to their bound."""
    within, bound = rates_in(problem.field, jnp.asarray(problem.origin), interval), problem.bound
    return lambda t, y: within(t, y if bound is None else jnp.clip(y, -bound[None], bound[None]))


def repeat_steps(
    step: Callable[[Carry, Array], tuple[Carry, Array]],
    carry: Carry,
    count: int | Int[Array, ""],
    like: Float[Array, " trajectory"],
    *,
    loop: bool,
) -> tuple[Carry, Float[Array, " trajectory"]]:
    """Takes `count` steps, called with their numbers; returns the end and the largest error of each trajectory.

    **Arguments:** `like`: array with the shape and type of an error. `loop`: use a loop even for few steps.
    """
    if isinstance(count, int):
        numbers = jnp.arange(count, dtype=like.dtype)
        carry, errors = jax.lax.scan(step, carry, numbers, unroll=count if count <= UNROLLED and not loop else 1)
        return carry, errors.max(axis=0)

    def take_step(number: Array, state: tuple[Carry, Array]) -> tuple[Carry, Array]:
        carry, error = step(state[0], number.astype(like.dtype))
        return carry, jnp.maximum(state[1], error)

    return jax.lax.fori_loop(0, count, take_step, (carry, jnp.zeros_like(like)))


def march_rows(
    method: str,
    problem: InitialValueProblem,
    intervals: Intervals,
    substeps: int | Int[Array, ""] | Int[Array, " interval"],
    tolerances: Tolerances,
    *,
    together: bool = False,
) -> RowMarch:
    """Solves through all intervals between rows.

    **Arguments:**

    - `method`: a name in `EXPLICIT`.
    - `problem`: the trajectories. States are clipped to their bound before the field is evaluated, so that a diverging
      solution and its gradient stay finite.
    - `intervals`: the intervals between its rows.
    - `substeps`: steps in each interval, one number for all or one for each. With a traced number, one program serves
      any number, without reverse-mode derivatives.
    - `tolerances`: relative and absolute, as returned by `Solver.tolerances`.
    - `together`: solve all intervals at once instead of one after the other; not with triggers.
    """
    table = tableau(method)
    origin = jnp.asarray(problem.origin)
    intervals, index = split_at_switches(problem.field, origin, intervals)

    def triggers_of(interval: Interval) -> Triggers:
        span = interval.end - interval.begin
        return Triggers(problem.field, origin, interval.inputs_at, span, tolerances)

    def step(
        y: Array, slope: Array, t: Array, h: Array, interval: Interval
    ) -> tuple[Array, Float[Array, " trajectory"], Array]:
        rates = bounded_rates(problem, interval)
        after, stages = runge_kutta_step(table, rates, t, h, y, slope if reuses else None)
        return after, estimate_error(table, h, y, after, stages, tolerances), stages[-1]

    def through(carry: Carry, at: tuple[Interval, Array | None]) -> tuple[Carry, tuple[Array, Array]]:
        (y, slope, watch), (interval, steps) = carry, at
        count, y = cast(int, substeps) if steps is None else steps, interval.begin_at(y)
        h = (interval.end - interval.begin) / count

        triggers = triggers_of(interval) if has_triggers(problem.field) else None

        def substep(carry: Carry, number: Array) -> tuple[Carry, Array]:
            y, slope, watch = carry
            t = interval.begin + number * h
            if triggers is not None and watch is not None:
                y, watch = triggers.settle(t, y, watch, interval.end > interval.begin)
            after, error, slope = step(y, slope, t, h, interval)
            if triggers is not None and watch is not None:
                again: SolveWithError = lambda y, t, h: step(y, y, t, h, interval)[:2]  # noqa: E731
                after, error, watch = triggers.pass_event(again, t, h, y, after, error, watch)
            return (after, slope, watch), error

        carry, largest = repeat_steps(substep, (y, slope, watch), count, h, loop=triggers is not None)
        y, _, watch = carry
        y = y if watch is None else jnp.where(watch.endless[:, None], jnp.inf, y)
        return carry, (y, largest)

    def alone(y: Array, interval: Interval) -> tuple[Array, Array]:
        (y, *_), (_, errors) = through((y, jnp.zeros_like(y), None), (interval, None))
        return y, errors

    # The last stage of a step is the first stage of the next one, unless inputs or states jump at the row.
    reuses = table.fsal and intervals.are_smooth and not has_stops(problem.field) and not together
    scanned, y0 = by_interval(intervals), problem.y0
    if together:
        near = None if problem.guess is None else jnp.swapaxes(problem.guess, 0, 1)[1:]
        ys, errors = solve_recurrence(alone, y0, scanned, near)
    else:
        first = jax.tree.map(lambda x: x[0], scanned)
        slope = rates_in(problem.field, origin, first)(first.begin, y0) if reuses else jnp.zeros_like(y0)
        watch = triggers_of(first).begin(first.begin, y0) if has_triggers(problem.field) else None
        counts = None if isinstance(substeps, int) else jnp.broadcast_to(substeps, (intervals.begin.shape[1],))
        _, (ys, errors) = jax.lax.scan(jax.checkpoint(through), (y0, slope, watch), (scanned, counts))
    at_rows = at_given_ends(jnp.swapaxes(ys, 0, 1), index)
    return RowMarch(jnp.concatenate([y0[:, None], at_rows], axis=1), jnp.swapaxes(errors, 0, 1))
