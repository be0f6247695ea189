"""Guesses what the columns of a table are: by their names, as people call times and records, and by how they move."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .layout import Roles
from .reading import read_file
from .table import UNKNOWN_FIX, as_numbers_of_column, list_names, read_names

# What people call the times, the records of a table, and what was measured in a table of doses.
TIMES = {"t", "time", "times", "date", "datetime", "timestamp", "zeit"}
RECORDS = {
    "id",
    "trajectory",
    "traj",
    "subject",
    "subj",
    "patient",
    "animal",
    "run",
    "record",
    "experiment",
    "replicate",
}
MEASURED = "dv"
# Files up to this size are looked at [bytes]; and the fewest rows that tell how a column moves.
MOST_BYTES_LOOKED_AT, FEWEST_LOOKED_AT = 20_000_000, 30
# An input has so many levels at the most, and moves in less than this share of the rows; or it explains so much of what
# is left of the steps of another column, while all columns leave so much of its own.
MOST_LEVELS, STAYS, EXPLAINS, UNEXPLAINED = 8, 0.5, 0.2, 0.5


class GuessedRoles(NamedTuple):
    """The columns of times and of records, and those that were measured; None where nothing tells them."""

    time: str | None
    trajectory: str | None = None
    states: tuple[str, ...] | None = None


def plain_name(name: str) -> str:
    """A name in small letters, without a unit: `Time [h]`, `time (s)` and `TIME_s` are all `time`."""
    return re.sub(r"[\s_]*[\[(].*$|_(ms|s|sec|min|h|hr|hours|d|days)$", "", name.strip().lower())


def guess_by_names(names: Sequence[str]) -> GuessedRoles:
    """What names tell, in whatever place they are; the time is else the first column that names no records."""
    plain = {name: plain_name(name) for name in names}
    time = next((name for name in names if plain[name] in TIMES), None)
    records = next((name for name in names if plain[name] in RECORDS and name != time), None)
    measured = tuple(name for name in names if plain[name] == MEASURED)
    first = next((name for name in names if name != records), None)
    return GuessedRoles(time or first, records, measured or None)


def is_repeating(path: Path, name: str) -> bool:
    """Whether a column has values more than once, as the names of records have; numbers of rows do not.

    **Raises:** `ValueError` if the file can't be read, or a row names no record.
    """
    (names,) = read_names([read_file(path, Roles(time=None, states=(name,), step=1.0))], name, "trajectory")
    return len(set(names)) < len(names)


def find_likely_inputs(path: Path, time: str, trajectory: str | None, states: Sequence[str]) -> dict[str, str]:
    """The columns that look set from outside, each with why; none if rows are few, or not all are numbers.

    A column of a few levels that it stays at, or one that others follow, and whose own steps nothing explains.
    """
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return {}
    table = read_file(path, Roles(time=time, states=tuple(states), trajectory=trajectory))
    columns = [as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True) for name in states]
    values = np.stack(columns, axis=1)
    known = np.asarray(np.isfinite(values).all(axis=1))
    pairs = known[1:] & known[:-1]
    if trajectory is not None:
        (records,) = read_names([table], trajectory, "trajectory")
        pairs &= records[1:] == records[:-1]
    if pairs.sum() < FEWEST_LOOKED_AT:
        return {}
    found = look_set(values[:-1][pairs], np.diff(values, axis=0)[pairs], states)
    return found if len(found) < len(states) else {}


def look_set(before: np.ndarray, steps: np.ndarray, names: Sequence[str]) -> dict[str, str]:
    """As `find_likely_inputs`, of columns at rows, and their steps to the next rows, both of shape `(row, column)`."""
    found: dict[str, str] = {}
    for at, name in enumerate(names):
        levels, moves = len(np.unique(before[:, at])), float((steps[:, at] != 0).mean())
        if 2 <= levels <= MOST_LEVELS and 0 < moves < STAYS:
            found[name] = f"stays at one of {levels} levels"
        elif moves and unexplained(before, steps[:, at]) > UNEXPLAINED:
            followers = [
                names[other] for other in range(len(names)) if other != at and explains(before, steps, at, other)
            ]
            if followers:
                found[name] = f"is followed by {list_names(followers, 3)}"
    return found


def explains(before: np.ndarray, steps: np.ndarray, at: int, other: int) -> bool:
    """Whether a column explains much of another's steps beside that column itself."""
    alone = unexplained(before[:, [other]], steps[:, other])
    return unexplained(before[:, [other, at]], steps[:, other]) < (1 - EXPLAINS) * alone


def unexplained(table: Float[np.ndarray, "row column"], steps: Float[np.ndarray, " row"]) -> float:
    """The share of the steps' variance that a linear equation of the columns leaves."""
    spread = float(steps.var())
    if spread == 0:
        return 0.0
    design = np.column_stack([table - table.mean(axis=0), np.ones(len(table))])
    left = steps - design @ np.linalg.lstsq(design, steps, rcond=None)[0]
    return float((left**2).mean() / spread)
