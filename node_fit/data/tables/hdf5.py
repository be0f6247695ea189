"""Reads HDF5 files: the datasets of a group, each a column or a stack of columns; or one dataset of records."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import tabulate
from .extras import require_extra
from .formats import LONGEST_TEXT
from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, list_names, read_error

if TYPE_CHECKING:
    import h5py

# Maximum depth of nested groups searched for a table, and maximum number of datasets whose sizes are added up.
MAX_GROUPS_DEEP, MAX_DATASETS = 10, 10_000
# Number of variable-length texts read at once, and maximum number of characters of all of them together.
TEXTS_AT_ONCE, MAX_CHARACTERS = 64, 100_000_000


@contextmanager
def open_hdf5(path: Path, kind: str = "HDF5") -> "Generator[h5py.File]":
    """Opens a file for reading; converts errors of the parser to a sentence."""
    require_extra("h5py", path, "hdf5")
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # The parser of a damaged file can raise anything.
        raise read_error(path, kind, error) from None


def read_hdf5(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the datasets of a group named by the roles, or the fields of a dataset of records."""
    with open_hdf5(path) as file:
        group, notes = choose_group(path, file, options.sheet)
        records = find_record_array(path, group, options.sheet)
        if records is not None:
            name, dataset = records
            array = read_dataset(path, dataset, name)
            return tabulate(path, array.dtype.names or (), array.__getitem__, roles, notes=notes)
        return tabulate(
            path,
            list(group),
            lambda name: read_dataset(path, check_dataset(path, group, name), name),
            roles,
            notes=notes,
        )


def choose_group(
    path: Path, file: "h5py.File", name: str | None, hidden: Sequence[str] = ()
) -> "tuple[h5py.Group, list[str]]":
    """Returns the group with a table, with a note unless it is the top group or named by the user.

    **Raises:** `ValueError` if no such group exists, or several do.
    """
    import h5py

    if name is not None:
        check_links(path, file, name)
        chosen = file.get(name)
        if chosen is None:
            groups = [member for member in file if member not in hidden]
            raise ValueError(f"{path} has no group {name!r}; it holds {list_names(groups) or 'nothing'}.")
        return (chosen if isinstance(chosen, h5py.Group) else chosen.parent), []
    group: h5py.Group = file
    for _ in range(MAX_GROUPS_DEEP):
        names = [member for member in group if member not in hidden]
        if not names or not all(is_own_group(group, member) for member in names):
            notes = [] if group == file else [f"the group {group.name!r} is read (data.sheet)"]
            return group, notes
        if len(names) > 1:
            raise ValueError(f"{path} holds the groups {list_names(names)}; name one of them, data.sheet={names[0]}.")
        inner = group.get(names[0])
        assert isinstance(inner, h5py.Group)
        group = inner
    raise ValueError(
        f"{path} holds groups that are nested over {MAX_GROUPS_DEEP} deep; name one of them, data.sheet=NAME."
    )


def is_own_group(group: "h5py.Group", name: str) -> bool:
    """Whether a member is a group of this file, without opening it: a file can hold tens of thousands."""
    from h5py import h5l, h5o

    encoded = name.encode("utf-8", "surrogateescape")
    is_hard = group.id.links.get_info(encoded).type == h5l.TYPE_HARD
    return is_hard and h5o.get_info(group.id, encoded).type == h5o.TYPE_GROUP


def find_record_array(path: Path, group: "h5py.Group", name: str | None) -> "tuple[str, h5py.Dataset] | None":
    """Returns a dataset of records, such as a PyTables table: the named one, or the only one of a group."""
    names = list(group) if name is None or name.strip("/") == group.name.strip("/") else [name.rpartition("/")[2]]
    if len(names) != 1 or names[0] not in group:
        return None
    dataset = check_dataset(path, group, names[0])
    return (names[0], dataset) if dataset.dtype.names is not None else None


