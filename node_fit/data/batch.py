"""Batches: a dataset scaled to order one for objectives, in the run's precision."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..runtime.placement import AnyArray
from .dataset import Dataset
from .domains import namespace, rebase_to_end
from .events import Events, Jumps
from .noise import noise_weights
from .scaling import Scaler
from .trajectories import cut


class Batch(eqx.Module):
    """Trajectories in scaled units: NumPy arrays on the host, JAX arrays once they are placed.

    Custom losses read it:

    ```python
    def early_error(model, batch):
        off = model.simulate(batch).ys - batch.ys
        weight = jnp.where(batch.mask, jnp.exp(-batch.ts)[..., None], 0)
        return (weight * off**2).sum() / weight.sum()


    stages = [node_fit.Stage(early_error, optax.adam(1e-2), steps=500)]
    node_fit.fit(train, options=node_fit.Options(recipe=stages))
    ```

    - `ts`, `ys`, `us`: times since `origin`, measured channels and inputs, shapes `(trajectory, time)`,
      `(trajectory, time, channel)` and `(trajectory, time, input)`; missing measurements are 0.
    - `origin`: time of each trajectory's first row, shape `(trajectory,)`. Late in a long record, float32 can't resolve
      the steps between absolute times.
    - `mask`: where a channel was measured and is scored, shape of `ys`.
    - `known`: where a channel was measured, scored or not, shape of `ys`.
    - `first`: first measured value of each channel, shape `(trajectory, channel)`; 0 without measurements.
    - `seen`: whether a channel was ever measured, of the same shape.
    - `past`: features of the rows up to the first one, used to estimate the initial state, shape
      `(trajectory, row, feature)`; see `past_rows`.
    - `index`: number of each trajectory in its dataset, shape `(trajectory,)`.
    - `weight`: factor of each residual, proportional to the inverse of its standard deviation, shape of `ys`; None if
      that is unknown.
    - `deviation`: standard deviation of each weighted residual, shape `(trajectory, 1, channel)`; None if the objective
      does not need it.
    - `joint`: whether the trajectories share their times.
    - `driven`: whether an input changes within a trajectory, or a state jumps.
    - `jumps`: jumps of states just after rows, shape `(trajectory, time, state)`; None without events.
    - `censored`: -1 if the true value is below `ys`, 1 if it is above, else 0; None if all values are exact.
    - `width`: width of the interval below or above a censored value, in the unit of `ys`; infinite without another end,
      None if no value has one.
    """

    ts: Float[AnyArray, "trajectory time"]
    ys: Float[AnyArray, "trajectory time channel"]
    us: Float[AnyArray, "trajectory time input"]
    mask: Bool[AnyArray, "trajectory time channel"]
    known: Bool[AnyArray, "trajectory time channel"]
    first: Float[AnyArray, "trajectory channel"]
    seen: Bool[AnyArray, "trajectory channel"]
    past: Float[AnyArray, "trajectory row feature"]
    index: Int[AnyArray, " trajectory"]
    origin: Float[AnyArray, " trajectory"]
    joint: bool = eqx.field(static=True)
    driven: bool = eqx.field(static=True)
    weight: Float[AnyArray, "trajectory time channel"] | None = None
    deviation: Float[AnyArray, "trajectory 1 channel"] | None = None
    jumps: Jumps | None = None
    censored: Int[AnyArray, "trajectory time channel"] | None = None
    width: Float[AnyArray, "trajectory time channel"] | None = None

    def weigh_residuals(
        self, residuals: Float[AnyArray, "*member trajectory time channel"]
    ) -> Float[AnyArray, "*member trajectory time channel"]:
        """Weights residuals by the inverse of their standard deviations, as far as these are known."""
        return residuals if self.weight is None else residuals * self.weight

    def weigh_errors(self, errors: Float[Array, "trajectory time channel"]) -> Float[Array, "trajectory time channel"]:
        """Weights predictions less measurements; a prediction beyond its limit, or in its interval, has no error."""
        off = jnp.asarray(self.weigh_residuals(errors))
        if self.censored is None:
            return off
        side = jnp.asarray(self.censored, off.dtype)
        beyond = 0 if self.width is None else side * jnp.maximum(side * off - self.weigh_residuals(self.width), 0)
        return jnp.where(side * off > 0, beyond, off)

    @property
    def middles(self) -> Float[AnyArray, "trajectory time channel"]:
        """`ys`, with midpoints in place of the ends of intervals."""
        if self.width is None or self.censored is None:
            return self.ys
        xp = namespace(self.width)
        return self.ys + self.censored * xp.where(xp.isfinite(self.width), self.width / 2, 0)

    @property
    def is_exact(self) -> Bool[AnyArray, "trajectory time channel"]:
        """Where a channel was measured exactly, and not as a limit."""
        return self.known if self.censored is None else self.known & (self.censored == 0)

    @property
    def times(self) -> Float[AnyArray, "trajectory time"]:
        """Times passed to the vector field."""
        return self.origin[:, None] + self.ts

    @staticmethod
    def from_dataset(
        data: Dataset,
        scaler: Scaler,
        past: int = 0,
        washout: int = 0,
        jumps: Callable[[Events], Jumps] | None = None,
    ) -> "Batch":
        """Scales a dataset, on the host in float64.

        **Arguments:**

        - `data`, `scaler`: the measurements, and the scaling of their units.
        - `past`: number of rows used to estimate the initial state. Each trajectory then begins at the last of them:
          the row before the first scored one or, if all are scored, the row with that number.
        - `washout`: number of rows by which the start is moved before that row.
        - `jumps`: scales events; without it, they are left out.
        """
        data = scaler.mark_angles(data)
        history = past_rows(data, scaler, past, washout)
        data = replace(data, angles={})  # already unwrapped; keeps them in their turn when rows are cut off
        if past:
            data = data_from_start(data, past, washout)
        known = np.isfinite(data.ys)
        times = scaler.scale_times(data.ts)
        return Batch(
            ts=times - times[:, :1],
            origin=times[:, 0],
            ys=np.where(known, scaler.scale_states(data.ys), 0.0),
            us=scaler.scale_inputs(data.us),
            mask=data.mask,
            known=known,
            first=np.nan_to_num(scaler.scale_states(data.first), nan=0.0),
            seen=np.asarray(known.any(axis=1)),
            past=history,
            index=np.arange(len(data.trajectories), dtype=np.int32),
            joint=data.shares_grid,
            driven=data.is_driven or data.events is not None,
            weight=None if data.sigma is None else noise_weights(data, scaler),
            jumps=None if data.events is None or jumps is None else jumps(data.events),
            censored=data.censored,
            width=None if data.other_end is None else scaled_widths(data, scaler),
        )


def scaled_widths(data: Dataset, scaler: Scaler) -> Float[np.ndarray, "trajectory time channel"]:
    """Returns the widths of intervals in scaled units; infinite without another end, or if the scale can't reach it."""
    assert data.other_end is not None
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.abs(scaler.scale_states(data.other_end) - scaler.scale_states(data.ys))
    return np.where(np.isfinite(width), width, np.inf)


