"""Makes a model with its initial parameters from data and options."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import cast

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from ..data.batch import Batch
from ..data.dataset import Dataset, check_data
from ..data.scaling import Scaler, Scaling
from ..runtime.arguments import check_argument
from ..runtime.precision import ambient, carry, dtype_of, numbers_as_arrays, precision_of
from ..solver.solver import Solver
from ..solver.tableau import EXPLICIT
from ..solver.triggers import NEEDS_HELD_STEPS, has_triggers
from ..solver.vector_field import VectorField
from .fields.constants import Constants
from .fields.mlp import MLP
from .neural_ode import NeuralODE
from .observations.measured import MeasuredStates
from .observations.observation import AbstractObservation
from .parameters import nodes
from .starts.first import First
from .starts.start import AbstractStart
from .system import System

MakeField = Callable[..., VectorField]
MakeStart = Callable[..., AbstractStart]
MakeObservation = Callable[..., AbstractObservation]
# What to pass for these.
START = "node_fit.First, Fitted or Encoder, or a functools.partial of one"
OBSERVATION = "node_fit.MeasuredStates, LinearReadout or NetworkReadout, or a functools.partial of one"


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
    """Makes a model that has not been trained yet.

    ```python
    model = node_fit.make_model(train, field=node_fit.MLP, key=jax.random.key(0))
    ```

    **Arguments:**

    - `train`: the data that give the scales and the numbers of states and inputs.
    - `solver`: the solver of predictions.
    - `key`: a JAX random key for the initial parameters.
    - `field`, `hidden`, `start`, `observation`, `scaling`: as in `fit`.

    **Returns:** the model, with all arrays in the process's precision.

    **Raises:** `ValueError` if an argument has the wrong type or does not fit the data.
    """
    check_data(train, "train")
    check_field(field)
    for name, value, hint, text in (
        ("hidden", hidden, int | Sequence[str], "a number of states or a list of their names"),
        ("start", start, MakeStart, START),
        ("observation", observation, MakeObservation, OBSERVATION),
        ("solver", solver, Solver | None, None),
        ("scaling", scaling, Scaling | None, None),
        ("key", key, PRNGKeyArray, "a JAX random key such as jax.random.key(0)"),
    ):
        check_argument(name, value, hint, text)
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
    # If memory runs out, this raises here; later, it would end the process.
    made = jax.block_until_ready(make_field(field, system, key))
    precision_of(made)
    solver = solver or Solver()
    if has_triggers(made) and solver.method not in EXPLICIT:
        raise ValueError(NEEDS_HELD_STEPS)
    model = NeuralODE(
        field=made,
        start=start(system, Batch.from_dataset(train, scaler), key=start_key),
        observation=observation(system, key=observation_key),
        scaler=scaler,
        solver=numbers_as_arrays(solver.for_data()),
        system=system,
        states=train.states,
        units=tuple(sorted(train.units.items())),
    )
    check_constants(model)
    return carry(model, dtype_of(ambient()))


def check_constants(model: NeuralODE) -> None:
    """Refuses a name for a constant of the field and for another one of the start."""
    parts = (model.field, model.start)
    of_field, of_start = ({name for _, each in nodes(part, Constants) for name in each.names} for part in parts)
    for name in sorted(of_field & of_start):
        raise ValueError(f"{name!r} is a constant of the field and of the start, which are not the same; rename one.")


def make_field(field: MakeField | VectorField, system: System, key: PRNGKeyArray) -> VectorField:
    """The field itself, or the result of a function that makes one; its parameter names decide how it is called."""
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    maker = cast(MakeField, field)
    parameters = inspect.signature(made_of(maker)).parameters
    if "system" in parameters:
        return maker(system, key=key)
    angles = {"angles": system.scaler} if any(system.scaler.turns) and "angles" in parameters else {}
    return maker(len(system.states), len(system.inputs), **angles, key=key)


def check_field(field: object) -> None:
    """Refuses anything that is neither a field nor makes one.

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
