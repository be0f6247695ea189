"""Reads JSON lines: one object per row, with the columns as keys."""

import json
from pathlib import Path

import numpy as np

from ...runtime.serialization import Json, is_json
from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, quote
from .text import content, decode

# Whole numbers with more digits than this become floats.
EXACT_DIGITS = 15


def read_json_lines(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the columns of a file with a JSON object per line; a row without a key has no value in that column."""
    import pandas as pd

    rows: dict[int, Json] = {}
    for number, line in enumerate(decode(path, content(path)).splitlines(), start=1):
        if line.strip():
            rows[number] = read_object(path, number, line)
    if not rows:
        raise ValueError(f"{path} holds no row; it needs a JSON object in each line.")
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    needed = list(roles.find(names, str(path)))
    for number, row in rows.items():
        for name in needed:
            if isinstance(row.get(name), dict | list):
                raise ValueError(
                    f"{path}, line {number}, column {name!r}: {quote(row[name])} is no single value; write a number."
                )
    columns = {name: pd.Series([row.get(name) for row in rows.values()], dtype=object) for name in needed}
    return RawTable(str(path), columns, np.array(list(rows), dtype=np.int64))


def read_object(path: Path, number: int, line: str) -> Json:
    """Parses the row of a line.

    **Raises:** `ValueError` if it is not a JSON object.
    """
    try:
        row: object = json.loads(line, parse_int=read_whole_number)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f'{path}, line {number} is no JSON ({reason}); write an object such as {{"t": 0}}.') from None
    if not is_json(row):
        raise ValueError(f'{path}, line {number} holds {quote(row)}, not an object such as {{"t": 0, "x": 1.5}}.')
    return row


def read_whole_number(digits: str) -> float | int:
    return int(digits) if len(digits) <= EXACT_DIGITS else float(digits)
