"""What files say of the code: the version that wrote them, and short names of classes, wherever a class is."""

from collections.abc import Callable
from typing import Any, TypeVar

__version__ = "0.2.0"
# A JSON object; what is in it is checked where it is read.
Json = dict[str, Any]
Class = TypeVar("Class", bound=type)
# A name is permanent: files of every version contain it.
CLASSES: dict[str, type] = {}


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
