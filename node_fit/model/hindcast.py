"""The rows that the start of a trajectory is read from, predicted in hindsight.

A start that is read from earlier rows (`Encoder`) leaves those rows without a prediction. They belong to the record all
the same: their states are those of the trajectory that fits these rows best and arrives at the start that was read.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ..data.batch import SLICE, Batch, start_rows
from ..data.dataset import Dataset, cut
from ..data.scaling import Scaler
from ..runtime.placement import carry, dtype_of, precision_of, scope
from ..solver.problem import Intervals
from ..solver.row_by_row import Front
from .rollout import Model, advance_channels, begin_channels, intervals_to, outputs, pieces_of
from .system import System

# Of the search for the first states: iterations, the difference for derivatives [scaled units], and the damping.
ITERATIONS, DIFFERENCE, DAMPING = 10, 1e-2, 1e-3
# A residual that stands for "not solved".
FAR = 1e3


class Starting(Model, Protocol):
    """What is read of a `NeuralODE`, whose methods call this."""

    @property
    def scaler(self) -> Scaler: ...
    @property
    def system(self) -> System: ...
    def batch(self, data: Dataset) -> Batch: ...
    def asked(self, data: Dataset, ts: np.ndarray | None) -> tuple[Batch, np.ndarray]: ...


class Passed(NamedTuple):
    """A simulation of the earlier rows, in scaled units: outputs at the rows, and the states at the last of them."""

    outputs: Float[np.ndarray, "trajectory row output"]
    arrival: Float[np.ndarray, "trajectory state"]


def hindcast(
    model: Starting, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None
) -> Float[np.ndarray, "trajectory row output"] | None:
    """Outputs in scaled units at the rows before each trajectory's start, and NaN from there on.

    **Arguments:** `data`, `ts`: those of a prediction that was made before. Its compiled programs serve here too.

    **Returns:** None if trajectories start at their first rows.
    """
    rows = start_rows(data, model.start.past, model.start.washout)
    if not rows.any():
        return None
    whole, count = None, len(rows)
    size = min(count, max(SLICE // (data.ts if ts is None else ts).shape[1], 1))
    for begin in range(0, count, size):
        chosen = np.minimum(np.arange(begin, begin + size), count - 1)
        some = data if size == count else data.select(chosen)
        found = earlier_outputs(model, some, None if ts is None else ts[chosen], rows[chosen])
        if whole is None:
            whole = np.full((*data.ts.shape, found.shape[2]), np.nan)
        before = np.arange(found.shape[1]) < rows[chosen, None]
        whole[chosen, : found.shape[1]] = np.where(before[..., None], found, np.nan)
    return whole


def earlier_outputs(
    model: Starting, data: Dataset, ts: np.ndarray | None, rows: np.ndarray
) -> Float[np.ndarray, "trajectory row output"]:
    """Outputs of the trajectories through the rows up to `rows` that arrive at the starts read there."""
    later, wanted = model.asked(data, ts)
    pieces = [(row, 0, int(end) + 1) for row, end in enumerate(rows)]
    head = replace(model.scaler.marked(cut(data, pieces, data.trajectories)), angles={})
    earlier = Batch.from_dataset(head, model.scaler, jumps=model.system.jumps)
    dtype = dtype_of(precision_of(model))
    with scope(precision_of(model)):
        first = pieces_of(intervals_to(later, wanted, model.solver.interpolation)[0])[0]
        _, there = begin_channels(model, *carry((model.start.needed(later), first), dtype))
        arrival = np.asarray(there.y, np.float64)
        simulate = simulation_of(model, earlier, first.end.shape[1])
        guess = model.start.guess
        begin, shown = arrival.copy(), earlier.seen[:, : guess.measured]
        begin[:, : guess.measured] = np.where(shown, earlier.first[:, : guess.measured], arrival[:, : guess.measured])
        near, near_state = model.scaler.near, model.system.scaler.near

        def residuals(starts: Float[np.ndarray, "trajectory state"]) -> Float[np.ndarray, "trajectory residual"]:
            passed = simulate(starts)
            channels = passed.outputs[..., : earlier.ys.shape[2]]
            misfit = np.where(earlier.known, earlier.weighted(near(channels, earlier.ys) - earlier.ys), 0)
            missed = near_state(passed.arrival, arrival) - arrival
            joined = np.concatenate([misfit.reshape(len(starts), -1), missed], axis=1)
            return np.where(np.isfinite(joined), joined, FAR)

        passed = simulate(find_starts(residuals, begin))
    turns = arrival - near_state(arrival, passed.arrival)
    return passed.outputs + turns[:, None, : passed.outputs.shape[2]]


def simulation_of(
    model: Starting, batch: Batch, room: int
) -> Callable[[Float[np.ndarray, "trajectory state"]], Passed]:
    """Simulates all rows of a batch from given starts, by the program that predicts `room` intervals at once."""
    dtype = dtype_of(precision_of(model))
    intervals, at = intervals_to(batch, np.asarray(batch.ts, np.float64), model.solver.interpolation)
    parts = pieces_of(intervals, room)

    def simulate(starts: Float[np.ndarray, "trajectory state"]) -> Passed:
        ys, front = begin_at(model, *carry((batch, starts, parts[0]), dtype))
        found = [np.asarray(ys, np.float64)[:, None]]
        origin = carry(batch.origin, dtype)
        for part in parts:
            ys, front = advance_channels(model, origin, carry(part, dtype), front)
            found.append(np.asarray(ys, np.float64))
        rows = np.take_along_axis(np.concatenate(found, axis=1), at[..., None] + 1, axis=1)
        return Passed(rows, np.asarray(front.y, np.float64))

    return simulate


@eqx.filter_jit
def begin_at(
    model: Starting, batch: Batch, starts: Float[Array, "trajectory state"], first: Intervals
) -> tuple[Array, Front]:
    """Outputs at given starts, and the front of the solve there."""
    front = model.solver.begin(model.problem(batch, starts), first)
    return outputs(model, front.y), front


def find_starts(
    residuals: Callable[[np.ndarray], Float[np.ndarray, "trajectory residual"]],
    begin: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory state"]:
    """Levenberg and Marquardt's method for each trajectory, all at once, with derivatives by differences."""
    starts, now = begin, residuals(begin)
    damping = np.full(len(begin), DAMPING)
    identity = np.eye(begin.shape[1])
    for _ in range(ITERATIONS):
        jacobian = np.stack([(residuals(starts + DIFFERENCE * axis) - now) / DIFFERENCE for axis in identity], axis=2)
        normal = np.einsum("trs,tru->tsu", jacobian, jacobian) + damping[:, None, None] * identity
        step = -np.linalg.solve(normal, np.einsum("trs,tr->ts", jacobian, now)[..., None])[..., 0]
        then = residuals(starts + step)
        better = (then**2).sum(axis=1) < (now**2).sum(axis=1)
        starts, now = np.where(better[:, None], starts + step, starts), np.where(better[:, None], then, now)
        damping = np.where(better, damping / 10, damping * 10)
    return starts


def with_earlier(
    found: Float[np.ndarray, "trajectory saved output"],
    earlier: Float[np.ndarray, "trajectory row output"] | None,
    data: Dataset,
    ts: Float[np.ndarray, "trajectory saved"] | None,
) -> Float[np.ndarray, "trajectory saved output"]:
    """Outputs at `ts`, or at the rows of the data, with those of a `hindcast` where a prediction has none yet.

    Between two rows of the hindcast, they are interpolated by a monotone cubic.
    """
    if earlier is None:
        return found
    if ts is None:
        return np.where(np.isnan(found), earlier, found)
    from scipy.interpolate import PchipInterpolator

    filled = found.copy()
    for row, states in enumerate(earlier):
        known = np.isfinite(states).all(axis=1)
        at = np.flatnonzero(np.isnan(found[row]).all(axis=1) & (ts[row] >= data.ts[row, 0]))
        if known.any() and len(at):
            after = np.flatnonzero(np.isfinite(found[row]).all(axis=1))[:1]
            nodes = np.concatenate([data.ts[row, known], ts[row, after]])
            curve = PchipInterpolator(nodes, np.concatenate([states[known], found[row, after]]))
            filled[row, at] = curve(ts[row, at])
    return filled
