"""Finds the delays after which inputs act, as what flows through a pipe does, by linear models of evenly spaced rows.

A model predicts the next row from past rows of the channels and from those of the inputs before a delay (ARX; L. Ljung,
System Identification, 2nd ed., 1999, section 4.2). The Bayesian information criterion (G. Schwarz, Ann. Stat. 6, 1978)
compares delays and numbers of past rows. Several slow states in a row also respond late, but slowly: a delay is only
taken where the response begins at once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .dataset import Dataset

# Numbers of past rows of the channels, and of the inputs beside as many.
CHANNEL_LAGS, INPUT_LAGS = (1, 2, 3, 5, 8, 13), (1, 3)
# Maximum delay [rows] of an input, of all inputs together, and as a share of the rows. Fewer rows than the minimum are
# like another state.
MOST_DELAYED, MOST_DELAYED_TOGETHER, MOST_SHARE, LEAST_DELAYED = 60, 240, 1 / 8, 3
# Minimum number of rows for each past value, and maximum numbers of past values, rows, channels and inputs.
ROWS_PER_VALUE, MOST_PAST_VALUES, MOST_LAGGED_ROWS, MOST_LAGGED_COLUMNS = 6, 48, 10_000, 8
# Lead of the criterion over that without a delay from which a delay is clear. A delay may lack the first share of the
# best one's lead, and another row must cost the second.
CLEARLY_LATE, NEARLY_BEST, ABRUPT = 20.0, 0.3, 0.4
# How often the delays of all inputs are chosen in turn.
DELAY_ROUNDS = 2
# Variance of an unpredicted part, and of a direction of past values, that counts as zero [share of the total].
NO_VARIANCE, NEARLY_DEPENDENT = 1e-12, 1e-9


class Lags(NamedTuple):
    """Numbers of past rows of the channels and of the inputs."""

    channels: int
    inputs: int


def find_delays(data: Dataset) -> dict[str, float]:
    """Finds inputs that act later than their column shows.

    **Arguments:** `data`: trajectories; uneven rows are interpolated.

    **Returns:** the delay of each such input, in the unit of time; `data.delay_inputs(delays)` moves them. Delays of
    fewer than three rows are not searched.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # Numbers near the largest one have no variance.
        models = LaggedModels.of(data.exact)
        delays = [] if models is None else models.choose_delays()
    return {name: round_off(rows * data.median_step) for name, rows in zip(data.inputs, delays, strict=False) if rows}


def round_off(delay: float) -> float:
    """Rounds a delay to six digits, which are more than rows tell."""
    return float(f"{delay:.6g}")


def describe_delays(data: Dataset, delays: Mapping[str, float]) -> str:
    """Describes delays by numbers of rows, as a clause; empty without any."""
    clauses = [
        f"responses to {name!r} begin {delay / data.median_step:.0f} rows later" for name, delay in delays.items()
    ]
    return " and ".join(clauses)


