"""Reads delimited text, with decimal points or commas.

Python's `csv` splits the rows, because it never guesses the type of a value.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .layout import Roles
from .table import RawTable

DECIMAL = re.compile(r"\s*[+-]?\d*([.,])\d*(?:[eE][+-]?\d+)?\s*")


def with_decimal_points(table: RawTable, channels: Sequence[str]) -> RawTable:
    """Replaces decimal commas by decimal points in these columns.

    **Raises:** `ValueError` if some numbers have a point and others a comma, since one of them may group thousands.
    """
    columns = {name: table.columns[name] for name in channels}
    if not any("," in value for column in columns.values() for value in column):
        return table
    first: dict[str, tuple[int, str, str]] = {}
    for name, column in columns.items():
        for row, value in enumerate(column):
            if found := DECIMAL.fullmatch(value):
                first.setdefault(found[1], (row, name, value.strip()))
    if len(first) == 2:
        (row, name, value), (other, other_name, other_value) = first["."], first[","]
        raise ValueError(
            f"{table.at(row, name)}: {value!r} has a decimal point, but {other_value!r} in {table.row(other)}, column "
            f"{other_name!r} has a decimal comma; use one decimal mark in all numbers."
        )
    points = {
        name: column.map(lambda value: value.replace(",", ".") if DECIMAL.fullmatch(value) else value)
        for name, column in columns.items()
    }
    return replace(table, columns=table.columns | points)


DELIMITERS = ("\t", ";", ",", " ")  # tried in this order; a blank stands for any whitespace
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
SEPARATORS = "columns must be separated by commas, semicolons, tabs or blanks"


def read_text(path: Path, roles: Roles) -> RawTable:
    """Reads the columns of a text file as strings."""
    import pandas as pd

    lines = drop_comments(decode(path, content(path)))
    header = next((i for i, line in enumerate(lines) if line.strip()), None)
    if header is None:
        raise ValueError(f"{path} holds no table, only blank lines or comments; add column names and rows.")
    delimiter = find_delimiter(lines, header)
    names = read_header(path, lines, header, delimiter, may_be_one=roles.time is None)
    positions = roles.find(names, str(path))
    rows, numbers = [], []
    for line, fields in records(path, lines[header + 1 :], delimiter, first=header + 2):
        if len(fields) != len(names):
            raise ragged_row(path, line, fields, names, header + 1, delimiter)
        rows.append(fields)
        numbers.append(line)
    if len(names) == 1 and rows:
        check_gaps(path, lines, header + 1, numbers[-1])
    columns = {name: pd.Series([row[i] for row in rows], dtype=object) for name, i in positions.items()}
    table = RawTable(str(path), columns, np.array(numbers, dtype=np.int64))
    words = (roles.trajectory, roles.observable)
    return table if delimiter == "," else with_decimal_points(table, [name for name in columns if name not in words])


def content(path: Path) -> bytes:
    """The bytes of a file, decompressed if they are gzipped."""
    packed = path.read_bytes()
    if not packed.startswith(b"\x1f\x8b"):
        return packed
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}); compress it again.") from None


def decode(path: Path, raw: bytes) -> str:
    """Decodes a file as UTF-8, as UTF-16 if it has a byte order mark, or else as Latin-1.

    **Raises:** `ValueError` at the first control character that text does not contain.
    """
    try:
        text = raw.decode("utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # older instruments write it; anything else shows up as control characters
    wrong = CONTROL.search(text)
    if wrong:
        line = len(drop_comments(text[: wrong.start()] + "."))
        kind = "a NUL byte" if wrong[0] == "\0" else f"the control character 0x{ord(wrong[0]):02x}"
        raise ValueError(
            f"{path}, line {line} holds {kind}, so it is not a text table in UTF-8; save it as CSV in UTF-8, or give a "
            "binary file its extension: .parquet, .npz, .npy or .mat."
        )
    return text


def drop_comments(text: str) -> list[str]:
    """The lines as a text editor counts them, with comments blanked."""
    lines = list(io.StringIO(text, newline=None))
    return ["" if line.lstrip().startswith("#") else line for line in lines] if "#" in text else lines


def find_delimiter(lines: Sequence[str], header: int) -> str:
    """The first delimiter that splits the header and the next row into equally many fields, or at least the header."""
    following = next((line for line in lines[header + 1 :] if line.strip()), lines[header])
    widths = {each: len(split_line(lines[header], each)) for each in DELIMITERS}
    matching = [each for each, width in widths.items() if width > 1 and len(split_line(following, each)) == width]
    splitting = [each for each, width in widths.items() if width > 1]
    return next(iter(matching or splitting), ",")


def split_line(line: str, delimiter: str) -> list[str]:
    """The fields of one line; empty if it is malformed."""
    if delimiter == " ":
        return line.split()
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:  # `records` reports the line
        return []


def check_gaps(path: Path, lines: Sequence[str], first: int, last: int) -> None:
    """Rejects a blank line between the rows of a single column, where it may stand for a missing value."""
    blank = next((i + 1 for i in range(first, last) if lines[i] and not lines[i].strip(' \t\r\n"')), None)
    if blank is not None:
        raise ValueError(
            f"{path}, line {blank} is blank, which in a single column may stand for a missing value; write NA, or "
            "remove the line."
        )


def read_header(path: Path, lines: Sequence[str], header: int, delimiter: str, may_be_one: bool) -> list[str]:
    names = [name.strip() for _, fields in records(path, [lines[header]], delimiter, header + 1) for name in fields]
    if len(names) == 1 and not may_be_one:
        raise ValueError(f"{path}, line {header + 1} has the single column {names[0]!r}; {SEPARATORS}.")
    if all(reads_as_number(name) for name in names):
        raise ValueError(
            f"{path}, line {header + 1} should name the columns but holds numbers; put a line of names above it, "
            "such as t,x,y (without #)."
        )
    return names


def records(path: Path, lines: Sequence[str], delimiter: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Yields each nonblank row with its line number; `first` is the line number of `lines[0]`."""
    if delimiter == " ":
        for line, text in enumerate(lines, start=first):
            if fields := text.split():
                yield line, fields
        return
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    start = first
    try:
        for fields in reader:
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield reader.line_num + first - 1, fields
            start = reader.line_num + first
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {start}: the row can't be split into fields ({error}); check its quotation marks."
        ) from None


def ragged_row(
    path: Path, line: int, fields: Sequence[str], names: Sequence[str], header: int, delimiter: str
) -> ValueError:
    """The error for a row with too many or too few fields."""
    decimals = ""
    if len(fields) < len(names):
        fault = f"the row ends before column {names[len(fields)]!r}"
    else:
        fault = f"the row continues after the last column {names[-1]!r}"
        decimals = " Decimal commas need another column separator, such as a semicolon." if delimiter == "," else ""
    return ValueError(
        f"{path}, line {line}: {fault}, with {len(fields)} fields for the {len(names)} columns named in line {header}; "
        f"give every row as many fields as there are columns.{decimals}"
    )


def reads_as_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
