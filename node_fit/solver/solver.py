"""The trajectory solver, its settings, and its solves of trajectories spread over several devices."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, DTypeLike, Float, PyTree

from ..data.inputs import INTERPOLATIONS, Interpolation, Interpolations
from ..runtime.placement import AXIS, AnyArray, default_device
from ..runtime.serialization import stored_as
from ..runtime.validation import check_choice, checks_arguments
from . import held_steps, row_by_row
from .exponential import advance_exponential, march_exponential
from .held_rows import RowMarch, march_rows
from .held_steps import Grid, March, Shares, first_spacing, march, mean_spacing
from .methods import (
    ADJOINTS,
    EXPLICIT,
    EXPONENTIAL,
    METHODS,
    STEPPINGS,
    Adjoint,
    ByState,
    Method,
    Stepping,
    Tolerances,
    as_diffrax,
    by_state,
    check_positive,
    check_stepping,
    error_order,
    is_method,
    method_named,
    with_defaults,
)
from .problem import (
    Driven,
    HeldSolution,
    InitialValueProblem,
    Intervals,
    Solution,
    VectorField,
    at_row,
    between_rows,
    interpolate,
)
from .row_by_row import AdaptiveMethod, Front, solve_by_row
from .switches import has_stops

EVERYWHERE, SPREAD_AXIS = PartitionSpec(), PartitionSpec(AXIS)


def on_each_device(method: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Wraps a method so that each device solves its own trajectories in a program traced for several devices.

    By default, XLA sums the gradients of all devices in every step of a solve. Here they are summed once.

    **Arguments:** `method`: a method of a solver, called with a problem, with arrays that have one row for each
    trajectory or a single one for all, and with options. It returns arrays with a leading trajectory axis.
    """

    @functools.wraps(method)
    def spread(solver: PyTree, problem: InitialValueProblem, *arrays: AnyArray, **options: object) -> PyTree:
        mesh, trajectories = jax.sharding.get_abstract_mesh(), len(problem.y0)
        if AXIS not in mesh.axis_names or trajectories % mesh.shape[AXIS]:
            return method(solver, problem, *arrays, **options)
        shared, static = eqx.partition((solver, problem.field, problem.bound), eqx.is_array)

        def part(shared: PyTree, own: InitialValueProblem, arrays: tuple[PyTree, ...]) -> PyTree:
            solver, field, bound = eqx.combine(shared, static)
            return method(solver, replace(own, field=field, bound=bound), *arrays, **options)

        rows = tuple(EVERYWHERE if array.shape[0] != trajectories else SPREAD_AXIS for array in arrays)
        # `check_vma=False`, since no value has to be the same on all devices.
        on_mesh = jax.shard_map(part, in_specs=(EVERYWHERE, SPREAD_AXIS, rows), out_specs=SPREAD_AXIS, check_vma=False)
        return on_mesh(shared, replace(problem, field=None, bound=None), arrays)

    return spread


# `fit` chooses.
AUTO = "auto"
MarchName = Literal["auto", "sequential", "parallel"]
MARCHES = ("auto", "sequential", "parallel")
# Maximum number of states, whose Jacobians are solved with, and of derivatives in a step for which taking all steps at
# once pays off on a GPU: those of 2 states in 2,000 trajectories (docs/performance.md).
MAX_PARALLEL_STATES, MAX_PARALLEL_DERIVATIVES = 16, 6_000