class LaggedModels:
    """Linear predictions of a row from past rows, by the delays of the inputs.

    **Arguments:** `ys`, `us`: channels and inputs of each trajectory, evenly spaced, NaN where they are missing.
    `longest`: maximum delay [rows]. `orders`: numbers of past rows to compare.
    """

    def __init__(
        self,
        ys: Sequence[Float[np.ndarray, "_ channel"]],
        us: Sequence[Float[np.ndarray, "_ input"]],
        longest: int,
        orders: Sequence[Lags],
    ):
        past = max(lags.channels for lags in orders)
        tables = [stack_lags(y, u, past, longest + past) for y, u in zip(ys, us, strict=True)]
        targets, regressors = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        self.rows, self.longest, self.orders, self.past = len(targets), longest, orders, past
        self.channels, self.inputs = targets.shape[1], us[0].shape[1]
        self.gram = regressors.T @ regressors
        self.cross, self.total = regressors.T @ targets, (targets**2).sum(axis=0)
        self.criteria: dict[tuple[Lags, tuple[int, ...]], float] = {}

    @staticmethod
    def of(data: Dataset) -> "LaggedModels | None":
        """Makes the models of a dataset; None without inputs that move, or for few rows or many columns."""
        channels, inputs = len(data.states), len(data.inputs)
        if not data.is_driven or not inputs or max(channels, inputs) > MOST_LAGGED_COLUMNS:
            return None
        even = data.resample(data.median_step, data.input_interpolation[0])
        measured = np.where(even.mask, even.ys, np.nan)
        parts = [(y[:end], u[:end]) for y, u, end in zip(measured, even.us, even.lengths, strict=True)]
        rows = [len(y) for y, _ in parts]
        parts = parts[: int(np.searchsorted(np.cumsum(rows), MOST_LAGGED_ROWS)) + 1]
        ys, us = ([part[:MOST_LAGGED_ROWS] for part in kind] for kind in zip(*parts, strict=True))
        longest = min(MOST_DELAYED, MOST_DELAYED_TOGETHER // inputs, int(max(rows) * MOST_SHARE))
        pairs = [Lags(past, taps) for past in CHANNEL_LAGS for taps in sorted({*INPUT_LAGS, past}) if taps <= past]
        known = {past: sum(max(row - longest - past, 0) for row in rows) for past in CHANNEL_LAGS}
        values = {lags: lags.channels * channels + lags.inputs * inputs for lags in pairs}
        orders = [
            lags for lags in pairs if values[lags] <= min(MOST_PAST_VALUES, known[lags.channels] / ROWS_PER_VALUE)
        ]
        if not orders or longest < LEAST_DELAYED:
            return None
        models = LaggedModels(standardize_parts(ys), standardize_parts(us), longest, orders)
        return models if models.rows > ROWS_PER_VALUE * (channels + inputs) else None

    def columns(self, lags: Lags, delays: Sequence[int]) -> list[int]:
        """Returns the regressors of a model: one, past rows of the channels, and those of the inputs before a delay."""
        channels = range(1, 1 + lags.channels * self.channels)
        first = 1 + self.past * self.channels
        inputs = [
            first + row * self.inputs + number
            for number, delay in enumerate(delays)
            for row in range(delay, delay + lags.inputs)
        ]
        return [0, *channels, *inputs]

    def criterion(self, lags: Lags, delays: tuple[int, ...]) -> float:
        """Computes the information criterion of a model, up to a constant."""
        if (lags, delays) not in self.criteria:
            self.criteria[lags, delays] = self.fit(lags, delays)
        return self.criteria[lags, delays]

    def fit(self, lags: Lags, delays: tuple[int, ...]) -> float:
        """Fits a model by least squares, and returns its information criterion."""
        columns = self.columns(lags, delays)
        gram = self.gram[np.ix_(columns, columns)] + NEARLY_DEPENDENT * self.rows * np.eye(len(columns))
        left = self.total - (self.cross[columns] * np.linalg.solve(gram, self.cross[columns])).sum(axis=0)
        fit = self.rows * np.log(np.maximum(left / self.rows, NO_VARIANCE)).sum()
        return float(fit + len(columns) * self.channels * np.log(self.rows))

    def best(self, delays: Sequence[int]) -> float:
        """Returns the criterion of the best model with these delays."""
        return min(self.criterion(lags, tuple(delays)) for lags in self.orders)

    def choose_delays(self) -> list[int]:
        """Returns the delay of each input [rows]; 0 unless it is clear."""
        delays = [0] * self.inputs
        for number in list(range(self.inputs)) * DELAY_ROUNDS:
            delays[number] = int(np.argmin(self.compare_delays(number, delays)))
        return [find_edge(self.compare_delays(number, delays)) for number in range(self.inputs)]

    def compare_delays(self, number: int, delays: Sequence[int]) -> Float[np.ndarray, " delay"]:
        """Returns the criteria for all delays of an input, given those of the others."""
        before, after = delays[:number], delays[number + 1 :]
        return np.array([self.best([*before, delay, *after]) for delay in range(self.longest)])


def find_edge(criteria: Float[np.ndarray, " delay"]) -> int:
    """Returns the delay, of those that are nearly the best, after which a model gets worst; 0 unless that is clear.

    A response that begins after a delay is lost in part with each further row, while one that rises slowly is not.
    """
    lead = criteria[0] - criteria.min()
    losses = np.diff(criteria, append=criteria[-1])
    is_near = criteria <= criteria.min() + NEARLY_BEST * lead
    delay = int(np.argmax(np.where(is_near, losses, -np.inf)))
    is_clear = criteria[0] - criteria[delay] > CLEARLY_LATE and losses[delay] > ABRUPT * lead
    return delay if delay >= LEAST_DELAYED and is_clear else 0


def stack_lags(
    y: Float[np.ndarray, "row channel"], u: Float[np.ndarray, "row input"], past: int, longest: int
) -> tuple[Float[np.ndarray, "known channel"], Float[np.ndarray, "known regressor"]]:
    """Returns rows whose past is known, and one beside that past: the last rows of the channels and of the inputs."""
    begin = max(past, longest)
    rows = np.arange(begin, len(y))
    lagged = [values[rows - lag] for values, most in ((y, past), (u, longest)) for lag in range(1, most + 1)]
    table = np.concatenate([np.ones((len(rows), 1)), *lagged], axis=1)
    is_known = np.isfinite(table).all(axis=1) & np.isfinite(y[rows]).all(axis=1)
    return y[rows][is_known], table[is_known]


def standardize_parts(parts: Sequence[Float[np.ndarray, "_ column"]]) -> list[Float[np.ndarray, "_ column"]]:
    """Scales columns of all parts to zero mean and unit deviation."""
    rows = np.concatenate(parts)
    mean, deviation = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    return [(part - mean) / np.where(deviation > 0, deviation, 1.0) for part in parts]
