"""Reads sheets of Excel workbooks, `.xlsx`, whose cells become the texts that they would be in a text file."""

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
# Cells without a value that a sheet may have for each one with a value, and beside these; a few bytes of a file may say
# that a row is 16,384 cells long.
EMPTY_PER_CELL, MAX_EMPTY = 20, 1_000_000
# The beginning of a part of a workbook, where XML would declare a document type.
PROLOGUE_BYTES = 4096
# What a cell takes in memory, beside its share of the unpacked XML.
XML_COPIES = 4


def read_xlsx(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the columns of a sheet: the one of the options, or the first."""
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
    """Refuses XML with a document type, which may hold entities that expand without end."""
    with zipfile.ZipFile(path) as file:
        for part in file.infolist():
            with file.open(part) as opened:
                start = opened.read(PROLOGUE_BYTES).replace(b"\0", b"")
            if b"<!DOCTYPE" in start or b"<!ENTITY" in start:
                raise ValueError(f"its part {part.filename[:60]} declares a document type or entities")


def read_cells(path: Path, sheet: "Worksheet") -> Iterator[tuple[int, list[str]]]:
    """The texts of each row that is not blank, by its number counted from 0.

    **Raises:** `ValueError` if the sheet is damaged, or nearly all of its cells are empty.
    """
    sheet.reset_dimensions()  # Those that a file states may be wrong.
    empty, full = 0, 0
    try:
        for number, cells in enumerate(sheet.iter_rows(values_only=True)):
            texts = [text_of_cell(cell) for cell in cells]
            known = sum(map(bool, texts))
            full, empty = full + known, empty + len(texts) - known + 1
            if empty > MAX_EMPTY + EMPTY_PER_CELL * full:
                break
            if known:
                yield number, texts
        else:
            return
    except MemoryError:
        raise
    except Exception as error:  # Of XML, and of values that are no numbers or dates.
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
    """A cell as it would be in a text file; a number with all of its digits."""
    if cell is None:
        return ""
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(sep=" ")
    return cell.isoformat() if isinstance(cell, datetime.time) else str(cell).strip()


def table_of_sheet(
    path: Path, rows: dict[int, list[str]], roles: Roles, options: ReadingOptions, notes: list[str]
) -> RawTable:
    """The needed columns of a sheet.

    **Raises:** `ValueError` if it holds no table, or a column is missing.
    """
    rows = {number: texts for number, texts in rows.items() if number + 1 >= (options.header or 1)}
    if not rows:
        raise ValueError(f"{path} has no row with a value; name another sheet, data.sheet=NAME.")
    used = last_used(rows.values())
    width = max(used)
    rows = {number: (texts + [""] * width)[:width] for number, texts in rows.items()}
    first = next(iter(rows))
    header = find_header_of_rows(rows, roles.fixed, options.header) or Header("", first, first + 1)
    if options.first_row is not None:
        header = header._replace(first=options.first_row - 1, below=())
    names = rows[header.line]
    below = {number + 1: texts for number, texts in rows.items() if number >= header.first}
    table = table_of_texts(path, roles.find(names, str(path)), below, header.units_of(names), [*notes, *header.notes])
    return with_plain_numbers(table, channels_of(table, roles), options.decimal, is_comma_free=False)


def last_used(rows: Iterable[list[str]]) -> list[int]:
    """How many cells of each row there are up to the last with a value."""
    return [max((at + 1 for at, text in enumerate(texts) if text), default=0) for texts in rows]


def size_of_xlsx(path: Path, most: float) -> int:
    """The memory of a workbook: of its unpacked XML, and of the texts of its cells."""
    with zipfile.ZipFile(path) as file:
        return XML_COPIES * sum(part.file_size for part in file.infolist())
