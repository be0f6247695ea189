"""The search space: config keys and the values that they may take."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..config.targets import ConfigError, nearest

KINDS = ("float", "log", "int", "choice")
FORMS = "{float: [low, high]}, {log: [low, high]}, {int: [low, high]} or {choice: [one, another]}"
# Strings that Hydra reads unchanged as a value.
PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[a-z_][\w./-]*", re.IGNORECASE)


@runtime_checkable
class Suggests(Protocol):
    """The part of an Optuna trial that suggests values."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_int(self, name: str, low: int, high: int) -> int: ...
    def suggest_categorical(self, name: str, choices: list[str]) -> str: ...


@dataclass(frozen=True)
class Parameter:
    """A config key that a search varies.

    - `key`: the full key, such as `penalty.ridge`.
    - `kind`: `float`, `log` (a float on a logarithmic scale), `int`, or `choice`.
    - `values`: the lowest and the highest value, both included; or the choices.
    """

    key: str
    kind: str
    values: tuple

    def __post_init__(self):
        place, shown = f"tune.space.{self.key}", f"[{', '.join(map(str, self.values))}]"
        if self.kind == "choice":
            if not self.values:
                raise ConfigError(f"{place}: choice must list at least one value, got {shown}.")
            return
        wanted = int if self.kind == "int" else (int, float)
        if len(self.values) != 2 or not all(isinstance(x, wanted) and not isinstance(x, bool) for x in self.values):
            noun = "integers" if self.kind == "int" else "numbers"
            raise ConfigError(f"{place}: {self.kind} must give two {noun}, [low, high], got {shown}.")
        low, high = self.values
        if not low <= high or (self.kind == "log" and low <= 0):
            above = " above 0" if self.kind == "log" else ""
            raise ConfigError(f"{place}: {self.kind} must give [low, high]{above} with low at most high, got {shown}.")

    def suggest(self, trial: Suggests) -> str:
        """Returns an override with the value that Optuna suggests."""
        if self.kind == "choice":
            return f"{self.key}={trial.suggest_categorical(self.key, [word(value) for value in self.values])}"
        low, high = self.values
        if self.kind == "int":
            return f"{self.key}={trial.suggest_int(self.key, low, high)}"
        return f"{self.key}={trial.suggest_float(self.key, low, high, log=self.kind == 'log')!r}"

    def examples(self) -> list[str]:
        """Returns an override for each choice, or for both ends of the range."""
        return [f"{self.key}={word(value)}" for value in self.values]


def read_space(node: Any) -> list[Parameter]:
    """Reads the parameters of `tune.space`, which nests like the config or has dotted keys.

    **Raises:** `ConfigError` if it is malformed or empty.
    """
    space = list(parameters(node or {}, ""))
    if not space:
        raise ConfigError("tune.space is empty; name a key, as in '+tune.space.penalty.ridge={log: [1e-6, 1]}'.")
    return space


def parameters(node: Any, key: str) -> Iterator[Parameter]:
    if not isinstance(node, dict):
        raise ConfigError(f"tune.space.{key} must be {FORMS}, got {node!r}.")
    for name, child in node.items():
        if isinstance(child, dict):
            yield from parameters(child, f"{key}.{name}" if key else str(name))
        elif len(node) == 1 and name in KINDS and isinstance(child, list):
            yield Parameter(key, name, tuple(child))
        elif isinstance(child, list) and key:
            raise ConfigError(f"tune.space.{key}.{name}: {name} is not a kind of range; {nearest(name, KINDS)}")
        else:
            raise ConfigError(f"tune.space.{key and f'{key}.'}{name} must be {FORMS}, got {child!r}.")


def word(value: Any) -> str:
    """Formats a value for Hydra's command line."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{','.join(map(word, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{word(child)}' for name, child in value.items())}}}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)
