"""Converts measured and predicted trajectories to an xarray dataset."""

from typing import TYPE_CHECKING

import numpy as np

from ..data.dataset import Dataset
from ..data.tables.extras import require_extra
from ..data.trajectories import TRAJECTORY, columns_of
from ..model.rollout import Prediction

if TYPE_CHECKING:
    import xarray

# Name of the row dimension, if times differ between trajectories.
ROW = "row"


def as_xarray(data: Dataset, predicted: Prediction) -> "xarray.Dataset":
    """Returns an `xarray.Dataset` with the variables `x` and `x_predicted` for each state `x`, and the inputs.

    `x_lower` and `x_upper` are bands, if available. The dimensions are `trajectory` and time, or `trajectory` and `row`
    if times differ between trajectories. Padding is NaN.

    **Raises:** `ValueError` if xarray is not installed, or two variables would have the same name.
    """
    require_extra("xarray", "an xarray.Dataset", "netcdf")
    import xarray

    columns = columns_of(data.states, data.ys) | columns_of(data.inputs, data.us)
    columns |= columns_of(data.states, predicted.ys, "_predicted")
    for edge, values in (("_lower", predicted.lower), ("_upper", predicted.upper)):
        columns |= {} if values is None else columns_of(data.states, values, edge)
    count = len(data.states) * (2 + 2 * (predicted.lower is not None)) + len(data.inputs)
    taken = {TRAJECTORY, data.time, ROW} & {*columns}
    if taken or len(columns) < count:
        raise ValueError(f"the dataset can't have two variables {sorted(taken)[:1] or list(columns)}; rename one.")
    valid = data.valid
    times: np.ndarray = data.ts
    if data.dates is not None:
        stamps = data.dates._replace(zone=None).stamps(np.nonzero(valid)[0], data.ts[valid])
        times = np.full(valid.shape, np.datetime64("NaT", "us"))
        times[valid] = stamps.to_numpy()
    is_shared = bool(valid.all()) and bool((times == times[0]).all())
    dims = (TRAJECTORY, data.time if is_shared else ROW)
    attributes = {name: {"units": unit} for name, unit in data.units.items()}
    variables = {
        name: (dims, np.where(valid, values, np.nan), attributes.get(base_of(name, data), {}))
        for name, values in columns.items()
    }
    time_attributes = {} if data.dates is not None else attributes.get(data.time, {})
    time = (
        (dims[1:], times[0], time_attributes)
        if is_shared
        else (dims, times if data.dates is not None else np.where(valid, times, np.nan), time_attributes)
    )
    return xarray.Dataset(variables, {TRAJECTORY: list(data.trajectories), data.time: time})


def base_of(name: str, data: Dataset) -> str:
    """Returns the state to which a variable belongs, or the variable itself."""
    ends = ("_predicted", "_lower", "_upper")
    return next((name.removesuffix(end) for end in ends if name.removesuffix(end) in data.states), name)
