"""What files say of the code: the version that wrote them, and short names of classes, wherever a class is."""

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

__version__ = "0.2.0"
# A JSON object; what is in it is checked where it is read.
Json = dict[str, Any]
Class = TypeVar("Class", bound=type)
# A name is permanent: files of every version contain it.
CLASSES: dict[str, type] = {}


def is_json(value: object) -> TypeGuard[Json]:
    """Whether a value that was read from JSON or YAML is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value that was read from JSON or YAML is a list."""
    return isinstance(value, list)


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
    """The name of a class in files; None if it has none."""
    return next((name for name, known in CLASSES.items() if known is cls), None)
