"""Prediction errors and scores of a model, per channel and over the horizon."""

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

# Multiple of the largest measurement beyond which a state has run away.
FAR_OFF = 10.0


class Figures(TypedDict):
    """Scores for JSON; None for non-finite scores."""

    rmse: float | None
    nrmse: float | None
    r2: float | None


class ChannelFigures(Figures):
    """Scores of a channel, and the number of scored values."""

    points: int


class SplitFigures(Figures):
    """Scores of a split over all channels, and per channel."""

    channels: dict[str, ChannelFigures]


@dataclass(frozen=True)
class ChannelScore:
    """Errors of one state.

    - `rmse`: root mean square error [unit of the state].
    - `nrmse`: `rmse` over the standard deviation of the scored measurements.
    - `r2`: `1 - nrmse**2`, the coefficient of determination.
    - `points`: number of scored measurements.
    """

    rmse: float
    nrmse: float
    r2: float
    points: int

    def as_dict(self) -> ChannelFigures:
        """Returns the four values for JSON; `None` for non-finite values."""
        return {
            "rmse": jsonable(self.rmse),
            "nrmse": jsonable(self.nrmse),
            "r2": jsonable(self.r2),
            "points": self.points,
        }


@dataclass(frozen=True)
class Score:
    """Errors of a prediction on a dataset.

    - `rmse`: root mean square error over all scored values, in the user's units; use `nrmse` to compare states with
      different units.
    - `nrmse`: root mean square of the NRMSE over channels. All states have the same weight, regardless of their unit
      and number of measurements. Predicting each channel's mean gives 1.
    - `r2`: `1 - nrmse**2`, which is one minus the mean over the channels of SSE/SST.
    - `points`: number of scored values.
    - `channels`: errors of each state, by name.
    - `failed_points`: number of scored values with a non-finite prediction. A single one makes `rmse` infinite.
    """

    rmse: float
    nrmse: float
    r2: float
    points: int
    channels: dict[str, ChannelScore]
    failed_points: int = 0

    def __str__(self) -> str:
        channels = ", ".join(f"{name} {channel.nrmse:.3g}" for name, channel in self.channels.items())
        return f"NRMSE {self.nrmse:.3g} ({channels}), R² {self.r2:.3g}, RMSE {self.rmse:.3g}, {self.points} values"

    def as_dict(self) -> SplitFigures:
        """Returns the errors for JSON, including those of each channel; `None` for non-finite numbers."""
        return {
            "rmse": jsonable(self.rmse),
            "nrmse": jsonable(self.nrmse),
            "r2": jsonable(self.r2),
            "channels": {name: channel.as_dict() for name, channel in self.channels.items()},
        }


@dataclass(frozen=True)
class HorizonError:
    """Error against the time since a trajectory's start.

    - `edges`: edges of the bins [unit of time], shape `(edge,)`, one more than the number of bins.
    - `nrmse`: error in each bin, shape `(bin,)`; NaN in a bin without measurements.
    - `points`: number of values in each bin, shape `(bin,)`.
    """

    edges: Float[np.ndarray, " edge"]
    nrmse: Float[np.ndarray, " bin"]
    points: Int[np.ndarray, " bin"]


def score_predictions(dataset: Dataset, predicted: Predicted) -> Score:
    """Compares a prediction with the scored measurements (`dataset.mask`); errors of angles are modulo a turn.

    A constant channel has no scale: its NRMSE is 0 if the prediction is exact, infinite if the prediction is not
    finite, and NaN otherwise. Channels with an NRMSE of NaN, including those without measurements, are excluded from
    the overall `nrmse` and `r2`.

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
    """Computes the NRMSE against the time since each trajectory's start, over the scored measurements.

    The errors of a state are divided by its standard deviation over the whole dataset, so that bins are comparable. The
    error of a bin is the root mean square over the states, as in `Score`. Constant states are excluded.

    **Arguments:**

    - `dataset`, `predicted`: as in `score_predictions`.
    - `bins`: number of bins of equal width, from the earliest to the latest scored measurement.

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
    # The small offset assigns times on an edge to the bin that begins there, despite rounding.
    places = np.floor((elapsed - low) / max(high - low, np.finfo(float).tiny) * bins + 1e-9)
    places = np.clip(places, 0, bins - 1)
    inside = [mask & (places == i)[..., None] for i in range(bins)]
    return HorizonError(
        edges=np.linspace(low, high, bins + 1),
        nrmse=np.array([mean_over_channels(squares, here) for here in inside]),
        points=np.array([here.sum() for here in inside]),
    )


