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
    """Times of day or durations: `seconds` from 00:00:00, and the `layout` that they are written in."""

    seconds: Float[np.ndarray, " row"]
    layout: str


def holds_clock(column: "pandas.Series") -> bool:
    """Whether the first value of a column is a time of day or a duration; all others must then be such, too."""
    if column.dtype.kind == "m":
        return True
    first = next((value for value in column.to_numpy(dtype=object) if not is_blank(value)), None)
    is_written = isinstance(first, str) and CLOCK.fullmatch(first) is not None
    return is_written or isinstance(first, datetime.time | datetime.timedelta)


def read_clock(table: RawTable, name: str, layout: str | None) -> Clock:
    """The times of a column as seconds.

    **Arguments:** `layout`: one of `CLOCK_FORMATS`; None for `hh:mm:ss`, or `hh:mm` of two numbers without a fraction.

    **Raises:** `ValueError` at the first value that is none.
    """
    column = table.columns[name]
    if column.dtype.kind == "m":
        return Clock(column.dt.total_seconds().to_numpy(dtype=np.float64), "hh:mm:ss")
    layout = layout or guess_layout(column)
    seconds = np.empty(len(column))
    for row, value in enumerate(column):
        found = seconds_of(value, layout)
        if found is None:
            fault = "the time is missing" if is_blank(value) else f"{quote(value)} is not a time such as {layout}"
            raise ValueError(f"{table.at(row, name)}: {fault}; every row needs a time, written in one way.")
        seconds[row] = found
    return Clock(seconds, layout)


def guess_layout(column: "pandas.Series") -> str:
    """How times of two or three numbers are meant: two numbers with a fraction are minutes and seconds."""
    found = [match for value in column if isinstance(value, str) and (match := CLOCK.fullmatch(value))]
    if any(match["third"] for match in found) or not found:
        return "hh:mm:ss"
    return "mm:ss" if any(match["part"] for match in found) else "hh:mm"


def seconds_of(value: object, layout: str) -> float | None:
    """The seconds of one value; None if it is no time of this layout."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.time):
        return value.hour * 3600.0 + value.minute * 60.0 + value.second + value.microsecond * 1e-6
    found = CLOCK.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    first, second = int(found["first"]), int(found["second"])
    if found["half"]:
        first = first % 12 + (12 if found["half"][0] in "pP" else 0)
    part = float((found["part"] or "0").replace(",", "."))
    if found["third"] is None and layout == "mm:ss":
        return 60.0 * first + second + part
    third = int(found["third"] or 0)
    if second > 59 or third > 59:
        return None
    return DAY * int(found["days"] or 0) + 3600.0 * first + 60.0 * second + third + part


def pass_midnight(
    seconds: Float[np.ndarray, " row"], codes: Int[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, " row"], int]:
    """Times of day that go on after midnight, and how often they pass it.

    **Arguments:** `codes`: the trajectory of each row.
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
    """A sentence on times of day or durations, and on how often they pass midnight."""
    why = f", chosen by its rows' spacing (data.time_unit={unit})" if chosen else ""
    passes = f"; it passes midnight {midnights} times" if midnights > 1 else "; it passes midnight once"
    return f"time: {name}, {layout} (data.time_format), counts in {unit} from 00:00{why}{passes if midnights else ''}"


def read_clocks(
    tables: Sequence[RawTable], name: str, codes: Int[np.ndarray, " row"], layout: str | None
) -> tuple[Float[np.ndarray, " row"], str, int]:
    """The seconds of all rows, how the first table writes them, and how often they pass midnight."""
    clocks = [read_clock(table, name, layout) for table in tables]
    seconds, midnights = pass_midnight(np.concatenate([each.seconds for each in clocks]), codes)
    return seconds, clocks[0].layout, midnights
