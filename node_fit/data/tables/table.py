"""A table as columns of texts or numbers, and what its texts say: numbers, names and timestamps."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    import pandas

TIME_UNITS: dict[str, Literal["s", "min", "h", "D"]] = {
    "s": "s",
    "min": "min",
    "h": "h",
    "d": "D",
}  # our names to those of pandas
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class RawTable:
    """The needed columns as read, and the position of each row in its file.

    **Arguments:**

    - `origin`: the file as the user named it, or `data frame`.
    - `columns`: a `pandas.Series` for each name; of strings, if read from a text file.
    - `lines`: the line of each row as a text editor counts, or `None` if the source has no lines.
    - `rows`: the row of the file that each row comes from, counted from 0; `None` if it is the same.
    - `own`: the trajectory name of each row if the layout, not a column, identifies it; else `None`.

    **Raises:** `ValueError` if there are no rows.
    """

    origin: str
    columns: dict[str, "pandas.Series"]
    lines: Int[np.ndarray, " row"] | None = None
    rows: Int[np.ndarray, " row"] | None = None
    own: np.ndarray | None = None

    def __post_init__(self):
        if len(self) == 0:
            raise ValueError(f"{self.origin} has columns but no rows; it needs at least one row of numbers.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, index: int) -> str:
        """Describes the position of a row for a message."""
        if self.lines is not None:
            return f"line {self.lines[index]}"
        number = index if self.rows is None else self.rows[index]
        return f"row {number} (counted from 0)" + ("" if self.own is None else f" of trajectory {self.own[index]!r}")

    def at(self, index: int, name: str) -> str:
        """Describes the position of a value for a message."""
        return f"{self.origin}, {self.row(index)}, column {name!r}"

    def take(
        self, index: Int[np.ndarray, " taken"], columns: dict[str, "pandas.Series"], own: np.ndarray | None = None
    ) -> "RawTable":
        """A table of new columns whose rows have the positions of rows `index` of this table."""
        lines = None if self.lines is None else self.lines[index]
        return RawTable(self.origin, columns, lines, index if self.rows is None else self.rows[index], own)


def choose_columns(names: Sequence[str], wanted: Sequence[str], origin: str) -> list[int]:
    """Positions of the wanted columns.

    **Raises:** `ValueError` if a column is unknown, with the nearest name, or if its name appears twice.
    """
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"{origin} has no column {name!r}; its columns are {list_names(names)}.{hint(name, names)}"
            )
        if names.count(name) > 1:
            places = " and ".join(str(i + 1) for i, known in enumerate(names) if known == name)
            raise ValueError(
                f"{origin} has {names.count(name)} columns named {name!r} (columns {places}); rename all but one."
            )
    return [names.index(name) for name in wanted]


def hint(name: str, names: Sequence[str]) -> str:
    """A question that suggests the nearest name; empty if none is near."""
    # For `difflib`, a short name that differs only in case is not a close match.
    near = get_close_matches(name, names, n=1) or [known for known in names if known.lower() == name.lower()]
    return f" Did you mean {near[0]!r}?" if near else ""


def list_names(names: Sequence[str], most: int = 20) -> str:
    """A list of names for a message, truncated if it is long."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


MISSING = ("", "NA", "NaN", "nan", "null")  # spellings of a missing number; any other word is text
UNKNOWN_FIX = "correct it, or leave it empty if the value is unknown."
INPUT_FIX = "inputs must be known at every time; fill it in, or remove the row."


def as_numbers_of_column(table: RawTable, name: str, fix: str, *, may_miss: bool) -> Float[np.ndarray, " row"]:
    """A column as float64, NaN where a value is missing.

    **Arguments:** `fix`: how the user can correct a value; `may_miss`: whether values may be missing.

    **Raises:** `ValueError` at the first value that is text, boolean, a date, infinite, or missing.
    """
    values = typed_numbers(table, name) if is_typed(table.columns[name]) else read_numbers(table, name, fix)
    raise_at_first(table, name, np.isinf(values), f"the value is infinite; {fix}")
    if not may_miss:
        raise_at_first(table, name, np.isnan(values), f"the value is missing; {fix}")
    return values


def is_typed(column: "pandas.Series") -> bool:
    """Whether a column has one type other than text or Python objects."""
    import pandas as pd

    kinds = pd.api.types
    return kinds.is_bool_dtype(column) or kinds.is_numeric_dtype(column) or column.dtype.kind in "mM"


def typed_numbers(table: RawTable, name: str) -> Float[np.ndarray, " row"]:
    column = table.columns[name]
    kind = {"b": "booleans", "m": "durations", "M": "timestamps", "c": "complex numbers"}.get(column.dtype.kind)
    if kind is not None:
        raise ValueError(f"{table.origin}, column {name!r} holds {kind}, not real numbers; convert it to numbers.")
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def read_numbers(table: RawTable, name: str, fix: str) -> Float[np.ndarray, " row"]:
    column = table.columns[name].to_numpy(dtype=object)
    values = read_plain(column)
    if values is not None:
        return values
    values = np.empty(len(column))
    for row, value in enumerate(column):
        try:
            values[row] = read_number(value)
        except (TypeError, ValueError):
            raise ValueError(f"{table.at(row, name)}: {quote(value)} is not a number; {fix}") from None
    return values


