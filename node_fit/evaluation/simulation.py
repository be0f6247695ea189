"""A single simulation for all parts of a report: every split, at the measured times and on a dense grid."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..data.dataset import Dataset
from ..data.events import Events
from ..data.inputs import Interpolations
from ..data.trajectories import finite_ends
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE

Edges = tuple[np.ndarray, np.ndarray]
SIDES = ("lower", "upper")
# Number of points of a curve, and maximum number of rows through which it is drawn as well, since peaks between points
# are cut off.
DENSE, MOST_DRAWN = 300, 3000
# Maximum number of trajectories per split whose curves are drawn, or ranked for drawing.
MOST_PICTURED = 300


@dataclass(frozen=True)
class Simulated:
    """Predictions for each split.

    - `at_rows`: states at the dataset's own times, shape `(trajectory, time, state)`.
    - `dense`: times and states of smooth curves, shapes `(trajectory, n)` and `(trajectory, n, state)`.
    - `bands`, `dense_bands`: lower and upper edges of bands at the same times; empty for a single model.
    - `level`: share of measurements that the bands should cover.
    - `pictured`, `pictured_rows`: the splits of the curves, with an evenly spaced selection if trajectories are
      numerous, and their states at their own times.
    - `left_out`: number of trajectories missing from `pictured`.
    - `hidden`, `dense_hidden`: names of hidden states, and their curves, shape `(trajectory, n, hidden)`.
    - `inputs`: interpolation of inputs between rows; see `node_fit.Solver`.
    """

    at_rows: dict[str, np.ndarray]
    dense: dict[str, tuple[np.ndarray, np.ndarray]]
    bands: dict[str, tuple[np.ndarray, np.ndarray]]
    dense_bands: dict[str, tuple[np.ndarray, np.ndarray]]
    level: float
    pictured: dict[str, Dataset]
    pictured_rows: dict[str, np.ndarray]
    left_out: int = 0
    hidden: tuple[str, ...] = ()
    dense_hidden: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    inputs: Interpolations = "linear"

    def with_split(self, name: str, other: "Simulated") -> "Simulated":
        """Returns a copy with the predictions of one split replaced by those of another model."""
        by_split = ("at_rows", "dense", "bands", "dense_bands", "pictured_rows", "dense_hidden")
        changed: dict[str, Any] = {}
        for attribute in by_split:
            mine, theirs = getattr(self, attribute), getattr(other, attribute)
            changed[attribute] = {key: theirs[key] if key == name else value for key, value in mine.items()}
        return replace(self, **changed)


def simulate_splits(
    model: NeuralODE | Ensemble, splits: dict[str, Dataset], level: float = 0.9, pictured: Collection[str] = ()
) -> Simulated:
    """Simulates all splits.

    **Arguments:** `pictured`: names of trajectories that must be pictured, regardless of their number.
    """
    shown = {name: part.sample(MOST_PICTURED, pictured) for name, part in splits.items()}
    left_out = sum(len(part.trajectories) - len(shown[name].trajectories) for name, part in splits.items())
    if not left_out:
        return simulate_together(model, splits, level)
    predictions = {name: model.bands(part, level=level, earlier=True) for name, part in splits.items()}
    return replace(
        simulate_together(model, shown, level),
        at_rows={name: prediction.ys for name, prediction in predictions.items()},
        bands={name: (band.lower, band.upper) for name, band in predictions.items() if band.lower is not None},
        left_out=left_out,
    )


def simulate_together(model: NeuralODE | Ensemble, splits: dict[str, Dataset], level: float) -> Simulated:
    """Simulates all splits in one solve, because every new shape requires compilation."""
    joined = concatenate_splits(marked_parts(model, splits))
    grid = dense_times(joined)
    times = np.concatenate([grid, joined.ts], axis=1)
    order = np.argsort(times, axis=1, kind="stable")
    back = np.argsort(order, axis=1, kind="stable")
    times = np.take_along_axis(times, order, axis=1)
    prediction = model.bands(joined, times, level, earlier=True)
    through_rows = joined.ts.shape[1] <= MOST_DRAWN
    at_rows: dict[str, np.ndarray] = {}
    dense: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    bands: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    dense_bands: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    hidden: dict[str, np.ndarray] = {}
    begin = 0
    for name, part in splits.items():
        rows = slice(begin, begin + len(part.trajectories))
        begin = rows.stop

        def pieces(sorted_ys: np.ndarray, rows: slice = rows, count: int = part.ts.shape[1]) -> list[np.ndarray]:
            ys = np.take_along_axis(sorted_ys[rows], back[rows, :, None], axis=1)
            return [ys[:, DENSE : DENSE + count], sorted_ys[rows] if through_rows else ys[:, :DENSE]]

        at_rows[name], curve = pieces(prediction.ys)
        dense[name] = (times[rows] if through_rows else grid[rows], curve)
        if prediction.lower is not None and prediction.upper is not None:
            edges = zip(pieces(prediction.lower), pieces(prediction.upper), strict=True)
            bands[name], dense_bands[name] = edges
        if prediction.hidden is not None:
            hidden[name] = pieces(prediction.hidden)[1]
    typical = model.typical
    return Simulated(
        *(at_rows, dense, bands, dense_bands, level, splits, at_rows),
        hidden=typical.hidden,
        dense_hidden=hidden,
        inputs=typical.solver.interpolation,
    )


def compile_simulation(model: NeuralODE, splits: dict[str, Dataset]) -> None:
    """Compiles the program of `simulate_splits` for any model of this structure."""
    shown = {name: part.sample(MOST_PICTURED) for name, part in splits.items()}
    joined = concatenate_splits(marked_parts(model, shown))
    model.compile_prediction(joined, np.sort(np.concatenate([dense_times(joined), joined.ts], axis=1), axis=1))


def marked_parts(model: NeuralODE | Ensemble, splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Returns the splits as the model sees them, before trajectories are renamed."""
    return {name: model.typical.scaler.mark_angles(part) for name, part in splits.items()}


