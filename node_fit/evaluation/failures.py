"""Predictions that end before their trajectory does: where, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset

# Times the largest measurement: a state beyond that has run away.
FAR = 10.0
# Trajectories besides the first that a sentence names.
MOST_NAMED = 4


@dataclass(frozen=True)
class Gone:
    """A trajectory that can't be simulated to its end: its `name`, the last `time` at which it can, and whether it
    has run `away` by then."""

    name: str
    time: float
    away: bool


def where_not_finite(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> list[Gone]:
    """The trajectories with a prediction that is not finite, among the rows that count."""
    lost = ~np.isfinite(predicted).all(axis=2) & data.valid & data.scored
    measured = np.abs(np.where(np.isfinite(data.ys), data.ys, 0)).max(axis=(0, 1))
    found = []
    for row in np.flatnonzero(lost.any(axis=1)):
        first = int(lost[row].argmax())
        last = max(first - 1, 0)
        away = bool(np.isinf(predicted[row, first]).any() | (np.abs(predicted[row, last]) > FAR * measured).any())
        found.append(Gone(data.trajectories[row], float(data.ts[row, last]), away))
    return found


def what_is_gone(data: Dataset, gone: Sequence[Gone], *, triggers: bool = False) -> str:
    """A sentence that says how many trajectories can't be simulated, which, from when on, and why.

    **Arguments:** `triggers`: whether the field has triggers, which may be why.
    """
    first = gone[0]
    steps = "where the solver takes all its steps"
    steps = f"{steps}, or triggers act without end" if triggers else steps
    reason = "where it runs away" if first.away else steps
    text = f"trajectory {first.name!r} can't be simulated beyond {data.time} = {first.time:g}, {reason}"
    if len(gone) == 1:
        return text
    others = ", ".join(repr(each.name) for each in gone[1 : MOST_NAMED + 1])
    more = ", ..." if len(gone) > MOST_NAMED + 1 else ""
    return f"{text} ({len(gone)} of {len(data.trajectories)} can't; the others: {others}{more})"
