"""Diffrax's solves from row to row, for states that jump at events: differentiable, with steps that cross no row."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .driven import Driven
from .initial_value_problem import InitialValueProblem
from .intervals import Interval, between_rows, by_interval
from .solution import Solution

# From the field with its inputs, both ends of an interval and the states at the first to those at the ends, and whether
# the solve succeeded.
SolveOne = Callable[
    [Driven, Float[Array, "2"], Float[Array, " state"]], tuple[Float[Array, "2 state"], Bool[Array, ""]]
]


def solve_by_row(problem: InitialValueProblem, kind: str, solve_one: SolveOne) -> Solution:
    """Solves all trajectories at their times, each on its own.

    **Arguments:** `kind`: of the interpolation of inputs; `solve_one`: solves one trajectory through one interval.
    """

    def through(carry: tuple[Array, Array], interval: Interval) -> tuple[tuple[Array, Array], Array]:
        y, ok = carry
        y, moves = interval.begun(y), interval.end > interval.begin

        def one(ts: Array, us: Array, origin: Array, y: Array, ends: Array) -> tuple[Array, Array]:
            ys, ok = solve_one(Driven(problem.field, ts, us, origin, kind), ends, y)
            return ys[-1], ok

        ends = jnp.stack([interval.begin, jnp.where(moves, interval.end, interval.begin + 1)], axis=1)
        after, solved = jax.vmap(one)(problem.ts, problem.us, problem.origin, y, ends)
        y, ok = jnp.where(moves[:, None], after, y), ok & (solved | ~moves)
        return (y, ok), y

    y0 = problem.y0
    begun = (y0, jnp.ones(len(y0), bool))
    (_, ok), ys = jax.lax.scan(through, begun, by_interval(between_rows(problem, kind)))
    return Solution(jnp.concatenate([y0[:, None], jnp.swapaxes(ys, 0, 1)], axis=1), ok)
