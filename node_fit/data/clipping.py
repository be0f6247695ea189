"""Finds sensors that cut off what they measure: signals that stay at the end of a range for rows.

A sensor can only show that a value lies beyond its range. The signal then stays at its greatest or least value, which
it enters and leaves with a slope. A signal with a flat top, such as a coarsely resolved swing, enters its top slowly: a
polynomial through the rows before and after a plateau shows how far the signal would have gone on.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .dataset import Dataset
from .domains import Bounds

# Rows of a plateau, and of all plateaus together. A larger share of the values at one end is no record of a state.
LEAST_PLATEAU, LEAST_CLIPPED, MOST_CLIPPED = 3, 5, 0.9
# Share of other rows that repeat the value before them from which a plateau is no surprise.
MOST_REPEATS = 0.05
# Rows on each side of a plateau that show how the signal goes on, at the least and at most.
LEAST_NEXT, MOST_NEXT = 3, 6
# Degrees of the polynomial through them: a parabola for few.
FEW_NEXT, RISE_DEGREES = 8, (2, 3)
# How far the signal goes on, on average, beyond the end of the range [resolutions; standard errors].
LEAST_STEPS, LEAST_ERRORS = 2.0, 3.0


class Rise(NamedTuple):
    """How far a signal goes on beyond a plateau on average, and the standard error."""

    height: float
    error: float


def find_ends(data: Dataset) -> dict[str, Bounds]:
    """Finds states that stay at an end, by a clipped sensor or by themselves; the other end of a range is None."""
    ranges: dict[str, Bounds] = {}
    for index, name in enumerate(data.states):
        if name in data.angles or (data.censored is not None and data.censored[..., index].any()):
            continue
        records = [data.ys[row, :end, index] for row, end in enumerate(data.lengths)]
        lower, upper = (find_top([sign * record for record in records]) for sign in (-1, 1))
        if lower is not None or upper is not None:
            ranges[name] = (None if lower is None else -lower, upper)
    return ranges


def find_top(records: list[Float[np.ndarray, " _"]]) -> float | None:
    """Returns the maximum of records if they are clipped there, else None."""
    values = np.concatenate(records)
    values = values[np.isfinite(values)]
    if not values.size or np.ptp(values) == 0:
        return None
    top = float(values.max())
    if top == 0:  # Many quantities rest at zero, such as a flow.
        return None
    count = int((values == top).sum())
    if not LEAST_CLIPPED <= count <= MOST_CLIPPED * values.size:
        return None
    between = [(record[1:] < top) & (record[1:] > values.min()) for record in records]
    repeats = [(record[1:] == record[:-1])[inside] for record, inside in zip(records, between, strict=True)]
    if not any(inside.any() for inside in between) or np.concatenate(repeats).mean() > MOST_REPEATS:
        return None
    rises = [rise for record in records for rise in find_rises(record, top)]
    if not rises:
        return None
    heights, errors = np.asarray(rises).T
    resolution = float(np.diff(np.unique(values)).min())
    height, error = heights.mean() - resolution, np.linalg.norm(errors) / len(errors)
    return top if height > LEAST_STEPS * resolution and height > LEAST_ERRORS * error else None


def find_rises(record: Float[np.ndarray, " row"], top: float) -> list[Rise]:
    """Estimates how far a record goes on beyond each plateau at its maximum that has rows on both sides."""
    edges = np.diff(np.concatenate([[0], record == top, [0]]).astype(int))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    exact = np.isfinite(record) & (record < top)
    rises = [
        estimate_rise(record, exact, begin, end, top)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        if end - begin >= LEAST_PLATEAU
    ]
    return [rise for rise in rises if rise is not None]


def estimate_rise(
    record: Float[np.ndarray, " row"], exact: Bool[np.ndarray, " row"], begin: int, end: int, top: float
) -> Rise | None:
    """Fits a polynomial to the rows beside a plateau; None if a side has too few."""
    before, after = (side + np.flatnonzero(exact[side : side + MOST_NEXT]) for side in (max(begin - MOST_NEXT, 0), end))
    before = before[before < begin]
    if min(len(before), len(after)) < LEAST_NEXT:
        return None
    beside: Int[np.ndarray, " beside"] = np.concatenate([before, after])
    degree = RISE_DEGREES[len(beside) >= FEW_NEXT]
    center, half = (begin + end - 1) / 2, (end - begin) / 2 + MOST_NEXT
    powers, inside = (np.vander((rows - center) / half, degree + 1) for rows in (beside, np.arange(begin, end)))
    inverse = np.linalg.pinv(powers)
    coefficients = inverse @ record[beside]
    residuals, mean = record[beside] - powers @ coefficients, inside.mean(axis=0)
    deviation = np.linalg.norm(residuals) / np.sqrt(len(beside) - degree - 1)
    return Rise(float(mean @ coefficients - top), float(deviation * np.linalg.norm(mean @ inverse)))


def check_ranges(data: Dataset, ranges: Mapping[str, Sequence[float | int | None]]) -> None:
    """Rejects ranges within which no value lies.

    **Raises:** `ValueError` that names the state.
    """
    for name, ends in ranges.items():
        index = data.states.index(name)
        if data.mask[..., index].any() and not data.exact.mask[..., index].any():
            raise ValueError(f"ranges: no value of {name!r} lies between the ends {ends}; give wider ones.")


def describe_ranges(data: Dataset, ranges: Mapping[str, Sequence[float | int | None]]) -> str:
    """Describes clipped values by numbers of rows, as a clause."""
    stays = {
        name: " and ".join(f"at {end:g} in {count} rows" for end, count in count_clipped(data, name, ends).items())
        for name, ends in ranges.items()
    }
    names = " and ".join(f"{name!r} stays {where}" for name, where in stays.items())
    return f"{names}, like a sensor at the end of its range"


def count_clipped(data: Dataset, name: str, ends: Sequence[float | int | None]) -> dict[float, int]:
    """Counts the rows at or beyond each end of a range."""
    values, (lower, upper) = data.ys[..., data.states.index(name)], ends
    below = {} if lower is None else {lower: int((values <= lower).sum())}
    return below if upper is None else below | {upper: int((values >= upper).sum())}


def format_ranges(ranges: Mapping[str, Bounds]) -> str:
    """Formats ranges as the value of an option, without rounding."""
    ends = {name: ", ".join("null" if end is None else str(end) for end in pair) for name, pair in ranges.items()}
    return f"{{{', '.join(f'{name}: [{pair}]' for name, pair in ends.items())}}}"
