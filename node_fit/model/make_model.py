"""From data and choices to a model with its initial parameters."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import cast

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.scaling import Scaler, Scaling
from ..runtime.precision import numbers_as_arrays
from ..solver.solver import Solver
from ..solver.vector_field import VectorField
from .fields.mlp import MLP
from .neural_ode import NeuralODE
from .observations.measured import MeasuredStates
from .observations.observation import AbstractObservation
from .starts.first import First
from .starts.start import AbstractStart
from .system import System

MakeField = Callable[..., VectorField]
MakeStart = Callable[..., AbstractStart]
MakeObservation = Callable[..., AbstractObservation]


def make_model(
    train: Dataset,
    *,
    field: MakeField | VectorField = MLP,
    hidden: int | Sequence[str] = 0,
    start: MakeStart = First,
    observation: MakeObservation = MeasuredStates,
    solver: Solver | None = None,
    scaling: Scaling | None = None,
    key: PRNGKeyArray,
) -> NeuralODE:
    """A model that has not been trained.

    **Arguments:** `train`: what scales and sizes are taken from; `solver`: of predictions; `key`: for the initial
    parameters; the others as of `fit`.

    **Raises:** `ValueError` if an argument does not fit the data.
    """
    start_key, observation_key = jax.random.split(jax.random.fold_in(key, 1))
    names = () if isinstance(hidden, int) else hidden
    scaling = scaling or Scaling()
    limits, train = scaling.limits((*train.states, *names), train.inputs), scaling.marked(train)
    scaler = Scaler.from_dataset(train, bounds=limits, identity=not scaling.affine)
    system = System.from_names(
        scaler,
        train.states,
        hidden,
        limits,
        inputs=train.inputs,
        time=train.time,
        readout=made_of(observation) is not MeasuredStates,
        angles=scaling.turns,
    )
    return NeuralODE(
        # If there was no memory for it, that is an error here; later on it would end the process.
        field=jax.block_until_ready(make_field(field, system, key)),
        start=start(system, Batch.from_dataset(train, scaler), key=start_key),
        observation=observation(system, key=observation_key),
        scaler=scaler,
        solver=numbers_as_arrays((solver or Solver()).for_data()),
        system=system,
        states=train.states,
        units=tuple(sorted(train.units.items())),
    )


def make_field(field: MakeField | VectorField, system: System, key: PRNGKeyArray) -> VectorField:
    """The field itself, or what a maker of fields makes; it is asked for by the names of its parameters."""
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    maker = cast(MakeField, field)
    parameters = inspect.signature(made_of(maker)).parameters
    if "system" in parameters:
        return maker(system, key=key)
    angles = {"angles": system.scaler} if any(system.scaler.turns) and "angles" in parameters else {}
    return maker(len(system.states), len(system.inputs), **angles, key=key)


def check_field(field: object) -> None:
    """Refuses what is neither a field nor makes one.

    **Raises:** `ValueError` that says what to pass.
    """
    if isinstance(field, eqx.Module):
        return
    if not callable(field):
        raise ValueError(f"field must be a vector field or make one, got {field!r:.60}; pass field=node_fit.MLP.")
    parameters = inspect.signature(made_of(field)).parameters
    if "key" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ValueError(
            f"field must be an equinox.Module that is called with (t, y, u), or a function that makes one when it is "
            f"called with (states, inputs, key=...), but {field!r:.60} takes no key; write it as an equinox.Module "
            "whose arrays are what is trained."
        )


def made_of(maker: Callable) -> Callable:
    """The class or function behind partials."""
    return made_of(maker.func) if isinstance(maker, functools.partial) else maker
