"""Angles, which are measured modulo a turn and go on without jumps along a record."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

# A turn in each unit.
TURNS = {"rad": 2 * math.pi, "deg": 360.0}
# The turn of each column that is an angle, None of others; empty if none is.
Turns = tuple[float | None, ...]


def near(angles: Any, to: Any, turn: Any) -> Any:
    """The same angles in the turn nearest to others: `to - near(angles, to)` is in `[-turn / 2, turn / 2)`."""
    xp = np if isinstance(angles, np.ndarray) and isinstance(to, np.ndarray) else jnp
    return angles + turn * xp.floor((to - angles) / turn + 0.5)


def near_columns(values: Any, to: Any, turns: Turns, scale: Any = None) -> Any:
    """`near` for the columns that are angles; the others stay as they are.

    **Arguments:**

    - `values`, `to`: shape `(..., column)`, NumPy or JAX arrays.
    - `turns`: of each column. `scale`: of each column, shape `(column,)`, by which its values are divided.
    """
    if not any(turns):
        return values
    on_host = isinstance(values, np.ndarray) and isinstance(to, np.ndarray)
    xp = np if on_host else jnp
    shape = (1,) * (values.ndim - 1) + (-1,)
    turn = xp.asarray([turn or 1.0 for turn in turns], values.dtype).reshape(shape)
    turn = turn if scale is None else turn / xp.asarray(scale, values.dtype).reshape(shape)
    return xp.where(np.array([bool(turn) for turn in turns]).reshape(shape), near(values, to, turn), values)


def unwrap(ys: Float[np.ndarray, "trajectory time state"], turns: Turns) -> Float[np.ndarray, "trajectory time state"]:
    """Angles without jumps: the first one within half a turn of zero, each other within half a turn of the one before.

    Values that are missing (NaN) stay so, and the next one follows the last that is known.
    """
    ys = ys.copy()
    for index, turn in enumerate(turns):
        if not turn:
            continue
        column = ys[..., index]
        known = np.isfinite(column)
        last = np.maximum.accumulate(np.where(known, np.arange(column.shape[1]), -1), axis=1)
        before = np.concatenate([np.full((len(column), 1), -1), last[:, :-1]], axis=1)
        previous = np.where(before >= 0, np.take_along_axis(column, np.maximum(before, 0), axis=1), 0.0)
        jumps = np.where(known, np.floor((column - previous) / turn + 0.5), 0.0)
        ys[..., index] = column - turn * np.cumsum(jumps, axis=1)
    return ys


def rebase_to_end(
    ys: Float[np.ndarray, "trajectory row state"], turns: Turns
) -> Float[np.ndarray, "trajectory row state"]:
    """Unwrapped angles, moved by whole turns so that the last known one is within half a turn of zero."""
    ys = ys.copy()
    for index, turn in enumerate(turns):
        if turn:
            column = ys[..., index]
            known = np.isfinite(column)
            row = column.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
            last = np.nan_to_num(np.take_along_axis(column, row[:, None], axis=1))
            ys[..., index] = column - turn * np.floor(last / turn + 0.5)
    return ys


def gather_turns(values: Float[np.ndarray, " value"], turn: float | None) -> Float[np.ndarray, " value"]:
    """Known values; angles within half a turn of their mean direction, so that mean and deviation say something."""
    if not turn or not values.size:
        return values
    phases = values * (2 * np.pi / turn)
    mean = np.arctan2(np.sin(phases).mean(), np.cos(phases).mean()) * turn / (2 * np.pi)
    return near(values, np.full_like(values, mean), turn)


def turns_of(names: Sequence[str], angles: dict[str, float]) -> Turns:
    """The turns of columns with these names; empty if none is an angle."""
    return tuple(angles.get(name) for name in names) if set(names) & set(angles) else ()
