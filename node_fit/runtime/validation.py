"""Validation of arguments, with errors that describe the accepted values, and partial application of model parts."""

import dataclasses
import difflib
import functools
import inspect
import os
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Any,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import equinox as eqx
import jax
import numpy as np
from jaxtyping import AbstractArray

ARRAYS = (AbstractArray, jax.Array, np.ndarray)
LISTS = (tuple, Sequence, list)
# Packages from which a user takes classes by these names.
PACKAGES = ("node_fit", "diffrax", "optax")
HINT_WORDS: dict[object, str] = {
    **dict.fromkeys((bool, np.bool), "True or False"),
    **dict.fromkeys((float, complex, np.number), "a number"),
    int: "an integer",
    str: "a string",
    type(None): "None",
    Callable: "a function",
    Mapping: "a dict",
}
Chosen = TypeVar("Chosen")
Function = TypeVar("Function", bound=Callable[..., object])
Made = TypeVar("Made")
# Arguments of model parts that the data determine, and `fit` passes.
FROM_DATA = ("system", "batch", "states", "inputs", "key")


# Maximum length of a file or folder name, and of a path, on Linux.
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095


def check_path(path: str | Path) -> None:
    """Rejects a path that no system accepts.

    **Raises:** `ValueError`.
    """
    text = str(path)
    if "\0" in text:
        raise ValueError(f"the path {text!r:.80} holds a NUL byte; remove it.")
    sizes = [len(os.fsencode(part)) for part in Path(text).parts]
    if max(sizes, default=0) > MAX_NAME_BYTES or sum(sizes) > MAX_PATH_BYTES:
        raise ValueError(
            f"the path '{text[:60]}...' has {len(text)} characters; a name in it has at most {MAX_NAME_BYTES} bytes, "
            f"and the whole {MAX_PATH_BYTES}."
        )


def check_argument(name: str, value: object, hint: object, text: str | None = None) -> None:
    """Rejects a value that does not match its type hint.

    **Arguments:** `text`: a description of accepted values; by default from the hint.

    **Raises:** `ValueError`: `NAME must be TEXT, got VALUE.`
    """
    if not matches(value, hint):
        raise ValueError(f"{name} must be {text or describe_hint(hint)}, got {value!r:.60}.")


def check_fields(owner: object, texts: Mapping[str, str] = types.MappingProxyType({})) -> None:
    """Checks the fields of a dataclass or module; see `check_argument`.

    **Arguments:** `texts`: descriptions of accepted values by field name.
    """
    for name, hint in parameter_hints(type(owner)).items():
        if hasattr(owner, name):
            check_argument(name, getattr(owner, name), hint, texts.get(name))


def checks_arguments(function: Function) -> Function:
    """Checks the arguments of each call of a function; see `check_argument`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # The call itself raises a better error.
            given: dict[str, object] = {}
        for name, value in given.items():
            if name in parameter_hints(function):
                check_argument(name, value, parameter_hints(function)[name])
        return function(*args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]  # `wraps` keeps the signature.


@functools.cache
def parameter_hints(target: object) -> dict[str, object]:
    """Returns the type hints of a class or function; none if one can't be evaluated."""
    try:
        return get_type_hints(target)
    except Exception:  # A quoted hint can need an import that is for type checkers only.
        return {}


