"""Scaling of states, inputs and time to order one, and back."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Literal, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..runtime.placement import AnyArray, ArrayLike
from ..runtime.serialization import stored_as
from ..runtime.validation import check_fields
from .dataset import Dataset, GivenStates
from .domains import (
    TURNS,
    Bounds,
    Numbers,
    Turns,
    check_bounds,
    check_inside,
    from_line,
    gather_turns,
    is_inside,
    is_pair,
    near_columns,
    slope,
    to_line,
)
from .groups import BY_TRAJECTORY, with_trajectory_numbers
from .tables.table import list_names
from .trajectories import check_known_values

Host = Float[np.ndarray, "..."]
# Magnitudes above this, or below its reciprocal, leave too little range for float32 arithmetic.
LARGEST_SCALED = 1e30
UNBOUNDED: Bounds = (None, None)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """How states, inputs and time are scaled to order one.

    **Arguments:**

    - `log`: names of positive states and inputs to treat on a logarithmic scale.
    - `bounds`: lower and upper bounds of states and inputs, by name; `None` for no bound.
    - `affine`: whether to shift and scale states, inputs and time to order one. If not, the vector field receives the
      user's units (for bounded states, their logarithm or other map to the line).
    - `angles`: names of states that are angles, measured modulo a turn or not. Networks receive their sine and cosine,
      and errors are taken the shorter way around, in `[-turn / 2, turn / 2)`. Consecutive measurements must be less
      than half a turn apart. Predictions have no jumps, and begin within half a turn of zero.
    - `angle_unit`: `rad` or `deg`.
    """

    log: Sequence[str] = ()
    bounds: Mapping[str, Sequence[float | None]] = dataclasses.field(default_factory=dict[str, Sequence[float | None]])
    affine: bool = True
    angles: Sequence[str] = ()
    angle_unit: Literal["rad", "deg"] = "rad"

    def __post_init__(self):
        check_fields(self)
        if self.angle_unit not in TURNS:
            raise ValueError(f"angle_unit must be rad or deg, got {self.angle_unit!r}.")

    def limits(self, states: Sequence[str], inputs: Sequence[str] = ()) -> dict[str, Bounds]:
        """Returns the bounds by name, for states (hidden ones included) and inputs.

        **Raises:** `ValueError` that begins with the argument that contains an unknown name.
        """
        check_known_values("angles", self.angles, states)
        limits = gather_bounds(self.log, self.bounds, states, inputs)
        twice = sorted(set(self.angles) & set(limits))
        if twice:
            raise ValueError(f"angles names {twice[0]!r}, which log or bounds names too; an angle has no bounds.")
        return limits

    def check(self, data: Dataset) -> None:
        """Rejects values of the data on or beyond their bounds; bounds of hidden states are not checked here.

        **Raises:** `ValueError` that names the state or input, the trajectory and the time.
        """
        known = (*data.states, *data.inputs)
        log, bounds = [name for name in self.log if name in known], self.bounds.items()
        named = {name: pair for name, pair in bounds if name in known}
        check_values(data, gather_bounds(log, named, data.states, data.inputs), log)

    @property
    def turns(self) -> dict[str, float]:
        """Turn of each angle, in its unit."""
        return dict.fromkeys(self.angles, TURNS[self.angle_unit])

    def mark_angles(self, data: Dataset) -> Dataset:
        """Returns the data with their angles marked, and thus unwrapped."""
        angles = {name: turn for name, turn in self.turns.items() if name in data.states}
        return dataclasses.replace(data, angles=data.angles | angles) if angles else data


@stored_as("Scaler")
class Scaler(eqx.Module):
    """An affine map of states, inputs and time to order one; bounded states are first mapped to the real line.

    **Arguments:**

    - `state_shift`, `state_scale`: shape `(state,)`, in the user's units (of `bounds.to_line` if there are bounds).
    - `input_shift`, `input_scale`: shape `(input,)`, in the user's units.
    - `time_shift`, `time_scale`: scalars, in the user's unit of time.
    - `bounds`: lower and upper bound of each state, `None` for no bound. A positive state has the lower bound 0, so the
      scaler takes its logarithm.
    - `input_bounds`: bounds of each input, likewise; empty if no input has any.
    - `turns`: turn of each angle state in its unit, None for other states; empty if no state is an angle.
    - `counted`: whether each state is a count since the previous row, so that its first value in a trajectory carries
      no information; empty if no state is one.
    - `trajectories`: names of the fitted trajectories if each has its own constants: the last input is then the number
      of the trajectory. Otherwise empty.
    """

    state_shift: Float[AnyArray, " state"]
    state_scale: Float[AnyArray, " state"]
    input_shift: Float[AnyArray, " input"]
    input_scale: Float[AnyArray, " input"]
    time_shift: Float[AnyArray, ""]
    time_scale: Float[AnyArray, ""]
    bounds: tuple[Bounds, ...] = eqx.field(static=True)
    input_bounds: tuple[Bounds, ...] = eqx.field(static=True, default=())
    turns: Turns = eqx.field(static=True, default=())
    counted: tuple[bool, ...] = eqx.field(static=True, default=())
    trajectories: tuple[str, ...] = eqx.field(static=True, default=())

    @staticmethod
    def from_dataset(
        data: Dataset,
        *,
        bounds: Mapping[str, Bounds] | None = None,
        identity: bool = False,
        counted: Collection[str] = (),
        trajectories: Sequence[str] = (),
    ) -> "Scaler":
        """Builds the scaler that maps `data` to mean 0 and standard deviation 1, with a derivative of order one.

        **Arguments:**

        - `data`: the training trajectories, with their angles marked; other splits are not used.
        - `bounds`: bounds of states and inputs, by name.
        - `identity`: whether to leave all units unchanged.
        - `counted`: names of the channels that are counts since the previous row.
        - `trajectories`: see the class.

        **Raises:** `ValueError` if a state has a value outside its bounds, or a number is too large or too small.
        """
        limits, input_limits = (
            tuple((bounds or {}).get(name, UNBOUNDED) for name in names) for names in (data.states, data.inputs)
        )
        scaler = Scaler(
            state_shift=np.zeros(len(data.states)),
            state_scale=np.ones(len(data.states)),
            input_shift=np.zeros(len(data.inputs)),
            input_scale=np.ones(len(data.inputs)),
            time_shift=np.zeros(()),
            time_scale=np.ones(()),
            bounds=limits,
            input_bounds=input_limits if set(input_limits) - {UNBOUNDED} else (),
            turns=data.turns,
            counted=tuple(name in counted for name in data.states) if counted else (),
            trajectories=tuple(trajectories),
        )
        data = scaler.mark_angles(data)
        scaler.check(data)
        if identity:
            return scaler
        states = np.where(data.mask, scaler.scale_states(data.ys), np.nan)
        inputs = scaler.scale_inputs(data.us[data.valid])
        shift, scale = mean_and_deviation(around_means(states.reshape(-1, len(data.states)), data.turns))
        input_shift, input_scale = mean_and_deviation(inputs)
        return dataclasses.replace(
            scaler,
            state_shift=shift,
            state_scale=scale,
            input_shift=input_shift,
            input_scale=input_scale,
            time_shift=np.asarray(data.ts.min()),
            time_scale=np.asarray(characteristic_time(data.ts, (states - shift) / scale)),
        )

    def with_hidden_states(self, bounds: Sequence[Bounds], turns: Turns = ()) -> "Scaler":
        """Returns the scaler with additional hidden states of these bounds and turns, not shifted and not scaled."""
        more = len(bounds)
        turns_before = self.turns or (None,) * len(self.bounds)
        return dataclasses.replace(
            self,
            state_shift=np.concatenate([host(self.state_shift), np.zeros(more)]),
            state_scale=np.concatenate([host(self.state_scale), np.ones(more)]),
            bounds=(*self.bounds, *bounds),
            turns=(*turns_before, *(turns or (None,) * more)) if self.turns or turns else (),
        )

    def mark_angles(self, data: Dataset) -> Dataset:
        """Marks the angles of the data, which unwraps them, and numbers the trajectories.

        The first value of a count becomes missing.

        **Raises:** `ValueError` that names a trajectory without a number.
        """
        data = with_trajectory_numbers(data, self.trajectories)
        angles = {name: turn for name, turn in zip(data.states, self.turns, strict=True) if turn} if self.turns else {}
        data = data if data.angles == angles else dataclasses.replace(data, angles=angles)
        if not (np.isfinite(data.ys[:, 0]) & np.array(self.counted or False)).any():
            return data
        ys = data.ys.copy()
        ys[:, 0, np.flatnonzero(self.counted)] = np.nan
        return dataclasses.replace(data, ys=ys)

    def with_number(self, u: GivenStates) -> GivenStates:
        """Replaces the trajectory's name by its number in inputs by name.

        **Raises:** `ValueError` with an example if a trajectory is required and missing or unknown.
        """
        if not self.trajectories:
            return u
        named = u[BY_TRAJECTORY] if isinstance(u, Mapping) and BY_TRAJECTORY in u else None
        if named in self.trajectories:
            return {**cast(Mapping[str, ArrayLike], u), BY_TRAJECTORY: 1.0 + self.trajectories.index(cast(str, named))}
        if u is None or isinstance(named, str):
            raise ValueError(
                f"each trajectory has constants of its own; choose one, such as u={{{BY_TRAJECTORY!r}: "
                f"{self.trajectories[0]!r}}}. The trajectories are {list_names(self.trajectories)}."
            )
        return u

    def near(self, zs: Numbers, to: AnyArray) -> Numbers:
        """Returns scaled states, shape `(..., state)`, with angles in the turn nearest to `to`; NumPy or JAX arrays."""
        return near_columns(zs, to, self.turns, self.state_scale)

    def check(self, data: Dataset) -> None:
        """Rejects measured states outside their bounds, and numbers that floats can't hold."""
        limits = dict(zip(data.states, self.bounds, strict=True))
        check_values(data, limits | dict(zip(data.inputs, self.input_bounds, strict=bool(self.input_bounds))))
        for index, name in enumerate(data.states):
            check_columns(data.ys[..., index][data.mask[..., index]], f"state {name!r}")
        for index, name in enumerate(data.inputs):
            check_columns(data.us[..., index][data.valid], f"input {name!r}")
        gaps = np.diff(data.ts, axis=1)
        check_columns(gaps[gaps > 0].min(initial=np.inf, keepdims=True), f"the time {data.time!r}, between two rows,")
        check_columns(data.ts[data.valid], f"the time {data.time!r}")

    def scale_states(self, ys: Host) -> Host:
        """Scales states from the user's units to order one, on the host in float64; keeps shape `(..., state)`."""
        return (columns_by_name(to_line, ys, self.bounds) - host(self.state_shift)) / host(self.state_scale)

    def unscale_states(self, zs: Host) -> Host:
        """Scales states from order one to the user's units, on the host in float64; keeps shape `(..., state)`."""
        with np.errstate(invalid="ignore", over="ignore"):
            line = zs.astype(np.float64) * host(self.state_scale) + host(self.state_shift)
        return columns_by_name(from_line, line, self.bounds)

    def scale_measured(self, data: Dataset, predicted: Host) -> Host:
        """Scales measured states, with angles and censored values as near to scaled predictions as they allow.

        **Arguments:** `data`: with its angles marked. `predicted`: shape `(trajectory, time, state)`.
        """
        return self.scale_states(data.near(self.unscale_states(predicted)))

    def unscale_rates(self, ys: Host, rates: Host) -> Host:
        """Scales time derivatives to the user's units, at states `ys` in user's units; NaN outside the bounds."""
        unscaled = rates * host(self.state_scale) / host(self.time_scale) / columns_by_name(slope, ys, self.bounds)
        return np.where(columns_by_name(is_inside, ys, self.bounds), unscaled, np.nan)

    def scale_inputs(self, us: Host) -> Host:
        """Scales inputs from the user's units to order one; keeps shape `(..., input)`."""
        return (columns_by_name(to_line, us, self.input_bounds) - host(self.input_shift)) / host(self.input_scale)

    def scale_times(self, ts: Host) -> Host:
        """Scales times from the user's units to order one, counted from the first training time."""
        return (ts - host(self.time_shift)) / host(self.time_scale)


