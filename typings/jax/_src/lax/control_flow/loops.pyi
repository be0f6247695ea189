"""Loops, of which JAX hints only some."""

from collections.abc import Callable
from typing import Any, TypeVar

from jax.typing import ArrayLike

T = TypeVar("T")
X = TypeVar("X")
Y = TypeVar("Y")

def fori_loop(lower: ArrayLike, upper: ArrayLike, body_fun: Callable[[Any, T], T], init_val: T) -> T: ...
def while_loop(cond_fun: Callable[[T], ArrayLike], body_fun: Callable[[T], T], init_val: T) -> T: ...
def scan(
    f: Callable[[T, X], tuple[T, Y]],
    init: T,
    xs: X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[T, Y]: ...
def __getattr__(name: str) -> Any: ...
