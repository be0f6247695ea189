"""Start of the table in a text file: lines before it, the line of column names, rows of units below that line."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .table import MISSING_WORDS, parts_of_cell

# Common names of the times of a table.
TIMES = {"t", "time", "times", "date", "datetime", "timestamp", "zeit", "datum"}
DELIMITERS = ("\t", ";", ",", " ")  # tried in this order; a blank stands for any whitespace
# Maximum number of lines before the table, and of rows of units and the like between the names and the numbers.
MAX_LINES_BEFORE, MAX_ROWS_BELOW = 300, 3
# Maximum length of lines that are examined [characters].
MAX_LINE = 100_000
# Number of rows used to detect which columns hold numbers or times.
SAMPLE_ROWS = 20
NUMBER = re.compile(r"[+-]?(?:\d[\d.,'’\u00a0\u202f ]*|[.,]\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
# Dates with the year first or last, and hours or minutes.
STAMP = re.compile(r"\d{4}-\d{2}.*|\d{1,2}[./-](?:\d{1,2}|[A-Za-z]{3,9})[./-]\d{2}.*|(?:\d+ days? )?\d+:\d{2}.*")


class Header(NamedTuple):
    """Start of a table.

    - `delimiter`: separator of its columns.
    - `line`: line of the names, counted from 0; `first`: line of the first row.
    - `before`: whether lines with text precede the names.
    - `below`: the fields of each row of units or the like, between the names and the rows.
    """

    delimiter: str
    line: int
    first: int
    before: bool = False
    below: tuple[tuple[str, ...], ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences on the lines that were skipped, with the key that overrides the detection."""
        notes: list[str] = []
        if self.before:
            notes.append(f"the columns are named in line {self.line + 1}, after text (data.header={self.line + 1})")
        if self.below:
            what = "a row" if len(self.below) == 1 else f"{len(self.below)} rows"
            notes.append(f"{what} below the names with units or the like left out (data.first_row={self.first + 1})")
        return notes

    def units_of(self, names: Sequence[str]) -> dict[str, str]:
        """Returns the units of columns, from the first row below the names."""
        if not self.below:
            return {}
        texts = (text.strip().strip("[]()").strip() for text in self.below[0])
        return {name: text for name, text in zip(names, texts, strict=True) if text}


def plain_name(name: str) -> str:
    """Normalizes a name to lower case without a unit: `Time [h]`, `time (s)` and `TIME_s` are all `time`."""
    return re.sub(r"[\s_]*[\[(].*$|_(ms|s|sec|min|h|hr|hours|d|days)$", "", name.strip().lower())


def split_line(line: str, delimiter: str) -> list[str]:
    """Splits a line into fields; empty if it is malformed."""
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
    """Whether a cell is neither empty, nor a value, nor a word for a missing value."""
    return text.strip().lower() not in MISSING_WORDS and not is_value(text)


def find_header(lines: Sequence[str], wanted: Sequence[str], header: int | None = None) -> Header | None:
    """Finds the names above the first row of numbers; `None` if no such rows are found.

    **Arguments:**

    - `lines`: lines of the file, with comments blanked.
    - `wanted`: names of needed columns; a line that contains them all is the line of names.
    - `header`: the line of the names, counted from 1, if the user specified it.
    """
    start = 0 if header is None else header - 1
    filled = (number for number in range(start, len(lines)) if lines[number].strip())
    sample = list(itertools.islice(filled, MAX_LINES_BEFORE + SAMPLE_ROWS))
    if not sample or max(len(lines[number]) for number in sample) > MAX_LINE:
        return None
    for delimiter in DELIMITERS:
        header_of_rows = find_header_of_rows(
            {number: split_line(lines[number], delimiter) for number in sample}, wanted, header
        )
        if header_of_rows is not None:
            return header_of_rows._replace(delimiter=delimiter)
    return None


def find_header_of_rows(
    rows: Mapping[int, list[str]], wanted: Sequence[str], header: int | None = None
) -> Header | None:
    """Like `find_header`, from the fields of each nonblank line, keyed by its number counted from 0."""
    block, first = find_names(rows)
    if not block:
        return None
    line = block[0] if header is not None else choose_names({number: rows[number] for number in block}, wanted)
    if header is not None and line != header - 1:
        return None
    below = tuple(tuple(rows[number]) for number in block if number > line)
    return Header("", line, first, before=header is None and line != next(iter(rows)), below=below)


def find_names(rows: Mapping[int, list[str]]) -> tuple[list[int], int]:
    """Returns the lines of text directly above the first row of values, with as many fields, and that row's line.

    **Arguments:** `rows`: the fields of each nonblank line.
    """
    lines = list(rows)
    tail = [rows[number] for number in lines[-max(1, min(SAMPLE_ROWS, len(lines) // 2)) :]]
    width = Counter(map(len, tail)).most_common(1)[0][0]
    measured = columns_of_values([row for row in tail if len(row) == width], width)
    if width < 2 or not measured:
        return [], 0
    kinds = {number: classify(row, width, measured) for number, row in rows.items()}
    for place in range(1, len(lines)):
        if kinds[lines[place]] == "values" and kinds[lines[place - 1]] == "text":
            block = [lines[place - 1]]
            for number in reversed(lines[: place - 1]):
                if kinds[number] != "text" or number != block[0] - 1 or len(block) > MAX_ROWS_BELOW:
                    break
                block.insert(0, number)
            return block, lines[place]
    return [], 0


def columns_of_values(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the columns in which most nonmissing cells are values."""
    columns = [
        [row[index] for row in rows if row[index].strip().lower() not in MISSING_WORDS] for index in range(width)
    ]
    return [index for index, cells in enumerate(columns) if cells and 2 * sum(map(is_value, cells)) > len(cells)]


def classify(row: Sequence[str], width: int, measured: Sequence[int]) -> str:
    """Classifies a line as `values` or `text` in these columns; `other` if both, neither, or of another width."""
    if len(row) != width:
        return "other"
    has_values, has_text = (
        any(is_value(row[index]) for index in measured),
        any(is_text(row[index]) for index in measured),
    )
    return "other" if has_values == has_text else "values" if has_values else "text"


def choose_names(block: dict[int, list[str]], wanted: Sequence[str]) -> int:
    """Chooses the line that names the columns: one with the wanted names, or one that names a time; else the first
    whose names all differ."""
    names = {number: [field.strip() for field in fields] for number, fields in block.items()}
    for number, fields_of_line in names.items():
        if wanted and set(wanted) <= set(fields_of_line):
            return number
    for number, fields_of_line in names.items():
        if any(plain_name(name) in TIMES for name in fields_of_line):
            return number
    return next(
        (
            number
            for number, fields_of_line in names.items()
            if all(fields_of_line) and len(set(fields_of_line)) == len(fields_of_line)
        ),
        next(iter(names)),
    )