@stored_as("Solver")
class Solver(eqx.Module):
    """A Runge-Kutta method, its steps, and how gradients pass through it.

    **Arguments:**

    - `method`: `tsit5` (the default), `dopri5`, `dopri8`, `bosh3`, `heun`; for stiff fields `kvaerno5`, `kvaerno3`,
      `implicit_euler`; `exponential`, one step from row to row, exact for the linear part of a field; `euler`, which
      estimates no error; or a `diffrax.AbstractSolver`.
    - `rtol`, `atol`: relative and absolute tolerance of a step, for states of order one; a number, or one for each
      state, hidden ones included. None stands for 1e-5 and a hundredth of `rtol`; in `fit`, driven records have
      different defaults.
    - `stepping`: the steps in training. `held` (the default of explicit methods): steps that meet the tolerances and
      stay the same within a chunk, so that the loss is smooth, which line searches need. `adaptive` (the default of
      implicit methods and of your own solver): every solve chooses its steps. `even` (the default of `euler`): one
      step per mean interval of the measured times, whatever the error; cheap for records sampled finely and evenly.
    - `max_steps`: maximum number of steps; a solve that needs more has failed.
    - `adjoint`: how gradients pass through the steps: `checkpointed` (exact, memory logarithmic in the steps),
      `direct` (exact, can be differentiated again), `backsolve` (approximate, constant memory) or `forward` (forward
      mode only). Held steps have exact gradients with all of them; use `direct` to differentiate again.
    - `inputs`: interpolation of inputs between measurements: `linear`, `cubic`, or `hold` for the last value, one for
      all inputs or one for each; `auto` stands for `linear`, or in `fit` for a choice based on the inputs.
    - `march`: how held and even steps are taken: `sequential`, one after the other, or `parallel`, all at once by
      Newton's method, with the same results to rounding; `auto` is `parallel` on a GPU for few trajectories of few
      states. Fields with triggers or switches march sequentially.

    **Raises:** `ValueError` if a name is unknown, a number is not positive, or the method can't take such steps.
    """

    method: str | Method = eqx.field(static=True)
    rtol: ByState | None
    atol: ByState | None
    stepping: Stepping = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    adjoint: Adjoint = eqx.field(static=True)
    inputs: Interpolations = eqx.field(static=True)
    march: MarchName = eqx.field(static=True)

    @checks_arguments
    def __init__(
        self,
        method: str | Method = "tsit5",
        *,
        rtol: float | Sequence[float] | None = None,
        atol: float | Sequence[float] | None = None,
        stepping: Stepping | None = None,
        max_steps: int = 4096,
        adjoint: Adjoint = "checkpointed",
        inputs: Interpolation | Literal["auto"] | Sequence[Interpolation] = AUTO,
        march: MarchName = AUTO,
    ):
        method = method_named(method)
        natural = "even" if method in ("euler", EXPONENTIAL) else "held" if method in EXPLICIT else "adaptive"
        stepping = natural if stepping is None else stepping
        check_choice("method", method, METHODS)
        check_choice("stepping", stepping, STEPPINGS)
        check_choice("adjoint", adjoint, ADJOINTS)
        for kind in (inputs,) if isinstance(inputs, str) else inputs:
            check_choice("inputs", kind, (*INTERPOLATIONS, AUTO))
        check_choice("march", march, MARCHES)
        for key, value in (("rtol", rtol), ("atol", atol), ("max_steps", max_steps)):
            check_positive(key, value)
        check_stepping(method, stepping)
        self.method = method
        self.rtol = tuple(rtol) if isinstance(rtol, Sequence) else rtol
        self.atol = tuple(atol) if isinstance(atol, Sequence) else atol
        self.stepping = stepping
        self.max_steps = max_steps
        self.adjoint = adjoint
        self.inputs = inputs if isinstance(inputs, str) else tuple(inputs)
        self.march = march

    def for_data(self, *, driven: bool = False, inputs: Interpolations = "linear") -> "Solver":
        """Returns the solver with all options chosen, for records driven by inputs of this kind or autonomous ones."""
        if self.inputs != AUTO and self.rtol is not None and self.atol is not None:
            return self
        rtol, atol = with_defaults(self.rtol, self.atol, driven)
        return replace(self, rtol=rtol, atol=atol, inputs=inputs if self.inputs == AUTO else self.inputs)

    @on_each_device
    def solve(self, problem: InitialValueProblem, *, joint: bool, adjoint: Adjoint | None = None) -> Solution:
        """Solves all trajectories with adaptive or even steps.

        **Arguments:**

        - `problem`: the trajectories.
        - `joint`: solve all of them as one equation with common steps. They must share their times. This halves the
          cost of a gradient; a trajectory's error then depends a little on its neighbours.
        - `adjoint`: overrides the solver's own.
        """
        p, inputs, adjoint = problem, self.interpolation, adjoint or self.adjoint
        if has_stops(p.field):
            return self._solve_through(p, backward=adjoint != "forward")
        if self.is_exponential:
            ys = march_exponential(p, between_rows(p, inputs)).ys
            return Solution(ys, jnp.isfinite(ys).all(axis=(1, 2)))
        if p.jumps is not None:
            return solve_by_row(p, inputs, functools.partial(self._diffeqsolve, adjoint=adjoint))
        if joint:
            driven = Driven(p.field, p.ts[0], jnp.swapaxes(p.us, 0, 1), p.origin[0], inputs)
            path = self._diffeqsolve(driven, p.ts[0], p.y0, adjoint=adjoint)
            return Solution(jnp.swapaxes(path.ys, 0, 1), jnp.broadcast_to(path.ok, p.y0.shape[:1]))

        def one(ts: AnyArray, y0: Array, us: AnyArray, origin: AnyArray) -> row_by_row.StepPath:
            driven = Driven(p.field, ts, us, origin, inputs)
            return self._diffeqsolve(driven, ts, y0, adjoint=adjoint)

        paths = jax.vmap(one)(p.ts, p.y0, p.us, p.origin)
        return Solution(paths.ys, paths.ok)

    @on_each_device
    def solve_held(
        self, problem: InitialValueProblem, grid: Shares, *, between_rows: bool = False, adjoint: Adjoint | None = None
    ) -> HeldSolution:
        """Solves all trajectories over held steps.

        **Arguments:**

        - `problem`: the trajectories, solved at their times. A trajectory that exceeds its bound has failed.
        - `grid`: nodes of the steps, shape `(trajectory, node)`; with `between_rows`, as fractions of every interval
          between two rows, shape `(1, node)`.
        - `adjoint`: overrides the solver's own; between rows, derivatives of any kind exist.
        """
        if between_rows or self.is_exponential:
            ys, errors = self._march_rows(problem, grid)
        else:
            steps = self._march(problem, grid, adjoint)
            ys = held_steps.interpolate_grid(self._name, grid, steps, problem.ts)
            errors = held_steps.estimate_step_errors(self._name, steps, *self.tolerances(problem.y0))
        if problem.bound is not None:
            ys = jnp.where(jnp.abs(ys) <= problem.bound[None, None], ys, jnp.inf)
        return HeldSolution(ys, jnp.isfinite(ys).all(axis=(1, 2)), errors)

    @on_each_device
    def step_errors(
        self, problem: InitialValueProblem, grid: Shares, *, between_rows: bool = False
    ) -> Float[Array, "trajectory step"]:
        """Returns the error of each held step (or the largest between two rows) relative to the tolerance.

        Arguments are those of `solve_held`.
        """
        if between_rows or self.is_exponential:
            return self._march_rows(problem, grid).errors
        return held_steps.estimate_step_errors(self._name, self._march(problem, grid), *self.tolerances(problem.y0))

    @on_each_device
    def forecast(self, problem: InitialValueProblem) -> Solution:
        """Solves all trajectories independently, with adaptive steps that end at every row.

        Errors stay below the tolerances for any change of the inputs at a row. Only forward-mode derivatives exist.
        """
        return self._solve_through(problem)

    def begin(self, problem: InitialValueProblem, intervals: Intervals) -> Front:
        """Returns the front at the start of the trajectories, before the first interval."""
        first, tolerances = at_row(intervals, 0), self.tolerances(problem.y0)
        front = row_by_row.first_front(problem.field, jnp.asarray(problem.origin), problem.y0, first, tolerances)
        if self.method in EXPLICIT or has_stops(problem.field):
            return front
        return eqx.tree_at(lambda f: f.step, front, jnp.zeros_like(front.step))  # The problem chooses it.

    def advance(
        self, problem: InitialValueProblem, intervals: Intervals, front: Front, *, backward: bool = False
    ) -> tuple[Float[Array, "trajectory interval state"], Front]:
        """Returns states at the end of each interval, infinite once a solve has failed, and the front there.

        **Arguments:**

        - `problem`: provides the vector field.
        - `intervals`: intervals to solve through; they must not cross a row.
        - `front`: the front before the first interval.
        - `backward`: with triggers or switches, support reverse-mode instead of forward-mode derivatives.
        """
        tolerances = self.tolerances(front.y)
        if self.is_exponential:
            return advance_exponential(problem.field, jnp.asarray(problem.origin), intervals, front)
        if self.method in EXPLICIT or has_stops(problem.field):
            arguments = problem.field, jnp.asarray(problem.origin), intervals, front, tolerances, self.max_steps
            return row_by_row.advance_adaptive(self._adaptive(front.y.dtype), *arguments, backward=backward)
        return row_by_row.advance_implicit(
            as_diffrax(self.method), problem, intervals, front, tolerances, self.max_steps
        )

    def diffeqsolve(
        self,
        rates: Callable[..., Array],
        ts: Float[Array, " time"],
        y0: Float[Array, " state"],
        *,
        scale: AnyArray | float,
        **options: Any,
    ) -> diffrax.Solution:
        """Solves one trajectory, in any units, with Diffrax and adaptive steps.

        **Arguments:**

        - `rates`: called with `(t, y, args)`.
        - `ts`: times at which the states are requested. `y0`: the states at the first.
        - `scale`: scale of each state, a factor of the absolute tolerance, shape `(state,)`.
        - `options`: arguments of `diffrax.diffeqsolve`, which override those of this solver.
        """
        rtol, atol = self.tolerances(y0)
        method = as_diffrax(self.method)
        arguments: dict[str, Any] = {
            **{"t0": ts[0], "t1": ts[-1], "y0": y0, "max_steps": self.max_steps},
            # A controller supplied by the caller can need a first step.
            "dt0": first_spacing(ts) if "stepsize_controller" in options else None,
            "saveat": diffrax.SaveAt(ts=ts),
            "stepsize_controller": row_by_row.step_control(method, (rtol, atol * scale)),
        }
        return diffrax.diffeqsolve(diffrax.ODETerm(rates), method, **(arguments | options))

    def tolerances(self, y0: Float[Array, "... state"]) -> Tolerances:
        rtol, atol = with_defaults(self.rtol, self.atol)
        return by_state("rtol", rtol, y0), by_state("atol", atol, y0)

    @property
    def interpolation(self) -> Interpolations:
        """The interpolation of inputs between rows, for all or for each."""
        return "linear" if self.inputs == AUTO else self.inputs

    def may_march_together(self, platform: str) -> bool:
        """Whether marches on this platform (`cpu`, `gpu`) can solve all steps at once."""
        return self.march == "parallel" or (self.march == AUTO and platform == "gpu")

    def marches_together(self, field: VectorField, trajectories: int, states: int) -> bool:
        """Whether a march over this many trajectories solves all steps at once, on the device of the `scope`."""
        # The time of a trigger is only known once its step has been solved.
        if has_stops(field) or not self.may_march_together(default_device().platform):
            return False
        few = states <= MAX_PARALLEL_STATES and trajectories * (1 + states) <= MAX_PARALLEL_DERIVATIVES
        return self.march == "parallel" or few

    @property
    def is_exponential(self) -> bool:
        return self.method == EXPONENTIAL

    @property
    def takes_given_steps(self) -> bool:
        """Whether training sets the solver's steps; a custom Diffrax solver takes even steps itself."""
        return self.stepping != "adaptive" and isinstance(self.method, str)

    @property
    def held_adjoint(self) -> Adjoint:
        """How gradients pass through held steps."""
        return "direct" if self.adjoint == "direct" else "checkpointed"

    @property
    def error_order(self) -> int:
        """The order of the error estimate, for methods that have one."""
        return error_order(self._name)

    def _adaptive(self, dtype: DTypeLike) -> AdaptiveMethod:
        """Returns the adaptive method for row-by-row steps: the explicit method, or Rosenbrock steps."""
        if self.method in EXPLICIT:
            return row_by_row.explicit_method(self._name)
        return row_by_row.rosenbrock_method(float(jnp.finfo(dtype).eps))

    def _solve_through(self, problem: InitialValueProblem, *, backward: bool = False) -> Solution:
        """Solves all trajectories row by row; `backward` as in `advance`."""
        if problem.ts.shape[1] == 1:  # A single row has no intervals.
            return Solution(problem.y0[:, None], jnp.isfinite(problem.y0).all(axis=1))
        intervals = between_rows(problem, self.interpolation)
        ys, front = self.advance(problem, intervals, self.begin(problem, intervals), backward=backward)
        return Solution(jnp.concatenate([problem.y0[:, None], ys], axis=1), front.sound)

    @property
    def _name(self) -> str:
        assert isinstance(self.method, str)
        return self.method

    def _march_rows(self, problem: InitialValueProblem, grid: Grid) -> RowMarch:
        intervals = between_rows(problem, self.interpolation)
        if self.is_exponential:
            return march_exponential(problem, intervals)
        tolerances, together = self.tolerances(problem.y0), self.marches_together(problem.field, *problem.y0.shape)
        return march_rows(self._name, problem, intervals, grid.shape[1] - 1, tolerances, together=together)

    def _march(self, problem: InitialValueProblem, grid: Grid, adjoint: Adjoint | None = None) -> March:
        def derivative(t: Array, y: Array) -> Array:
            u = jax.vmap(interpolate, in_axes=(0, 0, 0, None))(t, problem.ts, problem.us, self.interpolation)
            return jax.vmap(problem.field)(jnp.add(problem.origin, t), y, u)

        together, guess = self.marches_together(problem.field, *problem.y0.shape), None
        if together and problem.guess is not None:
            at_nodes = jax.vmap(jax.vmap(jnp.interp, in_axes=(None, None, 1), out_axes=1))
            guess = at_nodes(grid, jnp.asarray(problem.ts), problem.guess)
        bound, adjoint = problem.bound, adjoint or self.held_adjoint
        return march(self._name, derivative, grid, problem.y0, bound, adjoint, together=together, guess=guess)

    def _diffeqsolve(
        self, driven: Driven, ts: AnyArray, y0: Array, first: Array | float = 0.0, *, adjoint: Adjoint
    ) -> row_by_row.StepPath:
        even = mean_spacing(ts) if self.stepping == "even" else None
        times, tolerances = (ts[0], ts[-1], ts), self.tolerances(y0)
        method, through = as_diffrax(self.method), ADJOINTS[adjoint]()
        return row_by_row.solve(method, driven, y0, times, tolerances, self.max_steps, through, first=first, even=even)


def as_solver(given: object, name: str = "solver") -> Solver:
    """Converts the name of a method or a `diffrax.AbstractSolver` to a `Solver`.

    **Raises:** `ValueError` for any other object or an unknown name.
    """
    if isinstance(given, Solver):
        return given
    if is_method(given):
        return Solver(given)
    if not isinstance(given, str):
        raise ValueError(f"{name} must be a node_fit.Solver or a diffrax.AbstractSolver, got {given!r:.60}.")
    check_choice(name, given, METHODS)
    return Solver(given)
