"""Assembly of tables to a dataset: rows ordered by trajectory, numeric times, averaged repeats, filled input gaps.

Each row keeps the line that it came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..inputs import looks_held
from ..trajectories import Data, pad
from .clocks import CLOCK_FORMATS, describe_clock, holds_clock, read_clock, read_clocks
from .layout import Roles
from .options import AS_RECOGNISED, ReadingOptions
from .table import INPUT_FIX, UNKNOWN_FIX, RawTable, as_numbers_of_column, is_blank, list_names, read_names
from .times import (
    NO_ZONE,
    SECONDS,
    UNIX_FORMATS,
    Dates,
    Stamps,
    count_time,
    read_stamps,
    read_times,
    spacing,
    typical_step,
    unit_for,
    utc,
    with_digit_dates,
    with_unix_dates,
    zone_name,
)

if TYPE_CHECKING:
    import pandas

Rows = Int[np.ndarray, " row"]
# Distance of the times at which trajectories begin [span of the times], and least rows of each, in a table without
# names of trajectories.
BEGINS_WITHIN, LEAST_BEGUN = 0.01, 5
# The fix where rows of several trajectories are read as one.
NAME_TRAJECTORY = " If these are several trajectories, name the column that identifies them: trajectory=NAME."


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
    """Returns the first row with a value in each group; -1 if no row has one."""
    known = np.flatnonzero(~np.isnan(values))
    groups, index = np.unique(group[known], return_index=True)
    first = np.full(count, -1)
    first[groups] = known[index]
    return first


class Merged(NamedTuple):
    """Values at the times of groups, and the number of measurements averaged in each value."""

    values: Float[np.ndarray, "group state"]
    counts: Int[np.ndarray, "group state"]


def merge_states(
    tables: Sequence[RawTable], y: Float[np.ndarray, "row state"], times: Times, roles: Roles, *, is_mean: bool
) -> Merged:
    """Merges the measurements of each time into one row.

    **Arguments:** `is_mean`: whether repeated measurements are averaged. The standard deviation of a mean follows from
    those of its measurements.

    **Raises:** `ValueError` with both lines if a state is measured twice at the same time without averaging.
    """
    groups = len(times.first)
    values, counts = np.empty((groups, y.shape[1])), np.ones((groups, y.shape[1]), dtype=np.int64)
    for i, name in enumerate(roles.states):
        if not is_mean:
            values[:, i] = merge(tables, y[:, i], times, name, roles)
            continue
        known = ~np.isnan(y[:, i])
        group = times.group[known]
        power = 2 if name in roles.deviations else 1
        sums = np.bincount(group, weights=y[known, i] ** power, minlength=groups)
        counts[:, i] = np.bincount(group, minlength=groups)
        divisor = np.where(counts[:, i] > 0, counts[:, i], np.nan)
        values[:, i] = sums ** (1 / power) / divisor
    return Merged(values, np.maximum(counts, 1))


def merge_inputs(
    tables: Sequence[RawTable], u: Float[np.ndarray, "row input"], times: Times, roles: Roles
) -> Float[np.ndarray, "group input"]:
    """Merges the inputs at each time into one row, NaN if none has a value; rows can repeat the same value.

    **Raises:** `ValueError` if repeated values differ.
    """
    merged = np.zeros((len(times.first), len(roles.inputs)))
    for i, name in enumerate(roles.inputs):
        merged[:, i] = merge(tables, u[:, i], times, name, roles, may_repeat=True)
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
    first_row = first[times.group]
    wrong = ~np.isnan(values) & (first_row != np.arange(len(values)))
    if may_repeat:
        wrong &= values != values[first_row]
    if wrong.any():
        row = int(wrong.argmax())
        table, position = place(tables, row)
        column = name if may_repeat or roles.value is None else roles.value
        raise ValueError(
            f"{table.at(position, column)}: {name!r} has another value at this time of its trajectory in "
            f"{describe_place(tables, int(first_row[row]), table)}; remove one, or average them."
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
    first_row = first[codes]
    wrong = ~np.isnan(values) & (values != values[first_row])
    if wrong.any():
        row = int(wrong.argmax())
        table, position = place(tables, row)
        raise ValueError(
            f"{table.at(position, name)}: the covariate is {values[row]:g}, but {values[first_row[row]]:g} in "
            f"{describe_place(tables, int(first_row[row]), table)}; it must be constant in trajectory "
            f"{trajectories[codes[row]]!r}"
            ", so correct it, or name the column in inputs if it varies."
            + (NAME_TRAJECTORY if len(trajectories) == 1 else "")
        )
    return values[first_row]


def place(tables: Sequence[RawTable], index: int) -> tuple[RawTable, int]:
    """Returns the table that contains a row of the concatenated tables, and the index of the row in it."""
    for table in tables:
        if index < len(table):
            return table, index
        index -= len(table)
    raise IndexError(index)


def describe_place(tables: Sequence[RawTable], index: int, reader: RawTable) -> str:
    """Describes the location of a row of the concatenated tables, in a message about table `reader`."""
    table, row = place(tables, index)
    return table.row(row) + ("" if table is reader else f" of {table.origin}")


@dataclass(frozen=True)
class Assembled(Generic[Data]):
    """Trajectories from tables, and the number of measurements averaged in each state value; None if all are single."""

    data: Data
    counts: Float[np.ndarray, "trajectory time state"] | None


@np.errstate(over="ignore")  # Times may be as far apart as numbers can be.
def assemble(
    kind: type[Data],
    tables: Sequence[RawTable],
    own_names: Sequence[str],
    roles: Roles,
    time_unit: str | None,
    units: dict[str, str],
    day_first: bool | None = None,
    is_dated: bool = False,
    options: ReadingOptions = AS_RECOGNISED,
) -> Assembled[Data]:
    """Assembles tables to trajectories of a kind; each table is one unless a column separates trajectories.

    **Arguments:** `kind`: class such as `Dataset`. `own_names`: a name for each table, used without such a column.
    `time_unit`: unit of timestamps, selected from their spacing if None. `day_first`: as in `Dataset.from_file`.
    `is_dated`: whether numbers that can be dates, such as 20240131, are known to be dates.

    **Raises:** `ValueError` at the first invalid value, with its table, row and column.
    """
    codes, trajectories = number_trajectories(tables, own_names, roles)
    t, dates, unit, remarks = read_clock_of(tables, codes, roles, time_unit, day_first, is_dated, options)
    if dates is None and may_begin_again(tables, roles, options):
        codes, trajectories, note = number_beginnings(tables, t, codes, trajectories)
        remarks = [*remarks, *note]
    y = np.concatenate([block(table, roles.states, UNKNOWN_FIX, may_miss=True) for table in tables])
    u = read_inputs(tables, roles, options)
    c = np.concatenate([read_covariates(table, roles.covariates, options) for table in tables])
    for i, name in enumerate(roles.covariates):
        c[:, i] = fill_constant(tables, name, c[:, i], codes, trajectories)
    notes = [*dict.fromkeys(note for table in tables for note in table.notes), *remarks]
    source, counts = np.arange(len(t)), None
    times = same_times(t, codes)
    is_mean = options.repeats == "mean" or (
        options.repeats == "auto" and looks_repeated(y, times, t, codes, roles, options)
    )
    if roles.observable is not None or is_mean:
        (y, counts), u = merge_states(tables, y, times, roles, is_mean=is_mean), merge_inputs(tables, u, times, roles)
        source = times.first
        t, c, codes = t[source], c[source], codes[source]
        notes += describe_means(counts, roles)
    order, note = order_rows(t, codes, options.row_order)
    notes += note
    if roles.observable is None and not is_mean:
        check_order(tables, t, order, codes, trajectories, roles)
    rows = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    options.check_inputs(roles.inputs)
    for i, name in enumerate(roles.inputs):
        u[:, i], note = bridge_input(tables, t, u[:, i], rows, source, name, options.gap_of(name))
        notes += note
        if options.interval_of(name) == "before":
            # What the next row gives holds from this row on; nothing is known of the time after the last row.
            for row in rows:
                u[row[:-1], i] = u[row[1:], i]
    inputs = (*roles.inputs, *roles.covariates)
    u = np.concatenate([u, c], axis=1)
    units = {name: text for table in tables for name, text in table.units.items()} | units
    known = {name: text for name, text in units.items() if name in (roles.clock, *roles.states, *inputs)}
    data = kind.from_arrays(
        [t[row] for row in rows],
        [y[row] for row in rows],
        [u[row] for row in rows],
        states=roles.states,
        inputs=inputs,
        trajectories=trajectories,
        time=roles.clock,
        units=known | ({} if unit is None else {roles.clock: unit}),
    )
    padded = None if counts is None or counts.max() == 1 else pad([counts[row] for row in rows], data.ts.shape[1], 1.0)
    levels = {name: tuple(map(str, words)) for name, words in options.levels.items()}
    return Assembled(replace(data, dates=dates, notes=tuple(notes), levels=levels), padded)


def may_begin_again(tables: Sequence[RawTable], roles: Roles, options: ReadingOptions) -> bool:
    """Whether nothing but the times can separate the trajectories of a table."""
    if options.row_order != "auto" or options.repeats == "mean":
        return False
    named = roles.trajectory is not None or roles.occasion is not None or roles.observable is not None
    return not named and all(table.own is None for table in tables)


def number_beginnings(
    tables: Sequence[RawTable], t: Float[np.ndarray, " row"], codes: Rows, trajectories: list[str]
) -> tuple[Rows, list[str], list[str]]:
    """Numbers the trajectories of tables in which the time begins again at its first value.

    **Returns:** the trajectory of each row, the names of trajectories, and notes; unchanged unless the time of every
    such table always goes back to its first value, after enough rows.
    """
    first = np.searchsorted(codes, np.arange(len(trajectories)))
    begins = np.isclose(t, t[first][codes], rtol=0, atol=BEGINS_WITHIN * t.max() - BEGINS_WITHIN * t.min())
    back = np.concatenate([[False], (np.diff(t) <= 0) & (np.diff(codes) == 0)])
    new = back | np.concatenate([[True], np.diff(codes) != 0])
    lengths = np.diff(np.append(np.flatnonzero(new), len(t)))
    if not back.any() or not begins[back].all() or lengths.min() < LEAST_BEGUN:
        return codes, trajectories, []
    numbered = np.cumsum(new) - 1
    parts = np.bincount(codes[new])
    names = [
        f"{trajectories[code]}/{part + 1}" if parts[code] > 1 else trajectories[code]
        for code in range(len(parts))
        for part in range(parts[code])
    ]
    table, row = place(tables, int(np.flatnonzero(back)[0]))
    where = f"{table.row(row)}{' and later' if back.sum() > 1 else ''}"
    so = f"so there are {len(names)} trajectories (data.row_order=written refuses that)"
    return numbered, names, [f"rows: the time begins again in {where}, {so}"]


def order_rows(t: Float[np.ndarray, " row"], codes: Rows, row_order: str) -> tuple[Rows, list[str]]:
    """Orders the rows by trajectory; returns a note if they were written from the last to the first.

    **Arguments:** `row_order`: as in `ReadingOptions`.
    """
    written = np.argsort(codes, kind="stable")
    if row_order == "sorted":
        return np.lexsort((t, codes)), []
    steps = np.diff(t[written])[np.diff(codes[written]) == 0]
    if row_order == "written" or not steps.size or not (steps < 0).all():
        return written, []
    note = "rows: the last one comes first, so they are turned round (data.row_order=written refuses that)"
    return np.lexsort((t, codes)), [note]


def read_inputs(tables: Sequence[RawTable], roles: Roles, options: ReadingOptions) -> Float[np.ndarray, "row input"]:
    """Reads the inputs of all rows, NaN for missing values of inputs whose gaps can be filled."""
    parts: list[np.ndarray] = []
    for table in tables:
        columns = [
            as_numbers_of_column(
                table,
                name,
                INPUT_FIX,
                may_miss=roles.observable is not None or options.gap_of(name) != "none",
            )
            for name in roles.inputs
        ]
        parts.append(np.stack(columns, axis=1) if columns else np.zeros((len(table), 0)))
    return np.concatenate(parts)


def read_covariates(
    table: RawTable, names: Sequence[str], options: ReadingOptions
) -> Float[np.ndarray, "row covariate"]:
    """Reads covariates of all rows, NaN where a cell is empty; text becomes the position of its word in the levels.

    **Raises:** `ValueError` at the first word that is no level.
    """
    for name in options.levels:
        if name not in names:
            raise ValueError(
                f"levels names {name!r}, which is not a covariate; name it in covariates, or leave it out."
            )
    columns = [
        number_words(table, name, [str(word) for word in options.levels[name]])
        if name in options.levels
        else as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True)
        for name in names
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))


def number_words(table: RawTable, name: str, levels: Sequence[str]) -> Float[np.ndarray, " row"]:
    cells = table.columns[name].to_numpy(dtype=object)
    words = ["" if is_blank(cell) else str(cell).strip() for cell in cells]
    unknown = np.array([bool(word) and word not in levels for word in words])
    if unknown.any():
        row = int(unknown.argmax())
        raise ValueError(
            f"{table.at(row, name)}: {words[row]!r} is not one of the levels of {name!r}, {list_names(levels)}; "
            "correct it, or add it to levels (data.levels in a command) and fit again."
        )
    position = {word: float(index) for index, word in enumerate(levels)}
    return np.array([position.get(word, np.nan) for word in words])


def looks_repeated(
    y: Float[np.ndarray, "row state"],
    times: Times,
    t: Float[np.ndarray, " row"],
    codes: Rows,
    roles: Roles,
    options: ReadingOptions,
) -> bool:
    """Whether rows at one time are repeated measurements: at least half of the times, and at least two, repeat.

    Rows of one time that share no state are joined in the same way, such as those of a dose and of a measurement.
    """
    if roles.observable is None and options.row_order != "sorted":
        order = np.argsort(codes, kind="stable")
        goes_back = (np.diff(t[order]) < 0) & (np.diff(codes[order]) == 0)
        if goes_back.any():
            return False
    groups = len(times.first)
    counts = [np.bincount(times.group[~np.isnan(column)], minlength=groups) for column in y.T]
    repeated = np.max(counts, axis=0) > 1
    shares_time = np.bincount(times.group)[times.group] > 1
    if shares_time.any() and not repeated.any():
        return bool(np.isfinite(y)[shares_time].sum(axis=1).min())
    return len(np.unique(t[times.first[repeated]])) >= 2 and 2 * int(repeated.sum()) >= groups


def describe_means(counts: Int[np.ndarray, "group state"], roles: Roles) -> list[str]:
    """Describes measurements that were averaged."""
    most = int(counts.max())
    if most == 1:
        return []
    times = int((counts.max(axis=1) > 1).sum())
    return [
        f"repeats: up to {most} rows at one time of a trajectory are averaged, at {times} times; sigma is of one "
        f"measurement, and that of a mean follows (data.repeats=none refuses such rows)"
    ]


def bridge_input(
    tables: Sequence[RawTable],
    t: Float[np.ndarray, " row"],
    values: Float[np.ndarray, " row"],
    rows: Sequence[Int[np.ndarray, " _"]],
    at: Rows,
    name: str,
    gap: str,
) -> tuple[Float[np.ndarray, " row"], list[str]]:
    """Fills the gaps of an input; returns its values at all rows, and a note on the filled ones.

    **Arguments:** `rows`: rows of each trajectory, in order of time. `at`: row of the tables that each row comes from.
    `gap`: as in `ReadingOptions.input_gaps`.

    **Raises:** `ValueError` if it has no value in a trajectory, or gaps are not allowed.
    """
    known = ~np.isnan(values)
    if known.all():
        return values, []
    blank = next((row for row in rows if not known[row].any()), None)
    if gap == "none" or blank is not None:
        wrong = at[~known].min() if blank is None else at[blank[0]]
        table, row = place(tables, int(wrong))
        where = "at this time" if blank is None else "in its trajectory"
        raise ValueError(
            f"{table.at(row, name if name in table.columns else '')}: {name!r} has no value {where}; {INPUT_FIX}"
        )
    if gap == "auto":
        gap = guess_gap([values[row][known[row]] for row in rows])
    bridged, longest = values.copy(), 0.0
    for row in rows:
        known_rows = row[known[row]]
        if gap == "hold":
            before = np.maximum(np.searchsorted(t[known_rows], t[row], side="right") - 1, 0)
            bridged[row] = values[known_rows][before]
        else:
            bridged[row] = np.interp(t[row], t[known_rows], values[known_rows])
        longest = max(longest, float(np.diff(t[known_rows]).max(initial=0.0)))
    how = "hold the last value" if gap == "hold" else "are linear in between"
    alternative = "linear" if gap == "hold" else "hold"
    return bridged, [
        f"input {name!r} is known in {int(known.sum())} of {len(values)} rows; the others {how}, over {longest:.3g} at "
        f"most (data.input_gaps={alternative}, or none)"
    ]


def guess_gap(series: Sequence[np.ndarray]) -> str:
    """Returns `hold` for an input with few levels or rare changes in its known values; else `linear`."""
    longest = max(map(len, series))
    us = pad(list(series), longest, None)
    valid = np.arange(longest) < np.array([len(values) for values in series])[:, None]
    return "linear" if longest > 1 and not looks_held(us, valid) else "hold"


class ReadTimes(NamedTuple):
    """Time of each row; dates of trajectories if it comes from timestamps; its unit if the table specifies it; and
    notes."""

    t: Float[np.ndarray, " row"]
    dates: Dates | None = None
    unit: str | None = None
    notes: Sequence[str] = ()


def read_clock_of(
    tables: Sequence[RawTable],
    codes: Int[np.ndarray, " row"],
    roles: Roles,
    unit: str | None,
    day_first: bool | None,
    is_dated: bool,
    options: ReadingOptions,
) -> ReadTimes:
    """Reads the time of each row in any format."""
    import pandas as pd

    if roles.step is not None:
        t = roles.step * pd.Series(codes).groupby(codes).cumcount().to_numpy(dtype=np.float64)
        return ReadTimes(t)
    layout = options.time_format
    columns = [table.columns[roles.clock] for table in tables]
    if roles.time_of_day is None and (layout in CLOCK_FORMATS or (layout is None and any(map(holds_clock, columns)))):
        seconds, layout, midnights = read_clocks(tables, roles.clock, codes, layout)
        chosen = unit or unit_for(typical_step(seconds, codes))
        note = describe_clock(roles.clock, layout, chosen, midnights, chosen=unit is None)
        return ReadTimes(seconds / SECONDS[chosen], unit=chosen, notes=[note])
    remark, digits = "", None
    if roles.time_of_day is not None:
        pairs = [with_times_of_day(table, roles.clock, roles.time_of_day, day_first) for table in tables]
        tables, remark = [table for table, _ in pairs], pairs[0][1]
    elif layout is None or layout in UNIX_FORMATS:
        tables, remark = with_unix_dates(tables, roles.clock, layout)
    if layout in (None, "timestamp"):
        tables, digits = with_digit_dates(tables, roles.clock, is_dated=is_dated or unit is not None or bool(layout))
    t, dates = clock(tables, codes, roles, unit, day_first, digits, remark)
    return ReadTimes(t, dates, None if dates is None else dates.unit)


def with_times_of_day(table: RawTable, name: str, time_of_day: str, day_first: bool | None) -> tuple[RawTable, str]:
    """Adds the times of day of another column to the dates of a table; also returns a remark on the dates."""
    import pandas as pd

    dates, zone, remark = read_stamps(table, name, day_first)
    instants = dates + pd.to_timedelta(read_clock(table, time_of_day, None).seconds, unit="s")
    stamps = pd.Series(instants.tz_localize(None) if zone == NO_ZONE else instants)
    return replace(table, columns={**table.columns, name: stamps}), remark


def clock(
    tables: Sequence[RawTable],
    codes: Int[np.ndarray, " row"],
    roles: Roles,
    unit: str | None,
    day_first: bool | None,
    digits: str | None,
    remark: str,
) -> tuple[Float[np.ndarray, " row"], Dates | None]:
    """Returns the time of each row, and the dates of the trajectories if they come from timestamps.

    **Arguments:** `digits`, `remark`: fields of `Dates`.
    """
    times = [read_times(table, roles.clock, unit, day_first) for table in tables]
    stamps = [stamps_or_numbers for stamps_or_numbers in times if isinstance(stamps_or_numbers, Stamps)]
    numbers = [stamps_or_numbers for stamps_or_numbers in times if not isinstance(stamps_or_numbers, Stamps)]
    if stamps and numbers:
        mixed = next(
            table
            for table, stamps_or_numbers in zip(tables, times, strict=True)
            if isinstance(stamps_or_numbers, Stamps)
        )
        raise ValueError(
            f"{mixed.origin}, column {roles.clock!r} holds timestamps, but other files hold numbers; write all times "
            "in one way."
        )
    if not stamps:
        return np.concatenate(numbers), None
    unit = unit or unit_for(spacing(stamps, codes))
    firsts = first_instants(stamps, tables, roles)
    zeros = np.concatenate(
        [
            np.full(len(stamps_or_numbers.instants), utc(first))
            for stamps_or_numbers, first in zip(stamps, firsts, strict=True)
        ]
    )
    zero = zeros[np.unique(codes, return_index=True)[1]]
    times = [
        count_time(stamps_or_numbers, first, unit) for stamps_or_numbers, first in zip(stamps, firsts, strict=True)
    ]
    remarks = "".join(dict.fromkeys((*(stamps_or_numbers.remark for stamps_or_numbers in stamps), remark)))
    return np.concatenate(times), Dates(zero, unit, zone_name(stamps[0].zone), digits, remarks)


def first_instants(stamps: Sequence[Stamps], tables: Sequence[RawTable], roles: Roles) -> "list[pandas.Timestamp]":
    """Returns the origin of each table's time: its first instant, or that of all tables if they can share
    trajectories."""
    firsts = [stamp.first for stamp in stamps]
    if roles.trajectory is None:
        return firsts
    for table, stamp in zip(tables, stamps, strict=True):
        if (stamp.zone == NO_ZONE) != (stamps[0].zone == NO_ZONE):
            raise ValueError(
                f"{table.at(0, roles.clock)}: the time zone is {stamp.zone}, but in {tables[0].origin} it is "
                f"{stamps[0].zone}; write all times in one zone, such as UTC."
            )
    return [min(firsts)] * len(stamps)


def block(table: RawTable, channels: Sequence[str], fix: str, *, may_miss: bool) -> Float[np.ndarray, "row channel"]:
    columns = [as_numbers_of_column(table, name, fix, may_miss=may_miss) for name in channels]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))


def number_trajectories(
    tables: Sequence[RawTable], own_names: Sequence[str], roles: Roles
) -> tuple[Int[np.ndarray, " row"], list[str]]:
    """Returns the index of each row's trajectory, and the trajectory names in order of appearance."""
    import pandas as pd

    if roles.trajectory is None:
        several = len(tables) > 1
        labels = [own_labels(table, name, several) for table, name in zip(tables, own_names, strict=True)]
    else:
        labels = read_names(tables, roles.trajectory, "trajectory")
    if roles.occasion is not None:
        occasions = read_names(tables, roles.occasion, "occasion")
        labels = [subject + "/" + occasion for subject, occasion in zip(labels, occasions, strict=True)]
    codes, names = pd.factorize(np.concatenate(labels))
    return codes, [str(label) for label in names]


def own_labels(table: RawTable, name: str, several: bool) -> np.ndarray:
    """Returns the trajectory of each row without a trajectory column: the table, or a trajectory of its layout."""
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
    last_place = describe_place(tables, last, table)
    # Quoted as written, since a timestamp is clearer than its number.
    now, then = table.columns[roles.clock].iloc[row], last_table.columns[roles.clock].iloc[last_row]
    fault = (
        f"repeats, {now} as in {last_place}" if t[this] == t[last] else f"goes back, {now} after {then} in {last_place}"
    )
    raise ValueError(
        f"{table.at(row, roles.clock)}: the time {fault}; times must increase strictly within trajectory "
        f"{trajectories[codes[this]]!r}, so sort the rows and remove or average repeats"
        f" ({'data.repeats=mean' if t[this] == t[last] else 'data.row_order=sorted'})."
        + ("" if roles.trajectory or table.own is not None else NAME_TRAJECTORY)
    )
