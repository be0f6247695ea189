"""Readers of files that store the types of columns: NumPy, MATLAB, Parquet and Feather."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from .layout import Roles
from .options import ReadingOptions
from .table import RawTable

Arrays = dict[str, np.ndarray]


def tabulate(
    path: Path, names: Sequence[str], get: Callable[[str], np.ndarray], roles: Roles, layers: Arrays | None = None
) -> RawTable:
    """Builds a table from the needed arrays of a file; reads no others.

    An array of shape `(time,)` is a column. One of shape `(trajectory, time)` is a stack of trajectories named `0, 1,
    ...`. An array `NAME` of shape `(trajectory, time, column)` holds the stacks `NAME0, NAME1, ...`, its layers.

    **Arguments:** `names`: the arrays in the file; `get`: reads one of them; `layers`: further stacks, if known.
    """
    if layers is None:
        layers = find_layers(names, get, roles)
    whole = [name for name in names if f"{name}0" not in layers]
    found = roles.find([*whole, *layers], str(path))
    arrays = {name: check_shape(path, name, layers[name] if name in layers else get(name)) for name in found}
    stack = next((name for name in arrays if name in layers or not is_column(arrays[name])), None)
    return columns_table(path, arrays) if stack is None else stacks_table(path, arrays, stack)


def find_layers(names: Sequence[str], get: Callable[[str], np.ndarray], roles: Roles) -> Arrays:
    """The layers of every array that may hold a needed name that the file lacks."""
    wanted = [name for name in (*roles.fixed, *roles.inputs) if name not in names]
    bases = dict.fromkeys(base for base in (name.rstrip("0123456789") for name in wanted) if base in names)
    return {name: layer for base in bases for name, layer in split_stack(base, get(base)).items()}


def split_stack(name: str, array: np.ndarray) -> Arrays:
    """The layers of an array with three axes; empty for other arrays."""
    return {f"{name}{i}": array[:, :, i] for i in range(array.shape[2])} if array.ndim == 3 else {}


def is_column(array: np.ndarray) -> bool:
    """Whether the shape is `(time,)`, or MATLAB's `(time, 1)` or `(1, time)`."""
    return array.ndim < 2 or 1 in array.shape


