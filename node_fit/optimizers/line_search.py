"""L-BFGS with a zoom line search that evaluates the objective once a step.

Optax's line searches call the objective from inside of an update, at several places, so the solve and its gradient
are traced and compiled several times over; under `vmap` all members wait for the slowest search. Here the search is
turned inside out: the parameters that the loop holds are the trial point, the loop evaluates there once, and `update`
decides what that evaluation means and where to look next. It is an Optax transformation like any other, as cheap to
compile as Adam, and members of a batch search independently.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .curvature import Pairs, newton_direction, no_pairs, remember

# Sufficient decrease and curvature: the usual constants for quasi-Newton directions (Nocedal and Wright,
# Numerical Optimization, 2006, section 3.1).
DECREASE = 1e-4
CURVATURE = 0.9
# A step grows by this factor while the slope still points down.
GROWTH = 2.5
# A trial keeps this fraction of the interval away from its ends.
MARGIN = 0.1


class Trial(NamedTuple):
    """A point on the search line: the step, and the objective and its slope along the line there."""

    step: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]


class Line(NamedTuple):
    """Where the search is on its line.

    - `point`, `gradient`: where the line begins, flat: the last accepted point.
    - `direction`: of the search.
    - `start`: that point as a trial of step 0; its value is infinite as long as there is no line.
    - `low`, `low_gradient`: the best trial with sufficient decrease, and the gradient there.
    - `high`: the other end of the interval that holds a good step; its step is infinite while none is known.
    - `step`: the step being tried.
    - `tries`: trials on this line.
    - `failures`: lines in a row on which nothing better was found.
    """

    point: Float[Array, " parameter"]
    gradient: Float[Array, " parameter"]
    direction: Float[Array, " parameter"]
    start: Trial
    low: Trial
    low_gradient: Float[Array, " parameter"]
    high: Trial
    step: Float[Array, ""]
    tries: Int[Array, ""]
    failures: Int[Array, ""]


class SearchState(NamedTuple):
    """What is known of the curvature, and the line that is searched."""

    pairs: Pairs
    line: Line


def lbfgs_by_evaluation(memory: int, tries: int) -> optax.GradientTransformationExtraArgs:
    """L-BFGS with a zoom line search (Nocedal and Wright, 2006, algorithms 3.5, 3.6 and 7.4).

    `update` needs `value`, the objective at `params`, and its whole gradient. It returns the way from the
    trial point `params` to the next one. Values that are not finite shorten the step.

    **Arguments:**

    - `memory`: pairs of steps and gradient changes that are kept.
    - `tries`: trials on a line before the best of them is taken.
    """

    def init(params: PyTree) -> SearchState:
        x, _ = ravel_pytree(params)
        infinite, none = jnp.full((), jnp.inf, x.dtype), jnp.zeros((), jnp.int32)
        line = begin_line(x, jnp.zeros_like(x), jnp.zeros_like(x), infinite, none)
        return SearchState(no_pairs(memory, x), line._replace(step=jnp.zeros_like(infinite)))

    def update(
        updates: PyTree, state: Any, params: PyTree = None, *, value: Array, **extra_args: Any
    ) -> tuple[PyTree, SearchState]:
        gradient, unravel = ravel_pytree(updates)
        x, _ = ravel_pytree(params)
        old: Line = state.line
        finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
        gradient = jnp.where(finite, gradient, 0)
        trial = Trial(old.step, jnp.where(finite, value, jnp.inf), gradient @ old.direction)
        # Before the first evaluation there is no line: the start is accepted for what it is.
        opening = jnp.isinf(old.start.value) & finite
        # A step too short to be seen is no step, however well its value compares.
        moves = (x != old.point).any()
        accepted = opening | (finite & moves & satisfies_wolfe(trial, old.start))
        low, high, moved = narrow(old, trial, finite)
        low_gradient = jnp.where(moved, gradient, old.low_gradient)
        step = choose(low, high)
        exhausted = ~jnp.isinf(old.start.value) & ((old.tries + 1 >= tries) | resolved(low, high, old.direction, x))
        turns = accepted | exhausted

        # The next line begins at the accepted trial, else at the best one, else where this one began.
        settled = accepted | (low.step > 0)
        point = jnp.where(accepted, x, old.point + low.step * old.direction)
        there = jnp.where(accepted, gradient, jnp.where(low.step > 0, low_gradient, old.gradient))
        way, change = point - old.point, there - old.gradient
        # A pair without positive curvature would spoil the metric: forget it all and descend along the gradient.
        curved = settled & (way @ change > 0)
        # Outside of the condition, since members of a batch would choose between two copies of all pairs.
        pairs = remember(state.pairs, way, change, keep=turns & curved, forget=turns & ~curved)

        def next_line() -> Line:
            direction = downhill(newton_direction(pairs, there), there)
            failures = jnp.where(settled, 0, old.failures + 1)
            return begin_line(point, there, direction, jnp.where(accepted, trial.value, low.value), failures)

        def same_line() -> Line:
            return old._replace(low=low, low_gradient=low_gradient, high=high, step=step, tries=old.tries + 1)

        new = jax.lax.cond(turns, next_line, same_line)
        # Between the accepted point and the next trial there is no other error than one rounding.
        target = new.point + new.step * new.direction
        return unravel(jnp.where(jnp.isinf(new.start.value), 0, target - x)), SearchState(pairs, new)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def begin_line(
    point: Float[Array, " parameter"],
    gradient: Float[Array, " parameter"],
    direction: Float[Array, " parameter"],
    value: Float[Array, ""],
    failures: Int[Array, ""],
) -> Line:
    """A line from a point, with a whole step as its first trial."""
    start = Trial(jnp.zeros_like(value), value, direction @ gradient)
    return Line(
        point=point,
        gradient=gradient,
        direction=direction,
        start=start,
        low=start,
        low_gradient=gradient,
        high=Trial(jnp.full_like(value, jnp.inf), jnp.full_like(value, jnp.inf), jnp.zeros_like(value)),
        step=jnp.ones_like(value),
        tries=jnp.zeros((), jnp.int32),
        failures=failures,
    )


def downhill(ascent: Float[Array, " parameter"], gradient: Float[Array, " parameter"]) -> Float[Array, " parameter"]:
    """Against `ascent`; against the gradient where rounding, or little curvature, has spoilt that."""
    sound = (ascent @ gradient > 0) & jnp.isfinite(ascent).all()
    return -jnp.where(sound, ascent, gradient)


def renew(state: SearchState) -> SearchState:
    """The state for an objective that has changed a little: the next point is accepted for what it is."""
    line = state.line
    infinite = jnp.full_like(line.start.value, jnp.inf)
    opened = line._replace(
        start=line.start._replace(value=infinite),
        low=line.low._replace(value=infinite, step=jnp.zeros_like(infinite)),
        tries=jnp.zeros_like(line.tries),
        failures=jnp.zeros_like(line.failures),
    )
    return state._replace(line=opened)


def satisfies_wolfe(trial: Trial, start: Trial) -> Bool[Array, ""]:
    """Strong Wolfe conditions; near the minimum, where differences of values are rounding, their approximate form.

    Hager and Zhang, SIAM J. Optim. 16, 2005, equation 4.1.
    """
    level = jnp.abs(trial.slope) <= CURVATURE * jnp.abs(start.slope)
    decreases = trial.value <= start.value + DECREASE * trial.step * start.slope
    noise = 10 * jnp.finfo(start.value.dtype).eps * jnp.abs(start.value)
    approximately = (trial.value <= start.value + noise) & (trial.slope <= (2 * DECREASE - 1) * start.slope)
    return level & (decreases | approximately)


def narrow(line: Line, trial: Trial, finite: Bool[Array, ""]) -> tuple[Trial, Trial, Bool[Array, ""]]:
    """The interval after a trial that was not accepted, and whether its low end is now the trial."""
    decreases = trial.value <= line.start.value + DECREASE * trial.step * line.start.slope
    moved = finite & decreases & (trial.value < line.low.value)
    passed = trial.slope * (line.high.step - line.low.step) >= 0
    low = select(moved, trial, line.low)
    high = select(moved, select(passed, line.low, line.high), trial)
    return low, high, moved


def resolved(
    low: Trial, high: Trial, direction: Float[Array, " parameter"], x: Float[Array, " parameter"]
) -> Bool[Array, ""]:
    """Whether rounding leaves no point between the ends of the interval."""
    width = jnp.abs(jnp.where(jnp.isinf(high.step), low.step + 1, high.step) - low.step)
    return width * jnp.abs(direction).max() <= jnp.finfo(x.dtype).eps * jnp.abs(x).max()


def choose(low: Trial, high: Trial) -> Float[Array, ""]:
    """The next step: longer while the interval is open, else the minimum of a cubic, kept off the ends."""
    width = high.step - low.step
    # Cubic through both values and slopes (Nocedal and Wright, equation 3.59), relative to the interval.
    d1 = low.slope + high.slope - 3 * (high.value - low.value) / width
    d2 = jnp.sign(width) * jnp.sqrt(jnp.maximum(d1**2 - low.slope * high.slope, 0))
    fraction = 1 - (high.slope + d2 - d1) / (high.slope - low.slope + 2 * d2)
    fraction = jnp.where(jnp.isfinite(fraction), jnp.clip(fraction, MARGIN, 1 - MARGIN), 0.5)
    # With a point that could not be evaluated there is nothing to interpolate: far back from it at first, then halves.
    fraction = jnp.where(jnp.isfinite(high.value), fraction, jnp.where(low.step > 0, 0.5, MARGIN))
    return jnp.where(jnp.isinf(high.step), GROWTH * low.step, low.step + fraction * width)


def select(condition: Bool[Array, ""], yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