def read_plain(column: np.ndarray) -> Float[np.ndarray, " row"] | None:
    """A text column, converted at once; `None` if any value needs a closer look.

    The result is the same as that of `number`.
    """
    import pandas as pd

    if pd.api.types.infer_dtype(column, skipna=False) != "string" or "_" in "".join(column):
        return None
    known = ~np.isin(column, MISSING)
    values = np.full(len(column), np.nan)
    try:
        values[known] = column[known].astype(np.float64)
    except ValueError:
        return None
    return None if np.isnan(values[known]).any() else values


def read_number(value: object) -> float:
    """One value as a float; NaN if it is missing.

    **Raises:** `ValueError` or `TypeError` if it is not a number.
    """
    if isinstance(value, str):
        # Python also accepts `1_000` and words like `NAN`, which are text here.
        if "_" not in value:
            text = value.strip()
            if text in MISSING:
                return np.nan
            result = float(text)
            if result == result:
                return result
        raise ValueError(value)
    if is_absent(value):
        return np.nan
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{value}")
    return float(cast(float, value))


def is_absent(value: object) -> bool:
    """Whether a value is absent: `None`, NaN, NaT or `pandas.NA`."""
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def read_names(table: RawTable, name: str, what: str) -> np.ndarray:
    """A column of names as an array of text.

    **Raises:** `ValueError` at the first missing name; `what` is the thing that it names.
    """
    import pandas as pd

    column: np.ndarray = table.columns[name].to_numpy(dtype=object)
    codes, found = pd.factorize(column)
    # A missing value has the code -1, which selects the last name.
    result = np.array([*(label(value) for value in found), ""], dtype=object)[codes]
    raise_at_first(table, name, result == "", f"the row names no {what}; fill it in, or remove the row.")
    return result


