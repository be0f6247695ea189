"""Checks whether residuals are independent noise or can be predicted from past rows."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
from jaxtyping import Bool, Float, Int

from ..data.dataset import Dataset
from ..data.noise import relative_deviations
from ..data.scaling import UNBOUNDED, Scaler
from .metrics import jsonable

# Number of preceding rows used to predict a residual.
PAST = 10
# Maximum number of rows in a regression, and its ridge in standardised units.
MOST_PAST_ROWS, PAST_RIDGE = 20_000, 1e-3


def explain_by_past(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, " state"]:
    """Computes the share of each channel's mean squared residual explained by a linear map of the ten preceding rows.

    The map is fitted to the first half of the rows and judged on the second, so the share can be negative.

    **Arguments:** `data`, `predicted`: measurements and their predictions.

    **Returns:** shares of at most 1; NaN for too few rows or exact predictions.
    """
    rows, residuals = past_and_residuals(data, predicted)
    half = len(rows) // 2
    if half < 2 * rows.shape[1]:
        return np.full(len(data.states), np.nan)
    scaled = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-12)
    features = np.concatenate([scaled, np.ones((len(rows), 1))], axis=1)
    weight = np.sqrt(PAST_RIDGE * half) * np.eye(features.shape[1])
    zeros = np.zeros((features.shape[1], residuals.shape[1]))
    fitted = np.linalg.lstsq(
        np.concatenate([features[:half], weight]), np.concatenate([residuals[:half], zeros]), rcond=None
    )[0]
    unexplained = ((residuals[half:] - features[half:] @ fitted) ** 2).mean(axis=0)
    total = (residuals[half:] ** 2).mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, 1 - unexplained / total, np.nan)


def past_and_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, "row state"]]:
    """Returns the measurements in the rows before each row, and its residuals; complete rows only, in order."""
    channels = np.concatenate([data.ys, data.us], axis=2)
    complete = np.isfinite(channels).all(axis=2) & np.isfinite(predicted).all(axis=2) & data.valid
    usable = complete & data.scored
    usable[:, :PAST] = False
    columns = complete.shape[1]
    for back in range(1, PAST + 1):
        usable[:, PAST:] &= complete[:, PAST - back : max(columns - back, 0)]
    trajectories, steps = (index[-MOST_PAST_ROWS:] for index in np.nonzero(usable))
    past = channels[trajectories[:, None], steps[:, None] + np.arange(-PAST, 0)]
    residuals = (predicted - data.near(predicted))[trajectories, steps]
    return past.reshape(len(steps), PAST * channels.shape[2]), residuals


# Minimum number of residuals for correlations at several lags and for comparing neighbours, and the maximum number
# used, beyond which tests take seconds without gain.
FEW_VALUES, LEAST_VALUES, MOST_VALUES = 20, 8, 200_000
# Risk of falsely reporting dependence between residuals, or on inputs, over all states of a split.
RISK = 0.01
# Significance level for naming a state in a sentence, and the minimum distance of probabilities from 0 and 1.
PROBABLE, TINY_CHANCE = 0.05, 1e-12
# Minimum correlation that is reported, regardless of significance.
SLIGHT = 0.2
# Maximum lag of the autocorrelations that are tested together.
MOST_LAGS = 10
# Maximum number of channels for a regression on past rows; more would take seconds.
MOST_TESTED_CHANNELS = 20
# Number of time segments in a pattern of residuals, maximum number of trajectories compared, and draws of independent
# residuals for the null distribution.
PATTERN_PARTS, MAX_COMPARED, PATTERN_DRAWS = 8, 256, 500
# Residuals below this fraction of their channel's spread are solver errors.
LEAST_RESIDUAL = 1e-3
# Number of fits of the size of residuals, each weighted by the last one.
REWEIGHTED = 5
# Tolerance for equal values as a fraction of their range, and for whole steps as a fraction of a step.
SAME_GAP, WHOLE_STEPS = 1e-9, 1e-3
# Error below which a first row is the trajectory's start and not a residual [standard deviations].
EXACT_FIT = 1e-5

Segment = Int[np.ndarray, " row"]


@dataclass(frozen=True)
class ResidualCheck:
    """Statistics of a channel's residuals. Neighbours are consecutive measurements of the same trajectory.

    - `values`: number of residuals; with fewer than 8, everything else is None, and with fewer than 20, `ljung_box` and
      `runs` are.
    - `lag1`, `lag1_error`: correlation of neighbouring residuals, and its standard error if they are independent.
    - `neumann`: p-value of the similarity of neighbours, if residuals are independent (von Neumann, Ann. Math. Statist.
      12, 1941).
    - `pattern`: p-value of the share explained by the leading temporal pattern of several trajectories' residuals, if
      they are independent; None for one trajectory. Misfits shared by trajectories, or differing between groups, form
      such patterns, which each trajectory shows with its own factor.
    - `size`: p-value of the size of the residuals, if their known standard deviation is right; None if it is unknown.
    - `ljung_box`: p-value of the correlations at lags 1 to 10, if they are independent (Ljung and Box, Biometrika 65,
      1978).
    - `runs`: p-value (two-sided) of the number of runs above and below the median (Wald and Wolfowitz, Ann. Math.
      Statist. 11, 1940).
    - `past`: share of their mean square explained by a linear map of the ten preceding rows, on rows to which it was
      not fitted; None for too few rows.
    - `inputs`: Spearman's correlation with each input in the same row. `inputs_p`: its p-value, with the variance of
      two independent autocorrelated series (Bartlett, J. R. Stat. Soc. 98, 1935).
    - `growth`: Spearman's correlation of the residuals' absolute values with the predicted values, on the scale of the
      fit. `growth_p`: its p-value if the residuals are independent. None for a constant prediction and solver errors.
    """

    values: int
    lag1: float | None = None
    lag1_error: float | None = None
    neumann: float | None = None
    pattern: float | None = None
    size: float | None = None
    ljung_box: float | None = None
    runs: float | None = None
    past: float | None = None
    inputs: Mapping[str, float | None] | None = None
    inputs_p: Mapping[str, float | None] | None = None
    growth: float | None = None
    growth_p: float | None = None


@dataclass(frozen=True)
class ResidualChecks:
    """Residual checks of a split.

    - `channels`: a `ResidualCheck` for each state.
    - `says`: sentences on the findings, if any.
    """

    channels: Mapping[str, ResidualCheck]
    says: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Converts to a dictionary for JSON."""
        return asdict(self)


