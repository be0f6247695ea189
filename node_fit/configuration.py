"""From a composed config to objects, where the constructor that a config names is its only schema."""

import difflib
import functools
import re
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import jax
import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable
from beartype.roar import BeartypeException, BeartypeWarning
from jaxtyping import AbstractArray
from omegaconf import OmegaConf
from omegaconf import errors as omegaconf

from .composition import explain
from .targets import ALLOWED, ConfigError, check_names, hints_of, located, nearest, parameters_of

ARRAYS = (AbstractArray, jax.Array, np.ndarray)
LISTS = (tuple, Sequence, list)
WORDS = {
    **dict.fromkeys((bool, np.bool), "true or false"),
    **dict.fromkeys((float, complex, np.number), "a number"),
    int: "an integer",
    str: "a string",
    type(None): "null",
    Callable: "a function",
}


@dataclass(frozen=True)
class Call:
    """A constructor call that has passed all checks and has not been made."""

    key: str
    target: Callable
    arguments: dict[str, Any]
    partial: bool


class Deferred(functools.partial):
    """A constructor that lacks some arguments (`_partial_: true`), and whose errors name its config key."""

    key: str

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with errors_at(self.key, self.func):
            return super().__call__(*args, **kwargs)


def build(node: Any, key: str, *, extensions: Sequence[str] = ()) -> Any:
    """The object that a node of a config describes.

    Every target, name and plain value in the node is checked before the first constructor runs.

    **Arguments:**

    - `node`: an OmegaConf node, or dicts, lists and plain values. A dict with `_target_`, the dotted name of a public
      class or function, stands for what that returns; with `_partial_: true` for a `functools.partial` of it.
    - `key`: the node's full key in the config, for errors.
    - `extensions`: packages that targets may come from besides `node_fit`, `diffrax` and `optax`; importing runs them.

    **Returns:** what the target returns. Nested targets are built first. Constructors get plain Python: a list becomes
    a tuple where a tuple or a `Sequence` is asked for, an integer or the string "1e-3" a float where a float is.

    **Raises:** `ConfigError`, also for a `ValueError` of a constructor.
    """
    return made(planned(node, key, (*ALLOWED, *checked(plain(extensions), tuple[str, ...], "extensions"))))


def planned(node: Any, key: str, allowed: Sequence[str]) -> Any:
    """`node` in plain Python, with each target in it as a `Call`."""
    node = plain(node)
    if isinstance(node, str) and node == "???":
        raise ConfigError(f"{key} has no value; give it one with {key}=VALUE")
    if isinstance(node, (list, tuple)):
        return [planned(item, f"{key}[{index}]", allowed) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    target = located(node["_target_"], f"{key}._target_", allowed) if "_target_" in node else None
    given = {name: value for name, value in node.items() if name not in ("_target_", "_partial_")}
    partial = checked(node.get("_partial_", False), bool, f"{key}._partial_")
    if target is not None:
        check_names(given, target, key, partial)
    values = {name: planned(value, f"{key}.{name}", allowed) for name, value in given.items()}
    if target is None:
        return values
    hints = hints_of(target)
    for name, value in values.items():
        if not holds_call(value):
            values[name] = checked(value, hints.get(name, Any), f"{key}.{name}")
    return Call(key, target, values, partial)


def made(plan: Any) -> Any:
    """The object that a plan describes."""
    if isinstance(plan, (list, tuple)):
        return type(plan)(made(item) for item in plan)
    if isinstance(plan, dict):
        return {name: made(item) for name, item in plan.items()}
    if not isinstance(plan, Call):
        return plan
    key, target, arguments = plan.key, plan.target, dict(plan.arguments)
    for name, value in arguments.items():
        if holds_call(value):
            arguments[name] = checked(made(value), hints_of(target).get(name, Any), f"{key}.{name}")
    if plan.partial:
        deferred = Deferred(target, **arguments)
        deferred.key = key
        return deferred
    with errors_at(key, target):
        return target(**arguments)


def plain(node: Any) -> Any:
    try:
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    except omegaconf.OmegaConfBaseException as error:
        raise ConfigError(explain(error) or str(error)) from error


def holds_call(plan: Any) -> bool:
    children = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, (list, tuple)) else ()
    return isinstance(plan, Call) or any(holds_call(child) for child in children)


