"""A fitted model as one self-describing file; loading it runs no code from the file.

The file is an archive: arrays, and a JSON header with the class of each part, names, units, solver and versions.
Classes of this package have short stored names (`runtime.serialization`), so a file survives any move of a class. A
file can only instantiate these, classes of `equinox.nn`, and classes of packages that the caller names.
"""

import dataclasses
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..runtime.placement import carry, dtype_of, precision_of, scope
from ..runtime.serialization import CLASSES, stored_name
from ..runtime.validation import check_argument
from ..runtime.version import __version__
from .archive import MODEL_STEPS, BadFile, OtherSchema, migrate, pack, unpack
from .schema import ModelFileError, check_model, check_parts, check_stored_fields

# Version of the file format. Any change to it needs a step in `storage.archive` that upgrades files of the previous
# version.
MODEL_SCHEMA = 7
NETWORKS = "equinox.nn"
# Functions that a model may call, by their names in files; functions of the caller's packages may be added.
STORED_FUNCTIONS: dict[str, Callable] = {
    **{f"jax.numpy.{name}": getattr(jnp, name) for name in ("tanh", "sin", "cos", "exp")},
    **{f"jax.nn.{name}": getattr(jax.nn, name) for name in ("softplus", "silu", "gelu", "relu", "elu", "sigmoid")},
    **{
        f"equinox.nn.MLP.{name}": inspect.signature(eqx.nn.MLP).parameters[name].default
        for name in ("activation", "final_activation")
    },
}


def save(model: NeuralODE | Ensemble, path: str | Path) -> None:
    """Writes a model, fitted or loaded or changed by hand, to a file that `load` reads.

    ```python
    node_fit.save(model, "model.safetensors")
    ```

    An older file is replaced only once the new one is complete.

    **Arguments:** `model`: a `NeuralODE` or an `Ensemble`. `path`: the file.

    **Raises:** `ValueError` that names a part that a file can't hold, such as a lambda.
    """
    check_argument("model", model, NeuralODE | Ensemble, "a NeuralODE or an Ensemble, such as fit.model")
    check_argument("path", path, str | Path, "the name of a file")
    tensors: dict[str, np.ndarray] = {}
    structure = describe_part(model, "model", tensors)
    content = {
        "schema": MODEL_SCHEMA,
        "node_fit": __version__,
        "states": model.typical.states,
        "latent": model.typical.latent,
        "inputs": model.typical.inputs,
        "time": model.typical.system.time,
        "units": dict(model.typical.units),
        "precision": precision_of(model),
        "versions": {name: version(name) for name in ("jax", "equinox", "diffrax")},
        "model": structure,
    }
    pack(Path(path), content, tensors)


def load(path: str | Path, *, extensions: Sequence[str] = ()) -> NeuralODE | Ensemble:
    """Reads a model.

    **Arguments:**

    - `path`: a file written by `save`.
    - `extensions`: further packages whose classes and functions the model may use.

    **Raises:** `FileNotFoundError`, or `ModelFileError` that says what is wrong with the file.
    """
    check_argument("path", path, str | Path, "the name of a file that a model was saved to")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}.")
    try:
        content, tensors = migrate(*unpack(path), MODEL_STEPS, MODEL_SCHEMA)
        with scope(content["precision"]):
            check_parts(content["model"])
            model = rebuild(content["model"], tensors, extensions)
            check_model(model)
            return carry(model, dtype_of(content["precision"]))
    except BadFile as error:
        raise ModelFileError(f"{path} is not a model file, or is damaged: {error}.") from None
    except (ModelFileError, OtherSchema) as error:
        raise ModelFileError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, ImportError) as error:
        shown = textwrap.shorten(repr(error), 300)
        raise ModelFileError(f"{path} does not describe a model: {shown}.") from None


