"""Spaced numbers, of which NumPy leaves unknown those between values that may be arrays."""

from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

def geomspace(start: ArrayLike, stop: ArrayLike, num: int = 50, *, axis: int = 0) -> ndarray: ...
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    *,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> ndarray: ...
def logspace(start: ArrayLike, stop: ArrayLike, num: int = 50, *, base: float = 10.0, axis: int = 0) -> ndarray: ...
