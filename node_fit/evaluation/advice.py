"""What a fit is judged by, and advice for one that is not good, from its data and its options."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.interpolation import noise_levels
from ..data.scaling import Scaler
from ..model.make_model import keyword, says
from ..objectives.objective import Penalty
from ..options.options import Options
from ..options.recipes import DIRECT_RECIPE
from ..solver.held_steps import SLACK
from ..training.callback import Record, Status
from ..training.decisions import too_few_steps
from .chaos import ChaosScores
from .metrics import Score, prediction_errors, score_predictions
from .residuals import FEW_VALUES, check_residuals, explain_by_past, neighbours_in_words

Predicted = Float[np.ndarray, "trajectory time state"]
# A fit that explains less of the variance than this is as good as a constant, and with less than that it is poor.
FLAT, POOR = 0.1, 0.9
# A fit with a lower NRMSE is good in any case.
GOOD_R2 = 0.02
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
    - `chosen`: keys of the config that the fit chose itself, or tried other values of.
    - `enough_hidden`: whether fits with more hidden states were tried, and no better.
    - `penalised`: whether the model has a network, on which a prior would act.
    - `scaler`: that of the model; None leaves out the checks of residuals.
    - `chaos`: scores of a chaotic system, of which only windows are predicted.
    - `given`: the data as they were given, with the rows that starts are read from.
    """

    status: Status
    history: Sequence[Record]
    splits: Mapping[str, Dataset]
    predicted: Mapping[str, Predicted]
    simple: Mapping[str, Mapping[str, Score]] = field(default_factory=dict[str, Mapping[str, Score]])
    options: Options = field(default_factory=Options)
    step_excess: float = 0.0
    chosen: Collection[str] = ()
    enough_hidden: bool = False
    penalised: bool = True
    scaler: Scaler | None = None
    chaos: ChaosScores | None = None
    given: Mapping[str, Dataset] = field(default_factory=dict[str, Dataset])

    @property
    def coarse(self) -> str | None:
        excess = self.step_excess
        return too_few_steps(self.options.solver.max_steps, excess) if excess > SLACK else None

    @cached_property
    def scores(self) -> dict[str, Score]:
        return {name: score_predictions(data, self.predicted[name]) for name, data in self.splits.items()}

    @property
    def train(self) -> Score:
        return self.scores["train"]

    @property
    def held(self) -> list[str]:
        return [name for name in self.splits if name != "train"]

    @cached_property
    def noise_of_rows(self) -> Float[np.ndarray, " state"]:
        """The noise of each state, estimated from the training data."""
        return estimate_noise_of(self.splits["train"])

    @cached_property
    def noise(self) -> Float[np.ndarray, " state"]:
        """The noise of each state; NaN where its rows are too few to tell."""
        enough = self.splits["train"].mask.sum(axis=(0, 1)) >= FEW_VALUES
        return np.where(enough, self.noise_of_rows, np.nan)

    @cached_property
    def errors(self) -> dict[str, float]:
        """The NRMSE of each split as far as it tells something: none of noise, and, where the split's values are few or
        hardly vary, in the spread of the training data."""
        return {name: self.train.nrmse if name == "train" else self.fair_error(name) for name in self.splits}

    def fair_error(self, name: str) -> float:
        data, channels = self.splits[name], self.scores[name].channels.values()
        over = errors_over_noise(data, self.predicted[name], self.options, self.noise)
        own, whole = prediction_errors(data), prediction_errors(self.splits["train"])
        rmse = np.array([each.rmse for each in channels])
        points = np.array([each.points for each in channels])
        little = (points < SMALL) | (own < TAIL * whole)
        small = rmse <= WELL * whole
        spread = np.where(little & (np.isnan(over) | (own == 0) | small), np.maximum(own, whole), own)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(over <= NEAR_NOISE_HELD, 0.0, rmse / spread)
        found = found[(points > 0) & (spread > 0)]
        return float(np.sqrt((found**2).mean())) if found.size else np.nan

    @cached_property
    def far(self) -> dict[str, float]:
        """The errors of splits that are much worse than the training data."""
        limit = max(OVERFITTED * self.train.nrmse, GOOD_R2)
        return {name: self.errors[name] for name in self.held if self.errors[name] > limit and not self.is_well(name)}

    def is_well(self, name: str) -> bool:
        """Whether a split is predicted well, and far better than by any simple model."""
        own = self.scores[name].nrmse
        return own <= WELL and all(AMPLY * own <= each.nrmse for each in self.simple.get(name, {}).values())

    @property
    def is_all_noise(self) -> bool:
        """Whether all errors are about as large as the noise, and those of training independent of each other."""
        train, predicted = self.splits["train"], self.predicted["train"]
        if not is_noise(train, predicted, self.options, self.noise_of_rows) or any(
            self.errors[name] != 0 for name in self.held
        ):
            return False
        return self.is_independent

    @cached_property
    def is_independent(self) -> bool:
        """Whether neighbouring residuals of the training data look independent; True where that can't be told."""
        if self.scaler is None:
            return True
        checked = check_residuals(self.splits["train"], self.predicted["train"], self.scaler)
        return not neighbours_in_words(checked.channels)

    def what(self, *, overfits: bool) -> str:
        return advise(
            self.options,
            self.splits["train"],
            self.predicted["train"],
            self.chosen,
            overfits=overfits,
            r2=self.train.r2,
            penalised=self.penalised,
            independent=self.is_independent,
            enough_hidden=self.enough_hidden,
        )


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


