from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from ..noise import ESTIMATE, Sigma, sigma_columns, with_columns, with_sigma
from .binary import read_mat, read_npy, read_npz, read_parquet
from .covariates import CovariateNumbers, as_numbers, check_trajectories, with_covariates
from .layouts import as_rows
from .paths import find_files, names_of
from .roles import Roles, as_names
from .sizes import MOST, check_size
from .table import RawTable
from .text import read_text
from .times import check_unit
from .trajectories import assemble

READERS: dict[str, Callable[[Path, Roles], RawTable]] = {
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
    day_first: bool | None = None,
    units: dict[str, str] | None = None,
    sigma: Sigma = ESTIMATE,
    max_bytes: float = MOST,
) -> Dataset:
    """Reads trajectories from files; by default a table has one row per time.

    Supported formats are text (commas, semicolons, tabs or blanks between columns, decimal points or commas, `#`
    comments, `.gz` compression), Parquet, `.npz` and `.mat` (one variable per column), and `.npy` (named fields, or
    `c0, c1, ...` for the columns of a matrix). An empty state, `NA`, `NaN`, `nan` or `null` is a missing measurement;
    any other word is an error.

    Arrays may be stacks: `(trajectory, time)` in `.npz` and `.mat`, with times `(time,)` that all trajectories share;
    `(trajectory, time, column)` in `.npy`, with columns `c0, c1, ...`, or `NAME0, NAME1, ...` of a variable `NAME`.

    **Arguments:**

    - `path`: a file, a list of files, or a glob. Without `trajectory`, each file is one trajectory, named after the
      file. Trajectories in stacks are named `0, 1, ...`, or `FILE/0` if there are several files.
    - `time`: column of times, as numbers or ISO 8601 timestamps. They must increase strictly within a trajectory.
    - `states`, `inputs`: numeric columns; inputs must be known at every time.
    - `covariates`: inputs that are constant within a trajectory, appended to `inputs`: either columns, whose empty
      cells take the value of other rows, or numbers by name and trajectory, `{"dose": {"A": 2.0, "default": 0.0}}`.
    - `trajectory`: column that identifies the trajectory; rows of different trajectories may be mixed.
    - `series`: for a wide table, with one column per trajectory, patterns of these columns, such as `["A*"]`. `states`
      then names what they hold, and all other columns apply to every trajectory.
    - `observable`, `value`: for a tidy table, with one row per measurement, the columns of the observable's name and of
      its value. `states` are then names of observables, and so are `inputs` that are not columns. Rows of other
      observables are ignored.
    - `step`: time between two rows, in place of `time`; each trajectory begins at 0.
    - `time_unit`: unit to convert timestamps to, `s`, `min`, `h` or `d`, counted from the first time of the table; if
      None, the largest that is not longer than the time between two rows. Without `trajectory`, each file is a table of
      its own.
    - `day_first`: whether 01.03.2024 is a day in March (or in January); such dates are refused if None.
    - `units`: unit of a column, by name; only recorded, nothing is converted.
    - `sigma`: standard deviation of the measurements [unit of the state]: a number, or by state a number, the name of
      a column, or `{"relative": 0.05, "absolute": 0.1}` for a share of what was measured beside a constant part.
      Residuals are weighted by one over it. `estimate` if it is not known: it is then the same for all residuals in
      scaled units. That of a state on a logarithmic scale or with bounds is one of its logarithm, or of its map to the
      real line: 0.1 is then a tenth of the value.
    - `max_bytes`: memory that one file may take once it is unpacked, where text counts fourfold [bytes].

    **Returns:** the dataset, with trajectories in order of appearance.

    **Raises:** `FileNotFoundError`, or `ValueError` with one sentence that names the file, the column, and the line
    (the row in files without lines).
    """
    columns = sigma_columns(sigma, states, by_row=not series and observable is None)
    measured = with_columns(states, columns)
    roles = make_roles(time, measured, inputs, covariates, trajectory, series, observable, value, step)
    constants = as_numbers(covariates)
    data = read_files(path, roles, time_unit, units or {}, day_first, max_bytes)
    check_trajectories(constants, data.trajectories)
    return with_covariates(with_sigma(data, sigma, states), constants, units or {})


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
    day_first: bool | None = None,
    units: dict[str, str] | None = None,
    sigma: Sigma = ESTIMATE,
    origin: str = "data frame",
) -> Dataset:
    """Takes trajectories from a `pandas.DataFrame`; by default it has one row per time.

    **Arguments:** `frame`: the data frame; `origin`: its name in error messages; the others as in `read_table`.

    **Returns:** the dataset; if nothing separates trajectories, it has a single one named `0`.

    **Raises:** `ValueError` with one sentence that names the row and the column.
    """
    if not hasattr(frame, "iloc"):
        raise ValueError(
            f"frame must be a pandas.DataFrame, got a {type(frame).__name__}; read files with node_fit.read_table, and "
            "pass frame.to_pandas() for frames of other libraries."
        )
    columns = sigma_columns(sigma, states, by_row=not series and observable is None)
    measured = with_columns(states, columns)
    roles = make_roles(time, measured, inputs, covariates, trajectory, series, observable, value, step)
    constants = as_numbers(covariates)
    check_unit(time_unit, roles.time is not None)
    names = [str(name) for name in frame.columns]
    in_index = [name for name in roles.fixed if name in frame.index.names and name not in names]
    if in_index:
        raise ValueError(f"{origin} has {in_index[0]!r} in its index, not as a column; pass frame.reset_index().")
    found = {name: frame.iloc[:, i].reset_index(drop=True) for name, i in roles.find(names, origin).items()}
    data = assemble(as_rows([RawTable(origin, found)], roles), ["0"], roles, time_unit, units or {}, day_first)
    check_trajectories(constants, data.trajectories)
    return with_covariates(with_sigma(data, sigma, states), constants, units or {})


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
    """Roles of columns from the arguments of `read_table`; covariates given as numbers have no column."""
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
    path: str | Path | Sequence[str | Path],
    roles: Roles,
    time_unit: str | None,
    units: dict[str, str],
    day_first: bool | None = None,
    max_bytes: float = MOST,
) -> Dataset:
    """Reads trajectories from files like `read_table`, but without covariates given as numbers."""
    check_unit(time_unit, roles.time is not None)
    files = find_files(path)
    tables = as_rows([read_file(file, roles, max_bytes) for file in files], roles)
    return assemble(tables, names_of(files), roles, time_unit, units, day_first)


class ColumnsFound(Exception):
    """Ends the reading of a file once the names of its columns are known."""


class AnyColumns(Roles):
    """Roles of a file whose columns are only asked for."""

    def find(self, names: Sequence[str], origin: str) -> dict[str, int]:
        raise ColumnsFound(*names)


def column_names(path: Path) -> list[str]:
    """The names of a file's columns.

    **Raises:** `FileNotFoundError`, or `ValueError` if the file can't be read.
    """
    try:
        read_file(path, AnyColumns(time="", states=("a state",)))
    except ColumnsFound as found:
        return list(found.args)
    raise AssertionError(f"{path} was read without a look at its columns.")


def read_file(path: Path, roles: Roles, max_bytes: float = MOST) -> RawTable:
    """Reads the needed columns of one file."""
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise ValueError(f"{path} is a spreadsheet; save the sheet as CSV and name that file.")
    try:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; it needs a line of column names and rows of numbers.")
        check_size(path, max_bytes)
        return READERS.get(path.suffix.lower(), read_text)(path, roles)
    except PermissionError:
        raise ValueError(f"{path} can't be read; change its permissions.") from None
