"""A dataset as the objectives see it: arrays of order one, in the run's precision."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from .dataset import Dataset
from .scaling import Scaler


class Batch(eqx.Module):
    """Trajectories in scaled units: NumPy arrays on the host, JAX arrays once they are placed.

    - `ts`, `ys`, `us`: times since `origin`, measured channels and inputs, shapes `(trajectory, time)`,
      `(trajectory, time, channel)` and `(trajectory, time, input)`; what was not measured is 0.
    - `origin`: time of each trajectory's first row, shape `(trajectory,)`. Late in a long record, the times themselves
      would be too coarse in float32 for the steps between them.
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
    origin: Float[Any, " trajectory"]
    joint: bool = eqx.field(static=True)

    @property
    def times(self) -> Float[Any, "trajectory time"]:
        """Times as the field sees them."""
        return self.origin[:, None] + self.ts

    @staticmethod
    def from_dataset(data: Dataset, scaler: Scaler) -> "Batch":
        """Scales a dataset, on the host in float64."""
        known = np.isfinite(data.ys)
        times = scaler.scale_times(data.ts)
        return Batch(
            ts=times - times[:, :1],
            origin=times[:, 0],
            ys=np.where(known, scaler.scale_states(data.ys), 0.0),
            us=scaler.scale_inputs(data.us),
            mask=data.mask,
            known=known,
            first=np.nan_to_num(scaler.scale_states(data.first), nan=0.0),
            index=np.arange(len(data.trajectories), dtype=np.int32),
            joint=data.shares_grid,
        )


# Rows that are solved for at once, at the most: what that takes of memory does not grow with the data.
SLICE = 1 << 19


def in_slices(
    solve: Callable[[Batch, Float[Any, "trajectory saved"]], Any],
    batch: Batch,
    saved: Float[np.ndarray, "trajectory saved"],
    axis: int = 0,
) -> np.ndarray:
    """What `solve` gives for a batch and times, some trajectories after others.

    **Arguments:** `axis`: of the trajectories in what comes out.
    """
    count = len(saved)
    size = min(count, max(SLICE // saved.shape[1], 1))
    # The last slice repeats a trajectory where it must, since one of another length would be compiled anew.
    slices = [np.minimum(np.arange(begin, begin + size), count - 1) for begin in range(0, count, size)]
    parts = [np.asarray(solve(jax.tree.map(lambda x, at=at: x[at], batch), saved[at])) for at in slices]
    return np.take(np.concatenate(parts, axis), np.arange(count), axis) if len(parts) > 1 else parts[0]
