"""Gaps of a record, where rows are missing and an input changes at an unknown time."""

import itertools
from typing import NamedTuple

import numpy as np

from .interpolation import LARGEST_GAP
from .trajectories import Data, Trajectories, cut

# Minimum share of a record's steps that equal the median within the tolerance, so that a longer one lacks rows.
MOSTLY, ABOUT = 0.9, 0.1


class Gap(NamedTuple):
    """A gap before the row `after`, with the number of `missing` rows and the `inputs` that change in it."""

    after: int
    missing: int
    inputs: tuple[str, ...]


def find_gaps(data: Trajectories) -> list[Gap]:
    """Finds the gaps of a single, mostly even record in which a held input changes.

    No simulation can pass such a gap, since the time of the change is unknown. Data of several trajectories, which can
    be subjects, and data with events have none.
    """
    if len(data.trajectories) != 1 or data.events is not None or data.lengths[0] < 2 or not any(data.held_inputs):
        return []
    steps = data.steps / data.median_step
    if np.mean(np.abs(steps - 1) <= ABOUT) < MOSTLY:
        return []
    changes = (np.diff(data.us[0, : data.lengths[0]], axis=0) != 0) & np.array(data.held_inputs)
    return [
        Gap(row + 1, round(steps[row]) - 1, tuple(np.array(data.inputs)[changes[row]].tolist()))
        for row in np.flatnonzero((steps > LARGEST_GAP + ABOUT) & changes.any(axis=1)).tolist()
    ]


def cut_at_gaps(data: Data) -> Data:
    """Cuts a record at its gaps; parts of a single row, or without a scored measurement, are left out."""
    edges = [0, *(gap.after for gap in find_gaps(data)), int(data.lengths[0])]
    scored = data.mask[0].any(axis=1)
    pieces = [
        (0, begin, end) for begin, end in itertools.pairwise(edges) if end - begin > 1 and scored[begin:end].any()
    ]
    if len(edges) == 2 or not pieces:
        return data
    return cut(data, pieces, [f"{data.trajectories[0]}[{begin}:{end}]" for _, begin, end in pieces])


def describe_gaps(data: Trajectories) -> list[str]:
    """Describes the gaps at which a record is cut."""
    gaps = find_gaps(data)
    if not gaps:
        return []
    first = gaps[0]
    last, following = data.ts[0, first.after - 1 : first.after + 1]
    names = " and ".join(map(repr, first.inputs))
    others = {1: "", 2: "; there is another such gap"}.get(len(gaps), f"; there are {len(gaps) - 1} other such gaps")
    return [
        f"gaps: {first.missing} rows are missing between {data.time} = {last:g} and {following:g}, and {names} changed "
        "there at an unknown time, so a new trajectory begins after them (data.split.gaps=bridge keeps one)" + others
    ]
