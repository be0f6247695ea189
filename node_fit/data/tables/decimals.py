import re
from collections.abc import Sequence
from dataclasses import replace

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