def first_rows(batch: Batch, rows: int) -> Batch:
    """Returns the first `rows` rows of each trajectory, on the host; repeats the last row of shorter trajectories."""
    missing = max(rows - batch.ts.shape[1], 0)

    def part(x: AnyArray, fill: bool) -> np.ndarray:
        kept = np.asarray(x)[:, :rows]
        padding = np.repeat(kept[:, -1:], missing, axis=1)
        return np.concatenate([kept, padding if fill else np.zeros_like(padding)], axis=1)

    return replace(
        batch,
        ts=part(batch.ts, True),
        ys=part(batch.ys, False),
        us=part(batch.us, True),
        mask=part(batch.mask, False),
        known=part(batch.known, False),
        weight=None if batch.weight is None else part(batch.weight, True),
        jumps=batch.jumps and jax.tree.map(lambda x: part(x, True), batch.jumps),
        censored=None if batch.censored is None else part(batch.censored, False),
        width=None if batch.width is None else part(batch.width, True),
    )


def start_rows(data: Dataset, past: int, washout: int = 0) -> Int[np.ndarray, " trajectory"]:
    """Returns the row at which each trajectory starts.

    **Arguments:**

    - `past`: number of rows up to the start that are used to estimate the initial state.
    - `washout`: number of rows simulated between the start and the first scored row, if the record has enough.
    """
    if past == 0:
        return np.zeros(len(data.lengths), int)
    counted = np.asarray(data.mask.any(axis=2))
    first = np.where(counted.any(axis=1), counted.argmax(axis=1), 0)
    alone = np.minimum(past - 1, np.maximum(data.lengths - 2, 0))
    before = np.maximum(first - 1 - washout, np.minimum(first - 1, alone))
    return np.where(first > 0, before, alone)


