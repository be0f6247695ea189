"""Formats that know the types of their columns."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .roles import Roles
from .table import Table, choose

FROM_ARRAYS = "node_fit.Dataset.from_arrays takes stacks of trajectories."


def read_parquet(path: Path, roles: Roles) -> Table:
    """Columns of a Parquet file; an index that pandas saved is a column like the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        choose(names, roles.names, str(path))
        # One file is read, though its folder may look like a part of a data set.
        with pq.ParquetFile(path) as file:
            frame = file.read(columns=list(roles.names)).to_pandas(ignore_metadata=True)
    except (pa.ArrowException, OSError) as error:
        raise broken(path, "Parquet", error) from None
    return Table(str(path), {name: frame[name] for name in roles.names})


def read_npz(path: Path, roles: Roles) -> Table:
    """Arrays of an `.npz` file, a column each."""
    arrays = load(path, "npz")
    if isinstance(arrays, np.ndarray):
        raise broken(path, "npz", "it holds one array without a name; call it .npy")
    with arrays:
        choose(arrays.files, roles.names, str(path))
        return tabulate(path, {name: member(path, arrays, name) for name in roles.names})


def member(path: Path, arrays: Mapping[str, Any], name: str) -> np.ndarray:
    try:
        return arrays[name]
    except Exception as error:  # a broken archive shows as an error of zip, of zlib or of NumPy
        raise pickled(path, error) or broken(path, "npz", error) from None


def read_npy(path: Path, roles: Roles) -> Table:
    """Fields of a structured array, or the columns `c0, c1, ...` of a matrix, of an `.npy` file."""
    array = load(path, "npy")
    if not isinstance(array, np.ndarray):
        raise broken(path, "npy", "it is an archive of arrays; call it .npz")
    if array.dtype.names is None:
        if array.ndim != 2:
            raise ValueError(f"{path} has shape {array.shape}, but a table is (time, column); {FROM_ARRAYS}")
        columns = {f"c{i}": array[:, i] for i in range(array.shape[1])}
    else:
        columns = {name: array[name] for name in array.dtype.names}
    choose(list(columns), roles.names, str(path))
    return tabulate(path, {name: columns[name] for name in roles.names})


def read_mat(path: Path, roles: Roles) -> Table:
    """Variables of a MATLAB file, a column each."""
    from scipy.io import loadmat

    try:
        variables = loadmat(path, chars_as_strings=True)
    except NotImplementedError:
        raise ValueError(f"{path} is a MATLAB 7.3 file, which is not read; save it with save(..., '-v7').") from None
    except Exception as error:  # SciPy raises what its parser trips over
        raise broken(path, "MATLAB", error) from None
    choose([name for name in variables if not name.startswith("__")], roles.names, str(path))
    return tabulate(path, {name: variables[name] for name in roles.names})


def load(path: Path, kind: str) -> Any:
    """What NumPy reads from a file, never by unpickling, which could run code."""
    try:
        # From memory, because NumPy leaves the file open when it is damaged.
        return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except Exception as error:  # NumPy raises what its parser trips over
        raise pickled(path, error) or broken(path, kind, error) from None


def pickled(path: Path, error: Exception) -> ValueError | None:
    if "allow_pickle" not in str(error):
        return None
    return ValueError(
        f"{path} holds pickled Python objects or is damaged, and pickles are not read; save plain numbers."
    )


def broken(path: Path, kind: str, error: Exception | str) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(f"{path} cannot be read as a {kind} file ({reason.rstrip('.')}); save it again.")


def tabulate(path: Path, arrays: dict[str, np.ndarray]) -> Table:
    """A table of arrays, each of which must be one column of the same length."""
    import pandas as pd

    columns = {name: flat(path, name, array) for name, array in arrays.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    first = next(iter(lengths))
    for name, length in lengths.items():
        if length != lengths[first]:
            raise ValueError(
                f"{path}, column {name!r} has {length} rows, but {first!r} has {lengths[first]}; make them equal."
            )
    return Table(str(path), {name: pd.Series(column) for name, column in columns.items()})


def flat(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """One column out of an array of shape `(time,)`, `(time, 1)` or `(1, time)`, in the machine's byte order."""
    if array.ndim > 2 or (array.ndim == 2 and 1 not in array.shape):
        raise ValueError(f"{path}, column {name!r} has shape {array.shape}, but a column is (time,); {FROM_ARRAYS}")
    if array.dtype.kind in "OV":
        raise ValueError(f"{path}, column {name!r} holds objects or records, not numbers; save plain numbers.")
    column = array.reshape(-1)
    return (
        np.char.decode(column, "utf-8") if column.dtype.kind == "S" else column.astype(column.dtype.newbyteorder("="))
    )
