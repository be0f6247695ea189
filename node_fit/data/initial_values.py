"""Trajectories of which only the first row is known, from plain arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..runtime.arguments import nearest
from .dataset import Dataset


def from_initial_values(y0: Any, ts: Any, u: Any, states: Sequence[str], inputs: Sequence[str], time: str) -> Dataset:
    """Trajectories of which the first row, the times and the inputs are known.

    **Arguments:**

    - `y0`: states at the first time, shape `(state,)` or `(trajectory, state)`; or by name, numbers or arrays of shape
      `(trajectory,)`; a number if there is one state.
    - `ts`: times, shape `(time,)` or `(trajectory, time)`.
    - `u`: inputs at `ts`, shape `(time, input)` or `(trajectory, time, input)`; or by name, each a number or without
      the last axis; `(time,)` if there is one input. None if there are none.
    - `states`, `inputs`, `time`: names.

    **Raises:** `ValueError` that says what is missing.
    """
    if y0 is None or ts is None:
        raise ValueError("predict needs data, or y0 and ts: the channels at the first time, and the times.")
    if inputs and u is None:
        raise ValueError(f"the model has the inputs {list(inputs)}; give u, with a row for each of ts.")
    starts, times = np.atleast_2d(stacked(y0, "y0", states)), np.atleast_2d(np.asarray(ts, float))
    if starts.shape[1] != len(states):
        several = f"; for {starts.size} trajectories pass shape ({starts.size}, 1)" if len(states) == 1 else ""
        noun = "number" if len(states) == 1 else "numbers"
        raise ValueError(f"y0 must have {len(states)} {noun} ({', '.join(states)}), got {starts.shape[1]}{several}.")
    times = np.broadcast_to(times, (len(starts), times.shape[1]))
    ys = np.full((*times.shape, len(states)), np.nan)
    ys[:, 0] = starts
    if u is not None:
        shape = times.shape[1:] if np.ndim(ts) == 1 else times.shape
        u = stacked(u, "u", inputs, shape)
        u = u[:, None] if u.shape == times.shape[1:] and len(inputs) == 1 else u
        u = np.broadcast_to(u, (len(starts), *u.shape)) if u.ndim == 2 else u
    return Dataset.from_arrays(list(times), ys, u, states=states, inputs=inputs or None, time=time)


def is_single(y0: Any) -> bool:
    """Whether these are the first states of a single trajectory, without an axis of trajectories."""
    return all(np.ndim(value) == 0 for value in y0.values()) if isinstance(y0, Mapping) else np.ndim(y0) < 2


def stacked(given: Any, what: str, names: Sequence[str], shape: tuple[int, ...] = ()) -> np.ndarray:
    """An array whose last axis is that of the names, from one or from values by name, of which a number stands for all.

    **Arguments:** `shape`: that values have at the least.

    **Raises:** `ValueError` if a name is missing or unknown.
    """
    if not isinstance(given, Mapping):
        return np.asarray(given, float)
    if not names:
        raise ValueError(
            f"{what} has {', '.join(map(str, given)) or 'no names'}, and the model has no inputs; leave it out."
        )
    for name in given:
        if name not in names:
            raise ValueError(f"{what} has {name!r}; its names are {', '.join(names)}{nearest(str(name), names)}")
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"{what} lacks {missing[0]!r}; give a value for each of {', '.join(names)}.")
    values = [np.asarray(given[name], float) for name in names]
    return np.stack(
        [np.broadcast_to(value, np.broadcast_shapes(shape, *map(np.shape, values))) for value in values], -1
    )
