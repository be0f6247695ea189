from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from .binary import read_mat, read_npy, read_npz, read_parquet
from .covariates import CovariateNumbers, as_numbers, check_trajectories, with_covariates
from .layouts import as_rows
from .paths import find_files, names_of
from .roles import Roles, as_names
from .table import Table
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
    time: str | None = None,
    states: Sequence[str],
    inputs: Sequence[str] = (),
    covariates: Sequence[str] | CovariateNumbers = (),
    trajectory: str | None = None,
    series: Sequence[str] = (),
    observable: str | None = None,
    value: str | None = None,
    step: float | None = None,
    time_unit: str | None = None,
    units: dict[str, str] | None = None,
) -> Dataset:
    """Reads trajectories from files, with a row a time if nothing else is said.

    Text (comma, semicolon, tab or blanks between the columns, decimal point or comma, `#` for comments, `.gz` too),
    Parquet, `.npz` and `.mat` (a column a variable), `.npy` (named fields, or `c0, c1, ...` for the columns of a
    matrix). An empty state, `NA`, `NaN`, `nan` or `null` is a missing measurement; any other word is refused.

    Arrays may be stacks: `(trajectory, time)` in `.npz` and `.mat`, with times `(time,)` for all; `(trajectory, time,
    column)` in `.npy`, with columns `c0, c1, ...`, or `NAME0, NAME1, ...` of a variable `NAME`.

    **Arguments:**

    - `path`: a file, a list of files, or a glob. Without `trajectory`, each file is a trajectory with the file's name,
      and those of stacks are called `0, 1, ...`, or `FILE/0` if there are several files.
    - `time`: column of times: numbers, or ISO 8601 timestamps. They must increase strictly within a trajectory.
    - `states`, `inputs`: columns of numbers; inputs must be known at every time.
    - `covariates`: inputs that are constant within a trajectory: columns, whose empty cells take the value of other
      rows, or numbers by name and trajectory, `{"dose": {"A": 2.0, "default": 0.0}}`. They come after `inputs`.
    - `trajectory`: column that tells trajectories apart; their rows may stand mixed.
    - `series`: for a table with a column a trajectory, patterns of these columns, such as `["A*"]`; `states` then
      names what they hold, and the other columns belong to all of them.
    - `observable`, `value`: for a table with a row a measurement, the columns of what was measured and of its value;
      `states` are then names in the first, and so are `inputs` that are no columns. Rows of others are left out.
    - `step`: in the place of `time`, the time between two rows; each trajectory begins at 0.
    - `time_unit`: unit that timestamps are counted in, `s`, `min`, `h` or `d`, from the first time of the table.
      Without `trajectory`, each file is a table of its own.
    - `units`: unit of a column, by its name; for the record, nothing is converted.

    **Returns:** the dataset, trajectories in the order in which they appear.

    **Raises:** `FileNotFoundError`, or `ValueError` with one sentence that names the file, the line (the row, where
    there are no lines) and the column.
    """
    roles = make_roles(time, states, inputs, covariates, trajectory, series, observable, value, step)
    constants = as_numbers(covariates)
    data = read_files(path, roles, time_unit, units or {})
    check_trajectories(constants, data.trajectories)
    return with_covariates(data, constants, units or {})


def from_frame(
    frame: Any,
    *,
    time: str | None = None,
    states: Sequence[str],
    inputs: Sequence[str] = (),
    covariates: Sequence[str] | CovariateNumbers = (),
    trajectory: str | None = None,
    series: Sequence[str] = (),
    observable: str | None = None,
    value: str | None = None,
    step: float | None = None,
    time_unit: str | None = None,
    units: dict[str, str] | None = None,
    origin: str = "data frame",
) -> Dataset:
    """Takes trajectories from a `pandas.DataFrame`, with a row a time if nothing else is said.

    **Arguments:** `frame`: the data frame; `origin`: what errors call it; the others as in `read_table`.

    **Returns:** the dataset; if nothing tells trajectories apart, it is one with the name `0`.

    **Raises:** `ValueError` with one sentence that names the row and the column.
    """
    roles = make_roles(time, states, inputs, covariates, trajectory, series, observable, value, step)
    constants = as_numbers(covariates)
    check_unit(time_unit, roles.time is not None)
    names = [str(name) for name in frame.columns]
    in_index = [name for name in roles.fixed if name in frame.index.names and name not in names]
    if in_index:
        raise ValueError(f"{origin} has {in_index[0]!r} in its index, not as a column; pass frame.reset_index().")
    columns = {name: frame.iloc[:, i].reset_index(drop=True) for name, i in roles.find(names, origin).items()}
    data = assemble(as_rows([Table(origin, columns)], roles), ["0"], roles, time_unit, units or {})
    check_trajectories(constants, data.trajectories)
    return with_covariates(data, constants, units or {})


def make_roles(
    time: str | None,
    states: Sequence[str],
    inputs: Sequence[str],
    covariates: Sequence[str] | CovariateNumbers,
    trajectory: str | None,
    series: Sequence[str],
    observable: str | None,
    value: str | None,
    step: float | None,
) -> Roles:
    """The roles of columns as the user gives them; covariates that are no columns have none."""
    return Roles(
        time=time,
        states=as_names(states, "states"),
        inputs=as_names(inputs, "inputs"),
        covariates=() if isinstance(covariates, Mapping) else as_names(covariates, "covariates"),
        trajectory=trajectory,
        series=as_names(series, "series"),
        observable=observable,
        value=value,
        step=step,
    )


def read_files(
    path: str | Path | Sequence[str | Path], roles: Roles, time_unit: str | None, units: dict[str, str]
) -> Dataset:
    """The trajectories in files, as `read_table`, without covariates that are no columns."""
    check_unit(time_unit, roles.time is not None)
    files = find_files(path)
    tables = as_rows([read_file(file, roles) for file in files], roles)
    return assemble(tables, names_of(files), roles, time_unit, units)


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
