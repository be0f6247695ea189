"""The evidence for judging a fit: its errors, compared to noise and spread of the data and errors of simple models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..data.domains import to_line
from ..data.interpolation import noise_levels
from ..data.scaling import UNBOUNDED, Scaler, columns_by_name, gather_bounds
from ..likelihood.losses import LOSSES, AbstractLikelihood, AbstractResidualLoss
from ..model.make_model import trait_of
from ..options.options import Options
from ..solver.held_steps import SLACK
from ..training.callback import Record, Status
from ..training.decisions import too_few_steps
from .advice import advise
from .chaos import ChaosScores
from .comparison import compare_squares
from .metrics import Score, prediction_errors, score_predictions, squared_errors
from .new_data import ExpectedError, HeldOut, expect_error
from .outliers import Outlier, find_outlying_residuals, typical_residual, weigh_measurements
from .residuals import (
    FEW_VALUES,
    LEAST_VALUES,
    RISK,
    check_residuals,
    describe_misfit,
    standardize,
)
from .stability import Escape

Predicted = Float[np.ndarray, "trajectory time state"]
# Predictions of several splits with different shapes.
AnyShape = Float[np.ndarray, "..."]
# R² below which a fit is no better than a constant.
FLAT = 0.1
# NRMSE below which a fit is always good.
GOOD_R2 = 0.02
# Ratio of error to noise up to which errors count as noise, on training and on held-out rows.
NEAR_NOISE, NEAR_NOISE_HELD = 1.3, 2.0
OVERFITTED = 3.0
# Held-out NRMSE up to which a fit is not overfitted, if every simple model's is larger by this factor.
WELL, AMPLY = 0.1, 2.0
# Ratio of NRMSE below which a simple model is better, provided that the difference exceeds chance; and the ratio if
# errors are mere noise.
CLEARLY_AHEAD, AHEAD_IN_NOISE = 0.99, 0.9


# Description of the misfit if outliers have full weight.
OUTLYING = "some measurements lie far from all others"


@dataclass(frozen=True)
class Case:
    """The data, predictions and circumstances on which a fit is judged.

    **Arguments:**

    - `status`, `history`, `options`, `step_excess`: see `Fit`.
    - `splits`: data by name (`train`, optionally `validation` and `test`), with the scored rows.
    - `predicted`: predictions for each split, shape `(trajectory, time, state)`.
    - `rivals`: predictions of simple models for each split, by name.
    - `chosen`: config keys that the fit chose itself, or for which it tried other values.
    - `enough_hidden`: whether fits with more hidden states were tried without improvement.
    - `penalised`: whether the model has a network, on which a prior would act.
    - `scaler`: scaler of the model; None skips the residual checks.
    - `chaos`: scores of a chaotic system, for which only windows are predicted.
    - `given`: the original data, including the rows from which starts are read.
    - `escape`: finds where longer simulations run away, if they do; None skips them.
    - `ends`: clauses on constants that have run to an end of their range.
    - `distance`: computes the distance of the constants from their optimum [standard errors]; None skips it.
    - `has_found_equations`: whether the equations were discovered from the data.
    - `left_out`: blocks of the data, with predictions of models that have not seen them.
    - `search_advice`: advice from a search for equations.
    """

    status: Status
    history: Sequence[Record]
    splits: Mapping[str, Dataset]
    predicted: Mapping[str, AnyShape]
    rivals: Mapping[str, Mapping[str, AnyShape]] = field(default_factory=dict[str, Mapping[str, AnyShape]])
    options: Options = field(default_factory=Options)
    step_excess: float = 0.0
    chosen: Collection[str] = ()
    enough_hidden: bool = False
    penalised: bool = True
    scaler: Scaler | None = None
    chaos: ChaosScores | None = None
    given: Mapping[str, Dataset] = field(default_factory=dict[str, Dataset])
    escape: Callable[[], Escape | None] | None = None
    ends: Sequence[str] = ()
    distance: Callable[[], float] | None = None
    has_found_equations: bool = False
    left_out: Sequence[HeldOut] = ()
    search_advice: str | None = None

    @property
    def coarse(self) -> str | None:
        excess = self.step_excess
        return too_few_steps(self.options.solver.max_steps, excess) if excess > SLACK else None

    @property
    def loss(self) -> AbstractLikelihood:
        assert isinstance(self.options.loss, AbstractLikelihood)
        return self.options.loss

    @property
    def noise_source(self) -> str | None:
        """The config key that specifies the noise level; None if it was fitted."""
        given = self.given.get("train")
        if given is not None and given.sigma is None and not self.loss.is_count:
            return None
        names = [name for name, loss in LOSSES.items() if type(loss) is type(self.loss)]
        return f"loss={names[0]}" if self.loss.is_count and names else "data.sigma"

    @property
    def is_law(self) -> bool:
        """Whether the model has equations without a network, whose few constants do not fit noise."""
        return trait_of(self.options.field, "has_equations", False) and not self.penalised

    @cached_property
    def weighted_splits(self) -> Mapping[str, Dataset]:
        """The splits, with measurements weighted as in the loss of the fit."""
        if self.scaler is None or not (self.loss.robust and isinstance(self.loss, AbstractResidualLoss)):
            return self.splits
        train = standardize(self.splits["train"], self.predicted["train"], self.scaler)
        typical = typical_residual(train)
        return {
            name: weigh_measurements(data, self.predicted[name], self.loss, self.scaler, typical)
            for name, data in self.splits.items()
        }

    @cached_property
    def scores(self) -> dict[str, Score]:
        """The scores of the fit, with errors weighted as in its loss."""
        return {name: score_predictions(data, self.predicted[name]) for name, data in self.weighted_splits.items()}

    @cached_property
    def simple(self) -> dict[str, dict[str, Score]]:
        """The scores of simple models for each split, by name."""
        return {
            name: {kind: score_predictions(self.weighted_splits[name], ys) for kind, ys in rivals.items()}
            for name, rivals in self.rivals.items()
        }

    @property
    def train(self) -> Score:
        return self.scores["train"]

    @property
    def held_out(self) -> list[str]:
        return [name for name in self.splits if name != "train"]

    @cached_property
    def comparable(self) -> list[str]:
        """The held-out splits that tell models apart: those with scored values, unless all are limits."""
        parts = [(name, self.splits[name]) for name in self.held_out]
        return [name for name, data in parts if data.exact.mask.any() or not data.mask.any()]

    @cached_property
    def spread(self) -> Float[np.ndarray, " state"]:
        """The standard deviation of each state over all splits, since a single split can be at rest."""
        parts = list(self.weighted_splits.values())
        deviations = np.array([prediction_errors(data) for data in parts])
        counts = np.array([data.mask.sum(axis=(0, 1)) for data in parts])
        means = np.array([np.where(data.mask, data.ys, 0.0).sum(axis=(0, 1)) for data in parts]) / np.maximum(counts, 1)
        total = np.maximum(counts.sum(axis=0), 1)
        center = (counts * means).sum(axis=0) / total
        apart = np.where([name in parts[0].angles for name in parts[0].states], 0.0, means - center)
        overall = np.sqrt((counts * (deviations**2 + apart**2)).sum(axis=0) / total)
        # Rounding makes the variance of equal numbers nonzero.
        return np.where(overall > 1e-12 * np.abs(center), overall, 0.0)

    def overall(self, score: Score) -> float:
        """Returns the NRMSE of a split relative to the spread of all data: the root mean square over states."""
        return self.over_spread(np.array([channel.rmse for channel in score.channels.values()]), score)

    def over_spread(self, rmse: Float[np.ndarray, " state"], score: Score) -> float:
        points = np.array([channel.points for channel in score.channels.values()])
        is_scored = (points > 0) & (self.spread > 0)
        return float(np.sqrt(((rmse[is_scored] / self.spread[is_scored]) ** 2).mean())) if is_scored.any() else np.nan

    @cached_property
    def nrmse(self) -> dict[str, float]:
        """The NRMSE of each split relative to the spread of all data."""
        return {name: self.overall(score) for name, score in self.scores.items()}

    @cached_property
    def errors(self) -> dict[str, float]:
        """`nrmse`, for held-out states only as far as it exceeds noise."""
        return {name: self.nrmse["train"] if name == "train" else self.error_beyond_noise(name) for name in self.splits}

    def error_beyond_noise(self, name: str) -> float:
        over = errors_over_noise(self.weighted_splits[name], self.predicted[name], self.options, self.noise)
        rmse = np.array([channel.rmse for channel in self.scores[name].channels.values()])
        is_noise = over <= NEAR_NOISE_HELD
        if self.penalised:  # A network's held-out residuals can exceed the noise of its training data.
            noise = np.divide(rmse, over, out=np.full_like(rmse, np.inf), where=over > 0)
            is_noise &= ~self.exceeds(name, NEAR_NOISE * noise)
        return self.over_spread(np.where(is_noise, 0.0, rmse), self.scores[name])

    def exceeds(self, name: str, errors: Float[np.ndarray, " state"]) -> Bool[np.ndarray, " state"]:
        """Returns for each state whether its errors on a split exceed these by more than chance."""
        squares, counts = (
            squared_errors(self.weighted_splits[name], self.predicted[name]),
            self.weighted_splits[name].mask,
        )
        chances = [
            compare_squares(squares[..., state], np.full(counts.shape[:2], error**2), counts[..., state])
            for state, error in enumerate(errors)
        ]
        return np.array(chances) < RISK / max(len(chances), 1)

    @cached_property
    def expected(self) -> ExpectedError | None:
        """The interval for the error on new data, from left-out blocks or validation data; None if these are too few.

        Test data are not used, so that they can verify the interval.
        """
        if self.left_out:
            return expect_error(self.left_out, self.spread, "blocks left out in turn")
        if "validation" not in self.splits or self.chaos is not None:
            return None
        held = HeldOut(self.weighted_splits["validation"], self.predicted["validation"])
        return expect_error([held], self.spread, "validation data")

    @cached_property
    def noise_of_rows(self) -> Float[np.ndarray, " state"]:
        """The noise of each state, estimated from the training data."""
        return estimate_noise_of(self.weighted_splits["train"], self.options)

    @cached_property
    def noise(self) -> Float[np.ndarray, " state"]:
        """The noise of each state; NaN for too few rows. Residuals of a law count as noise if they look like it."""
        train = self.weighted_splits["train"]
        values = train.mask.sum(axis=(0, 1))
        if self.is_law and self.scaler is not None and self.misfit is None:
            squares = residuals_on_line(train, self.predicted["train"], self.options) ** 2
            total = np.where(train.mask, squares, 0.0).sum(axis=(0, 1))
            return np.where(values >= LEAST_VALUES, np.sqrt(total / np.maximum(values, 1)), np.nan)
        return np.where(values >= FEW_VALUES, self.noise_of_rows, np.nan)

    @cached_property
    def misfit(self) -> str | None:
        """A description of why the training residuals are more than noise; None if they are not."""
        if self.scaler is None:
            return None
        checks = check_residuals(self.weighted_splits["train"], self.predicted["train"], self.scaler)
        # The tiny errors of an interpolation between rows depend on its input, too.
        description = describe_misfit(checks, self.noise_source, inputs=self.train.nrmse > GOOD_R2)
        outlying = OUTLYING if self.is_outlying else None
        return "; ".join(filter(None, [description, outlying])) or None

    @property
    def is_outlying(self) -> bool:
        """Whether some measurements lie far from all others, and have full weight."""
        return bool(self.outliers) and not self.loss.robust

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Training measurements far from all others, farthest first."""
        if self.scaler is None:
            return []
        return find_outlying_residuals(self.splits["train"], self.predicted["train"], self.scaler)

    @property
    def is_all_noise(self) -> bool:
        """Whether all errors are about as large as the noise, and the training residuals look like noise."""
        if self.misfit is not None or any(self.errors[name] != 0 for name in self.held_out):
            return False
        train, noise = self.weighted_splits["train"], self.noise if self.is_law else self.noise_of_rows
        ratios = [errors_over_noise(*part, self.options, noise) for part in self.left_out]
        predicts = not ratios or bool((np.max(ratios, axis=0) <= NEAR_NOISE_HELD).all())
        return predicts and is_noise(train, self.predicted["train"], self.options, noise)

    @cached_property
    def far(self) -> dict[str, float]:
        """The errors of splits that are much worse than the training data."""
        limit = max(OVERFITTED * self.nrmse["train"], GOOD_R2)
        return {
            name: self.errors[name] for name in self.held_out if self.errors[name] > limit and not self.is_well(name)
        }

    def is_well(self, name: str) -> bool:
        """Whether a split is predicted well, and far better than by any simple model."""
        nrmse = self.scores[name].nrmse
        return self.nrmse[name] <= WELL and all(
            AMPLY * nrmse <= score.nrmse for score in self.simple.get(name, {}).values()
        )

    def find_better(self, name: str) -> str | None:
        """Returns the simple model that is clearly better on a held-out split, beyond chance over all comparisons."""
        rivals, nrmse = self.rivals.get(name, {}), self.scores[name].nrmse
        limit = RISK / max(sum(len(self.rivals.get(part, {})) for part in self.held_out), 1)
        ahead = AHEAD_IN_NOISE if self.errors[name] == 0 else CLEARLY_AHEAD
        better = {
            kind: self.simple[name][kind].nrmse
            for kind, ys in rivals.items()
            if self.simple[name][kind].nrmse < ahead * nrmse
            and compare_squares(
                self.row_errors(name, self.predicted[name]), self.row_errors(name, ys), self.count_rows(name)
            )
            < limit
        }
        return min(better, key=lambda kind: better[kind], default=None)

    def row_errors(self, name: str, predicted: Predicted) -> Float[np.ndarray, "trajectory time"]:
        """Returns the sum of each row's squared errors, relative to the spread of all data."""
        squares = squared_errors(self.weighted_splits[name], predicted)
        return (squares / np.where(self.spread > 0, self.spread, np.inf) ** 2).sum(axis=2)

    def count_rows(self, name: str) -> np.ndarray:
        return np.asarray(self.splits[name].mask.any(axis=2))

    def advise(self, *, overfits: bool) -> str:
        return self.search_advice or advise(
            self.options,
            self.weighted_splits["train"],
            self.predicted["train"],
            self.chosen,
            overfits=overfits,
            r2=self.train.r2,
            penalised=self.penalised,
            misfit=self.misfit,
            outlying=self.is_outlying,
            enough_hidden=self.enough_hidden,
            unfinished=is_falling(self.history, MOST_OF_STAGE) and self.status == "completed",
        )