def host(array: Array | np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.float64)


def check_values(data: Dataset, limits: Mapping[str, Bounds], log: Sequence[str] = ()) -> None:
    """Rejects values of states and inputs on or beyond their bounds.

    **Raises:** `ValueError` that names the state or input, the trajectory and the time.
    """

    def place(index: tuple[int, ...]) -> str:
        row, time = index
        return f"at {data.time} = {data.ts[row, time]:g} of trajectory {data.trajectories[row]!r}"

    for kind, names, values in (("state", data.states, data.ys), ("input", data.inputs, data.us)):
        for index, name in enumerate(names):
            bounds, what = limits.get(name, UNBOUNDED), f"{kind} {name!r}"
            check_inside(values[..., index], bounds, what, place, is_logarithmic=name in log)


def check_columns(values: Float[np.ndarray, " value"], what: str) -> None:
    """Rejects values whose largest magnitude is too large or too small for float arithmetic.

    **Raises:** `ValueError` that names the value.
    """
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    if largest != 0 and not 1 / LARGEST_SCALED <= largest <= LARGEST_SCALED:
        raise ValueError(
            f"{what} has magnitudes of {largest:.3g}; they must be between {1 / LARGEST_SCALED:g} and "
            f"{LARGEST_SCALED:g}, so use "
            "another unit."
        )


