"""Diffrax's adaptive steps through intervals between rows, for implicit methods and the user's own solvers."""

from dataclasses import replace
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .initial_value_problem import InitialValueProblem
from .intervals import Interval, Intervals, by_interval
from .row_steps import Front


def advance(
    method: diffrax.AbstractSolver,
    problem: InitialValueProblem,
    intervals: Intervals,
    front: Front,
    tolerances: tuple[Any, Any],
    max_steps: int,
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """Solves through intervals, each trajectory on its own; arguments as in `row_steps.advance`.

    All intervals together may take `max_steps` plus one step per interval; where states jump, each may.
    """
    if intervals.jumps is not None:
        return advance_with_jumps(method, problem, intervals, front, tolerances, max_steps)
    driven = intervals.coefficients[0].shape[2] > 0
    budget = max_steps + intervals.end.shape[1]

    def one(own: Intervals, origin: Array, at: Front, rtol: Any, atol: Any) -> tuple[Array, Front]:
        def rates(t: Any, y: Array, args: Any) -> Array:
            # At the end of an interval its own inputs still hold; after a jump, Diffrax begins just behind it.
            index = jnp.clip(jnp.searchsorted(own.end, t, side="left"), 0, own.end.shape[0] - 1)
            here = jax.tree.map(lambda x: x[index][None], own)
            interval = Interval(here.begin, here.end, here.row, here.length, here.coefficients)
            return problem.field(origin + t, y, interval.inputs_at(t[None])[0])

        controller: Any = diffrax.PIDController(rtol=rtol, atol=atol, pcoeff=0.3, icoeff=0.4)
        if driven:
            controller = diffrax.ClipStepSizeController(controller, jump_ts=own.row)
        length = own.end[-1] - own.begin[0]
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(rates),
            method,
            t0=own.begin[0],
            t1=own.end[-1],
            dt0=jnp.where(length > 0, jnp.minimum(at.step, length), 1),
            y0=at.y,
            saveat=diffrax.SaveAt(ts=own.end),
            stepsize_controller=controller,
            adjoint=diffrax.ForwardMode(),
            max_steps=budget,
            throw=False,
        )
        ys = solution.ys
        assert ys is not None
        sound = at.sound & ((solution.result == diffrax.RESULTS.successful) | (length <= 0)) & jnp.isfinite(ys).all()
        ys = jnp.where(at.sound, ys, jnp.inf)
        return ys, eqx.tree_at(lambda f: (f.y, f.sound), at, (ys[-1], sound))

    rtol, atol = (jnp.asarray(x).reshape(-1) if jnp.ndim(x) else x for x in tolerances)
    return jax.vmap(one, in_axes=(0, 0, 0, None, None))(intervals, problem.origin, front, rtol, atol)


def advance_with_jumps(
    method: diffrax.AbstractSolver,
    problem: InitialValueProblem,
    intervals: Intervals,
    front: Front,
    tolerances: tuple[Any, Any],
    max_steps: int,
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """`advance`, one interval after another, with the jumps of the states between them."""

    def through(front: Front, interval: Interval) -> tuple[Front, Float[Array, "trajectory state"]]:
        one = jax.tree.map(lambda x: x[:, None], replace(interval, jumps=None))
        alone = Intervals(one.begin, one.end, one.row, one.length, one.coefficients)
        begun = eqx.tree_at(lambda f: f.y, front, interval.begun(front.y))
        ys, front = advance(method, problem, alone, begun, tolerances, max_steps)
        return front, ys[:, 0]

    front, ys = jax.lax.scan(through, front, by_interval(intervals))
    return jnp.swapaxes(ys, 0, 1), front
