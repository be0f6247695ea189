"""Conversion of arrays of different lengths to one padded array."""

from typing import Any

import numpy as np


def as_series(arrays: Any, rank: int, name: str) -> list[np.ndarray]:
    """A list of float64 arrays of the given rank, from one array, a stacked array, or a list."""
    if isinstance(arrays, (list, tuple)) and arrays and np.ndim(arrays[0]) == rank:
        series = [np.asarray(a, dtype=np.float64) for a in arrays]
    else:
        whole = np.asarray(arrays, dtype=np.float64)
        if whole.ndim == rank:
            series = [whole]
        elif whole.ndim == rank + 1:
            series = list(whole)
        else:
            raise ValueError(f"{name} must have {rank} or {rank + 1} dimensions, got shape {whole.shape}.")
    if not series or any(len(a) == 0 for a in series):
        raise ValueError(f"{name} holds no rows; every trajectory needs at least one.")
    return series


def check_shapes(ts: list[np.ndarray], ys: list[np.ndarray], us: list[np.ndarray]) -> None:
    if not len(ts) == len(ys) == len(us):
        raise ValueError(
            f"ts, ys and us must hold the same number of trajectories, got {len(ts)}, {len(ys)}, {len(us)}."
        )
    for index, (t, y, u) in enumerate(zip(ts, ys, us, strict=True)):
        if not len(t) == len(y) == len(u):
            raise ValueError(
                f"trajectory {index}: ts {t.shape}, ys {y.shape} and us {u.shape} must have one row per time."
            )
        if y.shape[1] != ys[0].shape[1] or u.shape[1] != us[0].shape[1]:
            raise ValueError(f"trajectory {index}: ys {y.shape} and us {u.shape} differ in columns from trajectory 0.")


def padded(series: list[np.ndarray], length: int, fill: float | None) -> np.ndarray:
    """Pads arrays to a common length with `fill`, or with copies of their last rows if it is `None`."""
    whole = np.empty((len(series), length, *series[0].shape[1:]))
    for row, array in zip(whole, series, strict=True):
        row[: len(array)] = array
        row[len(array) :] = array[-1] if fill is None else fill
    return whole


def deviations(sigma: Any, ys: np.ndarray) -> np.ndarray:
    """Standard deviations in the shape of the padded states `ys`, from a number, one a state, or the form of `ys`."""
    if isinstance(sigma, list | tuple) and sigma and np.ndim(sigma[0]) == 2:
        return padded([np.asarray(each, np.float64) for each in sigma], ys.shape[1], 1.0)
    given = np.asarray(sigma, np.float64)
    try:
        return np.broadcast_to(given, ys.shape)
    except ValueError:
        raise ValueError(
            f"sigma has shape {given.shape}; pass a number, {ys.shape[2]} numbers, or the shape of ys, {ys.shape}."
        ) from None
