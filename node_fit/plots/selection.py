"""What a plot shows of a fit: which trajectories, a note on the others, and the axis limits."""

import textwrap
from typing import Any

import numpy as np

from ..data.dataset import Dataset
from .curves import RANKS, Trajectory, rank
from .style import QUIET

PER_KIND, PANELS, INPUTS = 3, 6, 2  # Shown at most: trajectories of each kind, states, inputs.


def choose(records: list[Trajectory]) -> list[tuple[Trajectory, str]]:
    """At most three fitted and three held-out trajectories, each with its rank if there are more."""
    if len(records) <= PER_KIND:
        return [(record, "") for record in records]
    order = {name: place for place, name in enumerate(RANKS)}
    ranked = sorted(rank(records), key=lambda each: (each.held, each.error, order.get(each.rank, 0)))
    many = {held: sum(record.held == held for record in records) > PER_KIND for held in (False, True)}
    return [(record, record.rank if many[record.held] else "") for record in ranked]


def headline(
    figure: Any,
    records: list[Trajectory],
    shown: list[tuple[Trajectory, str]],
    data: Dataset,
    left_out: int = 0,
) -> None:
    """Notes which part is shown, if it is not everything."""
    parts = []
    if len(shown) < len(records):
        counts = [
            (sum(record.held == held for record in records), kind)
            for held, kind in ((False, "fitted"), (True, "held out"))
        ]
        ranked = [f"of {n} {kind}" for n, kind in counts if n > PER_KIND]
        whole = [f"all {n} {kind}" for n, kind in counts if 0 < n <= PER_KIND]
        kinds = ["best, median and worst " + " and ".join(ranked)] * bool(ranked) + whole
        parts.append(f"{len(shown)} of {len(records)} trajectories: {', and '.join(kinds)}")
    if left_out:
        parts.append(f"sampled evenly from {len(records) + left_out}")
    if len(data.states) > PANELS:
        parts.append(f"first {PANELS} of {len(data.states)} states")
    if len(data.inputs) > INPUTS:
        parts.append(f"first {INPUTS} of {len(data.inputs)} inputs")
    if parts:
        lines = textwrap.wrap("; ".join(parts), int(13 * figure.get_figwidth()))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=QUIET)


def limits(records: list[Trajectory], state: int, room: float = 0.06) -> tuple[float, float]:
    """Axis limits: the range of the data, extended towards curve and band by at most a quarter on each side."""
    data = finite_values([each.ys[:, state] for record in records for each in record.segments])
    curve = finite_values([part[:, state] for each in records for part in (each.curve.ys, *(each.curve.bands or ()))])
    if not data.size:
        data = curve if curve.size else np.array([0.0, 1.0])
    low, high = float(data.min()), float(data.max())
    span = (high - low) or abs(high) or 1.0
    if curve.size:
        low = min(low, max(float(curve.min()), low - span / 4))
        high = max(high, min(float(curve.max()), high + span / 4))
    margin = room * ((high - low) or span)
    return low - margin, high + margin


def finite_values(arrays: list[np.ndarray]) -> np.ndarray:
    values = np.concatenate(arrays)
    return values[np.isfinite(values)]
