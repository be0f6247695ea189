"""From a composed config to objects, where the constructor that a config names is its only schema."""

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import jax
import numpy as np
import yaml
from beartype import BeartypeConf
from beartype.door import is_bearable
from beartype.roar import BeartypeException, BeartypeWarning
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from jaxtyping import AbstractArray
from omegaconf import DictConfig, OmegaConf
from omegaconf import errors as omegaconf

ALLOWED = ("node_fit", "diffrax", "optax")
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
PHRASES = {
    r"Ambiguous value .*?'(.*?)'\n": r"\1 gives several values; add --multirun to run each, or [] for one list.",
    r"Multiple values for (\S+)\.": r"\1 has an option already; write \1=OPTION without the plus sign.",
    r"Could not append .*at '(.*?)'": r"\1 exists already; write \1=VALUE without the plus sign.",
    r"Additional config directory '(.*)' not found": r"--config-dir: there is no folder '\1'.",
    r"Config group override .*Got (\w+)": r"A group takes the name of an option, as in optimizer=adam, and no \1.",
}


class ConfigError(ValueError):
    """A config that can't be built. Its text is one sentence with the full key, the rule and the fix."""

    def __init__(self, text: str):
        super().__init__(one_line(text))


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


# Targets.


def located(path: Any, key: str, allowed: Sequence[str]) -> Callable:
    """The class or function of that dotted name, if an allowed package defines it under a public name."""
    package = next((name for name in allowed if isinstance(path, str) and path.startswith(f"{name}.")), None)
    if package is None:
        prefixes = ", ".join(f"{name}." for name in allowed)
        raise ConfigError(f"{key} must begin with {prefixes} or a package named in extensions=[...], got {path!r}")
    found = imported(package, key)
    for name in path[len(package) + 1 :].split("."):
        if not name.isidentifier() or name.startswith("_"):
            raise ConfigError(f"{key} must be a dotted name of public parts, got {path!r}")
        found = member(found, name, path, key)
        # Packages import others (`diffrax.eqx`, `optax.jnp`), whose names are not theirs to offer; and this module's
        # own functions would find and call anything.
        home = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", None)
        if home == __name__ or not any(f"{home}.".startswith(f"{name}.") for name in allowed):
            raise ConfigError(f"{key} must be defined in {', '.join(allowed)}, but {path!r} leads out of {package}")
    if not (inspect.isclass(found) or inspect.isfunction(found)) or inspect.isabstract(found):
        raise ConfigError(f"{key} must name a function, or a class that is not abstract, but {path!r} is neither")
    return found


def member(owner: Any, name: str, path: str, key: str) -> Any:
    if hasattr(owner, name):
        return getattr(owner, name)
    if hasattr(owner, "__path__") and importlib.util.find_spec(f"{owner.__name__}.{name}"):
        return imported(f"{owner.__name__}.{name}", key)
    names = [known for known in dir(owner) if not known.startswith("_")]
    raise ConfigError(f"{key}: {path!r} does not exist; {nearest(name, names, f'{owner.__name__}.')}")


def imported(name: str, key: str) -> types.ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # `python -m` finds a package in the current folder, a script does not.
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} can't be imported, {type(error).__name__}: {error}") from error


