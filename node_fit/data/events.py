"""Events at known times: doses, resets and switches, at which states jump."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..runtime.placement import AnyArray
from ..runtime.serialization import parse_number
from .domains import Numbers

# Row index of arrays: numbers, a mask or slices, for one axis or several.
Index = int | slice | AnyArray | Sequence[int] | tuple[int | slice | AnyArray, ...]
Table = Float[np.ndarray, "trajectory time state"]
# Times of events, each with a description of the jump.
Marks = tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Events:
    """Jumps of states just after rows of a dataset: a state `y` becomes `factor * y + shift`.

    A dose has the factor 1, a reset the factor 0. The measurement in the row precedes the jump.

    - `states`: names of the states that jump, measured ones or hidden states of the model.
    - `factor`, `shift`: in the user's units, shape `(trajectory, time, state)`; 1 and 0 in rows without an event.
    """

    states: tuple[str, ...]
    factor: Table
    shift: Table

    def at(self, rows: Index) -> "Events":
        """Returns the events at the rows selected by an array index."""
        return Events(self.states, self.factor[rows], self.shift[rows])

    @staticmethod
    def join(parts: Sequence["Events | None"], shapes: Sequence[tuple[int, int]]) -> "Events | None":
        """Concatenates the events of several datasets, padded to the longest.

        **Arguments:** `shapes`: numbers of trajectories and of rows of each dataset.
        """
        states = tuple(dict.fromkeys(state for part in parts if part for state in part.states))
        if not states:
            return None
        rows = max(length for _, length in shapes)
        factor = np.ones((sum(count for count, _ in shapes), rows, len(states)))
        shift, begin = np.zeros_like(factor), 0
        for part, (count, length) in zip(parts, shapes, strict=True):
            for column, state in enumerate(part.states if part else ()):
                place = (slice(begin, begin + count), slice(length), states.index(state))
                if part is not None:
                    factor[place], shift[place] = part.factor[..., column], part.shift[..., column]
            begin += count
        return Events(states, factor, shift)

    @property
    def summary(self) -> str:
        """A sentence with the number of events."""
        count, trajectories = int(self.rows.sum()), int(self.rows.any(axis=1).sum())
        times = "1 time" if count == 1 else f"{count} times"
        return f"events: {', '.join(self.states)} at {times} in {trajectories} of {len(self.rows)} trajectories"

    def marks(self, trajectory: int, ts: np.ndarray, valid: np.ndarray) -> Marks:
        """Returns the events of a trajectory as labels for plots, such as `gut + 300` at 8.

        **Arguments:** `ts`, `valid`: times of the trajectory and mask of rows that are not padding, shape `(time,)`.
        """

        def words(state: str, factor: float, shift: float) -> str:
            if factor == 0:
                return f"{state} = {shift:.5g}"
            scaled = state if factor == 1 else f"{state} × {factor:.5g}"
            return scaled if shift == 0 else f"{scaled} {'+' if shift > 0 else '−'} {abs(shift):.5g}"

        marked: list[tuple[float, str]] = []
        for row in np.flatnonzero(self.rows[trajectory] & valid):
            jumps = zip(self.states, self.factor[trajectory, row], self.shift[trajectory, row], strict=True)
            texts = [words(*jump) for jump in jumps if jump[1:] != (1, 0)]
            marked.append((float(ts[row]), ", ".join(texts)))
        return tuple(marked)

    @property
    def rows(self) -> np.ndarray:
        """Rows with an event, shape `(trajectory, time)`."""
        return ((self.factor != 1) | (self.shift != 0)).any(axis=2)


class Jumps(eqx.Module):
    """Events of a model's states in scaled units; fields as in `Events`, with all states in the model's order."""

    factor: Float[AnyArray, "*rows state"]
    shift: Float[AnyArray, "*rows state"]

    def after(self, y: Numbers) -> Numbers:
        """Returns the states just after the jumps, of the same shape; NumPy arrays stay on the host."""
        return cast(Numbers, y * self.factor + self.shift)

    def at(self, rows: Index) -> "Jumps":
        """Returns the jumps at the rows selected by an array index."""
        return Jumps(self.factor[rows], self.shift[rows])

    def with_sensitivities(self, parameters: int) -> "Jumps":
        """Appends the jumps of the states' derivatives with respect to the `parameters`, state by state."""
        more = jnp.repeat(self.factor, parameters, axis=-1)
        return Jumps(
            jnp.concatenate([self.factor, more], axis=-1),
            jnp.concatenate([self.shift, jnp.zeros_like(more)], axis=-1),
        )


@dataclass(frozen=True)
class KnownEvent:
    """A single event: a value that is added to a state, replaces it or multiplies it, at a time.

    - `where`: description of the event in error messages.
    - `trajectory`: index of its trajectory. `time` [unit of time].
    """

    where: str
    trajectory: int
    time: float
    state: str
    factor: float
    shift: float


ACTIONS = ("add", "set", "multiply")
EVENT_KEYS = ("time", "trajectory", "state", *ACTIONS)
WHERE = "_where"  # key of a row's description in error messages


def parse_events(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> list[KnownEvent]:
    """Parses events from rows with a `time`, a `state`, one of `add`, `set` and `multiply`, and optionally a
    `trajectory`.

    **Arguments:**

    - `rows`: mappings; a key can be absent or its value empty. An event without a trajectory applies to all.
    - `names`: names of the trajectories of the data.

    **Raises:** `ValueError` that names the event and the fault.
    """
    events: list[KnownEvent] = []
    for number, row in enumerate(rows):
        where = str(row.get(WHERE, f"event {number + 1}"))
        check_keys(row, where)
        actions = {action: row[action] for action in ACTIONS if not is_empty(row.get(action))}
        if len(actions) != 1:
            raise ValueError(f"{where} needs one of {', '.join(ACTIONS)}, got {', '.join(actions) or 'none'}.")
        (action, value), state = next(iter(actions.items())), row.get("state")
        if is_empty(state):
            raise ValueError(f"{where} names no state; say which one jumps, state=...")
        time, value = as_number(row.get("time"), "time", where), as_number(value, action, where)
        factor, shift = {"add": (1.0, value), "set": (0.0, value), "multiply": (value, 0.0)}[action]
        trajectory = row.get("trajectory")
        if not is_empty(trajectory) and str(trajectory) not in names:
            raise ValueError(f"{where} is of trajectory {str(trajectory)!r}, which the data do not have.")
        chosen = range(len(names)) if is_empty(trajectory) else [list(names).index(str(trajectory))]
        events += [KnownEvent(where, index, time, str(state), factor, shift) for index in chosen]
    return events


def check_keys(row: Mapping[str, object], where: str) -> None:
    for key in row:
        if key not in (*EVENT_KEYS, WHERE):
            raise ValueError(f"{where} has the key {key!r}; events have {', '.join(EVENT_KEYS)}.")


def is_empty(value: object) -> bool:
    return value is None or value == "" or value != value


def as_number(value: object, name: str, where: str) -> float:
    try:
        number = parse_number(value.replace(",", ".")) if isinstance(value, str) else float(cast(float, value))
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not np.isfinite(number):
        raise ValueError(f"{where} needs a number as its {name}, got {value!r}.")
    return number
