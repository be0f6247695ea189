"""From data and choices to a model with its initial parameters."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from .batch import Batch
from .dataset import Dataset
from .fields import MLP, VectorField
from .model import NeuralODE
from .observations import AbstractObservation, MeasuredStates
from .precision import numbers_as_arrays
from .scaling import Scaler, gather_bounds
from .solver import Solver
from .starts import AbstractStart, First
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
    scale: bool = True,
    log: Sequence[str] = (),
    bounds: Mapping[str, Sequence[float | None]] | None = None,
    key: PRNGKeyArray,
) -> NeuralODE:
    """A model that has not been trained.

    **Arguments:** `train`: what scales and sizes are taken from; `solver`: of predictions; `key`: for the initial
    parameters; the others as of `fit`.

    **Raises:** `ValueError` if an argument does not fit the data.
    """
    start_key, observation_key = jax.random.split(jax.random.fold_in(key, 1))
    names = () if isinstance(hidden, int) else hidden
    limits = gather_bounds(log, bounds or {}, (*train.states, *names))
    scaler = Scaler.from_dataset(train, bounds=limits, identity=not scale)
    system = System.from_names(
        scaler,
        train.states,
        hidden,
        limits,
        inputs=train.inputs,
        time=train.time,
        readout=made_of(observation) is not MeasuredStates,
    )
    return NeuralODE(
        # If there was no memory for it, that is an error here; later on it would end the process.
        field=jax.block_until_ready(make_field(field, system, key)),
        start=start(system, Batch.from_dataset(train, scaler), key=start_key),
        observation=observation(system, key=observation_key),
        scaler=scaler,
        solver=numbers_as_arrays(solver or Solver()),
        states=train.states,
        latent=system.states,
        inputs=train.inputs,
        time=train.time,
        units=tuple(sorted(train.units.items())),
    )


def make_field(field: MakeField | VectorField, system: System, key: PRNGKeyArray) -> VectorField:
    """The field itself, or what a maker of fields makes; it is asked for by the names of its parameters."""
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    maker = cast(MakeField, field)
    if "system" in inspect.signature(made_of(maker)).parameters:
        return maker(system, key=key)
    return maker(len(system.states), len(system.inputs), key=key)


def made_of(maker: Callable) -> Callable:
    """The class or function behind partials."""
    return made_of(maker.func) if isinstance(maker, functools.partial) else maker
