"""Measured trajectories as padded, named arrays, with consistency checks.

Helpers that build such arrays from series of different lengths are here too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from ..runtime.placement import ArrayLike
from ..runtime.validation import check_argument
from .domains import Turns, check_bounds, is_pair, near_columns, turns_of, unwrap
from .events import Events
from .inputs import Interpolations, are_held, detect_interpolation, interpolate_input
from .interpolation import is_even, resample
from .noise_formula import NoiseFormula, read_formulas
from .phases import PERIODS, check_cycles, cycle_inputs, cycle_names
from .tables.times import SECONDS, Dates

if TYPE_CHECKING:
    import pandas

# Type of the trajectories in methods that return the same type.
Own = TypeVar("Own", bound="Trajectories")
# Column of a data frame that names the trajectory.
TRAJECTORY = "trajectory"
# Share of a step by which times may be rounded, so that a held input is moved by whole rows.
ROUNDED_TIMES = 1e-6


def is_several(arrays: ArrayLike) -> TypeGuard[Sequence[ArrayLike]]:
    """Whether this is a list or tuple of arrays or numbers, not an array."""
    return isinstance(arrays, list | tuple)


def as_series(arrays: ArrayLike, rank: int, name: str) -> list[np.ndarray]:
    """Returns a list of float64 arrays of the given rank, from one array, a stacked array, or a list."""
    if is_several(arrays) and arrays and np.ndim(arrays[0]) == rank:
        series = [np.asarray(a, dtype=np.float64) for a in arrays]
    else:
        array = np.asarray(arrays, dtype=np.float64)
        if array.ndim == rank:
            series = [array]
        elif array.ndim == rank + 1:
            series = list(array)
        else:
            raise ValueError(f"{name} must have {rank} or {rank + 1} dimensions, got shape {array.shape}.")
    if not series or any(len(a) == 0 for a in series):
        raise ValueError(f"{name} holds no rows; every trajectory needs at least one.")
    return series


def with_column(arrays: ArrayLike, ts: ArrayLike) -> ArrayLike:
    """Adds a column axis to arrays that lack it; returns others unchanged.

    Such arrays are one array `(time,)`, or one per trajectory, with the shapes of the grids in `ts`.
    """
    rank = rank_of(arrays)
    if rank == 1:
        return np.asarray(arrays, np.float64)[:, None]
    if rank == 2 and rank_of(ts) == 2:
        series, grids = cast(Iterable[ArrayLike], arrays), cast(Iterable[ArrayLike], ts)
        if [np.shape(column) for column in series] == [np.shape(t) for t in grids]:
            return [np.asarray(column, np.float64)[:, None] for column in series]
    return arrays


def rank_of(arrays: ArrayLike) -> int:
    """Returns the number of axes of an array, or of a list of arrays that can differ in length."""
    if is_several(arrays):
        return 1 + (np.ndim(arrays[0]) if arrays else 0)
    return np.ndim(arrays)


def check_shapes(ts: list[np.ndarray], ys: list[np.ndarray], us: list[np.ndarray]) -> None:
    if not len(ts) == len(ys) == len(us):
        raise ValueError(
            f"ts, ys and us must hold the same number of trajectories, got {len(ts)}, {len(ys)}, {len(us)}."
        )
    for index, (t, y, u) in enumerate(zip(ts, ys, us, strict=True)):
        if not len(t) == len(y) == len(u):
            raise ValueError(
                f"trajectory {index}: ts {t.shape}, ys {y.shape} and us {u.shape} must have one row per time."
            )
        if y.shape[1] != ys[0].shape[1] or u.shape[1] != us[0].shape[1]:
            raise ValueError(f"trajectory {index}: ys {y.shape} and us {u.shape} differ in columns from trajectory 0.")


def pad(series: list[np.ndarray], length: int, fill: float | None) -> np.ndarray:
    """Pads arrays to a common length with `fill`, or with copies of their last rows if it is `None`."""
    padded = np.empty((len(series), length, *series[0].shape[1:]))
    for row, array in zip(padded, series, strict=True):
        row[: len(array)] = array
        row[len(array) :] = array[-1] if fill is None else fill
    return padded


def as_deviations(sigma: ArrayLike, ys: np.ndarray) -> np.ndarray:
    """Returns standard deviations in the shape of the padded `ys`, from a number, one per state, or like `ys`."""
    if is_several(sigma) and sigma and np.ndim(sigma[0]) == 2:
        return pad([np.asarray(part, np.float64) for part in sigma], ys.shape[1], 1.0)
    deviations = np.asarray(sigma, np.float64)
    try:
        return np.broadcast_to(deviations, ys.shape)
    except ValueError:
        raise ValueError(
            f"sigma has shape {deviations.shape}; pass a number, {ys.shape[2]} numbers, or the shape of ys, {ys.shape}."
        ) from None


def as_frame(
    data: "Trajectories", ts: np.ndarray, columns: Mapping[str, np.ndarray], at: np.ndarray
) -> "pandas.DataFrame":
    """Builds a `pandas.DataFrame` with a row per time of each trajectory; times are timestamps if the data have dates.

    **Arguments:**

    - `data`: the dataset that names the trajectories and the time.
    - `ts`, `columns`: times, and columns by their names, of shape `(trajectory, time)`.
    - `at`: mask of the rows to include, of the same shape.

    **Raises:** `ValueError` if two columns have the same name.
    """
    import pandas as pd

    for name in (*columns, data.time):
        if name == TRAJECTORY or (name == data.time and name in columns):
            raise ValueError(f"a data frame can't have two columns {name!r}; rename that of the data.")
    times = ts[at] if data.dates is None else data.dates.stamps(np.nonzero(at)[0], ts[at])
    first = {TRAJECTORY: np.repeat(np.array(data.trajectories), at.sum(axis=1)), data.time: times}
    numbers = {name: columns[name].astype(int) for name in data.levels if name in columns}
    words = {name: np.array(data.levels[name], object)[positions] for name, positions in numbers.items()}
    return pd.DataFrame(first | {name: column[at] for name, column in ({**columns} | words).items()})


def columns_of(names: Sequence[str], values: np.ndarray, end: str = "") -> dict[str, np.ndarray]:
    """Returns the columns of an array by name, with `end` appended to each name."""
    return {f"{name}{end}": values[..., column] for column, name in enumerate(names)}


def check_names(data: "Trajectories") -> None:
    for kind, names, size in (
        ("states", data.states, data.ys.shape[2]),
        ("inputs", data.inputs, data.us.shape[2]),
        ("trajectories", data.trajectories, data.ys.shape[0]),
    ):
        if len(names) != size:
            raise ValueError(f"{kind} has the names {list(names)}, but needs {size}, one for each.")
    channels = (data.time, *data.states, *data.inputs)
    twice = sorted({name for name in channels if channels.count(name) > 1})
    if twice:
        raise ValueError(f"the name {twice[0]!r} is used twice among the time, states and inputs; rename one.")
    check_known_values("angles", data.angles, data.states)


def check_known_values(key: str, names: Iterable[object], known: Sequence[str], what: str = "a state") -> None:
    """Rejects names that are not in `known`.

    **Arguments:** `key`: argument that contains the names; `what`: kind of object that a name must refer to.

    **Raises:** `ValueError` that suggests the nearest name.
    """
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}."
            raise ValueError(f"{key} names {name!r}, which is not {what}; {hint}")


def invalid_trajectories(data: "Trajectories") -> list[int]:
    """Returns the indices of trajectories that break a rule of `Dataset`."""
    valid = data.valid
    is_not_increasing = valid[:, 1:] & ~(np.diff(data.ts, axis=1) > 0)
    is_invalid = valid & ~(np.isfinite(data.ts) & np.isfinite(data.us).all(axis=2) & ~np.isinf(data.ys).any(axis=2))
    return np.flatnonzero(is_invalid.any(axis=1) | is_not_increasing.any(axis=1)).tolist()


def check_trajectory(data: "Trajectories", row: int, name: str) -> None:
    length = data.lengths[row]
    t, u = data.ts[row, :length], data.us[row, :length]
    if not np.isfinite(t).all():
        raise ValueError(
            f"{data.time} must be finite; trajectory {name!r} lacks it at row {first_true(~np.isfinite(t))}."
        )
    steps = np.diff(t)
    if (steps <= 0).any():
        place = first_true(steps <= 0) + 1
        fault = "repeats" if t[place] == t[place - 1] else f"goes back from {t[place - 1]:g} to"
        raise ValueError(
            f"{data.time} must increase strictly; trajectory {name!r} {fault} {t[place]:g} at row {place}. "
            "Sort the rows, and remove or average the duplicates."
        )
    if not np.isfinite(u).all():
        place, channel = np.argwhere(~np.isfinite(u))[0]
        raise ValueError(
            f"inputs must be known at every time; trajectory {name!r} lacks {data.inputs[channel]!r} at row {place}. "
            "Fill it, or remove the row."
        )
    if np.isinf(data.ys[row, :length]).any():
        place, channel = np.argwhere(np.isinf(data.ys[row, :length]))[0]
        raise ValueError(
            f"state {data.states[channel]!r} of trajectory {name!r} is infinite at row {place}; "
            "leave it empty if unknown."
        )


def pad_like(
    ys: np.ndarray, given: ArrayLike, ts: ArrayLike, lengths: np.ndarray, name: str, fill: float
) -> np.ndarray:
    """Pads per-value numbers, such as marks, to the shape of the padded states."""
    series = as_series(with_column(given, ts), rank=2, name=name)
    if len(series) != len(ys) or any(len(part) != length for part, length in zip(series, lengths, strict=True)):
        raise ValueError(f"{name} must have the form of ys, a number for each value.")
    return pad(series, int(ys.shape[1]), fill)


def finite_ends(other_end: np.ndarray) -> np.ndarray | None:
    """Returns the other ends of intervals, NaN for values without one; None if all are missing."""
    is_end = np.isfinite(other_end)
    return np.where(is_end, other_end, np.nan) if is_end.any() else None


def check_sigma(data: "Trajectories") -> None:
    """Rejects standard deviations that are not positive numbers at measured values."""
    if data.sigma is None:
        return
    if data.sigma.shape != data.ys.shape:
        raise ValueError(f"sigma has shape {data.sigma.shape}, but the states have {data.ys.shape}.")
    wrong = np.argwhere(np.isfinite(data.ys) & ~(np.isfinite(data.sigma) & (data.sigma > 0)))
    if len(wrong):
        row, time, channel = wrong[0]
        raise ValueError(
            f"sigma must be positive where a state was measured; that of {data.states[channel]!r} in trajectory "
            f"{data.trajectories[row]!r} is {data.sigma[row, time, channel]:g} at row {time}."
        )


def check_censored(data: "Trajectories") -> None:
    """Rejects censoring marks that differ in shape from the values, or are not -1, 0 or 1."""
    if data.censored is None:
        return
    if data.censored.shape != data.ys.shape:
        raise ValueError(f"censored has shape {data.censored.shape}, but the states have {data.ys.shape}.")
    if not np.isin(data.censored, (-1, 0, 1)).all():
        raise ValueError("censored must be -1 (below the value), 1 (above it) or 0 everywhere.")


def check_other_end(data: "Trajectories") -> None:
    """Rejects other ends of intervals on the wrong side of their censored values."""
    if data.other_end is None:
        return
    if data.censored is None or data.other_end.shape != data.ys.shape:
        raise ValueError("other_end needs censored beside it, both in the form of ys: -1 where a value is below that.")
    wrong = np.argwhere(data.censored * (data.other_end - data.ys) <= 0)
    if len(wrong):
        row, time, channel = wrong[0]
        raise ValueError(
            f"other_end of {data.states[channel]!r} in trajectory {data.trajectories[row]!r} is "
            f"{data.other_end[row, time, channel]:g} at row {time}, and the value {data.ys[row, time, channel]:g} with "
            f"the mark {data.censored[row, time, channel]}; it is less than the value where censored is -1, more where "
            "it is 1, and NaN elsewhere."
        )


def check_events(data: "Trajectories") -> None:
    if data.events is not None and not data.events.factor.shape[:2] == data.events.shift.shape[:2] == data.ts.shape:
        raise ValueError(f"events have the shape {data.events.factor.shape}, but the times have {data.ts.shape}.")


def first_true(flags: np.ndarray) -> int:
    return int(np.flatnonzero(flags)[0])


Times = Float[np.ndarray, "trajectory time"]
Values = Float[np.ndarray, "trajectory time state"]
Cut = float | Float[np.ndarray, " trajectory"]
Inputs = Float[np.ndarray, "trajectory time input"]


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Measured states and inputs over time, as padded arrays; see `Dataset` for the fields."""

    ts: Times
    ys: Values
    us: Inputs
    lengths: Int[np.ndarray, " trajectory"]
    scored: Bool[np.ndarray, "trajectory time"]
    states: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()
    time: str = "t"
    units: dict[str, str] = field(default_factory=dict[str, str])
    angles: dict[str, float] = field(default_factory=dict[str, float])
    dates: Dates | None = None
    sigma: Values | None = None
    events: Events | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    censored: Int[np.ndarray, "trajectory time state"] | None = None
    noise: Mapping[str, NoiseFormula] = field(default_factory=dict[str, NoiseFormula])
    other_end: Values | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self):
        check_names(self)
        for row in invalid_trajectories(self):
            check_trajectory(self, row, self.trajectories[row])
        check_sigma(self)
        check_events(self)
        check_censored(self)
        check_other_end(self)
        if self.angles:
            turned = unwrap(self.ys, self.turns)
            if self.other_end is not None:
                object.__setattr__(self, "other_end", self.other_end + (turned - self.ys))
            object.__setattr__(self, "ys", turned)

    def __str__(self) -> str:
        driven = f" with inputs {', '.join(self.inputs)}" if self.inputs else ""
        rows, count = int(self.lengths.sum()), len(self.trajectories)
        records = "1 trajectory" if count == 1 else f"{count} trajectories"
        return f"Dataset of {', '.join(self.states)}{driven}: {rows} rows of {records}"

    @classmethod
    def from_arrays(
        cls: type[Own],
        ts: ArrayLike,
        ys: ArrayLike,
        us: ArrayLike | None = None,
        *,
        states: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        trajectories: Sequence[str] | None = None,
        time: str = "t",
        units: dict[str, str] | None = None,
        angles: dict[str, float] | None = None,
        sigma: ArrayLike | str | Mapping[str, object] | None = None,
        censored: ArrayLike | None = None,
        other_end: ArrayLike | None = None,
    ) -> Own:
        """Builds a dataset from arrays.

        **Arguments:**

        - `ts`: times: one grid `(time,)` for all trajectories, `(trajectory, time)`, or a list of `(time,)` arrays.
        - `ys`: states: `(time, state)`, `(trajectory, time, state)`, or a list of `(time, state)` arrays; for a single
          state also without the last axis, in the form of `ts`. NaN is missing.
        - `us`: inputs, in the form of `ys`; omit them for a system without inputs.
        - `states`, `inputs`, `trajectories`: names; by default `y0, y1, ...`, `u0, ...` and `0, 1, ...`.
        - `time`, `units`: name of the time, and units of channels by name.
        - `angles`: states that are angles, each with its turn.
        - `sigma`: standard deviations of the measurements: a number, `(state,)`, or in the form of `ys`; or a formula,
          or one per state, as in `Dataset.from_file`.
        - `censored`: in the form of `ys`, -1 if the value is below that in `ys`, 1 if it is above, else 0.
        - `other_end`: in the form of `ys`, the other end of the interval that contains a censored value; NaN or
          infinite without one.

        **Raises:** `ValueError` with the shapes if they do not match.
        """
        for name, given in (("states", states), ("inputs", inputs), ("trajectories", trajectories)):
            check_argument(name, given, Sequence[str] | None, "a list of names")
        check_argument("units", units, Mapping | None, "a dict of units by name")
        lacks_axis = with_column(ys, ts) is not ys
        formulas = sigma if isinstance(sigma, str | Mapping) else None
        sigma = None if isinstance(sigma, str | Mapping) else sigma
        sigma = with_column(sigma, ts) if lacks_axis and sigma is not None else sigma
        ys, us = with_column(ys, ts), None if us is None else with_column(us, ts)
        series = as_series(ys, rank=2, name="ys")
        grids = as_series(ts, rank=1, name="ts")
        controls = as_series(us, rank=2, name="us") if us is not None else [np.zeros((len(y), 0)) for y in series]
        if len(grids) == 1:
            grids = grids * len(series)
        check_shapes(grids, series, controls)
        lengths = np.array([len(t) for t in grids])
        length = int(lengths.max())
        rows = np.arange(length)
        padded = pad(series, length, np.nan)
        names = tuple(states or [f"y{i}" for i in range(series[0].shape[1])])

        def marks(given: ArrayLike, name: str, fill: float) -> np.ndarray:
            return pad_like(padded, given, ts, lengths, name, fill)

        return cls(
            ts=pad(grids, length, None),
            ys=padded,
            us=pad(controls, length, None),
            lengths=lengths,
            scored=rows[None, :] < lengths[:, None],
            states=names,
            inputs=tuple(inputs or [f"u{i}" for i in range(controls[0].shape[1])]),
            trajectories=tuple(trajectories or [str(i) for i in range(len(series))]),
            time=time,
            units=dict(units or {}),
            angles=dict(angles or {}),
            sigma=None if sigma is None else as_deviations(sigma, padded),
            censored=None if censored is None else marks(censored, "censored", 0.0).astype(np.int8),
            noise=read_formulas(formulas, names),
            other_end=None if other_end is None else finite_ends(marks(other_end, "other_end", np.nan)),
        )

    def to_frame(self) -> "pandas.DataFrame":
        """Returns a `pandas.DataFrame` with the columns `trajectory`, the time, states and inputs, and a row per time.

        `Dataset.from_frame(frame, time=..., states=..., inputs=..., trajectory="trajectory")` reads it back; covariates
        that are words (`levels`) are words here, too.
        """
        columns = columns_of(self.states, self.ys) | columns_of(self.inputs, self.us)
        return as_frame(self, self.ts, columns, self.valid)

    def format_input(self, index: int, value: float) -> str:
        """Returns the value of an input as text: that of a covariate that is a word, or the number."""
        words = self.levels.get(self.inputs[index])
        return f"{value:.4g}" if words is None else words[int(value)]

    def __len__(self) -> int:
        """The number of trajectories."""
        return len(self.trajectories)

    def __getitem__(self: Own, which: int | np.integer | str | slice | Sequence[int] | np.ndarray) -> Own:
        """Selects trajectories: `data[0]`, `data[:3]`, `data["A"]`, or by a list of indices or a mask."""
        if isinstance(which, str) and which not in self.trajectories:
            raise KeyError(f"no trajectory is named {which!r}; they are {', '.join(self.trajectories):.200}")
        index = self.trajectories.index(which) if isinstance(which, str) else which
        rows = np.atleast_1d(np.arange(len(self))[index])
        if rows.size == 0:
            raise IndexError(f"{which!r:.60} takes none of the {len(self)} trajectories.")
        return self.select(rows)

    @property
    def turns(self) -> Turns:
        """Turn of each angle state, None for other states; empty if no state is an angle."""
        return turns_of(self.states, self.angles)

    def near(self, predicted: Values) -> Values:
        """Returns the measured values, with angles in the turn nearest to a prediction.

        A censored value equals the prediction if the prediction lies beyond the limit, as the true value does. If the
        prediction lies beyond the other end of an interval, the value is that end.
        """
        ys = near_columns(self.ys, predicted, self.turns)
        if self.censored is None:
            return ys
        with np.errstate(invalid="ignore"):
            nearest = np.where(self.censored * (predicted - ys) > 0, predicted, ys)
            if self.other_end is None:
                return nearest
            end = self.other_end + (ys - self.ys)
            return np.where(self.censored * (predicted - end) > 0, end, nearest)

    @property
    def middles(self) -> Values:
        """Measured values, with midpoints in place of intervals and NaN in place of limits."""
        if self.censored is None:
            return self.ys
        exact = np.where(self.censored == 0, self.ys, np.nan)
        return exact if self.other_end is None else np.where(np.isnan(exact), (self.ys + self.other_end) / 2, exact)

    @property
    def exact(self: Own) -> Own:
        """The data for methods that take values as exact: limits are missing, and intervals have their midpoints."""
        return self if self.censored is None else replace(self, ys=self.middles, censored=None, other_end=None)

    @property
    def mask(self) -> Bool[np.ndarray, "trajectory time state"]:
        """Where a state was measured and its row is scored, shape `(trajectory, time, state)`."""
        return np.isfinite(self.ys) & self.scored[..., None]

    @cached_property
    def is_driven(self) -> bool:
        """Whether an input changes within a trajectory; covariates, which do not, leave a system autonomous."""
        return bool((self.valid[:, 1:, None] & (np.diff(self.us, axis=1) != 0)).any())

    @cached_property
    def input_interpolation(self) -> tuple[Interpolations, str]:
        """Interpolation of inputs between rows, `hold`, `linear` or `cubic`, for all or for each; and the reason."""
        return detect_interpolation(self.ts, self.us, self.valid, self.inputs)

    @property
    def held_inputs(self) -> tuple[bool, ...]:
        """Whether each input looks piecewise constant; none does in single rows."""
        rows, count = self.us.shape[1:]
        return are_held(self.input_interpolation[0], count) if rows > 1 and count else (False,) * count

    @property
    def steps(self) -> Float[np.ndarray, " step"]:
        """Times between neighbouring rows of all trajectories [unit of time]."""
        return np.diff(self.ts, axis=1)[self.valid[:, 1:]]

    @property
    def median_step(self) -> float:
        """The median time between two rows [unit of time]."""
        return float(np.median(self.steps))

    @property
    def shares_grid(self) -> bool:
        """Whether all trajectories have the same times, so that one joint solve covers them all."""
        return bool((self.lengths == self.ts.shape[1]).all() and (self.ts == self.ts[:1]).all())

    @property
    def first(self) -> Float[np.ndarray, "trajectory state"]:
        """First measured value of each state, shape `(trajectory, state)`; NaN if it was never measured."""
        measured = np.isfinite(self.ys)
        row = measured.argmax(axis=1)
        return np.take_along_axis(self.ys, row[:, None, :], axis=1)[:, 0, :]

    def select(self: Own, rows: Sequence[int] | np.ndarray) -> Own:
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
            trajectories=tuple(self.trajectories[i] for i in map(int, index)),
            dates=self.dates and self.dates.of(index),
            sigma=None if self.sigma is None else self.sigma[index, :length],
            censored=None if self.censored is None else self.censored[index, :length],
            other_end=None if self.other_end is None else self.other_end[index, :length],
            events=self.events and self.events.at((index, slice(length))),
        )

    def shift(self: Own, by: Values) -> Own:
        """Returns the trajectories with `by` added to all values; `by` broadcasts to the shape of `ys`."""
        return replace(self, ys=self.ys + by, other_end=None if self.other_end is None else self.other_end + by)

    def sample(self: Own, most: int, names: Collection[str] = ()) -> Own:
        """Selects at most `most` trajectories, evenly spaced, plus those in `names`; returns all if they are fewer."""
        count = len(self.trajectories)
        if count <= most:
            return self
        named = [row for row, name in enumerate(self.trajectories) if name in names]
        return self.select(np.union1d(np.linspace(0, count - 1, most).astype(int), named).astype(int))

    def until(self: Own, end: Cut) -> Own:
        """Keeps rows up to the time `end` [unit of time], common or per trajectory; drops empty trajectories."""
        lengths = (self.valid & (self.ts <= np.reshape(end, (-1, 1)))).sum(axis=1)
        kept = np.flatnonzero(lengths)
        if kept.size == 0:
            raise ValueError(f"no row has {self.time} <= {np.max(end):g}; the data begin at {self.ts.min():g}.")
        pieces = [(int(row), 0, int(lengths[row])) for row in kept]
        return cut(self, pieces, [self.trajectories[row] for row in kept])

    def after(self: Own, start: Cut) -> Own:
        """Keeps rows after the time `start` [unit of time], common or per trajectory; drops empty trajectories."""
        begins = (self.valid & (self.ts <= np.reshape(start, (-1, 1)))).sum(axis=1)
        kept = np.flatnonzero(begins < self.lengths)
        if kept.size == 0:
            raise ValueError(f"no row has {self.time} > {np.min(start):g}; the data end at {self.ts.max():g}.")
        pieces = [(int(row), int(begins[row]), int(self.lengths[row])) for row in kept]
        return cut(self, pieces, [self.trajectories[row] for row in kept])

    def score_after(self: Own, start: Cut) -> Own:
        """Scores only the rows after `start` [unit of time], common or per trajectory; keeps the others as context."""
        return replace(self, scored=self.scored & (self.ts > np.reshape(start, (-1, 1))))

    def windows(self: Own, rows: int, stride: int | None = None) -> Own:
        """Cuts each trajectory into windows of `rows` rows, each a trajectory of its own.

        **Arguments:**

        - `rows`: length of a window; a trajectory of at most this length stays whole.
        - `stride`: rows between the starts of two windows; half a window by default. The last window of a trajectory
          ends at its last row.

        **Returns:** windows named `A[40:168]`, without those that contain no scored measurement.

        **Raises:** `ValueError` if a number is below 1, or no window contains a scored measurement.
        """
        pieces = self.pieces(rows, max(rows // 2, 1) if stride is None else stride)
        return cut(self, pieces, [f"{self.trajectories[row]}[{begin}:{end}]" for row, begin, end in pieces])

    def resample(self: Own, step: float, inputs: Interpolations) -> Own:
        """Interpolates exact values to evenly spaced times; returns evenly spaced trajectories unchanged.

        **Arguments:** `step`, `inputs`: as in `node_fit.data.interpolation.resample`.
        """
        if is_even(self.steps, step):
            return self
        parts = [
            resample(ts[:end], ys[:end], us[:end], scored[:end], step=step, inputs=inputs)
            for ts, ys, us, scored, end in zip(self.ts, self.exact.ys, self.us, self.scored, self.lengths, strict=True)
        ]
        lengths = np.array([len(ts) for ts, *_ in parts])
        longest = int(lengths.max())
        ts, ys, us, scored = zip(*parts, strict=True)
        return replace(
            self,
            ts=pad(list(ts), longest, None),
            ys=pad(list(ys), longest, np.nan),
            us=pad(list(us), longest, None),
            lengths=lengths,
            scored=pad(list(scored), longest, 0.0) > 0,
            sigma=None,  # unknown for interpolated values
            censored=None,
            other_end=None,
        )

    def delay_inputs(self: Own, delays: Mapping[str, float]) -> Own:
        """Moves inputs to the time at which they act; before that, they keep their first value.

        **Arguments:** `delays`: delay of some inputs [unit of time], as found by `node_fit.find_delays`.

        **Raises:** `ValueError` for unknown names, and for delays that are negative or not finite.
        """
        if not delays:
            return self
        check_known_values("delays", delays, self.inputs, "an input")
        us, rounding = self.us.astype(np.float64), ROUNDED_TIMES * self.median_step
        for name, delay in delays.items():
            if not 0 <= delay < np.inf:
                raise ValueError(f"delays: the delay of {name!r} must be a number that is not negative, got {delay}.")
            column = self.inputs.index(name)
            for row, end in enumerate(self.lengths):
                t, u = self.ts[row, :end], self.us[row, :end, column]
                at = np.maximum(t - delay + rounding, t[0])
                us[row, :end, column] = interpolate_input(t, u, held=self.held_inputs[column])(at)
        return replace(self, us=us)

    def with_cycles(self: Own, cycles: Sequence[str]) -> Own:
        """Appends the sine and the cosine of the time of day, of the week or of the year to the inputs.

        **Arguments:** `cycles`: some of `day`, `week` and `year`, as found by `node_fit.find_cycles`. Dates count in
        their local time; times without dates count from 0, and `units` has to give their unit.

        **Returns:** data with further inputs such as `day_sin` and `day_cos`.

        **Raises:** `ValueError` for unknown cycles, existing inputs, and times of unknown unit.
        """
        if not cycles:
            return self
        unit = self.units.get(self.time)
        check_known_values("cycles", cycles, tuple(PERIODS), "a cycle")
        check_cycles(cycles, self.inputs, has_clock=self.dates is not None or unit in SECONDS)
        us = np.concatenate([self.us, cycle_inputs(cycles, self.ts, self.dates, unit)], axis=2)
        return replace(self, us=us, inputs=(*self.inputs, *cycle_names(cycles)))

    def clip(self: Own, ranges: Mapping[str, Sequence[float | int | None]]) -> Own:
        """Marks measurements at or beyond the ends of their sensor's range as censored: the true value lies beyond.

        **Arguments:** `ranges`: lower and upper end of the range of some states, None for none, as found by
        `node_fit.find_ranges`.

        **Raises:** `ValueError` for unknown names, and for ends that are no increasing pair.
        """
        if not ranges:
            return self
        check_known_values("ranges", ranges, self.states)
        ys, marks = self.ys.copy(), np.zeros(self.ys.shape, np.int8) if self.censored is None else self.censored.copy()
        for name, ends in ranges.items():
            if not is_pair(ends):
                raise ValueError(f"ranges: that of {name!r} must be [lower, upper], null for none, got {ends}.")
            lower, upper = check_bounds(ends, f"ranges: the sensor of {name!r}")
            column = self.states.index(name)
            values, sides, exact = ys[..., column], marks[..., column], marks[..., column] == 0
            for side, end in ((-1, lower), (1, upper)):
                if end is not None:
                    beyond = exact & (side * values >= side * end)
                    sides[beyond], values[beyond] = side, end
        return replace(self, ys=ys, censored=marks)

    def pieces(self, rows: int, stride: int) -> list[tuple[int, int, int]]:
        """Returns windows as (trajectory index, first row, row after the last); see `windows`."""
        if rows < 1 or stride < 1:
            raise ValueError(f"rows and stride of windows must be at least 1, got {rows} and {stride}.")
        counts = np.any(self.mask, axis=2)
        windows: list[tuple[int, int, int]] = []
        for row, length in enumerate(self.lengths.tolist()):
            last = max(length - rows, 0)
            begins = [*range(0, last, stride), last]
            windows += [(row, b, min(b + rows, length)) for b in begins if counts[row, b : b + rows].any()]
        if not windows:
            raise ValueError("no window holds a measured value that counts; add measurements, or score more rows.")
        return windows

    def label(self, name: str) -> str:
        """Returns a channel's name with its unit; for timestamps, the unit and the origin of the time."""
        dates = self.dates if name == self.time else None
        if dates is not None and not (dates.zero != dates.zero[0]).any():
            return f"{name} [{dates.unit} since {dates.first}]"
        unit = self.units.get(name)
        return f"{name} [{unit}]" if unit else name

    @property
    def valid(self) -> Bool[np.ndarray, "trajectory time"]:
        """Rows that are not padding, shape `(trajectory, time)`."""
        return np.arange(int(self.ts.shape[1]))[None, :] < self.lengths[:, None]


# Type of trajectories in functions that return the type of their argument.
Data = TypeVar("Data", bound=Trajectories)


def cut(data: Data, pieces: Sequence[tuple[int, int, int]], names: Sequence[str]) -> Data:
    """Cuts out parts of trajectories, specified as (trajectory index, first row, row after the last)."""
    row, begin, end = np.array(pieces).T
    lengths = end - begin
    within = np.arange(int(lengths.max()))[None, :]
    valid = within < lengths[:, None]
    index = (row[:, None], begin[:, None] + np.minimum(within, lengths[:, None] - 1))
    return replace(
        data,
        ts=data.ts[index],
        ys=np.where(valid[..., None], data.ys[index], np.nan),
        us=data.us[index],
        lengths=lengths,
        scored=data.scored[index] & valid,
        trajectories=tuple(names),
        dates=data.dates and data.dates.of(row),
        sigma=None if data.sigma is None else data.sigma[index],
        censored=None if data.censored is None else data.censored[index],
        other_end=None if data.other_end is None else np.where(valid[..., None], data.other_end[index], np.nan),
        events=data.events and data.events.at(index),
    )
