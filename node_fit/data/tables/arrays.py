"""Tables from arrays in files of numbers: each is a column, or a stack of the columns of several trajectories."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .layout import Roles
from .table import RawTable

Arrays = dict[str, np.ndarray]


def tabulate(
    path: Path,
    names: Sequence[str],
    get: Callable[[str], np.ndarray],
    roles: Roles,
    layers: Arrays | None = None,
    notes: Sequence[str] = (),
) -> RawTable:
    """Builds a table from the needed arrays of a file; reads no others.

    An array of shape `(time,)` is a column. One of shape `(trajectory, time)` is a stack of trajectories named `0, 1,
    ...`. An array `NAME` of shape `(trajectory, time, column)` holds the stacks `NAME0, NAME1, ...`, its layers.

    **Arguments:** `names`: the arrays in the file; `get`: reads one of them; `layers`: further stacks, if known;
    `notes`: notes of the table.
    """
    if layers is None:
        layers = find_layers(names, get, roles)
    unsplit = [name for name in names if f"{name}0" not in layers]
    needed = roles.find([*unsplit, *layers], str(path))
    arrays = {name: check_shape(path, name, layers[name] if name in layers else get(name)) for name in needed}
    stack = next((name for name in arrays if name in layers or not is_column(arrays[name])), None)
    table = columns_table(path, arrays) if stack is None else stacks_table(path, arrays, stack)
    return replace(table, notes=(*table.notes, *notes))


def find_layers(names: Sequence[str], get: Callable[[str], np.ndarray], roles: Roles) -> Arrays:
    """Returns the layers of every array that can hold a needed name missing from the file."""
    wanted = [name for name in (*roles.required_columns, *roles.inputs) if name not in names]
    bases = dict.fromkeys(base for base in (name.rstrip("0123456789") for name in wanted) if base in names)
    return {name: layer for base in bases for name, layer in split_stack(base, get(base)).items()}


def split_stack(name: str, array: np.ndarray) -> Arrays:
    """Returns the layers of an array with three axes; empty for other arrays."""
    return {f"{name}{i}": array[:, :, i] for i in range(array.shape[2])} if array.ndim == 3 else {}


def is_column(array: np.ndarray) -> bool:
    """Whether the shape is `(time,)`, or MATLAB's `(time, 1)` or `(1, time)`."""
    return array.ndim < 2 or 1 in array.shape


def check_shape(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array of plain values in native byte order."""
    if array.ndim > 2:
        raise ValueError(
            f"{path}, column {name!r} has shape {array.shape}, but a column is (time,) or (trajectory, time); the "
            f"columns of a stack with three axes are named {name}0, {name}1, ..."
        )
    if array.dtype.kind in "OV":
        raise ValueError(f"{path}, column {name!r} holds objects or records, not numbers; save plain numbers.")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(array.dtype.newbyteorder("="))


def columns_table(path: Path, arrays: Arrays) -> RawTable:
    """Builds a table from columns, which must have the same length."""
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
    """Builds a table from stacks with the shape of `stack`, and from columns `(time,)` shared by all trajectories."""
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
    names_of_rows = np.repeat(np.array([str(i) for i in range(count)], dtype=object), length)
    rows = np.tile(np.arange(int(length)), count)
    return RawTable(
        str(path), {name: pd.Series(column) for name, column in columns.items()}, rows=rows, own=names_of_rows
    )
