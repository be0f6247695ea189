from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Table:
    """The needed columns as they were read, and where each row stood.

    **Arguments:**

    - `origin`: the file as the user named it, or `data frame`.
    - `columns`: a `pandas.Series` for each name; of strings, where a text file was read.
    - `lines`: the line of each row as a text editor counts, or `None` if there are no lines.
    - `rows`: the row of the file that each row comes from, counted from 0; `None` if it is the same.
    - `own`: the name of each row's trajectory, where the layout tells it and no column does; else `None`.

    **Raises:** `ValueError` if there are no rows.
    """

    origin: str
    columns: dict[str, Any]
    lines: Int[np.ndarray, " row"] | None = None
    rows: Int[np.ndarray, " row"] | None = None
    own: Any = None

    def __post_init__(self):
        if len(self) == 0:
            raise ValueError(f"{self.origin} has columns but no rows; at least one row of numbers is needed.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, index: int) -> str:
        """Words for where a row is."""
        if self.lines is not None:
            return f"line {self.lines[index]}"
        number = index if self.rows is None else self.rows[index]
        return f"row {number} (counted from 0)" + ("" if self.own is None else f" of trajectory {self.own[index]!r}")

    def at(self, index: int, name: str) -> str:
        """Words for where a value is."""
        return f"{self.origin}, {self.row(index)}, column {name!r}"

    def take(self, index: Int[np.ndarray, " taken"], columns: dict[str, Any], own: Any = None) -> "Table":
        """A table of other columns, of which each row stands where the row `index` of this one does."""
        lines = None if self.lines is None else self.lines[index]
        return Table(self.origin, columns, lines, index if self.rows is None else self.rows[index], own)


def choose(names: Sequence[str], wanted: Sequence[str], origin: str) -> list[int]:
    """Positions of the wanted columns.

    **Raises:** `ValueError` if one is unknown, with the nearest name, or if its name stands twice.
    """
    for name in wanted:
        if name not in names:
            raise ValueError(f"{origin} has no column {name!r}; its columns are {shown(names)}.{hint(name, names)}")
        if names.count(name) > 1:
            places = " and ".join(str(i + 1) for i, known in enumerate(names) if known == name)
            raise ValueError(
                f"{origin} has {names.count(name)} columns with the name {name!r} (columns {places}); "
                "rename all but one."
            )
    return [names.index(name) for name in wanted]


def hint(name: str, names: Sequence[str]) -> str:
    """A question that names the nearest of the names, or nothing if none is near."""
    # A name that differs in case alone is no close match if it is short.
    near = get_close_matches(name, names, n=1) or [known for known in names if known.lower() == name.lower()]
    return f" Did you mean {near[0]!r}?" if near else ""


def shown(names: Sequence[str], most: int = 20) -> str:
    """A list of names for a sentence, cut if it is long."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