def check_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], scaler: Scaler
) -> ResidualChecks:
    """Checks the residuals of a split on the scale on which they are fitted.

    **Arguments:**

    - `data`: the measurements; only scored rows count.
    - `predicted`: states at the same times in the same units.
    - `scaler`: scaler of the model. States with logarithms or bounds are compared on the transformed scale, others in
      standard deviations.

    **Returns:** `ResidualChecks`.
    """
    residuals = standardize(data, predicted, scaler).reshape(-1, len(data.states))
    segment = np.repeat(np.arange(len(data.trajectories)), data.ts.shape[1])
    us = data.us.reshape(segment.size, len(data.inputs))
    rows = predicted.reshape(residuals.shape)
    growths = {name: growth_of(residuals[:, at], rows[:, at]) for at, name in enumerate(data.states)}
    loggable, even = find_loggable(data, scaler), residuals.copy()
    for at, name in enumerate(data.states):
        if name in loggable and is_growing(growths[name], len(data.states)):
            even[:, at] = even_out(residuals[:, at], rows[:, at])
    channels = check_channels(even, segment, us, data.states, data.inputs)
    channels = {
        name: replace(check, growth=growths[name][0], growth_p=growths[name][1]) for name, check in channels.items()
    }
    columns = zip(channels.items(), residuals.T, strict=True)
    if data.sigma is not None:
        channels = {name: replace(check, size=size_test(column)) for (name, check), column in columns}
    else:
        exact = is_within_steps(data, predicted)
        channels = {
            name: without_tests(check, column, written=bool(written))
            for ((name, check), column), written in zip(columns, exact, strict=True)
        }
    if len(data.states) + len(data.inputs) <= MOST_TESTED_CHANNELS:
        past = zip(channels.items(), explain_by_past(data, predicted), strict=True)
        channels = {name: replace(tested, past=jsonable(float(share))) for (name, tested), share in past}
    sentences = neighbours_in_words(channels) + inputs_in_words(channels)
    return ResidualChecks(channels, tuple(sentences or growth_in_words(channels, loggable)))


