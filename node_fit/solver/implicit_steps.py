"""Diffrax's steps, for implicit methods and the user's own solvers: the first step, steps that fail, intervals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float

from .initial_value_problem import InitialValueProblem
from .intervals import Interval, Intervals, by_interval
from .row_steps import Front

# A first step is at least so many times the spacing of floating-point numbers.
LEAST = 8


class StepControl(diffrax.PIDController):
    """Diffrax's controller of adaptive steps, but it chooses the first step, and gets over a step that fails.

    - The first step is `first`, or where that is 0 the problem's scale chooses it (Hairer, Norsett and Wanner, Solving
      Ordinary Differential Equations I, 1993, section II.4). On a stiff field, Newton's
      iteration may overflow in a step as long as from row to row.
    - A step to states that aren't finite is rejected. In Diffrax it may make the length of all later steps NaN.
    - A step that was shortened to end at a row is no reason for a shorter next step.

    Its state is that of Diffrax's, and the length of the next step.
    """

    rtol: Any  # a number, or one for each state
    atol: Any
    first: Any = 0.0

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, dt0: Any, args: Any, func: Any, error_order: Any) -> Any:
        end, state = super().init(terms, t0, t1, y0, dt0, args, func, error_order)
        least = LEAST * jnp.finfo(jnp.result_type(t0)).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
        # Not `maximum`, which would keep the NaN of a field that isn't finite near the start.
        chosen = jnp.where(end - t0 > least, end - t0, least)
        step = jax.lax.stop_gradient(jnp.where(self.first > 0, self.first, chosen))
        return t0 + step, (state, step)

    def adapt_step_size(
        self,
        t0: Any,
        t1: Any,
        y0: Any,
        y1_candidate: Any,
        args: Any,
        y_error: Any,
        error_order: Any,
        controller_state: Any,
    ) -> Any:
        state, step = controller_state
        # A tree, if an adjoint solves backwards.
        finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(y1_candidate)]).all()
        candidate = jax.tree.map(lambda x, y: jnp.where(finite, x, y), y1_candidate, y0)
        error = jax.tree.map(lambda x: jnp.where(finite, x, jnp.inf), y_error)
        keeps, begin, end, jumps, state, result = super().adapt_step_size(
            t0, t1, y0, candidate, args, error, error_order, state
        )
        step = jnp.where(keeps, jnp.maximum(step, end - begin), end - begin)
        return keeps, begin, begin + step, jumps, (state, step), result


class Guarded(eqx.Module):
    """A field that has finite derivatives wherever a step tries it, so that a step that fails is only rejected.

    The derivative of an implicit step solves a linear equation, which raises an error if the field's is not finite.

    - `rates`: the field, as Diffrax calls it. Where its value is not finite, its derivatives count as 0.
    - `safe`: states at which it can be differentiated instead, since 0 times a derivative of NaN would be NaN.
    """

    rates: Callable
    safe: Float[Array, "..."]

    def __call__(self, t, y, args):
        return rate(self.rates, t, y, self.safe)


@eqx.filter_custom_jvp
def rate(rates: Callable, t: Array, y: Array, safe: Array) -> Array:
    """`rates(t, y, None)`."""
    return rates(t, y, None)


@rate.def_jvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    rates, t, y, safe = primals
    value = rates(t, y, None)
    sound = jnp.isfinite(value).all()
    there = (rates, t, jnp.where(sound, y, safe))
    _, tangent = eqx.filter_jvp(lambda rates, t, y: rates(t, y, None), there, tangents[:3])
    return value, jnp.where(sound, tangent, 0)


class SafeRoot(optx.AbstractRootFinder):
    """A root finder of Diffrax's methods that returns 0 if it fails, so that later stages and derivatives are finite.

    Diffrax rejects the step, but first goes on from what the iteration has reached, which may be near overflow. The
    roots are derivatives or increments of states, so 0 is harmless.

    - `rtol`, `atol`, `norm`: those of `inner`, which Diffrax may set.
    """

    rtol: Any
    atol: Any
    norm: Any
    inner: Any

    def init(
        self, fn: Any, y: Any, args: Any, options: Any, f_struct: Any, aux_struct: Any, tags: frozenset[object]
    ) -> Any:
        return self.finder(y).init(fn, y, args, options, f_struct, aux_struct, tags)

    def step(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: frozenset[object]) -> Any:
        return self.finder(y).step(fn, y, args, options, state, tags)

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: frozenset[object]) -> Any:
        return self.finder(y).terminate(fn, y, args, options, state, tags)

    def postprocess(
        self, fn: Any, y: Any, aux: Any, args: Any, options: Any, state: Any, tags: Any, result: optx.RESULTS
    ) -> Any:
        y, aux, stats = self.finder(y).postprocess(fn, y, aux, args, options, state, tags, result)
        return jax.tree.map(lambda x: jnp.where(result == optx.RESULTS.successful, x, 0), y), aux, stats

    def finder(self, y: Any) -> Any:
        """The `inner` root finder, with a tolerance that its iteration can reach in floating-point numbers."""
        least = jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps / getattr(self.inner, "kappa", 1)
        given = self.rtol, jnp.maximum(self.atol, least), self.norm
        return eqx.tree_at(lambda finder: (finder.rtol, finder.atol, finder.norm), self.inner, given)


def with_safe_roots(method: diffrax.AbstractSolver) -> diffrax.AbstractSolver:
    """The method, with a `SafeRoot` if it is implicit."""
    if not isinstance(method, diffrax.AbstractImplicitSolver):
        return method
    inner: Any = method.root_finder
    return eqx.tree_at(lambda m: m.root_finder, method, SafeRoot(inner.rtol, inner.atol, inner.norm, inner))


class Path(NamedTuple):
    """A solve of one trajectory, or of several as one equation.

    - `ys`: states at the times asked for. `ok`: whether the solve came to its end.
    - `step`: the step it would take next.
    """

    ys: Float[Array, "time ..."]
    ok: Bool[Array, ""]
    step: Float[Array, ""]


def solve(
    method: diffrax.AbstractSolver,
    rates: Callable,
    y0: Float[Array, "..."],
    ts: tuple[Any, Any, Any],
    tolerances: tuple[Any, Any],
    max_steps: int,
    adjoint: diffrax.AbstractAdjoint,
    *,
    first: Any = 0.0,
    even: Any = None,
    jump_ts: Float[Array, " row"] | None = None,
) -> Path:
    """Solves with adaptive or even steps.

    **Arguments:**

    - `rates`: the field, called with `(t, y, args)`.
    - `y0`: states at the beginning.
    - `ts`: beginning, end, and the times at which states are wanted.
    - `tolerances`, `max_steps`: as in `Solver`.
    - `first`: the first step to try; where it is 0, the problem's scale chooses it.
    - `even`: the length of all steps; None for adaptive ones.
    - `jump_ts`: times at which the field jumps, which no step crosses.
    """
    begin, end, wanted = ts
    controller: Any = step_control(method, tolerances, first) if even is None else diffrax.ConstantStepSize()
    if jump_ts is not None:
        controller = diffrax.ClipStepSizeController(controller, jump_ts=jump_ts)
    # What the field reads becomes an argument of its derivative.
    field = Guarded(eqx.filter_closure_convert(rates, begin, y0, None), jax.lax.stop_gradient(y0))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        with_safe_roots(method),
        t0=begin,
        t1=end,
        dt0=even,
        y0=y0,
        saveat=diffrax.SaveAt(ts=wanted, controller_state=True),
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=max_steps,
        throw=False,
    )
    ys, state = solution.ys, cast(Any, solution.controller_state)
    assert ys is not None
    if jump_ts is not None:
        state = state.inner_state
    step = jax.lax.stop_gradient(state[1]) if even is None else even
    return Path(ys, (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(ys).all(), step)


def step_control(method: diffrax.AbstractSolver, tolerances: tuple[Any, Any], first: Any = 0.0) -> StepControl:
    """The control of adaptive steps; arguments as in `solve`."""
    rtol, atol = tolerances
    # On a stiff field, a controller that uses only the last error rejects every other step.
    p, i = (0.3, 0.4) if isinstance(method, diffrax.AbstractImplicitSolver) else (0.0, 1.0)
    return StepControl(rtol=rtol, atol=atol, pcoeff=p, icoeff=i, first=first)


def next_step(step: Array, before: Array, after: Array) -> Array:
    """The first step of each trajectory after a row: the last one goes on, unless its states jump there."""
    return jnp.where((before == after).all(axis=1), step, 0)


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

        ts, rows = (own.begin[0], own.end[-1], own.end), own.row if driven else None
        adjoint = diffrax.ForwardMode()
        path = solve(method, rates, at.y, ts, (rtol, atol), budget, adjoint, first=at.step, jump_ts=rows)
        moves = own.end[-1] > own.begin[0]
        sound = at.sound & (path.ok | (~moves & jnp.isfinite(path.ys).all()))
        ys, step = jnp.where(at.sound, path.ys, jnp.inf), jnp.where(moves, path.step, at.step)
        return ys, eqx.tree_at(lambda f: (f.y, f.step, f.sound), at, (ys[-1], step, sound))

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
        y = interval.begun(front.y)
        begun = eqx.tree_at(lambda f: (f.y, f.step), front, (y, next_step(front.step, front.y, y)))
        ys, front = advance(method, problem, alone, begun, tolerances, max_steps)
        return front, ys[:, 0]

    front, ys = jax.lax.scan(through, front, by_interval(intervals))
    return jnp.swapaxes(ys, 0, 1), front