def matches(value: object, hint: object) -> bool:
    """Whether a value matches a type hint. Numbers can be of NumPy or JAX; shapes of arrays are not checked."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    flag, text = isinstance(value, bool | np.bool), isinstance(value, str)
    if kind is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(matches(value, member) for member in inner)
    if kind is Literal:
        return any(type(choice) is type(value) and choice == value for choice in inner)
    if kind is bool:
        return flag
    if kind is int:
        return isinstance(value, Integral) and not flag
    if kind is float:
        return not flag and (isinstance(value, Real) or getattr(value, "shape", None) == ())
    if kind in LISTS:
        items = inner[:1] if kind is not tuple or inner[-1:] == (...,) else ()
        parts = value if is_sequence(value) else ()
        return isinstance(value, kind) and not text and all(matches(item, hint) for hint in items for item in parts)
    if is_array_class(kind):
        return hasattr(value, "dtype")
    if getattr(kind, "_is_protocol", False) or not is_class(kind):
        return True
    return isinstance(value, kind)


def is_class(value: object) -> TypeGuard[type[object]]:
    return isinstance(value, type)


def is_array_class(value: object) -> TypeGuard[type[object]]:
    return is_class(value) and issubclass(value, ARRAYS)


def is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence)


def is_list_or_tuple(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, list | tuple)


def members(hint: object) -> tuple[object, ...]:
    """Returns the members of a union; for any other hint, the hint itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def describe_hint(hint: object, words: Mapping[object, str] = HINT_WORDS) -> str:
    """Describes a type hint in words.

    **Arguments:** `words`: words for special types.
    """
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        shown = [member for member in inner if not (member is int and float in inner)]  # An integer is a number.
        return " or ".join(dict.fromkeys(describe_hint(member, words) for member in shown))
    if kind is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(str(choice) for choice in inner)
    if is_array_class(kind):
        return "an array"
    if kind in LISTS:
        return "a list" + (f" (each {describe_hint(inner[0], words)})" if inner else "")
    if kind in (dict, Mapping) and len(inner) > 1:
        return f"a dict (each value {describe_hint(inner[1], words)})"
    package = getattr(kind, "__module__", "").split(".")[0]
    own = getattr(kind, "__name__", str(kind))
    name = f"{package}.{own}" if package in PACKAGES else own
    return words.get(kind) or f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def nearest_choice(name: str, known: Collection[str]) -> str:
    """Returns the end of a sentence that suggests the nearest known name, if one is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def check_choice(key: str, name: object, known: Collection[str]) -> None:
    """Rejects an unknown name."""
    if isinstance(name, str) and name not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got {name!r}{nearest_choice(name, known)}")


def by_name(key: str, given: Chosen | str, known: Mapping[str, Chosen]) -> Chosen:
    """Converts a name to its part of a model; returns any other value unchanged.

    **Raises:** `ValueError` if no such part exists, or it needs more than its name.
    """
    if not isinstance(given, str):
        return given
    check_choice(key, given, known)
    try:
        cast(Callable[[], object], known[given])()
    except TypeError as error:
        raise ValueError(f"{key}={given!r} is not enough: {error}") from None
    return known[given]


@dataclass_transform(field_specifiers=(dataclasses.field, eqx.field))  # as for the metaclass of Equinox
class Part(type(eqx.Module)):
    """The metaclass of a model's parts: a call without the arguments that the data determine makes a partial.

    `Known(equations=..., constants=...)` is `functools.partial(Known, equations=..., constants=...)`, which `fit` calls
    with the system and a key. Argument names are checked immediately.
    """

    # The hint treats a partial as the part that it makes, as no hint can distinguish the two.
    def __call__(cls: type[Made], *args: object, **kwargs: object) -> Made:
        if args:
            return super().__call__(*args, **kwargs)
        signature = inspect.signature(cls)
        needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind not in VARIABLE]
        missing = [name for name in needed if name not in kwargs]
        if not {"system", "states"} & set(missing):
            return super().__call__(**kwargs)
        own = [name for name in missing if name not in FROM_DATA]
        if own:
            pattern = ", ".join(f"{name}=..." for name in own)
            raise TypeError(f"{cls.__name__} needs {' and '.join(own)}; write {cls.__name__}({pattern}).")
        check_keywords(cls.__name__, kwargs, signature)
        return cast(Made, functools.partial(cls, **kwargs))


def says_where(elsewhere: Callable[[str], str | None] = lambda name: None, **renamed: str) -> Callable[[Made], Made]:
    """Adds to errors for unknown keyword arguments of a function or class where those belong.

    **Arguments:** `elsewhere`: as in `check_keywords`. `renamed`: current names of arguments of earlier versions.
    """

    def place(name: str) -> str | None:
        return f"it is now called {renamed[name]}" if name in renamed else elsewhere(name)

    def decorate(target: Made) -> Made:
        is_class = isinstance(target, type)
        called = cast(Callable[..., object], target)
        call, signature = (target.__init__ if is_class else called), inspect.signature(called)

        @functools.wraps(call)
        def wrapper(*args: object, **kwargs: object) -> object:
            check_keywords(called.__name__, kwargs, signature, place)
            return call(*args, **kwargs)

        if not is_class:
            return cast(Made, wrapper)
        setattr(target, "__init__", wrapper)  # noqa: B010  # Keeps a class for `isinstance` and editors.
        return target

    return decorate


# Kinds of parameters that stand for any number of arguments.
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_keywords(
    caller: str,
    given: Collection[str],
    signature: inspect.Signature,
    elsewhere: Callable[[str], str | None] | None = None,
) -> None:
    """Rejects keyword arguments that a function does not have.

    **Arguments:** `elsewhere`: returns a description of where an argument of that name belongs, or None.

    **Raises:** `TypeError` that names that place, or the nearest argument.
    """
    known = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in given:
        if name not in known:
            place = elsewhere(name) if elsewhere else None
            raise TypeError(
                f"{caller} has no argument {name!r}" + (f"; {place}." if place else nearest_choice(name, known))
            )
