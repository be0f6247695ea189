"""Predictions of a single model: forecasts of any length, their compiled programs, and a data frame.

Records are solved in pieces of one compiled length. The compiled programs do not depend on the number of rows or the
duration of a record, except for a few piece lengths.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..data.batch import Batch, in_slices
from ..data.dataset import Dataset, GivenStates
from ..data.events import Jumps
from ..data.inputs import Interpolations, are_held
from ..data.trajectories import as_frame, columns_of
from ..runtime.compilation import jit_by_size
from ..runtime.placement import AnyArray, ArrayLike, carry, dtype_of, precision_of, scope_of
from ..solver.problem import InitialValueProblem, Intervals, VectorField, polynomials
from ..solver.row_by_row import Front
from ..solver.solver import Solver
from .initial_state.rule import AbstractStart
from .observation import MeasuredStates, Observation

if TYPE_CHECKING:
    import pandas

Wanted = Float[np.ndarray, "trajectory saved"]
# The state of a solve between two pieces is a `Front`, or fronts of members.
Begin = Callable[[Batch, Intervals], tuple[AnyArray, PyTree]]
Advance = Callable[[Batch, Intervals, PyTree], tuple[AnyArray, PyTree]]
# Computes outputs of a batch at the requested times.
Solve = Callable[[Batch, Wanted], np.ndarray]
# Times, states and inputs; `Observe` returns channels at the first moments, counted since the second.
Moments = tuple[Float[AnyArray, "trajectory saved"], Float[AnyArray, "..."], Float[AnyArray, "trajectory saved input"]]
Observe = Callable[[Moments, Moments], AnyArray]
# Numbers of intervals in a piece: the smallest for which `FEW_PIECES` pieces hold all intervals, else the largest.
ROOMS = (128, 1024)
FEW_PIECES = 8


def intervals_to(
    batch: Batch, wanted: Float[np.ndarray, "trajectory saved"], kind: Interpolations
) -> tuple[Intervals, Int[np.ndarray, "trajectory saved"]]:
    """Returns the intervals between all rows and requested times, and the index of the interval ending at each time.

    **Arguments:**

    - `batch`: trajectories, on the host.
    - `wanted`: requested times since the batch's origin. The index of a time before the first row is -2, and that of
      the first row's own time is -1.
    - `kind`: interpolation of inputs.
    """
    rows = np.asarray(batch.ts, np.float64)
    later = np.maximum(wanted, rows[:, :1])
    new = not all(np.isin(w, r).all() for w, r in zip(later, rows, strict=True))
    nodes = np.sort(np.concatenate([rows, later], axis=1), axis=1, kind="stable") if new else rows
    if nodes.shape[1] == 1:
        nodes = np.repeat(nodes, 2, axis=1)  # One interval of zero length.
    end = nodes[:, 1:]
    # Row at or before the beginning of each interval; inputs are constant beyond the last row.
    row = np.minimum(search_rows(rows, nodes[:, :-1], "right") - 1, max(rows.shape[1] - 2, 0))
    indices = (np.arange(len(rows))[:, None], row)
    if rows.shape[1] > 1:
        length = np.diff(rows, axis=1)[indices]
        coefficients = tuple(np.asarray(x)[indices] for x in polynomials(rows, np.asarray(batch.us), kind))
    else:
        length = np.zeros(end.shape)
        coefficients = (np.repeat(batch.us[:, :1], end.shape[1], axis=1),)
    jumps, after = jumps_at(batch, nodes[:, :-1]), inputs_after(batch, end, kind)
    steps = any(are_held(kind, batch.us.shape[2]))
    intervals = Intervals(nodes[:, :-1], end, rows[indices], length, coefficients, jumps, after, steps)
    index = search_rows(nodes, later, "left") - 1
    return intervals, np.where(wanted < rows[:, :1] - 1e-12, -2, index)


def search_rows(
    rows: Float[np.ndarray, "trajectory row"],
    wanted: Float[np.ndarray, "trajectory wanted"],
    side: Literal["left", "right"],
) -> Int[np.ndarray, "trajectory wanted"]:
    """Applies `np.searchsorted` to the rows and requested times of each trajectory."""
    return np.stack([r.searchsorted(w, side=side) for r, w in zip(rows, wanted, strict=True)])


def inputs_after(
    batch: Batch, times: Float[np.ndarray, "trajectory time"], kind: Interpolations
) -> Float[np.ndarray, "trajectory time input"] | None:
    """Returns the inputs at times from the first row on, just after steps of held inputs; None without inputs."""
    rows, us = np.asarray(batch.ts, np.float64), np.asarray(batch.us)
    if us.shape[2] == 0:
        return None
    last = rows.shape[1] - 1
    row = np.minimum(search_rows(rows, times, "right") - 1, last)
    indices = (np.arange(len(rows))[:, None], row)
    if last == 0:
        return us[indices]
    before = (indices[0], np.minimum(row, last - 1))
    gap = np.diff(rows, axis=1)[before]
    share = (np.clip((times - rows[before]) / np.where(gap > 0, gap, 1), 0, 1))[..., None]
    first, *coefficients = [np.asarray(part)[before] for part in polynomials(rows, us, kind)][::-1]
    for coefficient in coefficients:
        first = coefficient + first * share
    return np.where((row == last)[..., None], us[indices], first)


def jumps_at(batch: Batch, begin: Float[np.ndarray, "trajectory interval"]) -> Jumps | None:
    """Returns the jumps at the beginnings of intervals, which can lie between rows."""
    if batch.jumps is None:
        return None
    rows = np.asarray(batch.ts, np.float64)
    # The first of equal times, since padding repeats the last row of a trajectory.
    row = np.minimum(search_rows(rows, begin, "left"), rows.shape[1] - 1)
    indices = (np.arange(len(rows))[:, None], row)
    is_row = (rows[indices] == begin)[..., None]
    jumps = batch.jumps.at(indices)
    return Jumps(np.where(is_row, jumps.factor, 1.0), np.where(is_row, jumps.shift, 0.0))


def room_for(intervals: int) -> int:
    """Returns the length of the pieces in which this many intervals are solved."""
    return next((room for room in ROOMS if FEW_PIECES * room >= intervals), ROOMS[-1])


def pieces_of(intervals: Intervals, room: int | None = None) -> list[Intervals]:
    """Splits intervals into pieces of length `room`, or of a suitable length; zero-length intervals pad the last."""
    count = intervals.end.shape[1]
    size = room_for(count) if room is None else room
    missing = -count % size

    def fill(x: AnyArray) -> np.ndarray:
        return np.concatenate([x, np.repeat(x[:, -1:], missing, axis=1)], axis=1)

    def blank(x: AnyArray) -> np.ndarray:
        return np.concatenate([x, np.repeat(intervals.end[:, -1:], missing, axis=1)], axis=1)

    padded = Intervals(
        blank(intervals.begin),
        blank(intervals.end),
        fill(intervals.row),
        fill(intervals.length),
        tuple(fill(x) for x in intervals.coefficients),
        jax.tree.map(fill, intervals.jumps),
        jax.tree.map(fill, intervals.after),
        intervals.has_steps,
    )
    return [jax.tree.map(lambda x, b=b: x[:, b : b + size], padded) for b in range(0, count + missing, size)]


def compiled_channels(begin: Begin, advance: Advance, batch: Batch, wanted: Wanted, kind: Interpolations) -> np.ndarray:
    """Compiles the programs of `channels_at` by solving through intervals of no length; returns the channels there."""
    piece = pieces_of(intervals_to(batch, wanted, kind)[0])[0]
    # Avoid fitting initial states, which would solve an untrained model.
    still = replace(batch, ts=np.repeat(batch.ts[:, :1], batch.ts.shape[1], axis=1))
    _, front = begin(still, piece)
    ys, _ = advance(batch, replace(piece, end=piece.begin), front)
    return np.asarray(ys)


def channels_at(
    begin: Begin,
    advance: Advance,
    batch: Batch,
    wanted: Wanted,
    kind: Interpolations,
    axis: int = 0,
) -> Float[np.ndarray, "... trajectory saved channel"]:
    """Returns channels at the requested times, in scaled units; NaN before a trajectory's start.

    **Arguments:**

    - `begin`: returns the channels at the start, shape `(..., trajectory, channel)`, and the state of the solve.
    - `advance`: returns the channels at the end of each interval, shape `(..., trajectory, interval, channel)`, and the
      state of the solve.
    - `batch`, `wanted`, `kind`: as in `intervals_to`.
    - `axis`: the axis of the trajectories in these results.
    """
    intervals, index = intervals_to(batch, wanted, kind)
    parts = pieces_of(intervals)
    start, front = begin(batch, parts[0])
    collected = [np.expand_dims(np.asarray(start), axis + 1)]
    for part in parts:
        ys, front = advance(batch, part, front)
        collected.append(np.asarray(ys))
    joined = np.concatenate(collected, axis=axis + 1)
    columns = np.maximum(index + 1, 0)
    columns = columns.reshape((1,) * axis + columns.shape + (1,))
    chosen = np.take_along_axis(
        joined, np.broadcast_to(columns, (*joined.shape[: axis + 1], columns.shape[axis + 1], 1)), axis=axis + 1
    )
    before = (index < -1).reshape((1,) * axis + index.shape + (1,))
    return np.where(before, np.nan, chosen)


@runtime_checkable
class Model(Protocol):
    """The interface of a `NeuralODE` that predictions use."""

    @property
    def field(self) -> VectorField: ...
    @property
    def start(self) -> AbstractStart: ...
    @property
    def observation(self) -> Observation: ...
    @property
    def solver(self) -> Solver: ...
    def problem(self, batch: Batch, start: Float[Array, "trajectory state"]) -> InitialValueProblem: ...
    @property
    def counts(self) -> bool: ...
    def channels(
        self, t: Array, z: Float[Array, " state"], u: Float[Array, " input"], increases: Array | None = None
    ) -> Array: ...
    def totals(self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]) -> Array: ...
    def estimated_start(self, batch: Batch) -> Float[Array, "trajectory state"]: ...


AnyModel = TypeVar("AnyModel", bound=Model)


def predict_rows(model: Model, batch: Batch, wanted: Wanted) -> Float[np.ndarray, "trajectory saved output"]:
    """Returns outputs at the requested times since the batch's origin, in scaled units."""
    dtype = dtype_of(precision_of(model))

    def observe(*moments: Moments) -> Array:
        return observe_increases(model, *carry(moments, dtype))

    with scope_of(model):
        return in_slices(count_increases(model, at_times(model, channels_at), observe), batch, wanted)


