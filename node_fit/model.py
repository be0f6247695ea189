"""The fitted thing: a vector field with all that turns it into measured trajectories in the user's units."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .batch import Batch, in_slices
from .dataset import Dataset
from .fields import Constants, VectorField
from .grid import Grid
from .observations import AbstractObservation, MeasuredStates
from .precision import carry, dtype_of, precision_of, scope
from .scaling import Scaler
from .solver import Adjoint, Solution, Solver
from .starts import AbstractStart

BEYOND = 1e4


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Trajectories in the user's units, with the `lower` and `upper` edges of bands if there are some."""

    ys: Float[np.ndarray, "trajectory saved state"]
    lower: Float[np.ndarray, "trajectory saved state"] | None
    upper: Float[np.ndarray, "trajectory saved state"] | None


class NeuralODE(eqx.Module):
    """A system `dz/dt = field(t, z, u)`, `channels = observation(z)`, whose trajectories begin by a rule.

    Inside, everything is of order one; `predict` speaks the user's units.

    **Arguments:**

    - `field`: called with `(t, z, u)`.
    - `start`: the rule for the first states.
    - `observation`: what is measured of the states.
    - `scaler`: of the measured channels, inputs and time, from the user's units to the field's.
    - `solver`: how predictions are solved; tight, since a loose solve spoils the score of a good fit.
    - `states`, `inputs`, `time`: names of the channels that the model was fitted to, and of the time.
    - `latent`: names of the states that are solved for: the measured ones and the hidden ones, or those of a readout.
    - `units`: pairs of a channel's name and its unit.
    """

    field: VectorField
    start: AbstractStart
    observation: AbstractObservation
    scaler: Scaler
    solver: Solver
    states: tuple[str, ...] = eqx.field(static=True)
    latent: tuple[str, ...] = eqx.field(static=True)
    inputs: tuple[str, ...] = eqx.field(static=True)
    time: str = eqx.field(static=True)
    units: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @property
    def is_measured(self) -> bool:
        """Whether every state is measured itself."""
        return isinstance(self.observation, MeasuredStates) and self.latent == self.states

    def solve(
        self, batch: Batch, solver: Solver, start: Float[Array, "trajectory state"], grid: Grid | None = None
    ) -> Solution:
        """All states in scaled units, hidden ones included, at a batch's times, over steps that may be given."""
        if grid is None:
            return solver.solve(self.field, batch.ts, start, batch.us, batch.origin, joint=batch.joint)
        return solver.follow(self.field, batch.ts, start, batch.us, batch.origin, grid, bound_of(batch, start))

    def step_errors(
        self, batch: Batch, solver: Solver, start: Float[Array, "trajectory state"], grid: Grid
    ) -> Float[Array, "trajectory step"]:
        """The estimated error of each step over its tolerance; see `Solver.step_errors`."""
        return solver.step_errors(self.field, batch.ts, start, batch.us, batch.origin, grid, bound_of(batch, start))

    def observe(self, states: Float[Array, "trajectory time state"]) -> Float[Array, "trajectory time channel"]:
        """What is measured of the states, in scaled units."""
        return jax.vmap(jax.vmap(self.observation))(states)

    def simulate(
        self,
        batch: Batch,
        start: Float[Array, "trajectory state"],
        saved: Float[Array, "trajectory saved"] | None = None,
        *,
        joint: bool,
        adjoint: Adjoint | None = None,
    ) -> Solution:
        """Channels in scaled units from starts and a batch's inputs, at its times or at `saved`, solved tightly."""
        given = (batch.ts, start, batch.us, batch.origin)
        solution = self.solver.solve(self.field, *given, joint=joint, saved=saved, adjoint=adjoint)
        return Solution(self.observe(solution.ys), solution.ok)

    def forecast(self, batch: Batch, saved: Float[Array, "trajectory saved"] | None = None, *, joint: bool) -> Solution:
        """Any trajectories, from starts that are estimated from what is given of them."""

        def channels(start: Float[Array, "trajectory state"], given: Batch) -> Float[Array, "trajectory time channel"]:
            return self.simulate(given, start, joint=False, adjoint="forward").ys

        return self.simulate(batch, self.start.estimate(channels, batch), saved, joint=joint)

    def predict(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None
    ) -> Float[np.ndarray, "trajectory saved state"]:
        """Simulated trajectories in the user's units, each on its own, from what `data` give of their starts.

        **Arguments:**

        - `data`: measurements from which the trajectories start, and their inputs; channels as in the fit.
        - `ts`: increasing times at which the channels are wanted, shape `(trajectory, saved)`; `data.ts` if absent.

        **Returns:** channels, shape `(trajectory, saved, state)`, float64; not finite from where a solve failed.

        **Raises:** `ValueError` if the channels are not those of the fit, or a value is not within its bounds.
        """
        self.check_channels(data)
        precision = precision_of(self)
        with scope(precision):
            ys = in_slices(lambda *asked: forecast(self, *carry(asked, dtype_of(precision))), *self.asked(data, ts))
        return self.scaler.unscale_states(ys)

    def bands(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None, level: float = 0.9
    ) -> Prediction:
        """`predict`, as of an `Ensemble`; a single model has no bands."""
        return Prediction(self.predict(data, ts), None, None)

    def asked(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None) -> tuple[Batch, np.ndarray]:
        """Trajectories that are solved each on its own, and the times at which they are wanted, on the host."""
        batch = Batch.from_dataset(data, self.scaler)
        saved = self.scaler.scale_times(data.ts if ts is None else ts) - batch.origin[:, None]
        return dataclasses.replace(batch, joint=False), saved

    @property
    def typical(self) -> "NeuralODE":
        """Itself; as of an `Ensemble`."""
        return self

    def constants(self) -> dict[str, float]:
        """The constants of known equations by their names, in the user's units."""
        found = jax.tree.leaves(self.field, is_leaf=lambda part: isinstance(part, Constants))
        named = [part.as_dict() for part in found if isinstance(part, Constants)]
        return {name: value for each in named for name, value in each.items()}

    def check_channels(self, data: Dataset) -> None:
        """Refuses data whose channels are not those of the fit, or not within their bounds."""
        for kind in ("states", "inputs"):
            fitted, given = getattr(self, kind), getattr(data, kind)
            if fitted != given:
                raise ValueError(f"the model was fitted to the {kind} {list(fitted)}, but the data have {list(given)}.")
        self.scaler.check(data)

    def derivative(self, ys: Float[np.ndarray, "point state"]) -> Float[np.ndarray, "point state"]:
        """The vector field at states in the user's units, with time and inputs at their first and mean values.

        It is there for models all of whose states are measured (`is_measured`).

        **Returns:** time derivatives in the user's units, shape `(point, state)`.
        """
        precision = precision_of(self)
        with scope(precision):
            zs = carry(self.scaler.scale_states(ys), dtype_of(precision))
            rates = np.asarray(jax.device_get(field_at(self, zs)), dtype=np.float64)
        return self.scaler.unscale_rates(ys, rates)


def bound_of(batch: Batch, start: Float[Array, "trajectory state"]) -> Float[Array, " state"]:
    """Far beyond everything measured, so that a state there has run away."""
    largest = jnp.abs(batch.ys).max() + jnp.abs(jax.lax.stop_gradient(start)).max()
    return jnp.full(start.shape[1], BEYOND * (1 + largest))


@eqx.filter_jit
def forecast(model: NeuralODE, batch: Batch, saved: Float[Array, "trajectory saved"]) -> Array:
    return model.forecast(batch, saved, joint=False).ys


@eqx.filter_jit
def field_at(model: NeuralODE, zs: Float[Array, "point state"]) -> Float[Array, "point state"]:
    t = zs[0, 0] * 0
    u = jnp.zeros((len(model.inputs),), zs.dtype)
    return jax.vmap(lambda z: model.field(t, z, u))(zs)
