"""Equinox, whose functions that take any arguments leave them unknown; and a tree with new parts stays what it was."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from equinox import internal as internal
from equinox import nn as nn
from equinox._ad import filter_grad as filter_grad
from equinox._ad import filter_value_and_grad as filter_value_and_grad
from equinox._enum import Enumeration as Enumeration
from equinox._errors import error_if as error_if
from equinox._filters import combine as combine
from equinox._filters import filter as filter
from equinox._filters import is_array as is_array
from equinox._filters import is_array_like as is_array_like
from equinox._filters import is_inexact_array as is_inexact_array
from equinox._filters import partition as partition
from equinox._jit import filter_jit as filter_jit
from equinox._module import AbstractClassVar as AbstractClassVar
from equinox._module import AbstractVar as AbstractVar
from equinox._module import Module as Module
from equinox._module import Partial as Partial
from equinox._module import field as field
from equinox._tree import tree_equal as tree_equal
from equinox._update import apply_updates as apply_updates
from equinox._vmap_pmap import filter_vmap as filter_vmap

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

class filter_custom_jvp(Generic[P, T]):
    def __init__(self, fn: Callable[P, T]) -> None: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def def_jvp(self, fn_jvp: F) -> F: ...

class filter_custom_vjp(Generic[P, T]):
    def __init__(self, fn: Callable[P, T]) -> None: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def def_fwd(self, fn_fwd: F) -> F: ...
    def def_bwd(self, fn_bwd: F) -> F: ...

def filter_closure_convert(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[P, T]: ...
@overload
def filter_eval_shape(fun: Callable[[Any], Any], arg: Any, /) -> Any: ...
@overload
def filter_eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...
@overload
def filter_jvp(
    fn: Callable[[Any, Any, Any], T], primals: tuple[Any, Any, Any], tangents: Sequence[Any]
) -> tuple[T, Any]: ...
@overload
def filter_jvp(fn: Callable[..., T], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[T, Any]: ...
@overload
def tree_at(
    where: Callable[[T], Any], pytree: T, replace: Any, *, is_leaf: Callable[[Any], bool] | None = None
) -> T: ...
@overload
def tree_at(where: Callable[[T], Any], pytree: T, *, replace_fn: Callable[[Any], Any]) -> T: ...
def __getattr__(name: str) -> Any: ...
