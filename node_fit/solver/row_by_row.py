"""Steps that end at every row, since inputs can have a kink and states can jump there.

Explicit methods step adaptively here for predictions and validation, at a cost linear in the number of rows. Implicit
methods and user-supplied solvers take Diffrax's steps, or Rosenbrock steps if the field has triggers.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from equinox.internal import while_loop
from jaxtyping import Array, Bool, Float, PyTree
from optimistix import RESULTS

from ..data.inputs import Interpolations
from ..runtime.batching import vary_together
from ..runtime.placement import AnyArray
from .methods import Method, Tolerance, Tolerances, combine, error_order, runge_kutta_step, tableau
from .problem import Driven, InitialValueProblem, Interval, Intervals, Solution, VectorField, between_rows, by_interval
from .rosenbrock import ROSENBROCK_ERROR_ORDER, rosenbrock_step
from .switches import at_given_ends, has_stops, rates_in, split_at_switches
from .triggers import Solve, Triggers, TriggerWatch, choose_by_trajectory, has_triggers

# Target fraction of the tolerance, and limits of the change in step size (Hairer, Norsett and Wanner, Solving Ordinary
# Differential Equations I, 1993, section II.4).
STEP_SAFETY, LEAST_STEP_FACTOR, GROW = 0.9, 0.2, 5.0
# Fraction of its interval below which a step makes no progress.
VANISHING = 1e-7
# A step is extended to the end of its interval if it would end less than this fraction of itself before it.
NEARLY = 1e-3
# Magnitude above which a state has diverged; states are of order one.
AWAY = 100.0

# Maps times within an interval and states to derivatives, for all trajectories.
Rates = Callable[[Array, Array], Array]
# A time or a step, as Diffrax passes it to a controller.
Scalar = float | int | AnyArray
# Options that Diffrax passes on to a root finder.
Options = dict[str, object]
Tags = frozenset[object]
Stepped = tuple[PyTree, PyTree, PyTree]
# The function given to a root finder: maps `(y, args)` to a residual and auxiliary output.
Fn = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
RootFinder = optx.AbstractRootFinder[PyTree, PyTree, PyTree, PyTree]


class Front(eqx.Module):
    """The state of a solve between two intervals.

    - `y`, `slope`: states and their derivatives, which the next step needs.
    - `step`: the next step to try.
    - `sound`: whether the solve of a trajectory has succeeded so far.
    - `watch`: state of the triggers; None if the field has none.
    """

    y: Float[Array, "trajectory state"]
    slope: Float[Array, "trajectory state"]
    step: Float[Array, " trajectory"]
    sound: Bool[Array, " trajectory"]
    watch: TriggerWatch | None = None


def reached_states(front: Front) -> Float[Array, "trajectory state"]:
    """Returns the states; infinite for trajectories that diverged, NaN for solves that failed otherwise."""
    away = ~(jnp.abs(front.y) < AWAY).all(axis=1)
    return jnp.where(front.sound[:, None], front.y, jnp.where(away, jnp.inf, jnp.nan)[:, None])


def first_front(
    field: VectorField,
    origin: Float[Array, " trajectory"],
    y0: Float[Array, "trajectory state"],
    first: Interval,
    tolerances: Tolerances,
) -> Front:
    """Returns the front at the start of all trajectories.

    **Arguments:**

    - `field`: called with `(t, y, u)` of one trajectory.
    - `origin`: the field's time at which the intervals' time is 0.
    - `y0`: states at the beginning of the `first` interval, whose length is the first step to try.
    - `tolerances`: relative and absolute, as returned by `Solver.tolerances`.
    """
    slope = jax.vmap(field)(origin + first.begin, y0, first.inputs_at(first.begin))
    length = first.end - first.begin
    watch = None
    if has_triggers(field):
        watch = Triggers(field, origin, first.inputs_at, length, tolerances).begin(first.begin, y0)
    return Front(y0, slope, jnp.where(length > 0, length, 1), jnp.isfinite(y0).all(axis=1), watch)


def scaled_norm(ratios: Float[Array, "trajectory state"]) -> Float[Array, " trajectory"]:
    """Returns the root mean square over all states; infinite if it is not finite."""
    error = jnp.sqrt(jnp.mean(ratios**2, axis=1))
    return jnp.where(jnp.isfinite(error), error, jnp.inf)


def after_jumps(front: Front, interval: Interval, triggers: Triggers, rates: Rates) -> Front:
    """Returns the front after the jumps at the beginning of an interval and the events they trigger."""
    length = interval.end - interval.begin
    y, watch, sound = interval.begin_at(front.y), front.watch, front.sound
    if watch is not None:
        y, watch = triggers.settle(interval.begin, y, watch, length > 0)
        sound = sound & ~watch.endless
    return Front(y, rates(jnp.zeros_like(length), y), front.step, sound, watch)


# Maps start times, lengths, states and optionally derivatives at the start to the states after a step, their errors,
# and optionally the derivatives there.
TakeStep = Callable[[Array, Array, Array, Array | None], tuple[Array, Array, Array | None]]


class AdaptiveMethod(NamedTuple):
    """A method whose steps adapt to an estimated error.

    - `step_of`: its step, for a field, the field's time at which the intervals' time is 0, and an interval.
    - `error_order`: the error is proportional to this power of the step.
    - `least`: the share of its interval below which a step makes no progress.
    """

    step_of: Callable[[VectorField, Float[Array, " trajectory"], Interval], TakeStep]
    error_order: int
    least: float


def rates_within(field: VectorField, origin: Float[Array, " trajectory"], interval: Interval) -> Rates:
    """Returns the derivatives as a function of the time since an interval's beginning."""

    within = rates_in(field, origin, interval)
    return lambda passed, y: within(interval.begin + passed, y)


