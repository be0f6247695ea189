"""What a fit is judged by: its errors, and how far they tell something."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.scaling import Scaler
from ..data.smoothing import noise_levels
from ..evaluation.metrics import Score, deviations, score
from ..evaluation.residuals import FEW, check_residuals, neighbours_in_words
from ..solver.held_steps import SLACK
from ..training.callback import Record, Status
from ..training.stopping import too_few_steps
from .advice import what_helps
from .options import Options

Predicted = Float[np.ndarray, "trajectory time state"]
# A fit that explains less of the variance than this is as good as a constant, and with less than that it is poor.
FLAT, POOR = 0.1, 0.9
# A fit with a lower NRMSE is good in any case.
GOOD = 0.02
# Errors up to so many times the noise are noise: of rows that were fitted, and of others.
NEAR_NOISE, NEAR_NOISE_HELD = 1.3, 2.0
OVERFITTED = 3.0
# A held-out NRMSE up to this is none of overfitting, if every simple model's is larger by this factor.
WELL, AMPLY = 0.1, 2.0
# The own spread of fewer values, or of less than this share of that of the training data, says little of an error.
SMALL, TAIL = 10, 0.3


@dataclass(frozen=True)
class Case:
    """What a fit is judged by.

    **Arguments:**

    - `status`, `history`, `options`, `step_excess`: those of the fit.
    - `splits`: data by their names, `train` and perhaps `validation` and `test`, with the rows that count.
    - `predicted`: predictions for each split.
    - `simple`: scores of simple models for each split, by their names.
    - `chosen`: keys of the config that the fit chose itself.
    - `penalised`: whether the model has a network, on which a prior would act.
    - `scaler`: that of the model; None leaves out the checks of residuals.
    """

    status: Status
    history: Sequence[Record]
    splits: Mapping[str, Dataset]
    predicted: Mapping[str, Predicted]
    simple: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    step_excess: float = 0.0
    chosen: Collection[str] = ()
    penalised: bool = True
    scaler: Scaler | None = None

    @property
    def coarse(self) -> str | None:
        excess = self.step_excess
        return too_few_steps(self.options.solver.max_steps, excess) if excess > SLACK else None

    @cached_property
    def scores(self) -> dict[str, Score]:
        return {name: score(data, self.predicted[name]) for name, data in self.splits.items()}

    @property
    def train(self) -> Score:
        return self.scores["train"]

    @property
    def held(self) -> list[str]:
        return [name for name in self.splits if name != "train"]

    @cached_property
    def noise(self) -> Float[np.ndarray, " state"]:
        """The noise of each state, estimated from the training data; NaN where their rows are too few."""
        data = self.splits["train"]
        known = np.where(data.mask, data.ys, np.nan)
        found = noise_levels(data.ts, known)
        return np.where(data.mask.sum(axis=(0, 1)) >= FEW, found, np.nan)

    @cached_property
    def errors(self) -> dict[str, float]:
        """The NRMSE of each split as far as it tells something: none of noise, and, where the split's values are few or
        hardly vary, in the spread of the training data."""
        return {name: self.train.nrmse if name == "train" else self.fair_error(name) for name in self.splits}

    def fair_error(self, name: str) -> float:
        data, channels = self.splits[name], self.scores[name].channels.values()
        over = errors_over_noise(data, self.predicted[name], self.options, self.noise)
        own, whole = deviations(data), deviations(self.splits["train"])
        rmse = np.array([each.rmse for each in channels])
        points = np.array([each.points for each in channels])
        little = (points < SMALL) | (own < TAIL * whole)
        spread = np.where(little & (np.isnan(over) | (own == 0)), np.maximum(own, whole), own)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(over <= NEAR_NOISE_HELD, 0.0, rmse / spread)
        found = found[(points > 0) & (spread > 0)]
        return float(np.sqrt((found**2).mean())) if found.size else np.nan

    @cached_property
    def far(self) -> dict[str, float]:
        """The errors of splits that are much worse than the training data."""
        limit = max(OVERFITTED * self.train.nrmse, GOOD)
        return {name: self.errors[name] for name in self.held if self.errors[name] > limit and not self.is_well(name)}

    def is_well(self, name: str) -> bool:
        """Whether a split is predicted well, and far better than by any simple model."""
        own = self.scores[name].nrmse
        return own <= WELL and all(AMPLY * own <= each.nrmse for each in self.simple.get(name, {}).values())

    @property
    def is_all_noise(self) -> bool:
        """Whether all errors are about as large as the noise, and those of training independent of each other."""
        train, predicted = self.splits["train"], self.predicted["train"]
        if not is_noise(train, predicted, self.options) or any(self.errors[name] != 0 for name in self.held):
            return False
        return self.scaler is None or not neighbours_in_words(check_residuals(train, predicted, self.scaler).channels)

    def what(self, *, overfits: bool) -> str:
        return what_helps(
            self.options,
            self.splits["train"],
            self.predicted["train"],
            self.chosen,
            overfits=overfits,
            explained=self.train.r2 >= POOR,
            penalised=self.penalised,
        )


def is_noise(data: Dataset, predicted: Predicted, options: Options, near: float = NEAR_NOISE) -> bool:
    """Whether every channel's error is at most `near` times that of the measurements, which is known or estimated."""
    noise = noise_levels(data.ts, np.where(data.mask, data.ys, np.nan))
    return bool((errors_over_noise(data, predicted, options, noise) <= near).all())


def errors_over_noise(
    data: Dataset, predicted: Predicted, options: Options, noise: Float[np.ndarray, " state"]
) -> Float[np.ndarray, " state"]:
    """The root mean square of each state's residuals over their noise: known (`data.sigma`), or else `noise`."""
    levels = np.broadcast_to(noise, data.ys.shape)
    if data.sigma is not None:
        # The known deviation of a transformed state is one of its logarithm.
        transformed = (*options.scaling.log, *options.scaling.bounds)
        levels = np.where([name in transformed for name in data.states], levels, data.sigma)
    known = data.mask & (levels > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(known, ((predicted - data.near(predicted)) / levels) ** 2, 0.0)
        return np.sqrt(squares.sum(axis=(0, 1)) / np.where(known.any(axis=(0, 1)), known.sum(axis=(0, 1)), np.nan))
