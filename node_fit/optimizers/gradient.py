"""Optimizers that need only the gradient: L-BFGS with its line searches, Adam, and any Optax transformation.

Optax's line searches call the objective at several places inside an update. JAX then traces and compiles the solve and
its gradient several times, and under `vmap`, all members wait for the slowest search. In `LBFGS`, the search is
inverted: it evaluates the objective once per step. Optax implements the curvature memory as a recursion over the pairs;
for several ensemble members at once, whose pairs are in different slots, that takes a hundred gathers per step, and the
compact form here a few products.
"""

import functools
import math
from dataclasses import KW_ONLY
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..runtime.validation import check_choice, check_fields, is_list_or_tuple
from .levenberg_marquardt import LevenbergMarquardt
from .optimizer import AbstractGradientOptimizer, AbstractOptimizer, forget_value

Schedule = Literal["constant", "cosine", "warmup_cosine"]


class Pairs(NamedTuple):
    """Pairs of a step and the change of the gradient along it, in slots that are filled in turn.

    - `steps`, `changes`: one pair in each row.
    - `inverse`: inverse of the matrix of products of each step with its own and all later changes; zero in slots
      without a pair. In order of time, it is triangular, so its entries do not depend on later or dropped pairs.
    - `curvature`: product of each step with its own change.
    - `scale`: curvature of the newest pair divided by the square of its change; 0 without a pair.
    - `slot`: slot of the next pair.
    """

    steps: Float[Array, "slot parameter"]
    changes: Float[Array, "slot parameter"]
    inverse: Float[Array, "slot slot"]
    curvature: Float[Array, " slot"]
    scale: Float[Array, ""]
    slot: Int[Array, ""]


def no_pairs(memory: int, x: Float[Array, " parameter"]) -> Pairs:
    """Makes an empty memory with `memory` slots for pairs of vectors like `x`."""
    rows, numbers = jnp.zeros((memory, x.size), x.dtype), jnp.zeros((memory, memory), x.dtype)
    return Pairs(rows, rows, numbers, numbers[0], numbers[0, 0], jnp.zeros((), jnp.int32))


def remember(
    pairs: Pairs,
    step: Float[Array, " parameter"],
    change: Float[Array, " parameter"],
    keep: Bool[Array, ""],
    forget: Bool[Array, ""],
) -> Pairs:
    """Updates the pairs: replaces the oldest pair if `keep`, drops all pairs if `forget`, else changes nothing."""
    slot = pairs.slot

    def place(rows: Array, row: Array) -> Array:
        # Selects one row and writes it. Selecting between two whole memories would copy both.
        return rows.at[slot].set(jnp.where(keep, row, rows[slot]))

    steps, changes = place(pairs.steps, step), place(pairs.changes, change)
    here = jnp.arange(len(steps)) == slot
    others = jnp.where(here[:, None] | here[None, :], 0, pairs.inverse)
    products = product(steps, change)
    curvature = step @ change
    column = jnp.where(here, 1, -product(others, products)) / curvature
    inverse = jnp.where(here[None, :], column[:, None], others)
    return Pairs(
        steps,
        changes,
        jnp.where(keep, inverse, jnp.where(forget, 0, pairs.inverse)),
        jnp.where(keep & here, curvature, pairs.curvature),
        jnp.where(keep, curvature / (change @ change), jnp.where(forget, 0, pairs.scale)),
        (slot + keep) % len(steps),
    )


def newton_direction(pairs: Pairs, gradient: Float[Array, " parameter"]) -> Float[Array, " parameter"]:
    """Applies the L-BFGS inverse Hessian to a gradient; without pairs, scales it down to a norm of at most 1.

    Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods, Math.
    Program. 63, 1994, theorem 2.2, evaluated in the order of the two loops of Nocedal and Wright, algorithm 7.4.
    """
    scale = jnp.where(pairs.scale > 0, pairs.scale, 1 / jnp.maximum(jnp.linalg.norm(gradient), 1))
    weights = product(pairs.inverse, product(pairs.steps, gradient))
    remainder = scale * (gradient - product(weights, pairs.changes))
    missing = pairs.curvature * weights - product(pairs.changes, remainder)
    return remainder + product(product(missing, pairs.inverse), pairs.steps)