# Positive values whose largest is this many times their smallest should be fitted on a logarithmic scale.
DECADES = 100.0
# The R² below which residuals are mostly the data themselves, as where a simulation has lost the phase.
LOST = 0.5
# Share of a channel's residual variance that the rows before have to explain.
EXPLAINED = 0.2
MORE = "a longer record, or more of them"
# The width of a network to try where a wider one overfits.
NARROW = 16


def advise(
    options: Options,
    data: Dataset,
    predicted: Float[np.ndarray, "trajectory time state"],
    chosen: Collection[str] = (),
    *,
    overfits: bool,
    r2: float = 1.0,
    penalised: bool = True,
    independent: bool = True,
    enough_hidden: bool = False,
) -> str:
    """What to try next: what is not in use yet, and what the training data suggest.

    **Arguments:**

    - `options`: those of the fit.
    - `data`, `predicted`: the training data, and the fit's predictions of them.
    - `chosen`: keys of the config that the fit chose itself, or tried other values of, which its data judged.
    - `overfits`: whether the fit is much worse on data that it was not fitted to.
    - `r2`: what it explains of the training data themselves.
    - `penalised`: whether it has a network, on which a prior would act.
    - `independent`: whether neighbouring residuals look independent of each other.
    - `enough_hidden`: whether fits with more hidden states were tried, and no better.
    """
    found: list[str] = []
    wide = spanning_decades(options, data)
    if wide:
        found.append(f"data.log=[{','.join(wide)}] for positive values over decades")
    if says(options.field, "is_linear", False) and "field" not in chosen:
        found.append("field=mlp, since this field is linear")
    shares = explain_by_past(data, predicted)
    # Equations without a network overfit little: where they leave more than noise, they are wrong.
    wrong = says(options.field, "has_equations", False) and not penalised and not independent
    if overfits and not wrong:
        found.append(advise_against_overfitting(options, chosen) if penalised else MORE)
    elif (shares > EXPLAINED).any():
        found.append(more_states(options, chosen, enough_hidden=enough_hidden, lost=r2 < LOST))
    elif wrong:
        found.append(f"{other_equations(options, chosen)}: neighbouring residuals depend on each other")
    elif not r2 >= POOR:
        found.append(advise_flat(options, (), chosen, enough_hidden=enough_hidden))
    else:
        found.append(MORE)
        # Beside a warning that neighbours depend on each other, it would read as its contrary.
        tells = independent and not np.isnan(shares).all()
        found[-1] += ", since past rows do not predict the residuals" if tells else ""
    return "; or ".join(found)


