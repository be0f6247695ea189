"""Merges the measurements of one time into one row, and fills in constants of a trajectory."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .roles import Roles
from .table import RawTable
from .values import INPUT_FIX

Rows = Int[np.ndarray, " row"]


class Times(NamedTuple):
    """Groups of rows with the same trajectory and time: each row's `group`, and the `first` row of each group."""

    group: Rows
    first: Int[np.ndarray, " group"]


def same_times(t: Float[np.ndarray, " row"], codes: Rows) -> Times:
    """Groups rows by trajectory, then by time, in increasing order."""
    order = np.lexsort((t, codes))
    begins = np.ones(len(t), dtype=bool)
    begins[1:] = (np.diff(t[order]) != 0) | (np.diff(codes[order]) != 0)
    group = np.empty(len(t), dtype=np.int64)
    group[order] = np.cumsum(begins) - 1
    return Times(group, order[begins])


def first_known(values: Float[np.ndarray, " row"], group: Rows, count: int) -> Int[np.ndarray, " group"]:
    """The first row with a value in each group; -1 if no row has one."""
    known = np.flatnonzero(~np.isnan(values))
    groups, at = np.unique(group[known], return_index=True)
    first = np.full(count, -1)
    first[groups] = known[at]
    return first


def merge_states(
    tables: Sequence[RawTable], y: Float[np.ndarray, "row state"], times: Times, roles: Roles
) -> Float[np.ndarray, "group state"]:
    """Merges the measurements of each time into one row.

    **Raises:** `ValueError` with both lines if a state was measured twice at the same time.
    """
    return np.stack([merge(tables, y[:, i], times, name, roles) for i, name in enumerate(roles.states)], axis=1)


def merge_inputs(
    tables: Sequence[RawTable], u: Float[np.ndarray, "row input"], times: Times, roles: Roles
) -> Float[np.ndarray, "group input"]:
    """Merges the inputs at each time into one row; several rows may repeat the same value.

    **Raises:** `ValueError` if repeated values differ, or an input is missing.
    """
    merged = np.zeros((len(times.first), len(roles.inputs)))
    for i, name in enumerate(roles.inputs):
        merged[:, i] = merge(tables, u[:, i], times, name, roles, may_repeat=True)
        missing = np.isnan(merged[:, i])
        if missing.any():
            table, row = place(tables, int(times.first[missing].min()))
            raise ValueError(f"{table.at(row, roles.clock)}: {name!r} has no value at this time; {INPUT_FIX}")
    return merged


def merge(
    tables: Sequence[RawTable],
    values: Float[np.ndarray, " row"],
    times: Times,
    name: str,
    roles: Roles,
    *,
    may_repeat: bool = False,
) -> Float[np.ndarray, " group"]:
    first = first_known(values, times.group, len(times.first))
    there = first[times.group]
    wrong = ~np.isnan(values) & (there != np.arange(len(values)))
    if may_repeat:
        wrong &= values != values[there]
    if wrong.any():
        row = int(wrong.argmax())
        table, at = place(tables, row)
        column = name if may_repeat else str(roles.value)
        raise ValueError(
            f"{table.at(at, column)}: {name!r} has another value at this time of its trajectory in "
            f"{where(tables, int(there[row]), table)}; remove one, or average them."
        )
    return np.where(first >= 0, values[first], np.nan)


def fill_constant(
    tables: Sequence[RawTable], name: str, values: Float[np.ndarray, " row"], codes: Rows, trajectories: Sequence[str]
) -> Float[np.ndarray, " row"]:
    """Fills the empty cells of a covariate with the value from other rows of the same trajectory.

    **Raises:** `ValueError` if the covariate varies within a trajectory, or has no value in one.
    """
    first = first_known(values, codes, len(trajectories))
    if (first < 0).any():
        code = int((first < 0).argmax())
        table, row = place(tables, int((codes == code).argmax()))
        raise ValueError(
            f"{table.at(row, name)}: the covariate has no value in any row of trajectory {trajectories[code]!r}; give "
            "it in one of them."
        )
    there = first[codes]
    wrong = ~np.isnan(values) & (values != values[there])
    if wrong.any():
        row = int(wrong.argmax())
        table, at = place(tables, row)
        raise ValueError(
            f"{table.at(at, name)}: the covariate is {values[row]:g}, but {values[there[row]]:g} in "
            f"{where(tables, int(there[row]), table)}; it must be constant in trajectory {trajectories[codes[row]]!r}"
            ", so correct it, or name the column in inputs if it varies."
        )
    return values[there]


def place(tables: Sequence[RawTable], index: int) -> tuple[RawTable, int]:
    """The table that holds a row of the concatenated tables, and the index of the row in it."""
    for table in tables:
        if index < len(table):
            return table, index
        index -= len(table)
    raise IndexError(index)


def where(tables: Sequence[RawTable], index: int, reader: RawTable) -> str:
    """Describes the location of a row of the concatenated tables, in a message about table `reader`."""
    table, row = place(tables, index)
    return table.row(row) + ("" if table is reader else f" of {table.origin}")
