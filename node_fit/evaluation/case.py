"""What a fit is judged by: its errors, beside the noise and the spread of the data and the errors of simple models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..data.interpolation import noise_levels
from ..data.scaling import Scaler
from ..likelihood.losses import LOSSES, AbstractLikelihood, AbstractResidualLoss
from ..model.make_model import says
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
# Those of several splits, whose shapes differ.
AnyShape = Float[np.ndarray, "..."]
# A fit that explains less of the variance than this is as good as a constant.
FLAT = 0.1
# A fit with a lower NRMSE is good in any case.
GOOD_R2 = 0.02
# Errors up to so many times the noise are noise: of rows that were fitted, and of others.
NEAR_NOISE, NEAR_NOISE_HELD = 1.3, 2.0
OVERFITTED = 3.0
# A held-out NRMSE up to this is none of overfitting, if every simple model's is larger by this factor.
WELL, AMPLY = 0.1, 2.0
# A simple model is better only if it is ahead by more than this and than chance, and by more than that if errors are
# mere noise.
CLEARLY_AHEAD, AHEAD_IN_NOISE = 0.99, 0.9


# What is left if some measurements lie far from all others, and count as much as those.
OUTLYING = "some measurements lie far from all others"


@dataclass(frozen=True)
class Case:
    """What a fit is judged by.

    **Arguments:**

    - `status`, `history`, `options`, `step_excess`: those of the fit.
    - `splits`: data by their names, `train` and perhaps `validation` and `test`, with the rows that count.
    - `predicted`: predictions for each split, shape `(trajectory, time, state)`.
    - `rivals`: predictions of simple models for each split, by their names.
    - `chosen`: keys of the config that the fit chose itself, or tried other values of.
    - `enough_hidden`: whether fits with more hidden states were tried, and no better.
    - `penalised`: whether the model has a network, on which a prior would act.
    - `scaler`: that of the model; None leaves out the checks of residuals.
    - `chaos`: scores of a chaotic system, of which only windows are predicted.
    - `given`: the data as they were given, with the rows that starts are read from.
    - `escape`: tells where longer simulations run away, if they do; None leaves them out.
    - `ends`: clauses on constants that have run to an end of their range.
    - `distance`: tells how far the constants of equations are from their optimum [standard errors]; None leaves it out.
    - `has_found_equations`: whether the equations were found in the data, and not given.
    - `left_out`: blocks of the data, and predictions of models that have not seen them.
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

    @property
    def coarse(self) -> str | None:
        excess = self.step_excess
        return too_few_steps(self.options.solver.max_steps, excess) if excess > SLACK else None

    @property
    def loss(self) -> AbstractLikelihood:
        assert isinstance(self.options.loss, AbstractLikelihood)
        return self.options.loss

    @property
    def noise_source(self) -> str:
        """What says how large the noise is, as a key."""
        names = [name for name, loss in LOSSES.items() if type(loss) is type(self.loss)]
        return f"loss={names[0]}" if self.loss.is_count and names else "data.sigma"

    @property
    def is_law(self) -> bool:
        """Whether it has equations without a network: their few constants follow no noise."""
        return says(self.options.field, "has_equations", False) and not self.penalised

    @cached_property
    def weighed(self) -> Mapping[str, Dataset]:
        """The splits, whose measurements count as far as the loss of the fit counts them."""
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
        """The scores of the fit, weighed as its loss weighs errors."""
        return {name: score_predictions(data, self.predicted[name]) for name, data in self.weighed.items()}

    @cached_property
    def simple(self) -> dict[str, dict[str, Score]]:
        """The scores of simple models for each split, by their names."""
        return {
            name: {kind: score_predictions(self.weighed[name], ys) for kind, ys in rivals.items()}
            for name, rivals in self.rivals.items()
        }

    @property
    def train(self) -> Score:
        return self.scores["train"]

    @property
    def held(self) -> list[str]:
        return [name for name in self.splits if name != "train"]

    @cached_property
    def spread(self) -> Float[np.ndarray, " state"]:
        """The standard deviation of each state over all splits: a split may be at rest."""
        parts = list(self.weighed.values())
        own = np.array([prediction_errors(data) for data in parts])
        counts = np.array([data.mask.sum(axis=(0, 1)) for data in parts])
        means = np.array([np.where(data.mask, data.ys, 0.0).sum(axis=(0, 1)) for data in parts]) / np.maximum(counts, 1)
        total = np.maximum(counts.sum(axis=0), 1)
        center = (counts * means).sum(axis=0) / total
        apart = np.where([name in parts[0].angles for name in parts[0].states], 0.0, means - center)
        whole = np.sqrt((counts * (own**2 + apart**2)).sum(axis=0) / total)
        # The means of equal numbers are rounded.
        return np.where(whole > 1e-12 * np.abs(center), whole, 0.0)

    def overall(self, score: Score) -> float:
        """The NRMSE of a split in the spread of all data: the root mean square over the states."""
        return self.over_spread(np.array([channel.rmse for channel in score.channels.values()]), score)

    def over_spread(self, rmse: Float[np.ndarray, " state"], score: Score) -> float:
        points = np.array([channel.points for channel in score.channels.values()])
        there = (points > 0) & (self.spread > 0)
        return float(np.sqrt(((rmse[there] / self.spread[there]) ** 2).mean())) if there.any() else np.nan

    @cached_property
    def nrmse(self) -> dict[str, float]:
        """The NRMSE of each split in the spread of all data."""
        return {name: self.overall(score) for name, score in self.scores.items()}

    @cached_property
    def errors(self) -> dict[str, float]:
        """`nrmse`, of held-out states as far as it is more than noise."""
        return {name: self.nrmse["train"] if name == "train" else self.error_beyond_noise(name) for name in self.splits}

    def error_beyond_noise(self, name: str) -> float:
        over = errors_over_noise(self.weighed[name], self.predicted[name], self.options, self.noise)
        rmse = np.array([channel.rmse for channel in self.scores[name].channels.values()])
        is_noise = over <= NEAR_NOISE_HELD
        if self.penalised:  # What a network leaves on other data may be more than the noise of its own.
            noise = np.divide(rmse, over, out=np.full_like(rmse, np.inf), where=over > 0)
            is_noise &= ~self.exceeds(name, NEAR_NOISE * noise)
        return self.over_spread(np.where(is_noise, 0.0, rmse), self.scores[name])

    def exceeds(self, name: str, errors: Float[np.ndarray, " state"]) -> Bool[np.ndarray, " state"]:
        """Of each state: whether its errors on a split are larger than these by more than chance."""
        squares, counts = squared_errors(self.weighed[name], self.predicted[name]), self.weighed[name].mask
        chances = [
            compare_squares(squares[..., state], np.full(counts.shape[:2], error**2), counts[..., state])
            for state, error in enumerate(errors)
        ]
        return np.array(chances) < RISK / max(len(chances), 1)

    @cached_property
    def expected(self) -> ExpectedError | None:
        """The interval for the error on new data, by blocks left out, or validation data; None where too little was.

        The test data have no part in it, so that they can tell whether it is true.
        """
        if self.left_out:
            return expect_error(self.left_out, self.spread, "blocks left out in turn")
        if "validation" not in self.splits or self.chaos is not None:
            return None
        held = HeldOut(self.weighed["validation"], self.predicted["validation"])
        return expect_error([held], self.spread, "validation data")

    @cached_property
    def noise_of_rows(self) -> Float[np.ndarray, " state"]:
        """The noise of each state, estimated from the training data."""
        return estimate_noise_of(self.weighed["train"])

    @cached_property
    def noise(self) -> Float[np.ndarray, " state"]:
        """The noise of each state; NaN for too few rows. What a law leaves is noise if it looks so."""
        train = self.weighed["train"]
        values = train.mask.sum(axis=(0, 1))
        if self.is_law and self.scaler is not None and self.misfit is None:
            left = np.array([channel.rmse for channel in self.train.channels.values()])
            return np.where(values >= LEAST_VALUES, left, np.nan)
        return np.where(values >= FEW_VALUES, self.noise_of_rows, np.nan)

    @cached_property
    def misfit(self) -> str | None:
        """What says that the training residuals are more than noise, in words; None if nothing does."""
        if self.scaler is None:
            return None
        checks = check_residuals(self.weighed["train"], self.predicted["train"], self.scaler)
        found = describe_misfit(checks, self.noise_source)
        apart = OUTLYING if self.is_outlying else None
        return "; ".join(filter(None, [found, apart])) or None

    @property
    def is_outlying(self) -> bool:
        """Whether some measurements lie far from all others, and count as much as those."""
        return bool(self.outliers) and not self.loss.robust

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Training measurements far from all others, the farthest first."""
        if self.scaler is None:
            return []
        return find_outlying_residuals(self.splits["train"], self.predicted["train"], self.scaler)

    @property
    def is_all_noise(self) -> bool:
        """Whether all errors are about as large as the noise, and those of training look like it."""
        if self.misfit is not None or any(self.errors[name] != 0 for name in self.held):
            return False
        train, noise = self.weighed["train"], self.noise if self.is_law else self.noise_of_rows
        left = [errors_over_noise(*part, self.options, noise) for part in self.left_out]
        predicts = not left or bool((np.max(left, axis=0) <= NEAR_NOISE_HELD).all())
        return predicts and is_noise(train, self.predicted["train"], self.options, noise)

    @cached_property
    def far(self) -> dict[str, float]:
        """The errors of splits that are much worse than the training data."""
        limit = max(OVERFITTED * self.nrmse["train"], GOOD_R2)
        return {name: self.errors[name] for name in self.held if self.errors[name] > limit and not self.is_well(name)}

    def is_well(self, name: str) -> bool:
        """Whether a split is predicted well, and far better than by any simple model."""
        own = self.scores[name].nrmse
        return self.nrmse[name] <= WELL and all(
            AMPLY * own <= score.nrmse for score in self.simple.get(name, {}).values()
        )

    def find_better(self, name: str) -> str | None:
        """The simple model that is clearly better on a held-out split, by more than chance among all comparisons."""
        rivals, own = self.rivals.get(name, {}), self.scores[name].nrmse
        limit = RISK / max(sum(len(self.rivals.get(part, {})) for part in self.held), 1)
        ahead = AHEAD_IN_NOISE if self.errors[name] == 0 else CLEARLY_AHEAD
        better = {
            kind: self.simple[name][kind].nrmse
            for kind, ys in rivals.items()
            if self.simple[name][kind].nrmse < ahead * own
            and compare_squares(
                self.row_errors(name, self.predicted[name]), self.row_errors(name, ys), self.counted(name)
            )
            < limit
        }
        return min(better, key=lambda kind: better[kind], default=None)

    def row_errors(self, name: str, predicted: Predicted) -> Float[np.ndarray, "trajectory time"]:
        """The sum of each row's squared errors, in the spread of all data."""
        squares = squared_errors(self.weighed[name], predicted)
        return (squares / np.where(self.spread > 0, self.spread, np.inf) ** 2).sum(axis=2)

    def counted(self, name: str) -> np.ndarray:
        return np.asarray(self.splits[name].mask.any(axis=2))

    def what(self, *, overfits: bool) -> str:
        return advise(
            self.options,
            self.weighed["train"],
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


# The relative fall of the loss, over the last chunk or the last half of a stage, of a fit that more steps would
# improve.
FALLING, LAST_CHUNK, MOST_OF_STAGE = 0.05, 0.0, 0.5


def best_records(history: Sequence[Record]) -> list[Record]:
    """The records of the last stage of the member that ended best; losses of stages or members do not compare."""
    if not history:
        return []
    stage = [record for record in history if record.stage == history[-1].stage]
    best = min(stage, key=lambda record: record.judged_loss).member
    return [record for record in stage if record.member == best]


def is_falling(history: Sequence[Record], share: float) -> bool:
    """Whether the loss fell clearly over this share of the last stage, or its last chunk, and was lowest at its end."""
    records = best_records(history)
    if len(records) < 2:
        return False
    before = records[min(int((1 - share) * len(records)), len(records) - 2) if share else -2]
    lowest = min(record.judged_loss for record in records)
    fell = records[-1].train_loss < (1 - FALLING) * before.train_loss
    return fell and records[-1].judged_loss <= (1 + FALLING) * lowest


def estimate_noise_of(data: Dataset) -> Float[np.ndarray, " state"]:
    """The noise of each state, estimated from the rows that count."""
    return noise_levels(data.ts, np.where(data.mask, data.ys, np.nan))


def is_noise(
    data: Dataset, predicted: Predicted, options: Options, noise: Float[np.ndarray, " state"] | None = None
) -> bool:
    """Whether every channel's error is about that of the measurements, which is known, or given or estimated."""
    noise = estimate_noise_of(data) if noise is None else noise
    return bool((errors_over_noise(data, predicted, options, noise) <= NEAR_NOISE).all())


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
