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

# Times the largest measurement: a state beyond that has run away.
FAR_OFF = 10.0


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