def check_links(path: Path, group: "h5py.Group", name: str) -> None:
    """Rejects a path that leads through a link to another file."""
    import h5py

    within = group
    for part in name.strip("/").split("/"):
        if isinstance(within.get(part, getlink=True), h5py.ExternalLink):
            raise ValueError(f"{path}: {name!r} links to another file, which is not read; copy it into this file.")
        inner = within.get(part)
        if not isinstance(inner, h5py.Group):
            return
        within = inner


def check_dataset(path: Path, group: "h5py.Group", name: str) -> "h5py.Dataset":
    """Returns a dataset of a group whose values are in this file.

    **Raises:** `ValueError` if it is not a dataset, or its values are in other files.
    """
    import h5py

    check_links(path, group, name)
    dataset = group.get(name)
    if not isinstance(dataset, h5py.Dataset):
        kind = "a group" if isinstance(dataset, h5py.Group) else "no dataset"
        raise ValueError(f"{path}: {name!r} is {kind}, not a column; name the group of the columns, data.sheet=NAME.")
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{path}, column {name!r} has its values in other files, which are not read; save a copy.")
    return dataset


def read_dataset(path: Path, dataset: "h5py.Dataset", name: str) -> np.ndarray:
    """Reads the values of a dataset; variable-length texts in pieces, as the file can hold one text for many rows."""
    import h5py

    if dataset.shape is None:
        raise ValueError(f"{path}, column {name!r} is empty; fill it.")
    if dataset.dtype.kind != "O":
        return dataset[()]
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"{path}, column {name!r} holds references or lists, not numbers; save plain numbers.")
    if dataset.ndim != 1:
        raise ValueError(f"{path}, column {name!r} holds texts of shape {dataset.shape}, but a column is (time,).")
    texts: list[str] = []
    characters = 0
    for start in range(0, len(dataset), TEXTS_AT_ONCE):
        piece = [
            bytes(text) if isinstance(text, bytes) else str(text).encode()
            for text in dataset[start : start + TEXTS_AT_ONCE]
        ]
        longest = max(map(len, piece))
        characters += sum(map(len, piece))
        if longest > LONGEST_TEXT or characters > MAX_CHARACTERS:
            raise ValueError(
                f"{path}, column {name!r}: a text has {longest} characters and all have {characters:,} so far, but a "
                f"name or a number has at most {LONGEST_TEXT}, and a column {MAX_CHARACTERS:,}; choose another column."
            )
        texts += [text.decode("utf-8", "replace") for text in piece]
    return np.array(texts)


def check_whole(path: Path, group: str | None, names: Sequence[str], kind: str) -> None:
    """Rejects a file with links to other files or with external values, and texts that are too long.

    **Arguments:** `names`: the needed datasets of the group `group` (of the file, if None). `kind`: kind of file.
    """
    import h5py

    with open_hdf5(path, kind) as file:
        groups: list[h5py.Group] = [file]
        file.visititems(lambda _, found: groups.append(found) if isinstance(found, h5py.Group) else None)
        for within in groups[:MAX_DATASETS]:
            for name in within:
                check_links(path, within, name)
                if isinstance(within.get(name), h5py.Dataset):
                    check_dataset(path, within, name)
        parent = file if group is None else file.get(group)
        if not isinstance(parent, h5py.Group):
            return
        for name in names:
            dataset = parent.get(name)
            if isinstance(dataset, h5py.Dataset) and dataset.dtype.kind == "O":
                read_dataset(path, dataset, name)


def size_of_hdf5(path: Path, most: float) -> int:
    """Computes the memory of all datasets of a file, and of a chunk of each, which is unpacked as a whole."""
    require_extra("h5py", path, "hdf5")
    import h5py

    size, count = 0, 0

    def add(name: bytes, info: h5py.h5o.ObjInfo) -> int | None:
        nonlocal size, count
        if info.type != h5py.h5o.TYPE_DATASET:
            return None
        dataset = file[name]
        count += 1
        chunk = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
        size += max(int(dataset.nbytes), chunk)
        return size if size > most or count > MAX_DATASETS else None

    with h5py.File(path, "r") as file:
        h5py.h5o.visit(file.id, add, info=True)
    return size
