"""Prediction errors and scores of a model, per channel and over the horizon, and of the baselines that it must beat."""

import math
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from jaxtyping import Float, Int

from ..data.batch import start_rows
from ..data.dataset import Dataset, check_data
from ..data.domains import gather_turns
from ..model.ensemble import Ensemble
from ..model.initial_state.rule import AbstractStart
from ..model.neural_ode import NeuralODE

Predicted = Float[np.ndarray, "trajectory time state"]

# Times the largest measurement: a state beyond that has run away.
FAR_OFF = 10.0

# Relative weight of the ridge penalty on the coefficients of the linear equation, in standardised units. It matters
# only where the data do not decide: with fewer rows than coefficients, or with states that move together.
BASELINE_RIDGE = 1e-6
# A growing linear equation is clipped here [standard deviations], far beyond any useful prediction.
CEILING = 1e6
# Digits of a step, in mean steps, by which steps differ; fewer, where so many different ones would take seconds.
STEP_DIGITS, MAX_DIFFERENT_STEPS = 9, 5_000
# Multiplications in a product of all transition matrices' sizes, beyond which a linear equation takes minutes.
MAX_BASELINE_OPERATIONS = 2e9
# Records of more intervals are solved in blocks side by side, whose matrices have at most so many elements.
MAX_IN_TURN, MAX_BLOCK_ELEMENTS = 2_000, 10_000_000


class Figures(TypedDict):
    """Scores for JSON; None for one that is not finite."""

    rmse: float | None
    nrmse: float | None
    r2: float | None


class ChannelFigures(Figures):
    """Scores of a channel, and the number of values that count."""

    points: int


class SplitFigures(Figures):
    """Scores of a split over all channels, and of each."""

    channels: dict[str, ChannelFigures]


@dataclass(frozen=True)
class ChannelScore:
    """Errors of one state.

    - `rmse`: root mean square error [unit of the state].
    - `nrmse`: `rmse` over the standard deviation of the measured values that count.
    - `r2`: `1 - nrmse**2`, the coefficient of determination.
    - `points`: number of measured values that count.
    """

    rmse: float
    nrmse: float
    r2: float
    points: int

    def as_dict(self) -> ChannelFigures:
        """The four values for JSON; `None` for one that is not finite."""
        return {
            "rmse": jsonable(self.rmse),
            "nrmse": jsonable(self.nrmse),
            "r2": jsonable(self.r2),
            "points": self.points,
        }


@dataclass(frozen=True)
class Score:
    """Errors of a prediction on a dataset.

    - `rmse`: root mean square error over all values that count, in the user's units; use `nrmse` to compare states of
      different units.
    - `nrmse`: root mean square over the channels of their NRMSE. Every state has the same weight, whatever its unit and
      number of measurements. Predicting each channel's mean gives 1.
    - `r2`: `1 - nrmse**2`, which is one minus the mean over the channels of SSE/SST.
    - `points`: number of values that count.
    - `channels`: errors of each state, by name.
    - `failed_points`: number of values that count whose prediction is not finite. One makes `rmse` infinite.
    """

    rmse: float
    nrmse: float
    r2: float
    points: int
    channels: dict[str, ChannelScore]
    failed_points: int = 0

    def __str__(self) -> str:
        each = ", ".join(f"{name} {channel.nrmse:.3g}" for name, channel in self.channels.items())
        return f"NRMSE {self.nrmse:.3g} ({each}), R² {self.r2:.3g}, RMSE {self.rmse:.3g}, {self.points} values"

    def as_dict(self) -> SplitFigures:
        """The errors for JSON, with those of each channel; `None` for a number that is not finite."""
        return {
            "rmse": jsonable(self.rmse),
            "nrmse": jsonable(self.nrmse),
            "r2": jsonable(self.r2),
            "channels": {name: channel.as_dict() for name, channel in self.channels.items()},
        }


