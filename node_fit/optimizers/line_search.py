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


class SearchState(NamedTuple):
    """Where the search is.

    - `memory`: an `optax.ScaleByLBFGSState` of flat arrays; it holds the last accepted point and its gradient.
    - `direction`: of the search, flat.
    - `start`: the accepted point as a trial of step 0.
    - `low`, `low_gradient`: the best trial with sufficient decrease, and the gradient there.
    - `high`: the other end of the interval that holds a good step; its step is infinite while none is known.
    - `step`: the step being tried.
    - `tries`: trials on this line.
    - `failures`: lines in a row on which nothing better was found.
    """

    memory: Any
    direction: Float[Array, " parameter"]
    start: Trial
    low: Trial
    low_gradient: Float[Array, " parameter"]
    high: Trial
    step: Float[Array, ""]
    tries: Int[Array, ""]
    failures: Int[Array, ""]


def lbfgs_by_evaluation(memory: int, tries: int) -> optax.GradientTransformationExtraArgs:
    """L-BFGS with a zoom line search (Nocedal and Wright, 2006, algorithms 3.5, 3.6 and 7.4).

    `update` needs `value`, the objective at `params`, and its whole gradient. It returns the way from the
    trial point `params` to the next one. Values that are not finite shorten the step.

    **Arguments:**

    - `memory`: pairs of steps and gradient changes that are kept.
    - `tries`: trials on a line before the best of them is taken.
    """
    precondition = optax.scale_by_lbfgs(memory)

    def init(params: PyTree) -> SearchState:
        x, _ = ravel_pytree(params)
        state: Any = precondition.init(x)
        zero, infinite = jnp.zeros((), x.dtype), jnp.full((), jnp.inf, x.dtype)
        nowhere = Trial(zero, infinite, zero)
        return SearchState(
            # The memory's weights take the parameters' precision, whatever the process's is.
            memory=state._replace(weights_memory=state.weights_memory.astype(x.dtype)),
            direction=jnp.zeros_like(x),
            start=nowhere,
            low=nowhere,
            low_gradient=jnp.zeros_like(x),
            high=Trial(infinite, infinite, zero),
            step=zero,
            tries=jnp.zeros((), jnp.int32),
            failures=jnp.zeros((), jnp.int32),
        )

    def update(
        updates: PyTree, state: Any, params: PyTree = None, *, value: Array, **extra_args: Any
    ) -> tuple[PyTree, SearchState]:
        gradient, unravel = ravel_pytree(updates)
        x, _ = ravel_pytree(params)
        finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
        gradient = jnp.where(finite, gradient, 0)
        trial = Trial(state.step, jnp.where(finite, value, jnp.inf), gradient @ state.direction)
        # Before the first evaluation there is no line: the start is accepted for what it is.
        opening = jnp.isinf(state.start.value) & finite
        # A step too short to be seen is no step, however well its value compares.
        moves = (x != state.memory.params).any()
        accepted = opening | (finite & moves & satisfies_wolfe(trial, state.start))
        low, high, moved = narrow(state, trial, finite)
        low_gradient = jnp.where(moved, gradient, state.low_gradient)
        step = choose(low, high)
        width = jnp.abs(jnp.where(jnp.isinf(high.step), low.step + 1, high.step) - low.step)
        resolved = width * jnp.abs(state.direction).max() <= jnp.finfo(x.dtype).eps * jnp.abs(x).max()
        exhausted = ~jnp.isinf(state.start.value) & ((state.tries + 1 >= tries) | resolved)

        def keep_looking() -> SearchState:
            return state._replace(low=low, low_gradient=low_gradient, high=high, step=step, tries=state.tries + 1)

        def begin_line() -> SearchState:
            return next_line(precondition, state, accepted, x, gradient, trial, low, low_gradient)

        new = jax.lax.cond(accepted | exhausted, begin_line, keep_looking)
        # Between the accepted point and the next trial there is no other error than one rounding.
        target = new.memory.params + new.step * new.direction
        return unravel(jnp.where(jnp.isinf(new.start.value), 0, target - x)), new

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def renew(state: SearchState) -> SearchState:
    """The state for an objective that has changed a little: the next point is accepted for what it is."""
    infinite = jnp.full_like(state.start.value, jnp.inf)
    return state._replace(
        start=state.start._replace(value=infinite),
        low=state.low._replace(value=infinite, step=jnp.zeros_like(infinite)),
        tries=jnp.zeros_like(state.tries),
        failures=jnp.zeros_like(state.failures),
    )


def satisfies_wolfe(trial: Trial, start: Trial) -> Bool[Array, ""]:
    """Strong Wolfe conditions; near the minimum, where differences of values are rounding, their approximate form.

    Hager and Zhang, SIAM J. Optim. 16, 2005, equation 4.1.
    """
    level = jnp.abs(trial.slope) <= CURVATURE * jnp.abs(start.slope)
    decreases = trial.value <= start.value + DECREASE * trial.step * start.slope
    noise = 10 * jnp.finfo(start.value.dtype).eps * jnp.abs(start.value)
    approximately = (trial.value <= start.value + noise) & (trial.slope <= (2 * DECREASE - 1) * start.slope)
    return level & (decreases | approximately)


def narrow(state: SearchState, trial: Trial, finite: Bool[Array, ""]) -> tuple[Trial, Trial, Bool[Array, ""]]:
    """The interval after a trial that was not accepted, and whether its low end is now the trial."""
    decreases = trial.value <= state.start.value + DECREASE * trial.step * state.start.slope
    moved = finite & decreases & (trial.value < state.low.value)
    passed = trial.slope * (state.high.step - state.low.step) >= 0
    low = select(moved, trial, state.low)
    high = select(moved, select(passed, state.low, state.high), trial)
    return low, high, moved


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


def next_line(
    precondition: optax.GradientTransformation,
    state: SearchState,
    accepted: Bool[Array, ""],
    x: Float[Array, " parameter"],
    gradient: Float[Array, " parameter"],
    trial: Trial,
    low: Trial,
    low_gradient: Float[Array, " parameter"],
) -> SearchState:
    """A new line from the accepted trial, else from the best one, else from where the last line began."""
    settled = accepted | (low.step > 0)
    old = state.memory
    point = jnp.where(accepted, x, old.params + low.step * state.direction)
    slope_there = jnp.where(accepted, gradient, jnp.where(low.step > 0, low_gradient, old.updates))
    value = jnp.where(accepted, trial.value, low.value)
    # A pair without positive curvature would spoil the metric: forget it all and descend along the gradient.
    curved = ((point - old.params) @ (slope_there - old.updates) > 0) | (old.count == 0)
    empty = jax.tree.map(jnp.zeros_like, old)
    memory = select(settled & curved, old, empty)
    ascent: Any
    ascent, memory = precondition.update(slope_there, memory, point)
    downhill = (ascent @ slope_there > 0) & jnp.isfinite(ascent).all()
    direction = -jnp.where(downhill, ascent, slope_there)
    start = Trial(jnp.zeros_like(value), value, direction @ slope_there)
    nowhere = Trial(jnp.full_like(value, jnp.inf), jnp.full_like(value, jnp.inf), jnp.zeros_like(value))
    return SearchState(
        memory=memory,
        direction=direction,
        start=start,
        low=start,
        low_gradient=slope_there,
        high=nowhere,
        step=jnp.ones_like(value),
        tries=jnp.zeros_like(state.tries),
        failures=jnp.where(settled, 0, state.failures + 1),
    )


def select(condition: Bool[Array, ""], yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
