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


class Driven(eqx.Module):
    """The field with its inputs, as Diffrax calls it.

    It is a module and no closure, since an adjoint that solves backwards differentiates only what is a leaf.

    - `us`: inputs at `ts`, with an axis for trajectories if the state has one.
    """

    field: VectorField
    ts: Float[Array, " time"]
    us: Float[Array, "time ..."]
    inputs: str = eqx.field(static=True)

    def __call__(self, t, y, args):
        u = interpolate(t, self.ts, self.us, self.inputs)
        field = self.field if y.ndim == 1 else jax.vmap(self.field, in_axes=(None, 0, 0))
        return field(t, y, u)


class Solver(eqx.Module):
    """A Runge-Kutta method with adaptive steps, and how gradients pass through it.

    **Arguments:**

    - `method`: `tsit5` (the default), `dopri5`, `dopri8`, `bosh3`, `heun`; for stiff fields `kvaerno5`, `kvaerno3`.
      `implicit_euler`, and `euler`, whose steps are fixed to the mean spacing of the measured times.
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
            by_time = jnp.swapaxes(us, 0, 1)
            ys, ok = self._diffeqsolve(Driven(field, ts[0], by_time, self.inputs), ts[0], y0, saved[0])
            return Solution(jnp.swapaxes(ys, 0, 1), jnp.broadcast_to(ok, y0.shape[:1]))

        def one(ts, y0, us, saved):
            return self._diffeqsolve(Driven(field, ts, us, self.inputs), ts, y0, saved)

        return Solution(*jax.vmap(one)(ts, y0, us, saved))

    def _diffeqsolve(self, derivative, ts, y0, saved):
        method = METHODS[self.method]()
        end = jnp.maximum(ts[-1], saved[-1])
        if isinstance(method, diffrax.Euler):
            controller = diffrax.ConstantStepSize()
        else:
            controller = diffrax.PIDController(rtol=self.rtol, atol=self.atol)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(derivative),
            method,
            t0=ts[0],
            t1=end,
            # The spacing of the data is a better first guess than a probe of the field, and costs no compile time.
            dt0=mean_spacing(ts),
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


def mean_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The mean step of a time grid, without the repeated times that pad it; 1 if there is no step."""
    gaps = (jnp.diff(ts) > 0).sum().astype(ts.dtype)
    return jnp.where(gaps > 0, (ts[-1] - ts[0]) / jnp.maximum(gaps, 1), 1)