# Relative decrease of the loss above which more steps would help, measured over the last chunk or the last half of a
# stage.
FALLING, LAST_CHUNK, MOST_OF_STAGE = 0.05, 0.0, 0.5


def best_records(history: Sequence[Record]) -> list[Record]:
    """Returns the last stage's records of the best member; losses are not comparable across stages or members."""
    if not history:
        return []
    stage = [record for record in history if record.stage == history[-1].stage]
    best = min(stage, key=lambda record: record.judged_loss).member
    return [record for record in stage if record.member == best]


def is_falling(history: Sequence[Record], share: float) -> bool:
    """Whether the loss fell clearly over this share of the last stage, or its last chunk, to its lowest value."""
    records = best_records(history)
    if len(records) < 2:
        return False
    before = records[min(int((1 - share) * len(records)), len(records) - 2) if share else -2]
    lowest = min(record.judged_loss for record in records)
    fell = records[-1].train_loss < (1 - FALLING) * before.train_loss
    return fell and records[-1].judged_loss <= (1 + FALLING) * lowest


def estimate_noise_of(data: Dataset, options: Options) -> Float[np.ndarray, " state"]:
    """Estimates the noise of each state from the scored rows; that of a state of `data.log` is of its logarithm."""
    return noise_levels(data.ts, np.where(data.mask, map_to_line(data.ys, data, options), np.nan))