def dense_times(data: Dataset) -> np.ndarray:
    """Returns a grid of times between the first and the last measurement of each trajectory."""
    measured = np.where(data.valid, data.ts, np.nan)
    return np.linspace(np.nanmin(measured, axis=1), np.nanmax(measured, axis=1), DENSE, axis=1)


def concatenate_splits(splits: dict[str, Dataset]) -> Dataset:
    """Concatenates the trajectories of all splits."""
    pieces = [(name, part, index) for name, part in splits.items() for index in range(len(part.trajectories))]
    any_part = pieces[0][1]
    joined = Dataset.from_arrays(
        [part.ts[index, : part.lengths[index]] for _, part, index in pieces],
        [part.ys[index, : part.lengths[index]] for _, part, index in pieces],
        [part.us[index, : part.lengths[index]] for _, part, index in pieces],
        states=any_part.states,
        inputs=any_part.inputs,
        trajectories=[f"{name}/{part.trajectories[index]}" for name, part, index in pieces],
        time=any_part.time,
        units=any_part.units,
        angles=any_part.angles,
    )
    scored, sigma = np.zeros_like(joined.scored), np.ones_like(joined.ys)
    censored, other_end = np.zeros(joined.ys.shape, np.int8), np.full(joined.ys.shape, np.nan)
    for row, (_, part, index) in enumerate(pieces):
        rows = slice(part.lengths[index])
        scored[row, rows] = part.scored[index, rows]
        if part.sigma is not None:
            sigma[row, rows] = part.sigma[index, rows]
        if part.censored is not None:
            censored[row, rows] = part.censored[index, rows]
        if part.other_end is not None:
            other_end[row, rows] = part.other_end[index, rows]
    return replace(
        joined,
        scored=scored,
        sigma=None if any_part.sigma is None else sigma,
        censored=None if any_part.censored is None else censored,
        other_end=finite_ends(other_end),
        noise=any_part.noise,
        events=Events.join([part.events for part in splits.values()], [part.ts.shape for part in splits.values()]),
    )


def predictions_frame(data: Dataset, predicted: np.ndarray, edges: Edges | None = None, split: str | None = None):
    """Returns a data frame with one row for each scored row of `data`, including band edges if passed."""
    import pandas as pd

    is_shown = data.valid & data.scored
    columns: dict[str, Sequence[str] | np.ndarray | pd.DatetimeIndex] = {}
    if split is not None:
        columns["split"] = [split] * int(is_shown.sum())
    columns["trajectory"] = np.repeat(np.array(data.trajectories), is_shown.sum(axis=1))
    columns[data.time] = (
        data.ts[is_shown] if data.dates is None else data.dates.stamps(np.nonzero(is_shown)[0], data.ts[is_shown])
    )
    columns |= {name: data.us[is_shown][:, index] for index, name in enumerate(data.inputs)}
    for index, name in enumerate(data.states):
        columns[name] = data.ys[is_shown][:, index]
        columns[f"{name}_predicted"] = predicted[is_shown][:, index]
        if edges is not None:
            columns |= {f"{name}_{side}": edge[is_shown][:, index] for side, edge in zip(SIDES, edges, strict=True)}
    return pd.DataFrame(columns)
