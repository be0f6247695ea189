"""Guesses the roles of columns from common names of times and records, and from the columns' values."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .clocks import holds_clock
from .header import TIMES, plain_name
from .layout import Roles, condition_in
from .options import AS_RECOGNISED, ReadingOptions
from .reading import read_file
from .table import (
    Missing,
    is_blank,
    is_typed,
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
# Maximum size of files that are examined [bytes].
MOST_BYTES_LOOKED_AT = 20_000_000
# Minimum average number of rows of a record, below which names do not identify records.
LEAST_ROWS_OF_A_RECORD = 3
# Name of a well of a plate with 6 to 384 wells, and the fewest wells, in two rows of the plate, that are recognised.
WELL_NAME, FEWEST_WELLS = re.compile(r"([A-P])(0?[1-9]|1[0-9]|2[0-4])"), 6
# Names of inputs and outputs in control engineering; a unit may follow.
NAMED_INPUT, NAMED_OUTPUT = (re.compile(rf"{letter}(?:_?\d+)?(?:_[a-z%]+)?|{word}s?(?:[ _]?\w+)?") for letter, word in
                             (("u", "input"), ("y", "output")))  # fmt: skip
# Names, with a number behind them, of columns that each repeat an experiment. A probe may be a sensor beside others.
REPEAT_NAME = re.compile(r"(.*?)[\s_.-]*(\d+)(?:[\s_]*[\[(].*)?")
REPEATED_THINGS = {"rep", "repeat", "replicate", "run", "trial", "experiment", "versuch", "wiederholung", "sample"} | {
    "subject", "patient", "animal", "mouse", "rat", "plant", "well", "culture", "colony", "flask", "specimen",
    "tablet", "vial", "dish", "batch", "assay", "test", "donor", "volunteer", "participant", "person", "proband"
}  # fmt: skip
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
    files.

    If its values are those of records, in whose rows another column increases, and which are fewer than its values, the
    other column holds the times.
    """
    unique = tuple(name for name in names if name and names.count(name) == 1)
    if not unique or path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return names[0]
    table = read_file(path, ColumnsToSee(time=None, states=unique), options=options)
    columns = {
        name: column
        for name in unique
        if holds_stamps(column := table.columns[name])
        or holds_clock(column)
        or describe_no_state(column, name, table.missing) != HOLDS_TEXT
    }
    if not columns:
        return names[0]
    first, *others = columns
    return next((name for name in others if increases_in(columns[name], columns[first])), first)


def increases_in(column: "pandas.Series", records: "pandas.Series") -> bool:
    """Whether records follow one another, and numbers increase in the rows of each and are more than records."""
    cells: np.ndarray = column.to_numpy(dtype=object)
    numbers = np.array([np.nan if (number := number_in(cell)) is None else number for cell in cells])
    labels: np.ndarray = records.to_numpy(dtype=object)
    count, ends = records.nunique(), int((labels[1:] != labels[:-1]).sum())
    is_grouped = ends == count - 1 and column.nunique() > count
    return is_grouped and bool(np.isfinite(numbers).all()) and tells_records(records, numbers)


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


def find_named_inputs(names: Sequence[str]) -> dict[str, str]:
    """Finds inputs named as in control engineering, `u` beside `y` or `input` beside `output`, with the reason.

    `u` beside `v` or `x` is a state, as in equations of reactions and of coordinates.
    """
    plain = {name: plain_name(name) for name in names}
    if {"v", "x"} & set(plain.values()):
        return {}
    inputs, outputs = (
        [name for name in names if pattern.fullmatch(plain[name])] for pattern in (NAMED_INPUT, NAMED_OUTPUT)
    )
    return {name: f"is named as the input of {outputs[0]!r}" for name in inputs if outputs}


def find_conditions(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Finds columns such as `S0=0.5` and `S0=2`, an experiment at several values of a quantity, and that quantity."""
    conditions = {name: condition for name in names if (condition := condition_in(name)) is not None}
    quantities = {quantity for quantity, _ in conditions.values()}
    several = len({number for _, number in conditions.values()}) > 1
    return (quantities.pop(), list(conditions)) if len(quantities) == 1 and several else None


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


def find_limit(path: Path, names: Sequence[str], options: ReadingOptions = AS_RECOGNISED) -> tuple[str, str] | None:
    """Returns the first cell of some columns that is a limit or an interval, such as `<0.5`, and its column."""
    if not names or path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return None
    table = read_file(path, ColumnsToSee(time=None, states=tuple(names)), options=options)
    cells = ((cell, name) for name in names if not is_typed(table.columns[name]) for cell in table.columns[name])
    return next(((cell.strip(), name) for cell, name in cells if isinstance(cell, str) and holds_limit(cell)), None)


def holds_limit(cell: str) -> bool:
    """Whether a cell holds numbers as a limit or an interval, so that no other meaning is likely."""
    *signs, number = parts_of_cell(cell)
    return bool(signs) and number_in(number) is not None and (len(signs) < 2 or number_in(signs[0]) is not None)


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
    texts = [name for name in telling if describe_no_state(table.columns[name], name, table.missing) == HOLDS_TEXT]
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
