"""A fitted model as one self-describing file; loading it runs no code from the file.

The file is an archive: arrays, and a JSON header with the class of each part, names, units, solver and versions.
Classes of this package have short stored names (`runtime.stored_names`), so a file survives any move of a class. A file
can only instantiate these, classes of `equinox.nn`, and classes of packages that the caller names.
"""

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..data.batch import Batch
from ..data.scaling import Scaler
from ..model.ensemble import LEVELS, Ensemble
from ..model.neural_ode import NeuralODE
from ..model.starts.start import AbstractStart
from ..model.system import System
from ..runtime.precision import carry, dtype_of, precision_of, scope
from ..runtime.stored_names import CLASSES, stored_name
from ..runtime.version import __version__
from ..solver.solver import Solver
from .archive import BadFile, pack, unpack
from .migrations import MODEL_STEPS, OtherSchema, migrated

# Version of the file format. Any change to it needs a step in `migrations` that upgrades files of the previous version.
SCHEMA = 5
NETWORKS = "equinox.nn"
# Functions that a model may call, by their names in files; functions of the caller's packages may be added.
FUNCTIONS: dict[str, Callable] = {
    **{f"jax.numpy.{name}": getattr(jnp, name) for name in ("tanh", "sin", "cos", "exp")},
    **{f"jax.nn.{name}": getattr(jax.nn, name) for name in ("softplus", "silu", "gelu", "relu", "elu", "sigmoid")},
    **{
        f"equinox.nn.MLP.{name}": inspect.signature(eqx.nn.MLP).parameters[name].default
        for name in ("activation", "final_activation")
    },
}


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or asks for something that is not allowed."""


def save(model: NeuralODE | Ensemble, path: str | Path) -> None:
    """Writes a model; replaces an older file at `path`, or at its target if it is a symbolic link, once it is complete.

    **Raises:** `ValueError` that names a part that a file can't hold, such as a lambda.
    """
    tensors: dict[str, np.ndarray] = {}
    structure = describe(model, "model", tensors)
    content = {
        "schema": SCHEMA,
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
    pack(Path(os.path.realpath(path)), content, tensors)


def load(path: str | Path, *, extensions: Sequence[str] = ()) -> NeuralODE | Ensemble:
    """Reads a model.

    **Arguments:**

    - `path`: a file written by `save`.
    - `extensions`: further packages whose classes and functions the model may use.

    **Raises:** `FileNotFoundError`, or `ModelFileError` that says what is wrong with the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}.")
    try:
        content, tensors = migrated(*unpack(path), MODEL_STEPS, SCHEMA)
        with scope(content["precision"]):
            model = rebuild(content["model"], tensors, extensions)
            check(model)
            return carry(model, dtype_of(content["precision"]))
    except BadFile as error:
        raise ModelFileError(f"{path} is not a model file, or is damaged: {error}.") from None
    except (ModelFileError, OtherSchema) as error:
        raise ModelFileError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, ImportError) as error:
        raise ModelFileError(f"{path} does not describe a model: {error!r}.") from None


