"""The change of units that brings states, inputs and time to order one, and back."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from .dataset import Dataset

Host = Float[np.ndarray, "..."]


class Scaler(eqx.Module):
    """An affine map of states, inputs and time to order one; chosen channels pass through the logarithm first.

    **Arguments:**

    - `state_shift`, `state_scale`: shape `(state,)`, in the user's units (of the logarithm where `log`).
    - `input_shift`, `input_scale`: shape `(input,)`, in the user's units.
    - `time_shift`, `time_scale`: scalars, in the user's unit of time.
    - `log`: for each state, whether it is positive and scaled by its logarithm.
    """

    state_shift: Float[Any, " state"]
    state_scale: Float[Any, " state"]
    input_shift: Float[Any, " input"]
    input_scale: Float[Any, " input"]
    time_shift: Float[Any, ""]
    time_scale: Float[Any, ""]
    log: tuple[bool, ...] = eqx.field(static=True)

    @staticmethod
    def from_dataset(data: Dataset, *, log: Sequence[str] = (), identity: bool = False) -> "Scaler":
        """The scaler that brings `data` to mean 0 and standard deviation 1, with a derivative of order one.

        **Arguments:**

        - `data`: the training trajectories; no other split is looked at.
        - `log`: names of the states that are positive and better seen on a logarithmic scale.
        - `identity`: whether to leave all units as they are.

        **Raises:** `ValueError` if a name in `log` is unknown, or such a state has a value that is not positive.
        """
        flags = log_flags(data, log)
        scaler = Scaler(
            state_shift=np.zeros(len(data.states)),
            state_scale=np.ones(len(data.states)),
            input_shift=np.zeros(len(data.inputs)),
            input_scale=np.ones(len(data.inputs)),
            time_shift=np.zeros(()),
            time_scale=np.ones(()),
            log=flags,
        )
        if identity:
            return scaler
        states = np.where(data.mask, scaler.scale_states(data.ys), np.nan)
        inputs = data.us[data.valid]
        shift, scale = mean_and_deviation(states.reshape(-1, len(data.states)))
        input_shift, input_scale = mean_and_deviation(inputs)
        return Scaler(
            state_shift=shift,
            state_scale=scale,
            input_shift=input_shift,
            input_scale=input_scale,
            time_shift=np.asarray(data.ts.min()),
            time_scale=np.asarray(characteristic_time(data.ts, (states - shift) / scale)),
            log=flags,
        )

    def scale_states(self, ys: Host) -> Host:
        """States from the user's units to order one, on the host in float64; `(..., state)` to the same shape."""
        with np.errstate(invalid="ignore", divide="ignore"):
            logged = np.where(self.log, np.log(np.where(self.log, ys, 1.0)), ys)
        return (logged - host(self.state_shift)) / host(self.state_scale)

    def unscale_states(self, zs: Host) -> Host:
        """States from order one to the user's units, on the host in float64; `(..., state)` to the same shape."""
        with np.errstate(invalid="ignore", over="ignore"):
            logged = zs.astype(np.float64) * host(self.state_scale) + host(self.state_shift)
            return np.where(self.log, np.exp(np.where(self.log, logged, 0.0)), logged)

    def scale_inputs(self, us: Host) -> Host:
        """Inputs from the user's units to order one; `(..., input)` to the same shape."""
        return (us - host(self.input_shift)) / host(self.input_scale)

    def scale_times(self, ts: Host) -> Host:
        """Times from the user's units to order one, counted from the first training time."""
        return (ts - host(self.time_shift)) / host(self.time_scale)


def host(array: Array | np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.float64)


def log_flags(data: Dataset, log: Sequence[str]) -> tuple[bool, ...]:
    for name in log:
        if name not in data.states:
            raise ValueError(f"log names {name!r}, which is no state; the states are {', '.join(data.states)}.")
        values = data.ys[..., data.states.index(name)]
        if (values[np.isfinite(values)] <= 0).any():
            raise ValueError(
                f"state {name!r} has values that are not positive, so it has no logarithm; take it out of log."
            )
    return tuple(name in log for name in data.states)


def mean_and_deviation(rows: Host) -> tuple[Host, Host]:
    """Mean and standard deviation of each column over its finite values; 0 and 1 where nothing varies."""
    known = np.isfinite(rows)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, rows, 0.0).sum(axis=0) / count
    deviation = np.sqrt(np.where(known, rows - mean, 0.0).__pow__(2).sum(axis=0) / count)
    negligible = deviation <= 1e-12 * np.abs(mean)
    return mean, np.where(negligible, 1.0, deviation)


def characteristic_time(ts: Host, zs: Host) -> float:
    """The lag at which scaled states have moved by one standard deviation (root mean square over channels).

    In this unit the derivative is of order one. An increment over a lag, unlike a finite difference, is not
    magnified by measurement noise.

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`.
    - `zs`: states of mean 0 and deviation 1, shape `(trajectory, time, state)`, NaN where unknown.
    """
    span = float((ts.max(axis=1) - ts.min(axis=1)).max()) or 1.0
    lags, moved = [0.0], [0.0]
    for rows in np.unique(np.geomspace(1, max(ts.shape[1] - 1, 1), 40).astype(int)):
        lag = ts[:, rows:] - ts[:, :-rows]
        step = zs[:, rows:] - zs[:, :-rows]
        known = np.isfinite(step) & (lag > 0)[..., None]
        if not known.any():
            continue
        lags.append(float(lag[known.any(axis=-1)].mean()))
        moved.append(float(np.sqrt((step[known] ** 2).mean())))
        if moved[-1] >= 1.0:
            return float(np.interp(1.0, moved[-2:], lags[-2:]))
    return span
