"""Measured trajectories as padded, named arrays: the data that all other parts of the library take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ..runtime.arguments import check_argument
from .angles import Turns, near_columns, turns_of, unwrapped
from .arrays import as_frame, as_series, check_shapes, columns_of, deviations, padded, with_column
from .checks import check_events, check_names, check_sigma, check_trajectory, invalid_trajectories
from .dates import Dates
from .events import Events

Times = Float[np.ndarray, "trajectory time"]
Values = Float[np.ndarray, "trajectory time state"]
Cut = float | Float[np.ndarray, " trajectory"]
Inputs = Float[np.ndarray, "trajectory time input"]


@dataclass(frozen=True)
class Dataset:
    """Trajectories of measured states and inputs, in the user's units.

    A trajectory is one record of the system over time. Trajectories may differ in length and in times.
    They are padded at the end to a common length: a padded row repeats the last time and the last input, and its states
    are NaN. A missing measurement is NaN too.

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`, float64, strictly increasing up to each trajectory's length.
    - `ys`: measured states, shape `(trajectory, time, state)`, float64, NaN where a measurement is missing.
    - `us`: inputs, shape `(trajectory, time, input)`, float64, finite; `input` may be 0.
    - `lengths`: number of rows of each trajectory, shape `(trajectory,)`.
    - `scored`: rows that count in losses and metrics, shape `(trajectory, time)`. All other rows are context: they
      determine where a trajectory starts and what its inputs were.
    - `states`, `inputs`, `trajectories`, `time`: names of the channels, the trajectories and the time.
    - `units`: units of channels, by name; may be empty.
    - `angles`: states that are angles, each with its turn (2π if it is in radians). They may be measured modulo a turn:
      a dataset holds them without jumps, the first one of a trajectory within half a turn of zero, and each other one
      within half a turn of the one before.
    - `dates`: the instants at which times are zero, if they were timestamps.
    - `sigma`: the standard deviation of each measurement, of the shape of `ys`; None if it is not known. That of a
      state with bounds or on a logarithmic scale is one of its logarithm, or of its map to the real line.
    - `events`: doses, resets and switches, at which states jump; None if there are none. See `with_events`.

    **Raises:** `ValueError` that names the trajectory and the row.
    """

    ts: Times
    ys: Values
    us: Inputs
    lengths: Int[np.ndarray, " trajectory"]
    scored: Bool[np.ndarray, "trajectory time"]
    states: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()
    time: str = "t"
    units: dict[str, str] = field(default_factory=dict)
    angles: dict[str, float] = field(default_factory=dict)
    dates: Dates | None = None
    sigma: Values | None = None
    events: Events | None = None

    def __post_init__(self):
        check_names(self)
        for row in invalid_trajectories(self):
            check_trajectory(self, row, self.trajectories[row])
        check_sigma(self)
        check_events(self)
        if self.angles:
            object.__setattr__(self, "ys", unwrapped(self.ys, self.turns))

    def __str__(self) -> str:
        driven = f" with inputs {', '.join(self.inputs)}" if self.inputs else ""
        rows, count = int(self.lengths.sum()), len(self.trajectories)
        records = "1 trajectory" if count == 1 else f"{count} trajectories"
        return f"Dataset of {', '.join(self.states)}{driven}: {rows} rows of {records}"

    @staticmethod
    def from_arrays(
        ts: Any,
        ys: Any,
        us: Any = None,
        *,
        states: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        trajectories: Sequence[str] | None = None,
        time: str = "t",
        units: dict[str, str] | None = None,
        angles: dict[str, float] | None = None,
        sigma: Any = None,
    ) -> "Dataset":
        """Builds a dataset from arrays.

        **Arguments:**

        - `ts`: times: one grid `(time,)` for all trajectories, `(trajectory, time)`, or a list of `(time,)` arrays.
        - `ys`: states: `(time, state)`, `(trajectory, time, state)`, or a list of `(time, state)` arrays; of a single
          state also without the last axis, in the form of `ts`. NaN is missing.
        - `us`: inputs, in the form of `ys`; omit it if there are none.
        - `states`, `inputs`, `trajectories`: names; by default `y0, y1, ...`, `u0, ...` and `0, 1, ...`.
        - `time`, `units`: name of the time, and units of channels by name.
        - `angles`: states that are angles, each with its turn.
        - `sigma`: standard deviations of the measurements: a number, `(state,)`, or in the form of `ys`.

        **Raises:** `ValueError` with the shapes if they do not match.
        """
        for name, given in (("states", states), ("inputs", inputs), ("trajectories", trajectories)):
            check_argument(name, given, Sequence[str] | None, "a list of names")
        check_argument("units", units, Mapping | None, "a dict of units by name")
        sigma = with_column(sigma, ts) if with_column(ys, ts) is not ys else sigma
        ys, us = with_column(ys, ts), with_column(us, ts)
        series = as_series(ys, rank=2, name="ys")
        grids = as_series(ts, rank=1, name="ts")
        controls = as_series(us, rank=2, name="us") if us is not None else [np.zeros((len(y), 0)) for y in series]
        if len(grids) == 1:
            grids = grids * len(series)
        check_shapes(grids, series, controls)
        lengths = np.array([len(t) for t in grids])
        length = int(lengths.max())
        rows = np.arange(length)
        ys = padded(series, length, np.nan)
        return Dataset(
            ts=padded(grids, length, None),
            ys=ys,
            us=padded(controls, length, None),
            lengths=lengths,
            scored=rows[None, :] < lengths[:, None],
            states=tuple(states or [f"y{i}" for i in range(series[0].shape[1])]),
            inputs=tuple(inputs or [f"u{i}" for i in range(controls[0].shape[1])]),
            trajectories=tuple(trajectories or [str(i) for i in range(len(series))]),
            time=time,
            units=dict(units or {}),
            angles=dict(angles or {}),
            sigma=None if sigma is None else deviations(sigma, ys),
        )

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` with the columns `trajectory`, the time, states and inputs, and a row for each time.

        `from_frame(frame, time=..., states=..., inputs=..., trajectory="trajectory")` reads it.
        """
        columns = columns_of(self.states, self.ys) | columns_of(self.inputs, self.us)
        return as_frame(self, self.ts, columns, self.valid)

    def __len__(self) -> int:
        """The number of trajectories."""
        return len(self.trajectories)

    def __getitem__(self, which: Any) -> "Dataset":
        """Some trajectories: `data[0]`, `data[:3]`, `data["A"]`, or by a list of numbers or a mask."""
        if isinstance(which, str) and which not in self.trajectories:
            raise KeyError(f"no trajectory is named {which!r}; they are {', '.join(self.trajectories):.200}")
        index = self.trajectories.index(which) if isinstance(which, str) else which
        found = np.atleast_1d(np.arange(len(self))[index])
        if found.size == 0:
            raise IndexError(f"{which!r:.60} takes none of the {len(self)} trajectories.")
        return self.select(found)

    @property
    def turns(self) -> Turns:
        """The turn of each state that is an angle, None of others; empty if none is."""
        return turns_of(self.states, self.angles)

    def near(self, predicted: Values) -> Values:
        """The measured values, of angles in the turn nearest to a prediction."""
        return near_columns(self.ys, predicted, self.turns)

    @property
    def mask(self) -> Bool[np.ndarray, "trajectory time state"]:
        """Where a state was measured and its row is scored, shape `(trajectory, time, state)`."""
        return np.isfinite(self.ys) & self.scored[..., None]

    @property
    def shares_grid(self) -> bool:
        """Whether all trajectories have the same times, so that one joint solve serves all of them."""
        return bool((self.lengths == self.ts.shape[1]).all() and (self.ts == self.ts[:1]).all())

    @property
    def first(self) -> Float[np.ndarray, "trajectory state"]:
        """First measured value of each state, shape `(trajectory, state)`; NaN where it was never measured."""
        measured = np.isfinite(self.ys)
        row = measured.argmax(axis=1)
        return np.take_along_axis(self.ys, row[:, None, :], axis=1)[:, 0, :]

    def select(self, rows: Sequence[int] | np.ndarray) -> "Dataset":
        """Selects trajectories by index, and drops padding that none of them needs."""
        index = np.asarray(rows, dtype=int)
        length = int(self.lengths[index].max())
        return replace(
            self,
            ts=self.ts[index, :length],
            ys=self.ys[index, :length],
            us=self.us[index, :length],
            lengths=self.lengths[index],
            scored=self.scored[index, :length],
            trajectories=tuple(self.trajectories[i] for i in index),
            dates=self.dates and self.dates.of(index),
            sigma=None if self.sigma is None else self.sigma[index, :length],
            events=self.events and self.events.at((index, slice(length))),
        )

    def sample(self, most: int) -> "Dataset":
        """At most `most` trajectories; an evenly spaced choice if there are more."""
        count = len(self.trajectories)
        return self if count <= most else self.select(np.linspace(0, count - 1, most).astype(int))

    def until(self, end: Cut) -> "Dataset":
        """The rows with time at most `end` [unit of time], for all or for each trajectory; drops those without any."""
        lengths = (self.valid & (self.ts <= np.reshape(end, (-1, 1)))).sum(axis=1)
        kept = np.flatnonzero(lengths)
        if kept.size == 0:
            raise ValueError(f"no row has {self.time} <= {np.max(end):g}; the data begin at {self.ts.min():g}.")
        pieces = [(int(row), 0, int(lengths[row])) for row in kept]
        return cut(self, pieces, [self.trajectories[row] for row in kept])

    def after(self, start: Cut) -> "Dataset":
        """The rows with time later than `start` [unit of time], for all or for each; drops those without any."""
        begins = (self.valid & (self.ts <= np.reshape(start, (-1, 1)))).sum(axis=1)
        kept = np.flatnonzero(begins < self.lengths)
        if kept.size == 0:
            raise ValueError(f"no row has {self.time} > {np.min(start):g}; the data end at {self.ts.max():g}.")
        pieces = [(int(row), int(begins[row]), int(self.lengths[row])) for row in kept]
        return cut(self, pieces, [self.trajectories[row] for row in kept])

    def scored_after(self, start: Cut) -> "Dataset":
        """The same trajectories, with only the rows later than `start` [unit of time], for all or for each, scored."""
        return replace(self, scored=self.scored & (self.ts > np.reshape(start, (-1, 1))))

    def windows(self, rows: int, stride: int | None = None) -> "Dataset":
        """Cuts each trajectory into windows of `rows` rows, each a trajectory of its own.

        **Arguments:**

        - `rows`: length of a window; a trajectory that is not longer stays whole.
        - `stride`: rows between the starts of two windows; half a window by default. The last window of a trajectory
          ends at its last row.

        **Returns:** windows named `A[40:168]`, without those that hold no scored measurement.

        **Raises:** `ValueError` if a number is below 1, or no window holds a scored measurement.
        """
        pieces = self.pieces(rows, max(rows // 2, 1) if stride is None else stride)
        return cut(self, pieces, [f"{self.trajectories[row]}[{begin}:{end}]" for row, begin, end in pieces])

    def pieces(self, rows: int, stride: int) -> list[tuple[int, int, int]]:
        """Windows as (trajectory index, first row, row after the last); see `windows`."""
        if rows < 1 or stride < 1:
            raise ValueError(f"rows and stride of windows must be at least 1, got {rows} and {stride}.")
        counts = np.any(self.mask, axis=2)
        found = []
        for row, length in enumerate(self.lengths.tolist()):
            last = max(length - rows, 0)
            begins = [*range(0, last, stride), last]
            found += [(row, b, min(b + rows, length)) for b in begins if counts[row, b : b + rows].any()]
        if not found:
            raise ValueError("no window holds a measured value that counts; add measurements, or score more rows.")
        return found

    @property
    def valid(self) -> Bool[np.ndarray, "trajectory time"]:
        """Rows that are not padding, shape `(trajectory, time)`."""
        return np.arange(self.ts.shape[1])[None, :] < self.lengths[:, None]


def cut(data: Dataset, pieces: Sequence[tuple[int, int, int]], names: Sequence[str]) -> Dataset:
    """Cuts out parts of trajectories, each given as (trajectory index, first row, row after the last)."""
    row, begin, end = np.array(pieces).T
    lengths = end - begin
    within = np.arange(lengths.max())[None, :]
    valid = within < lengths[:, None]
    at = (row[:, None], begin[:, None] + np.minimum(within, lengths[:, None] - 1))
    return replace(
        data,
        ts=data.ts[at],
        ys=np.where(valid[..., None], data.ys[at], np.nan),
        us=data.us[at],
        lengths=lengths,
        scored=data.scored[at] & valid,
        trajectories=tuple(names),
        dates=data.dates and data.dates.of(row),
        sigma=None if data.sigma is None else data.sigma[at],
        events=data.events and data.events.at(at),
    )


def check_data(data: Any, name: str) -> None:
    """Refuses what is no dataset.

    **Raises:** `ValueError` that says how to make one.
    """
    if not isinstance(data, Dataset):
        raise ValueError(
            f"{name} must be a node_fit.Dataset, got a {type(data).__name__}; make one with "
            "node_fit.from_frame(frame, time=..., states=[...]) or node_fit.Dataset.from_arrays(ts, ys)."
        )
