"""Reads sheets of Excel workbooks, `.xlsx`, and converts cells to the texts that a text file would have."""

import datetime
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import require_extra
from .header import Header, find_header_of_rows
from .layout import Roles
from .marks import with_plain_numbers
from .options import ReadingOptions
from .table import RawTable, choose_columns
from .text import channels_of, table_of_texts

if TYPE_CHECKING:
    from openpyxl import Worksheet

SPREADSHEETS = (".xlsx", ".xlsm")
# Maximum number of empty cells per cell with a value, and number always allowed: a few bytes of a file can declare a
# row of 16,384 cells.
EMPTY_PER_CELL, MAX_EMPTY = 20, 1_000_000
# Length of the start of a part of a workbook, where XML would declare a document type.
PROLOGUE_BYTES = 4096
# Memory of a cell relative to its share of the unpacked XML.
XML_COPIES = 4


def read_xlsx(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the columns of a sheet, specified by the options or the first one."""
    require_extra("openpyxl", path, "excel")
    import openpyxl

    notes: list[str] = []
    with open(path, "rb") as file:  # openpyxl would leave a damaged file open.
        try:
            check_prologues(path)
            workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
        except MemoryError:
            raise
        except Exception as error:  # Parsers of zip files and XML raise anything.
            raise sheet_error(path, error) from None
        names = [sheet.title for sheet in workbook.worksheets]
        if not names:
            raise ValueError(f"{path} has no sheet of cells; save one.")
        name = names[0] if options.sheet is None else names[choose_columns(names, [options.sheet], f"{path}")[0]]
        if len(names) > 1 and options.sheet is None:
            notes.append(f"sheet {name!r} is read, the first of {len(names)} (data.sheet={names[1]!r})")
        rows = dict(read_cells(path, workbook[name]))
    return table_of_sheet(path, rows, roles, options, notes)


def check_prologues(path: Path) -> None:
    """Rejects XML with a document type, which can hold entities that expand without end."""
    with zipfile.ZipFile(path) as file:
        for part in file.infolist():
            with file.open(part) as opened:
                start = opened.read(PROLOGUE_BYTES).replace(b"\0", b"")
            if b"<!DOCTYPE" in start or b"<!ENTITY" in start:
                raise ValueError(f"its part {part.filename[:60]} declares a document type or entities")


def read_cells(path: Path, sheet: "Worksheet") -> Iterator[tuple[int, list[str]]]:
    """Reads the texts of each nonblank row, with its number counted from 0.

    **Raises:** `ValueError` if the sheet is damaged, or nearly all of its cells are empty.
    """
    sheet.reset_dimensions()  # The declared ones can be wrong.
    empty, full = 0, 0
    try:
        for number, cells in enumerate(sheet.iter_rows(values_only=True)):
            texts = [text_of_cell(cell) for cell in cells]
            filled = sum(map(bool, texts))
            full, empty = full + filled, empty + len(texts) - filled + 1
            if empty > MAX_EMPTY + EMPTY_PER_CELL * full:
                break
            if filled:
                yield number, texts
        else:
            return
    except MemoryError:
        raise
    except Exception as error:  # Raised by XML, and by values that are not numbers or dates.
        raise sheet_error(path, error) from None
    raise ValueError(
        f"{path}, sheet {sheet.title!r} has over {empty:,} empty cells beside {full:,} with a value; delete empty rows "
        "and columns, and save it again."
    )


def sheet_error(path: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    return ValueError(
        f"{path} cannot be read as an Excel file ({reason}); save it again as .xlsx, or save the sheet as CSV."
    )


def text_of_cell(cell: object) -> str:
    """Formats a cell as in a text file; numbers keep all of their digits."""
    if cell is None:
        return ""
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(sep=" ")
    return cell.isoformat() if isinstance(cell, datetime.time) else str(cell).strip()


def table_of_sheet(
    path: Path, rows: dict[int, list[str]], roles: Roles, options: ReadingOptions, notes: list[str]
) -> RawTable:
    """Builds a table from the needed columns of a sheet.

    **Raises:** `ValueError` if it holds no table, or a column is missing.
    """
    rows = {number: texts for number, texts in rows.items() if number + 1 >= (options.header or 1)}
    if not rows:
        raise ValueError(f"{path} has no row with a value; name another sheet, data.sheet=NAME.")
    used = last_used(rows.values())
    width = max(used)
    rows = {number: (texts + [""] * width)[:width] for number, texts in rows.items()}
    first = next(iter(rows))
    header = find_header_of_rows(rows, roles.required_columns, options.header) or Header("", first, first + 1)
    if options.first_row is not None:
        header = header._replace(first=options.first_row - 1, below=())
    names = rows[header.line]
    below = {number + 1: texts for number, texts in rows.items() if number >= header.first}
    table = table_of_texts(path, roles.find(names, str(path)), below, header.units_of(names), [*notes, *header.notes])
    return with_plain_numbers(table, channels_of(table, roles), options.decimal, is_comma_free=False)


def last_used(rows: Iterable[list[str]]) -> list[int]:
    """Returns the number of cells of each row up to the last one with a value."""
    return [max((position + 1 for position, text in enumerate(texts) if text), default=0) for texts in rows]


def size_of_xlsx(path: Path, most: float) -> int:
    """Computes the memory of a workbook: its unpacked XML, and the texts of its cells."""
    with zipfile.ZipFile(path) as file:
        return XML_COPIES * sum(part.file_size for part in file.infolist())