def describe_part(part: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """Describes a part of a model in JSON; puts its arrays into `tensors` by name."""
    if isinstance(part, Array | np.ndarray):
        tensors[name] = np.asarray(jax.device_get(part))
        return {"array": name}
    if isinstance(part, eqx.Module):
        check_importable(type(part), name)
        keys = [each.name for each in dataclasses.fields(part)]  # without class variables
        members = {key: describe_part(getattr(part, key), f"{name}.{key}", tensors) for key in keys}
        return {"class": name_stored(type(part)), "fields": members}
    if isinstance(part, tuple | list):
        items = [describe_part(item, f"{name}.{index}", tensors) for index, item in enumerate(part)]
        return {type(part).__name__ if type(part) is list else "tuple": items}
    if part is None or isinstance(part, bool | int | float | str):
        return part
    known = [key for key, function in STORED_FUNCTIONS.items() if function is part]
    if known:
        return {"function": known[0]}
    is_named = inspect.isfunction(part) and getattr(sys.modules[part.__module__], part.__qualname__, None) is part
    if is_named and part.__module__ != "__main__":
        return {"function": f"{part.__module__}:{part.__qualname__}"}
    raise ValueError(
        f"a model file can't hold {name}, which is {part!r}; make it an equinox.Module, a number, a string or an array."
    )


def rebuild(node: Any, tensors: dict[str, np.ndarray], packages: Sequence[str]) -> Any:
    """Rebuilds a part from the description that `describe` made."""
    if not isinstance(node, dict):
        return node
    ((kind, value), *more) = node.items()
    if kind == "array":
        if value not in tensors:
            raise ModelFileError(f"it lacks the array {value!r}, or asks for it twice.")
        # Popped, so that a small file can't ask for one array many times, each time in a new buffer.
        return jnp.asarray(tensors.pop(value))
    if kind in ("tuple", "list"):
        items = [rebuild(item, tensors, packages) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "function":
        return STORED_FUNCTIONS[value] if value in STORED_FUNCTIONS else allowed_function(value, packages)
    if kind == "class":
        return assemble_part(allowed_class(value, packages), dict(more)["fields"], tensors, packages)
    raise ModelFileError(f"{kind!r} is not a kind of part.")


def assemble_part(cls: type, members: dict[str, Any], tensors: dict[str, np.ndarray], packages: Sequence[str]) -> Any:
    """Makes an instance with these fields without its constructor, which would draw new parameters."""
    expected = {each.name for each in dataclasses.fields(cls)}
    if set(members) != expected:
        raise ModelFileError(f"{cls.__name__} needs the fields {sorted(expected)}, the file has {sorted(members)}.")
    instance = object.__new__(cls)
    for key, member in members.items():
        object.__setattr__(instance, key, rebuild(member, tensors, packages))
    if stored_name(cls):
        check_stored_fields(instance)
    if stored_name(cls) or cls.__module__.startswith(f"{NETWORKS}."):  # a caller's class may hold integers
        check_floats(instance)
    return instance


def check_floats(part: eqx.Module) -> None:
    """Rejects weights of integers or booleans, with which a solve would compute something else."""
    for each in dataclasses.fields(part):
        for leaf in jax.tree.leaves(getattr(part, each.name), is_leaf=lambda node: isinstance(node, eqx.Module)):
            if isinstance(leaf, Array) and not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ModelFileError(f"its {type(part).__name__} has {each.name} of {leaf.dtype}; weights are floats.")


def name_stored(cls: type) -> str:
    """The stored name of a class: short for one of ours, else its module and its name."""
    module = NETWORKS if cls.__module__.startswith(f"{NETWORKS}.") else cls.__module__
    return stored_name(cls) or f"{module}:{cls.__qualname__}"


def check_importable(cls: type, name: str) -> None:
    """Rejects a class that no other process could import.

    **Raises:** `ValueError` that says where to put it.
    """
    if stored_name(cls) is None and (cls.__module__ == "__main__" or "." in cls.__qualname__):
        place = "in a function or class" if "." in cls.__qualname__ else "in the script or notebook that runs"
        raise ValueError(
            f"{name} is a {cls.__qualname__}, which is defined {place}, where no other process can load it; move the "
            "class to the top of a module, such as my_fields.py, import it from there, and load with "
            "extensions=['my_fields']."
        )


def allowed_class(name: str, packages: Sequence[str]) -> type:
    if name in CLASSES:
        return CLASSES[name]
    check_package(name, (NETWORKS, *packages))
    try:
        cls = import_name(name)
    except (ImportError, AttributeError):
        raise ModelFileError(f"the class {name!r} does not exist here.") from None
    if not (isinstance(cls, type) and issubclass(cls, eqx.Module)) or name_stored(cls) != name:
        raise ModelFileError(f"{name!r} is not a model class.")
    return cls


def allowed_function(name: str, packages: Sequence[str]) -> Callable:
    check_package(name, packages)
    function = import_name(name)
    if not inspect.isfunction(function) or f"{function.__module__}:{function.__qualname__}" != name:
        raise ModelFileError(f"{name!r} is not a function of that package.")
    return function


def check_package(name: str, packages: Sequence[str]) -> None:
    module, colon, _ = name.partition(":")
    if not colon:
        raise ModelFileError(f"{name!r} is not a class of this node_fit.")
    if not any(module == package or module.startswith(package + ".") for package in packages):
        raise ModelFileError(
            f"it uses {name!r}, which is not allowed; only classes of node_fit and {NETWORKS}, and packages that you "
            "name, are. If you trust its package, load with extensions=[its name]."
        )


def import_name(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
