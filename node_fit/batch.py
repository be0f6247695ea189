"""A dataset as the objectives see it: arrays of order one, in the run's precision."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from .dataset import Dataset
from .scaling import Scaler


class Batch(eqx.Module):
    """Trajectories in scaled units: NumPy arrays on the host, JAX arrays once they are placed.

    - `ts`, `ys`, `us`: times, measured channels and inputs, shapes `(trajectory, time)`, `(trajectory, time, channel)`
      and `(trajectory, time, input)`; what was not measured is 0.
    - `mask`: where a channel was measured and counts, shape of `ys`.
    - `known`: where a channel was measured, whether it counts or not, shape of `ys`.
    - `first`: first measured value of each channel, shape `(trajectory, channel)`; 0 if there is none.
    - `index`: number of each trajectory in its dataset, shape `(trajectory,)`.
    - `joint`: whether the trajectories share their times.
    """

    ts: Float[Any, "trajectory time"]
    ys: Float[Any, "trajectory time channel"]
    us: Float[Any, "trajectory time input"]
    mask: Bool[Any, "trajectory time channel"]
    known: Bool[Any, "trajectory time channel"]
    first: Float[Any, "trajectory channel"]
    index: Int[Any, " trajectory"]
    joint: bool = eqx.field(static=True)

    @staticmethod
    def from_dataset(data: Dataset, scaler: Scaler) -> "Batch":
        """Scales a dataset, on the host in float64."""
        known = np.isfinite(data.ys)
        return Batch(
            ts=scaler.scale_times(data.ts),
            ys=np.where(known, scaler.scale_states(data.ys), 0.0),
            us=scaler.scale_inputs(data.us),
            mask=data.mask,
            known=known,
            first=np.nan_to_num(scaler.scale_states(data.first), nan=0.0),
            index=np.arange(len(data.trajectories), dtype=np.int32),
            joint=data.shares_grid,
        )
