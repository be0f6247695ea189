"""Makes a dataset of rows: measurements of one time are merged, rows sorted into trajectories."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from ..dataset import Dataset
from ..dates import Dates, Stamps, count_time, read_times, unit_for, zone_name
from .layout import Roles
from .table import INPUT_FIX, UNKNOWN_FIX, RawTable, as_numbers_of_column, read_names

if TYPE_CHECKING:
    import pandas

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
            f"{describe_place(tables, int(there[row]), table)}; remove one, or average them."
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
            f"{describe_place(tables, int(there[row]), table)}; it must be constant in trajectory "
            f"{trajectories[codes[row]]!r}"
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


def describe_place(tables: Sequence[RawTable], index: int, reader: RawTable) -> str:
    """Describes the location of a row of the concatenated tables, in a message about table `reader`."""
    table, row = place(tables, index)
    return table.row(row) + ("" if table is reader else f" of {table.origin}")


def assemble_dataset(
    tables: Sequence[RawTable],
    own_names: Sequence[str],
    roles: Roles,
    time_unit: str | None,
    units: dict[str, str],
    day_first: bool | None = None,
) -> Dataset:
    """Assembles all tables into one dataset; each table is one trajectory unless a column identifies trajectories.

    **Arguments:** `own_names`: a name for each table, used if there is no such column; `time_unit`: of timestamps,
    chosen by their spacing if None; `day_first`: as of `read_table`.

    **Raises:** `ValueError` at the first invalid value, with its table, row and column.
    """
    codes, trajectories = number_trajectories(tables, own_names, roles)
    t, dates = clock(tables, codes, roles, time_unit, day_first)
    tidy = roles.observable is not None
    y = np.concatenate([block(table, roles.states, UNKNOWN_FIX, may_miss=True) for table in tables])
    u = np.concatenate([block(table, roles.inputs, INPUT_FIX, may_miss=tidy) for table in tables])
    c = np.concatenate([block(table, roles.covariates, UNKNOWN_FIX, may_miss=True) for table in tables])
    for i, name in enumerate(roles.covariates):
        c[:, i] = fill_constant(tables, name, c[:, i], codes, trajectories)
    if tidy:
        times = same_times(t, codes)
        y, u = merge_states(tables, y, times, roles), merge_inputs(tables, u, times, roles)
        t, c, codes = t[times.first], c[times.first], codes[times.first]
    order = np.argsort(codes, kind="stable")
    if not tidy:
        check_order(tables, t, order, codes, trajectories, roles)
    rows = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    inputs = (*roles.inputs, *roles.covariates)
    u = np.concatenate([u, c], axis=1)
    known = {name: unit for name, unit in units.items() if name in (roles.clock, *roles.states, *inputs)}
    data = Dataset.from_arrays(
        [t[row] for row in rows],
        [y[row] for row in rows],
        [u[row] for row in rows],
        states=roles.states,
        inputs=inputs,
        trajectories=trajectories,
        time=roles.clock,
        units=known | ({} if dates is None else {roles.clock: dates.unit}),
    )
    return replace(data, dates=dates)


def clock(
    tables: Sequence[RawTable],
    codes: Int[np.ndarray, " row"],
    roles: Roles,
    unit: str | None,
    day_first: bool | None,
) -> tuple[Float[np.ndarray, " row"], Dates | None]:
    """The time of each row, and the dates of the trajectories if they come from timestamps."""
    import pandas as pd

    if roles.step is not None:
        return roles.step * pd.Series(codes).groupby(codes).cumcount().to_numpy(dtype=np.float64), None
    times = [read_times(table, roles.clock, unit, day_first) for table in tables]
    stamps = [each for each in times if isinstance(each, Stamps)]
    numbers = [each for each in times if not isinstance(each, Stamps)]
    if stamps and numbers:
        other = next(table for table, each in zip(tables, times, strict=True) if isinstance(each, Stamps))
        raise ValueError(
            f"{other.origin}, column {roles.clock!r} holds timestamps, but other files hold numbers; write all times "
            "in one way."
        )
    if not stamps:
        return np.concatenate(numbers), None
    unit = unit or unit_for(spacing(stamps, codes))
    firsts = first_instants(stamps, tables, roles)
    zeros = np.concatenate(
        [np.full(len(each.instants), utc(first)) for each, first in zip(stamps, firsts, strict=True)]
    )
    zero = zeros[np.unique(codes, return_index=True)[1]]
    times = [count_time(each, first, unit) for each, first in zip(stamps, firsts, strict=True)]
    return np.concatenate(times), Dates(zero, unit, zone_name(stamps[0].zone))


def utc(instant: "pandas.Timestamp") -> np.datetime64:
    return np.datetime64(instant.tz_convert(None), "us")


def spacing(stamps: Sequence[Stamps], codes: Int[np.ndarray, " row"]) -> float:
    """The median time between two rows of a trajectory [s]; 1 if there is none."""
    begins = [cast("pandas.Timestamp", each.instants[0]) for each in stamps]
    seconds = np.concatenate(
        [
            cast("pandas.TimedeltaIndex", each.instants - begin).total_seconds().to_numpy()
            + (begin - begins[0]).total_seconds()
            for each, begin in zip(stamps, begins, strict=True)
        ]
    )
    order = np.lexsort((seconds, codes))
    steps = np.diff(seconds[order])[np.diff(codes[order]) == 0]
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0


def first_instants(stamps: Sequence[Stamps], tables: Sequence[RawTable], roles: Roles) -> "list[pandas.Timestamp]":
    """The instant that each table counts from: its first, or that of all tables if they may share trajectories."""
    firsts = [each.first for each in stamps]
    if roles.trajectory is None:
        return firsts
    for table, each in zip(tables, stamps, strict=True):
        if each.zone != stamps[0].zone:
            raise ValueError(
                f"{table.at(0, roles.clock)}: the time zone is {each.zone}, but in {tables[0].origin} it is "
                f"{stamps[0].zone}; write all times in one zone, such as UTC."
            )
    return [min(firsts)] * len(stamps)


def block(table: RawTable, channels: Sequence[str], fix: str, *, may_miss: bool) -> Float[np.ndarray, "row channel"]:
    columns = [as_numbers_of_column(table, name, fix, may_miss=may_miss) for name in channels]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))


def number_trajectories(
    tables: Sequence[RawTable], own_names: Sequence[str], roles: Roles
) -> tuple[Int[np.ndarray, " row"], list[str]]:
    """The index of each row's trajectory, and the trajectory names in order of appearance."""
    import pandas as pd

    if roles.trajectory is None:
        several = len(tables) > 1
        labels = [own_labels(table, name, several) for table, name in zip(tables, own_names, strict=True)]
    else:
        labels = [read_names(table, roles.trajectory, "trajectory") for table in tables]
    codes, found = pd.factorize(np.concatenate(labels))
    return codes, [str(each) for each in found]


