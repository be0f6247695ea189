"""Reads a file as a table: which file is meant, how much memory it takes, and which reader is for it."""

import glob
import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...runtime.validation import check_argument
from ..dataset import Dataset
from ..noise import ESTIMATE, Sigma, sigma_columns, with_columns, with_sigma
from .formats import read_mat, read_npy, read_npz, read_parquet, read_text
from .layout import (
    CovariateNumbers,
    Roles,
    as_names,
    as_numbers,
    as_rows,
    assemble_dataset,
    check_trajectories,
    with_covariates,
)
from .table import RawTable, check_unit

if TYPE_CHECKING:
    import pandas


def find_files(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that a path, a list of paths or a glob names; those of a glob in alphabetical order.

    **Raises:** `FileNotFoundError` with the nearest existing file; `ValueError` for a folder or a file named twice.
    """
    check_argument("path", path, str | Path | Sequence[str | Path], "a file, a list of files or a glob")
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    files = [file for each in paths for file in expand(Path(each).expanduser())]
    if not files:
        raise ValueError("path is an empty list; name at least one file.")
    twice = [file for file in files if files.count(file) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice in path; remove one.")
    return files


def expand(path: Path) -> list[Path]:
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file; name a file in it, or use a glob: {path / '*.csv'}.")
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if not Path(name).is_dir())
        if found:
            return found
        raise FileNotFoundError(f"no file matches {path}; check the pattern and the working directory, {Path.cwd()}.")
    raise FileNotFoundError(missing(path))


def missing(path: Path) -> str:
    """Error message for a file that does not exist."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does the folder {path.parent}; check the path."
    near = get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1)
    hint = (
        f"did you mean {path.parent / near[0]}?" if near else f"there is no similar name in {path.parent.absolute()}."
    )
    return f"{path} does not exist; {hint}"


def names_of(files: Sequence[Path]) -> list[str]:
    """A name for each file: its stem, or the whole path for every file if two stems are the same."""
    short = [file.name.removesuffix(".gz").rsplit(".", 1)[0] or file.name for file in files]
    return short if len(set(short)) == len(short) else [str(file) for file in files]


# What a table may take by default [bytes].
MOST_BYTES = 1e9
# Text is held as a string for each value, which takes several times its size.
TEXT = 4
PIECE_BYTES = 1 << 20
# The type of a packed variable in a MATLAB file.
COMPRESSED = 15
# What a number or a reference to a text takes [bytes].
POINTER = 8


def check_file_size(path: Path, most: float) -> None:
    """Refuses a file that takes too much memory; a small file may unpack to a large one.

    **Arguments:** `path`: an existing file; `most`: what it may take [bytes].

    **Raises:** `ValueError` that names the key that raises the limit.
    """
    try:
        size = format_of(path).unpacked_size(path, most)
    except (PermissionError, MemoryError):
        raise
    except Exception:  # The parsers of damaged files may raise anything; the reader reports it.
        return
    if size > most:
        raise ValueError(
            f"{path} takes at least {size / 1e9:.2g} GB once unpacked, more than the limit of {most / 1e9:.2g} GB; "
            f"raise it with data.max_bytes={2 * size:.1e} (max_bytes in read_table) if that is meant."
        )


def size_of_text(path: Path, most: float) -> int:
    """The memory of a text file; of a compressed one at least, since unpacking ends beyond the limit."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        size = 0
        try:
            with gzip.open(path) as file:
                while TEXT * size <= most and (piece := file.read(PIECE_BYTES)):
                    size += len(piece)
        except (OSError, EOFError, zlib.error):
            pass  # The reader says that it is damaged, once it has unpacked as much.
    return TEXT * size


def size_of_npz(path: Path, most: float) -> int:
    with zipfile.ZipFile(path) as file:
        return sum(each.file_size for each in file.infolist())


def size_of_npy(path: Path, most: float) -> int:
    return path.stat().st_size


def size_of_mat(path: Path, most: float) -> int:
    """The size of the variables of a MATLAB file of level 5; SciPy unpacks a whole variable to say its shape."""
    size, stored = 0, path.stat().st_size
    with open(path, "rb") as file:
        order = "<" if file.read(128).endswith(b"IM") else ">"
        while size <= most and len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", tag)
            if length > stored:
                return 0  # Damaged, which the reader says.
            if kind != COMPRESSED:
                size += length
                file.seek(length, 1)
                continue
            end, unpacker = file.tell() + length, zlib.decompressobj()
            packed = file.read(PIECE_BYTES)
            while packed and not unpacker.eof and size <= most:
                size += len(unpacker.decompress(packed, PIECE_BYTES))
                packed = unpacker.unconsumed_tail or file.read(PIECE_BYTES)
            file.seek(end)
    return size


def size_of_parquet(path: Path, most: float) -> int:
    """The memory of a Parquet file: of text as it is stored, since the reader shares it among rows."""
    import pyarrow.parquet as pq

    content = pq.read_metadata(path)
    size = 0
    for index in range(content.num_row_groups):
        group = content.row_group(index)
        for place in range(group.num_columns):
            chunk, column = group.column(place), content.schema.column(place)
            # A value of a fixed length may be stored once and be meant many times.
            width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else POINTER
            size += max(chunk.total_uncompressed_size, chunk.num_values * max(width, POINTER))
    return size


class Format(NamedTuple):
    """How the files of a format are read.

    - `read`: reads the columns that the roles name.
    - `unpacked_size`: what a file takes in memory, at least [bytes]; it may end once that is more than the second
      argument.
    """

    read: Callable[[Path, Roles], RawTable]
    unpacked_size: Callable[[Path, float], int]


TEXT_FORMAT, PARQUET = Format(read_text, size_of_text), Format(read_parquet, size_of_parquet)
# By how a file ends; any other is text.
FORMATS = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".npz": Format(read_npz, size_of_npz),
    ".npy": Format(read_npy, size_of_npy),
    ".mat": Format(read_mat, size_of_mat),
}


def format_of(path: Path) -> Format:
    return FORMATS.get(path.suffix.lower(), TEXT_FORMAT)


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
    max_bytes: float = MOST_BYTES,
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
    frame: "pandas.DataFrame",
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
    data = assemble_dataset(as_rows([RawTable(origin, found)], roles), ["0"], roles, time_unit, units or {}, day_first)
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
    max_bytes: float = MOST_BYTES,
) -> Dataset:
    """Reads trajectories from files like `read_table`, but without covariates given as numbers."""
    check_unit(time_unit, roles.time is not None)
    files = find_files(path)
    tables = as_rows([read_file(file, roles, max_bytes) for file in files], roles)
    return assemble_dataset(tables, names_of(files), roles, time_unit, units, day_first)


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


def read_file(path: Path, roles: Roles, max_bytes: float = MOST_BYTES) -> RawTable:
    """Reads the needed columns of one file."""
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise ValueError(f"{path} is a spreadsheet; save the sheet as CSV and name that file.")
    try:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; it needs a line of column names and rows of numbers.")
        check_file_size(path, max_bytes)
        return format_of(path).read(path, roles)
    except PermissionError:
        raise ValueError(f"{path} can't be read; change its permissions.") from None
