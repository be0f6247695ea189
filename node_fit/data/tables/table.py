"""A table as columns of texts or numbers, and parsing of its texts as numbers and names."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    import pandas


class Missing(NamedTuple):
    """Markers of a missing number: lower-case words, and numbers."""

    words: frozenset[str]
    numbers: tuple[float, ...] = ()


# Words that people, programs and loggers write for a missing number, in any case; all other words are text.
MISSING_WORDS = frozenset(
    {
        *("", "na", "n/a", "n.a.", "<na>", "nan", "-nan", "null", "none", "nil", "missing"),
        *("-", "--", "---", ".", "..", "...", "*", "?"),
        *("#n/a", "#na", "#value!", "#ref!", "#div/0!", "#num!", "#name?", "#null!"),
        *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "1.#nan"),
    }
)
# Spellings that need no note.
PLAIN_WORDS = frozenset({"", "na", "nan", "null"})
COMMON = Missing(MISSING_WORDS)


def missing_values(given: Sequence[str | float | int] | None) -> Missing:
    """Returns the markers of a missing number from the user's words or numbers; the common words if None."""
    if given is None:
        return COMMON
    numbers = [value for word in given if (value := sentinel_of(word)) is not None]
    return Missing(frozenset({"", *(str(word).strip().lower() for word in given)}), tuple(numbers))


def sentinel_of(word: str | float | int) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


