"""Reads MATLAB files: those of level 5, and of version 7.3, which are HDF5."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Arrays, tabulate
from .hdf5 import check_dataset, choose_group, open_hdf5, read_dataset
from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, list_names, read_error

if TYPE_CHECKING:
    import h5py

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Position of the HDF5 data in a MATLAB file, after MATLAB's own header.
USER_BLOCK = 512
# MATLAB types of variables that are numbers or characters.
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
PLAIN_CLASSES = ("double", "single", "logical", "char", *INTEGERS)


def is_version_73(path: Path) -> bool:
    """Whether a MATLAB file is of version 7.3."""
    with open(path, "rb") as file:
        start = file.read(USER_BLOCK + len(HDF5_SIGNATURE))
    return start.startswith(HDF5_SIGNATURE) or start[USER_BLOCK:] == HDF5_SIGNATURE


def read_mat(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the variables of a MATLAB file, or the fields of a struct; each is a column or a stack of columns."""
    from scipy.io import loadmat

    if is_version_73(path):
        return read_version_73(path, roles, options)
    try:
        variables = loadmat(path, chars_as_strings=True)
    except Exception as error:  # SciPy's parser can raise anything
        raise read_error(path, "MATLAB", error) from None
    variables = {name: array for name, array in variables.items() if not name.startswith("__")}
    variables, notes = fields_of_struct(path, variables, options.sheet)
    return tabulate(path, list(variables), variables.__getitem__, roles, notes=notes)


def fields_of_struct(path: Path, variables: Arrays, name: str | None) -> tuple[Arrays, list[str]]:
    """Returns the fields of a struct, with a note if it was selected as the only variable; else all variables.

    **Raises:** `ValueError` if `name` is not a struct.
    """
    structs = [key for key, array in variables.items() if array.dtype.names is not None and array.size == 1]
    if name is None and not (len(variables) == 1 and structs):
        return variables, []
    if name is not None and name not in structs:
        raise ValueError(f"{path} has no struct {name!r}; its structs are {list_names(structs) or 'none'}.")
    chosen = structs[0] if name is None else name
    struct = variables[chosen].reshape(-1)[0]
    notes = [] if name else [f"the struct {chosen!r} is read (data.sheet)"]
    return {str(field): np.asarray(struct[field]) for field in variables[chosen].dtype.names or ()}, notes


def read_version_73(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads variables of MATLAB 7.3, or the fields of a struct, which is stored as a group."""
    with open_hdf5(path, "MATLAB 7.3") as file:
        group, notes = choose_group(path, file, options.sheet, hidden=("#refs#", "#subsystem#"))
        names = [name for name in group if name not in ("#refs#", "#subsystem#")]
        return tabulate(path, names, lambda name: matlab_array(path, group, name), roles, notes=notes)


def matlab_array(path: Path, group: "h5py.Group", name: str) -> np.ndarray:
    """Reads a variable in MATLAB's order of axes; characters as texts."""
    dataset = check_dataset(path, group, name)
    kind = dataset.attrs.get("MATLAB_class", b"double")
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if kind not in PLAIN_CLASSES:
        raise ValueError(
            f"{path}, column {name!r} is a {kind[:40]} of MATLAB, not numbers; save plain columns, which "
            "table2struct(..., 'ToScalar', true) makes of a table, and timetable2table a table of a timetable."
        )
    array = read_dataset(path, dataset, name).T
    if kind != "char":
        return array
    return np.array(["".join(map(chr, row)).rstrip() for row in np.atleast_2d(array).tolist()])