@dataclass(frozen=True)
class HorizonError:
    """Error against the time since a trajectory's start.

    - `edges`: edges of the bins [unit of time], shape `(edge,)`, one more than there are bins.
    - `nrmse`: error in each bin, shape `(bin,)`; NaN in a bin without measurements.
    - `points`: number of values in each bin, shape `(bin,)`.
    """

    edges: Float[np.ndarray, " edge"]
    nrmse: Float[np.ndarray, " bin"]
    points: Int[np.ndarray, " bin"]


def score_predictions(dataset: Dataset, predicted: Predicted) -> Score:
    """Compares a prediction with the measurements that count (`dataset.mask`); errors of angles are modulo a turn.

    A constant channel has no scale: its NRMSE is 0 if the prediction is exact, infinite if the prediction is not
    finite, and NaN otherwise. Channels with an NRMSE of NaN, including those without measurements, are left out of the
    overall `nrmse` and `r2`.

    **Arguments:**

    - `dataset`: the measurements.
    - `predicted`: states at the dataset's times in its units, shape `(trajectory, time, state)`.

    **Returns:** a `Score`.

    **Raises:** `ValueError` if the shapes differ.
    """
    mask = dataset.mask
    squares = squared_errors(dataset, predicted)
    channels = {
        name: score_channel(measured_values(dataset, i), squares[..., i][mask[..., i]])
        for i, name in enumerate(dataset.states)
    }
    nrmse = root_mean_square(np.array([c.nrmse for c in channels.values() if not math.isnan(c.nrmse)]))
    return Score(
        rmse=root_mean(squares[mask]),
        nrmse=nrmse,
        r2=1 - nrmse**2,
        points=int(mask.sum()),
        channels=channels,
        failed_points=int((mask & ~np.isfinite(predicted)).sum()),
    )


