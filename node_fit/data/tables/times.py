"""Times of a table: numbers, timestamps, or dates written as numbers."""

import datetime
import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int

from .table import RawTable, as_numbers_of_column, is_blank, quote

if TYPE_CHECKING:
    import pandas

TIME_UNITS: dict[str, Literal["s", "min", "h", "D"]] = {
    "s": "s",
    "min": "min",
    "h": "h",
    "d": "D",
}  # our names to those of pandas
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Dates(NamedTuple):
    """Calendar dates of trajectories.

    - `zero`: the instant of time 0 of each trajectory, UTC, shape `(trajectory,)`, `datetime64[us]`.
    - `unit`: unit of times: `s`, `min`, `h` or `d`.
    - `zone`: time zone of the timestamps; None if they specify none.
    - `digits`: the first date if dates are written as numbers, such as `20240131`; else None.
    - `remark`: further remark on the format of the timestamps.
    """

    zero: np.ndarray
    unit: str
    zone: str | None
    digits: str | None = None
    remark: str = ""

    def of(self, trajectories: np.ndarray) -> "Dates":
        """Selects the dates of some trajectories by index."""
        return self._replace(zero=self.zero[trajectories])

    def describe_unit(self, name: str, *, chosen: bool) -> str:
        """Describes the unit of a column of timestamps, and whether it was selected from their spacing."""
        why = f", chosen by its rows' spacing (data.time_unit={self.unit})" if chosen else ""
        written = "" if self.digits is None else f"; its numbers, such as {self.digits}, are dates"
        return f"time: {name} counts in {self.unit} from {self.first}{why}{written}{self.remark}"

    @property
    def first(self) -> str:
        """The earliest instant, without a time of day if that is midnight."""
        zero: np.datetime64 = self.zero.min()
        text = np.datetime_as_string(zero, "s").replace("T", " ").removesuffix(" 00:00:00")
        return f"{text} UTC" if self.zone else text

    def stamps(self, trajectories: np.ndarray, times: Float[np.ndarray, " row"]) -> "pandas.DatetimeIndex":
        """Converts times to timestamps, a `pandas.DatetimeIndex` to the microsecond, in their original zone.

        **Arguments:** `trajectories`: index of each time's trajectory.
        """
        import pandas as pd

        since = np.round(times * SECONDS[self.unit] * 1e6).astype("timedelta64[us]")
        index = pd.DatetimeIndex(self.zero[trajectories] + since)
        return index if self.zone is None else index.tz_localize("UTC").tz_convert(self.zone)

    def time_of(self, timestamp: object, zero: np.datetime64) -> float:
        """Converts a timestamp to the time since an instant [unit]; without a zone, it is in that of the data.

        **Raises:** `TypeError` or `ValueError` if it can't be read.
        """
        import pandas as pd

        instant = pd.Timestamp(cast(str, timestamp))
        if instant.tzinfo is None:
            instant = instant.tz_localize(self.zone or "UTC")
        return (instant.tz_convert(None) - pd.Timestamp(zero)).total_seconds() / SECONDS[self.unit]


def unit_for(seconds: float) -> str:
    """Returns the largest unit that is not longer than a step of `seconds`, but at least seconds."""
    return next((unit for unit in ("d", "h", "min") if seconds >= SECONDS[unit]), "s")


TIME_FIX = "every row needs a time: a number, or a timestamp such as 2020-12-31 or 2020-12-31T23:59:00."
NO_ZONE = "not given"
DATE = re.compile(r"\s*\d{4}-\d{2}")
YEAR_LAST = re.compile(r"\s*(\d{1,2})[./-](\d{1,2})(?:[./-](\d{4})|[./](\d{2}))(?!\d)")
WITH_DOTS = re.compile(r"\s*\d{1,2}\.\d{1,2}\.\d")
# Dates are read in the order in which neighbouring rows are at least this many times closer in time.
MUCH_CLOSER = 5
# Two-digit years below this number belong to this century.
FIRST_OF_LAST_CENTURY = 70
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NAMED_MONTH = re.compile(rf"\s*(\d{{1,2}})[-. /]({'|'.join(MONTHS)})[a-z]*[-. /]+(\d{{4}})(?!\d)", re.IGNORECASE)
TO_TWELVE = re.compile(r"[Tt ]+(\d{1,2})(:\d{2}(?::\d{2}(?:[.,]\d+)?)?)\s*([AaPp])\.?[Mm]\.?\s*$")
ZONE = re.compile(r"[Tt ]\d{2}(?::?\d{2})*(?:[.,]\d+)?\s*(Z|[+-]\d{2}(?::?\d{2})?)\s*$")


