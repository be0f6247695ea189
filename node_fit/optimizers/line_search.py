"""L-BFGS with a zoom line search that evaluates the objective once per step.

Optax's line searches call the objective at several places inside an update. JAX then traces and compiles the solve and
its gradient several times, and under `vmap`, all members wait for the slowest search. Here, the search is inverted: the
parameters in the training loop are the trial point, the loop evaluates the objective there once, and `update` uses the
result to choose the next trial point. This is an ordinary Optax transformation. It compiles as fast as Adam, and the
members of a batch search independently.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .curvature import Pairs, newton_direction, no_pairs, remember

# Constants of the sufficient-decrease and curvature conditions, with their usual values for quasi-Newton directions
# (Nocedal and Wright, Numerical Optimization, 2006, section 3.1).
DECREASE = 1e-4
CURVATURE = 0.9
# The step grows by this factor while the slope is still negative.
GROWTH = 2.5
# A trial stays this fraction of the interval away from its ends.
MARGIN = 0.1


class TrialPoint(NamedTuple):
    """A point on the search line: the step, the objective there, and its slope along the line."""

    step: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]


class Line(NamedTuple):
    """The state of the search on one line.

    - `point`, `gradient`: the last accepted point, where the line starts, and the gradient there, as flat vectors.
    - `direction`: the search direction.
    - `start`: the start as a trial of step 0; its value is infinite before the first line.
    - `low`, `low_gradient`: the best trial with sufficient decrease, and the gradient there.
    - `high`: the other end of the interval that contains a good step; its step is infinite until the end is known.
    - `step`: the current trial step.
    - `tries`: number of trials on this line.
    - `failures`: number of consecutive lines without a lower value.
    """

    point: Float[Array, " parameter"]
    gradient: Float[Array, " parameter"]
    direction: Float[Array, " parameter"]
    start: TrialPoint
    low: TrialPoint
    low_gradient: Float[Array, " parameter"]
    high: TrialPoint
    step: Float[Array, ""]
    tries: Int[Array, ""]
    failures: Int[Array, ""]


class SearchState(NamedTuple):
    """The curvature memory and the current search line."""

    pairs: Pairs
    line: Line


def lbfgs_by_evaluation(memory: int, tries: int) -> optax.GradientTransformationExtraArgs:
    """L-BFGS with a zoom line search (Nocedal and Wright, 2006, algorithms 3.5, 3.6 and 7.4).

    `update` needs `value`, the objective at `params`, and its full gradient. It returns the difference between the next
    trial point and the current one, `params`. A value that is not finite shortens the step.

    **Arguments:**

    - `memory`: number of pairs of a step and a gradient change to keep.
    - `tries`: maximum number of trials on a line; then the best one is accepted.
    """

    def init(params: PyTree) -> SearchState:
        return initial_search(memory, params)

    def update(
        updates: PyTree, state: Any, params: PyTree = None, *, value: Array, **extra_args: Any
    ) -> tuple[PyTree, SearchState]:
        gradient, unravel = ravel_pytree(updates)
        x, _ = ravel_pytree(params)
        old: Line = state.line
        finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
        gradient = jnp.where(finite, gradient, 0)
        trial = TrialPoint(old.step, jnp.where(finite, value, jnp.inf), gradient @ old.direction)
        # Before the first evaluation there is no line, and the start is accepted as it is.
        opening = jnp.isinf(old.start.value) & finite
        # A step that rounding cancels does not count, whatever its value.
        moves = (x != old.point).any()
        accepted = opening | (finite & moves & satisfies_wolfe(trial, old.start))
        low, high, moved = narrow(old, trial, finite)
        low_gradient = jnp.where(moved, gradient, old.low_gradient)
        step = choose(low, high)
        exhausted = ~jnp.isinf(old.start.value) & ((old.tries + 1 >= tries) | resolved(low, high, old.direction, x))
        turns = accepted | exhausted

        # The next line starts at the accepted trial, else at the best trial, else at the start of this line.
        settled = accepted | (low.step > 0)
        point = jnp.where(accepted, x, old.point + low.step * old.direction)
        there = jnp.where(accepted, gradient, jnp.where(low.step > 0, low_gradient, old.gradient))
        way, change = point - old.point, there - old.gradient
        # A pair without positive curvature would make the metric indefinite: drop all pairs and follow the gradient.
        curved = settled & (way @ change > 0)
        # Outside of the `cond`, which under `vmap` becomes a select between two copies of all pairs.
        pairs = remember(state.pairs, way, change, keep=turns & curved, forget=turns & ~curved)

        def next_line() -> Line:
            direction = downhill(newton_direction(pairs, there), there)
            failures = jnp.where(settled, 0, old.failures + 1)
            return begin_line(point, there, direction, jnp.where(accepted, trial.value, low.value), failures)

        def same_line() -> Line:
            return old._replace(low=low, low_gradient=low_gradient, high=high, step=step, tries=old.tries + 1)

        new = jax.lax.cond(turns, next_line, same_line)
        # The next trial is computed from the accepted point, so rounding errors do not accumulate.
        target = new.point + new.step * new.direction
        return unravel(jnp.where(jnp.isinf(new.start.value), 0, target - x)), SearchState(pairs, new)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


@functools.partial(jax.jit, static_argnums=0)
def initial_search(memory: int, params: PyTree) -> SearchState:
    x, _ = ravel_pytree(params)
    infinite, none = jnp.full((), jnp.inf, x.dtype), jnp.zeros((), jnp.int32)
    line = begin_line(x, jnp.zeros_like(x), jnp.zeros_like(x), infinite, none)
    return SearchState(no_pairs(memory, x), line._replace(step=jnp.zeros_like(infinite)))


def begin_line(
    point: Float[Array, " parameter"],
    gradient: Float[Array, " parameter"],
    direction: Float[Array, " parameter"],
    value: Float[Array, ""],
    failures: Int[Array, ""],
) -> Line:
    """Starts a line at a point, with a full step as its first trial."""
    start = TrialPoint(jnp.zeros_like(value), value, direction @ gradient)
    return Line(
        point=point,
        gradient=gradient,
        direction=direction,
        start=start,
        low=start,
        low_gradient=gradient,
        high=TrialPoint(jnp.full_like(value, jnp.inf), jnp.full_like(value, jnp.inf), jnp.zeros_like(value)),
        step=jnp.ones_like(value),
        tries=jnp.zeros((), jnp.int32),
        failures=failures,
    )


def downhill(ascent: Float[Array, " parameter"], gradient: Float[Array, " parameter"]) -> Float[Array, " parameter"]:
    """Returns `-ascent`, or the negative gradient if rounding or low curvature has made `ascent` unusable."""
    sound = (ascent @ gradient > 0) & jnp.isfinite(ascent).all()
    return -jnp.where(sound, ascent, gradient)


def renew(state: SearchState) -> SearchState:
    """Prepares the state for an objective that has changed slightly: the next point is accepted as it is."""
    line = state.line
    infinite = jnp.full_like(line.start.value, jnp.inf)
    opened = line._replace(
        start=line.start._replace(value=infinite),
        low=line.low._replace(value=infinite, step=jnp.zeros_like(infinite)),
        tries=jnp.zeros_like(line.tries),
        failures=jnp.zeros_like(line.failures),
    )
    return state._replace(line=opened)


def satisfies_wolfe(trial: TrialPoint, start: TrialPoint) -> Bool[Array, ""]:
    """Tests the strong Wolfe conditions, or their approximate form near the minimum, where rounding hides a decrease.

    Hager and Zhang, SIAM J. Optim. 16, 2005, equation 4.1.
    """
    level = jnp.abs(trial.slope) <= CURVATURE * jnp.abs(start.slope)
    decreases = trial.value <= start.value + DECREASE * trial.step * start.slope
    noise = 10 * jnp.finfo(start.value.dtype).eps * jnp.abs(start.value)
    approximately = (trial.value <= start.value + noise) & (trial.slope <= (2 * DECREASE - 1) * start.slope)
    return level & (decreases | approximately)


def narrow(line: Line, trial: TrialPoint, finite: Bool[Array, ""]) -> tuple[TrialPoint, TrialPoint, Bool[Array, ""]]:
    """Narrows the interval after a rejected trial; returns its two ends, and whether the trial is the new low end."""
    decreases = trial.value <= line.start.value + DECREASE * trial.step * line.start.slope
    moved = finite & decreases & (trial.value < line.low.value)
    passed = trial.slope * (line.high.step - line.low.step) >= 0
    low = select(moved, trial, line.low)
    high = select(moved, select(passed, line.low, line.high), trial)
    return low, high, moved


def resolved(
    low: TrialPoint, high: TrialPoint, direction: Float[Array, " parameter"], x: Float[Array, " parameter"]
) -> Bool[Array, ""]:
    """Whether rounding leaves no distinct point between the ends of the interval."""
    width = jnp.abs(jnp.where(jnp.isinf(high.step), low.step + 1, high.step) - low.step)
    return width * jnp.abs(direction).max() <= jnp.finfo(x.dtype).eps * jnp.abs(x).max()


def choose(low: TrialPoint, high: TrialPoint) -> Float[Array, ""]:
    """Chooses the next step: a longer one while the interval is open, else a cubic's minimum, away from the ends."""
    width = high.step - low.step
    # Minimum of the cubic through both values and slopes (Nocedal and Wright, equation 3.59), relative to the interval.
    d1 = low.slope + high.slope - 3 * (high.value - low.value) / width
    d2 = jnp.sign(width) * jnp.sqrt(jnp.maximum(d1**2 - low.slope * high.slope, 0))
    fraction = 1 - (high.slope + d2 - d1) / (high.slope - low.slope + 2 * d2)
    fraction = jnp.where(jnp.isfinite(fraction), jnp.clip(fraction, MARGIN, 1 - MARGIN), 0.5)
    # A trial without a finite value can't be interpolated: first step back far, then bisect.
    fraction = jnp.where(jnp.isfinite(high.value), fraction, jnp.where(low.step > 0, 0.5, MARGIN))
    return jnp.where(jnp.isinf(high.step), GROWTH * low.step, low.step + fraction * width)


def select(condition: Bool[Array, ""], yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
