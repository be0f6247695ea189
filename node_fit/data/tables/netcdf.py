"""Reads NetCDF files and xarray datasets: variables over time, and over one more dimension for trajectories."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .extras import require_extra
from .hdf5 import check_whole, size_of_hdf5
from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, read_error

if TYPE_CHECKING:
    import xarray

# First bytes of the classic format, whose values are not packed.
CLASSIC = b"CDF"


def is_classic(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(CLASSIC)) == CLASSIC


def read_netcdf(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the variables of a NetCDF file named by the roles; applies its conventions of times, gaps and scales."""
    require_extra("xarray", path, "netcdf")
    import xarray

    engine = "scipy" if is_classic(path) else "h5netcdf"
    if engine == "h5netcdf":
        require_extra("h5netcdf", path, "netcdf")
        check_whole(path, options.sheet, roles.required_columns, "NetCDF")
    try:
        with xarray.open_dataset(path, engine=engine, group=None if engine == "scipy" else options.sheet) as dataset:
            return table_of_dataset(dataset, roles, str(path))
    except (ValueError, MemoryError) as error:
        if str(path) in str(error) or isinstance(error, MemoryError):
            raise
        raise read_error(path, "NetCDF", error) from None
    except Exception as error:  # The parsers of a damaged file can raise anything.
        raise read_error(path, "NetCDF", error) from None


def table_of_dataset(dataset: "xarray.Dataset", roles: Roles, origin: str) -> RawTable:
    """Converts the needed variables of an xarray dataset to columns.

    Variables have the time dimension, or the time dimension and another one whose values name trajectories.

    **Raises:** `ValueError` if a variable has other dimensions, or none is needed.
    """
    import pandas as pd

    names = list(dataset.variables)
    variables = list(roles.find(names, origin))
    dims = [dim for name in variables for dim in dataset[name].dims]
    time_dim = dims_of_time(dataset, roles, variables)
    others = list(dict.fromkeys(dim for dim in dims if dim != time_dim))
    if len(others) > 1:
        raise ValueError(
            f"{origin} has variables over {', '.join(map(repr, others))} beside the time; select one value of all but "
            "one of them."
        )
    order = [*others, *([] if time_dim is None else [time_dim])]
    sizes = [dataset.sizes[dim] for dim in order]
    columns: dict[str, pd.Series] = {}
    for name in variables:
        variable = dataset[name].variable.set_dims({dim: dataset.sizes[dim] for dim in order}).transpose(*order)
        columns[name] = pd.Series(np.ascontiguousarray(variable.values).reshape(-1))
    attributes = {name: dataset[name].attrs.get("units") for name in variables}
    units = {name: unit for name, unit in attributes.items() if isinstance(unit, str)}
    if not others:
        return RawTable(origin, columns, units=units)
    labels = dataset[others[0]].values if others[0] in dataset.variables else np.arange(sizes[0])
    names_of_rows = np.repeat(
        np.array([str(label) for label in labels], dtype=object), sizes[1] if len(sizes) > 1 else 1
    )
    rows = np.tile(np.arange(sizes[1] if len(sizes) > 1 else 1), sizes[0])
    return RawTable(origin, columns, rows=rows, own=names_of_rows, units=units)


def dims_of_time(dataset: "xarray.Dataset", roles: Roles, names: Sequence[str]) -> str | None:
    """Returns the dimension of time: that of the time's variable, or the last one of the first variable."""
    dims = dataset[roles.time if roles.time is not None else names[0]].dims
    return dims[-1] if dims else None


def size_of_netcdf(path: Path, most: float) -> int:
    return path.stat().st_size if is_classic(path) else size_of_hdf5(path, most)