@dataclass(frozen=True)
class RawTable:
    """The needed columns as read, and the position of each row in its file.

    **Arguments:**

    - `origin`: the file as the user named it, or `data frame`.
    - `columns`: a `pandas.Series` for each name; of strings, if read from a text file.
    - `lines`: line of each row as counted in a text editor, or `None` if the source has no lines.
    - `rows`: row of the file that each row comes from, counted from 0; `None` if it is the same.
    - `own`: trajectory name of each row if the layout, not a column, identifies it; else `None`.
    - `missing`: markers of a missing number.
    - `units`: units of columns, by name, if the file contains them.
    - `notes`: properties that were detected during reading, one sentence each.

    **Raises:** `ValueError` if the table has no rows.
    """

    origin: str
    columns: dict[str, "pandas.Series"]
    lines: Int[np.ndarray, " row"] | None = None
    rows: Int[np.ndarray, " row"] | None = None
    own: np.ndarray | None = None
    missing: Missing = COMMON
    units: dict[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        if len(self) == 0:
            raise ValueError(f"{self.origin} has columns but no rows; it needs at least one row of numbers.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rename(self, names: Mapping[str, str]) -> "RawTable":
        """Renames some columns of the table."""
        return replace(
            self,
            columns={names.get(name, name): column for name, column in self.columns.items()},
            units={names.get(name, name): unit for name, unit in self.units.items()},
        )

    def row(self, index: int) -> str:
        """Describes the position of a row for a message."""
        if self.lines is not None:
            return f"line {self.lines[index]}"
        number = index if self.rows is None else self.rows[index]
        return f"row {number} (counted from 0)" + ("" if self.own is None else f" of trajectory {self.own[index]!r}")

    def at(self, index: int, name: str) -> str:
        """Describes the position of a value for a message."""
        return f"{self.origin}, {self.row(index)}, column {name!r}"

    def take(
        self, index: Int[np.ndarray, " taken"], columns: dict[str, "pandas.Series"], own: np.ndarray | None = None
    ) -> "RawTable":
        """Builds a table from new columns, whose rows keep the positions of rows `index` of this table."""
        lines = None if self.lines is None else self.lines[index]
        rows = index if self.rows is None else self.rows[index]
        return replace(self, columns=columns, lines=lines, rows=rows, own=own)


def choose_columns(names: Sequence[str], wanted: Sequence[str], origin: str) -> list[int]:
    """Returns the positions of the wanted columns.

    **Raises:** `ValueError` if a column is unknown, with the nearest name, or if its name appears twice.
    """
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"{origin} has no column {name!r}; its columns are {list_names(names)}.{hint(name, names)}"
            )
        if names.count(name) > 1:
            places = " and ".join(str(i + 1) for i, known in enumerate(names) if known == name)
            raise ValueError(
                f"{origin} has {names.count(name)} columns named {name!r} (columns {places}); rename all but one."
            )
    return [names.index(name) for name in wanted]


def hint(name: str, names: Sequence[str]) -> str:
    """Returns a question that suggests the nearest name; empty if no name is near."""
    # For `difflib`, a short name that differs only in case or lacks a unit is not a close match.
    near = get_close_matches(name, names, n=1) or [known for known in names if known.lower().startswith(name.lower())]
    return f" Did you mean {near[0]!r}?" if near else ""


def list_names(names: Sequence[str], most: int = 20) -> str:
    """Lists names for a message, truncated if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


UNKNOWN_FIX = "correct it, or leave it empty if the value is unknown."
INPUT_FIX = "inputs must be known at every time; fill it in, or remove the row."


def as_numbers_of_column(table: RawTable, name: str, fix: str, *, may_miss: bool) -> Float[np.ndarray, " row"]:
    """Converts a column to float64, NaN for missing values.

    **Arguments:** `fix`: how the user can correct a value; `may_miss`: whether values can be missing.

    **Raises:** `ValueError` at the first value that is text, boolean, a date, infinite, or missing.
    """
    values = typed_numbers(table, name) if is_typed(table.columns[name]) else read_numbers(table, name, fix)
    if table.missing.numbers:
        values = np.where(np.isin(values, table.missing.numbers), np.nan, values)
    raise_at_first(table, name, np.isinf(values), f"the value is infinite; {fix}")
    if not may_miss:
        raise_at_first(table, name, np.isnan(values), f"the value is missing; {fix}")
    return values


def is_typed(column: "pandas.Series") -> bool:
    """Whether a column has one type other than text or Python objects."""
    import pandas as pd

    kinds = pd.api.types
    return kinds.is_bool_dtype(column) or kinds.is_numeric_dtype(column) or column.dtype.kind in "mM"


def typed_numbers(table: RawTable, name: str) -> Float[np.ndarray, " row"]:
    column = table.columns[name]
    kind = {"b": "booleans", "m": "durations", "M": "timestamps", "c": "complex numbers"}.get(column.dtype.kind)
    if kind is not None:
        raise ValueError(f"{table.origin}, column {name!r} holds {kind}, not real numbers; convert it to numbers.")
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def read_numbers(table: RawTable, name: str, fix: str) -> Float[np.ndarray, " row"]:
    column = table.columns[name].to_numpy(dtype=object)
    values = read_plain(column, table.missing)
    if values is not None:
        return values
    values = np.empty(len(column))
    for row, value in enumerate(column):
        try:
            values[row] = read_number(value, table.missing)
        except (TypeError, ValueError):
            limit = isinstance(value, str) and CENSORED_CELL.fullmatch(value)
            fix = f"set data.censored=true (censored=True in Python) if it is {limit_kind(value)}" if limit else fix
            raise ValueError(f"{table.at(row, name)}: {quote(value)} is not a number; {fix}") from None
    return values


def read_plain(column: np.ndarray, missing: Missing) -> Float[np.ndarray, " row"] | None:
    """Converts a text column at once; returns `None` if any value needs individual parsing.

    The result is the same as that of `read_number`.
    """
    import pandas as pd

    if pd.api.types.infer_dtype(column, skipna=False) != "string" or "_" in "".join(column):
        return None
    nan = {"NaN"} if "nan" in missing.words else set[str]()
    spellings = missing.words | {word.upper() for word in missing.words} | nan
    known = ~np.fromiter((value in spellings for value in column), bool, len(column))
    values = np.full(len(column), np.nan)
    try:
        values[known] = column[known].astype(np.float64)
    except ValueError:
        return None
    return None if np.isnan(values[known]).any() else values


def describe_missing(tables: Sequence[RawTable], of_names: Sequence[str | None]) -> list[str]:
    """Describes the words that stand for missing numbers, unless all are plain.

    **Arguments:** `of_names`: columns that hold names, not numbers.
    """
    counts: Counter[str] = Counter()
    for table in tables:
        for name, column in table.columns.items() if table.missing is COMMON else ():
            if name not in of_names and not is_typed(column):
                words = {value for value in set(column) if isinstance(value, str) and is_odd_word(value)}
                counts.update(value.strip() for value in column if words and value in words)
    if not counts:
        return []
    words = list_names([word for word, _ in counts.most_common()], 5)
    return [f"missing values: {sum(counts.values())} are written as {words} (data.missing=[] keeps only empty cells)"]


def is_odd_word(value: str) -> bool:
    """Whether a cell holds a word for a missing number other than the plain ones."""
    word = value.strip().lower()
    return word in MISSING_WORDS and word not in PLAIN_WORDS


def read_number(value: object, missing: Missing = COMMON) -> float:
    """Converts one value to a float; NaN if it is missing.

    **Raises:** `ValueError` or `TypeError` if it is not a number.
    """
    if isinstance(value, str):
        # Python also accepts `1_000`, and `NAN` even if that is not a word for a missing value.
        if "_" not in value:
            text = value.strip()
            if text.lower() in missing.words:
                return np.nan
            result = float(text)
            if result == result:
                return result
        raise ValueError(value)
    if is_absent(value):
        return np.nan
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{value}")
    return float(cast(float, value))


# A value known only by a limit, such as `<0.5` or `> 100`, or by both ends of an interval, such as `0.2..0.5`.
CENSORED_CELL = re.compile(
    r"\s*((?P<side><=?|>=?|≤|≥)\s*|(?P<lower>[^<>=≤≥]+?)\s*(?P<dots>\.\.)\s*)(?P<number>[^<>=≤≥]+)"
)


def parts_of_cell(text: str) -> list[str]:
    """Splits a cell into stripped parts: the sign of a limit and its number, the ends of an interval with `..` between
    them, or a single value."""
    match = CENSORED_CELL.fullmatch(text)
    if match is None:
        return [text.strip()]
    return [part.strip() for part in match.group("side", "lower", "dots", "number") if part]


def limit_kind(text: str) -> str:
    """Describes the kind of a cell with several parts."""
    return "an interval" if ".." in parts_of_cell(text) else "a limit of detection"


class SplitTable(NamedTuple):
    """A table whose states can be limits or intervals, as plain numbers.

    - `numbers`: values; upper ends of intervals. `marks`: -1 if the true value lies below, 1 if it lies above, else 0.
    - `lower`: lower ends of intervals, other values as in `numbers`; None without intervals.
    """

    numbers: RawTable
    marks: RawTable
    lower: RawTable | None


def split_limits(table: RawTable, names: Collection[str]) -> SplitTable:
    """Splits limits and intervals in the columns `names` into numbers and marks.

    **Raises:** `ValueError` that names the cell, if the lower end of an interval is not below the upper one.
    """
    import pandas as pd

    numbers, marks, lower = dict(table.columns), dict(table.columns), dict(table.columns)
    has_intervals = False
    for name in names:
        cells = table.columns[name].to_numpy(dtype=object)
        parts = [parts_of_cell(cell) if isinstance(cell, str) else [cell] for cell in cells]
        absent = [is_missing(cell, table.missing) for cell in cells]
        if any(len(part) > 1 for part in parts):
            numbers[name] = pd.Series([part[-1] for part in parts])
        intervals = {row: read_lower(table, row, name, part) for row, part in enumerate(parts) if ".." in part}
        ends = [np.nan if absent[row] else intervals.get(row, part[-1]) for row, part in enumerate(parts)]
        lower[name] = pd.Series(ends, dtype=object)
        has_intervals |= bool(intervals)
        sides = [0.0 if len(part) == 1 else 1.0 if part[0] in (">", ">=", "≥") else -1.0 for part in parts]
        marks[name] = pd.Series(np.where(absent, np.nan, sides))
    # Numbers that stand for missing values have no such meaning among marks and ends.
    beside = replace(table, missing=table.missing._replace(numbers=()))
    return SplitTable(
        replace(table, columns=numbers),
        replace(beside, columns=marks),
        replace(beside, columns=lower) if has_intervals else None,
    )


def read_lower(table: RawTable, row: int, name: str, parts: Sequence[str]) -> float:
    """Parses the lower end of an interval.

    **Raises:** `ValueError` if the ends are not numbers, or it is not below the upper one.
    """
    where, cell = table.at(row, name), quote("".join(parts))
    try:
        lower, upper = float(parts[0]), float(parts[-1])
    except ValueError:
        raise ValueError(f"{where}: {cell} is no interval; write its two ends as numbers, such as 0.2..0.5.") from None
    if not lower < upper:
        raise ValueError(
            f"{where}: the lower end of {cell} must be below the upper one; exchange them, or write a value that is "
            "known as one number."
        )
    return lower


def is_missing(value: object, missing: Missing) -> bool:
    """Whether a cell stands for a missing number."""
    try:
        number = read_number(value, missing)
    except (TypeError, ValueError):
        return False
    return number != number or number in missing.numbers


def is_absent(value: object) -> bool:
    """Whether a value is absent: `None`, NaN, NaT or `pandas.NA`."""
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def read_names(tables: Sequence[RawTable], name: str, what: str) -> list[np.ndarray]:
    """Reads a column of names as an array of text for each table; `what` is the kind of thing that they name.

    **Raises:** `ValueError` at the first missing name, and at the first that differs from another only by blanks.
    """
    import pandas as pd

    written: dict[str, tuple[str, str]] = {}
    columns: list[np.ndarray] = []
    for table in tables:
        column: np.ndarray = table.columns[name].to_numpy(dtype=object)
        codes, names = pd.factorize(column)
        # A missing value has the code -1, which selects the last name.
        result = np.array([*(label(value) for value in names), ""], dtype=object)[codes]
        raise_at_first(table, name, result == "", f"the row names no {what}; fill it in, or remove the row.")
        for code, value in enumerate(names):
            if not isinstance(value, str):
                continue
            row = int((codes == code).argmax())
            first_spelling, first_place = written.setdefault(
                label(value), (value, f"{table.row(row)} of {table.origin}")
            )
            if first_spelling != value:
                raise ValueError(
                    f"{table.at(row, name)}: {value!r} differs from {first_spelling!r} in {first_place} by blanks "
                    f"alone; write both alike if they are one {what}, else rename one."
                )
        columns.append(result)
    return columns


def label(value: object) -> str:
    """Converts a name to text. `7.0` becomes `7`, since pandas turns whole numbers into floats in columns with gaps."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def raise_at_first(table: RawTable, name: str, wrong: np.ndarray, sentence: str) -> None:
    if wrong.any():
        raise ValueError(f"{table.at(int(wrong.argmax()), name)}: {sentence}")


def quote(value: object, most: int = 40) -> str:
    """Quotes a value for a message, truncated if it is long."""
    text = repr(value.strip()) if isinstance(value, str) else str(value)
    return text if len(text) <= most else f"{text[:most]}..."


def is_blank(value: object) -> bool:
    return is_absent(value) or (isinstance(value, str) and not value.strip())


def read_error(path: Path, kind: str, error: Exception | str) -> ValueError:
    """Builds the error for a file that no parser of its kind can read."""
    reason = " ".join(str(error).split())
    return ValueError(f"{path} cannot be read as a {kind} file ({reason.rstrip('.')}); save it again.")