@contextmanager
def errors_at(key: str, target: Callable) -> Iterator[None]:
    """Puts `key` before a constructor's `ValueError`, joined to the argument's name if the text begins with one."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        text = re.sub(r"^`(\w+)`", r"\1", str(error))
        named = re.split(r"\W", text, maxsplit=1)[0] in parameters_of(target)
        raise ConfigError(f"{key}{'.' if named else ': '}{text}") from error


# Values.


def checked(value: Any, hint: Any, key: str) -> Any:
    """`value` in the form that the hint asks for, or a `ConfigError`."""
    try:
        return fitted(value, hint)
    except (ValueError, OverflowError):
        hints = members(hint)
        choices = [str(choice) for member in hints if get_origin(member) is Literal for choice in get_args(member)]
        fix = ""
        if isinstance(value, str) and difflib.get_close_matches(value, choices, 1):
            fix = f"; {nearest(value, choices)}"
        elif isinstance(value, str) and any(get_origin(member) in LISTS for member in hints):
            fix = f"; write [{value}]"
        elif isinstance(value, float) and value.is_integer() and int in hints:
            fix = f"; write {value:.0f}"
        shown = textwrap.shorten(repr(value), 80)
        raise ConfigError(f"{key} must be {described(hint)}, got {shown}{fix}") from None


def fitted(value: Any, hint: Any) -> Any:
    """`value` in the form that the hint asks for; a `ValueError` if it has none."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    flag, text = isinstance(value, bool), isinstance(value, str)
    if kind in (Union, types.UnionType):
        return fitted_to_one(value, inner)
    if kind is float and isinstance(value, (int, float, str)) and not flag:
        return float(value)  # YAML 1.1 reads 1e-3 as a string.
    if kind in LISTS and isinstance(value, (list, tuple)):
        return fitted_list(value, kind, inner)
    if kind is Literal:
        fits = any(type(choice) is type(value) and choice == value for choice in inner)
    elif isinstance(kind, type) and issubclass(kind, ARRAYS):
        fits = not flag and isinstance(value, (int, float, list, jax.Array, np.ndarray))  # Arrays are made of these.
    elif (flag and kind in (int, float, complex)) or (text and kind in LISTS):
        fits = False  # Python takes a flag for a number and a word for a list of letters.
    else:
        try:
            with warnings.catch_warnings(action="ignore", category=BeartypeWarning):  # Old hints as `typing.Dict`.
                fits = is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
        except BeartypeException:
            fits = True
    if not fits:
        raise ValueError
    return value


def fitted_to_one(value: Any, hints: Sequence[Any]) -> Any:
    """`value` as the first of the hints that it fits; a string becomes a number only if it may not stay one."""
    for hint in sorted(hints, key=lambda hint: hint is float and isinstance(value, str)):
        try:
            return fitted(value, hint)
        except (ValueError, OverflowError):
            continue
    raise ValueError


def fitted_list(values: Sequence[Any], kind: Any, inner: tuple[Any, ...]) -> list | tuple:
    many = kind is not tuple or not inner or inner[-1] is Ellipsis
    hints = [inner[0] if inner else Any] * len(values) if many else inner
    items = [fitted(value, hint) for value, hint in zip(values, hints, strict=True)]
    return items if kind is list else tuple(items)


def members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def described(hint: Any) -> str:
    """A type hint in the words of somebody who writes a config."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(described(member) for member in inner))
    if kind is Literal:
        return f"one of {', '.join(str(choice) for choice in inner)}"
    if isinstance(kind, type) and issubclass(kind, ARRAYS):
        return "an array"
    if kind in LISTS:
        return "a list" + (f" (each {described(inner[0])})" if inner else "")
    return WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"
