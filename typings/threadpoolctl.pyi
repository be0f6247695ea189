"""The number of threads of BLAS and others, which ships no hints."""

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

class threadpool_limits(ContextDecorator):
    def __init__(self, limits: int | None = None, user_api: str | None = None) -> None: ...
    def __enter__(self) -> threadpool_limits: ...
    def __exit__(self, *args: object) -> None: ...
    @classmethod
    def wrap(cls, limits: int | None = None, user_api: str | None = None) -> Callable[[F], F]: ...