def explicit_method(name: str) -> AdaptiveMethod:
    """Returns an adaptive method for a name in `EXPLICIT` that has an error estimate."""
    table = tableau(name)

    def step_of(field: VectorField, origin: Float[Array, " trajectory"], interval: Interval) -> TakeStep:
        rates, reuses = rates_within(field, origin, interval), table.fsal and not has_stops(field)

        def take(passed: Array, h: Array, y: Array, slope: Array | None) -> tuple[Array, Array, Array | None]:
            after, stages = runge_kutta_step(table, rates, passed, h, y, slope)
            return after, h[:, None] * combine(table.error, stages), stages[-1] if reuses else None

        return take

    return AdaptiveMethod(step_of, error_order(name), VANISHING)


def rosenbrock_method(least: float) -> AdaptiveMethod:
    """Returns Rodas5P, for stiff fields."""

    def step_of(field: VectorField, origin: Float[Array, " trajectory"], interval: Interval) -> TakeStep:
        def one(own: Interval, origin: Array, passed: Array, h: Array, y: Array) -> tuple[Array, Array]:
            within = rates_within(field, origin[None], jax.tree.map(lambda x: x[None], own))

            def rates(passed: Array, y: Array) -> Array:
                return within(passed[None], y[None])[0]

            after, error = rosenbrock_step(rates, passed, y, jnp.where(h > 0, h, 1), depends_on_time=True)
            return jnp.where(h > 0, after, y), jnp.where(h > 0, error, 0)

        def take(passed: Array, h: Array, y: Array, slope: Array | None) -> tuple[Array, Array, Array | None]:
            return *jax.vmap(one)(interval, origin, passed, h, y), None

        return take

    return AdaptiveMethod(step_of, ROSENBROCK_ERROR_ORDER, least)


