"""A fitted model as one self-describing file; loading it runs no code from the file.

The file is an archive: arrays, and a JSON header with the class of each part, names, units, solver and versions.
Classes of this package have short stored names (`runtime.serialization`), so moving a class keeps old files readable. A
file can only instantiate these, classes of `equinox.nn`, and classes of packages that the caller names. An untrusted
file is safe to load: its description is checked before any computation.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable
from jaxtyping import Array, DTypeLike, PyTree

from .. import model as model_folder
from ..data.batch import Batch
from ..data.domains import check_bounds
from ..data.scaling import Scaler
from ..model.ensemble import BAND_LEVELS, Ensemble
from ..model.initial_state.rule import AbstractStart
from ..model.neural_ode import NeuralODE
from ..model.system import System
from ..runtime.placement import AnyArray, carry, dtype_of, precision_of, scope
from ..runtime.serialization import CLASSES, Json, __version__, is_json, stored_name
from ..runtime.validation import check_argument, check_path, is_list_or_tuple
from ..solver.methods import ByState
from ..solver.solver import Solver
from .files import MODEL_STEPS, BadFile, OtherSchema, migrate, pack, unpack

# Version of the file format. Any change to it needs a step in `storage.files` that upgrades files of the previous
# version.
MODEL_SCHEMA = 9
NETWORKS = "equinox.nn"
# Functions that a model can call, by their names in files; the caller's packages can add more.
STORED_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{f"jax.numpy.{name}": getattr(jnp, name) for name in ("tanh", "sin", "cos", "exp")},
    **{f"jax.nn.{name}": getattr(jax.nn, name) for name in ("softplus", "silu", "gelu", "relu", "elu", "sigmoid")},
    **{
        f"equinox.nn.MLP.{name}": inspect.signature(eqx.nn.MLP).parameters[name].default
        for name in ("activation", "final_activation")
    },
}


def save(model: NeuralODE | Ensemble, path: str | Path) -> None:
    """Writes a fitted, loaded or modified model to a file that `load` reads.

    ```python
    node_fit.save(model, "model.safetensors")
    ```

    An older file is replaced only once the new one is complete.

    **Arguments:** `model`: a `NeuralODE` or an `Ensemble`. `path`: the file.

    **Raises:** `ValueError` that names an unsupported part, such as a lambda.
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
    - `extensions`: further packages whose classes and functions the model can use.

    **Raises:** `FileNotFoundError`, or `ModelFileError` that explains the defect.
    """
    check_argument("path", path, str | Path, "the name of a file that a model was saved to")
    path = Path(path)
    check_path(path)
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
        keys = [attribute.name for attribute in dataclasses.fields(part)]  # without class variables
        members = {key: describe_part(getattr(part, key), f"{name}.{key}", tensors) for key in keys}
        return {"class": name_stored(type(part)), "fields": members}
    if is_list_or_tuple(part):
        items = [describe_part(item, f"{name}.{index}", tensors) for index, item in enumerate(part)]
        return {type(part).__name__ if type(part) is list else "tuple": items}
    if part is None or isinstance(part, bool | int | float | str):
        return part
    names = [key for key, function in STORED_FUNCTIONS.items() if function is part]
    if names:
        return {"function": names[0]}
    is_named = inspect.isfunction(part) and getattr(sys.modules[part.__module__], part.__qualname__, None) is part
    if is_named and part.__module__ != "__main__":
        return {"function": f"{part.__module__}:{part.__qualname__}"}
    raise ValueError(
        f"a model file can't hold {name}, which is {part!r}; make it an equinox.Module, a number, a string or an array."
    )


def rebuild(node: object, tensors: dict[str, np.ndarray], packages: Sequence[str]) -> Any:
    """Rebuilds a part from its description by `describe_part`."""
    if not is_json(node):
        return node
    ((kind, value), *more) = node.items()
    if kind == "array":
        if value not in tensors:
            raise ModelFileError(f"it lacks the array {value!r}, or asks for it twice.")
        # Popped, so that a small file can't request many copies of one array.
        return jnp.asarray(tensors.pop(value))
    if kind in ("tuple", "list"):
        items = [rebuild(item, tensors, packages) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "function":
        return STORED_FUNCTIONS[value] if value in STORED_FUNCTIONS else allowed_function(value, packages)
    if kind == "class":
        return assemble_part(allowed_class(value, packages), dict(more)["fields"], tensors, packages)
    raise ModelFileError(f"{kind!r} is not a kind of part.")


def assemble_part(
    cls: type[eqx.Module], members: dict[str, object], tensors: dict[str, np.ndarray], packages: Sequence[str]
) -> object:
    """Makes an instance with these fields, bypassing its constructor, which would draw new parameters."""
    expected = {attribute.name for attribute in dataclasses.fields(cls)}
    if set(members) != expected:
        raise ModelFileError(f"{cls.__name__} needs the fields {sorted(expected)}, the file has {sorted(members)}.")
    instance = object.__new__(cls)
    for key, member in members.items():
        object.__setattr__(instance, key, rebuild(member, tensors, packages))
    if stored_name(cls):
        check_stored_fields(instance)
    if stored_name(cls) or cls.__module__.startswith(f"{NETWORKS}."):  # a caller's class can hold integers
        check_floats(instance)
    return instance


def check_floats(part: eqx.Module) -> None:
    """Rejects integer or boolean weights, which would change the results of a solve, and non-finite ones."""
    for attribute in dataclasses.fields(part):
        for leaf in jax.tree.leaves(getattr(part, attribute.name), is_leaf=lambda node: isinstance(node, eqx.Module)):
            if isinstance(leaf, Array) and not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ModelFileError(
                    f"its {type(part).__name__} has {attribute.name} of {leaf.dtype}; weights are floats."
                )
            # Band factors are infinite if validation data are too few to estimate them.
            if isinstance(leaf, Array) and not isinstance(part, Ensemble) and not np.isfinite(leaf).all():
                raise ModelFileError(
                    f"its {type(part).__name__} has {attribute.name} with values that are not finite, of which all "
                    "predictions would be empty; fit again, or restore the file."
                )


def name_stored(cls: type) -> str:
    """Returns the stored name of a class: short for one of ours, else its module and its name."""
    module = NETWORKS if cls.__module__.startswith(f"{NETWORKS}.") else cls.__module__
    return stored_name(cls) or f"{module}:{cls.__qualname__}"


def check_importable(cls: type, name: str) -> None:
    """Rejects a class that no other process could import.

    **Raises:** `ValueError` that names a suitable place for it.
    """
    if stored_name(cls) is None and (cls.__module__ == "__main__" or "." in cls.__qualname__):
        place = "in a function or class" if "." in cls.__qualname__ else "in the script or notebook that runs"
        raise ValueError(
            f"{name} is a {cls.__qualname__}, which is defined {place}, where no other process can load it; move the "
            "class to the top of a module, such as my_fields.py, import it from there, and load with "
            "extensions=['my_fields']."
        )


@functools.cache
def import_classes() -> None:
    """Imports all modules of `model/`, which registers the stored names of their classes."""
    for module in pkgutil.walk_packages(model_folder.__path__, f"{model_folder.__name__}."):
        importlib.import_module(module.name)


def allowed_class(name: str, packages: Sequence[str]) -> type[eqx.Module]:
    import_classes()
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


def allowed_function(name: str, packages: Sequence[str]) -> Callable[..., object]:
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


# Maximum tolerance of a solver; compiled programs don't accept larger integers.
LARGEST_NUMBER = 1e9
# Maximum number of classes in an ensemble and in one model or member; each layer takes time to trace.
MOST_PARTS, MOST_IN_ONE = 40_000, 1000


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or requests something that is not allowed."""


