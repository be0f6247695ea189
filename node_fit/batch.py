"""A dataset as the objectives see it: arrays of order one, in the run's precision."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float

from .dataset import Dataset
from .scaling import Scaler


class Batch(eqx.Module):
    """Trajectories in scaled units: NumPy arrays on the host, JAX arrays once they are placed.

    - `ts`, `ys`, `us`: times, states and inputs, shapes `(trajectory, time)`, `(trajectory, time, state)` and
      `(trajectory, time, input)`; a state that was not measured is 0.
    - `mask`: where a state was measured and counts, shape of `ys`.
    - `start`: states at the first time, shape `(trajectory, state)`.
    - `joint`: whether the trajectories share their times.
    """

    ts: Float[Any, "trajectory time"]
    ys: Float[Any, "trajectory time state"]
    us: Float[Any, "trajectory time input"]
    mask: Bool[Any, "trajectory time state"]
    start: Float[Any, "trajectory state"]
    joint: bool = eqx.field(static=True)

    @staticmethod
    def from_dataset(data: Dataset, scaler: Scaler) -> "Batch":
        """Scales a dataset, on the host in float64. A state that a trajectory never shows starts at the mean."""
        return Batch(
            ts=scaler.scale_times(data.ts),
            ys=np.where(data.mask, scaler.scale_states(data.ys), 0.0),
            us=scaler.scale_inputs(data.us),
            mask=data.mask,
            start=np.nan_to_num(scaler.scale_states(data.first), nan=0.0),
            joint=data.shares_grid,
        )
