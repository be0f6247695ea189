"""Guesses the roles of columns from common names of times and records, and from the columns' values."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .clocks import holds_clock
from .header import TIMES, plain_name
from .layout import Roles
from .options import AS_RECOGNISED, ReadingOptions
from .reading import read_file
from .table import (
    UNKNOWN_FIX,
    Missing,
    as_numbers_of_column,
    is_blank,
    is_typed,
    list_names,
    parts_of_cell,
    read_names,
    read_number,
)
from .times import Stamps, holds_stamps, read_times

if TYPE_CHECKING:
    import pandas

# Common names of the records of a table, and of the measured value in a table of doses.
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
# Units that name a column of times, and names of a column of times of day beside a column of dates.
UNITS_OF_TIME = {"h", "hr", "hour", "hours", "min", "minute", "minutes", "s", "sec", "second", "seconds", "day", "days"}
TIMES_OF_DAY = {"time", "zeit", "clock", "uhrzeit", "hour"}
# Maximum size of files that are examined [bytes], and minimum number of rows to judge the steps of a column.
MOST_BYTES_LOOKED_AT, FEWEST_LOOKED_AT = 20_000_000, 30
# An input has at most this many levels, and changes in less than this fraction of the rows; or it explains more
# than this fraction of another column's unexplained steps, while all columns leave more than the last fraction of its
# own steps unexplained.
MOST_LEVELS, STAYS, EXPLAINS, UNEXPLAINED = 8, 0.5, 0.2, 0.5
# A column of three or more levels is surely an input if it stays for this many rows (median) and this fraction of its
# changes, two at least, pass over a level: a coarse sensor goes from one level to the next, and counts rarely stay.
LEAST_STAY, PASSES_OVER, FEWEST_LEAPS = 3, 0.2, 2
# Minimum share of neighbouring rows that both have a value of a column.
MANY_PAIRS = 0.5
# Minimum average number of rows of a record, below which names do not identify records.
LEAST_ROWS_OF_A_RECORD = 3
# Name of a well of a plate with 6 to 384 wells, and the fewest wells, in two rows of the plate, that are recognised.
WELL_NAME, FEWEST_WELLS = re.compile(r"([A-P])(0?[1-9]|1[0-9]|2[0-4])"), 6
# Names, with a number behind them, of columns that each repeat an experiment. A probe may be a sensor beside others.
REPEAT_NAME = re.compile(r"(.*?)[\s_.-]*(\d+)(?:[\s_]*[\[(].*)?")
REPEATED_THINGS = {"rep", "repeat", "replicate", "run", "trial", "experiment", "versuch", "wiederholung", "sample"} | {
    "subject", "patient", "animal", "mouse", "rat", "plant", "well", "culture", "colony", "flask", "specimen",
    "tablet", "vial", "dish", "batch", "assay", "test", "donor", "volunteer", "participant", "person", "proband"
}  # fmt: skip
# Two columns are identical if one leaves less than this fraction of the other.
TINY_SHARE = 1e-12
# Why a column of words is no state, and the maximum number of words of a covariate.
HOLDS_TEXT, MOST_WORDS = "holds text", 8


# Names of the column of a state's standard deviation, with the state's name in place of `x`.
DEVIATIONS = ("x_sd", "x_std", "x_stdev", "x_sigma", "x_err", "x_error", "x_unc", "sd_x", "std_x", "sigma_x", "err_x")
# Names of columns that count rows.
COUNTERS = {"", "record", "index", "row", "no", "no.", "nr", "nr.", "#", "n", "seq", "sample", "unnamed: 0"}


class ColumnsToSee(Roles):
    """Columns that are examined before they have roles, so that roles can't contradict each other."""

    def __post_init__(self):
        pass


class GuessedRoles(NamedTuple):
    """Columns of times and of records, and measured columns; None if undetermined."""

    time: str | None
    trajectory: str | None = None
    states: tuple[str, ...] | None = None


def guess_by_names(names: Sequence[str]) -> GuessedRoles:
    """Guesses roles from names in any position; without a named time, the first column that does not name records."""
    plain = {name: plain_name(name) for name in names}
    time = find_time(names)
    records = next((name for name in names if plain[name] in RECORDS and name != time), None)
    measured = tuple(name for name in names if plain[name] == MEASURED)
    first = next((name for name in names if name != records), None)
    return GuessedRoles(time or first, records, measured or None)


def find_time(names: Sequence[str]) -> str | None:
    """Finds a column named like a time, with such a first word, or like a unit of time; a capital T is tried last."""
    plain = {name: plain_name(name) for name in names}
    clear = [name for name in names if plain[name] in TIMES and name != "T"]
    begun = [name for name in names if re.split(r"[\s_,]", plain[name])[0] in TIMES - {"t"}]
    units = [name for name in names if plain[name] in UNITS_OF_TIME]
    return next(iter([*clear, *begun, *(units if "T" in names else []), *(["T"] if "T" in names else [])]), None)


