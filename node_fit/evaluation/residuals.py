"""Checks of residuals: whether what a model leaves of its data is independent noise, or past rows predict it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
from jaxtyping import Bool, Float, Int

from ..data.dataset import Dataset
from ..data.noise import is_relative
from ..data.scaling import Scaler
from .metrics import jsonable

# Rows before a residual that may predict it.
PAST = 10
# Maximum number of rows in a regression, and its ridge in standardised units.
MOST_PAST_ROWS, PAST_RIDGE = 20_000, 1e-3


def explain_by_past(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, " state"]:
    """The share of each channel's mean squared residual that a linear map of the ten rows before explains.

    The map is fitted to the first half of the rows and judged on the second, so it may explain less than nothing.

    **Arguments:** `data`, `predicted`: measurements and predictions of them.

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
    left = ((residuals[half:] - features[half:] @ fitted) ** 2).mean(axis=0)
    whole = (residuals[half:] ** 2).mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, 1 - left / whole, np.nan)


def past_and_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, "row state"]]:
    """The measurements in the rows before each row, and its residuals; complete rows only, in order."""
    whole = np.concatenate([data.ys, data.us], axis=2)
    complete = np.isfinite(whole).all(axis=2) & np.isfinite(predicted).all(axis=2) & data.valid
    usable = complete & data.scored
    usable[:, :PAST] = False
    columns = complete.shape[1]
    for back in range(1, PAST + 1):
        usable[:, PAST:] &= complete[:, PAST - back : max(columns - back, 0)]
    trajectories, steps = (found[-MOST_PAST_ROWS:] for found in np.nonzero(usable))
    past = whole[trajectories[:, None], steps[:, None] + np.arange(-PAST, 0)]
    residuals = (predicted - data.near(predicted))[trajectories, steps]
    return past.reshape(len(steps), PAST * whole.shape[2]), residuals


# Fewer residuals have no correlations at several lags, fewer than the least no neighbours to compare; more than the
# most tell nothing new, and take seconds.
FEW_VALUES, LEAST_VALUES, MOST_VALUES = 20, 8, 200_000
# The risk that independent residuals are said to depend on each other, or on inputs, over all states of a split.
RISK = 0.01
# The states that a sentence names are those that say it at this risk. Probabilities are kept from 0 and 1 by the last.
PROBABLE, TINY_CHANCE = 0.05, 1e-12
# A smaller correlation is not worth a sentence, however sure it is.
SLIGHT = 0.2
# Neighbours of a residual whose correlations are tested together.
MOST_LAGS = 10
# With more channels, a regression on past rows would take seconds.
MOST_TESTED_CHANNELS = 20
# Parts of the time over which a pattern of residuals is looked for, trajectories that are compared, and draws of
# independent residuals that say how large a pattern is by chance.
PATTERN_PARTS, MAX_COMPARED, PATTERN_DRAWS = 8, 256, 500
# Residuals below this share of their channel's spread are errors of the solver.
LEAST_RESIDUAL = 1e-3
# Values are the same up to this share of their range, and gaps between them are whole steps up to this share of a step.
SAME_GAP, WHOLE_STEPS = 1e-9, 1e-3
# A first row that is met so closely is where its trajectory starts, and no residual [standard deviations].
EXACT_FIT = 1e-5

Segment = Int[np.ndarray, " row"]