def columns_by_name(
    function: Callable[[Numbers, Bounds], Numbers], values: Numbers, bounds: Sequence[Bounds]
) -> Numbers:
    """Applies `function(column, bounds)` to each column of a NumPy or JAX array of shape `(..., state)`."""
    if all(pair == UNBOUNDED for pair in bounds):
        return function(values, UNBOUNDED)
    xp: ModuleType = np if isinstance(values, np.ndarray) else jnp
    columns = [cast(Numbers, values[..., index]) for index in range(len(bounds))]
    return cast(
        Numbers, xp.stack([function(*pair_of_column) for pair_of_column in zip(columns, bounds, strict=True)], axis=-1)
    )


def gather_bounds(
    log: Sequence[str],
    bounds: Mapping[str, Sequence[float | None]],
    states: Sequence[str],
    inputs: Sequence[str] = (),
) -> dict[str, Bounds]:
    """Returns bounds by name, from the names of positive states and inputs, and from (lower, upper) pairs.

    **Raises:** `ValueError` if a name is neither a state nor an input or appears twice, or a value is not a pair.
    """
    for key, names in (("log", log), ("bounds", bounds)):
        check_known_values(key, names, (*states, *inputs), "a state or an input" if inputs else "a state")
    twice = sorted(set(log) & set(bounds))
    if twice:
        raise ValueError(f"{twice[0]!r} is named in log and in bounds; log means bounds of [0, null], so keep one.")
    for name, pair in bounds.items():
        if not is_pair(pair):
            raise ValueError(f"bounds of {name!r} must be [lower, upper], null for none, got {pair}.")
    return dict.fromkeys(log, (0.0, None)) | {
        name: check_bounds(pair, f"{'state' if name in states else 'input'} {name!r}") for name, pair in bounds.items()
    }