def own_labels(table: RawTable, name: str, several: bool) -> np.ndarray:
    """The trajectory of each row if no column names it: the table, or one of those in its layout."""
    if table.own is None:
        return np.full(len(table), name, dtype=object)
    return f"{name}/" + table.own if several else table.own


def check_order(
    tables: Sequence[RawTable],
    t: Float[np.ndarray, " row"],
    order: Int[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    trajectories: Sequence[str],
    roles: Roles,
) -> None:
    """Rejects times that repeat or decrease within a trajectory, at the earliest line."""
    before, after = order[:-1], order[1:]
    wrong: Bool[np.ndarray, " pair"] = (codes[before] == codes[after]) & (t[after] <= t[before])
    if not wrong.any():
        return
    pair = np.flatnonzero(wrong)[after[wrong].argmin()]
    last, this = int(before[pair]), int(after[pair])
    table, row = place(tables, this)
    last_table, last_row = place(tables, last)
    there = describe_place(tables, last, table)
    # As written, since a timestamp says more than the number that it became.
    now, then = table.columns[roles.clock].iloc[row], last_table.columns[roles.clock].iloc[last_row]
    fault = f"repeats, {now} as in {there}" if t[this] == t[last] else f"goes back, {now} after {then} in {there}"
    several = " If these are several trajectories, name the column that identifies them: trajectory=NAME."
    raise ValueError(
        f"{table.at(row, roles.clock)}: the time {fault}; times must increase strictly within trajectory "
        f"{trajectories[codes[this]]!r}, so sort the rows and remove or average repeats."
        + ("" if roles.trajectory or table.own is not None else several)
    )