def advance_adaptive(
    method: AdaptiveMethod,
    field: VectorField,
    origin: Float[Array, " trajectory"],
    intervals: Intervals,
    front: Front,
    tolerances: Tolerances,
    max_steps: int,
    *,
    backward: bool = False,
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """Solves through intervals, one after another.

    **Arguments:**

    - `method`: the steps.
    - `field`, `origin`: as in `first_front`.
    - `intervals`, `front`: the intervals, and the front at the beginning of the first.
    - `tolerances`: relative and absolute, as returned by `Solver.tolerances`.
    - `max_steps`: maximum number of steps in one interval; a trajectory that needs more has failed.
    - `backward`: support reverse-mode derivatives, which keeps intermediate states, instead of forward mode.

    **Returns:** states at the end of each interval, infinite once a solve has failed, and the front there.
    """
    power, (rtol, atol) = method.error_order, tolerances
    reverse = functools.partial(while_loop, max_steps=max_steps, kind="checkpointed")
    loop = reverse if backward else jax.lax.while_loop
    intervals, index = split_at_switches(field, origin, intervals)

    def through(front: Front, interval: Interval) -> tuple[Front, Float[Array, "trajectory state"]]:
        length = interval.end - interval.begin
        rates, take = rates_within(field, origin, interval), method.step_of(field, origin, interval)

        def goes_on(carry: tuple[Array, Front, Array]) -> Array:
            passed, current, count = carry
            return jnp.any(current.sound & (passed < length)) & (count < max_steps)

        def step(carry: tuple[Array, Front, Array]) -> tuple[Array, Front, Array]:
            passed, current, count = carry
            remaining = length - passed
            last = current.step >= remaining * (1 - NEARLY)
            h = jnp.where(last, remaining, current.step)
            after, errors, slope = take(passed, h, current.y, current.slope)
            allowed = atol + rtol * jnp.maximum(jnp.abs(current.y), jnp.abs(after))
            error = scaled_norm(errors / allowed)
            active = current.sound & (passed < length)
            accepted = active & (error <= 1)
            factor = jnp.clip(STEP_SAFETY * jnp.maximum(error, 1e-10) ** (-1 / power), LEAST_STEP_FACTOR, GROW)
            # A step that was shortened to end at the row must not shorten the next one.
            next_step = jnp.where(accepted & last, jnp.maximum(current.step, h * factor), h * factor)
            end = jnp.where(last, length, passed + h)
            watch = current.watch
            if watch is not None:
                again: Solve = lambda y, t, h: take(t - interval.begin, h, y, None)[0]  # noqa: E731
                stop = triggers.stop_at_event(again, interval.begin + passed, h, current.y, after, watch)
                after, accepted = stop.y, accepted & ~stop.lost
                end = jnp.where(stop.share < 1, passed + stop.share * h, end)
                watch = choose_by_trajectory(accepted, stop.watch, watch)
                next_step = jnp.where(stop.lost, h * LEAST_STEP_FACTOR, next_step)
            passed = jnp.where(accepted, end, passed)
            y = jnp.where(accepted[:, None], after, current.y)
            failed = active & (next_step < method.least * length)
            failed = failed if watch is None else failed | watch.endless
            slope = rates(passed, y) if slope is None else slope
            advanced = Front(
                y=y,
                slope=jnp.where(accepted[:, None], slope, current.slope),
                step=jnp.where(active, next_step, current.step),
                sound=current.sound & ~failed,
                watch=watch,
            )
            return passed, advanced, count + 1

        triggers = Triggers(field, origin, interval.inputs_at, length, tolerances)
        is_smooth = intervals.are_smooth and not has_stops(field)
        start = front if is_smooth else after_jumps(front, interval, triggers, rates)
        none = vary_together((jnp.zeros_like(length), start, jnp.zeros((), jnp.int32)), start.slope)
        passed, advanced, _ = loop(goes_on, step, none)
        advanced = eqx.tree_at(lambda f: f.sound, advanced, advanced.sound & (passed >= length))
        return advanced, reached_states(advanced)

    front, ys = jax.lax.scan(through, vary_together(front, front.slope), by_interval(intervals))
    return at_given_ends(jnp.swapaxes(ys, 0, 1), index), front


# Minimum first step, in multiples of the spacing of floating-point numbers.
LEAST_FIRST_STEP = 8


class StepControl(diffrax.PIDController):
    """A Diffrax step size controller that also chooses the first step and recovers from failed steps.

    - The first step is `first`, or if that is 0, is chosen from the problem's scale (Hairer, Norsett and Wanner, as
      above). On a stiff field, Newton's iteration can overflow in a step as long as the row spacing.
    - A step to states that aren't finite is rejected. In Diffrax it can make the length of all later steps NaN.
    - A step that was shortened to end at a row does not shorten the next one.

    Its state is Diffrax's controller state and the length of the next step.
    """

    rtol: Tolerance  # a number, or one for each state
    atol: Tolerance
    first: Array | float = 0.0

    def init(
        self,
        terms: PyTree,
        t0: Scalar,
        t1: Scalar,
        y0: PyTree,
        dt0: Scalar | None,
        args: PyTree,
        func: Callable[..., PyTree],
        error_order: Scalar | None,
    ) -> tuple[Scalar, PyTree]:
        end, state = super().init(terms, t0, t1, y0, dt0, args, func, error_order)
        least = LEAST_FIRST_STEP * jnp.finfo(jnp.result_type(t0)).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
        # `maximum` would keep the NaN of a field that isn't finite near the start.
        chosen = jnp.where(end - t0 > least, end - t0, least)
        step = jax.lax.stop_gradient(jnp.where(self.first > 0, self.first, chosen))
        return t0 + step, (state, step)

    def adapt_step_size(
        self,
        t0: Scalar,
        t1: Scalar,
        y0: PyTree,
        y1_candidate: PyTree,
        args: PyTree,
        y_error: PyTree | None,
        error_order: Scalar,
        controller_state: PyTree,
    ) -> tuple[PyTree, Scalar, Scalar, PyTree, PyTree, diffrax.RESULTS]:
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
    """A field whose derivatives are finite wherever a step evaluates it, so that a failed step is only rejected.

    The derivative of an implicit step solves a linear equation, which raises an error if the field's derivative is not
    finite.

    - `rates`: the field, as Diffrax calls it. Its derivatives are set to 0 if its value is not finite.
    - `safe`: states at which it is then differentiated instead, since 0 times a NaN derivative would be NaN.
    """

    rates: Callable[..., Array]
    safe: Float[Array, "..."]

    def __call__(self, t: PyTree, y: PyTree, args: PyTree) -> Array:
        return rate(self.rates, t, y, self.safe)


@eqx.filter_custom_jvp
def rate(rates: Callable[..., Array], t: Array, y: Array, safe: Array) -> Array:
    """Returns `rates(t, y, None)`."""
    return rates(t, y, None)


@rate.def_jvp
def _(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> tuple[Array, Array]:
    rates, t, y, safe = primals
    value = rates(t, y, None)
    sound = jnp.isfinite(value).all()
    there = (rates, t, jnp.where(sound, y, safe))
    _, tangent = eqx.filter_jvp(lambda rates, t, y: rates(t, y, None), there, tangents[:3])
    return value, jnp.where(sound, tangent, 0)


class SafeRoot(RootFinder):
    """A root finder for Diffrax's methods that returns 0 if it fails, so that later stages and derivatives are finite.

    Diffrax rejects the step, but first continues from the last iterate, which can be near overflow. The roots are
    derivatives or increments of states, so 0 is harmless.

    - `rtol`, `atol`, `norm`: those of `inner`, which Diffrax can set.
    """

    # Diffrax uses placeholder objects for tolerances that it will set.
    rtol: Any
    atol: Any
    norm: Any
    inner: RootFinder

    def init(
        self, fn: Fn, y: PyTree, args: PyTree, options: Options, f_struct: PyTree, aux_struct: PyTree, tags: Tags
    ) -> PyTree:
        return self.finder(y).init(fn, y, args, options, f_struct, aux_struct, tags)

    def step(self, fn: Fn, y: PyTree, args: PyTree, options: Options, state: PyTree, tags: Tags) -> Stepped:
        return self.finder(y).step(fn, y, args, options, state, tags)

    def terminate(
        self, fn: Fn, y: PyTree, args: PyTree, options: Options, state: PyTree, tags: Tags
    ) -> tuple[Bool[Array, ""], RESULTS]:
        return self.finder(y).terminate(fn, y, args, options, state, tags)

    def postprocess(
        self, fn: Fn, y: PyTree, aux: PyTree, args: PyTree, options: Options, state: PyTree, tags: Tags, result: RESULTS
    ) -> tuple[PyTree, PyTree, dict[str, PyTree]]:
        y, aux, stats = self.finder(y).postprocess(fn, y, aux, args, options, state, tags, result)
        return jax.tree.map(lambda x: jnp.where(result == RESULTS.successful, x, 0), y), aux, stats

    def finder(self, y: PyTree) -> RootFinder:
        """Returns the `inner` root finder with a tolerance that is reachable in floating-point arithmetic."""
        least = jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps / getattr(self.inner, "kappa", 1)
        settings = self.rtol, jnp.maximum(self.atol, least), self.norm
        return eqx.tree_at(lambda finder: (finder.rtol, finder.atol, finder.norm), self.inner, settings)


def with_safe_roots(method: Method) -> Method:
    """Returns the method, with a `SafeRoot` if it is implicit."""
    if not isinstance(method, diffrax.AbstractImplicitSolver):
        return method
    inner = method.root_finder
    return eqx.tree_at(lambda m: m.root_finder, method, SafeRoot(inner.rtol, inner.atol, inner.norm, inner))


class StepPath(NamedTuple):
    """A solve of one trajectory, or of several as one equation.

    - `ys`: states at the requested times. `ok`: whether the solve reached its end.
    - `step`: the step it would take next.
    """

    ys: Float[Array, "time ..."]
    ok: Bool[Array, ""]
    step: Float[Array, ""]


def solve(
    method: Method,
    rates: Callable[..., Array],
    y0: Float[Array, "..."],
    ts: tuple[AnyArray, AnyArray, AnyArray],
    tolerances: Tolerances,
    max_steps: int,
    adjoint: diffrax.AbstractAdjoint,
    *,
    first: Array | float = 0.0,
    even: Array | float | None = None,
    jump_ts: Float[AnyArray, " row"] | None = None,
) -> StepPath:
    """Solves with adaptive or even steps.

    **Arguments:**

    - `rates`: the field, called with `(t, y, args)`. `y0`: states at the beginning.
    - `ts`: beginning, end, and the times at which states are requested.
    - `tolerances`, `max_steps`: as in `Solver`.
    - `first`: the first step to try; if 0, it is chosen from the problem's scale.
    - `even`: the length of all steps; None for adaptive ones.
    - `jump_ts`: times at which the field jumps, which no step crosses.
    """
    begin, end, wanted = ts
    controller = step_control(method, tolerances, first) if even is None else diffrax.ConstantStepSize()
    if jump_ts is not None and isinstance(controller, StepControl):
        controller = diffrax.ClipStepSizeController(controller, jump_ts=jnp.asarray(jump_ts))
    # Values that the field closes over become arguments of its derivative.
    field = Guarded(eqx.filter_closure_convert(rates, begin, y0, None), jax.lax.stop_gradient(y0))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        with_safe_roots(method),
        t0=begin,
        t1=end,
        dt0=even,
        y0=y0,
        saveat=diffrax.SaveAt(ts=jnp.asarray(wanted), controller_state=True),
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=max_steps,
        throw=False,
    )
    ys, state = solution.ys, cast(PyTree, solution.controller_state)
    assert ys is not None
    if jump_ts is not None:
        state = state.inner_state
    step = jax.lax.stop_gradient(state[1]) if even is None else cast(Array, even)
    return StepPath(ys, (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(ys).all(), step)


def step_control(method: Method, tolerances: Tolerances, first: Array | float = 0.0) -> StepControl:
    """Returns the controller of adaptive steps; arguments as in `solve`."""
    # On a stiff field, a controller that uses only the last error rejects every other step.
    p, i = (0.3, 0.4) if isinstance(method, diffrax.AbstractImplicitSolver) else (0.0, 1.0)
    return StepControl(rtol=tolerances[0], atol=tolerances[1], pcoeff=p, icoeff=i, first=first)


def next_step(step: Array, before: Array, after: Array) -> Array:
    """Returns the first step of each trajectory after a row: the current one, or 0 if its states jump there."""
    return jnp.where((before == after).all(axis=1), step, 0)


def advance_implicit(
    method: Method,
    problem: InitialValueProblem,
    intervals: Intervals,
    front: Front,
    tolerances: Tolerances,
    max_steps: int,
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """Solves through intervals, independently for each trajectory; arguments as in `advance_adaptive`.

    All intervals together can take `max_steps` plus one step per interval; with jumps, each interval can.
    """
    if intervals.jumps is not None:
        return advance_implicit_with_jumps(method, problem, intervals, front, tolerances, max_steps)
    driven = intervals.coefficients[0].shape[2] > 0
    budget = max_steps + intervals.end.shape[1]

    def one(own: Intervals, origin: Array, at: Front, rtol: Tolerance, atol: Tolerance) -> tuple[Array, Front]:
        def rates(t: Array, y: Array, args: PyTree) -> Array:
            # An interval's inputs hold up to and including its end; after a jump, Diffrax starts just past it.
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
    return jax.vmap(one, in_axes=(0, 0, 0, None, None))(intervals, jnp.asarray(problem.origin), front, rtol, atol)


def advance_implicit_with_jumps(
    method: Method,
    problem: InitialValueProblem,
    intervals: Intervals,
    front: Front,
    tolerances: Tolerances,
    max_steps: int,
) -> tuple[Float[Array, "trajectory interval state"], Front]:
    """Solves through intervals one after another, with the jumps of the states between them."""

    def through(front: Front, interval: Interval) -> tuple[Front, Float[Array, "trajectory state"]]:
        one = jax.tree.map(lambda x: x[:, None], replace(interval, jumps=None))
        alone = Intervals(one.begin, one.end, one.row, one.length, one.coefficients, has_steps=intervals.has_steps)
        y = interval.begin_at(front.y)
        begun = eqx.tree_at(lambda f: (f.y, f.step), front, (y, next_step(front.step, front.y, y)))
        ys, front = advance_implicit(method, problem, alone, begun, tolerances, max_steps)
        return front, ys[:, 0]

    front, ys = jax.lax.scan(through, front, by_interval(intervals))
    return jnp.swapaxes(ys, 0, 1), front


# Maps the field with its inputs, both ends of an interval, the states at its start, and the first step (0 to choose it)
# to the solve up to its end.
SolveOne = Callable[[Driven, Float[Array, "2"], Float[Array, " state"], Float[Array, ""]], StepPath]


def solve_by_row(problem: InitialValueProblem, kind: Interpolations, solve_one: SolveOne) -> Solution:
    """Solves all trajectories at their times, independently of each other.

    **Arguments:** `kind`: interpolation of inputs; `solve_one`: solves one trajectory through one interval.
    """

    def through(carry: tuple[Array, Array, Array], interval: Interval) -> tuple[tuple[Array, Array, Array], Array]:
        before, ok, step = carry
        y, moves = interval.begin_at(before), interval.end > interval.begin

        def one(ts: Array, us: Array, origin: Array, *given: Array) -> tuple[Array, Array, Array]:
            path = solve_one(Driven(problem.field, ts, us, origin, kind), *given)
            return path.ys[-1], path.ok, path.step

        ends = jnp.stack([interval.begin, jnp.where(moves, interval.end, interval.begin + 1)], axis=1)
        first = next_step(step, before, y)
        after, solved, step = jax.vmap(one)(*held, ends, y, first)
        y, ok = jnp.where(moves[:, None], after, y), ok & (solved | ~moves)
        return (y, ok, step), y

    held = jnp.asarray(problem.ts), jnp.asarray(problem.us), jnp.asarray(problem.origin)
    y0 = problem.y0
    begun = (y0, jnp.ones(len(y0), bool), jnp.zeros(len(y0), y0.dtype))
    (_, ok, _), ys = jax.lax.scan(through, begun, by_interval(between_rows(problem, kind)))
    return Solution(jnp.concatenate([y0[:, None], jnp.swapaxes(ys, 0, 1)], axis=1), ok)