def describe(part: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """Describes a part of a model in JSON; puts its arrays into `tensors` by name."""
    if isinstance(part, Array | np.ndarray):
        tensors[name] = np.asarray(jax.device_get(part))
        return {"array": name}
    if isinstance(part, eqx.Module):
        keys = [each.name for each in dataclasses.fields(part)]  # without class variables
        members = {key: describe(getattr(part, key), f"{name}.{key}", tensors) for key in keys}
        return {"class": stored(type(part)), "fields": members}
    if isinstance(part, tuple | list):
        items = [describe(item, f"{name}.{index}", tensors) for index, item in enumerate(part)]
        return {type(part).__name__ if type(part) is list else "tuple": items}
    if part is None or isinstance(part, bool | int | float | str):
        return part
    known = [key for key, function in FUNCTIONS.items() if function is part]
    if known:
        return {"function": known[0]}
    if inspect.isfunction(part) and getattr(sys.modules[part.__module__], part.__qualname__, None) is part:
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
        return FUNCTIONS[value] if value in FUNCTIONS else allowed_function(value, packages)
    if kind == "class":
        return assemble(allowed_class(value, packages), dict(more)["fields"], tensors, packages)
    raise ModelFileError(f"{kind!r} is not a kind of part.")


def assemble(cls: type, members: dict[str, Any], tensors: dict[str, np.ndarray], packages: Sequence[str]) -> Any:
    """Makes an instance with these fields without its constructor, which would draw new parameters."""
    expected = {each.name for each in dataclasses.fields(cls)}
    if set(members) != expected:
        raise ModelFileError(f"{cls.__name__} needs the fields {sorted(expected)}, the file has {sorted(members)}.")
    instance = object.__new__(cls)
    for key, member in members.items():
        object.__setattr__(instance, key, rebuild(member, tensors, packages))
    return instance


def stored(cls: type) -> str:
    """The stored name of a class: short for one of ours, else its module and its name."""
    module = NETWORKS if cls.__module__.startswith(f"{NETWORKS}.") else cls.__module__
    return stored_name(cls) or f"{module}:{cls.__qualname__}"


def allowed_class(name: str, packages: Sequence[str]) -> type:
    if name in CLASSES:
        return CLASSES[name]
    check_package(name, (NETWORKS, *packages))
    try:
        cls = resolve(name)
    except (ImportError, AttributeError):
        raise ModelFileError(f"the class {name!r} does not exist here.") from None
    if not (isinstance(cls, type) and issubclass(cls, eqx.Module)) or stored(cls) != name:
        raise ModelFileError(f"{name!r} is not a model class.")
    return cls


def allowed_function(name: str, packages: Sequence[str]) -> Callable:
    check_package(name, packages)
    function = resolve(name)
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


def resolve(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def check(model: Any) -> None:
    """Rejects a model or an ensemble whose parts can't be called with its states, channels and inputs."""
    if isinstance(model, Ensemble):
        return check_ensemble(model)
    if not isinstance(model, NeuralODE):
        raise ModelFileError("it does not hold a neural ODE.")
    if not isinstance(model.system, System):
        raise ModelFileError("its system is not a System.")
    check_solver(model.solver)
    check_scaler(model.scaler, len(model.states), len(model.inputs))
    check_scaler(model.system.scaler, len(model.latent), len(model.inputs))
    if not isinstance(model.start, AbstractStart):
        raise ModelFileError("its start is not a node_fit start.")
    dtype = dtype_of(precision_of(model))
    time, state, inputs = (
        jax.ShapeDtypeStruct(shape, dtype) for shape in ((), (len(model.latent),), (len(model.inputs),))
    )
    check_part("field", len(model.latent), f"{len(model.latent)} states", model.field, time, state, inputs)
    check_part("observation", len(model.states), f"{len(model.states)} channels", model.observation, state)
    check_part("start", len(model.latent), f"{len(model.latent)} states", model.start, one_trajectory(model, dtype))


def check_ensemble(ensemble: Ensemble) -> None:
    """Rejects members that differ in more than their arrays, and bands of other channels."""
    members = ensemble.members
    if not isinstance(members, tuple) or not members:
        raise ModelFileError("its members are not models.")
    for member in members:
        check(member)
    kinds = [eqx.filter_eval_shape(lambda member: member, member) for member in members]
    if any(not eqx.tree_equal(kind, kinds[0]) for kind in kinds):
        raise ModelFileError("its members differ in more than their arrays.")
    shapes = (np.shape(ensemble.noise), np.shape(ensemble.factors))
    if shapes != ((len(members[0].states),), (len(LEVELS),)):
        raise ModelFileError(f"its bands have the shapes {shapes}.")


def check_part(name: str, size: int, what: str, part: Any, *arguments: Any) -> None:
    """Rejects a part that does not return an array whose last axis has this size."""
    try:
        out = eqx.filter_eval_shape(part, *arguments)
    except Exception as error:  # an absurd architecture may raise anything
        raise ModelFileError(f"its {name} can't be evaluated ({type(error).__name__}).") from None
    if out.shape[-1:] != (size,):
        raise ModelFileError(f"its {name} gives shape {out.shape} for {what}.")


def one_trajectory(model: NeuralODE, dtype: Any) -> Batch:
    """The shapes of a batch with one trajectory of two rows."""
    channels, inputs = len(model.states), len(model.inputs)

    def array(*shape: int, kind: Any = dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, kind)

    return Batch(
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


def check_solver(solver: Any) -> None:
    """Rejects a solver that its own constructor would reject."""
    if not isinstance(solver, Solver):
        raise ModelFileError("its solver is not a Solver.")
    settings: dict[str, Any] = {
        key: getattr(solver, key) for key in ("method", "stepping", "max_steps", "adjoint", "inputs")
    }
    tolerances: dict[str, Any] = {
        key: tuple(map(float, value)) if isinstance(value, tuple) else float(value)
        for key, value in (("rtol", solver.rtol), ("atol", solver.atol))
    }
    Solver(**settings, **tolerances)


def check_scaler(scaler: Any, states: int, inputs: int) -> None:
    if not isinstance(scaler, Scaler):
        raise ModelFileError("its scaler is not a Scaler.")
    shapes = [x.shape for x in (scaler.state_shift, scaler.state_scale, scaler.input_shift, scaler.input_scale)]
    if shapes != [(states,)] * 2 + [(inputs,)] * 2 or len(scaler.bounds) != states:
        raise ModelFileError(f"its scaler does not fit {states} states and {inputs} inputs.")
    turns = [turn for turn in scaler.turns if turn is not None]
    sizes = (len(scaler.turns) in (0, states), len(scaler.input_bounds) in (0, inputs))
    if not (all(sizes) and all(isinstance(turn, float) and 0 < turn < np.inf for turn in turns)):
        raise ModelFileError("its scaler has angles or bounds of inputs that make no sense.")
