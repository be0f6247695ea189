"""The fitted thing: a vector field with the units and the solver that turn it into trajectories."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .batch import Batch
from .dataset import Dataset
from .precision import carry, dtype_of, precision_of, scope
from .scaling import Scaler
from .solver import Solution, Solver, VectorField


class NeuralODE(eqx.Module):
    """A system `dy/dt = field(t, y, u)`, whose trajectories start at their first measurement.

    Inside, everything is of order one; `predict` speaks the user's units.

    **Arguments:**

    - `field`: called with `(t, y, u)`.
    - `scaler`: from the user's units to the field's.
    - `solver`: how predictions are solved; tight, since a loose solve spoils the score of a good fit.
    - `states`, `inputs`, `time`: names of the channels that the model was fitted to, and of the time.
    - `units`: pairs of a channel's name and its unit.
    """

    field: VectorField
    scaler: Scaler
    solver: Solver
    states: tuple[str, ...] = eqx.field(static=True)
    inputs: tuple[str, ...] = eqx.field(static=True)
    time: str = eqx.field(static=True)
    units: tuple[tuple[str, str], ...] = eqx.field(static=True)

    def simulate(
        self, batch: Batch, solver: Solver, saved: Float[Array, "trajectory saved"] | None = None, *, joint: bool
    ) -> Solution:
        """Trajectories in scaled units from a batch's starts and inputs, at its times or at `saved`."""
        return solver.solve(self.field, batch.ts, batch.start, batch.us, joint=joint, saved=saved)

    def predict(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None
    ) -> Float[np.ndarray, "trajectory saved state"]:
        """Simulated trajectories in the user's units, each on its own, from the first measurements in `data`.

        **Arguments:**

        - `data`: where the trajectories start, and their inputs; channels as in the fit.
        - `ts`: increasing times at which the states are wanted, shape `(trajectory, saved)`; `data.ts` if absent.

        **Returns:** states, shape `(trajectory, saved, state)`, float64; not finite from where a solve failed.

        **Raises:** `ValueError` if the channels are not those of the fit.
        """
        self.check_channels(data)
        precision = precision_of(self)
        with scope(precision):
            saved = self.scaler.scale_times(data.ts if ts is None else ts)
            batch, saved = carry((Batch.from_dataset(data, self.scaler), saved), dtype_of(precision))
            ys = jax.device_get(simulate(self, dataclasses.replace(batch, joint=False), saved))
        return self.scaler.unscale_states(ys)

    def check_channels(self, data: Dataset) -> None:
        """Refuses data whose channels are not those of the fit."""
        for kind in ("states", "inputs"):
            fitted, given = getattr(self, kind), getattr(data, kind)
            if fitted != given:
                raise ValueError(f"the model was fitted to the {kind} {list(fitted)}, but the data have {list(given)}.")

    def derivative(self, ys: Float[np.ndarray, "point state"]) -> Float[np.ndarray, "point state"]:
        """The vector field at states in the user's units, with time and inputs at their first and mean values.

        **Returns:** time derivatives in the user's units, shape `(point, state)`.
        """
        precision = precision_of(self)
        with scope(precision):
            zs = carry(self.scaler.scale_states(ys), dtype_of(precision))
            rates = np.asarray(jax.device_get(field_at(self, zs)), dtype=np.float64)
        rates = rates * np.asarray(self.scaler.state_scale) / np.asarray(self.scaler.time_scale)
        return np.where(self.scaler.log, ys * rates, rates)


@eqx.filter_jit
def simulate(model: NeuralODE, batch: Batch, saved: Float[Array, "trajectory saved"]) -> Array:
    return model.simulate(batch, model.solver, saved, joint=False).ys


@eqx.filter_jit
def field_at(model: NeuralODE, zs: Float[Array, "point state"]) -> Float[Array, "point state"]:
    t = zs[0, 0] * 0
    u = jax.numpy.zeros((len(model.inputs),), zs.dtype)
    return jax.vmap(lambda z: model.field(t, z, u))(zs)
