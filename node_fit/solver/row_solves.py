"""Diffrax's solves from row to row, for states that jump at events: differentiable, with steps that cross no row."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .driven import Driven
from .implicit_steps import Path, next_step
from .initial_value_problem import InitialValueProblem
from .intervals import Interval, between_rows, by_interval
from .solution import Solution

# From the field with its inputs, both ends of an interval, the states at the first, and the first step or 0 to choose
# it, to the solve up to the second.
SolveOne = Callable[[Driven, Float[Array, "2"], Float[Array, " state"], Float[Array, ""]], Path]


def solve_by_row(problem: InitialValueProblem, kind: str, solve_one: SolveOne) -> Solution:
    """Solves all trajectories at their times, each on its own.

    **Arguments:** `kind`: of the interpolation of inputs; `solve_one`: solves one trajectory through one interval.
    """

    def through(carry: tuple[Array, Array, Array], interval: Interval) -> tuple[tuple[Array, Array, Array], Array]:
        before, ok, step = carry
        y, moves = interval.begun(before), interval.end > interval.begin

        def one(ts: Array, us: Array, origin: Array, *given: Array) -> tuple[Array, Array, Array]:
            path = solve_one(Driven(problem.field, ts, us, origin, kind), *given)
            return path.ys[-1], path.ok, path.step

        ends = jnp.stack([interval.begin, jnp.where(moves, interval.end, interval.begin + 1)], axis=1)
        first = next_step(step, before, y)
        after, solved, step = jax.vmap(one)(problem.ts, problem.us, problem.origin, ends, y, first)
        y, ok = jnp.where(moves[:, None], after, y), ok & (solved | ~moves)
        return (y, ok, step), y

    y0 = problem.y0
    begun = (y0, jnp.ones(len(y0), bool), jnp.zeros(len(y0), y0.dtype))
    (_, ok, _), ys = jax.lax.scan(through, begun, by_interval(between_rows(problem, kind)))
    return Solution(jnp.concatenate([y0[:, None], jnp.swapaxes(ys, 0, 1)], axis=1), ok)
