"""What of a fit is shown: which of its trajectories, what is left out, and within which limits."""

import textwrap
from typing import Any

import numpy as np

from ..dataset import Dataset
from .curves import Record
from .style import QUIET

EACH, PANELS, INPUTS = 3, 6, 2  # Shown at most: trajectories of each kind, states, inputs.


def choose(records: list[Record]) -> list[tuple[Record, str]]:
    """At most three trajectories of those fitted and three of those held out, each with what it is among them."""
    if len(records) <= EACH:
        return [(record, "") for record in records]
    shown = []
    for held in (False, True):
        group = sorted((record for record in records if record.held == held), key=lambda record: record.error)
        if len(group) <= EACH:
            shown += [(record, "") for record in group]
        else:
            shown += [(group[0], "best"), (group[(len(group) - 1) // 2], "median"), (group[-1], "worst")]
    return shown


def headline(
    figure: Any, records: list[Record], shown: list[tuple[Record, str]], data: Dataset, left_out: int = 0
) -> None:
    """Says what of the whole is shown, where it is not all."""
    parts = []
    if len(shown) < len(records):
        counts = [
            (sum(record.held == held for record in records), kind)
            for held, kind in ((False, "fitted"), (True, "held out"))
        ]
        ranked = [f"of {n} {kind}" for n, kind in counts if n > EACH]
        whole = [f"all {n} {kind}" for n, kind in counts if 0 < n <= EACH]
        kinds = ["best, median and worst " + " and ".join(ranked)] * bool(ranked) + whole
        parts.append(f"{len(shown)} of {len(records)} trajectories: {', and '.join(kinds)}")
    if left_out:
        parts.append(f"chosen evenly out of {len(records) + left_out}")
    if len(data.states) > PANELS:
        parts.append(f"first {PANELS} of {len(data.states)} states")
    if len(data.inputs) > INPUTS:
        parts.append(f"first {INPUTS} of {len(data.inputs)} inputs")
    if parts:
        lines = textwrap.wrap("; ".join(parts), int(13 * figure.get_figwidth()))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=QUIET)


def limits(records: list[Record], state: int, room: float = 0.06) -> tuple[float, float]:
    """Limits of an axis: the data's, and those of curve and band as far as they go a quarter of that range beyond."""
    data = finite_values([ys[:, state] for record in records for _, ys in record.points.values()])
    curve = finite_values([part[:, state] for record in records for part in (record.ys, *(record.band or ()))])
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