def check_parts(node: Json) -> None:
    """Rejects a description that would take minutes to rebuild and trace."""
    members = node["fields"]["members"]["tuple"] if node.get("class") == "Ensemble" else [node]
    counts = [count_parts(member) for member in members]
    if sum(counts) > MOST_PARTS or max(counts, default=0) > MOST_IN_ONE:
        raise ModelFileError(
            f"it has {sum(counts)} parts; a model has at most {MOST_IN_ONE} and an ensemble {MOST_PARTS}."
        )


def count_parts(node: object) -> int:
    """Counts the classes in a description."""
    count, waiting = 0, [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            count += "class" in part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return count


def check_stored_fields(part: object) -> None:
    """Rejects an instance of a node_fit class with a field of another type than its annotation."""
    cls = type(part)
    for key, hint in stored_hints(cls).items():
        value = getattr(part, key)
        if not matches_hint(value, hint):
            shown = textwrap.shorten(repr(value), 60)
            raise ModelFileError(f"its {cls.__name__} has {key} = {shown}, which is of another type.")


@functools.cache
def stored_hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {attribute.name: hints[attribute.name] for attribute in dataclasses.fields(cls)}


def matches_hint(value: object, hint: Any) -> bool:
    """Whether a value matches a type, including all items of a tuple."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(matches_hint(value, option) for option in inner)
    if get_origin(hint) is tuple:
        many = inner[-1] is Ellipsis
        return (
            is_list_or_tuple(value)
            and isinstance(value, tuple)
            and (many or len(value) == len(inner))
            and all(matches_hint(item, inner[0] if many else inner[index]) for index, item in enumerate(value))
        )
    return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))


def check_model(model: object) -> None:
    """Rejects a model or an ensemble whose parts can't be called with its states, channels and inputs."""
    if isinstance(model, Ensemble):
        return check_ensemble(model)
    if not isinstance(model, NeuralODE):
        raise ModelFileError("it does not hold a neural ODE.")
    check_class(model.system, System, "its system is not a System.")
    check_solver(model.solver)
    check_scaler(model.scaler, len(model.states), len(model.inputs))
    check_scaler(model.system.scaler, len(model.latent), len(model.inputs))
    check_class(model.start, AbstractStart, "its start is not a node_fit start.")
    dtype = dtype_of(precision_of(model))
    time, state, inputs = (
        jax.ShapeDtypeStruct(shape, dtype) for shape in ((), (len(model.latent),), (len(model.inputs),))
    )
    check_part("field", len(model.latent), f"{len(model.latent)} states", model.field, time, state, inputs)
    check_part("observation", len(model.states), f"{len(model.states)} channels", model.channels, time, state, inputs)
    check_part("start", len(model.latent), f"{len(model.latent)} states", model.start, one_trajectory(model, dtype))


def check_class(part: object, kind: type, text: str) -> None:
    if not isinstance(part, kind):
        raise ModelFileError(text)


def check_ensemble(ensemble: Ensemble) -> None:
    """Rejects members that differ in more than their arrays, and bands for other channels."""
    members = ensemble.members
    check_class(members or None, tuple, "its members are not models.")
    for member in members:
        check_model(member)
    kinds = [eqx.filter_eval_shape(lambda member: member, member) for member in members]
    if any(not eqx.tree_equal(kind, kinds[0]) for kind in kinds):
        raise ModelFileError("its members differ in more than their arrays.")
    shapes = (np.shape(ensemble.noise), np.shape(ensemble.factors))
    if shapes != ((len(members[0].states),), (len(BAND_LEVELS),)):
        raise ModelFileError(f"its bands have the shapes {shapes}.")


def check_part(name: str, size: int, what: str, part: Callable[..., AnyArray], *arguments: PyTree) -> None:
    """Rejects a part that does not return an array whose last axis has this size."""
    try:
        out = eqx.filter_eval_shape(part, *arguments)
    except Exception as error:  # an absurd architecture can raise anything
        raise ModelFileError(f"its {name} can't be evaluated ({type(error).__name__}).") from None
    if out.shape[-1:] != (size,):
        raise ModelFileError(f"its {name} gives shape {out.shape} for {what}.")


def one_trajectory(model: NeuralODE, dtype: DTypeLike) -> Batch:
    """Returns the shapes of a batch with one trajectory of two rows."""
    channels, inputs = len(model.states), len(model.inputs)

    def array(*shape: int, kind: DTypeLike = dtype) -> np.ndarray:
        return np.broadcast_to(np.zeros((), kind), shape)  # Takes no memory, whatever its shape.

    batch = Batch(
        ts=array(1, 2),
        ys=array(1, 2, channels),
        us=array(1, 2, inputs),
        mask=array(1, 2, channels, kind=bool),
        known=array(1, 2, channels, kind=bool),
        first=array(1, channels),
        seen=array(1, channels, kind=bool),
        past=array(1, model.start.past, 2 * channels + inputs + 1),
        index=array(1, kind=jnp.int32),
        origin=array(1),
        joint=False,
        driven=False,
    )
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def check_solver(solver: object) -> None:
    """Rejects a solver that its own constructor would reject."""
    if not isinstance(solver, Solver):
        raise ModelFileError("its solver is not a Solver.")
    settings: Json = {key: getattr(solver, key) for key in ("method", "stepping", "max_steps", "adjoint", "inputs")}
    rtol, atol = as_setting(solver.rtol), as_setting(solver.atol)
    Solver(**settings, rtol=rtol, atol=atol)
    if any(not 0 < value <= LARGEST_NUMBER for tolerance in (rtol, atol) for value in np.atleast_1d(tolerance)):
        raise ModelFileError(f"its solver has tolerances that are not between 0 and {LARGEST_NUMBER:g}.")


def as_setting(tolerance: ByState | None) -> float | tuple[float, ...]:
    """Converts a tolerance, possibly stored as arrays, to an argument of the solver's constructor."""
    if tolerance is None:
        raise ModelFileError("its solver has no tolerance.")
    return tuple(map(float, tolerance)) if isinstance(tolerance, tuple) else float(tolerance)


def check_scaler(scaler: object, states: int, inputs: int) -> None:
    if not isinstance(scaler, Scaler):
        raise ModelFileError("its scaler is not a Scaler.")
    shapes = [x.shape for x in (scaler.state_shift, scaler.state_scale, scaler.input_shift, scaler.input_scale)]
    if shapes != [(states,)] * 2 + [(inputs,)] * 2 or len(scaler.bounds) != states:
        raise ModelFileError(f"its scaler does not fit {states} states and {inputs} inputs.")
    turns = [turn for turn in scaler.turns if turn is not None]
    optional = ((scaler.turns, states), (scaler.counted, states), (scaler.input_bounds, inputs))
    sizes = [len(values) in (0, count) for values, count in optional]
    if not (all(sizes) and all(isinstance(turn, float) and 0 < turn < np.inf for turn in turns)):
        raise ModelFileError("its scaler has angles or bounds of inputs that make no sense.")
    for index, bounds in enumerate(scaler.bounds):
        check_bounds(bounds, f"state {index}")
        if any(isinstance(bound, int) for bound in bounds):  # a scaler's are floats
            raise ModelFileError(f"its scaler has the bounds {bounds}, which must be floats.")
