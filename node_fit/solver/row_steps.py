"""Adaptive steps that end at every row: how predictions and validation are solved with an explicit method.

The cost is linear in the rows, whatever the inputs do there. The loop over rows carries its whole state, so a long
record is solved in pieces of one compiled length.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .intervals import Interval, Intervals, by_interval
from .tableau import Tableau, combined, error_order, tableau
from .triggers import Triggers, Watch, has_triggers, where
from .vector_field import VectorField

# The fraction of the tolerance to aim at, and the limits of a step's change (Hairer, Norsett and Wanner, Solving
# Ordinary Differential Equations I, 1993, section II.4).
SAFETY, SHRINK, GROW = 0.9, 0.2, 5.0
# A step that is a smaller fraction of its interval makes no progress.
VANISHING = 1e-7
# A step that would end less than this fraction of itself before the end of its interval goes to the end.
NEARLY = 1e-3
# A larger state (they are of order one) has run away.
AWAY = 100.0


# From times within an interval and states to derivatives, for all trajectories.
Rates = Callable[[Array, Array], Array]


class Front(eqx.Module):
    """The state of a solve between two intervals.

    - `y`, `slope`: states and their derivatives, which the next step needs.
    - `step`: the next step to try.
    - `sound`: whether a trajectory has been solved so far.
    - `watch`: what is remembered of triggers; None if the field has none.
    """

    y: Float[Array, "trajectory state"]
    slope: Float[Array, "trajectory state"]
    step: Float[Array, " trajectory"]
    sound: Bool[Array, " trajectory"]
    watch: Watch | None = None


def reached(front: Front) -> Float[Array, "trajectory state"]:
    """The states; infinite where a trajectory has run away, NaN where its solve has failed otherwise."""
    away = ~(jnp.abs(front.y) < AWAY).all(axis=1)
    return jnp.where(front.sound[:, None], front.y, jnp.where(away, jnp.inf, jnp.nan)[:, None])


def first_front(
    field: VectorField,
    origin: Float[Array, " trajectory"],
    y0: Float[Array, "trajectory state"],
    first: Interval,
    tolerances: tuple[Any, Any],
) -> Front:
    """The front at the start of all trajectories.

    **Arguments:**

    - `field`: called with `(t, y, u)` of one trajectory.
    - `origin`: the field's time where the intervals' time is 0.
    - `y0`: states at the beginning of the `first` interval, whose length is the first step to try.
    - `tolerances`: relative and absolute, as `Solver.tolerances` gives them.
    """
    slope = jax.vmap(field)(origin + first.begin, y0, first.inputs_at(first.begin))
    length = first.end - first.begin
    watch = None
    if has_triggers(field):
        watch = Triggers(field, origin, first.inputs_at, length, tolerances).begin(first.begin, y0)
    return Front(y0, slope, jnp.where(length > 0, length, 1), jnp.isfinite(y0).all(axis=1), watch)


def one_step(
    table: Tableau, rates: Rates, passed: Array, h: Array, y: Array, slope: Array | None = None
) -> tuple[Float[Array, "trajectory state"], list[Array]]:
    """The states after a step of length `h`, and its stages, of which `slope` is the first if it is known."""
    stages = [rates(passed, y) if slope is None else slope]
    for row, c in zip(table.a, table.c, strict=True):
        stages.append(rates(passed + float(c) * h, y + h[:, None] * combined(row, stages)))
    return y + h[:, None] * combined(table.b, stages), stages


def root_mean_square(ratios: Float[Array, "trajectory state"]) -> Float[Array, " trajectory"]:
    """Of all states; infinite where it is not finite."""
    error = jnp.sqrt(jnp.mean(ratios**2, axis=1))
    return jnp.where(jnp.isfinite(error), error, jnp.inf)


def after_jumps(front: Front, interval: Interval, triggers: Triggers, rates: Rates) -> Front:
    """The front after the jumps at the beginning of an interval, and what these trigger."""
    length = interval.end - interval.begin
    y, watch, sound = interval.begun(front.y), front.watch, front.sound
    if watch is not None:
        y, watch = triggers.settle(interval.begin, y, watch, length > 0)
        sound = sound & ~watch.endless
    return Front(y, rates(jnp.zeros_like(length), y), front.step, sound, watch)


def advance(
    method: str,
    field: VectorField,
    origin: Float[Array, " trajectory"],
    intervals: Intervals,
    front: Front,
    tolerances: tuple[Any, Any],
    max_steps: int,
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """Solves through intervals, one after another.

    **Arguments:**

    - `method`: a name in `EXPLICIT` with an error estimate.
    - `field`, `origin`: as in `first_front`.
    - `intervals`, `front`: the intervals, and the front at the beginning of the first.
    - `tolerances`: relative and absolute, as `Solver.tolerances` gives them.
    - `max_steps`: steps in one interval after which a trajectory counts as failed.

    **Returns:** states at the end of each interval, infinite from where a solve failed, and the front there.
    """
    table, power = tableau(method), error_order(method)
    rtol, atol = tolerances

    def through(front: Front, interval: Interval) -> tuple[Front, Float[Array, "trajectory state"]]:
        length = interval.end - interval.begin

        def rates(passed: Array, y: Array) -> Array:
            t = interval.begin + passed
            return jax.vmap(field)(origin + t, y, interval.inputs_at(t))

        def goes_on(carry: tuple[Array, Front, Array]) -> Array:
            passed, at, count = carry
            return jnp.any(at.sound & (passed < length)) & (count < max_steps)

        def step(carry: tuple[Array, Front, Array]) -> tuple[Array, Front, Array]:
            passed, at, count = carry
            left = length - passed
            last = at.step >= left * (1 - NEARLY)
            h = jnp.where(last, left, at.step)
            after, stages = one_step(table, rates, passed, h, at.y, at.slope)
            allowed = atol + rtol * jnp.maximum(jnp.abs(at.y), jnp.abs(after))
            error = root_mean_square(h[:, None] * combined(table.error, stages) / allowed)
            active = at.sound & (passed < length)
            accepted = active & (error <= 1)
            factor = jnp.clip(SAFETY * jnp.maximum(error, 1e-10) ** (-1 / power), SHRINK, GROW)
            # A step that was shortened to end at the row is no reason for a shorter next step.
            next_step = jnp.where(accepted & last, jnp.maximum(at.step, h * factor), h * factor)
            end = jnp.where(last, length, passed + h)
            watch = at.watch
            if watch is not None:
                again = lambda y, t, h: one_step(table, rates, t - interval.begin, h, y)[0]  # noqa: E731
                stop = triggers.stopped(again, interval.begin + passed, h, at.y, after, watch)
                after, accepted = stop.y, accepted & ~stop.lost
                end = jnp.where(stop.share < 1, passed + stop.share * h, end)
                watch = where(accepted, stop.watch, watch)
                next_step = jnp.where(stop.lost, h * SHRINK, next_step)
            passed = jnp.where(accepted, end, passed)
            y = jnp.where(accepted[:, None], after, at.y)
            failed = active & (next_step < VANISHING * length)
            failed = failed if watch is None else failed | watch.endless
            slope = stages[-1] if table.fsal and not has_triggers(field) else rates(passed, y)
            moved = Front(
                y=y,
                slope=jnp.where(accepted[:, None], slope, at.slope),
                step=jnp.where(active, next_step, at.step),
                sound=at.sound & ~failed,
                watch=watch,
            )
            return passed, moved, count + 1

        triggers = Triggers(field, origin, interval.inputs_at, length, tolerances)
        is_smooth = intervals.are_smooth and front.watch is None
        start = front if is_smooth else after_jumps(front, interval, triggers, rates)
        none = (jnp.zeros_like(length), start, jnp.zeros((), jnp.int32))
        passed, moved, _ = jax.lax.while_loop(goes_on, step, none)
        moved = eqx.tree_at(lambda f: f.sound, moved, moved.sound & (passed >= length))
        return moved, reached(moved)

    front, ys = jax.lax.scan(through, front, by_interval(intervals))
    return jnp.swapaxes(ys, 0, 1), front
