"""Trajectories of which only the first row is known, from plain arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .dataset import Dataset


def from_initial_values(y0: Any, ts: Any, u: Any, states: Sequence[str], inputs: Sequence[str], time: str) -> Dataset:
    """Trajectories of which the first row, the times and the inputs are known.

    **Arguments:**

    - `y0`: states at the first time, shape `(state,)` or `(trajectory, state)`.
    - `ts`: times, shape `(time,)` or `(trajectory, time)`.
    - `u`: inputs at `ts`, shape `(time, input)` or `(trajectory, time, input)`; None if there are none.
    - `states`, `inputs`, `time`: names.

    **Raises:** `ValueError` that says what is missing.
    """
    if y0 is None or ts is None:
        raise ValueError("predict needs data, or y0 and ts: the channels at the first time, and the times.")
    if inputs and u is None:
        raise ValueError(f"the model has the inputs {list(inputs)}; give u, with a row for each of ts.")
    starts, times = np.atleast_2d(np.asarray(y0, float)), np.atleast_2d(np.asarray(ts, float))
    if starts.shape[1] != len(states):
        raise ValueError(f"y0 must have {len(states)} numbers ({', '.join(states)}), got {starts.shape[1]}.")
    times = np.broadcast_to(times, (len(starts), times.shape[1]))
    ys = np.full((*times.shape, len(states)), np.nan)
    ys[:, 0] = starts
    if u is not None:
        u = np.asarray(u, float)
        u = np.broadcast_to(u, (len(starts), *u.shape)) if u.ndim == 2 else u
    return Dataset.from_arrays(list(times), ys, u, states=states, inputs=inputs or None, time=time)
