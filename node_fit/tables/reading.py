from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from .binary import read_mat, read_npy, read_npz, read_parquet
from .paths import find_files, names_of
from .roles import Roles, as_names
from .table import Table, choose
from .text import read_text
from .times import check_unit
from .trajectories import assemble

READERS: dict[str, Callable[[Path, Roles], Table]] = {
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".npz": read_npz,
    ".npy": read_npy,
    ".mat": read_mat,
}


def read_table(
    path: str | Path | Sequence[str | Path],
    *,
    time: str,
    states: Sequence[str],
    inputs: Sequence[str] = (),
    trajectory: str | None = None,
    time_unit: str | None = None,
    units: dict[str, str] | None = None,
) -> Dataset:
    """Reads trajectories from files with a row a time.

    Text (comma, semicolon, tab or blanks between the columns, decimal point or comma, `#` for comments, `.gz` too),
    Parquet, `.npz` and `.mat` (a column a variable), `.npy` (named fields, or `c0, c1, ...` for the columns of a
    matrix). An empty state, `NA`, `NaN`, `nan` or `null` is a missing measurement; any other word is refused.

    **Arguments:**

    - `path`: a file, a list of files, or a glob. Without `trajectory`, each file is a trajectory with the file's name.
    - `time`: column of times: numbers, or ISO 8601 timestamps. They must increase strictly within a trajectory.
    - `states`, `inputs`: columns of numbers; inputs must be known at every time.
    - `trajectory`: column that tells trajectories apart; their rows may stand mixed.
    - `time_unit`: unit that timestamps are counted in, `s`, `min`, `h` or `d`, from the first time of the table.
      Without `trajectory`, each file is a table of its own.
    - `units`: unit of a column, by its name; for the record, nothing is converted.

    **Returns:** the dataset, trajectories in the order in which they appear.

    **Raises:** `FileNotFoundError`, or `ValueError` with one sentence that names the file, the line (the row, where
    there are no lines) and the column.
    """
    roles = Roles(time, as_names(states, "states"), as_names(inputs, "inputs"), trajectory)
    check_unit(time_unit)
    files = find_files(path)
    tables = [read_file(file, roles) for file in files]
    return assemble(tables, names_of(files), roles, time_unit, units or {})


def from_frame(
    frame: Any,
    *,
    time: str,
    states: Sequence[str],
    inputs: Sequence[str] = (),
    trajectory: str | None = None,
    time_unit: str | None = None,
    units: dict[str, str] | None = None,
    origin: str = "data frame",
) -> Dataset:
    """Takes trajectories from a `pandas.DataFrame` with a row a time.

    **Arguments:** `frame`: the data frame; `origin`: what errors call it; the others as in `read_table`.

    **Returns:** the dataset; without `trajectory` it is one trajectory with the name `0`.

    **Raises:** `ValueError` with one sentence that names the row and the column.
    """
    roles = Roles(time, as_names(states, "states"), as_names(inputs, "inputs"), trajectory)
    check_unit(time_unit)
    names = [str(name) for name in frame.columns]
    in_index = [name for name in roles.names if name in frame.index.names and name not in names]
    if in_index:
        raise ValueError(f"{origin} has {in_index[0]!r} in its index, not as a column; pass frame.reset_index().")
    chosen = choose(names, roles.names, origin)
    columns = {name: frame.iloc[:, i].reset_index(drop=True) for name, i in zip(roles.names, chosen, strict=True)}
    return assemble([Table(origin, columns)], ["0"], roles, time_unit, units or {})


def read_file(path: Path, roles: Roles) -> Table:
    """The wanted columns of one file."""
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise ValueError(f"{path} is a spreadsheet; save the sheet as CSV and name that file.")
    try:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; a line of column names and rows of numbers are needed.")
        return READERS.get(path.suffix.lower(), read_text)(path, roles)
    except PermissionError:
        raise ValueError(f"{path} may not be read; change its permissions.") from None