def product(a: Array, b: Array) -> Array:
    # By default, a GPU rounds the arguments to ten bits, which is too coarse for differences of gradients.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


# Constants of the sufficient-decrease and curvature conditions, with their usual values for quasi-Newton directions
# (Nocedal and Wright, Numerical Optimization, 2006, section 3.1).
DECREASE = 1e-4
CURVATURE = 0.9
# Growth factor of the step while the slope is still negative.
STEP_GROWTH = 2.5
# Minimum distance of a trial from the ends of the interval, as a fraction of it.
MARGIN = 0.1


class TrialPoint(NamedTuple):
    """A point on the search line: the step, the objective there, and its slope along the line."""

    step: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]


class Line(NamedTuple):
    """The state of the search on one line.

    - `point`, `gradient`: the last accepted point, which is the start of the line, and its gradient, as flat vectors.
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
        updates: PyTree, state: SearchState, params: PyTree = None, *, value: Array, **extra_args: object
    ) -> tuple[PyTree, SearchState]:
        gradient, unravel = ravel_pytree(updates)
        x, _ = ravel_pytree(params)
        old: Line = state.line
        finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
        gradient = jnp.where(finite, gradient, 0)
        trial = TrialPoint(old.step, jnp.where(finite, value, jnp.inf), gradient @ old.direction)
        # Before the first evaluation there is no line, and the start is accepted as it is.
        opening = jnp.isinf(old.start.value) & finite
        # A step that rounding cancels does not count, regardless of its value.
        moves = (x != old.point).any()
        accepted = opening | (finite & moves & satisfies_wolfe(trial, old.start))
        low, high, moved = narrow(old, trial, finite)
        low_gradient = jnp.where(moved, gradient, old.low_gradient)
        step = choose_step(low, high)
        exhausted = ~jnp.isinf(old.start.value) & ((old.tries + 1 >= tries) | is_resolved(low, high, old.direction, x))
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


def restart_search(state: SearchState) -> SearchState:
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
    low = select_state(moved, trial, line.low)
    high = select_state(moved, select_state(passed, line.low, line.high), trial)
    return low, high, moved


def is_resolved(
    low: TrialPoint, high: TrialPoint, direction: Float[Array, " parameter"], x: Float[Array, " parameter"]
) -> Bool[Array, ""]:
    """Whether rounding leaves no distinct point between the ends of the interval."""
    width = jnp.abs(jnp.where(jnp.isinf(high.step), low.step + 1, high.step) - low.step)
    return width * jnp.abs(direction).max() <= jnp.finfo(x.dtype).eps * jnp.abs(x).max()


def choose_step(low: TrialPoint, high: TrialPoint) -> Float[Array, ""]:
    """Chooses the next step: a longer one while the interval is open, else a cubic's minimum, away from the ends."""
    width = high.step - low.step
    # Minimum of the cubic through both values and slopes (Nocedal and Wright, equation 3.59), relative to the interval.
    d1 = low.slope + high.slope - 3 * (high.value - low.value) / width
    d2 = jnp.sign(width) * jnp.sqrt(jnp.maximum(d1**2 - low.slope * high.slope, 0))
    fraction = 1 - (high.slope + d2 - d1) / (high.slope - low.slope + 2 * d2)
    fraction = jnp.where(jnp.isfinite(fraction), jnp.clip(fraction, MARGIN, 1 - MARGIN), 0.5)
    # A trial without a finite value can't be interpolated: first step back far, then bisect.
    fraction = jnp.where(jnp.isfinite(high.value), fraction, jnp.where(low.step > 0, 0.5, MARGIN))
    return jnp.where(jnp.isinf(high.step), STEP_GROWTH * low.step, low.step + fraction * width)


