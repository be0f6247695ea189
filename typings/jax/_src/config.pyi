"""JAX's settings, whose names it adds while it runs."""

from contextlib import AbstractContextManager
from typing import Any

class Config:
    jax_enable_x64: bool
    jax_enable_compilation_cache: bool
    jax_compilation_cache_dir: str | None
    def update(self, name: str, val: object) -> None: ...

config: Config

def enable_x64(new_val: bool) -> AbstractContextManager[None]: ...
def __getattr__(name: str) -> Any: ...
