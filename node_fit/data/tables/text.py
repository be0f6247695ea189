"""Reads delimited text in the formats of people and instruments.

Python's `csv` splits rows of text, because it never guesses the type of a value.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...runtime.serialization import parse_number
from .header import DELIMITERS, Header, find_header, is_value, split_line
from .layout import Roles
from .marks import with_plain_numbers
from .options import ReadingOptions
from .table import RawTable

CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# Maximum number of text lines below the last row, such as `End of data`.
MAX_LINES_BELOW = 20
SEPARATORS = "columns must be separated by commas, semicolons, tabs or blanks"


def read_text(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the columns of a text file as strings."""
    lines = drop_comments(decode(path, content(path)))
    header = find_header(lines, roles.required_columns, options.header) or first_header(path, lines, options.header)
    delimiter = header.delimiter
    if options.first_row is not None:
        header = header._replace(first=options.first_row - 1, below=())
    names = read_header(path, lines, header.line, delimiter, may_be_one=roles.time is None)
    positions = roles.find(names, str(path))
    rows: dict[int, list[str]] = {}
    notes = header.notes
    for number, fields in records(path, lines[header.first :], delimiter, first=header.first + 1):
        if len(fields) != len(names):
            if rows and is_ended(lines[number - 1 :], delimiter):
                notes.append(f"text after the last row left out, from line {number}")
                break
            raise ragged_row(path, number, fields, names, header.line + 1, delimiter)
        rows[number] = fields
    if len(names) == 1 and rows:
        check_gaps(path, lines, header.first, list(rows)[-1])
    table = table_of_texts(path, positions, rows, header.units_of(names), notes)
    return with_plain_numbers(table, channels_of(table, roles), options.decimal, is_comma_free=delimiter != ",")


def table_of_texts(
    path: Path, positions: Mapping[str, int], rows: Mapping[int, Sequence[str]], units: dict[str, str], notes: list[str]
) -> RawTable:
    """Builds a table from the needed columns of rows of texts, keyed by line number."""
    import pandas as pd

    columns = {name: pd.Series([row[i] for row in rows.values()], dtype=object) for name, i in positions.items()}
    units_of_columns = {name: unit for name, unit in units.items() if name in columns}
    return RawTable(
        str(path), columns, np.array(list(rows), dtype=np.int64), units=units_of_columns, notes=tuple(notes)
    )


def channels_of(table: RawTable, roles: Roles) -> list[str]:
    """Returns the columns that do not hold names."""
    return [name for name in table.columns if name not in (roles.trajectory, roles.observable)]


def is_ended(lines: Sequence[str], delimiter: str) -> bool:
    """Whether no line holds a number or a time, as below the last row of a report."""
    texts = [line for line in lines[: MAX_LINES_BELOW + 1] if line.strip()]
    return len(texts) <= MAX_LINES_BELOW and not any(
        is_value(field) for line in texts for field in split_line(line, delimiter)
    )


def first_header(path: Path, lines: Sequence[str], header: int | None) -> Header:
    """Returns the names in the first nonblank line, or in the specified one.

    **Raises:** `ValueError` if no such line exists.
    """
    if header is not None and not (header <= len(lines) and lines[header - 1].strip()):
        raise ValueError(f"{path}: header={header} is no line with names; it has {len(lines)} lines.")
    line = header - 1 if header is not None else next((i for i, line in enumerate(lines) if line.strip()), None)
    if line is None:
        raise ValueError(f"{path} holds no table, only blank lines or comments; add column names and rows.")
    return Header(find_delimiter(lines, line), line, line + 1)


def find_delimiter(lines: Sequence[str], header: int) -> str:
    """Returns the first delimiter that splits the header and the next row into equally many fields, else the header."""
    following = next((line for line in lines[header + 1 :] if line.strip()), lines[header])
    widths = {delimiter: len(split_line(lines[header], delimiter)) for delimiter in DELIMITERS}
    matching = [
        delimiter for delimiter, width in widths.items() if width > 1 and len(split_line(following, delimiter)) == width
    ]
    splitting = [delimiter for delimiter, width in widths.items() if width > 1]
    return next(iter(matching or splitting), ",")


def content(path: Path) -> bytes:
    """Returns the bytes of a file, decompressed if they are gzipped."""
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
    """Splits a text into lines as counted in a text editor, with comments blanked."""
    lines = list(io.StringIO(text, newline=None))
    return ["" if line.lstrip().startswith("#") else line for line in lines] if "#" in text else lines


def check_gaps(path: Path, lines: Sequence[str], first: int, last: int) -> None:
    """Rejects a blank line between the rows of a single column, since it can stand for a missing value."""
    blank = next((i + 1 for i in range(first, last) if lines[i] and not lines[i].strip(' \t\r\n"')), None)
    if blank is not None:
        raise ValueError(
            f"{path}, line {blank} is blank, which in a single column may stand for a missing value; write NA, or "
            "remove the line."
        )


def read_header(path: Path, lines: Sequence[str], header: int, delimiter: str, may_be_one: bool) -> list[str]:
    names = [name.strip() for _, fields in records(path, [lines[header]], delimiter, header + 1) for name in fields]
    if len(names) == 1 and not may_be_one:
        alone = "if these are times alone, add the states, with values in the first row"
        raise ValueError(f"{path}, line {header + 1} has the single column {names[0]!r}; {SEPARATORS}; {alone}.")
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
    """Builds the error for a row with too many or too few fields."""
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
        parse_number(text.replace(",", "."))
    except ValueError:
        return False
    return True
