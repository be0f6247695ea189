"""Columns of numbers and of names, out of what stood in the table."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .table import Table

MISSING = ("", "NA", "NaN", "nan", "null")  # what stands for a missing number; any other word is text
UNKNOWN_FIX = "correct it, or leave it empty if the value is unknown."
INPUT_FIX = "inputs must be known at every time; fill it in, or remove the row."


def numbers(table: Table, name: str, fix: str, *, may_miss: bool) -> Float[np.ndarray, " row"]:
    """A column as float64, NaN where nothing was measured.

    **Arguments:** `fix`: what the user can do about a wrong value; `may_miss`: whether a value may be missing.

    **Raises:** `ValueError` at the first value that is text, a truth value, a date, infinite, or missing.
    """
    values = typed_numbers(table, name) if is_typed(table.columns[name]) else read_numbers(table, name, fix)
    refuse(table, name, np.isinf(values), f"the value is infinite; {fix}")
    if not may_miss:
        refuse(table, name, np.isnan(values), f"the value is missing; {fix}")
    return values


def is_typed(column: Any) -> bool:
    """Whether a column has one type other than text or Python objects."""
    import pandas as pd

    kinds = pd.api.types
    return kinds.is_bool_dtype(column) or kinds.is_numeric_dtype(column) or column.dtype.kind in "mM"


def typed_numbers(table: Table, name: str) -> Float[np.ndarray, " row"]:
    column = table.columns[name]
    kind = {"b": "truth values", "m": "durations", "M": "timestamps", "c": "complex numbers"}.get(column.dtype.kind)
    if kind is not None:
        raise ValueError(f"{table.origin}, column {name!r} holds {kind}, not real numbers; convert it to numbers.")
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def read_numbers(table: Table, name: str, fix: str) -> Float[np.ndarray, " row"]:
    column = table.columns[name].to_numpy(dtype=object)
    values = read_plain(column)
    if values is not None:
        return values
    values = np.empty(len(column))
    for row, value in enumerate(column):
        try:
            values[row] = number(value)
        except (TypeError, ValueError):
            raise ValueError(f"{table.at(row, name)}: {quote(value)} is not a number; {fix}") from None
    return values


def read_plain(column: np.ndarray) -> Float[np.ndarray, " row"] | None:
    """A column of text in which nothing needs a second look, at once; else None. It reads as `number` does."""
    import pandas as pd

    if pd.api.types.infer_dtype(column, skipna=False) != "string" or "_" in "".join(column):
        return None
    known = ~np.isin(column, MISSING)
    values = np.full(len(column), np.nan)
    try:
        values[known] = column[known].astype(np.float64)
    except ValueError:
        return None
    return None if np.isnan(values[known]).any() else values


def number(value: Any) -> float:
    """One value as a float; NaN if it is missing.

    **Raises:** `ValueError` or `TypeError` if it is no number.
    """
    if isinstance(value, str):
        # Python also reads `1_000` and words like `NAN`, which are text here.
        if "_" not in value:
            text = value.strip()
            if text in MISSING:
                return np.nan
            result = float(text)
            if result == result:
                return result
        raise ValueError(value)
    if is_absent(value):
        return np.nan
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(value)
    return float(value)


def is_absent(value: Any) -> bool:
    """Whether a value is none at all: `None`, NaN, NaT or `pandas.NA`."""
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def names(table: Table, name: str, what: str) -> np.ndarray:
    """A column of names as an array of text.

    **Raises:** `ValueError` at the first one that is missing; `what` says of what it is the name.
    """
    import pandas as pd

    codes, found = pd.factorize(table.columns[name].to_numpy(dtype=object))
    # A missing value has the code -1, which takes the last name.
    result = np.array([*(label(value) for value in found), ""], dtype=object)[codes]
    refuse(table, name, result == "", f"the row names no {what}; fill it in, or remove the row.")
    return result


def label(value: Any) -> str:
    """The text of a name. Whole numbers became floats if others are missing: `7.0` and `7` are one trajectory."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def refuse(table: Table, name: str, wrong: np.ndarray, sentence: str) -> None:
    if wrong.any():
        raise ValueError(f"{table.at(int(wrong.argmax()), name)}: {sentence}")


def quote(value: Any, most: int = 40) -> str:
    """A value for a sentence, cut if it is long."""
    text = repr(value.strip()) if isinstance(value, str) else str(value)
    return text if len(text) <= most else f"{text[:most]}..."
