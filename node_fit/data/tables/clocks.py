"""Times of day and durations, such as `14:05:00`, as seconds."""

import datetime
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .table import RawTable, is_blank, quote
from .times import SECONDS

if TYPE_CHECKING:
    import pandas

CLOCK = re.compile(
    r"\s*(?:(?P<days>\d+) days?,? )?(?P<first>\d+):(?P<second>\d{2})(?::(?P<third>\d{2}))?(?P<part>[.,]\d+)?"
    r"\s*(?P<half>[AaPp]\.?[Mm]\.?)?\s*"
)
DAY, HALF_DAY = SECONDS["d"], SECONDS["d"] / 2
CLOCK_FORMATS = ("hh:mm:ss", "hh:mm", "mm:ss")


class Clock(NamedTuple):
    """Times of day or durations: `seconds` from 00:00:00, and the `layout` in which they are written."""

    seconds: Float[np.ndarray, " row"]
    layout: str


def holds_clock(column: "pandas.Series") -> bool:
    """Whether the first value of a column is a time of day or a duration; all others must then be too."""
    if column.dtype.kind == "m":
        return True
    first = next((value for value in column.to_numpy(dtype=object) if not is_blank(value)), None)
    is_written = isinstance(first, str) and CLOCK.fullmatch(first) is not None
    return is_written or isinstance(first, datetime.time | datetime.timedelta)


def read_clock(table: RawTable, name: str, layout: str | None) -> Clock:
    """Reads the times of a column as seconds.

    **Arguments:** `layout`: one of `CLOCK_FORMATS`; None for `hh:mm:ss`, or `hh:mm` for two numbers without a fraction.

    **Raises:** `ValueError` at the first value that is not a time.
    """
    column = table.columns[name]
    if column.dtype.kind == "m":
        return Clock(column.dt.total_seconds().to_numpy(dtype=np.float64), "hh:mm:ss")
    layout = layout or guess_layout(column)
    seconds = np.empty(len(column))
    for row, value in enumerate(column):
        parsed = seconds_of(value, layout)
        if parsed is None:
            fault = "the time is missing" if is_blank(value) else f"{quote(value)} is not a time such as {layout}"
            raise ValueError(f"{table.at(row, name)}: {fault}; every row needs a time, written in one way.")
        seconds[row] = parsed
    return Clock(seconds, layout)


def guess_layout(column: "pandas.Series") -> str:
    """Guesses the layout of times with two or three numbers: two with a fraction are minutes and seconds."""
    matches = [match for value in column if isinstance(value, str) and (match := CLOCK.fullmatch(value))]
    if any(match["third"] for match in matches) or not matches:
        return "hh:mm:ss"
    return "mm:ss" if any(match["part"] for match in matches) else "hh:mm"


def seconds_of(value: object, layout: str) -> float | None:
    """Converts one value to seconds; None if it is not a time of this layout."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.time):
        return value.hour * 3600.0 + value.minute * 60.0 + value.second + value.microsecond * 1e-6
    parsed = CLOCK.fullmatch(value) if isinstance(value, str) else None
    if parsed is None:
        return None
    first, second = int(parsed["first"]), int(parsed["second"])
    if parsed["half"]:
        first = first % 12 + (12 if parsed["half"][0] in "pP" else 0)
    part = float((parsed["part"] or "0").replace(",", "."))
    if parsed["third"] is None and layout == "mm:ss":
        return 60.0 * first + second + part
    third = int(parsed["third"] or 0)
    if second > 59 or third > 59:
        return None
    return DAY * int(parsed["days"] or 0) + 3600.0 * first + 60.0 * second + third + part


def pass_midnight(
    seconds: Float[np.ndarray, " row"], codes: Int[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, " row"], int]:
    """Continues times of day after midnight; also returns the number of midnights passed.

    **Arguments:** `codes`: trajectory of each row.
    """
    if seconds.max() >= DAY:
        return seconds, 0
    order = np.argsort(codes, kind="stable")
    steps = np.diff(seconds[order])
    passes = (steps < -HALF_DAY) & (np.diff(codes[order]) == 0)
    days = np.concatenate([[0], np.cumsum(passes)])
    starts = np.concatenate([[True], np.diff(codes[order]) != 0])
    days = days - np.maximum.accumulate(np.where(starts, days, 0))
    passed = np.empty_like(seconds)
    passed[order] = seconds[order] + DAY * days
    return passed, int(passes.sum())


def describe_clock(name: str, layout: str, unit: str, midnights: int, *, chosen: bool) -> str:
    """Describes times of day or durations, and the number of midnights passed."""
    why = f", chosen by its rows' spacing (data.time_unit={unit})" if chosen else ""
    passes = f"; it passes midnight {midnights} times" if midnights > 1 else "; it passes midnight once"
    return f"time: {name}, {layout} (data.time_format), counts in {unit} from 00:00{why}{passes if midnights else ''}"


def read_clocks(
    tables: Sequence[RawTable], name: str, codes: Int[np.ndarray, " row"], layout: str | None
) -> tuple[Float[np.ndarray, " row"], str, int]:
    """Returns the seconds of all rows, the layout of the first table, and the number of midnights passed."""
    clocks = [read_clock(table, name, layout) for table in tables]
    seconds, midnights = pass_midnight(np.concatenate([clock.seconds for clock in clocks]), codes)
    return seconds, clocks[0].layout, midnights
