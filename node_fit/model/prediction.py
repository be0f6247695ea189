"""Predictions: the compiled programs of a single model, their compilation ahead of the first call, and a data frame."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..data.arrays import as_frame, columns_of
from ..data.batch import Batch, in_slices
from ..runtime.precision import carry, dtype_of, precision_of, scope
from ..solver.initial_value_problem import InitialValueProblem
from ..solver.intervals import Intervals
from ..solver.row_steps import Front
from .forecast import Wanted, channels_at, compiled_channels
from .observations.measured import MeasuredStates

# A `NeuralODE`, whose methods call this.
Model = Any


def predicted(model: Model, batch: Batch, wanted: Wanted) -> Float[np.ndarray, "trajectory saved output"]:
    """Outputs at the wanted times since the batch's origin, in scaled units."""
    with scope(precision_of(model)):
        return in_slices(at_times(model, channels_at), batch, wanted)


def compile_prediction(model: Model, batch: Batch, wanted: Wanted) -> None:
    """Compiles `predicted` for such a batch, and for any model of this structure."""
    with scope(precision_of(model)):
        in_slices(at_times(model, compiled_channels), batch, wanted)


def at_times(model: Model, solve: Callable) -> Callable[[Batch, Wanted], Any]:
    dtype = dtype_of(precision_of(model))

    def advance(batch: Batch, intervals: Intervals, front: Front) -> tuple[Any, Any]:
        return advance_channels(model, *carry((batch.origin, intervals, front), dtype))

    def begin(batch: Batch, first: Intervals) -> tuple[Any, Any]:
        return begin_channels(model, *carry((model.start.needed(batch), first), dtype))

    return lambda batch, wanted: solve(begin, advance, batch, wanted, model.solver.interpolation)


def outputs(model: Model, states: Float[Array, "*rows state"]) -> Float[Array, "*rows output"]:
    """The channels at some states, followed by the hidden states if the channels are states."""
    if isinstance(model.observation, MeasuredStates):
        return states
    each = model.observation
    for _ in states.shape[:-1]:
        each = jax.vmap(each)
    return each(states)


@eqx.filter_jit
def begin_channels(model: Model, batch: Batch, first: Intervals) -> tuple[Array, Front]:
    """Outputs at the starts of trajectories, and the front of the solve there."""
    problem = model.problem(batch, model.estimated_start(batch))
    front = model.solver.begin(problem, first)
    return outputs(model, front.y), front


@eqx.filter_jit
def advance_channels(
    model: Model, origin: Float[Array, " trajectory"], intervals: Intervals, front: Front
) -> tuple[Array, Front]:
    """Outputs at the end of each interval, and the front of the solve there."""
    problem = InitialValueProblem(model.field, intervals.begin, front.y, intervals.coefficients[0], origin)
    ys, front = model.solver.advance(problem, intervals, front)
    return outputs(model, ys), front


def predicted_frame(
    model: Any, data: Any = None, ts: Any = None, *, y0: Any = None, u: Any = None, level: float = 0.9
) -> Any:
    """A data frame of a model's or an ensemble's predictions; see `Fit.predict_frame`."""
    if data is None:
        data, ts = model.typical.starting_from(y0, ts, u), None
    found = model.bands(data, ts, level)
    columns = columns_of(data.states, found.ys)
    if found.lower is not None:
        edges = columns_of(data.states, found.lower, "_lower") | columns_of(data.states, found.upper, "_upper")
        columns = {
            name + end: (columns | edges)[name + end] for name in data.states for end in ("", "_lower", "_upper")
        }
    times = data.ts if ts is None else np.asarray(ts, np.float64)
    return as_frame(data, times, columns, data.valid if ts is None else np.ones(times.shape, bool))