def prediction_errors(dataset: Dataset) -> Float[np.ndarray, " state"]:
    """Computes the standard deviation of each state's scored values; exactly 0 if they are all equal."""
    return np.array([root_variance(measured_values(dataset, i)) for i in range(len(dataset.states))])


def measured_values(dataset: Dataset, state: int) -> Float[np.ndarray, " point"]:
    """Returns the scored values of a state; angles are unwrapped around their mean direction."""
    values = dataset.ys[..., state][dataset.mask[..., state]]
    return gather_turns(values, dataset.angles.get(dataset.states[state]))


def root_variance(values: Float[np.ndarray, " point"]) -> float:
    # Due to rounding, np.std of equal numbers can be tiny instead of 0.
    return float(values.std()) if values.size and np.ptp(values) > 0 else 0.0


def squared_errors(dataset: Dataset, predicted: Predicted) -> Predicted:
    """Computes squared errors; 0 where masked, infinite where the prediction is not finite."""
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
    """Computes the root mean over states of their mean squares where `mask` is true; NaN if it is never true."""
    means = [squares[..., i][mask[..., i]].mean() for i in range(squares.shape[2]) if mask[..., i].any()]
    return root_mean(np.array(means, dtype=np.float64))


def root_mean(squares: Float[np.ndarray, " point"]) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(squares.mean())) if squares.size else math.nan


def root_mean_square(values: Float[np.ndarray, " channel"]) -> float:
    with np.errstate(over="ignore"):
        return root_mean(np.square(values))


def coverage(data: Dataset, lower: Predicted, upper: Predicted) -> float | None:
    """Computes the share of scored measurements between two edges; `None` if none has edges."""
    ys = data.near((lower + upper) / 2)
    inside, counts = (lower <= ys) & (ys <= upper), data.mask & ~np.isnan(lower + upper)
    return float(inside[counts].mean()) if counts.any() else None


def jsonable(number: float) -> float | None:
    return number if math.isfinite(number) else None


def score(model: NeuralODE | Ensemble, data: Dataset) -> Score:
    """Scores a model's simulated against measured trajectories, in the user's units.

    ```python
    print(node_fit.score(node_fit.load("model.safetensors"), data))
    ```

    **Arguments:**

    - `model`: a model, such as `fit.model` or a loaded model.
    - `data`: measurements; rows from which starts are read do not count.

    **Raises:** `ValueError` if the channels differ from those of the fit.
    """
    return score_predictions(score_values(model, data), model.predict(data))


def score_values(model: NeuralODE | Ensemble, data: Dataset, *, trained: bool = False) -> Dataset:
    """Returns the data with the rows from which starts are read excluded from scoring.

    **Arguments:** `trained`: whether the model was trained on the data. If so, fitted starts are ordinary parameters,
    and all rows count.
    """
    check_data(data, "data")
    marked = model.typical.scaler.mark_angles(data)
    return marked if trained and model.typical.start.is_fitted else score_rows(model.typical.start, marked)


def score_rows(start: AbstractStart, data: Dataset) -> Dataset:
    """Returns the data with the rows that determine the starts excluded, since they do not test the model.

    If a trajectory has rows before its first scored row, those determine its start. A dataset in which no row would
    count is returned unchanged.
    """
    start_count = start.past or start.given_rows
    rows = np.arange(int(data.ts.shape[1]))[None, :]
    if start.past:
        last = start_rows(data, start.past, start.washout)
    else:
        opens = data.mask[:, 0].any(axis=1) | ~(data.valid & ~data.scored).any(axis=1)
        last = np.where(opens, data.ts.shape[1] if start_count is None else start_count - 1, -1)
    part = replace(data, scored=data.scored & (rows > last[:, None]))
    return part if part.mask.any() else data


@dataclass(frozen=True)
class Divergence:
    """A failed simulation of a trajectory: its `name`, the last `time` with a finite state, and whether it has run
    `away` by then."""

    name: str
    time: float
    away: bool


def where_not_finite(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> list[Divergence]:
    """Returns the trajectories with a non-finite prediction in a scored row."""
    lost = ~np.isfinite(predicted).all(axis=2) & data.valid & data.scored
    measured = np.abs(np.where(np.isfinite(data.ys), data.ys, 0)).max(axis=(0, 1))
    divergences: list[Divergence] = []
    for row in np.flatnonzero(lost.any(axis=1)):
        first = int(lost[row].argmax())
        last = max(first - 1, 0)
        away = bool(np.isinf(predicted[row, first]).any() | (np.abs(predicted[row, last]) > FAR_OFF * measured).any())
        divergences.append(Divergence(data.trajectories[row], float(data.ts[row, last]), away))
    return divergences