def compile_prediction(model: Model, batch: Batch, wanted: Wanted) -> None:
    """Compiles `predict_rows` for batches like this one and any model of this structure."""
    with scope_of(model):
        in_slices(at_times(model, compiled_channels), batch, wanted)


def at_times(model: Model, solve: Callable[..., np.ndarray]) -> Solve:
    dtype = dtype_of(precision_of(model))

    begun = without_start(model)

    def advance(batch: Batch, intervals: Intervals, front: Front) -> tuple[Array, Front]:
        return advance_channels(begun, *carry((batch.origin, intervals, front), dtype))

    def begin(batch: Batch, first: Intervals) -> tuple[Array, Front]:
        return begin_prediction(model, model.start.needed_rows(batch), first)

    return lambda batch, wanted: solve(begin, advance, batch, wanted, model.solver.interpolation)


def without_start(model: AnyModel) -> AnyModel:
    """Removes the rule for starts from a model, so that the programs that continue a solve do not depend on it."""
    return eqx.tree_at(lambda m: m.start, model, None)


def begin_prediction(model: Model, needed: Batch, first: Intervals) -> tuple[Array, Front]:
    """Runs `begin_channels` with a program that does not depend on data that only the host needs.

    **Arguments:** `needed`: the rows that the rule for starts needs. `first`: the first intervals of a prediction.
    """
    model, *batches = reduce_to_beginning(model, needed, first)
    return begin_channels(model, *carry(batches, dtype_of(precision_of(model))))


