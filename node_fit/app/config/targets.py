"""The targets that a config may name: public constructors and what extensions define, and their arguments."""

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

# Callbacks of Hydra that conf/config.yaml names.
CALLBACKS = ("node_fit.app.leaderboard.Leaderboard", "node_fit.app.vectorized.Vectorized")
# What launchers and sweepers of Hydra are made of.
PLUGINS = ("hydra_plugins", "hydra._internal.core_plugins", "optuna.samplers")
# Modules whose public classes are constructors; optax's functions make transformations and schedules.
MODULES = (
    "node_fit",
    "diffrax",
    "optax",
    "optax.contrib",
    "optax.losses",
    "optax.perturbations",
    "optax.projections",
    "optax.schedules",
    "optax.transforms",
)
ALLOWED = tuple(dict.fromkeys(name.partition(".")[0] for name in MODULES))


class ConfigError(ValueError):
    """Raised for a config that can't be built. Its text is one sentence with the full key, the rule and the fix."""

    def __init__(self, text: str):
        super().__init__(one_line(text))


def locate(path: object, key: str, allowed: Sequence[str]) -> Callable:
    """Looks up a class or function by its dotted name: a public constructor, or one of a package of the user's own."""
    package = next((name for name in allowed if isinstance(path, str) and path.startswith(f"{name}.")), None)
    if package is None or not isinstance(path, str):
        prefixes = ", ".join(f"{name}." for name in allowed)
        raise ConfigError(f"{key} must start with {prefixes} or a package named in extensions=[...], got {path!r}")
    if package not in ALLOWED:
        return defined_in(package, path, key)
    known = constructors()
    if path not in known:
        names = [name for name in known if name.startswith(f"{package}.")]
        raise ConfigError(f"{key} must be a public constructor of {package}, got {path!r}; {nearest_name(path, names)}")
    return known[path]


@functools.cache
def constructors() -> dict[str, Callable]:
    """All that a config may call without an extension, by dotted name."""
    found: dict[str, Callable] = {}
    for name in MODULES:
        module, package = importlib.import_module(name), name.partition(".")[0]
        for each in getattr(module, "__all__", dir(module)):
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of names that nobody wrote
                target = getattr(module, each)
            # Libraries also expose what they import from others.
            if not each.startswith("_") and is_constructor(target, package) and is_in(target.__module__, package):
                found[f"{name}.{each}"] = target
    return found


def is_constructor(target: object, package: str) -> bool:
    made = package == "optax" and inspect.isfunction(target)
    return made or (inspect.isclass(target) and not inspect.isabstract(target))


def is_in(module: str | None, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def defined_in(package: str, path: str, key: str) -> Callable:
    """Looks up a class or function that a package of the user's own defines under a public name."""
    make_importable()
    found = import_target(package, key)
    for name in path[len(package) + 1 :].split("."):
        if not name.isidentifier() or name.startswith("_"):
            raise ConfigError(f"{key} must be a dotted name with only public parts, got {path!r}")
        found = find_member(found, name, path, key)
        # A package also exposes modules that it imports; these do not count.
        home = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", None)
        if not is_in(home, package) and not any(found is known for known in constructors().values()):
            raise ConfigError(f"{key} must be defined in {package}, but {path!r} leaves it")
    if not (inspect.isclass(found) or inspect.isfunction(found)) or inspect.isabstract(found):
        raise ConfigError(f"{key} must name a function, or a class that is not abstract, but {path!r} is neither")
    return found


def make_importable() -> None:
    """Lets extensions be modules in the current folder, which `python -m` searches and a script does not."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def find_member(owner: Any, name: str, path: str, key: str) -> object:
    if hasattr(owner, name):
        return getattr(owner, name)
    if hasattr(owner, "__path__") and importlib.util.find_spec(f"{owner.__name__}.{name}"):
        return import_target(f"{owner.__name__}.{name}", key)
    names = [known for known in dir(owner) if not known.startswith("_")]
    raise ConfigError(f"{key}: {path!r} does not exist; {nearest_name(name, names, f'{owner.__name__}.')}")


def import_target(name: str, key: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} can't be imported, {type(error).__name__}: {error}") from error


def check_hydra(config: DictConfig) -> None:
    """Refuses targets in Hydra's node of a config, which Hydra calls before a job begins.

    **Raises:** `ConfigError` unless they are node_fit's own callbacks, Hydra's plugins, or defined by extensions.
    """
    named = config.get("extensions")
    # What is no list of names is refused with the other keys.
    is_list = isinstance(named, list | tuple | ListConfig)
    extensions = [name for name in named if isinstance(name, str)] if is_list else []
    for key, target in targets_in(OmegaConf.to_container(config.hydra), "hydra"):
        name = target if isinstance(target, str) else None
        plugin = key.startswith(("hydra.launcher.", "hydra.sweeper.")) and any(is_in(name, each) for each in PLUGINS)
        if not (plugin or target in CALLBACKS or any(is_in(name, each) for each in extensions)):
            raise ConfigError(
                f"{key} must be one of {', '.join(CALLBACKS)}, a plugin of Hydra, or defined in a package named in "
                f"extensions=[...], got {target!r}"
            )


def targets_in(node: object, key: str) -> Iterator[tuple[str, object]]:
    """The targets within a node of plain Python, with their keys."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        if name == "_target_":
            yield f"{key}.{name}", child
        else:
            yield from targets_in(child, f"{key}.{name}")


def parameters_of(target: Callable) -> dict[str, inspect.Parameter]:
    """The parameters that can be passed by name."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except Exception:  # A hint in quotes may need a type-checking import; it stays a string and is not checked.
        signature = inspect.signature(target)
    return {n: p for n, p in signature.parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def constructor_hints(target: Callable) -> dict[str, object]:
    parameters = parameters_of(target).values()
    return {p.name: p.annotation for p in parameters if p.annotation is not p.empty and p.kind is not p.VAR_KEYWORD}


def nearest_name(name: object, names: Iterable[str], prefix: str = "") -> str:
    """A clause with the nearest name, or with all names if none is near."""
    names = sorted(names)
    match = closest(name, names)
    return f"did you mean {prefix}{match}?" if match else f"choose from {textwrap.shorten(', '.join(names), 200)}"


def closest(name: object, names: Iterable[str]) -> str | None:
    """The name of which this one may be a misspelling, or `None`; words of three letters that share two are not."""
    names = list(names)
    swapped = [each for each in names if sorted(each) == sorted(str(name))]
    return next(iter([*swapped, *difflib.get_close_matches(str(name), names, 1, cutoff=0.7)]), None)


def one_line(text: str) -> str:
    """Joins `text` into one sentence, without Hydra's links and search paths."""
    text = " ".join(re.split(r"\n+(?:See https|Config search path|Search path)", text)[0].split())
    return text if text.endswith((".", "?")) else f"{text}."
