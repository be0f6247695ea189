"""The targets that a config may name: classes and functions of allowed packages, and their arguments."""

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ALLOWED = ("node_fit", "diffrax", "optax")
# The modules that look up and call targets. A config that could name them could call anything.
FINDERS = tuple(f"{__package__}.{name}" for name in ("targets", "composition", "configuration"))


class ConfigError(ValueError):
    """Raised for a config that can't be built. Its text is one sentence with the full key, the rule and the fix."""

    def __init__(self, text: str):
        super().__init__(one_line(text))


def located(path: Any, key: str, allowed: Sequence[str]) -> Callable:
    """Looks up a class or function by its dotted name; an allowed package must define it under a public name."""
    package = next((name for name in allowed if isinstance(path, str) and path.startswith(f"{name}.")), None)
    if package is None:
        prefixes = ", ".join(f"{name}." for name in allowed)
        raise ConfigError(f"{key} must start with {prefixes} or a package named in extensions=[...], got {path!r}")
    found = imported(package, key)
    for name in path[len(package) + 1 :].split("."):
        if not name.isidentifier() or name.startswith("_"):
            raise ConfigError(f"{key} must be a dotted name with only public parts, got {path!r}")
        found = member(found, name, path, key)
        # Packages also expose modules that they import (`diffrax.eqx`, `optax.jnp`); these do not count.
        home = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", None)
        if home in FINDERS or not any(f"{home}.".startswith(f"{name}.") for name in allowed):
            raise ConfigError(f"{key} must be defined in {', '.join(allowed)}, but {path!r} leaves {package}")
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
        sys.path.append(str(Path.cwd()))  # `python -m` searches the current folder; a script does not.
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} can't be imported, {type(error).__name__}: {error}") from error


def parameters_of(target: Callable) -> dict[str, inspect.Parameter]:
    """The parameters that can be passed by name."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except Exception:  # A hint in quotes may need a type-checking import; it stays a string and is not checked.
        signature = inspect.signature(target)
    return {n: p for n, p in signature.parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def hints_of(target: Callable) -> dict[str, Any]:
    parameters = parameters_of(target).values()
    return {p.name: p.annotation for p in parameters if p.annotation is not p.empty and p.kind is not p.VAR_KEYWORD}


def nearest(name: Any, names: Iterable[str], prefix: str = "") -> str:
    """A clause with the nearest name, or with all names if none is near."""
    names = sorted(names)
    match = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {prefix}{match[0]}?" if match else f"choose from {textwrap.shorten(', '.join(names), 200)}"


def one_line(text: str) -> str:
    """Joins `text` into one sentence, without Hydra's links and search paths."""
    text = " ".join(re.split(r"\n+(?:See https|Config search path|Search path)", text)[0].split())
    return text if text.endswith((".", "?")) else f"{text}."
