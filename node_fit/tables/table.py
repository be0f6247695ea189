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

    **Raises:** `ValueError` if there are no rows.
    """

    origin: str
    columns: dict[str, Any]
    lines: Int[np.ndarray, " row"] | None = None

    def __post_init__(self):
        if len(self) == 0:
            raise ValueError(f"{self.origin} has columns but no rows; at least one row of numbers is needed.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, index: int) -> str:
        """Words for where a row is."""
        return f"row {index} (counted from 0)" if self.lines is None else f"line {self.lines[index]}"

    def at(self, index: int, name: str) -> str:
        """Words for where a value is."""
        return f"{self.origin}, {self.row(index)}, column {name!r}"


def choose(names: Sequence[str], wanted: Sequence[str], origin: str) -> list[int]:
    """Positions of the wanted columns.

    **Raises:** `ValueError` if one is unknown, with the nearest name, or if its name stands twice.
    """
    for name in wanted:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            # A name that differs in case alone is no close match if it is short.
            near = near or [known for known in names if known.lower() == name.lower()]
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{origin} has no column {name!r}; its columns are {shown(names)}.{hint}")
        if names.count(name) > 1:
            places = " and ".join(str(i + 1) for i, known in enumerate(names) if known == name)
            raise ValueError(
                f"{origin} has {names.count(name)} columns with the name {name!r} (columns {places}); "
                "rename all but one."
            )
    return [names.index(name) for name in wanted]


def shown(names: Sequence[str], most: int = 20) -> str:
    """A list of names for a sentence, cut if it is long."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
