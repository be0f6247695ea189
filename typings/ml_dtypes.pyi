"""Limits of floating-point types, which extend NumPy's."""

from typing import Any

from numpy import finfo as finfo
from numpy import iinfo as iinfo

def __getattr__(name: str) -> Any: ...