def check_shape(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """An array of plain values in native byte order."""
    if array.ndim > 2:
        raise ValueError(
            f"{path}, column {name!r} has shape {array.shape}, but a column is (time,) or (trajectory, time); the "
            f"columns of a stack with three axes are named {name}0, {name}1, ..."
        )
    if array.dtype.kind in "OV":
        raise ValueError(f"{path}, column {name!r} holds objects or records, not numbers; save plain numbers.")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(array.dtype.newbyteorder("="))


def columns_table(path: Path, arrays: Arrays) -> RawTable:
    """A table of columns, which must have the same length."""
    import pandas as pd

    columns = {name: array.reshape(-1) for name, array in arrays.items()}
    first = next(iter(columns))
    for name, column in columns.items():
        if len(column) != len(columns[first]):
            raise ValueError(
                f"{path}, column {name!r} has {len(column)} rows, but {first!r} has {len(columns[first])}; make them "
                "equal."
            )
    return RawTable(str(path), {name: pd.Series(column) for name, column in columns.items()})


def stacks_table(path: Path, arrays: Arrays, stack: str) -> RawTable:
    """A table of stacks with the shape of `stack`, and of columns `(time,)` that all trajectories share."""
    import pandas as pd

    count, length = arrays[stack].shape
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.shape == (count, length):
            columns[name] = array.reshape(-1)
        elif is_column(array) and array.size == length:
            columns[name] = np.tile(array.reshape(-1), count)
        else:
            raise ValueError(
                f"{path}, column {name!r} has shape {array.shape}, but column {stack!r} has shape {(count, length)}, "
                "which is (trajectory, time); give every array that shape, or (time,) if all trajectories share it."
            )
    own = np.repeat(np.array([str(i) for i in range(count)], dtype=object), length)
    rows = np.tile(np.arange(int(length)), count)
    return RawTable(str(path), {name: pd.Series(column) for name, column in columns.items()}, rows=rows, own=own)


# Of a name or a number in a Parquet file [characters].
LONGEST_TEXT = 1000


def read_parquet(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the columns of a Parquet file; an index that pandas saved counts as a column."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = list(roles.find(pq.read_schema(path).names, str(path)))
        # Read this file alone, even if its folder looks like part of a partitioned data set.
        with pq.ParquetFile(path, read_dictionary=find_text(path)) as file:
            frame = file.read(columns=names).to_pandas(ignore_metadata=True)
    except (pa.ArrowMemoryError, MemoryError):
        raise MemoryError(f"out of memory: {path} is too large to read; keep fewer rows in a file.") from None
    except (pa.ArrowException, OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise read_error(path, "Parquet", error) from None
    frame = share_text(frame, path)
    return RawTable(str(path), {name: pd.Series(frame[name]) for name in names})


def find_text(path: Path) -> list[str]:
    """The columns of a Parquet file that hold text or bytes of any length."""
    import pyarrow.parquet as pq

    schema = pq.read_metadata(path).schema
    columns = [schema.column(index) for index in range(len(schema))]
    return [each.path for each in columns if each.physical_type == "BYTE_ARRAY"]


def share_text(frame: "pandas.DataFrame", path: Path) -> "pandas.DataFrame":
    """Turns categories, as text is read, into strings that rows share.

    **Raises:** `ValueError` if one is too long: a small file may hold it once for many rows.
    """
    kinds = frame.select_dtypes("category")
    for name in kinds:
        longest = max((len(each) for each in kinds[name].cat.categories), default=0)
        if longest > LONGEST_TEXT:
            raise ValueError(
                f"{path}, column {name!r}: a text has {longest} characters, but a name or a number has at most "
                f"{LONGEST_TEXT}; choose another column."
            )
    return frame.astype(dict.fromkeys(kinds, object))


def read_npz(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the arrays of an `.npz` file, each a column or a stack of columns."""
    arrays = load_numpy(path, "npz")
    if isinstance(arrays, np.ndarray):
        raise read_error(path, "npz", "it holds one unnamed array; rename it to .npy")
    with arrays:
        return tabulate(path, arrays.files, lambda name: read_member(path, arrays, name), roles)


def read_member(path: Path, arrays: Mapping[str, Any], name: str) -> np.ndarray:
    try:
        return arrays[name]
    except Exception as error:  # a damaged archive raises errors of zip, zlib or NumPy
        raise pickle_error(path, error) or read_error(path, "npz", error) from None


def read_npy(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads an `.npy` file: fields of a structured array, or columns `c0, c1, ...` of a matrix or a stack."""
    array = load_numpy(path, "npy")
    if not isinstance(array, np.ndarray):
        raise read_error(path, "npy", "it is an archive of arrays; rename it to .npz")
    if array.dtype.names is not None:
        return tabulate(path, array.dtype.names, array.__getitem__, roles)
    if array.ndim not in (2, 3):
        raise ValueError(
            f"{path} has shape {array.shape}, but a table is (time, column) and a stack (trajectory, time, column)."
        )
    if array.ndim == 3:
        return tabulate(path, [], array.__getitem__, roles, split_stack("c", array))
    columns = {f"c{i}": array[:, i] for i in range(array.shape[1])}
    return tabulate(path, list(columns), columns.__getitem__, roles)


def read_mat(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the variables of a MATLAB file, each a column or a stack of columns."""
    from scipy.io import loadmat

    try:
        variables = loadmat(path, chars_as_strings=True)
    except NotImplementedError:
        raise ValueError(f"{path} is a MATLAB 7.3 file, which is not read; save it with save(..., '-v7').") from None
    except Exception as error:  # SciPy's parser may raise anything
        raise read_error(path, "MATLAB", error) from None
    names = [name for name in variables if not name.startswith("__")]
    return tabulate(path, names, variables.__getitem__, roles)


def load_numpy(path: Path, kind: str) -> np.ndarray | NpzFile:
    """Loads a file with NumPy; never unpickles, because that can run code."""
    try:
        # Read from memory, because NumPy leaves a damaged file open.
        return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except Exception as error:  # NumPy's parser may raise anything
        raise pickle_error(path, error) or read_error(path, kind, error) from None


def pickle_error(path: Path, error: Exception) -> ValueError | None:
    if "allow_pickle" not in str(error):
        return None
    return ValueError(
        f"{path} holds pickled Python objects or is damaged; pickles are not read, so save plain numbers."
    )


def read_error(path: Path, kind: str, error: Exception | str) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(f"{path} cannot be read as a {kind} file ({reason.rstrip('.')}); save it again.")


if TYPE_CHECKING:
    import pandas
