"""Finds out whether states follow the time of day, of the week or of the year.

The mean course of a state in a period, its profile, is computed from one half of a record, and compared with the other
half. What swings by itself at another period, wanders or settles has no common profile. Slower changes, a moving mean
over a period, are subtracted before, and what measured inputs explain in a linear regression does not count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .dataset import Dataset
from .phases import PERIODS, find_phase
from .tables.times import SECONDS

# Steps of a profile: hours of a day, quarters of a day of a week, half months of a year.
STEPS_OF_PROFILE = {"day": 24, "week": 28, "year": 24}
# Minimum number of periods of a trajectory, and of rows in a period and in that of another cycle.
FEWEST_PERIODS, FEWEST_OF_PERIOD, FEWEST_OF_OTHERS = {"day": 7, "week": 4, "year": 4}, 6, 4
# Minimum number of years if a sine has to explain this share of the variance.
FEWEST_YEARS, MUCH_OF_SEASONS = 2, 0.8
# Share of the variance that a profile has to explain.
MUCH_OF_VARIANCE = 0.5
# Squares that count as none.
NO_SQUARES = 1e-300
# Past rows over which inputs are averaged.
AVERAGED = (1, 3, 8, 24, 72)


def find_cycles(data: Dataset) -> list[str]:
    """Finds cycles of the clock and the calendar that states follow, beyond what inputs explain.

    **Arguments:** `data`: trajectories whose times are dates or have a unit.

    **Returns:** some of `day`, `week` and `year`; `data.with_cycles(cycles)` makes them inputs. Only trajectories of
    seven days, four weeks or two years show one.
    """
    unit = data.units.get(data.time) if data.dates is None else data.dates.unit
    if unit not in SECONDS:
        return []
    cycles: list[str] = []
    with np.errstate(over="ignore", invalid="ignore"):  # Numbers near the largest one have no variance.
        for cycle, seconds in PERIODS.items():
            period = seconds / SECONDS[unit]
            cycles += [cycle] if follows(data.exact, cycle, period, cycles) else []
    return cycles


def follows(data: Dataset, cycle: str, period: float, others: Sequence[str]) -> bool:
    """Whether a state follows a cycle, given the profiles of others.

    **Arguments:** `period`: that of the cycle [unit of time].
    """
    if data.median_step > period / FEWEST_OF_PERIOD:
        return False
    periods = (data.ts.max(axis=1) - data.ts[:, 0]) / period
    lasting = np.flatnonzero(periods >= FEWEST_PERIODS[cycle])
    if not lasting.size:
        is_enough = cycle == "year" and bool(periods.max() >= FEWEST_YEARS) and not data.is_driven
        return is_enough and swings_by_year(data.select([int(periods.argmax())]))
    step = max(period / STEPS_OF_PROFILE[cycle], data.median_step)
    even = data.select(lasting).resample(step, data.input_interpolation[0] if data.inputs else "linear")
    # Rows that are too far apart do not resolve the others.
    others = [name for name in others if PERIODS[name] / PERIODS[cycle] * period >= FEWEST_OF_OTHERS * step]
    parts = [gather_explanations(even, row, cycle, others, round(period / step)) for row in range(len(even))]
    ys, inputs, known, profile = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    shares = [share_explained(y, inputs, known, profile) for y in ys.T if np.isfinite(y).any()]
    return max(shares, default=0.0) >= MUCH_OF_VARIANCE


def swings_by_year(data: Dataset) -> bool:
    """Whether a sine of a year explains most of what a state does beside a straight line.

    That shows seasons in a short record, for little else swings in about a year. Many oscillators have periods of about
    a day, which only more periods tell from it.
    """
    phase = 2 * np.pi * find_phase("year", data.ts, data.dates, data.units.get(data.time))[0]
    line = np.stack([np.ones_like(phase), data.ts[0] - data.ts[0].mean()], axis=1)
    with_sine = np.concatenate([line, np.sin(phase)[:, None], np.cos(phase)[:, None]], axis=1)
    for y, rows in zip(data.ys[0].T, data.mask[0].T, strict=True):
        if squares_beside(y[rows], with_sine[rows]) < (1 - MUCH_OF_SEASONS) * squares_beside(y[rows], line[rows]):
            return True
    return False


def squares_beside(y: Float[np.ndarray, " row"], regressors: Float[np.ndarray, "row regressor"]) -> float:
    """Returns the squares that a regression leaves."""
    return float(((y - regress(y, regressors, slice(None))) ** 2).sum())


class Explanations(NamedTuple):
    """States and what may explain them in a linear regression, without slower changes: past inputs, and profiles.

    A profile is given by indicators of its steps: that of known cycles, and that of the cycle in question.
    """

    states: Float[np.ndarray, "row state"]
    inputs: Float[np.ndarray, "row average"]
    known: Float[np.ndarray, "row known"]
    profile: Float[np.ndarray, "row step"]


def gather_explanations(data: Dataset, row: int, cycle: str, others: Sequence[str], period: int) -> Explanations:
    """Returns the explanations of a trajectory; missing values of states are NaN.

    **Arguments:** `cycle`, `others`: the cycle in question, and known ones. `period`: rows of a period.
    """
    end = int(data.lengths[row])
    ys = np.where(data.mask[row, :end], data.ys[row, :end], np.nan)
    us = np.concatenate([average_past(data.us[row, :end], rows) for rows in AVERAGED], axis=1)
    alone = data.select([row])
    indicators = [indicate(alone, name)[:end] for name in (*others, cycle)]
    filled = np.apply_along_axis(fill_gaps, 0, ys)
    inside = slice((period - 1) // 2, (period - 1) // 2 + end - period + 1)
    fast = [
        column[inside] - moving_mean(slow, period)
        for column, slow in ((ys, filled), (us, us), *((part, part) for part in indicators))
    ]
    return Explanations(fast[0], fast[1], np.concatenate([fast[0][:, :0], *fast[2:-1]], axis=1), fast[-1])


def indicate(data: Dataset, cycle: str) -> Float[np.ndarray, "row step"]:
    """Returns which step of a cycle each row of a trajectory is in, as 0 and 1."""
    phase = find_phase(cycle, data.ts, data.dates, data.units.get(data.time))[0]
    return np.eye(STEPS_OF_PROFILE[cycle])[
        (STEPS_OF_PROFILE[cycle] * phase + 0.5).astype(int) % STEPS_OF_PROFILE[cycle]
    ]


def share_explained(
    y: Float[np.ndarray, " row"],
    inputs: Float[np.ndarray, "row average"],
    known: Float[np.ndarray, "row known"],
    profile: Float[np.ndarray, "row step"],
) -> float:
    """Computes the share of the variance of both halves that the profile of the other half explains.

    The variance is that which known cycles leave, and what inputs explain does not count. The height of a profile may
    differ between the halves, as that of the sun does.
    """
    is_measured = np.isfinite(y)
    y, inputs, known, profile = (part[is_measured] for part in (y, inputs, known, profile))
    middle = len(y) // 2
    total, without, explained = 0.0, 0.0, 0.0
    for half, other in ((slice(middle), slice(middle, None)), (slice(middle, None), slice(middle))):
        by_known, by_inputs, by_profile = (
            regress(y, np.concatenate(parts, axis=1), other)[half]
            for parts in ((known,), (known, inputs), (known, inputs, profile))
        )
        left, course = y[half] - by_inputs, by_profile - by_inputs
        total += float(((y[half] - by_known) ** 2).sum())
        without += float((left**2).sum())
        explained += max(float(left @ course), 0.0) ** 2 / max(float(course @ course), NO_SQUARES)
    return explained / max(total, without) if total else 0.0


def regress(
    y: Float[np.ndarray, " row"], regressors: Float[np.ndarray, "row regressor"], rows: slice
) -> Float[np.ndarray, " row"]:
    """Returns the predictions of all rows by a regression on some."""
    return regressors @ np.linalg.lstsq(regressors[rows], y[rows], rcond=None)[0]


def moving_mean(values: Float[np.ndarray, "row column"], rows: int) -> Float[np.ndarray, "mean column"]:
    """Returns the means of all stretches of some rows."""
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    return (total[rows:] - total[:-rows]) / rows


def average_past(values: Float[np.ndarray, "row column"], rows: int) -> Float[np.ndarray, "row column"]:
    """Returns the mean of some rows up to each one; before the first, its values last."""
    return moving_mean(np.concatenate([np.repeat(values[:1], rows - 1, axis=0), values]), rows)


def fill_gaps(y: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """Interpolates missing values; zeros without any value."""
    rows, is_measured = np.arange(len(y)), np.isfinite(y)
    return np.interp(rows, rows[is_measured], y[is_measured]) if is_measured.any() else np.zeros(len(y))