def describe_misfit(
    checks: ResidualChecks, noise_source: str | None = "data.sigma", *, inputs: bool = True
) -> str | None:
    """Describes why residuals are more than noise; None if they are not.

    Tests whether neighbours are too similar, residuals depend on an input, trajectories differ, or residuals exceed
    their known deviation, each at a risk of 1 % over all states.

    **Arguments:** `noise_source`: config key that specifies the noise level; None if it was fitted to these residuals.
    `inputs`: whether a dependence on an input counts.
    """
    channels = checks.channels
    limit = RISK / max(len(channels), 1)
    sentences = neighbours_in_words(channels) + (inputs_in_words(channels) if inputs else [])
    misfits = [sentence[0].lower() + sentence[1:-1] for sentence in sentences]
    differing = [name for name, check in channels.items() if check.pattern is not None and check.pattern < limit]
    if differing:
        misfits.append(
            f"the residuals of trajectories differ by more than chance (those of {', '.join(differing)}), perhaps by a "
            "covariate (data.covariates) or, in equations, by a constant of each (random)"
        )
    large = [name for name, check in channels.items() if check.size is not None and check.size < limit]
    if large and noise_source is not None:
        misfits.append(f"residuals are larger than {noise_source} says (those of {', '.join(large)})")
    return "; ".join(misfits) or None


def standardize(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], scaler: Scaler
) -> Float[np.ndarray, "trajectory time state"]:
    """Computes measured minus predicted states in scaled units, over the standard deviation if known; NaN for none.

    For log-normal noise, residuals are those of logarithms. A censored value is replaced by a draw from beyond its
    limit, or from its interval (Dunn and Smyth, J. Comput. Graph. Statist. 5, 1996); NaN without a standard deviation.
    """
    residuals = plain_residuals(data, predicted, scaler)
    if data.censored is None:
        return residuals
    other_end = data.other_end
    if other_end is not None:
        other_end = plain_residuals(replace(data, ys=other_end, other_end=None), predicted, scaler)
    return np.where(np.isfinite(residuals), draw_beyond(data, residuals, other_end), np.nan)


def plain_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], scaler: Scaler
) -> Float[np.ndarray, "trajectory time state"]:
    """Computes residuals as `standardize` does, but treats limits as values."""
    is_known = data.mask & np.isfinite(predicted)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        zs = scaler.scale_states(np.where(is_known, predicted, np.nan))
        residuals = scaler.near(scaler.scale_states(np.where(is_known, data.ys, np.nan)), zs) - zs
    is_residual = np.isfinite(residuals) & ~(
        (np.abs(residuals) < EXACT_FIT) & (np.arange(int(residuals.shape[1])) == 0)[:, None]
    )
    residuals = residuals if data.sigma is None else residuals / relative_deviations(data, scaler)
    for index, name in enumerate(data.states):
        if name in data.noise and data.noise[name].is_log and data.sigma is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.log(data.ys[..., index] / predicted[..., index])
                residuals[..., index] = ratio * np.abs(predicted[..., index]) / data.sigma[..., index]
    return np.where(is_residual, residuals, np.nan)


def draw_beyond(
    data: Dataset,
    residuals: Float[np.ndarray, "trajectory time state"],
    other: Float[np.ndarray, "trajectory time state"] | None = None,
) -> Float[np.ndarray, "trajectory time state"]:
    """Replaces the residual of each censored value by a draw from beyond its limit, up to `other`."""
    from scipy.special import ndtr, ndtri

    assert data.censored is not None
    if data.sigma is None:
        return np.where(data.censored == 0, residuals, np.nan)
    shares = np.random.default_rng(0).uniform(size=residuals.shape)
    drawn = data.censored * -ndtri(shares * ndtr(-data.censored * residuals))
    if other is not None:
        drawn = np.where(np.isfinite(other), draw_between(residuals, other, shares), drawn)
    return np.where(data.censored == 0, residuals, drawn)


