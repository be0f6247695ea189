"""Tables of named arrays: a column each, or a stack of trajectories."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .roles import Roles
from .table import Table

Arrays = dict[str, np.ndarray]


def tabulate(
    path: Path, names: Sequence[str], get: Callable[[str], np.ndarray], roles: Roles, layers: Arrays | None = None
) -> Table:
    """The needed arrays of a file as columns; those that are not needed are not read.

    An array is a column, `(time,)`, or a stack, `(trajectory, time)`, of trajectories called `0, 1, ...`. An array
    `NAME` of shape `(trajectory, time, column)` is the stacks `NAME0, NAME1, ...`, its layers.

    **Arguments:** `names`: what is in the file; `get`: reads one of them; `layers`: stacks beside them, if known.
    """
    if layers is None:
        layers = find_layers(names, get, roles)
    whole = [name for name in names if f"{name}0" not in layers]
    found = roles.find([*whole, *layers], str(path))
    arrays = {name: checked(path, name, layers[name] if name in layers else get(name)) for name in found}
    stack = next((name for name in arrays if name in layers or not is_column(arrays[name])), None)
    return one(path, arrays) if stack is None else stacked(path, arrays, stack)


def find_layers(names: Sequence[str], get: Callable[[str], np.ndarray], roles: Roles) -> Arrays:
    """The layers of those arrays that a needed name which is not in the file may be one of."""
    wanted = [name for name in (*roles.fixed, *roles.inputs) if name not in names]
    bases = dict.fromkeys(base for base in (name.rstrip("0123456789") for name in wanted) if base in names)
    return {name: layer for base in bases for name, layer in split(base, get(base)).items()}


def split(name: str, array: np.ndarray) -> Arrays:
    """The layers of an array with three axes; none of another."""
    return {f"{name}{i}": array[:, :, i] for i in range(array.shape[2])} if array.ndim == 3 else {}


def is_column(array: np.ndarray) -> bool:
    """Whether the shape is `(time,)`, or `(time, 1)` or `(1, time)`, as MATLAB has it."""
    return array.ndim < 2 or 1 in array.shape


def checked(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """An array of plain values in the machine's byte order."""
    if array.ndim > 2:
        raise ValueError(
            f"{path}, column {name!r} has shape {array.shape}, but a column is (time,) or (trajectory, time); the "
            f"columns of a stack with three axes are called {name}0, {name}1, ..."
        )
    if array.dtype.kind in "OV":
        raise ValueError(f"{path}, column {name!r} holds objects or records, not numbers; save plain numbers.")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array.astype(array.dtype.newbyteorder("="))


def one(path: Path, arrays: Arrays) -> Table:
    """A table of columns, which must be of one length."""
    import pandas as pd

    columns = {name: array.reshape(-1) for name, array in arrays.items()}
    first = next(iter(columns))
    for name, column in columns.items():
        if len(column) != len(columns[first]):
            raise ValueError(
                f"{path}, column {name!r} has {len(column)} rows, but {first!r} has {len(columns[first])}; make them "
                "equal."
            )
    return Table(str(path), {name: pd.Series(column) for name, column in columns.items()})


def stacked(path: Path, arrays: Arrays, stack: str) -> Table:
    """A table of stacks of the shape of `stack`, and of columns `(time,)` that all trajectories share."""
    import pandas as pd

    count, length = arrays[stack].shape
    columns = {}
    for name, array in arrays.items():
        if array.shape == (count, length):
            columns[name] = array.reshape(-1)
        elif is_column(array) and array.size == length:
            columns[name] = np.tile(array.reshape(-1), count)
        else:
            raise ValueError(
                f"{path}, column {name!r} has shape {array.shape}, but column {stack!r} has shape {(count, length)}, "
                "which is (trajectory, time); give all that shape, or (time,) to what trajectories share."
            )
    own = np.repeat(np.array([str(i) for i in range(count)], dtype=object), length)
    rows = np.tile(np.arange(length), count)
    return Table(str(path), {name: pd.Series(column) for name, column in columns.items()}, rows=rows, own=own)
