"""State-triggered events: times at which a level falls through zero, in a step or a jump, and the states just after.

A trigger is armed once its level exceeds zero by more than the solver's tolerance and the rounding error of the level.
It acts when the level then reaches zero, and must be armed again before it can act again.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .methods import Tolerances
from .problem import VectorField

# Iterations of the root search.
MOST_TRIALS = 12


def cubic(share: float, begin: Array, end: Array, slope: Array, last: Array) -> Array:
    """Evaluates cubics at a share between 0 and 1, from their values and slopes at both ends."""
    rise = end - begin
    return begin + share * rise + share * (1 - share) * ((1 - share) * (slope - rise) - share * (last - rise))


def turning_share(begin: Array, end: Array, slope: Array, last: Array) -> Array:
    """Returns the first turning point of a cubic in (0, 1), from its values and slopes at both ends, or one half."""
    rise = end - begin
    a, b = 3 * (slope + last) - 6 * rise, 6 * rise - 4 * slope - 2 * last
    q = -(b + jnp.where(b < 0, -1, 1) * jnp.sqrt(jnp.maximum(b**2 - 4 * a * slope, 0))) / 2
    roots = jnp.stack([q / jnp.where(a == 0, 1, a), slope / jnp.where(q == 0, 1, q)])
    first = jnp.where((roots > 0) & (roots < 1), roots, 1).min(axis=0)
    return jnp.where(first < 1, first, 0.5)


def false_position(level: Callable[[Array], Array], left: Array, right: Array) -> Array:
    """Finds zeros of levels between two points with the Illinois variant of the false position method."""

    def better(_: int | Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        left, above, right, below, _ = carry
        gap = jnp.where(above == below, 1, above - below)
        middle = left + (right - left) * jnp.clip(above / gap, 0, 1)
        value = level(middle)
        low = value <= 0
        # Halve the value at an end that stays, so that it moves too.
        return (
            jnp.where(low, left, middle),
            jnp.where(low, above / 2, value),
            jnp.where(low, middle, right),
            jnp.where(low, value, below / 2),
            middle,
        )

    return jax.lax.fori_loop(0, MOST_TRIALS, better, (left, level(left), right, level(right), right))[-1]


# Shares of a step at which levels are also checked, as inputs and time can move them faster than the states change.
LOOKED_AT = (0.25, 0.5, 0.75)
# Distance from the cubic through its ends above which a level swings within a step [share of the largest level], and
# shortest step for which this is checked [share of the interval between two rows].
MOST_SWING, FASTEST_SWING = 0.03, 1e-3
# Error reported for a step with two events, relative to the tolerance, so that the step is shortened.
TWO_EVENTS = 1e3
# Maximum number of rounds in which triggers set each other off at one instant; the solve fails beyond it.
MOST_CASCADES = 8
# Number of rounding errors allowed for in the terms of a level.
ROUNDINGS = 32

# Maps states, times and step lengths to the states after the steps, one for each trajectory.
Solve = Callable[[Array, Array, Array], Array]
SolveWithError = Callable[[Array, Array, Array], tuple[Array, Array]]
Each = Bool[Array, "trajectory trigger"]


class TriggerWatch(eqx.Module):
    """State kept for each trigger between steps.

    - `armed`: whether the level has been clearly above zero since the trigger last acted.
    - `leaving`: whether the level is zero and rises, so that it will have been above zero when it is next below.
    - `endless`: trajectories whose triggers have set each other off endlessly.
    """

    armed: Each
    leaving: Each
    endless: Bool[Array, " trajectory"]


class Look(NamedTuple):
    """The levels at one time, with gradients stopped.

    - `level`, `slope`: their values, and their time derivatives along the solution.
    - `rates`: the derivatives of the states.
    - `rounding`: rounding error of the levels. `clear`: distance beyond which a level is clearly away from zero.
    - `rises`: whether a level rises by more than its rounding error.
    """

    level: Float[Array, "trajectory trigger"]
    slope: Float[Array, "trajectory trigger"]
    rates: Float[Array, "trajectory state"]
    rounding: Float[Array, "trajectory trigger"]
    clear: Float[Array, "trajectory trigger"]
    rises: Each


class Crossings(NamedTuple):
    """Levels that fall through zero in a step.

    - `falls`: levels with a crossing between the shares `left` and `right` of the step.
    - `lost`: trajectories with a crossing that can't be located; the step must be shorter.
    """

    falls: Each
    left: Float[Array, "trajectory trigger"]
    right: Float[Array, "trajectory trigger"]
    lost: Bool[Array, " trajectory"]


class TriggerEvent(NamedTuple):
    """The first event within a step of each trajectory, or the end of the step if none occurs.

    - `share`: its position, as a share of the step, with derivatives from the implicit function theorem.
    - `y`, `watch`: states, and the state of the triggers, just after it.
    - `lost`: whether the step must be shorter.
    """

    share: Float[Array, " trajectory"]
    y: Float[Array, "trajectory state"]
    watch: TriggerWatch
    lost: Bool[Array, " trajectory"]


Tree = TypeVar("Tree", bound=PyTree)


def has_triggers(field: VectorField) -> bool:
    """Whether states of this field jump when they reach a level."""
    return bool(getattr(field, "triggers", ()))


def choose_by_trajectory(chosen: Bool[Array, " trajectory"], some: Tree, rest: Tree) -> Tree:
    """Selects arrays from `some` for the chosen trajectories and from `rest` for the others."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), some, rest)