def reduce_to_beginning(model: AnyModel, needed: Batch, first: Intervals) -> tuple[AnyModel, Batch, Intervals]:
    """Returns the arguments of `begin_channels`, without data that only the host needs; see `begin_prediction`."""
    start, needed = model.start.share_program(needed)
    first = jax.tree.map(lambda x: x[:, :1], first)
    return eqx.tree_at(lambda m: m.start, model, start), replace(needed, joint=False), first


def count_increases(model: Model, solve: Solve, observe: Observe) -> Solve:
    """Turns a solve for the states of a model into one for its channels, if some are counted between rows.

    **Arguments:** `solve`: returns outputs of a batch at some times. `observe`: `observe_increases` of a model, or of
    all members.
    """
    if not model.counts:
        return solve

    def solve_counts(batch: Batch, wanted: Wanted) -> Float[np.ndarray, "... trajectory saved channel"]:
        count = wanted.shape[1]
        times = np.concatenate([wanted, counts_from(np.asarray(batch.ts, np.float64), wanted)], axis=1)
        states, inputs = solve(batch, times), inputs_after(batch, times, model.solver.interpolation)
        us = np.zeros((*times.shape, 0)) if inputs is None else inputs
        fields_times = np.asarray(batch.origin)[:, None] + times
        current: Moments = (fields_times[:, :count], states[..., :count, :], us[:, :count])
        before: Moments = (fields_times[:, count:], states[..., count:, :], us[:, count:])
        return np.where(np.isnan(states[..., :count, :1]), np.nan, np.asarray(observe(current, before)))

    return solve_counts


def counts_from(
    rows: Float[np.ndarray, "trajectory row"], wanted: Float[np.ndarray, "trajectory wanted"]
) -> Float[np.ndarray, "trajectory wanted"]:
    """Returns the times from which counts are taken: at a row, the row before; between rows, an interval earlier.

    A curve of counts thus passes through those of the rows. Beyond the last row, counts cover the length of the last
    interval; within the first interval, they start at the first row.
    """
    begins = np.minimum(wanted, rows[:, :1])
    for begin, padded, times in zip(begins, rows, wanted, strict=True):
        distinct = np.unique(padded)
        begin[:] = np.interp(times, distinct, np.append(distinct[:1], distinct[:-1]))
        early, later = times < distinct[0], times > distinct[-1]
        begin[early], begin[later] = (
            times[early],
            times[later] - (distinct[-1] - distinct[-2] if len(distinct) > 1 else 0),
        )
    return begins


