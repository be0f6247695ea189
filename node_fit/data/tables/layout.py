"""The layout of a table: which columns mean what, one row per time of any layout, and a dataset of these rows.

Each row keeps the line that it came from.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ...runtime.validation import is_mapping
from ..trajectories import Data
from .table import (
    INPUT_FIX,
    UNKNOWN_FIX,
    RawTable,
    as_numbers_of_column,
    choose_columns,
    hint,
    list_names,
    read_names,
)
from .times import Dates, Stamps, count_time, read_times, spacing, unit_for, utc, with_digit_dates, zone_name

if TYPE_CHECKING:
    import pandas

Rows = Int[np.ndarray, " row"]


@dataclass(frozen=True)
class Roles:
    """The role of each column, in one of three table layouts.

    By default a table has one row per time. With `series` it is wide: one column per trajectory. With `observable` and
    `value` it is tidy: one row per measurement.

    **Arguments:**

    - `time`: the column of times, or `None` if `step` is given.
    - `states`, `inputs`, `covariates`: names of columns. In a tidy table, states, and inputs that are not columns, are
      names in the column `observable`. A wide table has one state, whose name is not a column.
    - `trajectory`: the column that identifies the trajectory, or `None`.
    - `series`: patterns of the columns that are trajectories, such as `A*`.
    - `observable`, `value`: the columns of the observable's name and of its value.
    - `step`: time between two rows of a trajectory that begins at 0, if there is no column of times.

    **Raises:** `ValueError` if there is no state, a column has two roles, or roles contradict each other.
    """

    time: str | None
    states: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    trajectory: str | None = None
    series: tuple[str, ...] = ()
    observable: str | None = None
    value: str | None = None
    step: float | None = None

    def __post_init__(self):
        if not self.states:
            raise ValueError("states is empty; name at least one column to fit, such as states=['x'].")
        self.check_layout()
        single = () if self.trajectory is None else (self.trajectory,)
        for names in ((self.clock, *self.states, *self.inputs, *self.covariates, *single), self.fixed):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"column {twice[0]!r} is named twice among time, states, inputs, covariates and trajectory; "
                    "a column has one role, so remove one of them."
                )

    def check_layout(self) -> None:
        """Rejects roles that contradict each other."""
        if (self.time is None) == (self.step is None):
            fault = "time is missing" if self.time is None else "time and step are both given"
            raise ValueError(
                f"{fault}; name the column of times, time=NAME (data.time in a command), or, if there is none, give "
                "the time between two rows, step=NUMBER (data.step)."
            )
        if self.step is not None and not 0 < self.step < math.inf:
            raise ValueError(f"step must be a positive number, the time between two rows, got {self.step}.")
        if self.series and len(self.states) != 1:
            raise ValueError(
                f"series makes each column a trajectory of one state, but states names {len(self.states)}; give one "
                "name for what all of these columns hold."
            )
        if self.series and (self.trajectory is not None or self.observable is not None):
            raise ValueError(
                "series makes each column a trajectory; leave it out, or leave out trajectory, observable and value."
            )
        if (self.observable is None) != (self.value is None):
            raise ValueError("observable and value go together; name the columns of both.")
        if self.observable is not None and self.time is None:
            raise ValueError("observable needs time: with one row per measurement, each row has its own time.")

    @property
    def clock(self) -> str:
        """The name of the time in the dataset."""
        return "t" if self.time is None else self.time

    @property
    def fixed(self) -> tuple[str, ...]:
        """The columns that every file must have; columns of `series` are matched in each file."""
        tidy = self.observable is not None
        channels = () if self.series or tidy else self.states
        inputs = () if tidy else self.inputs
        single = (self.trajectory, self.observable, self.value)
        names = (self.time, *channels, *inputs, *self.covariates, *single)
        return tuple(name for name in names if name is not None)

    def find(self, names: Sequence[str], origin: str) -> dict[str, int]:
        """The needed columns of a file, each with its position.

        **Raises:** `ValueError` if a column is missing, or appears twice.
        """
        wanted = [*self.fixed, *self.matched(names, origin)]
        if self.observable is not None:
            wanted += [name for name in self.inputs if name in names]
        return dict(zip(wanted, choose_columns(names, wanted, origin), strict=True))

    def named(self, names: Mapping[str, str]) -> "Roles":
        """The same roles of columns that have other names."""

        def every(old: Sequence[str]) -> tuple[str, ...]:
            return tuple(names.get(name, name) for name in old)

        def one(old: str | None) -> str | None:
            return None if old is None else names.get(old, old)

        return replace(
            self,
            time=one(self.time),
            states=every(self.states),
            inputs=every(self.inputs),
            covariates=every(self.covariates),
            trajectory=one(self.trajectory),
            observable=one(self.observable),
            value=one(self.value),
        )

    def matched(self, names: Sequence[str], origin: str) -> list[str]:
        """The columns that `series` matches, in file order."""
        free = [name for name in names if name not in self.fixed]
        found = {pattern: {name for name in free if is_column_names(name, pattern)} for pattern in self.series}
        for pattern, own in found.items():
            if not own:
                raise ValueError(
                    f"{origin} has no column for series {pattern!r}; its other columns are {list_names(free)}."
                    f"{hint(pattern, free)}"
                )
        matched = set[str]().union(*found.values())
        if "" in matched:
            raise ValueError(
                f"{origin}: column {names.index('') + 1} has no name but matches series; name it, or narrow the "
                "pattern."
            )
        return [name for name in dict.fromkeys(free) if name in matched]


def is_column_names(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def as_names(names: Sequence[str | int], role: str) -> tuple[str, ...]:
    """A tuple of names; rejects a bare string, whose letters would be taken for names."""
    if isinstance(names, str):
        raise ValueError(f"{role} must be a list of names, got the text {names!r}; write {role}=[{names!r}].")
    return tuple(str(name) for name in names)


def as_rows(tables: Sequence[RawTable], roles: Roles) -> list[RawTable]:
    """Converts the tables to one column per state and input.

    Rows of a tidy table hold one measurement each; `merging` joins the rows of the same time.
    """
    if roles.series or roles.observable is not None:
        reject_stacks(tables, roles)
    if roles.series:
        return [melt(table, roles) for table in tables]
    if roles.observable is not None:
        return spread_columns(tables, roles, roles.observable, str(roles.value))
    return list(tables)


def reject_stacks(tables: Sequence[RawTable], roles: Roles) -> None:
    """Rejects stacks, whose trajectories a wide or tidy layout would mix up."""
    stack = next((table for table in tables if table.own is not None), None)
    if stack is not None and roles.trajectory is None:
        keys = "series" if roles.series else "observable and value"
        raise ValueError(
            f"{stack.origin} holds stacks, (trajectory, time), which already separate the trajectories; leave out "
            f"{keys}, and name its arrays in states."
        )


def melt(table: RawTable, roles: Roles) -> RawTable:
    """Puts the columns of a wide table below one another.

    A series runs from its first value to its last. If the table's last row is empty in every series, they all run to
    that row: the times after the last value are to be predicted.
    """
    import pandas as pd

    series = [name for name in table.columns if name not in roles.fixed]
    values = np.stack([as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True) for name in series], axis=1)
    known = ~np.isnan(values)
    if not known.any(axis=0).all():
        empty = series[int((~known.any(axis=0)).argmax())]
        raise ValueError(f"{table.origin}, column {empty!r} has no values; fill it, or narrow series to the others.")
    row = np.arange(len(table))
    last = len(table) - 1 - known[::-1].argmax(axis=0) if known[-1].any() else np.full(len(series), len(table) - 1)
    inside = (row >= known.argmax(axis=0)[:, None]) & (row <= last[:, None])
    which, row = np.nonzero(inside)
    shared = {name: table.columns[name].iloc[row].reset_index(drop=True) for name in roles.fixed}
    return table.take(
        row, shared | {roles.states[0]: pd.Series(values[row, which])}, np.array(series, dtype=object)[which]
    )


def spread_columns(tables: Sequence[RawTable], roles: Roles, observable: str, value: str) -> list[RawTable]:
    """Gives each wanted observable of tidy tables a column of its own, and drops the rows of others."""
    observed = read_names(tables, observable, "observable")
    found = list(dict.fromkeys(name for each in observed for name in each))
    columns = set[str]().union(*(table.columns for table in tables))
    wanted = [*roles.states, *(name for name in roles.inputs if name not in columns)]
    for name in wanted:
        if name not in found:
            origin = tables[0].origin if len(tables) == 1 else f"all {len(tables)} files, such as {tables[0].origin}"
            raise ValueError(
                f"{origin}, column {observable!r} never names {name!r}; it names "
                f"{list_names(found)}.{hint(name, found)}"
            )
    return [pick(table, each, wanted, value) for table, each in zip(tables, observed, strict=True)]


def pick(table: RawTable, observed: np.ndarray, wanted: Sequence[str], value: str) -> RawTable:
    """Selects the rows of a tidy table that measure something wanted."""
    import pandas as pd

    kept = np.flatnonzero(np.isin(observed, wanted))
    if kept.size == 0:
        raise ValueError(f"{table.origin} has no row for any of {list_names(wanted)}; leave this file out.")
    rest = {name: column.iloc[kept].reset_index(drop=True) for name, column in table.columns.items()}
    rows = table.take(kept, rest)
    measured = as_numbers_of_column(rows, value, UNKNOWN_FIX, may_miss=True)
    own = {name: pd.Series(np.where(observed[kept] == name, measured, np.nan)) for name in wanted}
    return table.take(kept, rest | own)


# By covariate, then by trajectory; `default` applies to all other trajectories.
CovariateNumbers = Mapping[str, Mapping[str | int, float | int]]
ANY_TRAJECTORY = "default"


def as_numbers(covariates: Sequence[str] | CovariateNumbers) -> dict[str, dict[str, float]]:
    """Covariate numbers by name and trajectory; empty if `covariates` names columns.

    **Raises:** `ValueError` if a value is not a finite number.
    """
    if not isinstance(covariates, Mapping):
        return {}
    for name, numbers in covariates.items():
        check_numbers(name, numbers)
    return {str(name): {str(key): float(value) for key, value in each.items()} for name, each in covariates.items()}


def check_numbers(name: str, numbers: object) -> None:
    """Refuses numbers of a covariate that are not finite, or not by trajectory."""
    if not is_mapping(numbers):
        raise ValueError(
            f"covariates.{name} must map trajectories to numbers, such as {{'A': 1.0, 'default': 0.0}}, "
            f"got {numbers!r}."
        )
    for trajectory, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"covariates.{name}.{trajectory} must be a finite number, got {number!r}.")


def with_covariates(data: Data, constants: dict[str, dict[str, float]], units: Mapping[str, str]) -> Data:
    """Appends these covariates to the inputs of the dataset.

    **Raises:** `ValueError` if a trajectory has no number and there is no `default`.
    """
    if not constants:
        return data
    values = np.array(
        [[find_covariates(of, name, each) for name, of in constants.items()] for each in data.trajectories]
    )
    wide = np.broadcast_to(values[:, None, :], (*data.ts.shape, len(constants)))
    return replace(
        data,
        us=np.concatenate([data.us, wide], axis=2),
        inputs=(*data.inputs, *constants),
        units=data.units | {name: units[name] for name in constants if name in units},
    )


def find_covariates(numbers: dict[str, float], name: str, trajectory: str) -> float:
    if trajectory not in numbers and ANY_TRAJECTORY not in numbers:
        raise ValueError(
            f"covariates.{name} has no number for trajectory {trajectory!r}, only for "
            f"{list_names(list(numbers))}; add it, "
            f"or {ANY_TRAJECTORY!r} for all others."
        )
    return numbers.get(trajectory, numbers.get(ANY_TRAJECTORY, math.nan))


def check_trajectories(constants: dict[str, dict[str, float]], trajectories: Sequence[str]) -> None:
    """Rejects a number for a trajectory that does not exist, and suggests the nearest name."""
    for name, numbers in constants.items():
        for trajectory in numbers:
            if trajectory != ANY_TRAJECTORY and trajectory not in trajectories:
                raise ValueError(
                    f"covariates.{name} names trajectory {trajectory!r}, which does not exist; the trajectories are "
                    f"{list_names(trajectories)}.{hint(trajectory, trajectories)}"
                )


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


def assemble(
    kind: type[Data],
    tables: Sequence[RawTable],
    own_names: Sequence[str],
    roles: Roles,
    time_unit: str | None,
    units: dict[str, str],
    day_first: bool | None = None,
    is_dated: bool = False,
) -> Data:
    """Assembles tables to trajectories of a kind; each table is one unless a column tells trajectories apart.

    **Arguments:** `kind`: such as `Dataset`. `own_names`: a name for each table, used if there is no such column.
    `time_unit`: of timestamps, chosen by their spacing if None. `day_first`: as of `Dataset.from_file`. `is_dated`:
    whether numbers that can be dates, such as 20240131, are known to be.

    **Raises:** `ValueError` at the first invalid value, with its table, row and column.
    """
    codes, trajectories = number_trajectories(tables, own_names, roles)
    t, dates = clock(tables, codes, roles, time_unit, day_first, is_dated)
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
    data = kind.from_arrays(
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
    is_dated: bool,
) -> tuple[Float[np.ndarray, " row"], Dates | None]:
    """The time of each row, and the dates of the trajectories if they come from timestamps."""
    import pandas as pd

    if roles.step is not None:
        return roles.step * pd.Series(codes).groupby(codes).cumcount().to_numpy(dtype=np.float64), None
    tables, digits = with_digit_dates(tables, roles.clock, is_dated=is_dated or unit is not None)
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
    return np.concatenate(times), Dates(zero, unit, zone_name(stamps[0].zone), digits)


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
        labels = read_names(tables, roles.trajectory, "trajectory")
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
