"""What a model file must describe, checked before anything is computed with it; it may come from a stranger."""

import dataclasses
import functools
import textwrap
import types
import typing
from typing import Any, Union, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable

from ..data.batch import Batch
from ..data.bounds import check_bounds
from ..data.scaling import Scaler
from ..model.ensemble import BAND_LEVELS, Ensemble
from ..model.initial_state.rule import AbstractStart
from ..model.neural_ode import NeuralODE
from ..model.system import System
from ..runtime.placement import dtype_of, precision_of
from ..solver.solver import Solver

# A larger integer is no argument of a compiled program.
LARGEST_NUMBER = 1e9
# Classes in one file, and in one item of a list in it, such as a member; each layer takes a while to trace.
MOST_PARTS, MOST_IN_ONE = 40_000, 1000


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or asks for something that is not allowed."""


def check_parts(node: Any) -> None:
    """Rejects a description that would take minutes to rebuild and trace."""
    members = node["fields"]["members"]["tuple"] if node.get("class") == "Ensemble" else [node]
    counts = [count_parts(member) for member in members]
    if sum(counts) > MOST_PARTS or max(counts, default=0) > MOST_IN_ONE:
        raise ModelFileError(
            f"it has {sum(counts)} parts; a model has at most {MOST_IN_ONE} and an ensemble {MOST_PARTS}."
        )


def count_parts(node: Any) -> int:
    """The number of classes in a description."""
    found, waiting = 0, [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found += "class" in each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def check_stored_fields(part: Any) -> None:
    """Rejects an instance of a class of node_fit with a field of another type than the class says."""
    cls = type(part)
    for key, hint in stored_hints(cls).items():
        value = getattr(part, key)
        if not matches_hint(value, hint):
            shown = textwrap.shorten(repr(value), 60)
            raise ModelFileError(f"its {cls.__name__} has {key} = {shown}, which is of another type.")


@functools.cache
def stored_hints(cls: type) -> dict[str, Any]:
    known = typing.get_type_hints(cls)
    return {each.name: known[each.name] for each in dataclasses.fields(cls)}


def matches_hint(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, every item of a tuple included."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(matches_hint(value, each) for each in inner)
    if get_origin(hint) is tuple:
        many = inner[-1] is Ellipsis
        return (
            isinstance(value, tuple)
            and (many or len(value) == len(inner))
            and all(matches_hint(item, inner[0] if many else inner[index]) for index, item in enumerate(value))
        )
    return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))


def check_model(model: Any) -> None:
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
        check_model(member)
    kinds = [eqx.filter_eval_shape(lambda member: member, member) for member in members]
    if any(not eqx.tree_equal(kind, kinds[0]) for kind in kinds):
        raise ModelFileError("its members differ in more than their arrays.")
    shapes = (np.shape(ensemble.noise), np.shape(ensemble.factors))
    if shapes != ((len(members[0].states),), (len(BAND_LEVELS),)):
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
    if any(not 0 < value <= LARGEST_NUMBER for each in tolerances.values() for value in np.atleast_1d(each)):
        raise ModelFileError(f"its solver has tolerances that are not between 0 and {LARGEST_NUMBER:g}.")


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
    for index, bounds in enumerate(scaler.bounds):
        check_bounds(bounds, f"state {index}")
        if any(isinstance(bound, int) for bound in bounds):  # a scaler's are floats
            raise ModelFileError(f"its scaler has the bounds {bounds}, which must be floats.")