class Stamps(NamedTuple):
    """Timestamps: `instants`, a `pandas.DatetimeIndex` in UTC, their original zone, and a remark on their format."""

    instants: "pandas.DatetimeIndex"
    zone: str
    remark: str = ""

    @property
    def first(self) -> "pandas.Timestamp":
        return self.instants.min()


def read_times(
    table: RawTable, name: str, unit: str | None, day_first: bool | None
) -> Float[np.ndarray, " row"] | Stamps:
    """Reads the times of a table, as numbers or as timestamps that are not yet converted.

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
    """Rejects an unknown unit, or a unit without a column of times."""
    if unit is not None and unit not in TIME_UNITS:
        raise ValueError(f"time_unit must be one of {', '.join(TIME_UNITS)}, got {unit!r}.")
    if unit is not None and not has_column:
        raise ValueError(f"time_unit={unit!r} is for a column of timestamps; with step, give the unit in units.")


def count_time(stamps: Stamps, first: "pandas.Timestamp", unit: str) -> Float[np.ndarray, " row"]:
    """Computes the time since the instant `first`, in `unit`."""
    import pandas as pd

    return ((stamps.instants - first) / pd.Timedelta(1, TIME_UNITS[unit])).to_numpy(dtype=np.float64)


def holds_stamps(column: "pandas.Series") -> bool:
    """Whether the first value of a column is a date; all others must then be dates too."""
    if column.dtype.kind == "M":
        return True
    first = next((value for value in column.to_numpy(dtype=object) if not is_blank(value)), None)
    dated = isinstance(first, str) and any(pattern.match(first) for pattern in (DATE, YEAR_LAST, NAMED_MONTH))
    return isinstance(first, datetime.date) or bool(dated)


# Range of Unix times, from 2001 to 2096 [s]; and number of other units of loggers per second.
EPOCH, UNIX_UNITS = (1e9, 4e9), {"millisecond": 1e3, "microsecond": 1e6, "nanosecond": 1e9}
# Units of Unix times by their names in `time_format`.
UNIX_FORMATS: dict[str, tuple[str, Literal["s", "ms", "us", "ns"]]] = {
    "unix_s": ("second", "s"),
    "unix_ms": ("millisecond", "ms"),
    "unix_us": ("microsecond", "us"),
    "unix_ns": ("nanosecond", "ns"),
}


def unix_unit(values: Float[np.ndarray, " row"]) -> str | None:
    """Returns the unit, other than seconds, in which all of these numbers look like Unix times; None if they do not.

    A single number also gives None, since its unit does not matter.
    """
    for unit, count in UNIX_UNITS.items():
        if values.size > 1 and EPOCH[0] * count <= values.min() and values.max() <= EPOCH[1] * count:
            return unit
    return None


def with_unix_dates(tables: Sequence[RawTable], name: str, time_format: str | None) -> tuple[Sequence[RawTable], str]:
    """Converts Unix times in milliseconds or the like to timestamps; also returns a remark on that."""
    import pandas as pd

    columns = [table.columns[name] for table in tables]
    if time_format is None and any(holds_stamps(column) or not has_digits_alone(column) for column in columns):
        return tables, ""
    numbers = [as_numbers_of_column(table, name, TIME_FIX, may_miss=False) for table in tables]
    if time_format is None:
        detected = unix_unit(np.concatenate(numbers))
        matching = [format_entry for format_entry in UNIX_FORMATS.values() if format_entry[0] == detected]
        if not matching:
            return tables, ""
        unit, short = matching[0]
    else:
        unit, short = UNIX_FORMATS[time_format]
    dated: list[RawTable] = []
    for table, values in zip(tables, numbers, strict=True):
        digits = table.columns[name].map(as_digits)
        # Whole numbers of nanoseconds have more digits than floats.
        counts = digits.astype(np.int64) if digits.all() else pd.Series(values)
        dated.append(replace(table, columns={**table.columns, name: pd.to_datetime(counts, unit=short, utc=True)}))
    return dated, f"; its numbers, such as {numbers[0][0]:.0f}, are {unit}s since 1970 (data.time_format=number)"


def has_digits_alone(column: "pandas.Series") -> bool:
    """Whether a column has a numeric type, or its first value is a number with many digits."""
    if column.dtype.kind in "iuf":
        return True
    return len(column) > 0 and len(as_digits(column.iloc[0])) > 12


# Formats of dates written as numbers, by their number of digits, and the unit of the last digits.
DIGIT_LAYOUTS: dict[int, tuple[str, Literal["D", "h", "min", "s"]]] = {
    8: ("%Y%m%d", "D"),
    10: ("%Y%m%d%H", "h"),
    12: ("%Y%m%d%H%M", "min"),
    14: ("%Y%m%d%H%M%S", "s"),
}
WHOLE_NUMBER = re.compile(r"\s*(\d+)(?:\.0*)?\s*", re.ASCII)
# Numbers with at least this many digits are not counts, whose steps could equal those of dates by chance.
LONG_DIGITS = 12
FIRST_YEAR, LAST_YEAR = 1900, 2099
# Parts of the name of a date column.
NAMED_AS_DATE = re.compile(r"date|datum|day|stamp|yyyy", re.IGNORECASE)


class DigitDates(NamedTuple):
    """Numbers that can be dates: as dates, the first as written, and whether counts would have other steps."""

    instants: "pandas.Series"
    first: str
    is_no_count: bool


def read_digit_dates(column: "pandas.Series") -> DigitDates | None:
    """Parses the dates of a column of numbers such as 20240131 or 20240131120000; None if one is not a date."""
    import pandas as pd

    first = as_digits(column.iloc[0])
    if len(first) not in DIGIT_LAYOUTS:
        return None
    texts = column.map(as_digits)
    if (texts.str.len() != len(first)).any():
        return None
    layout, unit = DIGIT_LAYOUTS[len(first)]
    instants = pd.to_datetime(texts, format=layout, errors="coerce")
    if instants.isna().any() or not instants.dt.year.between(FIRST_YEAR, LAST_YEAR).all():
        return None
    steps = instants.diff().iloc[1:] / pd.Timedelta(1, unit)
    counted = texts.astype(np.int64).diff().iloc[1:]
    return DigitDates(instants, first, len(first) >= LONG_DIGITS or bool((steps != counted).any()))


def as_digits(value: object) -> str:
    """Returns the digits of a whole number, even if it is stored as a float; empty for anything else."""
    match = WHOLE_NUMBER.fullmatch(str(value))
    return match[1] if match else ""


def with_digit_dates(tables: Sequence[RawTable], name: str, *, is_dated: bool) -> tuple[Sequence[RawTable], str | None]:
    """Converts times that are dates written as numbers to timestamps; also returns the first of these numbers.

    Consecutive days of one month, for example, can also be a count, unless the column name contains `date`.

    **Arguments:** `is_dated`: whether times are known to be dates.
    """
    parsed = [read_digit_dates(table.columns[name]) for table in tables]
    dates = [columns_of_dates for columns_of_dates in parsed if columns_of_dates is not None]
    is_dated = (
        is_dated
        or NAMED_AS_DATE.search(name) is not None
        or any(columns_of_dates.is_no_count for columns_of_dates in dates)
    )
    if len(dates) < len(tables) or not is_dated:
        return tables, None
    pairs = zip(tables, dates, strict=True)
    return [
        replace(table, columns={**table.columns, name: columns_of_dates.instants}) for table, columns_of_dates in pairs
    ], dates[0].first


def as_iso(value: object, day_first: bool | None) -> object:
    """Converts timestamps with the year last, a named month or 12-hour times to ISO 8601; returns others unchanged."""
    if not isinstance(value, str):
        return value
    if half := TO_TWELVE.search(value):
        hour = int(half[1]) % 12 + (12 if half[3].lower() == "p" else 0)
        value = f"{value[: half.start()]} {hour:02d}{half[2]}"
    if named := NAMED_MONTH.match(value):
        return f"{named[3]}-{MONTHS.index(named[2].lower()) + 1:02d}-{named[1]:0>2}{value[named.end() :]}"
    match = YEAR_LAST.match(value) if day_first is not None else None
    if match is None:
        return value
    day, month = match[1 if day_first else 2], match[2 if day_first else 1]
    century = 19 if int(match[4] or 0) >= FIRST_OF_LAST_CENTURY else 20
    return f"{match[3] or f'{century}{match[4]}'}-{month:0>2}-{day:0>2}{value[match.end() :]}"


def tell_day_first(column: "pandas.Series") -> bool | None:
    """Whether dates with the year last begin with the day; None if this can't be told.

    A number above 12 decides, or that dates with dots begin with the day, or the longest step between rows.
    """
    texts = [value for value in column if isinstance(value, str)]
    dates = [match for value in texts if (match := YEAR_LAST.match(value))]
    firsts, seconds = ({int(match[place]) for match in dates} for place in (1, 2))
    can_begin = max(seconds, default=0) <= 12, max(firsts, default=0) <= 12
    if not dates or can_begin != (True, True):
        return can_begin[0] if can_begin[0] != can_begin[1] else None
    if all(WITH_DOTS.match(match.string) for match in dates):
        return True
    # The days of a month could also be one day of several months, unless rows are hours apart.
    if 1 in (len(firsts), len(seconds)) and len({match.string[match.end() :] for match in dates}) == 1:
        return None
    by_day, by_month = (longest_step(texts, day_first) for day_first in (True, False))
    return by_day < by_month if max(by_day, by_month) >= MUCH_CLOSER * min(by_day, by_month) > 0 else None


def longest_step(texts: Sequence[str], day_first: bool) -> float:
    """Returns the longest time between neighbouring timestamps, in seconds; 0 if there are no two."""
    import pandas as pd

    read = [str(as_iso(text, day_first)) for text in texts]
    seconds = pd.to_datetime(read, format="ISO8601", errors="coerce", utc=True).to_numpy(dtype="datetime64[s]")
    steps = np.abs(np.diff(seconds)) / np.timedelta64(1, "s")
    return float(np.nanmax(steps)) if np.isfinite(steps).any() else 0.0


def read_stamps(table: RawTable, name: str, day_first: bool | None) -> Stamps:
    import pandas as pd

    column, remark = table.columns[name], ""
    if column.dtype.kind == "M":
        zones = np.array([str(getattr(column.dtype, "tz", None) or NO_ZONE)] * len(column))
        values = column
    else:
        if day_first is None and (day_first := tell_day_first(column)) is not None:
            remark = (
                f"; dates begin with the {'day' if day_first else 'month'} (data.day_first={str(day_first).lower()})"
            )
        values = column.astype(object).map(functools.partial(as_iso, day_first=day_first))
        zones = np.array([zone(value) for value in values])
    # Only ISO 8601 is accepted by itself: 03/04/2020 can be a day in March or in April.
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
    mixed = np.flatnonzero((zones == NO_ZONE) != (zones[0] == NO_ZONE))
    if mixed.size:
        row = int(mixed[0])
        raise ValueError(
            f"{table.at(row, name)}: the time zone is {zones[row]}, but in {table.row(0)} it is {zones[0]}; "
            "write all times in one zone, such as UTC."
        )
    offsets = list(dict.fromkeys(zones.tolist()))
    if len(offsets) > 1:
        remark += f"; its offsets change ({', '.join(offsets[:3])}), so dates are in UTC"
    return Stamps(instants, offsets[0] if len(offsets) == 1 else "UTC", remark)


def zone(value: object) -> str:
    """Returns the time zone in which a timestamp was written."""
    if isinstance(value, str):
        match = ZONE.search(value)
        return match[1] if match else NO_ZONE
    return str(getattr(value, "tzinfo", None) or NO_ZONE)


def zone_name(zone: str) -> str | None:
    """Returns pandas' name for a written zone; None without a zone, UTC if pandas does not know it."""
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


def utc(instant: "pandas.Timestamp") -> np.datetime64:
    return np.datetime64(instant.tz_convert(None), "us")


def spacing(stamps: Sequence[Stamps], codes: Int[np.ndarray, " row"]) -> float:
    """Computes the median time between two rows of a trajectory [s]; 1 if no trajectory has two rows."""
    begins = [stamp.instants[0] for stamp in stamps]
    seconds = np.concatenate(
        [
            (stamp.instants - begin).total_seconds().to_numpy() + (begin - begins[0]).total_seconds()
            for stamp, begin in zip(stamps, begins, strict=True)
        ]
    )
    return typical_step(seconds, codes)


def typical_step(seconds: Float[np.ndarray, " row"], codes: Int[np.ndarray, " row"]) -> float:
    """Computes the median time between two rows of a trajectory [s]; 1 if no trajectory has two rows."""
    order = np.lexsort((seconds, codes))
    steps = np.diff(seconds[order])[np.diff(codes[order]) == 0]
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
