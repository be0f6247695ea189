"""The rows that the start of a trajectory is read from, predicted in hindsight.

A start that is read from earlier rows (`Encoder`) leaves those rows without a prediction. They belong to the record all
the same: their states are those of the trajectory that fits these rows best and arrives at the start that was read.
"""

from dataclasses import replace
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float, Int

from ..data.batch import Batch, start_rows
from ..data.dataset import Dataset, cut
from ..data.scaling import Scaler
from ..runtime.placement import carry, dtype_of, precision_of, scope
from .initial_state.trained import FAR_START, START_STEPS
from .rollout import Model, outputs
from .system import System


class Starting(Model, Protocol):
    """What is read of a `NeuralODE`, whose methods call this."""

    @property
    def scaler(self) -> Scaler: ...
    @property
    def system(self) -> System: ...
    def batch(self, data: Dataset) -> Batch: ...


def hindcast(model: Starting, data: Dataset) -> Float[np.ndarray, "trajectory row output"] | None:
    """Outputs in scaled units at the rows before each trajectory's start, and NaN from there on.

    **Returns:** None if trajectories start at their first rows.
    """
    rows = start_rows(data, model.start.past, model.start.washout)
    if not rows.any():
        return None
    pieces = [(row, 0, int(end) + 1) for row, end in enumerate(rows)]
    head = replace(model.scaler.marked(cut(data, pieces, data.trajectories)), angles={})
    batch = Batch.from_dataset(head, model.scaler, jumps=model.system.jumps)
    precision = precision_of(model)
    with scope(precision):
        given = carry((model.start.needed(model.batch(data)), batch, rows), dtype_of(precision))
        found = np.asarray(jax.device_get(earlier_outputs(model, *given)), np.float64)
    whole = np.full((*data.ts.shape, found.shape[2]), np.nan)
    before = np.arange(found.shape[1]) < rows[:, None]
    whole[:, : found.shape[1]] = np.where(before[..., None], found, np.nan)
    return whole


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


@eqx.filter_jit
def earlier_outputs(
    model: Starting, later: Batch, earlier: Batch, rows: Int[Array, " trajectory"]
) -> Float[Array, "trajectory row output"]:
    """Outputs of the trajectories through the rows in `earlier` that arrive at the starts of those in `later`."""
    guess, shown = model.start.guess(earlier), model.start.guess.shows(earlier)

    def one(row: Int[Array, ""], arrival: Float[Array, " state"]) -> Float[Array, "row output"]:
        own: Batch = jax.tree.map(lambda x: x[row][None], earlier)

        def simulate(start: Float[Array, " state"]) -> Float[Array, "row state"]:
            return model.solver.forecast(model.problem(own, start[None])).ys[0]

        def residuals(start: Float[Array, " state"], _: None) -> tuple[Array, Array]:
            states = simulate(start)
            channels = outputs(model, states)[None, :, : own.ys.shape[2]]
            misfit = own.weighted(model.scaler.near(channels, own.ys) - own.ys)
            missed = model.system.scaler.near(states[rows[row]], arrival) - arrival
            # A start from which the solve fails counts as far off, so that the search turns back.
            misfit, missed = (jnp.where(jnp.isfinite(each), each, FAR_START) for each in (misfit, missed))
            return jnp.where(own.known, misfit, 0), missed

        begin = jnp.where(shown[row], guess[row], arrival)
        search = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
        states = simulate(optx.least_squares(residuals, search, begin, max_steps=START_STEPS, throw=False).value)
        turns = arrival - model.system.scaler.near(arrival, states[rows[row]])
        return outputs(model, states + turns[None])

    return jax.vmap(one)(jnp.arange(len(rows)), model.estimated_start(later))
