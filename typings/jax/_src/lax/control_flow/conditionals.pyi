"""Branches: both give the same type."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from jax.typing import ArrayLike

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

@overload
def cond(pred: ArrayLike, true_fun: Callable[[], T], false_fun: Callable[[], T]) -> T: ...
@overload
def cond(pred: ArrayLike, true_fun: Callable[[A], T], false_fun: Callable[[A], T], operand: A, /) -> T: ...
@overload
def cond(
    pred: ArrayLike, true_fun: Callable[[A, B], T], false_fun: Callable[[A, B], T], operand: A, other: B, /
) -> T: ...
def __getattr__(name: str) -> Any: ...
