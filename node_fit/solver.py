"""How a trajectory is solved for: the settings, and the only call of `diffrax.diffeqsolve`."""

import difflib
from collections.abc import Callable
from typing import Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .interpolation import INTERPOLATIONS, Interpolation, interpolate

METHODS: dict[str, Callable[[], diffrax.AbstractSolver]] = {
    "euler": diffrax.Euler,
    "heun": diffrax.Heun,
    "bosh3": diffrax.Bosh3,
    "tsit5": diffrax.Tsit5,
    "dopri5": diffrax.Dopri5,
    "dopri8": diffrax.Dopri8,
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
VectorField = Callable[[Float[Array, ""], Float[Array, " state"], Float[Array, " input"]], Float[Array, " state"]]


class Solution(eqx.Module):
    """Solved trajectories.

    - `ys`: states at the asked times, shape `(trajectory, time, state)`; not finite from where a solve failed.
    - `ok`: whether each trajectory was solved to its end, shape `(trajectory,)`.
    """

    ys: Float[Array, "trajectory time state"]
    ok: Bool[Array, " trajectory"]


class Solver(eqx.Module):
    """A Runge-Kutta method with adaptive steps, and how gradients pass through it.

    **Arguments:**

    - `method`: `tsit5` (the default), `dopri5`, `dopri8`, `bosh3`, `heun`; for stiff fields `kvaerno5`, `kvaerno3`.
      `euler` and `implicit_euler` take the measured times as their steps.
    - `rtol`, `atol`: relative and absolute tolerance of a step, in states of order one.
    - `max_steps`: steps after which a solve counts as failed.
    - `adjoint`: `checkpointed` (exact, memory logarithmic in the steps), `direct` (exact, may be differentiated
      again), `backsolve` (approximate, constant memory) or `forward` (forward mode only).
    - `inputs`: inputs between measurements: `linear`, or `hold` for the last value.

    **Raises:** `ValueError` if a name is unknown or a number is not positive.
    """

    method: str = eqx.field(static=True)
    rtol: float | Float[Array, ""]
    atol: float | Float[Array, ""]
    max_steps: int = eqx.field(static=True)
    adjoint: str = eqx.field(static=True)
    inputs: str = eqx.field(static=True)

    def __init__(
        self,
        method: str = "tsit5",
        *,
        rtol: float = 1e-5,
        atol: float = 1e-7,
        max_steps: int = 4096,
        adjoint: Adjoint = "checkpointed",
        inputs: Interpolation = "linear",
    ):
        for key, name, known in (
            ("method", method, METHODS),
            ("adjoint", adjoint, ADJOINTS),
            ("inputs", inputs, INTERPOLATIONS),
        ):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"{key} must be one of {', '.join(known)}, got {name!r}{hint}")
        for key, number in (("rtol", rtol), ("atol", atol), ("max_steps", max_steps)):
            if not number > 0:
                raise ValueError(f"{key} must be positive, got {number}.")
        self.method = method
        self.rtol = rtol
        self.atol = atol
        self.max_steps = max_steps
        self.adjoint = adjoint
        self.inputs = inputs

    def solve(
        self,
        field: VectorField,
        ts: Float[Array, "trajectory time"],
        y0: Float[Array, "trajectory state"],
        us: Float[Array, "trajectory time input"],
        *,
        joint: bool,
        saved: Float[Array, "trajectory saved"] | None = None,
    ) -> Solution:
        """Solves all trajectories.

        **Arguments:**

        - `field`: called with `(t, y, u)` of one trajectory.
        - `ts`: times of the inputs, shape `(trajectory, time)`; the first is where the trajectory starts.
        - `y0`: states at the first time, shape `(trajectory, state)`.
        - `us`: inputs at `ts`, shape `(trajectory, time, input)`.
        - `joint`: solve all trajectories as one equation with common steps. They must share their times. It halves
          the cost of a gradient; a trajectory's error then depends a little on its neighbours.
        - `saved`: increasing times at which the states are wanted, shape `(trajectory, saved)`; `ts` if absent.
        """
        saved = ts if saved is None else saved
        if joint:
            return self._solve_jointly(field, ts[0], y0, us, saved[0])
        return jax.vmap(lambda *one: self._solve_one(field, *one))(ts, y0, us, saved)

    def _solve_jointly(self, field, ts, y0, us, saved) -> Solution:
        by_time = jnp.swapaxes(us, 0, 1)
        parallel = jax.vmap(field, in_axes=(None, 0, 0))
        ys, ok = self._diffeqsolve(
            lambda t, y, _: parallel(t, y, interpolate(t, ts, by_time, self.inputs)), ts, y0, saved
        )
        return Solution(jnp.swapaxes(ys, 0, 1), jnp.broadcast_to(ok, y0.shape[:1]))

    def _solve_one(self, field, ts, y0, us, saved) -> Solution:
        ys, ok = self._diffeqsolve(lambda t, y, _: field(t, y, interpolate(t, ts, us, self.inputs)), ts, y0, saved)
        return Solution(ys, ok)

    def _diffeqsolve(self, derivative, ts, y0, saved):
        method = METHODS[self.method]()
        end = jnp.maximum(ts[-1], saved[-1])
        span = end - ts[0]
        if isinstance(method, diffrax.Euler | diffrax.ImplicitEuler):
            controller = diffrax.ConstantStepSize()
        else:
            controller = diffrax.PIDController(rtol=self.rtol, atol=self.atol)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(derivative),
            method,
            t0=ts[0],
            t1=end,
            # The spacing of the data is a better first guess than a probe of the field, and costs no compile time.
            dt0=jnp.where(span > 0, span / ts.shape[0], 1),
            y0=y0,
            saveat=diffrax.SaveAt(ts=saved),
            stepsize_controller=controller,
            adjoint=ADJOINTS[self.adjoint](),
            max_steps=self.max_steps,
            throw=False,
        )
        ys = solution.ys
        assert ys is not None
        return ys, (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(ys).all()
