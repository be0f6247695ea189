"""How a trajectory is solved for: the settings, and the only call of `diffrax.diffeqsolve`."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from . import grid as grids
from .fields import VectorField
from .grid import EXPLICIT, Grid, March
from .interpolation import INTERPOLATIONS, Interpolation, interpolate

METHODS: dict[str, Callable[[], diffrax.AbstractSolver]] = {
    **EXPLICIT,
    "implicit_euler": diffrax.ImplicitEuler,
    "kvaerno3": diffrax.Kvaerno3,
    "kvaerno5": diffrax.Kvaerno5,
}
ADJOINTS: dict[str, Callable[[], diffrax.AbstractAdjoint]] = {
    "checkpointed": diffrax.RecursiveCheckpointAdjoint,
    "direct": diffrax.DirectAdjoint,
    "backsolve": diffrax.BacksolveAdjoint,
    "forward": diffrax.ForwardMode,
}
Adjoint = Literal["checkpointed", "direct", "backsolve", "forward"]
Steps = Literal["held", "adaptive", "even"]
STEPS = ("held", "adaptive", "even")


class Solution(eqx.Module):
    """Solved trajectories.

    - `ys`: states at the asked times, shape `(trajectory, time, state)`; not finite from where a solve failed.
    - `ok`: whether each trajectory was solved to its end, shape `(trajectory,)`.
    """

    ys: Float[Array, "trajectory time state"]
    ok: Bool[Array, " trajectory"]


class Driven(eqx.Module):
    """The field with its inputs, as Diffrax calls it.

    It is a module and no closure, since an adjoint that solves backwards differentiates only what is a leaf.

    - `us`: inputs at `ts`, with an axis for trajectories if the state has one.
    - `origin`: the field's time where `ts` is 0.
    """

    field: VectorField
    ts: Float[Array, " time"]
    us: Float[Array, "time ..."]
    origin: Float[Array, ""]
    inputs: str = eqx.field(static=True)

    def __call__(self, t, y, args):
        u = interpolate(t, self.ts, self.us, self.inputs)
        field = self.field if y.ndim == 1 else jax.vmap(self.field, in_axes=(None, 0, 0))
        return field(self.origin + t, y, u)


class Solver(eqx.Module):
    """A Runge-Kutta method, its steps, and how gradients pass through it.

    **Arguments:**

    - `method`: `tsit5` (the default), `dopri5`, `dopri8`, `bosh3`, `heun`; for stiff fields `kvaerno5`, `kvaerno3`.
      `implicit_euler`, and `euler`, which has no estimate of its error.
    - `rtol`, `atol`: relative and absolute tolerance of a step, in states of order one; a number, or one for each
      state, hidden ones included.
    - `steps`: in training. `held` (the default of explicit methods): steps that keep to the tolerances and stay the
      same from one chunk's end to the next, so that the loss is smooth, as line searches need it. `adaptive` (that of
      implicit ones): chosen anew in every solve. `even` (that of `euler`, which estimates no error): of the mean
      spacing of the measured times, whatever the error; cheap for records sampled finely and evenly.
    - `max_steps`: steps after which a solve counts as failed.
    - `adjoint`: of adaptive steps: `checkpointed` (exact, memory logarithmic in the steps), `direct` (exact, may be
      differentiated again), `backsolve` (approximate, constant memory) or `forward` (forward mode only).
    - `inputs`: inputs between measurements: `linear`, `cubic`, or `hold` for the last value.

    **Raises:** `ValueError` if a name is unknown or a number is not positive.
    """

    method: str = eqx.field(static=True)
    rtol: Any
    atol: Any
    steps: Steps = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    adjoint: Adjoint = eqx.field(static=True)
    inputs: str = eqx.field(static=True)

    def __init__(
        self,
        method: str = "tsit5",
        *,
        rtol: float | Sequence[float] = 1e-5,
        atol: float | Sequence[float] = 1e-7,
        steps: Steps | None = None,
        max_steps: int = 4096,
        adjoint: Adjoint = "checkpointed",
        inputs: Interpolation = "linear",
    ):
        natural = "even" if method == "euler" else "held" if method in EXPLICIT else "adaptive"
        steps = natural if steps is None else steps
        for key, name, known in (
            ("method", method, METHODS),
            ("steps", steps, STEPS),
            ("adjoint", adjoint, ADJOINTS),
            ("inputs", inputs, INTERPOLATIONS),
        ):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"{key} must be one of {', '.join(known)}, got {name!r}{hint}")
        for key, given in (("rtol", rtol), ("atol", atol), ("max_steps", max_steps)):
            numbers = given if isinstance(given, Sequence) else [given]
            if not all(number > 0 for number in numbers):
                raise ValueError(f"{key} must be positive, got {given}.")
        if method not in EXPLICIT and steps != "adaptive":
            raise ValueError(f"steps={steps} needs an explicit method, and {method} is none; use steps=adaptive.")
        if method == "euler" and steps != "even":
            raise ValueError(f"euler has no estimate of its error, as steps={steps} needs it; use steps=even, or heun.")
        self.method = method
        self.rtol = tuple(rtol) if isinstance(rtol, Sequence) else rtol
        self.atol = tuple(atol) if isinstance(atol, Sequence) else atol
        self.steps = steps
        self.max_steps = max_steps
        self.adjoint = adjoint
        self.inputs = inputs

    def solve(
        self,
        field: VectorField,
        ts: Float[Array, "trajectory time"],
        y0: Float[Array, "trajectory state"],
        us: Float[Array, "trajectory time input"],
        origin: Float[Array, " trajectory"],
        *,
        joint: bool,
        saved: Float[Array, "trajectory saved"] | None = None,
        adjoint: Adjoint | None = None,
    ) -> Solution:
        """Solves all trajectories.

        **Arguments:**

        - `field`: called with `(t, y, u)` of one trajectory.
        - `ts`: times of the inputs since `origin`, shape `(trajectory, time)`; a trajectory starts at its first.
        - `y0`: states at the first time, shape `(trajectory, state)`.
        - `us`: inputs at `ts`, shape `(trajectory, time, input)`.
        - `origin`: the field's time where `ts` is 0, shape `(trajectory,)`.
        - `joint`: solve all trajectories as one equation with common steps. They must share their times. It halves
          the cost of a gradient; a trajectory's error then depends a little on its neighbours.
        - `saved`: increasing times at which the states are wanted, shape `(trajectory, saved)`; `ts` if absent.
        - `adjoint`: in the place of the solver's own.
        """
        saved = ts if saved is None else saved
        adjoint = adjoint or self.adjoint
        if joint:
            by_time = jnp.swapaxes(us, 0, 1)
            driven = Driven(field, ts[0], by_time, origin[0], self.inputs)
            ys, ok = self._diffeqsolve(driven, ts[0], y0, saved[0], adjoint)
            return Solution(jnp.swapaxes(ys, 0, 1), jnp.broadcast_to(ok, y0.shape[:1]))

        def one(ts, y0, us, origin, saved):
            return self._diffeqsolve(Driven(field, ts, us, origin, self.inputs), ts, y0, saved, adjoint)

        return Solution(*jax.vmap(one)(ts, y0, us, origin, saved))

    def follow(
        self,
        field: VectorField,
        ts: Float[Array, "trajectory time"],
        y0: Float[Array, "trajectory state"],
        us: Float[Array, "trajectory time input"],
        origin: Float[Array, " trajectory"],
        grid: Grid,
        bound: Float[Array, " state"],
    ) -> Solution:
        """Solves all trajectories over steps that are given.

        **Arguments:**

        - `field`, `ts`, `y0`, `us`, `origin`: as of `solve`; the states are wanted at `ts`.
        - `grid`: nodes of the steps, shape `(trajectory, node)`.
        - `bound`: of each state, shape `(state,)`; a trajectory that goes beyond it counts as failed.
        """
        steps = self._march(field, ts, y0, us, origin, grid, bound)
        ys = grids.interpolate(self.method, grid, steps, ts)
        ys = jnp.where(jnp.abs(ys) <= bound[None, None], ys, jnp.inf)
        return Solution(ys, jnp.isfinite(ys).all(axis=(1, 2)))

    def step_errors(
        self,
        field: VectorField,
        ts: Float[Array, "trajectory time"],
        y0: Float[Array, "trajectory state"],
        us: Float[Array, "trajectory time input"],
        origin: Float[Array, " trajectory"],
        grid: Grid,
        bound: Float[Array, " state"],
    ) -> Float[Array, "trajectory step"]:
        """The estimated error of each step over its tolerance; arguments as of `follow`."""
        steps = self._march(field, ts, y0, us, origin, grid, bound)
        return grids.step_errors(self.method, steps, *self.tolerances(y0))

    def tolerances(self, y0: Float[Array, "... state"]) -> tuple[Any, Any]:
        return by_state("rtol", self.rtol, y0), by_state("atol", self.atol, y0)

    @property
    def error_order(self) -> int:
        """The power of a step with which its estimated error falls; of methods that have an estimate."""
        method: Any = METHODS[self.method]()
        return int(method.error_order(None))

    def _march(self, field, ts, y0, us, origin, grid, bound) -> March:
        def derivative(t, y):
            u = jax.vmap(interpolate, in_axes=(0, 0, 0, None))(t, ts, us, self.inputs)
            return jax.vmap(field)(origin + t, y, u)

        return grids.march(self.method, derivative, grid, y0, bound)

    def _diffeqsolve(self, derivative, ts, y0, saved, adjoint):
        method = METHODS[self.method]()
        fixed = self.steps == "even"
        if fixed:
            controller = diffrax.ConstantStepSize()
        else:
            rtol, atol = self.tolerances(y0)
            # A stiff field makes a controller that looks at the last error alone reject every other step.
            stiff = isinstance(method, diffrax.AbstractImplicitSolver)
            p, i = (0.3, 0.4) if stiff else (0.0, 1.0)
            controller = diffrax.PIDController(rtol=rtol, atol=atol, pcoeff=p, icoeff=i)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(derivative),
            method,
            t0=ts[0],
            t1=saved[-1],
            # The spacing of the data is a better first guess than a probe of the field, and costs no compile time.
            dt0=mean_spacing(ts) if fixed else first_spacing(ts),
            y0=y0,
            saveat=diffrax.SaveAt(ts=saved),
            stepsize_controller=controller,
            adjoint=ADJOINTS[adjoint](),
            max_steps=self.max_steps,
            throw=False,
        )
        ys = solution.ys
        assert ys is not None
        return ys, (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(ys).all()


def by_state(key: str, tolerance: Any, y0: Float[Array, "... state"]) -> Any:
    """A tolerance as Diffrax takes it: a scalar, or an array that goes with the states."""
    if not isinstance(tolerance, tuple):
        return tolerance
    states = y0.shape[-1]
    if len(tolerance) != states:
        raise ValueError(f"{key} has {len(tolerance)} numbers; it needs one, or one for each of the {states} states.")
    return jnp.stack([jnp.asarray(number, y0.dtype) for number in tolerance]).reshape((1,) * (y0.ndim - 1) + (-1,))


def first_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The first step of a time grid; 1 if there is none."""
    gap = ts[1] - ts[0] if ts.shape[0] > 1 else jnp.zeros((), ts.dtype)
    return jnp.where(gap > 0, gap, 1)


def mean_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The mean step of a time grid, without the repeated times that pad it; 1 if there is no step."""
    gaps = (jnp.diff(ts) > 0).sum().astype(ts.dtype)
    return jnp.where(gaps > 0, (ts[-1] - ts[0]) / jnp.maximum(gaps, 1), 1)
