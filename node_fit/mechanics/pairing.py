"""Finds the states that are positions, and their velocities."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..discover.names import plain_names

# Maximum number of coordinates of a mechanism.
MOST_COORDINATES = 3
# Maximum relative error between a velocity's integral over some rows and the changes of its position.
INTEGRATED_ROWS, MOST_MISSED = 10, 0.1
# A trajectory needs more rows than this, the length of the longest bump of the weak form.
FEW_ROWS_OF_MOTION = 40


class Pairing(NamedTuple):
    """The names of positions and of their velocities."""

    positions: tuple[str, ...]
    velocities: tuple[str, ...]


def pair_velocities(data: Dataset) -> Pairing | None:
    """Pairs positions with velocities; None if these are not all of the states."""
    count, odd = divmod(len(data.states), 2)
    if odd or not 1 <= count <= MOST_COORDINATES:
        return None
    missed = np.array([[integration_error(data, position, rate) for rate in data.states] for position in data.states])
    order = np.argsort(missed.min(axis=1))[:count]
    rates = missed[order].argmin(axis=1)
    pairs: list[tuple[int, int]] = sorted(zip(order.tolist(), rates.tolist(), strict=True))
    if len({*order.tolist(), *rates.tolist()}) < 2 * count or missed[order].min(axis=1).max() > MOST_MISSED:
        return None
    return Pairing(tuple(data.states[one] for one, _ in pairs), tuple(data.states[rate] for _, rate in pairs))


def pair_states(
    data: Dataset, positions: Sequence[str] | None = None, velocities: Sequence[str] | None = None
) -> Pairing:
    """Returns the named positions and velocities, or estimates them from the data.

    **Raises:** `ValueError` if the states are not positions and their velocities, forces are missing, or equations
    can't have a name.
    """
    for name, plain in plain_names([*data.states, *data.inputs]).items():
        raise ValueError(
            f"field=mechanical: equations can't have the name {name!r}; rename it, for example to {plain}."
        )
    if not data.is_driven or data.events is not None or data.angles:
        raise ValueError(
            "field=mechanical needs forces that change as inputs, and neither events nor angles that turn over; the "
            "scale of masses is that of the forces."
        )
    if (positions is None) != (velocities is None):
        raise ValueError("field.positions and field.velocities are named together; give both, or neither.")
    if positions is not None and velocities is not None:
        pairing = Pairing(tuple(positions), tuple(velocities))
        named = sorted((*positions, *velocities))
        if named != sorted(data.states) or len(positions) != len(velocities):
            raise ValueError(
                "field.positions and field.velocities must name each state once; the states are "
                f"{', '.join(data.states)}."
            )
    elif (pairing := pair_velocities(data)) is None:
        raise ValueError(
            f"field=mechanical needs at most {MOST_COORDINATES} positions with their velocities as states, and of "
            f"{', '.join(data.states)} no half is the rate of the other; name them (field.positions, field.velocities)."
        )
    if len(pairing.positions) > MOST_COORDINATES or len(data.inputs) > len(pairing.positions):
        raise ValueError(
            f"field=mechanical needs at most {MOST_COORDINATES} positions, and no more inputs than these; each input "
            "is the force on a position."
        )
    if int(data.lengths.max()) <= FEW_ROWS_OF_MOTION:
        raise ValueError(f"field=mechanical needs a trajectory of more than {FEW_ROWS_OF_MOTION} rows.")
    return pairing


def integration_error(data: Dataset, position: str, rate: str) -> float:
    """Computes the relative error between a rate's integral and the changes of a position over some rows."""
    if position == rate:
        return np.inf
    q, v = (data.ys[..., data.states.index(name)] for name in (position, rate))
    steps = np.diff(data.ts, axis=1) * (v[:, 1:] + v[:, :-1]) / 2
    steps = np.where(data.valid[:, 1:], steps, np.nan)
    if steps.shape[1] <= INTEGRATED_ROWS:
        return np.inf
    moved = np.lib.stride_tricks.sliding_window_view(steps, INTEGRATED_ROWS, axis=1).sum(axis=-1)
    change = q[:, INTEGRATED_ROWS:] - q[:, :-INTEGRATED_ROWS]
    known = np.isfinite(moved) & np.isfinite(change)
    size = float(np.sqrt((change[known] ** 2).mean())) if known.any() else 0.0
    return float(np.sqrt(((moved - change)[known] ** 2).mean())) / size if size else np.inf
