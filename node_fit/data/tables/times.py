"""Times of a table: numbers, timestamps, or dates that are written as numbers."""

import datetime
import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

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
    """When trajectories took place.

    - `zero`: the instant of time 0 of each trajectory, UTC, shape `(trajectory,)`, `datetime64[us]`.
    - `unit`: of times: `s`, `min`, `h` or `d`.
    - `zone`: in which timestamps were written; None if they named none.
    - `digits`: the first of dates that are written as numbers, such as `20240131`; None of others.
    - `remark`: what else to say of how they were written.
    """

    zero: np.ndarray
    unit: str
    zone: str | None
    digits: str | None = None
    remark: str = ""

    def of(self, trajectories: np.ndarray) -> "Dates":
        """The dates of some trajectories, by index."""
        return self._replace(zero=self.zero[trajectories])

    def told(self, name: str, *, chosen: bool) -> str:
        """A sentence on the unit of a column of timestamps, and whether it was chosen by their spacing."""
        why = f", chosen by its rows' spacing (data.time_unit={self.unit})" if chosen else ""
        written = "" if self.digits is None else f"; its numbers, such as {self.digits}, are dates"
        return f"time: {name} counts in {self.unit} from {self.first}{why}{written}{self.remark}"

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
YEAR_LAST = re.compile(r"\s*(\d{1,2})[./-](\d{1,2})(?:[./-](\d{4})|[./](\d{2}))(?!\d)")
# Years of two digits are of this century below this number.
FIRST_OF_LAST_CENTURY = 70
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NAMED_MONTH = re.compile(rf"\s*(\d{{1,2}})[-. /]({'|'.join(MONTHS)})[a-z]*[-. /]+(\d{{4}})(?!\d)", re.IGNORECASE)
TO_TWELVE = re.compile(r"[Tt ]+(\d{1,2})(:\d{2}(?::\d{2}(?:[.,]\d+)?)?)\s*([AaPp])\.?[Mm]\.?\s*$")
ZONE = re.compile(r"[Tt ]\d{2}(?::?\d{2})*(?:[.,]\d+)?\s*(Z|[+-]\d{2}(?::?\d{2})?)\s*$")


class Stamps(NamedTuple):
    """Timestamps: `instants`, a `pandas.DatetimeIndex` in UTC, the zone in which they were written, and a remark on
    how they were."""

    instants: "pandas.DatetimeIndex"
    zone: str
    remark: str = ""

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
    if column.dtype.kind == "M":
        return True
    first = next((value for value in column.to_numpy(dtype=object) if not is_blank(value)), None)
    dated = isinstance(first, str) and any(pattern.match(first) for pattern in (DATE, YEAR_LAST, NAMED_MONTH))
    return isinstance(first, datetime.date) or bool(dated)


# Unix times are from 2001 to 2096 [s]; and how many of other units loggers count in a second.
EPOCH, UNIX_UNITS = (1e9, 4e9), {"millisecond": 1e3, "microsecond": 1e6, "nanosecond": 1e9}
# By the names that `time_format` has for them.
UNIX_FORMATS: dict[str, tuple[str, Literal["s", "ms", "us", "ns"]]] = {
    "unix_s": ("second", "s"),
    "unix_ms": ("millisecond", "ms"),
    "unix_us": ("microsecond", "us"),
    "unix_ns": ("nanosecond", "ns"),
}


def unix_unit(values: Float[np.ndarray, " row"]) -> str | None:
    """The unit in which all of these numbers look like times since 1970, other than seconds; None if they do not.

    Nor does a single one, of which no unit matters.
    """
    for unit, count in UNIX_UNITS.items():
        if values.size > 1 and EPOCH[0] * count <= values.min() and values.max() <= EPOCH[1] * count:
            return unit
    return None


def with_unix_dates(tables: Sequence[RawTable], name: str, time_format: str | None) -> tuple[Sequence[RawTable], str]:
    """Tables whose times are timestamps if they count milliseconds or the like since 1970, and a remark on that."""
    import pandas as pd

    columns = [table.columns[name] for table in tables]
    if time_format is None and any(holds_stamps(column) or not has_digits_alone(column) for column in columns):
        return tables, ""
    numbers = [as_numbers_of_column(table, name, TIME_FIX, may_miss=False) for table in tables]
    if time_format is None:
        found = unix_unit(np.concatenate(numbers))
        known = [each for each in UNIX_FORMATS.values() if each[0] == found]
        if not known:
            return tables, ""
        unit, short = known[0]
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
    """Whether a column has a type of numbers, or its first value is a number of many digits."""
    if column.dtype.kind in "iuf":
        return True
    return len(column) > 0 and len(as_digits(column.iloc[0])) > 12


