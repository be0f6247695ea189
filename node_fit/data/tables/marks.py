"""Number formats: decimal points or commas, and thousands separators."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, missing_values, parts_of_cell

if TYPE_CHECKING:
    import pandas

# Thousands separators besides the point and the comma: apostrophes and blanks.
BLANKS = " \u00a0\u202f"
GROUP_SIGNS = f"'’{BLANKS}"
MARKED = re.compile(rf"\d[,{GROUP_SIGNS}]\d|,\d|\d,|\.\d+\.")
ONE_MARK = re.compile(r"[+-]?\d*([.,]?)\d*(?:[eE][+-]?\d+)?")
THOUSANDS = re.compile(
    rf"[+-]?[1-9]\d{{0,2}}(?P<group>[.,{GROUP_SIGNS}])\d{{3}}(?:(?P=group)\d{{3}})*(?:(?P<decimal>[.,])\d*)?"
)
# One mark followed by three digits, such as 1,234: a decimal mark, or a thousands separator.
UNSURE = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")


class Marks(NamedTuple):
    """Decimal mark and thousands separators of a table."""

    decimal: str
    groups: frozenset[str]

    @property
    def notes(self) -> list[str]:
        """A sentence on marks that can be misread."""
        names = {"'": "apostrophes", "’": "apostrophes", ",": "commas", ".": "points"}
        grouping = " and ".join(sorted({names.get(mark, "blanks") for mark in self.groups}))
        thousands = [f"{grouping} group thousands"] if self.groups else []
        if self.decimal == "," or self.groups:
            thousands.append(f"the decimal mark is a {'comma' if self.decimal == ',' else 'point'}")
            return [f"numbers: {', '.join(thousands)} (data.decimal={self.decimal!r})"]
        return []


def table_of_columns(
    columns: dict[str, "pandas.Series"], roles: Roles, options: ReadingOptions, origin: str
) -> RawTable:
    """Builds a table from columns that can hold text, whose numbers are rewritten as in a text file."""
    import pandas as pd

    table = RawTable(origin, columns, missing=missing_values(options.missing))
    names = (roles.trajectory, roles.observable)
    texts = [
        name
        for name, column in columns.items()
        if name not in names and pd.api.types.infer_dtype(column, skipna=True) == "string"
    ]
    return with_plain_numbers(table, texts, options.decimal, is_comma_free=False)


def with_plain_numbers(
    table: RawTable, channels: Sequence[str], decimal: str | None, *, is_comma_free: bool
) -> RawTable:
    """Rewrites numbers of these columns with a decimal point and without separators.

    **Arguments:**

    - `decimal`: the decimal mark, if the user specified it.
    - `is_comma_free`: whether commas are not column separators, so that a lone `1,234` has a decimal comma.

    **Raises:** `ValueError` if decimal points and decimal commas are mixed, or the decimal mark is ambiguous.
    """
    columns = {name: table.columns[name] for name in channels}
    if not any(MARKED.search("\n".join(map(str, column))) for column in columns.values()):
        return table
    marks = find_marks(table, columns, decimal, is_comma_free)
    groups = re.compile(f"[{re.escape(''.join(marks.groups))}]") if marks.groups else None

    def with_point(text: str) -> str:
        grouped = THOUSANDS.fullmatch(text)
        if groups and grouped and grouped["group"] in marks.groups and grouped["decimal"] in (None, marks.decimal):
            return groups.sub("", text).replace(marks.decimal, ".")
        plain = ONE_MARK.fullmatch(text)
        return text.replace(",", ".") if plain and plain[1] == marks.decimal else text

    def rewrite(value: object) -> object:
        return "".join(map(with_point, parts_of_cell(value))) if isinstance(value, str) else value

    points = {name: column.map(rewrite) for name, column in columns.items()}
    return replace(table, columns=table.columns | points, notes=(*table.notes, *marks.notes))


def find_marks(table: RawTable, columns: dict[str, "pandas.Series"], decimal: str | None, is_comma_free: bool) -> Marks:
    """Infers the marks of a table from the possible readings of its numbers."""
    sure: dict[str, tuple[int, str, str]] = {}
    unsure: dict[str, tuple[int, str, str]] = {}
    groups: set[str] = set()
    for name, column in columns.items():
        cells = ((row, value) for row, value in enumerate(column) if isinstance(value, str))
        for row, text in ((row, part) for row, value in cells for part in parts_of_cell(value)):
            if UNSURE.fullmatch(text):
                unsure.setdefault("," if "," in text else ".", (row, name, text))
            elif (plain := ONE_MARK.fullmatch(text)) and plain[1]:
                sure.setdefault(plain[1], (row, name, text))
            elif grouped := THOUSANDS.fullmatch(text):
                groups.add(grouped["group"])
                if grouped["decimal"]:
                    sure.setdefault(grouped["decimal"], (row, name, text))
    if decimal is None:
        decimal = choose_decimal(table, sure, unsure, groups, is_comma_free)
    other_mark = "." if decimal == "," else ","
    return Marks(decimal, frozenset(groups | ({other_mark} if other_mark in unsure else set[str]())) - {decimal})


def choose_decimal(
    table: RawTable,
    sure: dict[str, tuple[int, str, str]],
    unsure: dict[str, tuple[int, str, str]],
    groups: set[str],
    is_comma_free: bool,
) -> str:
    """Chooses the decimal mark from the first number in which each mark occurs."""
    if len(sure) == 2 or (not sure and len(unsure) == 2):
        (row, name, value), (comma_row, other_name, other_value) = (sure or unsure)["."], (sure or unsure)[","]
        raise ValueError(
            f"{table.at(row, name)}: {value!r} has a decimal point, but {other_value!r} in {table.row(comma_row)}, "
            f"column {other_name!r} has a decimal comma; use one decimal mark in all numbers."
        )
    if sure:
        return next(iter(sure))
    if "," in groups or "." in groups:
        return "." if "," in groups else ","
    if "," in unsure and not is_comma_free:
        row, name, value = unsure[","]
        raise ValueError(
            f"{table.at(row, name)}: {value!r} is not a number with a decimal point; say what its comma is: "
            f"data.decimal='.' if it groups thousands, data.decimal=',' if it is the decimal mark."
        )
    return "," if "," in unsure else "."
