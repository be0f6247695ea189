from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class RawTable:
    """The needed columns as read, and the position of each row in its file.

    **Arguments:**

    - `origin`: the file as the user named it, or `data frame`.
    - `columns`: a `pandas.Series` for each name; of strings, if read from a text file.
    - `lines`: the line of each row as a text editor counts, or `None` if the source has no lines.
    - `rows`: the row of the file that each row comes from, counted from 0; `None` if it is the same.
    - `own`: the trajectory name of each row if the layout, not a column, identifies it; else `None`.

    **Raises:** `ValueError` if there are no rows.
    """

    origin: str
    columns: dict[str, Any]
    lines: Int[np.ndarray, " row"] | None = None
    rows: Int[np.ndarray, " row"] | None = None
    own: Any = None

    def __post_init__(self):
        if len(self) == 0:
            raise ValueError(f"{self.origin} has columns but no rows; it needs at least one row of numbers.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, index: int) -> str:
        """Describes the position of a row for a message."""
        if self.lines is not None:
            return f"line {self.lines[index]}"
        number = index if self.rows is None else self.rows[index]
        return f"row {number} (counted from 0)" + ("" if self.own is None else f" of trajectory {self.own[index]!r}")

    def at(self, index: int, name: str) -> str:
        """Describes the position of a value for a message."""
        return f"{self.origin}, {self.row(index)}, column {name!r}"

    def take(self, index: Int[np.ndarray, " taken"], columns: dict[str, Any], own: Any = None) -> "RawTable":
        """A table of new columns whose rows have the positions of rows `index` of this table."""
        lines = None if self.lines is None else self.lines[index]
        return RawTable(self.origin, columns, lines, index if self.rows is None else self.rows[index], own)


def choose(names: Sequence[str], wanted: Sequence[str], origin: str) -> list[int]:
    """Positions of the wanted columns.

    **Raises:** `ValueError` if a column is unknown, with the nearest name, or if its name appears twice.
    """
    for name in wanted:
        if name not in names:
            raise ValueError(f"{origin} has no column {name!r}; its columns are {shown(names)}.{hint(name, names)}")
        if names.count(name) > 1:
            places = " and ".join(str(i + 1) for i, known in enumerate(names) if known == name)
            raise ValueError(
                f"{origin} has {names.count(name)} columns named {name!r} (columns {places}); rename all but one."
            )
    return [names.index(name) for name in wanted]


def hint(name: str, names: Sequence[str]) -> str:
    """A question that suggests the nearest name; empty if none is near."""
    # For `difflib`, a short name that differs only in case is not a close match.
    near = get_close_matches(name, names, n=1) or [known for known in names if known.lower() == name.lower()]
    return f" Did you mean {near[0]!r}?" if near else ""


def shown(names: Sequence[str], most: int = 20) -> str:
    """A list of names for a message, truncated if it is long."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