@dataclass(frozen=True)
class ResidualCheck:
    """What the residuals of a channel look like. Neighbours are measurements in a row of the same trajectory.

    - `values`: number of residuals; with fewer than 8 everything else is None, and with fewer than 20 `ljung_box` and
      `runs` are.
    - `lag1`, `lag1_error`: correlation of neighbouring residuals, and its standard error if they are independent.
    - `neumann`: probability of neighbours that are as much alike, if residuals are independent (von Neumann, Ann. Math.
      Statist. 12, 1941).
    - `pattern`: probability that the leading pattern over time of several trajectories' residuals explains as much, if
      they are independent; None of one trajectory. Misfits that trajectories share, or that differ by group, are such
      patterns, of which each trajectory has its own multiple.
    - `size`: probability of residuals as large, if their known standard deviation is right; None if it is not known.
    - `ljung_box`: probability of correlations as large at lags 1 to 10, if they are independent (Ljung and Box,
      Biometrika 65, 1978).
    - `runs`: probability of as few or as many runs above and below the median (Wald and Wolfowitz, Ann. Math. Statist.
      11, 1940).
    - `past`: share of their mean square that a linear map of the ten rows before explains, on rows that it was not
      fitted to; None for too few rows.
    - `inputs`: Spearman's correlation with each input in the same row. `inputs_p`: the probability of one as large,
      with the variance of two independent autocorrelated series (Bartlett, J. R. Stat. Soc. 98, 1935).
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


@dataclass(frozen=True)
class ResidualChecks:
    """The residuals of a split, checked.

    - `channels`: a `ResidualCheck` for each state.
    - `says`: sentences on what was found; empty if nothing was.
    """

    channels: Mapping[str, ResidualCheck]
    says: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def check_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], scaler: Scaler
) -> ResidualChecks:
    """Checks the residuals of a split on the scale on which they are fitted.

    **Arguments:**

    - `data`: the measurements; those that are scored count.
    - `predicted`: states at the same times in the same units.
    - `scaler`: of the model. States with logarithms or bounds count on its line, others in standard deviations.

    **Returns:** `ResidualChecks`.
    """
    residuals = standardize(data, predicted, scaler).reshape(-1, len(data.states))
    segment = np.repeat(np.arange(len(data.trajectories)), data.ts.shape[1])
    us = data.us.reshape(segment.size, len(data.inputs))
    channels = check_channels(residuals, segment, us, data.states, data.inputs)
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
        channels = {name: replace(each, past=jsonable(float(share))) for (name, each), share in past}
    return ResidualChecks(channels, tuple(neighbours_in_words(channels) + inputs_in_words(channels)))


def describe_misfit(checks: ResidualChecks, noise_source: str = "data.sigma") -> str | None:
    """What says that residuals are more than noise, in words; None if nothing does.

    Neighbours may be too much alike, trajectories may differ, and residuals may be larger than their known deviation,
    each at a risk of 1 % over all states.

    **Arguments:** `noise_source`: what says how large the noise is.
    """
    channels = checks.channels
    limit = RISK / max(len(channels), 1)
    misfits = [sentence[0].lower() + sentence[1:-1] for sentence in neighbours_in_words(channels)]
    differing = [name for name, check in channels.items() if check.pattern is not None and check.pattern < limit]
    if differing:
        misfits.append(
            f"the residuals of trajectories differ by more than chance (those of {', '.join(differing)}), perhaps by a "
            "covariate (data.covariates) or, in equations, by a constant of each (random)"
        )
    large = [name for name, check in channels.items() if check.size is not None and check.size < limit]
    if large:
        misfits.append(f"residuals are larger than {noise_source} says (those of {', '.join(large)})")
    return "; ".join(misfits) or None


def standardize(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], scaler: Scaler
) -> Float[np.ndarray, "trajectory time state"]:
    """Measured less predicted states in scaled units, over the standard deviation if that is given; NaN for none.

    Those of log-normal noise are of logarithms. In the place of a censored value is one drawn from beyond its limit, or
    from its interval (Dunn and Smyth, J. Comput. Graph. Statist. 5, 1996); without a standard deviation there is none.
    """
    found = plain_residuals(data, predicted, scaler)
    if data.censored is None:
        return found
    other = data.other_end
    if other is not None:
        other = plain_residuals(replace(data, ys=other, other_end=None), predicted, scaler)
    return np.where(np.isfinite(found), draw_beyond(data, found, other), np.nan)


def plain_residuals(
    data: Dataset, predicted: Float[np.ndarray, "trajectory time state"], scaler: Scaler
) -> Float[np.ndarray, "trajectory time state"]:
    """`standardize` of limits themselves."""
    known = data.mask & np.isfinite(predicted)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        zs = scaler.scale_states(np.where(known, predicted, np.nan))
        found = scaler.near(scaler.scale_states(np.where(known, data.ys, np.nan)), zs) - zs
    given = np.isfinite(found) & ~((np.abs(found) < EXACT_FIT) & (np.arange(int(found.shape[1])) == 0)[:, None])
    found = found if data.sigma is None else found / is_relative(data, scaler)
    for index, name in enumerate(data.states):
        if name in data.noise and data.noise[name].is_log and data.sigma is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.log(data.ys[..., index] / predicted[..., index])
                found[..., index] = ratio * np.abs(predicted[..., index]) / data.sigma[..., index]
    return np.where(given, found, np.nan)


def draw_beyond(
    data: Dataset,
    residuals: Float[np.ndarray, "trajectory time state"],
    other: Float[np.ndarray, "trajectory time state"] | None = None,
) -> Float[np.ndarray, "trajectory time state"]:
    """The residuals, with a draw from beyond its limit for that of each censored value, not farther than `other`."""
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
    """The normal number between two, below which lies such a share of their probability; NaN where one is."""
    from scipy.special import log_ndtr, ndtri_exp

    side = np.where(one + other > 0, -1.0, 1.0)  # On the side below 0, logarithms of probabilities are exact.
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

    - `residuals`: NaN where nothing counts. `segment`: the number of each row's trajectory; its rows follow each other.
    - `us`: inputs in each row. `states`, `inputs`: their names.
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
    found = {name: input_correlation(values, us[:, i], segment) for i, name in enumerate(inputs)}
    return ResidualCheck(
        values=int(known.size),
        lag1=jsonable(float(correlations[1])),
        lag1_error=float(pairs[0]) ** -0.5 if pairs[0] else None,
        neumann=neumann_test(values, segment),
        pattern=pattern,
        ljung_box=ljung_box(correlations[1:], pairs, known.size),
        runs=runs_test(values, segment) if known.size >= FEW_VALUES else None,
        inputs={name: each[0] for name, each in found.items()},
        inputs_p={name: each[1] for name, each in found.items()},
    )


def autocorrelation(residuals: Float[np.ndarray, " row"], segment: Segment, lags: int) -> Float[np.ndarray, " lag"]:
    """Mean product of residuals so many rows apart in the same segment, over their mean square; NaN for none."""
    centred = residuals - np.nanmean(residuals) if np.isfinite(residuals).any() else residuals
    known = np.isfinite(centred)
    values = np.where(known, centred, 0.0)
    square = np.square(values).sum() / max(known.sum(), 1)
    found = [1.0]
    for lag in range(1, lags + 1):
        together = (segment[lag:] == segment[:-lag]) & known[lag:] & known[:-lag]
        products = values[lag:] * values[:-lag]
        # Few pairs would tell nothing.
        enough = together.sum() >= 4 and square > 0
        found.append(products[together].mean() / square if enough else np.nan)
    return np.array(found)


def neumann_test(values: Float[np.ndarray, " row"], segment: Segment) -> float | None:
    """The probability of neighbours that are as much alike, if residuals are independent; None without neighbours.

    The sum of the products of neighbours, over that of the squares, has the mean and the variance that it has over all
    orders of the values. Constants that are fitted make neighbours less alike, so the test errs on the safe side.
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
    """The probability that the leading pattern of trajectories explains as much, if residuals are independent; None of
    a single trajectory, or of too few rows.

    It is the largest eigenvalue over the sum of all, of the trajectories' means over parts of the time. A part fewer
    counts, since each trajectory's start may have been fitted.
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
    """The share of the sum of squares that the leading principal component of each table explains."""
    squares = np.linalg.svd(tables, compute_uv=False) ** 2
    return squares[:, 0] / squares.sum(axis=1)


@functools.lru_cache(maxsize=64)
def shares_by_chance(rows: int, columns: int) -> tuple[float, float, float]:
    """The least leading share of tables of independent normal values, and the two shapes of the beta distribution that
    has the mean and the variance of its excess."""
    low = 1 / min(rows, columns)
    draws = np.random.default_rng(0).standard_normal((PATTERN_DRAWS, rows, columns))
    excess = (leading_share(draws) - low) / (1 - low)
    mean, variance = float(excess.mean()), float(excess.var())
    total = mean * (1 - mean) / variance - 1
    return low, mean * total, (1 - mean) * total


def without_tests(
    check: ResidualCheck, residuals: Float[np.ndarray, " row"], *, written: bool = False
) -> ResidualCheck:
    """The check of residuals in standard deviations of the data; untested if they are no larger than the solver's.

    **Arguments:** `written`: whether they are no larger than the steps in which values are written.
    """
    values = residuals[np.isfinite(residuals)]
    small = written or (values.size > 0 and float(np.sqrt(np.square(values).mean())) <= LEAST_RESIDUAL)
    return replace(check, neumann=None, pattern=None) if small else check


def is_within_steps(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> Bool[np.ndarray, " state"]:
    """Whether the residuals of a state are no more than half of the step in which its values are written or counted, as
    by an encoder: neighbouring ones depend on each other where a state moves slowly."""
    found = np.zeros(len(data.states), bool)
    for index in range(len(data.states)):
        known = data.mask[..., index] & np.isfinite(predicted[..., index])
        values, step = data.ys[..., index][known], step_of_values(data.ys[..., index][known])
        if step is not None:
            found[index] = np.sqrt(np.mean((values - predicted[..., index][known]) ** 2)) <= step / 2
    return found


def step_of_values(values: Float[np.ndarray, " value"]) -> float | None:
    """The step of which all values are multiples; None if there is none, or many values are within one step."""
    each = np.unique(values)
    if len(each) < FEW_VALUES:
        return None
    gaps: np.ndarray = np.diff(each)
    gaps = gaps[gaps > SAME_GAP * (each[-1] - each[0])]
    counts: np.ndarray = gaps / gaps.min()
    return float(gaps.min()) if np.abs(counts - np.round(counts)).max() < WHOLE_STEPS else None


def size_test(residuals: Float[np.ndarray, " row"]) -> float | None:
    """The probability that a sum of squares is as large, of residuals of standard deviation 1; None for none.

    An excess that is a small share of the noise is not worth a sentence, however sure it is.
    """
    from scipy.special import chdtrc

    values = residuals[np.isfinite(residuals)]
    if not values.size:
        return None
    squares = float(np.square(values).sum())
    return 1.0 if squares <= (1 + SLIGHT) * values.size else float(chdtrc(values.size, squares))


def ljung_box(correlations: Float[np.ndarray, " lag"], pairs: Int[np.ndarray, " lag"], values: int) -> float | None:
    """The probability of correlations as large, if residuals are independent; None without pairs."""
    from scipy.special import chdtrc

    # Correlations at high lags of short trajectories are not normal.
    usable = np.isfinite(correlations) & (pairs >= FEW_VALUES)
    if not usable.any():
        return None
    statistic = (values + 2) / values * float((pairs * correlations**2)[usable].sum())
    return float(chdtrc(int(usable.sum()), statistic))


def runs_test(values: Float[np.ndarray, " row"], segment: Segment) -> float | None:
    """The probability of a number of runs as far from that of independent values; None if it can't vary.

    Runs are counted within segments, given how many values of each lie above the median.
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
    """Spearman's correlation with an input, and the probability of one as large; None for a constant input."""
    from scipy.special import ndtr
    from scipy.stats import rankdata, spearmanr

    if not np.isfinite(us).all() or np.ptp(us) == 0:
        return None, None
    found = float(cast(np.floating, spearmanr(values, us)[0]))
    lags = min(us.size // 4, 10 * MOST_LAGS)
    own, other = (autocorrelation(rankdata(each), segment, lags)[1:] for each in (values, us))
    spread = max(1 + 2 * float(np.nansum(own * other)), 1.0)
    return found, float(2 * ndtr(float(-abs(found) * (us.size / spread) ** 0.5)))


def neighbours_in_words(channels: Mapping[str, ResidualCheck]) -> list[str]:
    """A sentence on the states whose neighbouring residuals depend on each other, if any do.

    Either one state tells of it, or all together (S. A. Stouffer et al., The American Soldier, 1949, volume 1).
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
    told = lowest < RISK and alike
    return [f"Neighbouring residuals depend on each other (lag-1 correlation {', '.join(alike)})."] if told else []


def inputs_in_words(channels: Mapping[str, ResidualCheck]) -> list[str]:
    """A sentence for each state whose residuals depend on an input."""
    limit = RISK / max(sum(len(each.inputs or {}) for each in channels.values()), 1)
    found: list[str] = []
    for name, each in channels.items():
        for key, correlation in (each.inputs or {}).items():
            p = (each.inputs_p or {})[key]
            if p is not None and p < limit and correlation is not None and abs(correlation) >= SLIGHT:
                found.append(f"The residuals of {name} depend on the input {key} (rank correlation {correlation:.2f}).")
    return found
