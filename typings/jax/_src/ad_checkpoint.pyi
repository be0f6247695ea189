"""A function that computes again what its derivative needs."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

def checkpoint(fun: F) -> F: ...
def __getattr__(name: str) -> Any: ...