@jit_by_size
def observe_increases(model: Model, at: Moments, before: Moments) -> Float[Array, "trajectory saved channel"]:
    """Computes channels at times, states and inputs; counted channels are counted since `before`."""

    def observe(t: Array, z: Array, u: Array, *before: Array) -> Array:
        return model.channels(t, z, u, model.totals(t, z, u) - model.totals(*before))

    moments = [jnp.asarray(part) for part in (*at, *before)]
    return jax.vmap(jax.vmap(observe))(*moments)


def outputs(
    model: Model,
    ts: Float[AnyArray, "*rows"],
    states: Float[Array, "*rows state"],
    us: Float[AnyArray, "*rows input"],
) -> Float[Array, "*rows output"]:
    """Returns the channels at times, states and inputs, followed by the hidden states if the channels are states.

    Returns only the states if channels are counted between rows, which takes two moments.
    """
    if isinstance(model.observation, MeasuredStates) or model.counts:
        return states
    channels = model.channels
    for _ in states.shape[:-1]:
        channels = jax.vmap(channels)
    return channels(jnp.asarray(ts), states, jnp.asarray(us))


@jit_by_size
def begin_channels(model: Model, batch: Batch, first: Intervals) -> tuple[Array, Front]:
    """Returns outputs at the starts of trajectories, and the front of the solve there."""
    problem = model.problem(batch, model.estimated_start(batch))
    front = model.solver.begin(problem, first)
    return outputs(model, batch.origin + batch.ts[:, 0], front.y, batch.us[:, 0]), front


@jit_by_size
def advance_channels(
    model: Model, origin: Float[Array, " trajectory"], intervals: Intervals, front: Front
) -> tuple[Array, Front]:
    """Returns outputs at the end of each interval, and the front of the solve there."""
    problem = InitialValueProblem(model.field, intervals.begin, front.y, intervals.coefficients[0], origin)
    ys, front = model.solver.advance(problem, intervals, front)
    after = jnp.zeros((*ys.shape[:-1], 0), ys.dtype) if intervals.after is None else intervals.after
    return outputs(model, origin[:, None] + intervals.end, ys, after), front


@dataclass(frozen=True)
class Prediction:
    """Predicted trajectories in the user's units.

    - `ys`: channels, shape `(trajectory, saved, state)`.
    - `lower`, `upper`: edges of bands, of the same shape; None for a single model.
    - `hidden`: the hidden states in the order of `latent` (those of the first member of an ensemble), shape
      `(trajectory, saved, hidden)`; None without hidden states, or if the channels are a readout of the states.
    """

    ys: Float[np.ndarray, "trajectory saved state"]
    lower: Float[np.ndarray, "trajectory saved state"] | None
    upper: Float[np.ndarray, "trajectory saved state"] | None
    hidden: Float[np.ndarray, "trajectory saved hidden"] | None = None


@runtime_checkable
class StartsAt(Protocol):
    """An object that makes a dataset of first rows, see `NeuralODE.starting_from`."""

    def starting_from(self, y0: GivenStates, ts: ArrayLike | None, u: GivenStates) -> Dataset: ...


@runtime_checkable
class Predicts(Protocol):
    """The interface of models and ensembles used by `predicted_frame`."""

    @property
    def typical(self) -> StartsAt: ...
    def bands(
        self, data: Dataset, ts: np.ndarray | None = None, level: float = 0.9, *, earlier: bool = False
    ) -> Prediction: ...


def predicted_frame(
    model: Predicts,
    data: Dataset | None = None,
    ts: ArrayLike | None = None,
    *,
    y0: GivenStates = None,
    u: GivenStates = None,
    level: float = 0.9,
) -> "pandas.DataFrame":
    """Returns a data frame of the predictions of a model or an ensemble; see `Fit.predict_frame`."""
    if data is None:
        data, ts = model.typical.starting_from(y0, ts, u), None
    prediction = model.bands(data, None if ts is None else np.asarray(ts, np.float64), level, earlier=True)
    columns = columns_of(data.states, prediction.ys)
    if prediction.lower is not None and prediction.upper is not None:
        edges = columns_of(data.states, prediction.lower, "_lower") | columns_of(
            data.states, prediction.upper, "_upper"
        )
        columns = {
            name + end: (columns | edges)[name + end] for name in data.states for end in ("", "_lower", "_upper")
        }
    times = data.ts if ts is None else np.asarray(ts, np.float64)
    return as_frame(data, times, columns, data.valid if ts is None else np.ones(times.shape, bool))
