"""What node_fit takes from xarray, which leaves some of its arguments unknown."""

from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

class Variable:
    values: np.ndarray
    def set_dims(self, dim: Mapping[str, int]) -> Variable: ...
    def transpose(self, *dim: str) -> Variable: ...

class DataArray:
    dims: tuple[str, ...]
    attrs: dict[str, object]
    values: np.ndarray
    variable: Variable

class Dataset:
    variables: Mapping[str, Variable]
    sizes: Mapping[str, int]
    attrs: dict[str, object]
    def __init__(
        self,
        data_vars: Mapping[
            str, tuple[str | Sequence[str], object] | tuple[str | Sequence[str], object, dict[str, str]]
        ],
        coords: Mapping[str, object] | None = None,
        attrs: Mapping[str, object] | None = None,
    ) -> None: ...
    def __getitem__(self, name: str) -> DataArray: ...
    def __enter__(self) -> Dataset: ...
    def __exit__(self, *error: object) -> None: ...

def open_dataset(filename: str | PathLike[str], *, engine: str, group: str | None) -> Dataset: ...