def is_noise(
    data: Dataset, predicted: Predicted, options: Options, noise: Float[np.ndarray, " state"] | None = None
) -> bool:
    """Whether every channel's error is about its measurement noise, which is known, passed or estimated."""
    noise = estimate_noise_of(data, options) if noise is None else noise
    return bool((errors_over_noise(data, predicted, options, noise) <= NEAR_NOISE).all())


def errors_over_noise(
    data: Dataset, predicted: Predicted, options: Options, noise: Float[np.ndarray, " state"]
) -> Float[np.ndarray, " state"]:
    """Computes the root mean square of each state's residuals over their noise: `data.sigma` if known, else `noise`."""
    levels = np.broadcast_to(noise, data.ys.shape) if data.sigma is None else data.sigma
    is_known = data.mask & (levels > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(is_known, (residuals_on_line(data, predicted, options) / levels) ** 2, 0.0)
        return np.sqrt(
            squares.sum(axis=(0, 1)) / np.where(is_known.any(axis=(0, 1)), is_known.sum(axis=(0, 1)), np.nan)
        )


def residuals_on_line(data: Dataset, predicted: Predicted, options: Options) -> Predicted:
    """Computes the residuals of a loss before scaling; those of a state of `data.log` are of its logarithm."""
    return map_to_line(predicted, data, options) - map_to_line(data.near(predicted), data, options)


def map_to_line(values: Predicted, data: Dataset, options: Options) -> Predicted:
    """Maps states with bounds to the real line, as the scaler of a fit does; leaves the others unchanged."""
    scaling, names = options.scaling, (*data.states, *options.scaling.log, *options.scaling.bounds)
    bounds = gather_bounds(scaling.log, scaling.bounds, names)
    with np.errstate(divide="ignore", invalid="ignore"):
        return columns_by_name(to_line, values, [bounds.get(name, UNBOUNDED) for name in data.states])
