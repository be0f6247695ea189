"""Checks of arguments by their type hints: a wrong one gets a sentence that says what to pass."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np
from jaxtyping import AbstractArray

ARRAYS = (AbstractArray, jax.Array, np.ndarray)
LISTS = (tuple, Sequence, list)
# Packages from which a user takes classes by these names.
PACKAGES = ("node_fit", "diffrax", "optax")
WORDS: dict[Any, str] = {
    **dict.fromkeys((bool, np.bool), "True or False"),
    **dict.fromkeys((float, complex, np.number), "a number"),
    int: "an integer",
    str: "a string",
    type(None): "None",
    Callable: "a function",
    Mapping: "a dict",
}
Function = TypeVar("Function", bound=Callable)


def check_argument(name: str, value: Any, hint: Any, text: str | None = None) -> None:
    """Refuses a value that is not of its type hint.

    **Arguments:** `text`: what to pass, in words; by default from the hint.

    **Raises:** `ValueError`: `NAME must be TEXT, got VALUE.`
    """
    if not fits(value, hint):
        raise ValueError(f"{name} must be {text or describe(hint)}, got {value!r:.60}.")


def check_fields(owner: Any, texts: Mapping[str, str] = types.MappingProxyType({})) -> None:
    """Checks the fields of a dataclass or module; see `check_argument`.

    **Arguments:** `texts`: what to pass, by the name of the field.
    """
    for name, hint in hints_of(type(owner)).items():
        if hasattr(owner, name):
            check_argument(name, getattr(owner, name), hint, texts.get(name))


def checks_arguments(function: Function) -> Function:
    """Checks the arguments of each call of a function; see `check_argument`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # The call itself says it better.
            given = {}
        for name, value in given.items():
            if name in hints_of(function):
                check_argument(name, value, hints_of(function)[name])
        return function(*args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]  # `wraps` keeps the signature.


@functools.cache
def hints_of(target: Any) -> dict[str, Any]:
    """The type hints of a class or function; none if one can't be evaluated."""
    try:
        return get_type_hints(target)
    except Exception:  # A hint in quotes may need an import that is for type checkers alone.
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type hint. Numbers may be of NumPy or JAX; shapes of arrays are not checked."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    flag, text = isinstance(value, bool | np.bool), isinstance(value, str)
    if kind is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(fits(value, member) for member in inner)
    if kind is Literal:
        return any(type(choice) is type(value) and choice == value for choice in inner)
    if kind is bool:
        return flag
    if kind is int:
        return isinstance(value, Integral) and not flag
    if kind is float:
        return not flag and (isinstance(value, Real) or (hasattr(value, "dtype") and np.ndim(value) == 0))
    if kind in LISTS:
        items = inner[:1] if kind is not tuple or inner[-1:] == (...,) else ()
        return isinstance(value, kind) and not text and all(fits(each, hint) for hint in items for each in value)
    if isinstance(kind, type) and issubclass(kind, ARRAYS):
        return hasattr(value, "dtype")
    if getattr(kind, "_is_protocol", False) or not isinstance(kind, type):
        return True
    return isinstance(value, kind)


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of any other hint, itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def describe(hint: Any, words: Mapping[Any, str] = WORDS) -> str:
    """Describes a type hint in words.

    **Arguments:** `words`: for types that have a word of their own.
    """
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(member, words) for member in inner))
    if kind is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(str(choice) for choice in inner)
    if isinstance(kind, type) and issubclass(kind, ARRAYS):
        return "an array"
    if kind in LISTS:
        return "a list" + (f" (each {describe(inner[0], words)})" if inner else "")
    package = getattr(kind, "__module__", "").split(".")[0]
    name = f"{package}.{kind.__name__}" if package in PACKAGES else getattr(kind, "__name__", str(kind))
    return words.get(kind) or f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