def select_state(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


# Number of consecutive search lines without a lower value before giving up. The second line follows the gradient.
HOPELESS_SEARCHES = 2
LineSearch = Literal["zoom", "backtracking"]


class LBFGS(AbstractGradientOptimizer):
    """L-BFGS (Liu and Nocedal, 1989) on the full batch, with a line search.

    With `zoom`, a step is one evaluation of the objective and its gradient. With `backtracking`, it is a whole line
    search.

    **Arguments:**

    - `memory`: number of pairs to keep; 50 needs about half as many evaluations as 10.
    - `linesearch`: `zoom` finds steps that satisfy the strong Wolfe conditions. `backtracking` is Optax's: it only
      shortens or repeats the last step, and does not check the curvature of the steps that it accepts. Under negative
      curvature it can diverge (google-deepmind/optax#1708), and it compiles the objective three times.
    - `tries`: maximum number of evaluations on one line; then the best point is accepted.

    **Raises:** `ValueError` if a number is out of range or the line search is unknown.
    """

    _: KW_ONLY
    memory: int = eqx.field(static=True, default=50)
    linesearch: LineSearch = eqx.field(static=True, default="zoom")
    tries: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        check_fields(self, {"linesearch": "zoom or backtracking"})
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")
        if self.tries < 2:
            raise ValueError(f"tries must be at least 2, got {self.tries}.")

    @property
    def full_batch(self) -> bool:
        return True

    @property
    def is_scheduled(self) -> bool:
        return False

    def transform(self, steps: int) -> optax.GradientTransformation:
        if self.linesearch == "zoom":
            return lbfgs_by_evaluation(self.memory, self.tries)
        search = optax.scale_by_backtracking_linesearch(self.tries, store_grad=True)
        return optax.chain(optax.scale_by_lbfgs(self.memory), optax.scale(-1.0), search)

    def reopen(self, state: PyTree) -> PyTree:
        return restart_search(state) if self.linesearch == "zoom" else forget_value(state)

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        return jnp.asarray(state.line.step if self.linesearch == "zoom" else optax.tree.get(state, "learning_rate"))

    @property
    def why_stuck(self) -> str:
        return "the line search finds no lower training loss, not even along the gradient"

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        return state.line.failures >= HOPELESS_SEARCHES if self.linesearch == "zoom" else jnp.zeros((), bool)


class Adam(AbstractGradientOptimizer):
    """Adam (Kingma and Ba, 2015), with decoupled weight decay (Loshchilov and Hutter, 2019).

    **Arguments:**

    - `learning_rate`: peak learning rate.
    - `schedule`: `constant`, `cosine` (decays to zero at the last step), or `warmup_cosine` (first rises from zero).
    - `warmup`: fraction of the steps in which `warmup_cosine` rises.
    - `weight_decay`: each step subtracts `weight_decay * learning_rate` times each parameter.
    - `b1`, `b2`: decay rates of the first and second moment.
    - `clip`: maximum norm of the gradient; a longer gradient is scaled down to it. No limit if `None`.

    **Raises:** `ValueError` if a number is out of range or the schedule is unknown.
    """

    learning_rate: float | Float[Array, ""] = 3e-3
    _: KW_ONLY
    schedule: Schedule = eqx.field(static=True, default="cosine")
    warmup: float = eqx.field(static=True, default=0.05)
    weight_decay: float | Float[Array, ""] = 0.0
    b1: float | Float[Array, ""] = 0.9
    b2: float | Float[Array, ""] = 0.999
    clip: float | Float[Array, ""] | None = None

    def __check_init__(self):
        check_fields(self)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be finite and not negative, got {self.weight_decay}.")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}.")
        for key, number in (("warmup", self.warmup), ("b1", self.b1), ("b2", self.b2)):
            if not 0 <= number < 1:
                raise ValueError(f"{key} must be at least 0 and below 1, got {number}.")

    @property
    def is_scheduled(self) -> bool:
        return self.schedule != "constant"

    def transform(self, steps: int) -> optax.GradientTransformation:
        shape = self.shape(steps)
        return optax.chain(
            *([] if self.clip is None else [optax.clip_by_global_norm(self.clip)]),
            optax.scale_by_adam(self.b1, self.b2),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(lambda count: self.learning_rate * shape(count)),
        )

    def shape(self, steps: int) -> optax.Schedule:
        """The schedule of the learning rate relative to its peak."""
        if self.schedule == "cosine":
            return optax.cosine_decay_schedule(1.0, steps)
        if self.schedule == "warmup_cosine":
            return optax.warmup_cosine_decay_schedule(0.0, 1.0, max(int(self.warmup * steps), 1), steps)
        return optax.constant_schedule(1.0)

    def reopen(self, state: PyTree) -> PyTree:
        return state

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        return jnp.asarray(self.learning_rate * self.shape(steps)(state[-1].count))

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