def error_over_horizon(dataset: Dataset, predicted: Predicted, bins: int = 10) -> HorizonError:
    """NRMSE against the time since each trajectory's start, over the measurements that count.

    The errors of a state are divided by its standard deviation over the whole dataset, so that bins compare. The error
    of a bin is the root mean square over the states, as in `Score`. Constant states are left out.

    **Arguments:**

    - `dataset`, `predicted`: as in `score`.
    - `bins`: number of bins of equal width, from the earliest to the latest measurement that counts.

    **Returns:** a `HorizonError`.

    **Raises:** `ValueError` if the shapes differ, or `bins` is not positive.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}.")
    scales = prediction_errors(dataset)
    mask = dataset.mask & (scales > 0)
    squares = squared_errors(dataset, predicted) / np.where(scales > 0, scales, 1.0) ** 2
    elapsed = dataset.ts - dataset.ts[:, :1]
    counted = elapsed[mask.any(axis=2)]
    low, high = (float(counted.min()), float(counted.max())) if counted.size else (0.0, 1.0)
    # The small offset puts times on an edge, despite rounding, into the bin that begins there.
    places = np.floor((elapsed - low) / max(high - low, np.finfo(float).tiny) * bins + 1e-9)
    places = np.clip(places, 0, bins - 1)
    inside = [mask & (places == i)[..., None] for i in range(bins)]
    return HorizonError(
        edges=np.linspace(low, high, bins + 1),
        nrmse=np.array([mean_over_channels(squares, here) for here in inside]),
        points=np.array([here.sum() for here in inside]),
    )


def prediction_errors(dataset: Dataset) -> Float[np.ndarray, " state"]:
    """Standard deviation of the values that count, for each state; exactly 0 where they are all equal."""
    return np.array([root_variance(measured_values(dataset, i)) for i in range(len(dataset.states))])


def measured_values(dataset: Dataset, state: int) -> Float[np.ndarray, " point"]:
    """The values of a state that count; angles around their mean direction."""
    values = dataset.ys[..., state][dataset.mask[..., state]]
    return gather_turns(values, dataset.angles.get(dataset.states[state]))


def root_variance(values: Float[np.ndarray, " point"]) -> float:
    # The mean of equal numbers is rounded, so np.std alone would give a tiny scale instead of 0.
    return float(values.std()) if values.size and np.ptp(values) > 0 else 0.0


def squared_errors(dataset: Dataset, predicted: Predicted) -> Predicted:
    """Squared errors; 0 where nothing counts, infinite where the prediction is not finite."""
    if predicted.shape != dataset.ys.shape:
        raise ValueError(f"predicted has shape {predicted.shape}; the dataset's states have {dataset.ys.shape}.")
    finite = np.isfinite(predicted)
    with np.errstate(over="ignore"):
        solved = np.where(finite, predicted, 0.0).astype(np.float64)
        squares = np.square(solved - np.nan_to_num(dataset.near(solved)))
    return np.where(dataset.mask, np.where(finite, squares, np.inf), 0.0)


def score_channel(values: Float[np.ndarray, " point"], squares: Float[np.ndarray, " point"]) -> ChannelScore:
    rmse, scale = root_mean(squares), root_variance(values)
    undefined = rmse if rmse in (0.0, math.inf) else math.nan
    nrmse = rmse / scale if scale > 0 else undefined
    return ChannelScore(rmse=rmse, nrmse=nrmse, r2=1 - nrmse * nrmse, points=values.size)


def mean_over_channels(squares: Predicted, mask: np.ndarray) -> float:
    """Root of the mean over the states of their mean squares where `mask` is true; NaN if it is never true."""
    means = [squares[..., i][mask[..., i]].mean() for i in range(squares.shape[2]) if mask[..., i].any()]
    return root_mean(np.array(means, dtype=np.float64))


def root_mean(squares: Float[np.ndarray, " point"]) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(squares.mean())) if squares.size else math.nan


def root_mean_square(values: Float[np.ndarray, " channel"]) -> float:
    with np.errstate(over="ignore"):
        return root_mean(np.square(values))


def coverage(data: Dataset, lower: Predicted, upper: Predicted) -> float | None:
    """Share of the measured values that count and lie between two edges; `None` if none has edges."""
    ys = data.near((lower + upper) / 2)
    inside, counts = (lower <= ys) & (ys <= upper), data.mask & ~np.isnan(lower + upper)
    return float(inside[counts].mean()) if counts.any() else None


def jsonable(number: float) -> float | None:
    return number if math.isfinite(number) else None


def score(model: NeuralODE | Ensemble, data: Dataset) -> Score:
    """How well a model's simulated trajectories match the measured ones, in the user's units.

    ```python
    print(node_fit.score(node_fit.load("model.safetensors"), data))
    ```

    **Arguments:**

    - `model`: such as `fit.model`, or a model that was loaded.
    - `data`: measurements; rows that starts are read from do not count.

    **Raises:** `ValueError` if the channels are not those of the fit.
    """
    return score_predictions(score_values(model, data), model.predict(data))


def score_values(model: NeuralODE | Ensemble, data: Dataset, *, trained: bool = False) -> Dataset:
    """The data, of which the rows that starts are read from do not count.

    **Arguments:** `trained`: whether the model was trained on the data. Then starts that are fitted are parameters like
    others, and all rows count.
    """
    check_data(data, "data")
    marked = model.typical.scaler.marked(data)
    return marked if trained and model.typical.start.is_fitted else score_rows(model.typical.start, marked)


def score_rows(start: AbstractStart, data: Dataset) -> Dataset:
    """The data, in which the rows that give the starts do not count, since they do not test the model.

    If a trajectory has rows before the first that counts, those give its start. A dataset in which no row would count
    is returned unchanged.
    """
    given = start.past or start.given_rows
    rows = np.arange(int(data.ts.shape[1]))[None, :]
    if start.past:
        last = start_rows(data, start.past, start.washout)
    else:
        opens = data.mask[:, 0].any(axis=1) | ~(data.valid & ~data.scored).any(axis=1)
        last = np.where(opens, data.ts.shape[1] if given is None else given - 1, -1)
    part = replace(data, scored=data.scored & (rows > last[:, None]))
    return part if part.mask.any() else data


@dataclass(frozen=True)
class Divergence:
    """A trajectory that can't be simulated to its end: its `name`, the last `time` at which it can, and whether it
    has run `away` by then."""

    name: str
    time: float
    away: bool


def where_not_finite(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> list[Divergence]:
    """The trajectories with a prediction that is not finite, among the rows that count."""
    lost = ~np.isfinite(predicted).all(axis=2) & data.valid & data.scored
    measured = np.abs(np.where(np.isfinite(data.ys), data.ys, 0)).max(axis=(0, 1))
    found: list[Divergence] = []
    for row in np.flatnonzero(lost.any(axis=1)):
        first = int(lost[row].argmax())
        last = max(first - 1, 0)
        away = bool(np.isinf(predicted[row, first]).any() | (np.abs(predicted[row, last]) > FAR_OFF * measured).any())
        found.append(Divergence(data.trajectories[row], float(data.ts[row, last]), away))
    return found


def predict_baselines(train: Dataset, target: Dataset) -> dict[str, Predicted]:
    """Predictions of `target` by three baselines, fitted to `train`: `mean`, `persistence` and `linear`.

    `linear` is left out where states jump at events, of which it knows nothing, and where its matrices would take
    minutes, as those of thousands of states.
    """
    models = {"mean": mean, "persistence": persistence}
    if train.events is None and target.events is None and is_linear_affordable(target):
        models["linear"] = fit_linear_ode
    return {name: predict(train, target) for name, predict in models.items()}


def baselines(train: Dataset, target: Dataset) -> dict[str, Score]:
    """Scores of the three baselines on `target`, fitted to `train`; see `predict_baselines`."""
    return {name: score_predictions(target, ys) for name, ys in predict_baselines(train, target).items()}


def mean(train: Dataset, target: Dataset) -> Predicted:
    """Predicts each state's mean over the training measurements at all times.

    **Arguments:**

    - `train`: the measurements to learn from.
    - `target`: the trajectories to predict, with the same states.

    **Returns:** states at `target`'s times, in the user's units, shape `(trajectory, time, state)`.
    """
    check_same_columns(train, target)
    return np.broadcast_to(state_means(train), target.ys.shape).copy()


def persistence(train: Dataset, target: Dataset) -> Predicted:
    """Predicts that every state keeps its last known value.

    In a forecast, that is the last value measured before the trajectory's first scored row. If no value of a state was
    measured before, for example because all rows are scored, it is the first measured value, from which a model starts
    too. A state that was never measured in a trajectory keeps its training mean.

    **Arguments:** and **Returns:** as in `mean`.
    """
    check_same_columns(train, target)
    known = np.isfinite(target.ys) & ~np.logical_or.accumulate(target.scored, axis=1)[..., None]
    last = target.ys.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    latest = np.take_along_axis(target.ys, last[:, None, :], axis=1)[:, 0]
    held = np.where(known.any(axis=1), latest, starts(train, target))
    return np.repeat(held[:, None, :], target.ys.shape[1], axis=1)


def fit_linear_ode(train: Dataset, target: Dataset) -> Predicted:
    """Predicts with `dy/dt = A y + B u + c`, fitted to `train` and started from the first measured values.

    The coefficients are the least-squares solution of the trapezoidal rule `y[k+1] - y[k] = h (A (y[k] + y[k+1]) / 2 +
    B (u[k] + u[k+1]) / 2 + c)` over consecutive complete rows of a trajectory, with a small ridge penalty. The fit is
    to increments, not slopes, because the measurement noise of increments does not depend on `h`. The solution over
    each interval is exact for an input held at the mean of its two ends.

    **Arguments:** and **Returns:** as in `mean`. A solution that grows without bound is clipped at a million standard
    deviations from the mean.
    """
    check_same_columns(train, target)
    equation = LinearEquation.fit(train)
    return equation.solve(target, starts(train, target))


@dataclass(frozen=True)
class LinearEquation:
    """`dz/ds = A z + B v + c` for standardised states `z`, inputs `v` and time `s`.

    - `rates`: `[A B c]`, shape `(state, column)`.
    - `shift`, `scale`: mean and standard deviation of each state and input, shape `(channel,)`.
    - `step`: the unit of `s`, the mean training step [unit of time].
    """

    rates: Float[np.ndarray, "state column"]
    shift: Float[np.ndarray, " channel"]
    scale: Float[np.ndarray, " channel"]
    step: float

    @staticmethod
    def fit(train: Dataset) -> "LinearEquation":
        rows = np.concatenate([train.ys, train.us], axis=2)
        complete = np.asarray(train.mask.all(axis=2))
        shift, scale = moments(rows, complete)
        steps, starts_at, ends_at = intervals(train.ts, (rows - shift) / scale, complete)
        states = len(train.states)
        unit = float(steps.mean()) if steps.size else 1.0
        features = np.concatenate([(starts_at + ends_at) / 2, np.ones((len(steps), 1))], axis=1)
        weight = np.sqrt(BASELINE_RIDGE * max(len(steps), 1)) * np.eye(features.shape[1])
        weight[-1, -1] = 0.0  # The constant is not penalised.
        rates = np.linalg.lstsq(
            np.concatenate([features * (steps / unit)[:, None], weight]),
            np.concatenate([ends_at[:, :states] - starts_at[:, :states], np.zeros((features.shape[1], states))]),
            rcond=None,
        )[0]
        return LinearEquation(rates=rates.T, shift=shift, scale=scale, step=unit)

    def solve(self, target: Dataset, start: Float[np.ndarray, "trajectory state"]) -> Predicted:
        states = start.shape[1]
        inputs = (target.us - self.shift[states:]) / self.scale[states:]
        held = np.concatenate([(inputs[:, 1:] + inputs[:, :-1]) / 2, np.ones_like(target.ts[:, 1:, None])], axis=2)
        forcing = held @ self.rates[:, states:].T
        different, which = find_different_steps(np.diff(target.ts, axis=1) / self.step)
        z = (start - self.shift[:states]) / self.scale[:states]
        path = march_baseline(self.transitions(different), which, forcing, z)
        return path * self.scale[:states] + self.shift[:states]

    def transitions(self, steps: Float[np.ndarray, " step"]) -> Float[np.ndarray, "step state twice"]:
        """`[exp(A h), integral of exp(A s) over 0..h]` for each step, from one exponential of `[[A, 1], [0, 0]] h`."""
        from scipy.linalg import expm

        states = len(self.rates)
        block = np.zeros((2 * states, 2 * states))
        block[:states, :states] = self.rates[:, :states]
        block[:states, states:] = np.eye(states)
        with np.errstate(over="ignore", invalid="ignore"):
            return expm(block * steps[:, None, None])[:, :states]


def is_linear_affordable(target: Dataset) -> bool:
    """Whether the linear equation of these states and different steps takes seconds, and not minutes."""
    steps = np.diff(target.ts, axis=1)
    different = find_different_steps(steps / (float(steps.mean()) or 1.0))[0] if steps.size else steps
    return different.size * (2 * len(target.states)) ** 3 <= MAX_BASELINE_OPERATIONS


def find_different_steps(
    steps: Float[np.ndarray, "trajectory interval"],
) -> tuple[Float[np.ndarray, " step"], Int[np.ndarray, "trajectory interval"]]:
    """The different steps, and which of them each interval has; those of a uniform grid are equal by rounding."""
    digits = STEP_DIGITS
    different, which = np.unique(np.round(steps, digits), return_inverse=True)
    while different.size > MAX_DIFFERENT_STEPS and digits > 0:
        digits -= 1
        different, which = np.unique(np.round(steps, digits), return_inverse=True)
    return different, which.reshape(steps.shape)


def march_baseline(
    transitions: Float[np.ndarray, "step state twice"],
    which: Int[np.ndarray, "trajectory interval"],
    forcing: Float[np.ndarray, "trajectory interval state"],
    z: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory time state"]:
    """The states at all times from the first ones.

    A step of many trajectories takes as long as one of few. So a long record is cut into blocks: all are solved from
    zero side by side, which gives where each begins, and then from there.
    """
    trajectories, intervals = which.shape
    states = z.shape[1]
    most = MAX_BLOCK_ELEMENTS // max(trajectories * states**2, 1)
    blocks = min(math.isqrt(intervals), most) if intervals > MAX_IN_TURN else 1
    if blocks < 2:
        return march_in_turn(transitions, which, forcing, z)
    size = -(-intervals // blocks)
    room = ((0, 0), (0, blocks * size - intervals))
    cut = np.pad(which, room).reshape(-1, size)
    pushed = np.pad(forcing, (*room, (0, 0))).reshape(-1, size, states)
    moved = np.zeros((len(cut), states))
    growth = np.broadcast_to(np.eye(states), (len(cut), states, states))
    for k in range(size):
        moved = advance_baseline(transitions[cut[:, k]], moved, pushed[:, k])
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.einsum("nij,njk->nik", transitions[cut[:, k], :, :states], growth)
        growth = np.clip(growth, -CEILING, CEILING)
    moved, growth = moved.reshape(trajectories, blocks, states), growth.reshape(trajectories, blocks, states, states)
    begins = [z]
    for block in range(blocks - 1):
        later = np.einsum("nij,nj->ni", growth[:, block], begins[-1]) + moved[:, block]
        begins.append(np.clip(later, -CEILING, CEILING))
    path = march_in_turn(transitions, cut, pushed, np.stack(begins, axis=1).reshape(-1, states))
    later = path[:, 1:].reshape(trajectories, blocks * size, states)[:, :intervals]
    return np.concatenate([z[:, None], later], axis=1)


def march_in_turn(
    transitions: Float[np.ndarray, "step state twice"],
    which: Int[np.ndarray, "trajectory interval"],
    forcing: Float[np.ndarray, "trajectory interval state"],
    z: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory time state"]:
    """As `march_baseline`, one interval after another."""
    path = [z]
    for k in range(which.shape[1]):
        path.append(advance_baseline(transitions[which[:, k]], path[-1], forcing[:, k]))
    return np.stack(path, axis=1)


def advance_baseline(
    transition: Float[np.ndarray, "trajectory state twice"],
    z: Float[np.ndarray, "trajectory state"],
    forcing: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory state"]:
    """The states after one interval."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Not `@`: on many small matrices, the BLAS threads of NumPy and those of SciPy's expm wait for each other.
        later = np.einsum("nij,nj->ni", transition, np.concatenate([z, forcing], axis=1))
    return np.clip(later, -CEILING, CEILING)


