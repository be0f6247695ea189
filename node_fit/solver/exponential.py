"""Exponential steps from row to row: exact for the linear part of a field, however fast or stiff it is.

If a record is fast relative to its rows, a Runge-Kutta method takes many steps per row, and an exponential method a
single step. The nonlinear remainder is integrated with a second-order method (ETD2RK: Cox and Matthews, J. Comput.
Phys. 176, 2002, equation 22).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .held_rows import RowMarch
from .problem import InitialValueProblem, Interval, Intervals, VectorField, by_interval
from .row_by_row import Front, reached_states

NEEDS_LINEAR_PART = (
    "solver.method=exponential steps exactly along the linear part of a field, and this field has none; use "
    "field=linear, field.linear=true of field=mlp, or solver.method=tsit5."
)
# Relative difference below which rows have the same length, and maximum rounding error of the difference of two times,
# in multiples of the spacing of floating-point numbers.
SAME_LENGTH, TIME_ROUNDINGS = 1e-3, 2


# Binary fractions of a row; the last is far below the rounding error of a time.
FRACTIONS = 2.0 ** np.arange(20)


def passed_share(t: Float[Array, " trajectory"], interval: Interval) -> Float[Array, " trajectory"]:
    """Returns the position of a time between the row before an interval, 0, and the next row, 1.

    It is rounded to 0 and 1 nearby, since late in a long record times have larger rounding errors than row lengths.
    """
    length = jnp.where(interval.length > 0, interval.length, 1)
    share = (t - interval.row) / length
    near = SAME_LENGTH + TIME_ROUNDINGS * jnp.finfo(length.dtype).eps * jnp.abs(t) / length
    return jnp.where(jnp.abs(share) <= near, 0, jnp.where(jnp.abs(share - 1) <= near, 1, share))


class LinearParts(NamedTuple):
    """The linear part `matrix y + push [u, 1]` of a field."""

    matrix: Float[Array, "state state"]
    push: Float[Array, "state drive"]


class Propagator(NamedTuple):
    """Matrices of a step of one length.

    They multiply states (`free`), their drive (`held`), and its change over the step (`rising`).
    """

    free: Float[Array, "*step state state"]
    held: Float[Array, "*step state drive"]
    rising: Float[Array, "*step state drive"]


def can_step(field: VectorField) -> bool:
    """Whether exponential steps can solve the field."""
    return getattr(field, "linear_part", None) is not None


def linear_parts(field: VectorField) -> LinearParts:
    """Returns the linear part of a field.

    **Raises:** `ValueError` if it has none.
    """
    if not can_step(field):
        raise ValueError(NEEDS_LINEAR_PART)
    layer = getattr(field, "linear_part").layer  # noqa: B009
    states = layer.weight.shape[0]
    push = jnp.concatenate([layer.weight[:, states:], layer.bias[:, None]], axis=1)
    return LinearParts(layer.weight[:, :states], push)


def is_linear(field: VectorField) -> bool:
    """Whether the field consists only of its linear part."""
    return getattr(field, "linear_part", None) is field


def propagate(parts: LinearParts, length: Float[Array, ""], *, linear: bool) -> Propagator:
    """Computes the propagators of steps of all binary fractions of a length, the whole length first.

    The exponential of the augmented matrix minus 1 (Van Loan, IEEE Trans. Automat. Control 23, 1978) is computed from
    its series for the smallest fraction, and doubled with `(1 + F)^2 - 1 = 2 F + F^2`, which loses no digits.

    **Arguments:** `linear`: whether only `[u, 1]` drives the states; otherwise any rate of each state can.
    """
    states = parts.matrix.shape[0]
    into = parts.push if linear else jnp.eye(states, dtype=parts.matrix.dtype)
    width = into.shape[1]
    block = jnp.zeros((states + 2 * width, states + 2 * width), into.dtype)
    block = (
        block.at[:states, :states].set(parts.matrix * length).at[:states, states : states + width].set(into * length)
    )
    # For a drive that rises by one over the whole length.
    block = block.at[states : states + width, states + width :].set(jnp.eye(width, dtype=into.dtype))
    small = block / float(FRACTIONS[-1])
    first = small + small @ small / 2 + small @ small @ small / 6

    def double(less_one: Array, _: None) -> tuple[Array, Array]:
        return 2 * less_one + less_one @ less_one, less_one

    last, others = jax.lax.scan(double, first, None, length=len(FRACTIONS) - 1)
    levels = jnp.concatenate([others, last[None]])[::-1, :states]
    free, held, rising = jnp.split(levels, [states, states + width], axis=2)
    return Propagator(
        free + jnp.eye(states, dtype=free.dtype)[None], held, rising * jnp.asarray(FRACTIONS, free.dtype)[:, None, None]
    )


class ExponentialSteps:
    """Steps through intervals between rows; most intervals have the same length.

    Shorter intervals, to times between rows, are composed of binary fractions of that length.

    **Arguments:** `field`, `origin`: as in `row_by_row.first_front`. `longest`: the length of most of the intervals.
    """

    def __init__(self, field: VectorField, origin: Float[Array, " trajectory"], longest: Float[Array, ""]):
        self.field, self.origin, self.longest = field, origin, longest
        self.parts, self.linear = linear_parts(field), is_linear(field)
        self.halves = propagate(self.parts, longest, linear=self.linear)
        self.usual = jax.tree.map(lambda x: x[0], self.halves)

    def __call__(self, y: Float[Array, "trajectory state"], interval: Interval) -> Float[Array, "trajectory state"]:
        """Returns the states at the end of an interval."""
        before, after = passed_share(interval.begin, interval), passed_share(interval.end, interval)
        share, moves = (after - before) * interval.length / self.longest, interval.end > interval.begin
        is_usual = jnp.abs(share - 1) <= SAME_LENGTH
        y, us = interval.begin_at(y), (interval.inputs_at(interval.begin), interval.inputs_at(interval.end))
        are_whole, are_within = jnp.all(is_usual | ~moves), jnp.all((share <= 1) | ~moves)

        def take_whole(y: Array) -> Array:
            return self.step(self.usual, y, us, interval)

        def take_fractions(y: Array) -> Array:
            return jnp.where(is_usual[:, None], take_whole(y), self.take_fractions(y, us, share, interval))

        def take_any(y: Array) -> Array:
            propagate_all = jax.vmap(lambda length: propagate(self.parts, length, linear=self.linear))
            steps = jax.tree.map(lambda x: x[:, 0], propagate_all(jnp.where(moves, share, 1) * self.longest))
            return self.step(steps, y, us, interval)

        def take_other(y: Array) -> Array:
            return jax.lax.cond(are_within, take_fractions, take_any, y)

        return jnp.where(moves[:, None], jax.lax.cond(are_whole, take_whole, take_other, y), y)

    def take_fractions(self, y: Array, us: tuple[Array, Array], share: Array, interval: Interval) -> Array:
        """Returns the states after a share, at most 1, of the usual length."""
        count = jnp.round(share * FRACTIONS[-1]).astype(jnp.int32)
        (begin, end), span = us, interval.end - interval.begin

        def take(carry: tuple[Array, Array], level: tuple[Propagator, Array]) -> tuple[tuple[Array, Array], None]:
            (y, done), (steps, units) = carry, level
            now = (count // units) % 2 == 1
            ratios = [(part / jnp.maximum(count, 1))[:, None] for part in (done, done + units)]
            inputs = begin + ratios[0] * (end - begin), begin + ratios[1] * (end - begin)
            times = [interval.begin + ratio[:, 0] * span for ratio in ratios]
            part = Interval(times[0], times[1], interval.row, interval.length, interval.coefficients)
            return (jnp.where(now[:, None], self.step(steps, y, inputs, part), y), done + now * units), None

        units = jnp.asarray(FRACTIONS[-1] / FRACTIONS, jnp.int32)
        return jax.lax.scan(take, (y, jnp.zeros_like(count)), (self.halves, units))[0][0]

    def step(self, steps: Propagator, y: Array, us: tuple[Array, Array], interval: Interval) -> Array:
        begin, end = us

        def act(matrix: Array, vector: Array) -> Array:
            return vector @ matrix.T if matrix.ndim == 2 else (matrix @ vector[..., None])[..., 0]

        if self.linear:
            one = jnp.ones((len(y), 1), y.dtype)
            drive = jnp.concatenate([begin, one], axis=1)
            rise = jnp.concatenate([end - begin, 0 * one], axis=1)
            return act(steps.free, y) + act(steps.held, drive) + act(steps.rising, rise)
        rates = jax.vmap(self.field)
        first = rates(self.origin + interval.begin, y, begin) - act(self.parts.matrix, y)
        guess = (
            act(steps.free, y) + act(steps.held, first) + act(steps.rising, act(self.parts.push[:, :-1], end - begin))
        )
        last = rates(self.origin + interval.end, guess, end) - act(self.parts.matrix, guess)
        return act(steps.free, y) + act(steps.held, first) + act(steps.rising, last - first)


def march_exponential(problem: InitialValueProblem, intervals: Intervals) -> RowMarch:
    """Solves through all intervals between rows with one step per interval, without error estimates.

    The field is evaluated at states beyond their bound, so diverging solutions become infinite.
    """
    field, bound = problem.field, problem.bound
    step = ExponentialSteps(field, jnp.asarray(problem.origin), jnp.max(jnp.asarray(intervals.length)))

    def through(y: Array, interval: Interval) -> tuple[Array, Array]:
        after = step(y, interval)
        after = after if bound is None else jnp.clip(after, -2 * bound[None], 2 * bound[None])
        return after, after

    _, ys = jax.lax.scan(through, problem.y0, by_interval(intervals))
    states = jnp.swapaxes(jnp.concatenate([problem.y0[None], ys]), 0, 1)
    return RowMarch(states, jnp.zeros((states.shape[0], states.shape[1] - 1), states.dtype))


def advance_exponential(
    field: VectorField, origin: Float[Array, " trajectory"], intervals: Intervals, front: Front
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """Solves through intervals one after another; arguments and results as in `row_by_row.advance_adaptive`."""
    step = ExponentialSteps(field, origin, jnp.max(jnp.asarray(intervals.length)))

    def through(front: Front, interval: Interval) -> tuple[Front, Float[Array, "trajectory state"]]:
        y = step(front.y, interval)
        advanced = Front(y, front.slope, front.step, front.sound & is_near(y), front.watch)
        return advanced, reached_states(advanced)

    front, ys = jax.lax.scan(through, front, by_interval(intervals))
    return jnp.swapaxes(ys, 0, 1), front


def is_near(y: Float[Array, "trajectory state"]) -> Bool[Array, " trajectory"]:
    """Whether no state has become infinite."""
    return jnp.isfinite(y).all(axis=1)
