"""Where the table of a text file begins: lines before it, the line of column names, rows of units below that line."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .table import MISSING_WORDS, parts_of_cell

# What people call the times of a table.
TIMES = {"t", "time", "times", "date", "datetime", "timestamp", "zeit", "datum"}
DELIMITERS = ("\t", ";", ",", " ")  # tried in this order; a blank stands for any whitespace
# Lines before the table, and rows of units and the like between the names and the numbers.
MAX_LINES_BEFORE, MAX_ROWS_BELOW = 300, 3
# Longer lines are not looked at [characters].
MAX_LINE = 100_000
# Rows that tell which columns hold numbers or times.
SAMPLE_ROWS = 20
NUMBER = re.compile(r"[+-]?(?:\d[\d.,'’\u00a0\u202f ]*|[.,]\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
# Dates with the year first or last, and hours or minutes.
STAMP = re.compile(r"\d{4}-\d{2}.*|\d{1,2}[./-](?:\d{1,2}|[A-Za-z]{3,9})[./-]\d{2}.*|(?:\d+ days? )?\d+:\d{2}.*")


class Header(NamedTuple):
    """Where a table begins.

    - `delimiter`: what separates its columns.
    - `line`: of the names, counted from 0; `first`: from which the rows follow.
    - `before`: whether lines with text come before the names.
    - `below`: the fields of each row of units or the like, between the names and the rows.
    """

    delimiter: str
    line: int
    first: int
    before: bool = False
    below: tuple[tuple[str, ...], ...] = ()

    @property
    def notes(self) -> list[str]:
        """What was left out, each in a sentence that names the key that says otherwise."""
        notes: list[str] = []
        if self.before:
            notes.append(f"the columns are named in line {self.line + 1}, after text (data.header={self.line + 1})")
        if self.below:
            what = "a row" if len(self.below) == 1 else f"{len(self.below)} rows"
            notes.append(f"{what} below the names with units or the like left out (data.first_row={self.first + 1})")
        return notes

    def units_of(self, names: Sequence[str]) -> dict[str, str]:
        """The units of columns, from the first row below the names."""
        if not self.below:
            return {}
        texts = (text.strip().strip("[]()").strip() for text in self.below[0])
        return {name: text for name, text in zip(names, texts, strict=True) if text}


def plain_name(name: str) -> str:
    """A name in small letters, without a unit: `Time [h]`, `time (s)` and `TIME_s` are all `time`."""
    return re.sub(r"[\s_]*[\[(].*$|_(ms|s|sec|min|h|hr|hours|d|days)$", "", name.strip().lower())


def split_line(line: str, delimiter: str) -> list[str]:
    """The fields of one line; empty if it is malformed."""
    if delimiter == " ":
        return line.split()
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), list[str]())
    except csv.Error:  # The reader of all rows reports the line.
        return []


def is_value(text: str) -> bool:
    """Whether a cell reads as a number, a limit or an interval, a date or a time of day."""
    text = parts_of_cell(text)[-1]
    return NUMBER.fullmatch(text) is not None or STAMP.fullmatch(text) is not None


def is_text(text: str) -> bool:
    """Whether a cell says something that is neither a value nor a word for a missing one."""
    return text.strip().lower() not in MISSING_WORDS and not is_value(text)


def find_header(lines: Sequence[str], wanted: Sequence[str], header: int | None = None) -> Header | None:
    """Finds the names above the first row of numbers; `None` if no such rows are found.

    **Arguments:**

    - `lines`: of the file, where comments are blank.
    - `wanted`: names of columns that are needed; the line that holds them all is that of the names.
    - `header`: the line of the names, counted from 1, if the user has given it.
    """
    start = 0 if header is None else header - 1
    filled = (at for at in range(start, len(lines)) if lines[at].strip())
    sample = list(itertools.islice(filled, MAX_LINES_BEFORE + SAMPLE_ROWS))
    if not sample or max(len(lines[at]) for at in sample) > MAX_LINE:
        return None
    for delimiter in DELIMITERS:
        found = find_header_of_rows({at: split_line(lines[at], delimiter) for at in sample}, wanted, header)
        if found is not None:
            return found._replace(delimiter=delimiter)
    return None


def find_header_of_rows(
    rows: Mapping[int, list[str]], wanted: Sequence[str], header: int | None = None
) -> Header | None:
    """As `find_header`, of the fields of each line that is not blank, by its number counted from 0."""
    block, first = find_names(rows)
    if not block:
        return None
    line = block[0] if header is not None else choose_names({at: rows[at] for at in block}, wanted)
    if header is not None and line != header - 1:
        return None
    below = tuple(tuple(rows[at]) for at in block if at > line)
    return Header("", line, first, before=header is None and line != next(iter(rows)), below=below)


def find_names(rows: Mapping[int, list[str]]) -> tuple[list[int], int]:
    """The lines of text directly above the first row of values, of as many fields; and the line of that row.

    **Arguments:** `rows`: the fields of each line that is not blank.
    """
    lines = list(rows)
    tail = [rows[at] for at in lines[-max(1, min(SAMPLE_ROWS, len(lines) // 2)) :]]
    width = Counter(map(len, tail)).most_common(1)[0][0]
    measured = columns_of_values([row for row in tail if len(row) == width], width)
    if width < 2 or not measured:
        return [], 0
    kinds = {at: classify(row, width, measured) for at, row in rows.items()}
    for place in range(1, len(lines)):
        if kinds[lines[place]] == "values" and kinds[lines[place - 1]] == "text":
            block = [lines[place - 1]]
            for at in reversed(lines[: place - 1]):
                if kinds[at] != "text" or at != block[0] - 1 or len(block) > MAX_ROWS_BELOW:
                    break
                block.insert(0, at)
            return block, lines[place]
    return [], 0


def columns_of_values(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns in which most of what is said is a value."""
    columns = [[row[at] for row in rows if row[at].strip().lower() not in MISSING_WORDS] for at in range(width)]
    return [at for at, cells in enumerate(columns) if cells and 2 * sum(map(is_value, cells)) > len(cells)]


def classify(row: Sequence[str], width: int, measured: Sequence[int]) -> str:
    """Whether a line holds `values` in these columns, or `text`; `other` if both, neither, or of another width."""
    if len(row) != width:
        return "other"
    has_values, has_text = any(is_value(row[at]) for at in measured), any(is_text(row[at]) for at in measured)
    return "other" if has_values == has_text else "values" if has_values else "text"


def choose_names(block: dict[int, list[str]], wanted: Sequence[str]) -> int:
    """Which of some lines of text names the columns: one with the wanted names, or one that names a time; else the
    first whose names all differ."""
    names = {at: [field.strip() for field in fields] for at, fields in block.items()}
    for at, given in names.items():
        if wanted and set(wanted) <= set(given):
            return at
    for at, given in names.items():
        if any(plain_name(name) in TIMES for name in given):
            return at
    return next((at for at, given in names.items() if all(given) and len(set(given)) == len(given)), next(iter(names)))
