"""Formats that know the types of their columns."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .roles import Roles
from .stacks import split, tabulate
from .table import Table


def read_parquet(path: Path, roles: Roles) -> Table:
    """Columns of a Parquet file; an index that pandas saved is a column like the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = list(roles.find(pq.read_schema(path).names, str(path)))
        # One file is read, though its folder may look like a part of a data set.
        with pq.ParquetFile(path) as file:
            frame = file.read(columns=names).to_pandas(ignore_metadata=True)
    except (pa.ArrowException, OSError) as error:
        raise broken(path, "Parquet", error) from None
    return Table(str(path), {name: frame[name] for name in names})


def read_npz(path: Path, roles: Roles) -> Table:
    """Arrays of an `.npz` file, a column or a stack of columns each."""
    arrays = load(path, "npz")
    if isinstance(arrays, np.ndarray):
        raise broken(path, "npz", "it holds one array without a name; call it .npy")
    with arrays:
        return tabulate(path, arrays.files, lambda name: member(path, arrays, name), roles)


def member(path: Path, arrays: Mapping[str, Any], name: str) -> np.ndarray:
    try:
        return arrays[name]
    except Exception as error:  # a broken archive shows as an error of zip, of zlib or of NumPy
        raise pickled(path, error) or broken(path, "npz", error) from None


def read_npy(path: Path, roles: Roles) -> Table:
    """Fields of a structured array, or the columns `c0, c1, ...` of a matrix or a stack, of an `.npy` file."""
    array = load(path, "npy")
    if not isinstance(array, np.ndarray):
        raise broken(path, "npy", "it is an archive of arrays; call it .npz")
    if array.dtype.names is not None:
        return tabulate(path, array.dtype.names, array.__getitem__, roles)
    if array.ndim not in (2, 3):
        raise ValueError(
            f"{path} has shape {array.shape}, but a table is (time, column) and a stack (trajectory, time, column)."
        )
    if array.ndim == 3:
        return tabulate(path, [], array.__getitem__, roles, split("c", array))
    columns = {f"c{i}": array[:, i] for i in range(array.shape[1])}
    return tabulate(path, list(columns), columns.__getitem__, roles)


def read_mat(path: Path, roles: Roles) -> Table:
    """Variables of a MATLAB file, a column or a stack of columns each."""
    from scipy.io import loadmat

    try:
        variables = loadmat(path, chars_as_strings=True)
    except NotImplementedError:
        raise ValueError(f"{path} is a MATLAB 7.3 file, which is not read; save it with save(..., '-v7').") from None
    except Exception as error:  # SciPy raises what its parser trips over
        raise broken(path, "MATLAB", error) from None
    names = [name for name in variables if not name.startswith("__")]
    return tabulate(path, names, variables.__getitem__, roles)


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
