"""Tests whether a model stays near its data, by simulating it three times longer, from other starts and inputs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ..data.dataset import Dataset
from .metrics import FAR_OFF
from .simulation import DENSE

Times = Float[np.ndarray, "trajectory saved"]
Trials = Float[np.ndarray, "trajectory saved state"]

# Number of simulations, and their duration [durations of the record].
TRIALS, LONGER = 4, 3
# Maximum number of rows of the record that a simulation continues, and the fraction of the distance to another
# measurement by which its start and inputs are perturbed.
MAX_ROWS, PERTURBED = 1000, 0.25
# Minimum number of rows from which a trial's start is read.
START_ROWS = 10


@dataclass(frozen=True)
class Escape:
    """A simulation that leaves the range of the data by far: the `state`, its extreme value, and the range of the data.

    `reached` is not finite if the solve fails.
    """

    state: str
    reached: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        where = f"{self.state} reaches {self.reached:.2g}" if np.isfinite(self.reached) else f"{self.state} is lost"
        return f"{where} (measured: {self.lowest:.3g} to {self.highest:.3g})"


def find_escape(simulate: Callable[[Dataset, Times], Trials], data: Dataset, reads: int = 1) -> Escape | None:
    """Finds the state that leaves the range of the data by most, if simulations run away; None if they do not.

    Each simulation begins at a measured row, moved towards another one, with the record's inputs from another row on.
    Growing data can continue to grow at their rate; going ten times farther counts as an escape.

    **Arguments:**

    - `simulate`: predicts trajectories of a dataset at some times, such as `NeuralODE.predict`.
    - `data`: the training data, with its angles named.
    - `reads`: number of rows from which starts are read.
    """
    trials = make_trials(data, max(START_ROWS, reads))
    if trials is None:
        return None
    dense = np.linspace(trials.ts[:, 0], trials.ts.max(axis=1), DENSE, axis=1)
    times = np.sort(np.concatenate([dense, trials.ts], axis=1), axis=1)
    simulated = simulate(trials, times)
    finite = np.asarray(np.isfinite(simulated).all(axis=2))
    # Rows from which a start is read have no prediction.
    lost = np.asarray(~finite.any(axis=1))
    begun = np.logical_or.accumulate(finite, axis=1) | lost[:, None]
    worst: tuple[float, Escape] | None = None
    for index, name in enumerate(data.states):
        is_measured = data.mask[..., index]
        if name in data.angles or not is_measured.any():
            continue
        values = data.ys[..., index]
        low, high = float(values[is_measured].min()), float(values[is_measured].max())
        limit = FAR_OFF * (high - low) * growth(values, is_measured)
        beyond = np.maximum(low - simulated[..., index], simulated[..., index] - high)
        beyond = np.where(begun, np.where(np.isfinite(beyond), beyond, np.inf), -np.inf)
        farthest = np.unravel_index(int(beyond.argmax()), beyond.shape)
        if beyond[farthest] > limit and (worst is None or beyond[farthest] / limit > worst[0]):
            worst = (float(beyond[farthest] / limit), Escape(name, float(simulated[(*farthest, index)]), low, high))
    return None if worst is None else worst[1]


def growth(values: Float[np.ndarray, "trajectory time"], known: np.ndarray) -> float:
    """Extrapolates the growth from half a record to the full record, and returns the factor for three more records."""
    moved = np.zeros(2)
    for series, is_known in zip(values, known, strict=True):
        rows = np.flatnonzero(is_known)
        if rows.size > 1:
            away = np.abs(series[rows] - series[rows[0]])
            moved = np.maximum(moved, [away[: (rows.size + 1) // 2].max(), away.max()])
    return float(moved[1] / moved[0]) ** (2 * LONGER) if moved[0] > 0 else np.inf


def make_trials(data: Dataset, reads: int) -> Dataset | None:
    """Builds records that begin at rows of the data and continue without measurements for three times their length.

    Returns None if no trajectory has enough rows.

    **Arguments:** `reads`: number of rows from which starts are read.
    """
    rng = np.random.default_rng(0)
    able = np.flatnonzero(data.lengths >= 3)
    if not able.size:
        return None
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    low = np.where(data.mask, data.ys, np.inf).min(axis=(0, 1))
    high = np.where(data.mask, data.ys, -np.inf).max(axis=(0, 1))
    for row in rng.choice(able, TRIALS):
        count = min(int(data.lengths[row]), MAX_ROWS)
        reading = min(reads, count)
        first = int(rng.integers(0, int(data.lengths[row]) - reading + 1))
        ts, us = continue_record(data, int(row), first, count, rng)
        ys = np.full((len(ts), len(data.states)), np.nan)
        ys[:reading] = data.ys[row, first : first + reading]
        offset = data.ys[row, rng.integers(0, int(data.lengths[row]))] - ys[0]
        ys[:reading] = np.clip(ys[:reading] + PERTURBED * np.nan_to_num(offset), low, high)
        pieces.append((ts, ys, us))
    return Dataset.from_arrays(
        [ts for ts, _, _ in pieces],
        [ys for _, ys, _ in pieces],
        [us for _, _, us in pieces],
        states=data.states,
        inputs=data.inputs,
        time=data.time,
        angles=data.angles,
    )


def continue_record(
    data: Dataset, row: int, first: int, count: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, " time"], Float[np.ndarray, "time input"]]:
    """Returns the times of three records from a row on, and inputs repeated cyclically from another row on."""
    length = int(data.lengths[row])
    steps = np.diff(data.ts[row, :length])
    ahead = rows_around(first, LONGER * count - 1, length - 1)
    ts = data.ts[row, first] + np.concatenate([[0.0], np.cumsum(steps[ahead])])
    us, other_us = (
        data.us[row, rows_around(begin, len(ts), length)] for begin in (first, int(rng.integers(0, length)))
    )
    return ts, us + PERTURBED * (other_us - us) if len(data.inputs) else us


def rows_around(first: int, count: int, length: int) -> Int[np.ndarray, " row"]:
    """Returns `count` rows from `first` on, wrapping around at the end of the record."""
    return (first + np.arange(count)) % length
