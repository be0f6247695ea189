"""Conversion of arrays of different lengths to one padded array, and of padded arrays to a data frame."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# The column of a data frame that names the trajectory.
TRAJECTORY = "trajectory"


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


def with_column(arrays: Any, ts: Any) -> Any:
    """Adds the axis of a single column to arrays that lack it; returns others unchanged.

    They are one array `(time,)`, or one for each trajectory, with the shapes of the grids in `ts`.
    """
    rank = rank_of(arrays)
    if rank == 1:
        return np.asarray(arrays, np.float64)[:, None]
    if rank == 2 and rank_of(ts) == 2 and [np.shape(each) for each in arrays] == [np.shape(t) for t in ts]:
        return [np.asarray(each, np.float64)[:, None] for each in arrays]
    return arrays


def rank_of(arrays: Any) -> int:
    """The number of axes of an array, or of a list of arrays that may differ in length."""
    if isinstance(arrays, list | tuple):
        return 1 + (np.ndim(arrays[0]) if arrays else 0)
    return np.ndim(arrays)


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


def as_frame(data: Any, ts: np.ndarray, columns: Mapping[str, np.ndarray], at: np.ndarray) -> Any:
    """A `pandas.DataFrame` with a row for each time of each trajectory; times are timestamps if the data have dates.

    **Arguments:**

    - `data`: the dataset that names the trajectories and the time.
    - `ts`, `columns`: times, and columns by their names, of shape `(trajectory, time)`.
    - `at`: the rows to take, of that shape too.

    **Raises:** `ValueError` if two columns have the same name.
    """
    import pandas as pd

    for name in (*columns, data.time):
        if name == TRAJECTORY or (name == data.time and name in columns):
            raise ValueError(f"a data frame can't have two columns {name!r}; rename that of the data.")
    times = ts[at] if data.dates is None else data.dates.stamps(np.nonzero(at)[0], ts[at])
    first = {TRAJECTORY: np.repeat(np.array(data.trajectories), at.sum(axis=1)), data.time: times}
    return pd.DataFrame(first | {name: column[at] for name, column in columns.items()})


def columns_of(names: Sequence[str], values: np.ndarray, end: str = "") -> dict[str, np.ndarray]:
    """The columns of an array by their names, each followed by `end`."""
    return {f"{name}{end}": values[..., column] for column, name in enumerate(names)}