# Dates that are written as numbers, by how many digits they have, and the unit of the last ones.
DIGIT_LAYOUTS: dict[int, tuple[str, Literal["D", "h", "min", "s"]]] = {
    8: ("%Y%m%d", "D"),
    10: ("%Y%m%d%H", "h"),
    12: ("%Y%m%d%H%M", "min"),
    14: ("%Y%m%d%H%M%S", "s"),
}
WHOLE_NUMBER = re.compile(r"\s*(\d+)(?:\.0*)?\s*", re.ASCII)
# Longer numbers are no counts, whose steps might be the same by chance.
LONG_DIGITS = 12
FIRST_YEAR, LAST_YEAR = 1900, 2099
# What the name of a column of dates contains.
NAMED_AS_DATE = re.compile(r"date|datum|day|stamp|yyyy", re.IGNORECASE)


class DigitDates(NamedTuple):
    """Numbers that can be dates: as such, the first as it is written, and whether counts would have other steps."""

    instants: "pandas.Series"
    first: str
    is_no_count: bool


def read_digit_dates(column: "pandas.Series") -> DigitDates | None:
    """The dates of a column of numbers such as 20240131 or 20240131120000; None if one of them is no date."""
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
    """A whole number as its digits, also where it is stored as a float; empty for anything else."""
    found = WHOLE_NUMBER.fullmatch(str(value))
    return found[1] if found else ""


def with_digit_dates(tables: Sequence[RawTable], name: str, *, is_dated: bool) -> tuple[Sequence[RawTable], str | None]:
    """Tables whose times are timestamps if they are dates that are written as numbers, and the first of these.

    Consecutive days of one month, say, may as well be a count, unless the name of the column says `date`.

    **Arguments:** `is_dated`: whether times are known to be dates.
    """
    found = [read_digit_dates(table.columns[name]) for table in tables]
    dates = [each for each in found if each is not None]
    is_dated = is_dated or NAMED_AS_DATE.search(name) is not None or any(each.is_no_count for each in dates)
    if len(dates) < len(tables) or not is_dated:
        return tables, None
    pairs = zip(tables, dates, strict=True)
    return [replace(table, columns={**table.columns, name: each.instants}) for table, each in pairs], dates[0].first


def as_iso(value: object, day_first: bool | None) -> object:
    """A timestamp with the year last, a month by name or hours to twelve as ISO 8601; any other value as it is."""
    if not isinstance(value, str):
        return value
    if half := TO_TWELVE.search(value):
        hour = int(half[1]) % 12 + (12 if half[3].lower() == "p" else 0)
        value = f"{value[: half.start()]} {hour:02d}{half[2]}"
    if named := NAMED_MONTH.match(value):
        return f"{named[3]}-{MONTHS.index(named[2].lower()) + 1:02d}-{named[1]:0>2}{value[named.end() :]}"
    found = YEAR_LAST.match(value) if day_first is not None else None
    if found is None:
        return value
    day, month = found[1 if day_first else 2], found[2 if day_first else 1]
    century = 19 if int(found[4] or 0) >= FIRST_OF_LAST_CENTURY else 20
    return f"{found[3] or f'{century}{found[4]}'}-{month:0>2}-{day:0>2}{value[found.end() :]}"


def tell_day_first(column: "pandas.Series") -> bool | None:
    """Whether dates with the year last begin with the day, if one of their numbers can't be a month; else None."""
    numbers = [match for value in column if isinstance(value, str) and (match := YEAR_LAST.match(value))]
    firsts, seconds = (max((int(match[place]) for match in numbers), default=0) for place in (1, 2))
    return firsts > 12 if (firsts > 12) != (seconds > 12) else None


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
    other = np.flatnonzero((zones == NO_ZONE) != (zones[0] == NO_ZONE))
    if other.size:
        row = int(other[0])
        raise ValueError(
            f"{table.at(row, name)}: the time zone is {zones[row]}, but in {table.row(0)} it is {zones[0]}; "
            "write all times in one zone, such as UTC."
        )
    offsets = list(dict.fromkeys(zones.tolist()))
    if len(offsets) > 1:
        remark += f"; its offsets change ({', '.join(offsets[:3])}), so dates are in UTC"
    return Stamps(instants, offsets[0] if len(offsets) == 1 else "UTC", remark)


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


def utc(instant: "pandas.Timestamp") -> np.datetime64:
    return np.datetime64(instant.tz_convert(None), "us")


def spacing(stamps: Sequence[Stamps], codes: Int[np.ndarray, " row"]) -> float:
    """The median time between two rows of a trajectory [s]; 1 if there is none."""
    begins = [each.instants[0] for each in stamps]
    seconds = np.concatenate(
        [
            (each.instants - begin).total_seconds().to_numpy() + (begin - begins[0]).total_seconds()
            for each, begin in zip(stamps, begins, strict=True)
        ]
    )
    return typical_step(seconds, codes)


def typical_step(seconds: Float[np.ndarray, " row"], codes: Int[np.ndarray, " row"]) -> float:
    """The median time between two rows of a trajectory [s]; 1 if there is none."""
    order = np.lexsort((seconds, codes))
    steps = np.diff(seconds[order])[np.diff(codes[order]) == 0]
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
