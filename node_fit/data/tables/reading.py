"""Readers of files: finding the files, limiting memory, choosing the reader, and reading standard deviations."""

import glob
import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float

from ...runtime.validation import check_argument, check_path, is_mapping
from ..domains import is_real
from ..noise_formula import NAMED_FORMULAS, is_formula, read_formula, read_formulas
from ..trajectories import Data, Trajectories, check_known_values
from .assembly import Assembled, assemble
from .feather import read_feather, size_of_feather
from .formats import read_npy, read_npz, read_parquet
from .hdf5 import read_hdf5, size_of_hdf5
from .json_lines import read_json_lines
from .layout import CovariateNumbers, Roles, as_names, as_rows
from .matlab import is_version_73, read_mat
from .netcdf import read_netcdf, size_of_netcdf
from .options import AS_RECOGNISED, ReadingOptions
from .sheets import SPREADSHEETS, read_xlsx, size_of_xlsx
from .table import RawTable, missing_values, split_limits
from .text import read_text
from .times import check_unit


def find_files(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """Finds the files that a path, a list of paths or a glob names; those of a glob or folder in alphabetical order.

    **Raises:** `FileNotFoundError` with the nearest existing file; `ValueError` for a folder without tables or with
    several kinds of them, or a file named twice.
    """
    check_argument("path", path, str | Path | Sequence[str | Path], "a file, a list of files or a glob")
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    files = [file for name in paths for file in expand(Path(name).expanduser())]
    if not files:
        raise ValueError("path is an empty list; name at least one file.")
    twice = [file for file in files if files.count(file) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice in path; remove one.")
    return files


def expand(path: Path) -> list[Path]:
    check_path(path)
    if path.is_dir():
        return find_tables_in(path)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        matches = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if not Path(name).is_dir())
        if matches:
            return matches
        raise FileNotFoundError(f"no file matches {path}; check the pattern and the working directory, {Path.cwd()}.")
    raise FileNotFoundError(missing(path))


def find_tables_in(folder: Path) -> list[Path]:
    """Finds the tables in a folder, all of one kind."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in TABLE_ENDINGS and file.is_file())
    kinds = sorted({file.suffix.lower() for file in files if not file.name.startswith(".")})
    if len(kinds) == 1:
        return [file for file in files if not file.name.startswith(".")]
    fault = f"holds tables of several kinds, {', '.join(kinds)}" if kinds else "is a folder without tables"
    raise ValueError(f"{folder} {fault}; name a file in it, or use a glob: {folder / '*.csv'}.")


def missing(path: Path) -> str:
    """Returns the error message for a file that does not exist."""
    if not path.parent.is_dir():
        return f"{path} does not exist, nor does the folder {path.parent}; check the path."
    near = get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1)
    hint = (
        f"did you mean {path.parent / near[0]}?" if near else f"there is no similar name in {path.parent.absolute()}."
    )
    return f"{path} does not exist; {hint}"


def names_of(files: Sequence[Path]) -> list[str]:
    """Names each file by its stem, or all files by their whole paths if two stems are the same."""
    short = [file.name.removesuffix(".gz").rsplit(".", 1)[0] or file.name for file in files]
    return short if len(set(short)) == len(short) else [str(file) for file in files]


# Default memory limit of a table [bytes].
MOST_BYTES = 1e9
# Memory of a text relative to its size, since each value is held as a string.
TEXT = 4
PIECE_BYTES = 1 << 20
# Type of a packed variable in a MATLAB file.
COMPRESSED = 15
# Memory of a packed variable relative to its size: SciPy holds the bytes and the array made from them.
UNPACKED_COPIES = 2
# Memory of a number or a reference to a text [bytes].
POINTER = 8


def check_file_size(path: Path, most: float) -> None:
    """Rejects a file that takes too much memory; a small file can unpack to a large one.

    **Arguments:** `path`: an existing file; `most`: memory limit [bytes].

    **Raises:** `ValueError` that names the key that raises the limit.
    """
    try:
        size = format_of(path).unpacked_size(path, most)
    except (PermissionError, MemoryError):
        raise
    except Exception:  # The parsers of damaged files can raise anything; the reader reports it.
        return
    if size > most:
        raise ValueError(
            f"{path} takes at least {size / 1e9:.2g} GB once unpacked, more than the limit of {most / 1e9:.2g} GB; "
            f"raise it with data.max_bytes={2 * size:.1e} (max_bytes in read_table) if that is meant."
        )


def size_of_text(path: Path, most: float) -> int:
    """Computes the memory of a text file; for a compressed one a lower bound, as unpacking stops beyond the limit."""
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
            pass  # The reader reports the damage after unpacking the same part.
    return TEXT * size


def size_of_npz(path: Path, most: float) -> int:
    with zipfile.ZipFile(path) as file:
        return sum(member.file_size for member in file.infolist())


def size_of_npy(path: Path, most: float) -> int:
    return path.stat().st_size


def size_of_mat(path: Path, most: float) -> int:
    """Computes the memory of a MATLAB file; at level 5, SciPy unpacks every variable and copies the result."""
    if is_version_73(path):
        return size_of_hdf5(path, most)
    size, stored = 0, path.stat().st_size
    with open(path, "rb") as file:
        order = "<" if file.read(128).endswith(b"IM") else ">"
        while size <= most and len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", tag)
            if length > stored:
                return 0  # Damaged, which the reader reports.
            if kind != COMPRESSED:
                size += length
                file.seek(length, 1)
                continue
            end, unpacker = file.tell() + length, zlib.decompressobj()
            packed = file.read(PIECE_BYTES)
            while packed and not unpacker.eof and size <= most:
                size += UNPACKED_COPIES * len(unpacker.decompress(packed, PIECE_BYTES))
                packed = unpacker.unconsumed_tail or file.read(PIECE_BYTES)
            file.seek(end)
    return size


def size_of_parquet(path: Path, most: float) -> int:
    """Computes the memory of a Parquet file; text counts as stored, since the reader shares it among rows."""
    import pyarrow.parquet as pq

    content = pq.read_metadata(path)
    size = 0
    for index in range(content.num_row_groups):
        group = content.row_group(index)
        for place in range(group.num_columns):
            chunk, column = group.column(place), content.schema.column(place)
            # A value of fixed length can be stored once and be referenced many times.
            width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else POINTER
            size += max(chunk.total_uncompressed_size, chunk.num_values * max(width, POINTER))
    return size


class Format(NamedTuple):
    """Functions that read the files of a format.

    - `read`: reads the columns named by the roles, with the user's options.
    - `unpacked_size`: lower bound of a file's memory [bytes]; it can stop once that exceeds the second argument.
    """

    read: Callable[[Path, Roles, ReadingOptions], RawTable]
    unpacked_size: Callable[[Path, float], int]


HDF5, NETCDF = Format(read_hdf5, size_of_hdf5), Format(read_netcdf, size_of_netcdf)
FEATHER, JSON_LINES = Format(read_feather, size_of_feather), Format(read_json_lines, size_of_text)
TEXT_FORMAT, PARQUET = Format(read_text, size_of_text), Format(read_parquet, size_of_parquet)
# Formats by file extension; all other files are text.
FORMATS = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".npz": Format(read_npz, size_of_npz),
    ".npy": Format(read_npy, size_of_npy),
    ".mat": Format(read_mat, size_of_mat),
    ".feather": FEATHER,
    ".arrow": FEATHER,
    ".h5": HDF5,
    ".hdf5": HDF5,
    ".he5": HDF5,
    ".nc": NETCDF,
    ".nc4": NETCDF,
    ".cdf": NETCDF,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    **dict.fromkeys(SPREADSHEETS, Format(read_xlsx, size_of_xlsx)),
}

TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".dat", ".gz", *FORMATS)


def format_of(path: Path) -> Format:
    return FORMATS.get(path.suffix.lower(), TEXT_FORMAT)


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
    deviations: Sequence[str] = (),
    time_of_day: str | None = None,
    occasion: str | None = None,
) -> Roles:
    """Builds the roles of columns from the arguments of `Dataset.from_file`; numeric covariates have no column."""
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
        deviations=tuple(deviations),
        time_of_day=time_of_day,
        occasion=occasion,
    )


def read_files(
    kind: type[Data],
    path: str | Path | Sequence[str | Path],
    roles: Roles,
    time_unit: str | None,
    units: dict[str, str],
    day_first: bool | None = None,
    max_bytes: float = MOST_BYTES,
    *,
    rename: Mapping[str, str] = MappingProxyType({}),
    is_dated: bool = False,
    options: ReadingOptions = AS_RECOGNISED,
    censored: bool = False,
) -> Assembled[Data]:
    """Reads trajectories of a kind from files like `Dataset.from_file`, but without numeric covariates.

    **Arguments:** `rename`: columns of the files, by their names in the dataset. `is_dated`: as in `assemble`.
    `censored`: whether states can be limits, such as `<0.5`, or intervals.
    """
    check_unit(time_unit, roles.time is not None)
    files, columns = find_files(path), roles.rename(rename)
    names = {column: name for name, column in rename.items()}

    def arrange(tables: Sequence[RawTable], roles: Roles) -> Assembled[Data]:
        rows = [table.rename(names) for table in as_rows(tables, roles.rename(rename))]
        return assemble(kind, rows, names_of(files), roles, time_unit, units, day_first, is_dated, options)

    tables = [read_file(file, columns, max_bytes, options) for file in files]
    return with_limits(tables, roles, arrange, rename, censored=censored)


def with_limits(
    tables: Sequence[RawTable],
    roles: Roles,
    arrange: Callable[[Sequence[RawTable], Roles], Assembled[Data]],
    rename: Mapping[str, str] = MappingProxyType({}),
    *,
    censored: bool,
) -> Assembled[Data]:
    """Arranges trajectories whose states can be limits or intervals.

    A second arrangement of the same tables has the marks of limits, a third one the lower ends of intervals.

    **Arguments:** `tables`, `rename`: tables as read, and their columns by their names in the dataset. `arrange`:
    function that builds trajectories from tables and roles.

    **Raises:** `ValueError` if a limit would be averaged with other measurements.
    """
    if not censored:
        return arrange(tables, roles)
    columns = roles.rename(rename)
    parts = [split_limits(table, columns_of_states(table, columns)) for table in tables]
    values = arrange([part.numbers for part in parts], roles)

    def beside(tables: Sequence[RawTable]) -> Float[np.ndarray, "trajectory time state"]:
        plain = [without_columns(table, (*columns.inputs, *columns.covariates)) for table in tables]
        return arrange(plain, replace(roles, inputs=(), covariates=())).data.ys

    sides = np.nan_to_num(beside([part.marks for part in parts]))
    sides[..., [name in roles.deviations for name in roles.states]] = 0
    has_intervals = any(part.lower is not None for part in parts)
    lower = beside([part.lower or part.numbers for part in parts]) if has_intervals else None
    if values.counts is not None and ((values.counts > 1) & (sides != 0)).any():
        row, time, state = np.argwhere((values.counts > 1) & (sides != 0))[0]
        data = values.data
        raise ValueError(
            f"{data.states[state]!r} has a limit among repeated measurements of trajectory {data.trajectories[row]!r} "
            f"at {data.time} = {data.ts[row, time]:g}, which has no mean; make each repeat a trajectory of its own."
        )
    other_end = None if lower is None else np.where((sides < 0) & (lower != values.data.ys), lower, np.nan)
    return replace(values, data=replace(values.data, censored=sides.astype(np.int8), other_end=other_end))


def without_columns(table: RawTable, names: Sequence[str]) -> RawTable:
    return replace(table, columns={name: column for name, column in table.columns.items() if name not in names})


def columns_of_states(table: RawTable, roles: Roles) -> list[str]:
    """Returns the columns of a table that hold values of states, without those of their standard deviations."""
    if roles.series:
        return [name for name in table.columns if name not in roles.required_columns and not roles.is_deviation(name)]
    return [roles.value] if roles.value is not None else list(roles.state_columns)


class ColumnsFound(Exception):
    """Ends the reading of a file once the names of its columns are known."""


class AnyColumns(Roles):
    """Roles of a file that is read only for the names of its columns."""

    def find(self, names: Sequence[str], origin: str) -> dict[str, int]:
        raise ColumnsFound(*names)


def column_names(path: Path, options: ReadingOptions = AS_RECOGNISED) -> list[str]:
    """Returns the names of a file's columns.

    **Raises:** `FileNotFoundError`, or `ValueError` if the file can't be read.
    """
    try:
        read_file(path, AnyColumns(time="", states=("a state",)), options=options)
    except ColumnsFound as found:
        return list(found.args)
    raise AssertionError(f"{path} was read without a look at its columns.")


def read_file(
    path: Path, roles: Roles, max_bytes: float = MOST_BYTES, options: ReadingOptions = AS_RECOGNISED
) -> RawTable:
    """Reads the needed columns of one file."""
    if path.suffix.lower() in (".xls", ".xlsb", ".ods"):
        raise ValueError(f"{path} is a spreadsheet of another kind; save it as .xlsx, or save the sheet as CSV.")
    try:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; it needs a line of column names and rows of numbers.")
        check_file_size(path, max_bytes)
        table = format_of(path).read(path, roles, options)
        return replace(table, missing=missing_values(options.missing))
    except PermissionError:
        raise ValueError(f"{path} can't be read; change its permissions.") from None


# Standard deviations of measurements, as specified by users.

# `estimate`, a number or a formula for every state, or by state a number, the name of a column, numbers of
# `NOISE_PARTS`, or a formula (`NoiseFormula`).
Sigma = float | str | Mapping[str, float | str | Mapping[str, object]]
NOISE_PARTS = ("relative", "absolute")
ESTIMATE = "estimate"
NAMES_OF_FORMULAS = ", ".join(NAMED_FORMULAS)
NOISE_PASS = f"estimate, a positive number, or a formula ({NAMES_OF_FORMULAS}), or {{state: number, column or formula}}"
OF_STATE = (
    f"a positive number, the name of a column, or a formula ({NAMES_OF_FORMULAS}, or such as 's0 + s1*prediction'), or "
    "{relative: 0.05, absolute: 0.1}"
)


def sigma_columns(
    sigma: object, states: Sequence[str], *, by_row: bool = True, is_wide: bool = False
) -> tuple[str, ...]:
    """Checks `sigma`, and returns the columns that it names.

    **Arguments:** `by_row`: whether each row of the table has one time, so that it can hold such columns. `is_wide`:
    whether each trajectory is a column, so that a column of standard deviations can be a pattern.

    **Raises:** `ValueError` that names the state and the expected form.
    """
    if not is_mapping(sigma):
        if sigma != ESTIMATE and not is_formula(sigma):
            check_deviation(sigma, "sigma", NOISE_PASS)
        return ()
    check_known_values("sigma", sigma, states)
    lacking = [name for name in states if name not in sigma]
    if lacking:
        raise ValueError(f"sigma has no entry for the state {lacking[0]!r}; give one for each of {', '.join(states)}.")
    for name, given in sigma.items():
        if is_formula(given, str(name) if is_wide else None):
            _ = read_formula(given, str(name), states)
        elif is_mapping(given):
            check_noise_parts(given, f"sigma of {name!r}")
        elif not isinstance(given, str) or not given:
            check_deviation(given, f"sigma of {name!r}", OF_STATE)
    formulas = [is_formula(given, str(name) if is_wide else None) for name, given in sigma.items()]
    entries = zip(sigma.values(), formulas, strict=True)
    columns = tuple(dict.fromkeys(given for given, is_text in entries if isinstance(given, str) and not is_text))
    if columns and any(formulas):
        raise ValueError(
            f"sigma names the column {columns[0]!r} beside a formula; give numbers, or formulas, for all states."
        )
    if columns and not by_row:
        raise ValueError(
            f"sigma names the column {columns[0]!r}, which a table with one row per measurement can't have; give "
            "numbers."
        )
    return columns


def with_columns(states: Sequence[str], columns: Sequence[str]) -> Sequence[str]:
    """Returns the columns to read: the states, followed by the columns of standard deviations."""
    return (*states, *columns) if columns else states


def check_deviation(given: object, name: str, what: str) -> None:
    if not (is_real(given) and given > 0):
        raise ValueError(f"{name} must be {what}, got {given!r:.40}.")


def check_noise_parts(given: Mapping[object, object], name: str) -> None:
    if not given or set(given) - set(NOISE_PARTS):
        raise ValueError(f"{name} must be {OF_STATE}, got {dict(given)!r:.60}.")
    for part, value in given.items():
        check_deviation(value, f"the {part} part of {name}", "a positive number")


def with_sigma(assembled: Assembled[Data], sigma: Sigma, states: Sequence[str]) -> Data:
    """Adds the standard deviations of the measurements to the data.

    **Arguments:**

    - `assembled`: the states, followed by the columns that `sigma` names.
    - `sigma`: as in `Dataset.from_file`.
    - `states`: names of the states.

    **Raises:** `ValueError` if a measurement has no positive standard deviation.
    """
    data, counts = assembled.data, assembled.counts
    if sigma == ESTIMATE:
        return data
    entries = {name: sigma[name] if isinstance(sigma, Mapping) else sigma for name in states}
    count = len(states)
    ys, columns = data.ys[..., :count], named_columns(data, count)
    if not columns and any(map(is_formula, entries.values())):
        return replace(data, noise=read_formulas(entries, states))
    parts = [read_deviation(entry, ys[..., index], columns) for index, entry in enumerate(entries.values())]
    if counts is not None:  # A column of standard deviations already holds those of means.
        shares = [1.0 if isinstance(entry, str) else counts[..., i] ** -0.5 for i, entry in enumerate(entries.values())]
        parts = [part * share for part, share in zip(parts, shares, strict=True)]
    units = {name: unit for name, unit in data.units.items() if name not in columns}
    return replace(
        data,
        ys=ys,
        states=tuple(states),
        units=units,
        sigma=np.stack(parts, axis=-1),
        censored=None if data.censored is None else data.censored[..., :count],
        other_end=None if data.other_end is None else data.other_end[..., :count],
    )


def read_deviation(
    given: float | str | Mapping[str, object], values: np.ndarray, columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns the standard deviations of a state's values; the relative part is relative to the measured values."""
    if isinstance(given, str):
        return columns[given]
    if isinstance(given, Mapping):
        parts = cast(Mapping[str, float], given)
        return np.hypot(parts.get("absolute", 0.0), parts.get("relative", 0.0) * np.abs(values))
    return np.full(values.shape, float(given))


def named_columns(data: Trajectories, first: int) -> dict[str, Float[np.ndarray, "trajectory time"]]:
    """Returns the channels from index `first` on, by name."""
    return {name: data.ys[..., index] for index, name in enumerate(data.states) if index >= first}
