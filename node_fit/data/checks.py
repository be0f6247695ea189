"""The rules of a `Dataset`, and sentences for what breaks them."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np


def check_names(data: Any) -> None:
    for kind, names, size in (
        ("states", data.states, data.ys.shape[2]),
        ("inputs", data.inputs, data.us.shape[2]),
        ("trajectories", data.trajectories, data.ys.shape[0]),
    ):
        if len(names) != size:
            raise ValueError(f"{kind} has the names {list(names)}, but needs {size}, one for each.")
    channels = (data.time, *data.states, *data.inputs)
    twice = sorted({name for name in channels if channels.count(name) > 1})
    if twice:
        raise ValueError(f"the name {twice[0]!r} is used twice among the time, states and inputs; rename one.")
    check_known("angles", data.angles, data.states)


def check_known(key: str, names: Iterable[str], known: Sequence[str], what: str = "a state") -> None:
    """Refuses a name that is not among the known ones.

    **Arguments:** `key`: which names it; `what`: what it should name.

    **Raises:** `ValueError` that suggests the nearest name.
    """
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}."
            raise ValueError(f"{key} names {name!r}, which is not {what}; {hint}")


def invalid_trajectories(data: Any) -> list[int]:
    """Indices of trajectories that break a rule of `Dataset`."""
    valid = data.valid
    both = valid[:, 1:] & ~(np.diff(data.ts, axis=1) > 0)
    off = valid & ~(np.isfinite(data.ts) & np.isfinite(data.us).all(axis=2) & ~np.isinf(data.ys).any(axis=2))
    return np.flatnonzero(off.any(axis=1) | both.any(axis=1)).tolist()


def check_trajectory(data: Any, row: int, name: str) -> None:
    length = data.lengths[row]
    t, u = data.ts[row, :length], data.us[row, :length]
    if not np.isfinite(t).all():
        raise ValueError(
            f"{data.time} must be finite; trajectory {name!r} lacks it at row {first_true(~np.isfinite(t))}."
        )
    steps = np.diff(t)
    if (steps <= 0).any():
        at = first_true(steps <= 0) + 1
        fault = "repeats" if t[at] == t[at - 1] else f"goes back from {t[at - 1]:g} to"
        raise ValueError(
            f"{data.time} must increase strictly; trajectory {name!r} {fault} {t[at]:g} at row {at}. "
            "Sort the rows, and remove or average the duplicates."
        )
    if not np.isfinite(u).all():
        at, channel = np.argwhere(~np.isfinite(u))[0]
        raise ValueError(
            f"inputs must be known at every time; trajectory {name!r} lacks {data.inputs[channel]!r} at row {at}. "
            "Fill it, or remove the row."
        )
    if np.isinf(data.ys[row, :length]).any():
        at, channel = np.argwhere(np.isinf(data.ys[row, :length]))[0]
        raise ValueError(
            f"state {data.states[channel]!r} of trajectory {name!r} is infinite at row {at}; leave it empty if unknown."
        )


def check_sigma(data: Any) -> None:
    """Refuses standard deviations that are not positive numbers where something was measured."""
    if data.sigma is None:
        return
    if data.sigma.shape != data.ys.shape:
        raise ValueError(f"sigma has shape {data.sigma.shape}, but the states have {data.ys.shape}.")
    wrong = np.argwhere(np.isfinite(data.ys) & ~(np.isfinite(data.sigma) & (data.sigma > 0)))
    if len(wrong):
        row, at, channel = wrong[0]
        raise ValueError(
            f"sigma must be positive where a state was measured; that of {data.states[channel]!r} in trajectory "
            f"{data.trajectories[row]!r} is {data.sigma[row, at, channel]:g} at row {at}."
        )


def check_events(data: Any) -> None:
    if data.events is not None and not data.events.factor.shape[:2] == data.events.shift.shape[:2] == data.ts.shape:
        raise ValueError(f"events have the shape {data.events.factor.shape}, but the times have {data.ts.shape}.")


def first_true(flags: np.ndarray) -> int:
    return int(np.flatnonzero(flags)[0])