def data_from_start(data: Dataset, past: int, washout: int = 0) -> Dataset:
    """Returns the rows from each trajectory's start on; the first one, which determines the start, is not scored."""
    rows = start_rows(data, past, washout)
    pieces = [(row, int(begin), int(end)) for row, (begin, end) in enumerate(zip(rows, data.lengths, strict=True))]
    later = cut(data, pieces, data.trajectories)
    later.scored[:, 0] = False
    return later


def past_rows(
    data: Dataset, scaler: Scaler, past: int, washout: int = 0
) -> Float[np.ndarray, "trajectory row feature"]:
    """Returns the features of the rows up to each trajectory's start: channels, measured flags, inputs, and time.

    A missing channel, or one with a spike, has its previous value, else its next one. Time is counted back from the
    start. If rows are too few, the earliest one is repeated in front.
    """
    channels, inputs = data.ys.shape[2], data.us.shape[2]
    if past == 0:
        return np.zeros((len(data.lengths), 0, 2 * channels + inputs + 1))
    last = start_rows(data, past, washout)
    wanted = last[:, None] + np.arange(1 - past, 1)[None, :]
    index = (np.arange(len(last))[:, None], np.maximum(wanted, 0))
    ys = drop_spikes(scaler.scale_states(rebase_to_end(data.ys[index], data.turns)))
    known = np.isfinite(ys) & (wanted >= 0)[..., None]
    times = scaler.scale_times(data.ts[index])
    since = times - times[:, -1:]
    return np.concatenate(
        [fill_missing(ys), known.astype(float), scaler.scale_inputs(data.us[index]), since[..., None]], axis=2
    )


def drop_spikes(ys: Float[np.ndarray, "trajectory row channel"]) -> Float[np.ndarray, "trajectory row channel"]:
    """Makes single values missing that are far from both of their neighbours, as glitches are.

    A start that is read by a linear map would be as far off as such a value.

    **Arguments:** `ys`: scaled values [standard deviations].
    """
    before, at, after = ys[:, :-2], ys[:, 1:-1], ys[:, 2:]
    height = np.minimum(np.abs(at - before), np.abs(at - after))
    is_spike = (height > SPIKE) & (np.abs(after - before) < SPIKE_BASE * height)
    ys[:, 1:-1] = np.where(is_spike, np.nan, at)
    return ys


def fill_missing(ys: Float[np.ndarray, "trajectory row channel"]) -> Float[np.ndarray, "trajectory row channel"]:
    """Fills missing values from the previous row, else from the next one with a value; 0 if no row has one."""
    for rows in (range(1, ys.shape[1]), range(ys.shape[1] - 2, -1, -1)):
        step = 1 if rows.step > 0 else -1
        for row in rows:
            ys[:, row] = np.where(np.isfinite(ys[:, row]), ys[:, row], ys[:, row - step])
    return np.nan_to_num(ys, nan=0.0)


# Least height of a spike [standard deviations], and the most by which its neighbours differ, as a share of that.
SPIKE, SPIKE_BASE = 6.0, 0.25
# Maximum number of rows in one solve, so that memory does not grow with the data.
SLICE = 1 << 19
# A few short trajectories are padded to one of these counts, so that one compiled program serves all parts of a record:
# a compilation takes longer than all of their solves.
TRAJECTORY_ROOMS, MAX_PADDED_ROWS = (4, 8, 16), 1 << 16


def count_in_slice(trajectories: int, rows: int) -> int:
    """Returns how many trajectories of `rows` rows are solved at once."""
    room = next((room for room in TRAJECTORY_ROOMS if room >= trajectories), trajectories)
    return room if room * rows <= min(MAX_PADDED_ROWS, SLICE) else min(trajectories, max(SLICE // rows, 1))


def in_slices(
    solve: Callable[[Batch, np.ndarray], AnyArray],
    batch: Batch,
    saved: Float[np.ndarray, "trajectory saved"],
    axis: int = 0,
) -> np.ndarray:
    """Applies `solve` to a batch and times, one slice of trajectories after another.

    **Arguments:** `axis`: trajectory axis of the results.
    """
    count = len(saved)
    size = count_in_slice(*saved.shape)
    # The last slice repeats a trajectory if it is too short, since another length would need a new compilation.
    slices = [np.minimum(np.arange(begin, begin + size), count - 1) for begin in range(0, count, size)]
    parts = [np.asarray(solve(jax.tree.map(lambda x, rows=rows: x[rows], batch), saved[rows])) for rows in slices]
    return np.take(np.concatenate(parts, axis), np.arange(count), axis)