def past_predicts(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether the rows before say much about the residuals."""
    return bool((explain_by_past(data, predicted) > EXPLAINED).any())


def smaller_network(options: Options) -> list[str]:
    """The advice to take fewer weights, unless they are few."""
    given = keyword(options.field, "width")
    narrow = not says(options.field, "has_network", True) or (given is not None and given <= NARROW)
    return [] if narrow else [f"a smaller network (field.width={NARROW})"]


def spanning_decades(options: Options, data: Dataset) -> list[str]:
    """Channels whose positive values span decades, and that are not fitted on a logarithmic scale."""
    found: list[str] = []
    for index, name in enumerate(data.states):
        values = data.ys[..., index][data.mask[..., index]]
        if name not in (*options.scaling.log, *data.angles) and values.size and values.min() > 0:
            found += [name] if values.max() > DECADES * values.min() else []
    return found


def advise_against_overfitting(options: Options, chosen: Collection[str]) -> str:
    penalty, network = options.penalty, [] if "field.width" in chosen else smaller_network(options)
    if "penalty.ridge" in chosen:
        return f"{' or '.join(['more data', *network])} (penalty.ridge was chosen by the data already)"
    ridge = penalty.ridge if isinstance(penalty, Penalty) else "auto"
    if isinstance(ridge, str) or ridge == 0:
        prior = "a prior (penalty.ridge=0.1)"
    else:
        prior = f"a stronger prior (penalty.ridge={10 * ridge:.2g}; it was {ridge:.2g})"
    return f"{', '.join([prior, *network])} or more data"


def more_states(options: Options, chosen: Collection[str], *, enough_hidden: bool = False, lost: bool = False) -> str:
    """The advice where past rows predict the residuals; of a simulation that is `lost`, they always do."""
    if (equations := other_equations(options, chosen)) is not None:
        return f"{equations}: past rows predict the residuals"
    if enough_hidden:
        return f"{MORE}, or another input: past rows predict the residuals, and more hidden states were no better"
    hidden = 0 if options.hidden == "auto" else options.hidden
    count = hidden if isinstance(hidden, int) else len(hidden)
    if count == 0 and lost:
        return advise_flat(options, (), chosen, enough_hidden=enough_hidden)
    if count == 0:
        return "hidden=1 start=encoder, since past rows predict the residuals: not all that matters is measured"
    return f"hidden={count + 1}, since past rows predict the residuals of a fit with {count}"


def advise_flat(
    options: Options, history: Sequence[Record], chosen: Collection[str] = (), *, enough_hidden: bool = False
) -> str:
    """What to try where a fit is no better than a constant."""
    if (equations := other_equations(options, chosen)) is not None:
        return equations
    if enough_hidden:
        return f"{MORE}, another input, or equations (field=known): hidden states were tried, and no better"
    if "training.window" in chosen and options.training.window in (None, "auto"):
        return "hidden=1 start=encoder if not all that matters is measured, or equations (field=known)"
    if len({record.stage for record in history}) == 1 and options.recipe == DIRECT_RECIPE:
        return "recipe=default, which begins without solves or with short ones"
    if options.training.window in (None, "auto"):
        return (
            "shorter windows first (training.window=20), or hidden=1 start=encoder if not all that matters is measured"
        )
    return (
        f"shorter windows (training.window={max(options.training.window // 4, 5)}; they were {options.training.window})"
    )


def other_equations(options: Options, chosen: Collection[str]) -> str | None:
    """What to try where known equations do not describe the data; None of other fields."""
    if not says(options.field, "has_equations", False):
        return None
    alone = options.restarts in (1, "auto") and "restarts" not in chosen
    tries = ["several first values of the constants (restarts=8)"] if alone else []
    if not says(options.start, "is_fitted", False) and "start" not in chosen:
        tries.append("a start that is fitted (start=fitted)")
    if options.hidden not in (0, "auto", ()):
        tries.append("the start of the hidden states, if you know it (start=first start.absent=...)")
    has_network = says(options.field, "has_network", True)
    tries.append("a remainder (field.rest=true)" if has_network else "a network for what they lack (field=hybrid)")
    wrong = "the start, the first values of the constants or the equations may be wrong"
    return f"{', '.join(tries[:-1])}{' or ' if tries[:-1] else ''}{tries[-1]}, since {wrong}"
