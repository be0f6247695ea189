"""Files of events."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..events import WHERE
from .sizes import check_size


def read_events(
    given: str | Sequence[Mapping[str, Any]] | None, trajectory: str | None, max_bytes: float
) -> list[dict[str, Any]]:
    """Events as rows, whose trajectory has the key `trajectory`.

    **Arguments:**

    - `given`: a file of text with a line of column names, or the rows themselves.
    - `trajectory`: the name of the column of trajectories.
    - `max_bytes`: memory that the file may take.

    **Raises:** `FileNotFoundError`, or `ValueError` if the file can't be read as a table.
    """
    rows = of_file(Path(given), max_bytes) if isinstance(given, str) else [dict(row) for row in given or ()]
    return [{"trajectory" if key == trajectory else key: value for key, value in row.items()} for row in rows]


def of_file(path: Path, max_bytes: float) -> list[dict[str, Any]]:
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"data.events names {path}, which is not a file.")
    check_size(path, max_bytes)
    try:
        frame = pd.read_csv(path, sep=None, engine="python", dtype=str, comment="#", keep_default_na=False)
    except (ValueError, UnicodeError) as error:
        fault = str(error).splitlines()[0]
        raise ValueError(f"{path} can't be read as a table of events: {fault}") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    rows = frame.to_dict("records")
    return [
        {**{key: value.strip() for key, value in row.items()}, WHERE: f"{path}, row {number + 1}"}
        for number, row in enumerate(rows)
    ]


def of_trajectories(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """The events of these trajectories, and of all."""
    return [row for row in rows if row.get("trajectory") in (None, "") or str(row["trajectory"]) in names]


def check_trajectories_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Refuses events of trajectories that no file has."""
    left = [row for row in rows if row not in of_trajectories(rows, names)]
    if left:
        raise ValueError(
            f"{left[0].get(WHERE, 'data.events')} is of trajectory {left[0]['trajectory']!r}, which the data do not "
            f"have; they have {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        )
