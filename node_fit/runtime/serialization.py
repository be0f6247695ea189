"""Parsing of files: untrusted numbers and YAML, the version that wrote a file, and short names of classes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import yaml

__version__ = "0.2.0"
# A JSON object; its content is checked on reading.
Json = dict[str, Any]
Class = TypeVar("Class", bound=type)
# A name is permanent: files of every version contain it.
CLASSES: dict[str, type] = {}


def is_json(value: object) -> TypeGuard[Json]:
    """Whether a value from JSON or YAML is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value from JSON or YAML is a list."""
    return isinstance(value, list)


def parse_number(text: str) -> float:
    """Parses a number from text.

    **Raises:** `ValueError` if it is not one, or has underscores: Python reads `0_5` as 5.
    """
    if "_" in text:
        raise ValueError(f"{text!r:.60} is not a number.")
    return float(text)


# libYAML's loaders, if PyYAML has them, are ten times as fast.
FAST_LOADER: type[yaml.BaseLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Maximum nesting depth of YAML files; those of node_fit are never deeper.
MAX_YAML_DEPTH = 50
# Maximum length of a value. YAML parses 1:59:59 as a base-60 number in a time quadratic in its length.
MAX_YAML_VALUE = 10_000


def check_yaml(text: str) -> None:
    """Rejects YAML that can take forever to read: a few aliases can expand to gigabytes, and each level is a call.

    **Raises:** `ValueError`, or `yaml.YAMLError` if it is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=FAST_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"line {event.start_mark.line + 1} has an alias; write its value out")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_YAML_VALUE:
            raise ValueError(f"line {event.start_mark.line + 1} has a value of over {MAX_YAML_VALUE:,} characters")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise ValueError(f"line {event.start_mark.line + 1} is nested over {MAX_YAML_DEPTH} deep")


def parse_plain_yaml(text: str) -> object:
    """Parses YAML to mappings, lists and text; long numbers and dates are never evaluated.

    **Raises:** `ValueError` as `check_yaml`, or for a key that a mapping has twice; `yaml.YAMLError`.
    """
    check_yaml(text)
    return yaml.load(text, Loader=PlainLoader)


if TYPE_CHECKING:
    TextLoader = yaml.BaseLoader
else:
    TextLoader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class PlainLoader(TextLoader):
    """A YAML loader that keeps values as text and rejects repeated keys, since the last one would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise ValueError(f"line {key.start_mark.line + 1} repeats the key {key.value!r:.60}; remove one")
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def stored_as(name: str) -> Callable[[Class], Class]:
    """Registers a model class under its name in files.

    **Raises:** `ValueError` if another class has that name.
    """

    def register(cls: Class) -> Class:
        if name in CLASSES:
            raise ValueError(f"the stored name {name!r} already belongs to {CLASSES[name].__name__}.")
        CLASSES[name] = cls
        return cls

    return register


def stored_name(cls: type) -> str | None:
    """Returns the name of a class in files; None if it has none."""
    return next((name for name, known in CLASSES.items() if known is cls), None)