def find_time_by_values(path: Path, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED) -> str:
    """Returns the first column that can hold times rather than words; the first of all if none can, or for large
    files."""
    unique = tuple(name for name in names if name and names.count(name) == 1)
    if not unique or path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return names[0]
    table = read_file(path, ColumnsToSee(time=None, states=unique), options=options)
    columns = {name: table.columns[name] for name in unique}
    return next(
        (
            name
            for name, column in columns.items()
            if holds_stamps(column)
            or holds_clock(column)
            or describe_no_state(column, name, table.missing) != "holds text"
        ),
        names[0],
    )


def find_time_of_day(
    path: Path, time: str, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED
) -> str | None:
    """Returns the column with the times of day of a column of dates; None if none exists, or none is needed."""
    likely = [name for name in names if re.split(r"[\s_,]", plain_name(name))[0] in TIMES_OF_DAY]
    if not likely or path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return None
    table = read_file(path, ColumnsToSee(time=time, states=tuple(likely)), options=options)
    if not holds_stamps(table.columns[time]):
        return None
    return next((name for name in likely if holds_clock(table.columns[name])), None)


def find_deviations(names: Sequence[str]) -> dict[str, str]:
    """Returns the columns of standard deviations, keyed by their quantity: `x_sd`, `std x` or `x (sd)` of `x`."""
    short = {re.sub(r"[^\w.]+", "_", name.strip().lower()).strip("_"): name for name in names}
    deviations: dict[str, str] = {}
    for plain, name in short.items():
        columns = (short.get(pattern.replace("x", plain)) for pattern in DEVIATIONS)
        deviation = next((column for column in columns if column is not None and column != name), None)
        if deviation is not None:
            deviations[name] = deviation
    return deviations


def find_wells(names: Sequence[str]) -> list[str]:
    """Finds the columns named like the wells of a plate, such as `A1` to `H12`, each of which repeats an experiment."""
    wells = {name: found for name in names if (found := WELL_NAME.fullmatch(name.strip()))}
    return list(wells) if len(wells) >= FEWEST_WELLS and len({found[1] for found in wells.values()}) > 1 else []


def find_repeats(names: Sequence[str]) -> list[str]:
    """Finds columns such as `Replicate 1` and `Replicate 2`, each of which repeats an experiment."""
    found = {name: match for name in names if (match := REPEAT_NAME.fullmatch(name.strip()))}
    repeats = [name for name, match in found.items() if match[1].lower() in REPEATED_THINGS]
    return repeats if len(repeats) > 1 and len({found[name][1].lower() for name in repeats}) == 1 else []


def find_constant_columns(
    path: Path, trajectory: str, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED
) -> list[str]:
    """Finds columns of numbers that are constant in each trajectory and differ between some, such as a dose.

    A value can stand in the first row of each trajectory alone. Numbers that merely count the trajectories are none.
    """
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return []
    table = read_file(path, ColumnsToSee(time=None, states=(trajectory, *names)), options=options)
    labels = table.columns[trajectory].to_numpy(dtype=object)
    values = {name: values_of_records(labels, table.columns[name].to_numpy(dtype=object)) for name in names}
    return [name for name, found in values.items() if len(set(found)) > 1 and not counts_records(found)]


def values_of_records(labels: np.ndarray, cells: np.ndarray) -> list[float]:
    """Returns the number in the first row of each record; none unless each has one, and no later row another."""
    first: dict[object, float] = {}
    for label, cell in zip(labels, cells, strict=True):
        number = None if is_blank(cell) else number_in(cell)
        if number is None and label in first:
            continue
        if number is None or first.setdefault(label, number) != number:
            return []
    return list(first.values())


