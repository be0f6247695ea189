"""Builds objects from a composed config; the constructor that a config names is its only schema."""

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
from omegaconf import OmegaConf
from omegaconf import errors as omegaconf

from ...runtime.validation import ARRAYS, HINT_WORDS, LISTS, describe_hint, members
from .composition import check_group_names, explain
from .targets import ALLOWED, ConfigError, closest, constructor_hints, locate, nearest_name, parameters_of

# As in a config file.
YAML = HINT_WORDS | {type(None): "null"} | dict.fromkeys((bool, np.bool), "true or false")


@dataclass(frozen=True)
class Call:
    """A checked constructor call that has not been executed yet."""

    key: str
    target: Callable
    arguments: dict[str, object]
    partial: bool


class Deferred(functools.partial):
    """A constructor with some arguments bound (`_partial_: true`), whose errors name its config key."""

    key: str

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        with errors_of_key(self.key, self.func):
            return super().__call__(*args, **kwargs)


def build(node: object, key: str, *, extensions: Sequence[str] = ()) -> Any:
    """Builds the object that a config node describes.

    All targets, names and plain values in the node are checked before the first constructor runs.

    **Arguments:**

    - `node`: an OmegaConf node, or dicts, lists and plain values. A dict with `_target_`, the dotted name of a public
      class or function, stands for the result of calling it; with `_partial_: true`, for a `functools.partial` of it.
    - `key`: the node's full key in the config, for errors.
    - `extensions`: packages besides `node_fit`, `diffrax` and `optax` that may hold targets. They are imported, which
      runs their code.

    **Returns:** the result of the target. Nested targets are built first. Constructors get plain Python: a list becomes
    a tuple where the hint is a tuple or a `Sequence`; an integer or the string "1e-3" becomes a float where it is one.

    **Raises:** `ConfigError`, also in place of a constructor's `ValueError`.
    """
    return execute(make_plan(node, key, (*ALLOWED, *check_value(to_plain(extensions), tuple[str, ...], "extensions"))))


def make_plan(node: object, key: str, allowed: Sequence[str]) -> object:
    """Converts `node` to plain Python, with each target as a checked `Call`."""
    node = to_plain(node)
    if isinstance(node, str) and node == "???":
        raise ConfigError(f"{key} has no value; set it with {key}=VALUE")
    if isinstance(node, (list, tuple)):
        return [make_plan(item, f"{key}[{index}]", allowed) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    target = locate(node["_target_"], f"{key}._target_", allowed) if "_target_" in node else None
    given = {name: value for name, value in node.items() if name not in ("_target_", "_partial_")}
    partial = check_value(node.get("_partial_", False), bool, f"{key}._partial_")
    if target is not None:
        check_group_names(given, target, key, partial)
    values = {name: make_plan(value, f"{key}.{name}", allowed) for name, value in given.items()}
    if target is None:
        return values
    hints = constructor_hints(target)
    for name, value in values.items():
        if not holds_call(value):
            values[name] = check_value(value, hints.get(name, object), f"{key}.{name}")
    return Call(key, target, values, partial)


def execute(plan: object) -> object:
    """Executes the calls of a plan and returns its object."""
    if isinstance(plan, (list, tuple)):
        return type(plan)(execute(item) for item in plan)
    if isinstance(plan, dict):
        return {name: execute(item) for name, item in plan.items()}
    if not isinstance(plan, Call):
        return plan
    key, target, arguments = plan.key, plan.target, dict(plan.arguments)
    for name, value in arguments.items():
        if holds_call(value):
            arguments[name] = check_value(execute(value), constructor_hints(target).get(name, object), f"{key}.{name}")
    if plan.partial:
        deferred = Deferred(target, **arguments)
        deferred.key = key
        return deferred
    with errors_of_key(key, target):
        return target(**arguments)


def to_plain(node: object) -> Any:
    try:
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    except omegaconf.OmegaConfBaseException as error:
        raise ConfigError(explain(error) or str(error)) from error


def holds_call(plan: object) -> bool:
    children = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, (list, tuple)) else ()
    return isinstance(plan, Call) or any(holds_call(child) for child in children)


@contextmanager
def errors_of_key(key: str, target: Callable) -> Iterator[None]:
    """Prefixes a constructor's `ValueError` with `key`, joined to the argument's name if the text starts with one."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        text = re.sub(r"^`(\w+)`", r"\1", str(error))
        named = re.split(r"\W", text, maxsplit=1)[0] in parameters_of(target)
        raise ConfigError(f"{key}{'.' if named else ': '}{text}") from error


# Values.


def check_value(value: object, hint: object, key: str) -> Any:
    """Converts `value` to the type of the hint, or raises a `ConfigError` that names the key."""
    try:
        return convert(value, hint)
    except (ValueError, OverflowError):
        hints = members(hint)
        choices = [str(choice) for member in hints if get_origin(member) is Literal for choice in get_args(member)]
        fix = ""
        if isinstance(value, str) and closest(value, choices):
            fix = f"; {nearest_name(value, choices)}"
        elif isinstance(value, str) and any(get_origin(member) in LISTS for member in hints):
            fix = f"; write [{value}]"
        elif isinstance(value, float) and value.is_integer() and int in hints:
            fix = f"; write {value:.0f}"
        shown = textwrap.shorten(repr(value), 80)
        raise ConfigError(f"{key} must be {describe_hint(hint, YAML)}, got {shown}{fix}") from None


def convert(value: object, hint: Any) -> object:
    """Converts `value` to the type of the hint, or raises a `ValueError`."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    flag, text = isinstance(value, bool), isinstance(value, str)
    if kind in (Union, types.UnionType):
        return convert_to_one(value, inner)
    if kind is float and isinstance(value, (int, float, str)) and not flag:
        return float(value)  # YAML 1.1 reads 1e-3 as a string.
    if kind in LISTS and isinstance(value, (list, tuple)):
        return convert_list(value, kind, inner)
    if kind is Literal:
        fits = any(type(choice) is type(value) and choice == value for choice in inner)
    elif isinstance(kind, type) and issubclass(kind, ARRAYS):
        lists = () if getattr(kind, "dims", None) == () else (list,)
        fits = not flag and isinstance(value, (int, float, jax.Array, np.ndarray, *lists))  # Arrays are made of these.
    elif (flag and kind in (int, float, complex)) or (text and kind in LISTS):
        fits = False  # In Python, a bool is an int and a str is a sequence.
    else:
        try:
            with warnings.catch_warnings(action="ignore", category=BeartypeWarning):  # Old hints: `typing.Dict`.
                fits = is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
        except BeartypeException:
            fits = True
    if not fits:
        raise ValueError
    return value


def convert_to_one(value: object, hints: Sequence[object]) -> object:
    """Converts `value` to the first hint that accepts it; a string becomes a number only if no hint takes strings."""
    for hint in sorted(hints, key=lambda hint: hint is float and isinstance(value, str)):
        try:
            return convert(value, hint)
        except (ValueError, OverflowError):
            continue
    raise ValueError


def convert_list(values: Sequence[object], kind: object, inner: tuple[object, ...]) -> list | tuple:
    many = kind is not tuple or not inner or inner[-1] is Ellipsis
    hints = [inner[0] if inner else object] * len(values) if many else inner
    items = [convert(value, hint) for value, hint in zip(values, hints, strict=True)]
    return items if kind is list else tuple(items)