def parameters_of(target: Callable) -> dict[str, inspect.Parameter]:
    """The parameters that can be given by name."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except Exception:  # A hint in quotes may name what only a type checker imports; it stays a string, and unchecked.
        signature = inspect.signature(target)
    return {n: p for n, p in signature.parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def hints_of(target: Callable) -> dict[str, Any]:
    parameters = parameters_of(target).values()
    return {p.name: p.annotation for p in parameters if p.annotation is not p.empty and p.kind is not p.VAR_KEYWORD}


def check_names(given: Iterable[str], target: Callable, key: str, partial: bool) -> None:
    parameters = parameters_of(target)
    extra = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in given:
        if name not in parameters and not extra:
            known = nearest(name, parameters, f"{key}.")
            raise ConfigError(f"{key}.{name} is no argument of {target.__name__}; {known}")
    for name, p in parameters.items():
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and name not in given and not partial:
            raise ConfigError(f"{key}.{name} is required by {target.__name__}; give it one with +{key}.{name}=VALUE")


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


def nearest(name: Any, names: Iterable[str], prefix: str = "") -> str:
    """A clause with the nearest of the names, or with all of them if none is near."""
    names = sorted(names)
    match = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {prefix}{match[0]}?" if match else f"choose from {textwrap.shorten(', '.join(names), 200)}"


# Composition.


def explain(error: BaseException) -> str | None:
    """What went wrong when Hydra or OmegaConf read a config, in one sentence with the full key and the nearest name.

    **Arguments:**

    - `error`: an exception of this module, of Hydra, OmegaConf or YAML, as raised with `HYDRA_FULL_ERROR=1`.

    **Returns:** the sentence, or `None` for an exception from elsewhere.
    """
    text = str(error)
    match error:
        case ConfigError():
            return text
        case ConfigCompositionException(__cause__=omegaconf.OmegaConfBaseException() as cause):
            return explain(cause)
        case OverrideParseException():
            rule = "write key=value, close every bracket, and put quotes around a value with special characters"
            return one_line(f"The override {error.override} can't be read; {rule}.")
        case MissingConfigException(missing_cfg_file=str(path)):
            group, _, name = path.rpartition("/")
            group = group or "--config-name"
            known = f"; {nearest(name, error.options, f'{group}=')}" if error.options else ""
            return one_line(f"{group}={name} does not exist{known}")
        case omegaconf.ConfigKeyError(full_key=str(key)) | omegaconf.ConfigAttributeError(full_key=str(key)):
            return one_line(unknown_key(key, error.parent_node))
        case omegaconf.MissingMandatoryValue(full_key=str(key)):
            return f"{key} has no value; give it one with {key}=VALUE."
        case omegaconf.InterpolationKeyError(full_key=str(key), parent_node=DictConfig() as parent):
            name = text.partition("'")[2].partition("'")[0]
            return one_line(f"{key} refers to ${{{name}}}, no key of the config; {nearest(name, keys_beside(parent))}")
        case omegaconf.OmegaConfBaseException(full_key=str(key)):
            return one_line(f"{key} can't be used: {text.splitlines()[0]}")
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not valid YAML, {error.problem}."
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    reading = frames and frames[-1].partition(".")[0] in ("hydra", "omegaconf", "yaml", "antlr4")
    if not reading and not isinstance(error, (HydraException, omegaconf.OmegaConfBaseException, yaml.YAMLError)):
        return None
    for pattern, sentence in PHRASES.items():
        if found := re.match(pattern, text):
            return found.expand(sentence)
    return one_line(text or f"The config can't be read: {error!r}")


def unknown_key(key: str, parent: Any) -> str:
    """A sentence on a key that the config lacks, though its constructor may have it."""
    owner, _, name = key.rpartition(".")
    siblings = {str(known) for known in parent or ()} - {"hydra"}
    if "_target_" in siblings:
        try:
            arguments = set(parameters_of(located(parent["_target_"], key, ALLOWED)))
        except ConfigError:
            arguments = set()
        if name in arguments:
            return f"{key} is left at its default by the config; to set it, write +{key}=VALUE."
        siblings = siblings - {"_target_", "_partial_"} | arguments
    if not siblings:
        return f"{key} is no key of the config; {owner} holds a value and no keys; to add one, write +{key}=VALUE."
    namesakes = [known for known in keys_beside(parent) if known.endswith(f".{name}")]
    if namesakes and not difflib.get_close_matches(name, siblings, 1):
        return f"{key} is no key of the config; did you mean {namesakes[0]}?"
    return f"{key} is no key of the config; {nearest(name, siblings, owner and f'{owner}.')}"


def keys_beside(node: Any) -> list[str]:
    """The full keys of the config that a node belongs to, without Hydra's own and `_target_`."""
    root = OmegaConf.to_container(node._get_root())
    return [key for key in full_keys(root) if not re.match(r"hydra\b|.*\._", key)]


def full_keys(node: Any, prefix: str = "") -> Iterator[str]:
    for name, child in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{name}"
        yield from full_keys(child, f"{prefix}{name}.")


def one_line(text: str) -> str:
    """`text` as one sentence, without Hydra's links and search paths."""
    text = " ".join(re.split(r"\n+(?:See https|Config search path|Search path)", text)[0].split())
    return text if text.endswith((".", "?")) else f"{text}."