def find_levels(
    path: Path, trajectory: str, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED
) -> dict[str, list[str]]:
    """Finds columns of a few words that are constant in each trajectory, such as a strain, with the words.

    A word may stand in the first row of each trajectory alone. Words that few trajectories share are names or dates.
    """
    if not names or path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return {}
    table = read_file(path, ColumnsToSee(time=None, states=(trajectory, *names)), options=options)
    labels = table.columns[trajectory].to_numpy(dtype=object)
    levels: dict[str, list[str]] = {}
    for name in names:
        words = words_of_records(labels, table.columns[name].to_numpy(dtype=object))
        if 1 < len(set(words)) <= min(len(words) // 2, MOST_WORDS):
            levels[name] = sorted(set(words))
    return levels


def words_of_records(labels: np.ndarray, cells: np.ndarray) -> list[str]:
    """Returns the word in the first row of each record; none unless each has one, and no later row another."""
    first: dict[object, str] = {}
    for label, cell in zip(labels, cells, strict=True):
        word = "" if is_blank(cell) else str(cell).strip()
        if word in ("", first.get(label)) and label in first:
            continue
        if not word or first.setdefault(label, word) != word:
            return []
    return list(first.values())


def counts_records(values: Sequence[float]) -> bool:
    """Whether the values of several records are consecutive numbers that count from 0 or 1."""
    counted = ({float(first + index) for index in range(len(values))} for first in (0, 1))
    return len(values) > 2 and any(set(values) == numbers for numbers in counted)


def find_no_states(path: Path, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED) -> dict[str, str]:
    """Returns the columns without measurements, with the reason: text, no values, or row numbers."""
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return {}
    unnamed = {name: "has no name" for name in names if not name}
    columns = [name for name in names if name and names.count(name) == 1]
    if not columns:
        return unnamed
    table = read_file(path, ColumnsToSee(time=None, states=tuple(columns)), options=options)
    reasons = {name: describe_no_state(table.columns[name], name, table.missing) for name in columns}
    return unnamed | {name: why for name, why in reasons.items() if why is not None}


def describe_no_state(column: "pandas.Series", name: str, missing: Missing) -> str | None:
    """Explains why a column holds no measurements; None if it can hold some."""
    if is_typed(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan) if column.dtype.kind in "iuf" else np.ones(1)
    else:
        words = [value for value in column if not is_blank(value) and str(value).strip().lower() not in missing.words]
        values = np.array([number for value in words if (number := number_in(value)) is not None])
        if words and 2 * len(values) < len(words):
            return HOLDS_TEXT
    if not np.isfinite(values).any():
        return "is empty"
    is_count = len(values) > 2 and len(values) == len(column) and bool((np.diff(values) == 1).all())
    return "counts rows" if is_count and plain_name(name) in COUNTERS else None


def number_in(value: object) -> float | None:
    """Returns a value, or its limit, as a number; None if it is not a number."""
    try:
        return read_number(parts_of_cell(value)[-1] if isinstance(value, str) else value)
    except (TypeError, ValueError):
        return None


def is_repeating(path: Path, name: str, options: ReadingOptions = AS_RECOGNISED) -> bool:
    """Whether values of a column repeat, as the names of records do; row numbers do not.

    **Raises:** `ValueError` if the file can't be read, or a row names no record.
    """
    table = read_file(path, ColumnsToSee(time=None, states=(name,)), options=options)
    (names,) = read_names([table], name, "trajectory")
    return len(set(names)) < len(names)


def find_records(path: Path, time: str, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED) -> str | None:
    """Returns the column that separates records if times decrease; None if they never do, or no column does.

    It holds text, or numbers that count from 0 or 1, and times increase in the rows of each value.
    """
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return None
    # Read only times first: most files have increasing times, and reading all columns of a large file takes seconds.
    for columns in ((), tuple(names)):
        table = read_file(path, ColumnsToSee(time=time, states=columns), options=options)
        try:
            read = read_times(table, time, None, None)
        except ValueError:  # Times that the run will reject, or ambiguous dates.
            return None
        times = read.instants.asi8 if isinstance(read, Stamps) else read
        if (np.diff(times) > 0).all():
            return None
    telling = [name for name in names if tells_records(table.columns[name], times)]
    texts = [name for name in telling if describe_no_state(table.columns[name], name, table.missing) == "holds text"]
    counts = [name for name in telling if name not in texts and is_count(table.columns[name])]
    return next(iter([*texts, *counts]), None)


def tells_records(column: "pandas.Series", times: Float[np.ndarray, " row"] | Int[np.ndarray, " row"]) -> bool:
    """Whether no value is missing, every value has several rows, and times increase in the rows of each."""
    import pandas as pd

    values: np.ndarray = column.to_numpy(dtype=object)
    codes, records = pd.factorize(values)
    is_whole = bool((codes >= 0).all()) and not any(is_blank(value) for value in records)
    if not is_whole or not 2 <= len(records) <= len(times) / LEAST_ROWS_OF_A_RECORD:
        return False
    rows = np.argsort(codes, kind="stable")
    return bool((np.diff(times[rows])[np.diff(codes[rows]) == 0] > 0).all())


def is_count(column: "pandas.Series") -> bool:
    """Whether a column holds consecutive numbers that count from 0 or 1."""
    numbers = {number_in(value) for value in column}
    return any(numbers == {float(first + index) for index in range(len(numbers))} for first in (0, 1))


class LikelyInput(NamedTuple):
    """Why a column looks like an input, as the end of a sentence; if `is_certain`, it can hardly be a state."""

    reason: str
    is_certain: bool = False


def find_likely_inputs(
    path: Path,
    time: str,
    trajectory: str | None,
    states: Sequence[str],
    options: ReadingOptions = AS_RECOGNISED,
) -> dict[str, LikelyInput]:
    """Returns the columns that look set from outside; none for few rows, or if not all are numbers.

    Such a column stays at a few levels, or is followed by others while nothing explains its own steps.
    """
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return {}
    table = read_file(path, Roles(time=time, states=tuple(states), trajectory=trajectory), options=options)
    columns = [as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True) for name in states]
    values = np.stack(columns, axis=1)
    follows = np.ones(len(values) - 1, bool)
    if trajectory is not None:
        (records,) = read_names([table], trajectory, "trajectory")
        follows = np.asarray(records[1:] == records[:-1])
    known = np.isfinite(values[1:]) & np.isfinite(values[:-1]) & follows[:, None]
    # A sensor that is read less often than the others is no input, and must not hide those that are.
    dense = known.sum(axis=0) >= MANY_PAIRS * follows.sum()
    pairs = np.asarray(known[:, dense].all(axis=1))
    if not dense.any() or pairs.sum() < FEWEST_LOOKED_AT:
        return {}
    names = [name for name, is_dense in zip(states, dense, strict=True) if is_dense]
    likely = find_inputs_by_steps(values[:-1, dense][pairs], np.diff(values[:, dense], axis=0)[pairs], names)
    return likely if len(likely) < len(states) else {}