@runtime_checkable
class TriggeredField(Protocol):
    """A vector field with triggers; all methods are called with `(t, y, u)` of one trajectory, like the field.

    - `levels`: shape `(trigger,)`; a level triggers as it falls through zero. `sizes`: of their terms, same shape.
    - `apply_triggers`: the states after each trigger, shape `(trigger, state)`.
    """

    def __call__(self, t: Array, y: Array, u: Array) -> Array: ...
    def levels(self, t: Array, y: Array, u: Array) -> Array: ...
    def sizes(self, t: Array, y: Array, u: Array) -> Array: ...
    def apply_triggers(self, t: Array, y: Array, u: Array) -> Array: ...


@dataclass(frozen=True, eq=False)
class Triggers:
    """The triggers of a field in one interval between rows.

    - `field`: the field.
    - `origin`: the field's time at which the steps' time is 0. `inputs_at`: maps one time per trajectory to the inputs.
    - `span`: the length of the interval. `tolerances`: the solver's, relative and absolute.
    """

    field: VectorField
    origin: Float[Array, " trajectory"]
    inputs_at: Callable[[Array], Array]
    span: Float[Array, " trajectory"]
    tolerances: Tolerances

    @property
    def triggered_field(self) -> TriggeredField:
        """The field, typed as a field with triggers."""
        return cast(TriggeredField, self.field)

    def levels(self, t: Float[Array, " trajectory"], y: Float[Array, "trajectory state"]) -> Array:
        """Returns the levels, shape `(trajectory, trigger)`; a level triggers an event as it falls through zero."""
        return jax.vmap(self.triggered_field.levels)(self.origin + t, y, self.inputs_at(t))

    @functools.cached_property
    def look(self) -> Callable[[Array, Array], Look]:
        """`look_at`, traced once although it is called in many places."""
        return jax.jit(self.look_at)

    def look_at(self, t: Float[Array, " trajectory"], y: Float[Array, "trajectory state"]) -> Look:
        """Returns the levels and their rates of change at times and states."""
        t, y = jax.lax.stop_gradient((t, y))
        arguments = self.origin + t, y, self.inputs_at(t)
        rates = jax.vmap(self.field)(*arguments)
        level, slope = jax.jvp(self.levels, (t, y), (jnp.ones_like(t), rates))
        by_state = jnp.abs(jax.vmap(jax.jacfwd(self.triggered_field.levels, argnums=1))(*arguments))
        rtol, atol = self.tolerances
        small, size = ROUNDINGS * jnp.finfo(y.dtype).eps, jnp.abs(y)
        allowed = atol + rtol * size + small * (1 + size)  # States are of order one.
        # Ignore derivatives that are not finite, such as that of a square root at zero.
        rounding = small * jnp.nan_to_num(jax.vmap(self.triggered_field.sizes)(*arguments), nan=0, posinf=0)
        tolerated = jnp.nan_to_num(jax.vmap(jnp.matmul)(by_state, allowed), nan=0, posinf=0)
        look = Look(level, slope, rates, rounding, tolerated + rounding, slope * self.span[:, None] > rounding)
        return jax.lax.stop_gradient(look)

    def begin(self, t: Float[Array, " trajectory"], y: Float[Array, "trajectory state"]) -> TriggerWatch:
        """Returns the state of the triggers at the start of trajectories."""
        look = self.look(t, y)
        at_zero = jnp.abs(look.level) <= look.clear
        return TriggerWatch(look.level > look.clear, at_zero & look.rises, jnp.zeros(y.shape[0], bool))

    def settle(
        self, t: Array, y: Array, watch: TriggerWatch, moves: Bool[Array, " trajectory"]
    ) -> tuple[Float[Array, "trajectory state"], TriggerWatch]:
        """Applies the events at the start of a step whose levels a jump has carried through zero.

        **Arguments:** `watch`: that before the jump. `moves`: trajectories whose interval has a length.
        """
        due, zero = watch.armed & (self.levels(t, y) <= 0) & moves[:, None], jnp.zeros((), y.dtype)
        act, none = lambda: self.act(t, y, watch, due, zero), lambda: (y, self.end_step(t, y, watch))
        y, new = jax.lax.cond(due.any(), act, none)
        return y, choose_by_trajectory(moves, new, watch)

    def act(
        self, t: Array, y: Array, watch: TriggerWatch, due: Each, zero: Float[Array, "*each"]
    ) -> tuple[Float[Array, "trajectory state"], TriggerWatch]:
        """Applies all events of one instant.

        All triggers that are due act in order, each on the states left by the previous one. Then the triggers act whose
        levels this has carried through zero, and so on.

        **Arguments:** `zero`: the levels that count as zero, as the time of an event is not exact.
        """

        def jump(y: Array, due: Array) -> Array:
            for which in range(due.shape[1]):
                after = jax.vmap(self.triggered_field.apply_triggers)(self.origin + t, y, self.inputs_at(t))[:, which]
                y = jnp.where(due[:, which, None], after, y)
            return y

        def one_round(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
            y, armed, due = carry
            y = jax.lax.cond(due.any(), jump, lambda y, due: y, y, due)
            look = self.look(t, y)
            armed = (armed & ~due) | (jnp.minimum(look.level, look.level - zero) > look.clear)
            return (y, armed, armed & (look.level <= 0) & due.any(axis=1, keepdims=True)), None

        acts = due.any(axis=1, keepdims=True)
        (y, armed, due), _ = jax.lax.scan(one_round, (y, watch.armed, due), length=MOST_CASCADES)
        look = self.look(t, y)
        at_zero = jnp.minimum(jnp.abs(look.level), jnp.abs(look.level - zero)) <= look.clear
        leaving = at_zero & jnp.where(acts, look.rises, watch.leaving)
        return y, TriggerWatch(armed, leaving & ~armed, watch.endless | due.any(axis=1))

    def crossings(self, solve: Solve, t: Array, h: Array, y: Array, after: Array, watch: TriggerWatch) -> Crossings:
        """Finds the levels that fall through zero in a step of length `h` from `y` to `after`.

        A level that is above zero at both ends can fall below it in between, and a level that leaves zero can be back
        at the end; the turning point of a cubic through both ends is checked for this. A level that is zero at the end,
        to rounding, falls there and not in the next step.
        """
        first, last = self.look(t, y), self.look(t + h, after)
        begin, end = first.slope * h[:, None], last.slope * h[:, None]
        ready, below = (watch.armed | watch.leaving) & (h > 0)[:, None], last.level <= last.rounding
        hops = ready & below & (begin > 0)
        dips = ready & ~below & (begin < 0) & (end > 0)
        turn = turning_share(first.level, last.level, begin, end)

        def between() -> Array:
            def level(which: Array, turn: Array) -> Array:
                return self.level(solve, t, h, y, turn, which)

            return self.of_each(level, turn)

        middle = jax.lax.cond((hops | dips).any(), between, lambda: first.level)
        looked, above = hops | dips, middle > 0
        falls = (ready & below) | (dips & ~above)
        # If a level leaves zero and returns before it was clearly away, the time of its return can't be located.
        away = looked & (middle > first.clear)
        located = jnp.where(watch.armed, (first.level > 0) | (looked & above), away)
        left, right = jnp.where(looked & above, turn, 0), jnp.where(looked & ~above, turn, 1)
        hides = self.hides_a_crossing(t, h, y, after, first, last, ready)
        lost = ((falls & ~located) | (hides & ~(dips & ~above))).any(axis=1)
        return jax.lax.stop_gradient(Crossings(falls & located, left, right, lost))

    def hides_a_crossing(
        self, t: Array, h: Array, y: Array, after: Array, first: Look, last: Look, ready: Each
    ) -> Each:
        """Whether a level falls through zero within a step without showing it at the ends, judged at a few points.

        Inputs and time can move a level faster than the states change. Swings faster than a small share of the interval
        go undetected.
        """
        size, clear = h[:, None], last.clear
        below = last.level <= last.rounding
        high, low, hides = ready | (first.level > clear), jnp.zeros_like(below), jnp.zeros_like(below)
        largest, gap = jnp.maximum(jnp.abs(first.level), jnp.abs(last.level)), jnp.zeros_like(last.level)
        for share in LOOKED_AT:
            there = cubic(share, y, after, size * first.rates, size * last.rates)
            level = self.levels(t + share * h, there)
            expected = cubic(share, first.level, last.level, size * first.slope, size * last.slope)
            is_high, is_low = level > clear, level < -clear
            # Without hidden crossings, a level that ends above zero was never below, and one that ends below fell once.
            hides |= jnp.where(below, is_high & (low | ~ready), is_low & high)
            high, low = high | is_high, low | is_low
            largest, gap = jnp.maximum(largest, jnp.abs(level)), jnp.maximum(gap, jnp.abs(level - expected))
        swings = gap > jnp.maximum(MOST_SWING * largest, clear)
        return (hides | swings) & (h > FASTEST_SWING * self.span)[:, None]

    def first_event(
        self, solve: Solve, t: Array, h: Array, y: Array, found: Crossings, watch: TriggerWatch
    ) -> TriggerEvent:
        """Returns the first event within a step of length `h` from `y`; arbitrary for trajectories without one."""
        which = jnp.arange(found.falls.shape[1])[None]
        shares = self.of_each(functools.partial(self.share, solve, t, h, y), found.falls, found.left, found.right)
        first = jnp.argmin(jnp.where(found.falls, shares, jnp.inf), axis=1)[:, None]
        share = jnp.take_along_axis(shares, first, axis=1)[:, 0]
        there, y_event = t + share * h, solve(y, t, share * h)
        look = self.look(there, y_event)
        # Triggers whose levels are zero at the same instant, to within `clear`, act together.
        due = found.falls & ((first == which) | (look.level <= look.clear))
        jumped, new = self.act(there, y_event, watch, due, jnp.where(due, look.level, 0))
        clear = jnp.maximum(self.look(t, y).clear, look.clear)
        missed = jnp.take_along_axis(jnp.abs(look.level) > clear, first, axis=1)[:, 0]
        return TriggerEvent(share, jumped, new, found.lost | missed)

    def pass_event(
        self,
        step: SolveWithError,
        t: Array,
        h: Array,
        y: Array,
        after: Array,
        error: Array,
        watch: TriggerWatch,
    ) -> tuple[Float[Array, "trajectory state"], Float[Array, " trajectory"], TriggerWatch]:
        """Returns the states at the end of a step and its error, restarting from an event within the step if any.

        **Arguments:** `step`: like `Solve`, but also returns the error. `t`, `h`: start and length of the step. `y`,
        `after`, `error`: states before and after the step, and its error.
        """
        step = jax.jit(step)  # Traced once, although it is called in many places.
        solve: Solve = lambda y, t, h: step(y, t, h)[0]  # noqa: E731
        crossings = self.crossings(solve, t, h, y, after, watch)
        fires, through = crossings.falls.any(axis=1), self.end_step(t + h, after, watch)

        def apart() -> tuple[Array, Array, TriggerWatch, Array]:
            event = self.first_event(solve, t, h, y, crossings, watch)
            begin, remaining = t + event.share * h, (1 - event.share) * h
            end, end_error = step(event.y, begin, remaining)
            later = self.crossings(solve, begin, remaining, event.y, end, event.watch)
            again = later.falls.any(axis=1) | later.lost
            worst = jnp.where(again, TWO_EVENTS, jnp.maximum(error, end_error))
            new = self.end_step(t + h, end, event.watch)
            # The second event then acts at the end of this step.
            new = TriggerWatch(new.armed | later.falls, new.leaving & ~later.falls, new.endless)
            lost = jnp.where(fires, event.lost, crossings.lost)
            return (*choose_by_trajectory(fires, (end, worst, new), (after, error, through)), lost)

        after, error, watch, lost = jax.lax.cond(fires.any(), apart, lambda: (after, error, through, crossings.lost))
        return after, jnp.where(lost, TWO_EVENTS, error), watch

    def stop_at_event(
        self, solve: Solve, t: Array, h: Array, y: Array, after: Array, watch: TriggerWatch
    ) -> TriggerEvent:
        """Returns the end of a step from `y` to `after`, or the first event within it."""
        solve = jax.jit(solve)
        crossed = self.crossings(solve, t, h, y, after, watch)
        fires, through = crossed.falls.any(axis=1), self.end_step(t + h, after, watch)
        end = TriggerEvent(jnp.ones_like(h), after, through, crossed.lost)

        event = lambda: choose_by_trajectory(fires, self.first_event(solve, t, h, y, crossed, watch), end)  # noqa: E731
        return jax.lax.cond(fires.any(), event, lambda: end)

    def end_step(self, t: Array, y: Array, watch: TriggerWatch) -> TriggerWatch:
        """Returns the state of the triggers at the end of a step."""
        look = self.look(t, y)
        armed = watch.armed | (look.level > look.clear)
        return TriggerWatch(armed, watch.leaving & ~armed & (look.level >= -look.clear), watch.endless)

    @staticmethod
    def of_each(function: Callable[..., Array], *columns: Float[Array, "trajectory trigger"] | Each) -> Array:
        """Applies a function to the index of each trigger and its columns, compiled once."""
        return jax.vmap(function, (0, *(1 for _ in columns)), 1)(jnp.arange(columns[0].shape[1]), *columns)

    def level(self, solve: Solve, t: Array, h: Array, y: Array, share: Array, which: Array) -> Array:
        """Returns a trigger's level at a share of each step."""
        return jnp.take(self.levels(t + share * h, solve(y, t, share * h)), which, axis=1)

    def share(
        self, solve: Solve, t: Array, h: Array, y: Array, which: Array, falls: Array, left: Array, right: Array
    ) -> Array:
        """Returns the zero of a falling level as a share of each step; an arbitrary number for other levels."""

        def level(share: Array) -> Array:
            return self.level(solve, t, h, y, share, which)

        root = jax.lax.stop_gradient(false_position(level, left, right))
        root = jnp.where(falls, root, 0.5)
        value, rate = jax.jvp(level, (root,), (jnp.ones_like(root),))
        rate = jnp.where(falls & (rate != 0), jax.lax.stop_gradient(rate), 1)
        return root - jnp.where(falls, value, 0) / rate
