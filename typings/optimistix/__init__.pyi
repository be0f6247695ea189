"""What node_fit takes from Optimistix, whose searches leave unknown what they search with."""

from collections.abc import Callable
from typing import Any, TypeVar

from optimistix._adjoint import AbstractAdjoint as AbstractAdjoint
from optimistix._adjoint import ImplicitAdjoint as ImplicitAdjoint
from optimistix._root_find import AbstractRootFinder as AbstractRootFinder
from optimistix._solution import RESULTS as RESULTS
from optimistix._solution import Solution as Solution

Y = TypeVar("Y")

class LevenbergMarquardt:
    def __init__(self, rtol: float, atol: float) -> None: ...

def root_find(
    fn: Callable[[Y, Any], Any], solver: LevenbergMarquardt, y0: Y, args: Any = None, **options: Any
) -> Solution[Y, Any]: ...
def __getattr__(name: str) -> Any: ...