def find_inputs_by_steps(before: np.ndarray, steps: np.ndarray, names: Sequence[str]) -> dict[str, LikelyInput]:
    """Like `find_likely_inputs`, for columns at rows, and their steps to the next rows, both `(row, column)`."""
    likely: dict[str, LikelyInput] = {}
    is_free, follows = unexplained_share(before, steps) > UNEXPLAINED, find_followers(before, steps)
    for index, name in enumerate(names):
        levels, moves = len(np.unique(before[:, index])), float((steps[:, index] != 0).mean())
        if 2 <= levels <= MOST_LEVELS and 0 < moves < STAYS:
            leaps = levels == 2 or leaps_between_levels(before[:, index], steps[:, index])
            likely[name] = LikelyInput(f"stays at one of {levels} levels", is_certain=leaps)
        elif moves and is_free[index] and follows[index].any():
            followers = [names[int(follower)] for follower in np.flatnonzero(follows[index])]
            likely[name] = LikelyInput(f"is followed by {list_names(followers, 3)}")
    return likely


def leaps_between_levels(before: Float[np.ndarray, " row"], steps: Float[np.ndarray, " row"]) -> bool:
    """Whether a column stays at its levels, returns to them, and often passes over one on its way to another."""
    changes = np.flatnonzero(steps)
    stays = np.diff(np.append(changes, len(steps)))
    if np.median(stays) < LEAST_STAY:
        return False
    held = changes[stays > 1]
    levels = np.unique(before)
    ends = before[held][:, None], (before[held] + steps[held])[:, None]
    first, last = (np.abs(values - levels).argmin(axis=1) for values in ends)
    leaps = np.abs(last - first) > 1
    return len(held) > len(levels) and leaps.sum().item() >= FEWEST_LEAPS and leaps.mean().item() >= PASSES_OVER


def find_followers(
    before: Float[np.ndarray, "row column"], steps: Float[np.ndarray, "row column"]
) -> Bool[np.ndarray, "column follower"]:
    """Whether a column explains much of another's steps beyond that column itself, from correlations of all pairs."""
    columns, moves = standardise_columns(before), standardise_columns(steps)
    between, pulls = columns.T @ columns, columns.T @ moves
    own_pulls = np.diag(pulls)
    # The fraction that two columns explain together; for identical columns, the fraction that one explains.
    apart = 1 - between**2
    added = np.where(apart > TINY_SHARE, (pulls - between * own_pulls) ** 2 / np.maximum(apart, TINY_SHARE), 0.0)
    follows = 1 - own_pulls**2 - added < (1 - EXPLAINS) * (1 - own_pulls**2)
    return follows & ~np.eye(len(own_pulls), dtype=bool)


def standardise_columns(table: Float[np.ndarray, "row column"]) -> Float[np.ndarray, "row column"]:
    """Centres the columns and scales them to length 1; zeros for a column that does not vary."""
    centred = table - table.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    return np.where(np.ptp(table, axis=0) > 0, centred / np.where(length > 0, length, 1.0), 0.0)


def unexplained_share(
    table: Float[np.ndarray, "row column"], steps: Float[np.ndarray, "row step"]
) -> Float[np.ndarray, " step"]:
    """Computes the fraction of the variance of each column's steps that a linear equation of all columns leaves."""
    spread = steps.var(axis=0)
    design = np.column_stack([table - table.mean(axis=0), np.ones(len(table))])
    residuals = steps - design @ np.linalg.lstsq(design, steps, rcond=None)[0]
    return np.where(spread > 0, (residuals**2).mean(axis=0) / np.where(spread > 0, spread, 1.0), 0.0)