def label(value: object) -> str:
    """A name as text. `7.0` is read as `7`, since pandas turns whole numbers into floats where others are missing."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def raise_at_first(table: RawTable, name: str, wrong: np.ndarray, sentence: str) -> None:
    if wrong.any():
        raise ValueError(f"{table.at(int(wrong.argmax()), name)}: {sentence}")


def quote(value: object, most: int = 40) -> str:
    """A value for a message, truncated if it is long."""
    text = repr(value.strip()) if isinstance(value, str) else str(value)
    return text if len(text) <= most else f"{text[:most]}..."


class Dates(NamedTuple):
    """When trajectories took place.

    - `zero`: the instant of time 0 of each trajectory, UTC, shape `(trajectory,)`, `datetime64[us]`.
    - `unit`: of times: `s`, `min`, `h` or `d`.
    - `zone`: in which timestamps were written; None if they named none.
    """

    zero: np.ndarray
    unit: str
    zone: str | None

    def of(self, trajectories: np.ndarray) -> "Dates":
        """The dates of some trajectories, by index."""
        return self._replace(zero=self.zero[trajectories])

    def told(self, name: str, *, chosen: bool) -> str:
        """A sentence on the unit of a column of timestamps, and whether it was chosen by their spacing."""
        why = f", chosen by its rows' spacing (data.time_unit={self.unit})" if chosen else ""
        return f"time: {name} counts in {self.unit} from {self.first}{why}"

    @property
    def first(self) -> str:
        """The first instant of all, without a time of day if that is midnight."""
        zero: np.datetime64 = self.zero.min()
        found = np.datetime_as_string(zero, "s").replace("T", " ").removesuffix(" 00:00:00")
        return f"{found} UTC" if self.zone else found

    def stamps(self, trajectories: np.ndarray, times: Float[np.ndarray, " row"]) -> "pandas.DatetimeIndex":
        """The timestamps of times, a `pandas.DatetimeIndex` to the microsecond, in the zone that they came in.

        **Arguments:** `trajectories`: index of each time's trajectory.
        """
        import pandas as pd

        since = np.round(times * SECONDS[self.unit] * 1e6).astype("timedelta64[us]")
        found = pd.DatetimeIndex(self.zero[trajectories] + since)
        return found if self.zone is None else found.tz_localize("UTC").tz_convert(self.zone)


def unit_for(seconds: float) -> str:
    """The largest unit that is not longer than a step of so many seconds; seconds at the least."""
    return next((unit for unit in ("d", "h", "min") if seconds >= SECONDS[unit]), "s")


TIME_FIX = "every row needs a time: a number, or a timestamp such as 2020-12-31 or 2020-12-31T23:59:00."
NO_ZONE = "not given"
DATE = re.compile(r"\s*\d{4}-\d{2}")
YEAR_LAST = re.compile(r"\s*(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?!\d)")
ZONE = re.compile(r"[Tt ]\d{2}(?::?\d{2})*(?:[.,]\d+)?\s*(Z|[+-]\d{2}(?::?\d{2})?)\s*$")


class Stamps(NamedTuple):
    """Timestamps: `instants`, a `pandas.DatetimeIndex` in UTC, and the zone in which they were written."""

    instants: "pandas.DatetimeIndex"
    zone: str

    @property
    def first(self) -> "pandas.Timestamp":
        return self.instants.min()


def read_times(
    table: RawTable, name: str, unit: str | None, day_first: bool | None
) -> Float[np.ndarray, " row"] | Stamps:
    """The times of a table, as numbers or as timestamps that are not yet converted.

    **Arguments:** `day_first`: whether 01.03.2024 is in March (or in January); None if no date is written like that.

    **Raises:** `ValueError` at the first invalid or missing time, or if `unit` does not fit the kind of time.
    """
    if not holds_stamps(table.columns[name]):
        values = as_numbers_of_column(table, name, TIME_FIX, may_miss=False)
        if unit is not None:
            raise ValueError(
                f"{table.origin}, column {name!r} holds numbers, but time_unit={unit!r} is for timestamps; leave it "
                "out, and give the unit of the numbers in units."
            )
        return values
    return read_stamps(table, name, day_first)


def check_unit(unit: str | None, has_column: bool) -> None:
    """Rejects an unknown unit, or one given without a column of times."""
    if unit is not None and unit not in TIME_UNITS:
        raise ValueError(f"time_unit must be one of {', '.join(TIME_UNITS)}, got {unit!r}.")
    if unit is not None and not has_column:
        raise ValueError(f"time_unit={unit!r} is for a column of timestamps; with step, give the unit in units.")


def count_time(stamps: Stamps, first: "pandas.Timestamp", unit: str) -> Float[np.ndarray, " row"]:
    """Time since the instant `first`, in `unit`."""
    import pandas as pd

    return ((stamps.instants - first) / pd.Timedelta(1, TIME_UNITS[unit])).to_numpy(dtype=np.float64)


def holds_stamps(column: "pandas.Series") -> bool:
    """Whether the first value of a column is a date; all others must then be dates too."""
    import datetime

    if column.dtype.kind == "M":
        return True
    first = next((value for value in column.to_numpy(dtype=object) if not is_blank(value)), None)
    dated = isinstance(first, str) and (DATE.match(first) or YEAR_LAST.match(first))
    return isinstance(first, datetime.date) or bool(dated)


def year_first(value: object, day_first: bool | None) -> object:
    """A timestamp whose year comes last, as ISO 8601; any other value as it is."""
    found = YEAR_LAST.match(value) if isinstance(value, str) and day_first is not None else None
    if found is None:
        return value
    day, month = found[1 if day_first else 2], found[2 if day_first else 1]
    return f"{found[3]}-{month:0>2}-{day:0>2}{found.string[found.end() :]}"


def read_stamps(table: RawTable, name: str, day_first: bool | None) -> Stamps:
    import pandas as pd

    column = table.columns[name]
    if column.dtype.kind == "M":
        zones = np.array([str(getattr(column.dtype, "tz", None) or NO_ZONE)] * len(column))
        values = column
    else:
        values = column.astype(object).map(functools.partial(year_first, day_first=day_first))
        zones = np.array([zone(value) for value in values])
    # Only ISO 8601 is accepted by itself: 03/04/2020 may be a day in March or in April.
    instants = pd.DatetimeIndex(pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True))
    wrong = np.flatnonzero(instants.isna())
    if wrong.size:
        row = int(wrong[0])
        value = column.iloc[row]
        if day_first is None and isinstance(value, str) and YEAR_LAST.match(value):
            raise ValueError(
                f"{table.at(row, name)}: {quote(value)} begins with a day or with a month; say which, day_first=true "
                "or day_first=false, or write the year first, as in 2020-12-31."
            )
        fault = "the time is missing" if is_blank(value) else f"{quote(value)} is not a timestamp"
        raise ValueError(f"{table.at(row, name)}: {fault}; {TIME_FIX}")
    other = np.flatnonzero(zones != zones[0])
    if other.size:
        row = int(other[0])
        raise ValueError(
            f"{table.at(row, name)}: the time zone is {zones[row]}, but in {table.row(0)} it is {zones[0]}; "
            "write all times in one zone, such as UTC."
        )
    return Stamps(instants, str(zones[0]))


def zone(value: object) -> str:
    """The time zone in which a timestamp was written."""
    if isinstance(value, str):
        found = ZONE.search(value)
        return found[1] if found else NO_ZONE
    return str(getattr(value, "tzinfo", None) or NO_ZONE)


def zone_name(zone: str) -> str | None:
    """The name that pandas has for a zone as it was written; None if none was given, UTC if pandas knows it not."""
    import pandas as pd

    if zone == NO_ZONE:
        return None
    offset = re.fullmatch(r"([+-]\d{2}):?(\d{2})?", zone)
    name = f"{offset[1]}:{offset[2] or '00'}" if offset else zone
    try:
        pd.Timestamp(0, tz=name)
    except (KeyError, ValueError):
        return "UTC"
    return name


def is_blank(value: object) -> bool:
    return is_absent(value) or (isinstance(value, str) and not value.strip())