def draw_between(
    one: Float[np.ndarray, "..."], other: Float[np.ndarray, "..."], shares: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Returns quantiles of the standard normal distribution truncated between two numbers; NaN if either is NaN."""
    from scipy.special import log_ndtr, ndtri_exp

    side = np.where(one + other > 0, -1.0, 1.0)  # Log probabilities are accurate below 0.
    low, high = np.minimum(side * one, side * other), np.maximum(side * one, side * other)
    with np.errstate(invalid="ignore"):
        return side * ndtri_exp(np.logaddexp(np.log1p(-shares) + log_ndtr(low), np.log(shares) + log_ndtr(high)))


def check_channels(
    residuals: Float[np.ndarray, "row state"],
    segment: Segment,
    us: Float[np.ndarray, "row input"],
    states: Sequence[str],
    inputs: Sequence[str],
) -> dict[str, ResidualCheck]:
    """Checks the residuals of each state.

    **Arguments:**

    - `residuals`: NaN where masked. `segment`: trajectory index of each row; rows of a trajectory are consecutive.
    - `us`: inputs in each row. `states`, `inputs`: names.
    """
    return {name: check_channel(residuals[:, i], segment, us, inputs) for i, name in enumerate(states)}


def check_channel(
    residuals: Float[np.ndarray, " row"],
    segment: Segment,
    us: Float[np.ndarray, "row input"],
    inputs: Sequence[str],
) -> ResidualCheck:
    known = np.flatnonzero(np.isfinite(residuals))[:MOST_VALUES]
    if known.size < LEAST_VALUES or np.ptp(residuals[known]) == 0:
        return ResidualCheck(int(known.size))
    pattern = pattern_test(residuals, segment)
    values, segment, us = residuals[known], segment[known], us[known]
    correlations = autocorrelation(values, segment, MOST_LAGS)
    pairs = np.array([(segment[lag:] == segment[:-lag]).sum() for lag in range(1, MOST_LAGS + 1)])
    correlations_by_input = {name: input_correlation(values, us[:, i], segment) for i, name in enumerate(inputs)}
    return ResidualCheck(
        values=int(known.size),
        lag1=jsonable(float(correlations[1])),
        lag1_error=float(pairs[0]) ** -0.5 if pairs[0] else None,
        neumann=neumann_test(values, segment),
        pattern=pattern,
        ljung_box=ljung_box(correlations[1:], pairs, known.size),
        runs=runs_test(values, segment) if known.size >= FEW_VALUES else None,
        inputs={name: pair[0] for name, pair in correlations_by_input.items()},
        inputs_p={name: pair[1] for name, pair in correlations_by_input.items()},
    )


def autocorrelation(residuals: Float[np.ndarray, " row"], segment: Segment, lags: int) -> Float[np.ndarray, " lag"]:
    """Computes the autocorrelation of residuals within segments at lags 0 to `lags`; NaN for too few pairs."""
    centred = residuals - np.nanmean(residuals) if np.isfinite(residuals).any() else residuals
    is_known = np.isfinite(centred)
    values = np.where(is_known, centred, 0.0)
    square = np.square(values).sum() / max(is_known.sum(), 1)
    means = [1.0]
    for lag in range(1, lags + 1):
        together = (segment[lag:] == segment[:-lag]) & is_known[lag:] & is_known[:-lag]
        products = values[lag:] * values[:-lag]
        # Fewer pairs are not informative.
        enough = together.sum() >= 4 and square > 0
        means.append(products[together].mean() / square if enough else np.nan)
    return np.array(means)


def neumann_test(values: Float[np.ndarray, " row"], segment: Segment) -> float | None:
    """Computes the p-value of the similarity of neighbours, if residuals are independent; None without neighbours.

    The statistic is the sum of products of neighbours over the sum of squares, with its mean and variance over all
    permutations of the values. Fitted constants make neighbours less similar, so the test is conservative.
    """
    from scipy.special import ndtr

    centred = values - values.mean()
    count, together = values.size, segment[1:] == segment[:-1]
    pairs = int(together.sum())
    if pairs == 0:
        return None
    share = float((centred[1:] * centred[:-1])[together].sum() / np.square(centred).sum())
    mean, deviation = -pairs / (count * (count - 1)), (pairs * (1 - 2 / count)) ** 0.5 / count
    return float(ndtr(float((mean - share) / deviation)))


def pattern_test(residuals: Float[np.ndarray, " row"], segment: Segment) -> float | None:
    """Computes the p-value of the share explained by the leading pattern of trajectories, if residuals are independent;
    None for a single trajectory, or for too few rows.

    The statistic is the largest eigenvalue over the sum of all, for the trajectories' means over time segments. The
    null distribution uses one segment fewer, since each trajectory's start may have been fitted.
    """
    from scipy.special import betainc

    first = np.flatnonzero(np.concatenate([[True], segment[1:] != segment[:-1]]))
    row = np.cumsum(np.isin(np.arange(segment.size), first)) - 1
    position = np.arange(segment.size) - first[row]
    known = np.isfinite(residuals)
    chosen = np.flatnonzero(np.bincount(row[known], minlength=first.size))[:MAX_COMPARED]
    columns = int(position[known].max()) + 1
    parts = min(PATTERN_PARTS, columns)
    if chosen.size < 2 or parts < 3:
        return None
    cell = row * parts + position * parts // columns
    sums = np.bincount(cell[known], residuals[known], first.size * parts)
    counts = np.bincount(cell[known], minlength=first.size * parts)
    means = (sums / np.sqrt(np.maximum(counts, 1))).reshape(first.size, parts)[chosen]
    share = float(leading_share(means[None])[0])
    low, first_shape, second_shape = shares_by_chance(chosen.size, parts - 1)
    return float(1 - betainc(first_shape, second_shape, max(share - low, 0.0) / (1 - low)))


def leading_share(tables: Float[np.ndarray, "draw row column"]) -> Float[np.ndarray, " draw"]:
    """Computes the share of the sum of squares explained by the leading principal component of each table."""
    squares = np.linalg.svd(tables, compute_uv=False) ** 2
    return squares[:, 0] / squares.sum(axis=1)


@functools.lru_cache(maxsize=64)
def shares_by_chance(rows: int, columns: int) -> tuple[float, float, float]:
    """Returns the minimum leading share for tables of independent normal values, and the shape parameters of the beta
    distribution that matches the mean and variance of the excess."""
    low = 1 / min(rows, columns)
    draws = np.random.default_rng(0).standard_normal((PATTERN_DRAWS, rows, columns))
    excess = (leading_share(draws) - low) / (1 - low)
    mean, variance = float(excess.mean()), float(excess.var())
    total = mean * (1 - mean) / variance - 1
    return low, mean * total, (1 - mean) * total


def without_tests(
    check: ResidualCheck, residuals: Float[np.ndarray, " row"], *, written: bool = False
) -> ResidualCheck:
    """Removes the tests from a check if its residuals, in standard deviations of the data, are only solver errors.

    **Arguments:** `written`: whether residuals are no larger than the resolution of the recorded values.
    """
    values = residuals[np.isfinite(residuals)]
    small = written or (values.size > 0 and float(np.sqrt(np.square(values).mean())) <= LEAST_RESIDUAL)
    return replace(check, neumann=None, pattern=None) if small else check


def is_within_steps(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> Bool[np.ndarray, " state"]:
    """Returns for each state whether residuals are at most half the resolution of its values, as from an encoder.

    Such residuals are dependent when a state moves slowly.
    """
    is_within = np.zeros(len(data.states), bool)
    for index in range(len(data.states)):
        known = data.mask[..., index] & np.isfinite(predicted[..., index])
        values, step = data.ys[..., index][known], step_of_values(data.ys[..., index][known])
        if step is not None:
            is_within[index] = np.sqrt(np.mean((values - predicted[..., index][known]) ** 2)) <= step / 2
    return is_within


def step_of_values(values: Float[np.ndarray, " value"]) -> float | None:
    """Returns the step of which all values are multiples; None if no step fits, or values are too few."""
    distinct = np.unique(values)
    if len(distinct) < FEW_VALUES:
        return None
    gaps: np.ndarray = np.diff(distinct)
    gaps = gaps[gaps > SAME_GAP * (distinct[-1] - distinct[0])]
    counts: np.ndarray = gaps / gaps.min()
    return float(gaps.min()) if np.abs(counts - np.round(counts)).max() < WHOLE_STEPS else None


def size_test(residuals: Float[np.ndarray, " row"]) -> float | None:
    """Computes the p-value of the sum of squares of residuals with standard deviation 1; None without residuals.

    An excess that is small relative to the noise is not reported, regardless of significance.
    """
    from scipy.special import chdtrc

    values = residuals[np.isfinite(residuals)]
    if not values.size:
        return None
    squares = float(np.square(values).sum())
    return 1.0 if squares <= (1 + SLIGHT) * values.size else float(chdtrc(values.size, squares))


def ljung_box(correlations: Float[np.ndarray, " lag"], pairs: Int[np.ndarray, " lag"], values: int) -> float | None:
    """Computes the p-value of the correlations, if residuals are independent; None without pairs."""
    from scipy.special import chdtrc

    # Correlations at high lags of short trajectories are not normally distributed.
    usable = np.isfinite(correlations) & (pairs >= FEW_VALUES)
    if not usable.any():
        return None
    statistic = (values + 2) / values * float((pairs * correlations**2)[usable].sum())
    return float(chdtrc(int(usable.sum()), statistic))


def runs_test(values: Float[np.ndarray, " row"], segment: Segment) -> float | None:
    """Computes the two-sided p-value of the number of runs; None if it can't vary.

    Runs are counted within segments, conditional on the number of values above the median in each.
    """
    from scipy.special import ndtr

    above = values > np.median(values)
    number = np.unique(segment, return_inverse=True)[1]
    high, low = np.bincount(number, above), np.bincount(number, ~above)
    count, product = high + low, 2 * high * low
    runs = count.size + (((above[1:] != above[:-1]) & (number[1:] == number[:-1])).sum())
    variance = (product * (product - count) / (count**2 * np.maximum(count - 1, 1))).sum()
    if variance <= 0:
        return None
    return float(2 * ndtr(float(-abs(runs - (product / count + 1).sum()) / variance**0.5)))


def input_correlation(
    values: Float[np.ndarray, " row"], us: Float[np.ndarray, " row"], segment: Segment
) -> tuple[float | None, float | None]:
    """Computes Spearman's correlation with an input, and its p-value; None for a constant input."""
    from scipy.special import ndtr
    from scipy.stats import rankdata, spearmanr

    if not np.isfinite(us).all() or np.ptp(us) == 0:
        return None, None
    correlation = float(cast(np.floating, spearmanr(values, us)[0]))
    lags = min(us.size // 4, 10 * MOST_LAGS)
    value_lags, input_lags = (autocorrelation(rankdata(series), segment, lags)[1:] for series in (values, us))
    spread = max(1 + 2 * float(np.nansum(value_lags * input_lags)), 1.0)
    return correlation, float(2 * ndtr(float(-abs(correlation) * (us.size / spread) ** 0.5)))


Growth = tuple[float | None, float | None]


def growth_of(residuals: Float[np.ndarray, " row"], predicted: Float[np.ndarray, " row"]) -> Growth:
    """Computes Spearman's correlation of the sizes of residuals with the predicted values, and its p-value if residuals
    are independent; None for few rows, constant predictions, and solver errors."""
    from scipy.stats import spearmanr

    known = np.flatnonzero(np.isfinite(residuals) & np.isfinite(predicted))[:MOST_VALUES]
    sizes, rows = np.abs(residuals[known]), predicted[known]
    is_constant = known.size < FEW_VALUES or np.ptp(rows) == 0 or np.ptp(sizes) == 0
    if is_constant or np.sqrt(np.square(sizes).mean()) <= LEAST_RESIDUAL:
        return None, None
    found = spearmanr(sizes, rows)
    return jsonable(float(found[0])), jsonable(float(found[1]))


def is_growing(growth: Growth, channels: int) -> bool:
    """Whether residuals grow with the predicted values, at the risk of one of several channels."""
    correlation, chance = growth
    return (correlation or 0) >= SLIGHT and chance is not None and chance < RISK / max(channels, 1)


def even_out(residuals: Float[np.ndarray, " row"], predicted: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """Divides residuals by their size, an affine function of the predicted values that is fitted to them.

    Tests of independence are for residuals of one size: few large ones beside each other look dependent. The fit is
    weighted by the sizes of the last one.
    """
    from scipy.optimize import nnls

    known = np.isfinite(residuals) & np.isfinite(predicted)
    sizes, values = np.abs(residuals[known]), np.abs(predicted[known])
    typical = np.sqrt(np.square(sizes).mean())
    design = np.column_stack([np.ones(len(values)), values / values.max()]) * typical
    fitted = np.full(len(values), typical)
    for _ in range(REWEIGHTED):
        share, _ = nnls(design / fitted[:, None], sizes / fitted)
        fitted = np.maximum(design @ share, LEAST_RESIDUAL * typical)
    even = residuals.copy()
    even[known] = residuals[known] * typical / fitted
    return even


def find_loggable(data: Dataset, scaler: Scaler) -> list[str]:
    """Returns the states whose values are all positive, with neither bounds nor known deviations."""
    if data.sigma is not None:
        return []
    lowest = np.where(data.mask, data.ys, np.inf).reshape(-1, len(data.states)).min(axis=0, initial=np.inf).tolist()
    columns = zip(data.states, lowest, scaler.bounds, strict=True)
    return [name for name, least, bounds in columns if least > 0 and bounds == UNBOUNDED]


def growth_in_words(channels: Mapping[str, ResidualCheck], loggable: Sequence[str]) -> list[str]:
    """Describes the states whose residuals grow with their values.

    **Arguments:** `loggable`: states of which logarithms can be fitted.
    """
    growing = {
        name: f"{check.growth:.2f} of {name}"
        for name, check in channels.items()
        if name in loggable and is_growing((check.growth, check.growth_p), len(channels))
    }
    if not growing:
        return []
    correlations = f"rank correlation {', '.join(growing.values())}"
    log = f"data.log=[{','.join(growing)}]"
    return [f"The residuals grow with the values ({correlations}), as relative errors do: {log} fits these."]


def neighbours_in_words(channels: Mapping[str, ResidualCheck]) -> list[str]:
    """Describes the states whose neighbouring residuals depend on each other, if any.

    Either a single state or all states combined must be significant (S. A. Stouffer et al., The American Soldier, 1949,
    volume 1).
    """
    from scipy.special import ndtr, ndtri

    chances = {name: check.neumann for name, check in channels.items() if check.neumann is not None}
    if not chances:
        return []
    scores = [float(ndtri(float(np.clip(chance, TINY_CHANCE, 1 - TINY_CHANCE)))) for chance in chances.values()]
    together = float(ndtr(float(sum(scores) / len(scores) ** 0.5)))
    lowest = min(len(chances) * min(chances.values()), together) * (2 if len(chances) > 1 else 1)
    alike = [
        f"{check.lag1:.2f} of {name}"
        for name, check in channels.items()
        if chances.get(name, 1.0) < PROBABLE and check.lag1 is not None and check.lag1 >= SLIGHT
    ]
    is_reported = lowest < RISK and alike
    return (
        [f"Neighbouring residuals depend on each other (lag-1 correlation {', '.join(alike)})."] if is_reported else []
    )


def inputs_in_words(channels: Mapping[str, ResidualCheck]) -> list[str]:
    """Describes each dependence of a state's residuals on an input."""
    limit = RISK / max(sum(len(check.inputs or {}) for check in channels.values()), 1)
    sentences: list[str] = []
    for name, check in channels.items():
        for key, correlation in (check.inputs or {}).items():
            p = (check.inputs_p or {})[key]
            if p is not None and p < limit and correlation is not None and abs(correlation) >= SLIGHT:
                sentences.append(
                    f"The residuals of {name} depend on the input {key} (rank correlation {correlation:.2f})."
                )
    return sentences
