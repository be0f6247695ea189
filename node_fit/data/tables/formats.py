"""Readers of files with typed columns: NumPy and Parquet."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from .arrays import split_stack, tabulate
from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, read_error

if TYPE_CHECKING:
    import pandas

# Maximum length of a name or a number in a file [characters].
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
    """Returns the columns of a Parquet file that hold text or bytes of any length."""
    import pyarrow.parquet as pq

    schema = pq.read_metadata(path).schema
    columns = [schema.column(index) for index in range(len(schema))]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def share_text(frame: "pandas.DataFrame", path: Path) -> "pandas.DataFrame":
    """Converts categories, the form in which text is read, to strings shared among rows.

    **Raises:** `ValueError` if a string is too long: a small file can hold it once for many rows.
    """
    kinds = frame.select_dtypes("category")
    for name in kinds:
        longest = max((len(category) for category in kinds[name].cat.categories), default=0)
        if longest > LONGEST_TEXT:
            raise ValueError(
                f"{path}, column {name!r}: a text has {longest} characters, but a name or a number has at most "
                f"{LONGEST_TEXT}; choose another column."
            )
    return frame.astype(dict.fromkeys(kinds, object))


def read_npz(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the arrays of an `.npz` file; each is a column or a stack of columns."""
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


def load_numpy(path: Path, kind: str) -> np.ndarray | NpzFile:
    """Loads a file with NumPy; never unpickles, because that can run code."""
    try:
        # Read from memory, because NumPy leaves a damaged file open.
        return np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except Exception as error:  # NumPy's parser can raise anything
        raise pickle_error(path, error) or read_error(path, kind, error) from None


def pickle_error(path: Path, error: Exception) -> ValueError | None:
    if "allow_pickle" not in str(error):
        return None
    return ValueError(
        f"{path} holds pickled Python objects or is damaged; pickles are not read, so save plain numbers."
    )