def moments(rows: Float[np.ndarray, "trajectory time channel"], counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel over the counted rows; the deviation is 1 where nothing varies."""
    values = rows[counted]
    if not len(values):
        channels = int(rows.shape[2])
        return np.zeros(channels), np.ones(channels)
    varies = np.ptp(values, axis=0) > 0
    return values.mean(axis=0), np.where(varies, np.where(varies, values.std(axis=0), 1.0), 1.0)


def intervals(
    ts: Float[np.ndarray, "trajectory time"],
    rows: Float[np.ndarray, "trajectory time channel"],
    complete: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths and end values of the intervals between consecutive complete rows of a trajectory."""
    trajectory, row = np.nonzero(complete)
    same = trajectory[1:] == trajectory[:-1]
    begin, end = (trajectory[:-1][same], row[:-1][same]), (trajectory[1:][same], row[1:][same])
    return ts[end] - ts[begin], rows[begin], rows[end]


def starts(train: Dataset, target: Dataset) -> Float[np.ndarray, "trajectory state"]:
    """The first measured value of each state in each trajectory; the training mean if it was never measured."""
    first = target.first
    return np.where(np.isfinite(first), first, state_means(train))


def state_means(train: Dataset) -> Float[np.ndarray, " state"]:
    """Mean of the measurements that count, for each state; 0 if there are none."""
    counts = np.maximum(train.mask.sum(axis=(0, 1)), 1)
    means = np.where(train.mask, train.ys, 0.0).sum(axis=(0, 1)) / counts
    for index, name in enumerate(train.states):
        if name in train.angles and train.mask[..., index].any():
            means[index] = measured_values(train, index).mean()
    return means


def check_same_columns(train: Dataset, target: Dataset) -> None:
    if (train.states, train.inputs) != (target.states, target.inputs):
        raise ValueError(
            f"the datasets must have the same states and inputs in the same order; one has {list(train.states)} and "
            f"{list(train.inputs)}, the other {list(target.states)} and {list(target.inputs)}."
        )