# Optimizers by their command-line names.
OPTIMIZERS = {"lbfgs": LBFGS(), "adam": Adam(), "adamw": Adam(weight_decay=1e-3), "lm": LevenbergMarquardt()}


class Optax(AbstractGradientOptimizer):
    """An Optax transformation as an optimizer, including line searches that call the objective.

    **Arguments:**

    - `transformation`: for example `optax.rmsprop(1e-3)` or `optax.lbfgs()`. Its numbers are part of the compiled
      program, so a second transformation compiles again, even with equal numbers. `Adam` and `LBFGS` do not.

    **Raises:** `ValueError` on first use if L-BFGS is not the first transformation of a chain. It needs the unmodified
    gradient: after `optax.clip_by_global_norm`, it diverges on a quadratic.
    """

    transformation: optax.GradientTransformation = eqx.field(static=True)

    def __check_init__(self):
        check_fields(self, {"transformation": "an Optax transformation such as optax.adam(1e-3)"})

    @property
    def full_batch(self) -> bool:
        return has_memory(jax.eval_shape(self.transformation.init, jnp.zeros(1)))

    def transform(self, steps: int) -> optax.GradientTransformation:
        return self.transformation

    def init(self, params: PyTree, steps: int) -> PyTree:
        state = super().init(params, steps)
        links = state if is_list_or_tuple(state) else (state,)
        if any(map(has_memory, links[1:])) and not has_memory(links[0]):
            raise ValueError(
                "L-BFGS must be the first transformation of an Optax chain, since it needs the unmodified gradient; "
                "remove the transformations before it, such as gradient clipping."
            )
        return state

    def reopen(self, state: PyTree) -> PyTree:
        return forget_value(state)

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        rates = [x for _, x in optax.tree.get_all_with_path(state, "learning_rate")]
        return jnp.asarray(rates[-1] if rates else jnp.nan)


def has_memory(state: PyTree) -> bool:
    links = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByLBFGSState))
    return any(isinstance(link, optax.ScaleByLBFGSState) for link in links)


def as_optimizer(given: object) -> AbstractOptimizer:
    """Converts a name to its optimizer and wraps a bare Optax transformation; returns an optimizer unchanged.

    **Raises:** `ValueError` with the accepted values for anything else.
    """
    if isinstance(given, AbstractOptimizer):
        return given
    if isinstance(given, optax.GradientTransformation):
        return Optax(given)
    check_choice("optimizer", given, OPTIMIZERS)
    if isinstance(given, str):
        return OPTIMIZERS[given]
    raise ValueError(
        f"optimizer must be {', '.join(OPTIMIZERS)}, one of node_fit's such as Adam(1e-2), or an Optax transformation "
        f"such as optax.adam(1e-3), got {given!r:.60}."
    )