def around_means(rows: Float[np.ndarray, "row state"], turns: Turns) -> Float[np.ndarray, "row state"]:
    """Moves angles to within half a turn of their mean direction."""
    rows = rows.copy()
    for index, turn in enumerate(turns):
        known = np.isfinite(rows[:, index])
        rows[known, index] = gather_turns(rows[known, index], turn)
    return rows


def mean_and_deviation(rows: Host) -> tuple[Host, Host]:
    """Computes the mean and standard deviation of each column's finite values; the deviation of constants is 1."""
    known = np.isfinite(rows)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, rows, 0.0).sum(axis=0) / count
    deviation = np.sqrt(np.where(known, rows - mean, 0.0).__pow__(2).sum(axis=0) / count)
    negligible = deviation <= 1e-12 * np.abs(mean)
    return mean, np.where(negligible, 1.0, deviation)


def characteristic_time(ts: Host, zs: Host) -> float:
    """Computes the lag over which scaled states change by one standard deviation (root mean square over channels).

    In this unit, the derivative is of order one. Unlike finite differences, increments over a lag do not amplify
    measurement noise.

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`.
    - `zs`: states with mean 0 and standard deviation 1, shape `(trajectory, time, state)`, NaN where unknown.
    """
    span = float((ts.max(axis=1) - ts.min(axis=1)).max()) or 1.0
    lags, changes = [0.0], [0.0]
    for rows in np.unique(np.geomspace(1, max(ts.shape[1] - 1, 1), 40).astype(int)):
        lag = ts[:, rows:] - ts[:, :-rows]
        step = zs[:, rows:] - zs[:, :-rows]
        known = np.isfinite(step) & (lag > 0)[..., None]
        if not known.any():
            continue
        lags.append(float(lag[known.any(axis=-1)].mean()))
        changes.append(float(np.sqrt((step[known] ** 2).mean())))
        if changes[-1] >= 1.0:
            return float(np.interp(1.0, changes[-2:], lags[-2:]))
    return span
