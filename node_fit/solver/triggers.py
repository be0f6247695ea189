"""Events that a state triggers: when a level falls through zero within a step, and the states just after it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .vector_field import VectorField

NEEDS_HELD_STEPS = "triggers of a field need an explicit method with held steps; set solver=tsit5 solver.stepping=held."
# Trials of the search for the time of an event; the last correction is a step of Newton's method.
TRIALS = 12
# Error of a step with two events, relative to the tolerance: it needs to be shorter.
TWO_EVENTS = 1e3

# From states, times and lengths of steps to the states after them, one for each trajectory.
Solve = Callable[[Array, Array, Array], Array]


class Event(NamedTuple):
    """The first event within a step of each trajectory.

    - `fires`: whether there is one; where not, the rest means nothing.
    - `share`: where it is, as a share of the step; its derivatives are those of the implicit function theorem.
    - `y`: states just after it.
    """

    fires: Bool[Array, " trajectory"]
    share: Float[Array, " trajectory"]
    y: Float[Array, "trajectory state"]


def has_triggers(field: VectorField) -> bool:
    """Whether states of this field jump when they reach a level."""
    return bool(getattr(field, "triggers", ()))


class Triggers(NamedTuple):
    """The triggers of a field in one interval between rows.

    - `field`: with the methods `levels` and `jumped`, called as the field is.
    - `origin`: the field's time where that of the steps is 0. `inputs_at`: the inputs at a time of each trajectory.
    """

    field: Any
    origin: Float[Array, " trajectory"]
    inputs_at: Callable[[Array], Array]

    def levels(self, t: Float[Array, " trajectory"], y: Float[Array, "trajectory state"]) -> Array:
        """The levels, each of which triggers an event as it falls through zero; shape `(trajectory, trigger)`."""
        return jax.vmap(self.field.levels)(self.origin + t, y, self.inputs_at(t))

    def fall(self, t: Array, h: Array, y: Array, after: Array) -> Bool[Array, "trajectory trigger"]:
        """Which levels fall through zero in a step from `y` to `after`."""
        return (self.levels(t, y) > 0) & (self.levels(t + h, after) <= 0)

    def first_event(self, solve: Solve, t: Array, h: Array, y: Array, after: Array) -> Event:
        """The first event within a step of length `h` from `y` to `after`."""
        fall = self.fall(t, h, y, after)
        each = [self.share(solve, t, h, y, which, falls) for which, falls in enumerate(fall.T)]
        shares = jnp.stack(each, axis=1)
        first = jnp.argmin(jnp.where(fall, shares, jnp.inf), axis=1)[:, None]
        share = jnp.take_along_axis(shares, first, axis=1)[:, 0]
        there, at = t + share * h, solve(y, t, share * h)
        jumped = jax.vmap(self.field.jumped)(self.origin + there, at, self.inputs_at(there))
        return Event(fall.any(axis=1), share, jnp.take_along_axis(jumped, first[..., None], axis=1)[:, 0])

    def passed(
        self,
        step: Callable[[Array, Array, Array], tuple[Array, Array]],
        t: Array,
        h: Array,
        y: Array,
        after: Array,
        error: Array,
    ) -> tuple[Float[Array, "trajectory state"], Float[Array, " trajectory"]]:
        """The states after a step and its error, or if an event falls within it, after a step from there to the end.

        **Arguments:** `step`: as `Solve`, but returns the error too. `t`, `h`: beginning and length of the step. `y`,
        `after`, `error`: states before and after the step, and its error.
        """

        def apart() -> tuple[Array, Array]:
            event = self.first_event(lambda y, t, h: step(y, t, h)[0], t, h, y, after)
            begin, left = t + event.share * h, (1 - event.share) * h
            end, rest = step(event.y, begin, left)
            again = self.fall(begin, left, event.y, end).any(axis=1)
            worst = jnp.where(again, TWO_EVENTS, jnp.maximum(error, rest))
            return jnp.where(event.fires[:, None], end, after), jnp.where(event.fires, worst, error)

        return jax.lax.cond(self.fall(t, h, y, after).any(), apart, lambda: (after, error))

    def stopped(
        self, solve: Solve, t: Array, h: Array, y: Array, after: Array
    ) -> tuple[Float[Array, "trajectory state"], Float[Array, " trajectory"]]:
        """The states after a step and 1, or if an event falls within it, those just after it and where it is."""

        def there() -> tuple[Array, Array]:
            event = self.first_event(solve, t, h, y, after)
            return jnp.where(event.fires[:, None], event.y, after), jnp.where(event.fires, event.share, 1)

        return jax.lax.cond(self.fall(t, h, y, after).any(), there, lambda: (after, jnp.ones_like(h)))

    def share(self, solve: Solve, t: Array, h: Array, y: Array, which: int, falls: Array) -> Array:
        """Where a level is zero, as a share of each step, where it `falls` through zero; elsewhere any number."""

        def level(share: Array) -> Array:
            return self.levels(t + share * h, solve(y, t, share * h))[:, which]

        found = jnp.where(falls, jax.lax.stop_gradient(false_position(level, t)), 0.5)
        value, rate = jax.jvp(level, (found,), (jnp.ones_like(found),))
        rate = jnp.where(falls & (rate != 0), jax.lax.stop_gradient(rate), 1)
        return found - jnp.where(falls, value, 0) / rate


def false_position(level: Callable[[Array], Array], like: Array) -> Array:
    """Where levels are zero between 0 and 1, by the Illinois variant of the method of false position."""

    def better(_: Any, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        left, above, right, below, _ = carry
        gap = jnp.where(above == below, 1, above - below)
        middle = left + (right - left) * jnp.clip(above / gap, 0, 1)
        value = level(middle)
        low = value <= 0
        # An end that stays counts half, so that it will move too.
        return (
            jnp.where(low, left, middle),
            jnp.where(low, above / 2, value),
            jnp.where(low, middle, right),
            jnp.where(low, value, below / 2),
            middle,
        )

    begin, end = jnp.zeros_like(like), jnp.ones_like(like)
    return jax.lax.fori_loop(0, TRIALS, better, (begin, level(begin), end, level(end), end))[-1]
