"""Properties of the data that determine a fit's options, and warnings about unusual data."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .dataset import Dataset
from .inputs import FEW_LEVELS, RARELY, Interpolations
from .interpolation import FEWEST_SMOOTHED
from .noise import local_noise
from .scaling import Scaling
from .tables.times import EPOCH, UNIX_UNITS

# Magnitudes beyond this, or below its reciprocal, are probably a mistake.
HUGE = 1e18
# Maximum number of outliers, and minimum ratio of their distance from the median to that of all other values.
LONELY, FAR_AWAY = 3, 10.0
# Minimum number of pairs of neighbouring rows needed to detect jumps between levels.
FEWEST_PAIRS = 20
# Rows span decades of time if their long intervals (the upper decile) exceed their short ones (the lower decile) by
# more than this factor. Deciles ignore a gap or two rows at nearly the same time.
DECILES, MUCH_LONGER = (0.1, 0.9), 1e3
# Maximum number of trajectories used to estimate the noise, which limits the run time.
ENOUGH_FOR_NOISE = 200


@dataclass(frozen=True)
class Facts:
    """Properties of the data from which the options of a fit are chosen; the choice uses nothing else of the data.

    - `trajectories`, `rows`, `longest`: number of training trajectories, their total rows, and rows of the longest one.
    - `values`: number of scored measured values.
    - `driven`: whether an input changes within a trajectory; `inputs`, `inputs_reason`: interpolation of inputs between
      rows, for all or for each, and the reason.
    - `events`, `angles`: whether states jump at events, and whether some are angles.
    - `smoothable`: whether a trajectory has enough measurements of every state for a smoothing spline.
    - `validated`: whether validation data exist. `restarted`: whether their first rows are scored, so that their
      initial states are new.
    - `noise`: ratio of the noise's standard deviation to that of the measured values, for a typical state.
    - `decades`: decades of time from the shortest interval to the whole record if rows span many of them, else 0.
    - `shortest`: the shortest interval between two rows [unit of time].
    - `begins_at_limit`: whether the first value of some state is a limit, which can't serve as an initial value.
    """

    trajectories: int
    rows: int
    longest: int
    values: int
    driven: bool = False
    inputs: Interpolations = "linear"
    inputs_reason: str = ""
    events: bool = False
    angles: bool = False
    smoothable: bool = True
    validated: bool = False
    restarted: bool = False
    noise: float = 0.0
    decades: float = 0.0
    shortest: float = 0.0
    begins_at_limit: bool = False

    @staticmethod
    def of(train: Dataset, validation: Dataset | None = None) -> "Facts":
        """Computes the facts of training and validation data."""
        inputs, reason = train.input_interpolation if train.is_driven else ("linear", "")
        return Facts(
            trajectories=len(train),
            rows=int(train.lengths.sum()),
            longest=int(train.lengths.max()),
            values=int(train.mask.sum()),
            driven=train.is_driven,
            inputs=inputs,
            inputs_reason=reason,
            events=train.events is not None,
            angles=bool(train.angles),
            smoothable=bool((train.mask.sum(axis=1) >= FEWEST_SMOOTHED).all(axis=1).any()),
            validated=validation is not None,
            restarted=validation is not None and bool((validation.scored & validation.valid)[:, 0].any()),
            noise=noise_share(train),
            decades=max(map(decades_of, train.ts)),
            shortest=shortest_interval(train.ts),
            begins_at_limit=bool(first_values_at_limits(train).any()),
        )


def first_values_at_limits(data: Dataset) -> Bool[np.ndarray, "trajectory state"]:
    """Returns where the first measurement of a state is a limit."""
    if data.censored is None:
        return np.zeros((len(data), len(data.states)), bool)
    measured = np.isfinite(data.ys) & data.valid[..., None]
    first_row = measured.argmax(axis=1)[:, None]
    return measured.any(axis=1) & (np.take_along_axis(data.censored, first_row, axis=1)[:, 0] != 0)


def shortest_interval(ts: Float[np.ndarray, "trajectory time"]) -> float:
    """Returns the shortest interval between two rows; 0 if no trajectory has two rows."""
    intervals = np.diff(ts, axis=1)
    return float(intervals[intervals > 0].min()) if (intervals > 0).any() else 0.0


def decades_of(ts: Float[np.ndarray, " time"]) -> float:
    """Returns the decades of time from the shortest interval between rows to the whole record if many, else 0.

    **Arguments:** `ts`: increasing times, shape `(time,)`; padding repeats the last one.
    """
    intervals = np.diff(ts)
    intervals = intervals[intervals > 0]
    short, long = np.quantile(intervals, DECILES) if intervals.size else (1.0, 1.0)
    return math.log10(intervals.sum() / intervals.min()) if long > MUCH_LONGER * short else 0.0


@np.errstate(over="ignore", invalid="ignore")
def noise_share(data: Dataset) -> float:
    """Estimates the ratio of noise to spread for a typical state from differences of neighbouring rows; 0 if rows are
    too few.

    Limits show no noise, but are part of the spread, relative to which errors are measured.
    """
    data = data.sample(ENOUGH_FOR_NOISE)
    exact = data.exact
    shares: list[float] = []
    for index in range(len(data.states)):
        values = data.ys[..., index][data.mask[..., index]]
        values = values[np.isfinite(values)]
        spread = float(np.std(values)) if values.size else 0.0
        measured = np.where(exact.mask[..., index], exact.ys[..., index], np.nan)
        noise = local_noise(data.ts, measured) if 0 < spread < math.inf else math.nan
        shares += [noise / spread] if math.isfinite(noise) else []
    return float(np.median(shares)) if shares else 0.0


def has_motion(data: Dataset) -> bool:
    """Whether some state has two different values in a trajectory."""
    highest = data.ys.max(axis=1, initial=-np.inf, where=data.mask)
    lowest = data.ys.min(axis=1, initial=np.inf, where=data.mask)
    return bool((highest > lowest).any())


def check_trainable(data: Dataset) -> None:
    """Rejects training data without a measured value, or without a trajectory of two rows.

    **Raises:** `ValueError` that names the missing data.
    """
    if not data.mask.any():
        names = ", ".join(data.states)
        raise ValueError(
            f"no state ({names}) has a measured value that counts in the training data; check the columns that states "
            "names, and where the training data end."
        )

    if data.lengths.max() < 2:
        raise ValueError(
            "no trajectory has two rows in the training data, so nothing moves in them; add rows, or hold "
            "fewer of them out."
        )


def find_oddities(
    data: Dataset, scaling: Scaling, window: int | str | None = None, *, from_first: Collection[str] = ()
) -> list[str]:
    """Describes problems in training data, one sentence each with a remedy.

    **Arguments:** `scaling`: scaling of the fit. `window`: rows of its windows. `from_first`: states that start at
    their first measurement.
    """
    oddities: list[str] = unix_times(data)
    for index, name in enumerate(data.states):
        oddities += odd_state(data, index, name, logarithmic=name in scaling.log)
        if name in from_first and window is None:
            oddities += describe_late_start(data, index, name) + start_at_limit(data, index, name)
        oddities += describe_never_measured(data, index, name)
        oddities += describe_set_levels(data, index, name) if len(data.states) > 1 else []
    for index, name in enumerate(data.inputs):
        values = data.us[..., index][data.valid]
        if np.ptp(values) == 0:
            oddities.append(
                f"input {name!r} is {values[0]:g} throughout the training data, so its effect can't be learnt"
            )
    longest = int(data.lengths.max())
    if longest < FEWEST_SMOOTHED:
        oddities.append(
            f"the longest training trajectory has {longest} rows, and fewer than {FEWEST_SMOOTHED} are too "
            "few to show how states move"
        )
    if isinstance(window, int) and window > longest:
        oddities.append(
            f"training.window={window} is more than the {longest} rows of the longest training trajectory, so every "
            "window is a whole one; leave it out, or lower it"
        )
    return oddities


def unix_times(data: Dataset) -> list[str]:
    """Detects Unix times in another unit than seconds, which determines the unit of rates and constants."""
    latest = float(data.ts[data.valid].max())
    for unit, count in UNIX_UNITS.items():
        if data.dates is None and EPOCH[0] * count <= latest <= EPOCH[1] * count:
            return [
                f"the times {data.time!r} reach {latest:.4g}, as Unix times in {unit}s do: all rates and constants are "
                f"per {unit}; divide the times by {count:g} for seconds"
            ]
    return []


def describe_late_start(data: Dataset, index: int, name: str) -> list[str]:
    """Detects trajectories that do not measure a state in the first row."""
    measured = np.isfinite(data.ys[..., index]) & data.valid
    late = np.flatnonzero(measured.any(axis=1) & ~measured[:, 0])
    if not late.size:
        return []
    first = data.trajectories[int(late[0])]
    others = f" and {late.size - 1} more" if late.size > 1 else ""
    return [
        f"state {name!r} is not measured in the first row of trajectory {first!r}{others}, and starts there from its "
        "first measurement, which is later; start=fitted fits where it starts"
    ]


def start_at_limit(data: Dataset, index: int, name: str) -> list[str]:
    """Detects states whose first measurement, used as the initial value, is a limit."""
    limited = np.flatnonzero(first_values_at_limits(data)[:, index])
    if not limited.size:
        return []
    first = data.trajectories[int(limited[0])]
    others = f" and {limited.size - 1} more" if limited.size > 1 else ""
    return [
        f"state {name!r} starts at its first measurement in trajectory {first!r}{others}, which is a limit and not a "
        "value; start=fitted fits where it starts"
    ]


def describe_never_measured(data: Dataset, index: int, name: str) -> list[str]:
    """Detects trajectories without a value of a state that others measure."""
    measured = (np.isfinite(data.ys[..., index]) & data.valid).any(axis=1)
    lacking = np.flatnonzero(~measured)
    if not lacking.size or not measured.any():
        return []
    first = data.trajectories[int(lacking[0])]
    others = f" and {lacking.size - 1} more" if lacking.size > 1 else ""
    return [
        f"state {name!r} has no value in trajectory {first!r}{others}, so that only other states determine its "
        f"start there; +start.absent.{name}=... gives its start, if you know it"
    ]


def describe_set_levels(data: Dataset, index: int, name: str) -> list[str]:
    """Detects states with few levels, two or with jumps across levels, as in quantities set from outside."""
    values = data.ys[..., index]
    pairs = data.mask[:, 1:, index] & data.mask[:, :-1, index]
    levels, level = np.unique(values[data.mask[..., index]], return_inverse=True)
    if not 2 <= len(levels) <= FEW_LEVELS or pairs.sum() < FEWEST_PAIRS:
        return []
    level_index = np.zeros(values.shape, int)
    level_index[data.mask[..., index]] = level
    jumps = np.abs(np.diff(level_index, axis=1))[pairs]
    if np.mean(jumps > 0) >= RARELY or (len(levels) > 2 and jumps.max() < 2):
        return []
    return [
        f"state {name!r} jumps between {len(levels)} levels, as an input does; if it is one, name it "
        f"(data.inputs=[{name}])"
    ]


def odd_state(data: Dataset, index: int, name: str, *, logarithmic: bool) -> list[str]:
    """Describes problems in the values of one state."""
    values = data.ys[..., index][data.mask[..., index]]
    if values.size == 0:
        return [f"state {name!r} has no measured value in the training data; leave it out, or make it a hidden state"]
    if np.ptp(values) == 0:
        rows = f"all {values.size} training values" if values.size > 1 else "its only training value"
        fix = "leave it out" if len(data.states) > 1 else "add rows in which it moves"
        return [f"state {name!r} is {values[0] + 0.0:g} in {rows}, so its motion can't be learnt; {fix}"]
    largest = float(np.abs(values).max())
    if name not in data.angles and not 1 / HUGE < largest < HUGE:
        return [f"state {name!r} has magnitudes of {largest:.2g}; use another unit if it is"]
    far = find_outliers(np.log(values) if logarithmic and values.min() > 0 else values)
    if not far:
        return []
    row, column = np.argwhere(data.mask[..., index])[far[0]]
    others = np.delete(values, far)
    noun = "a value" if len(far) == 1 else f"{len(far)} values"
    return [
        f"state {name!r} has {noun} far from all others ({values[far[0]]:g} at {data.time} = {data.ts[row, column]:g} "
        f"of trajectory {data.trajectories[row]!r}, the others lie from {others.min():g} to {others.max():g}); "
        "leave it empty if it is wrong"
    ]


def find_outliers(values: Float[np.ndarray, " value"]) -> Sequence[int]:
    """Returns the indices of a few values much farther from the median than all others, the farthest first."""
    away = np.abs(values - np.median(values))
    order = np.argsort(away)[::-1]
    for count in range(1, min(LONELY, values.size // 10) + 1):
        if away[order[count - 1]] > FAR_AWAY * away[order[count]] > 0:
            return order[:count].tolist()
    return []
