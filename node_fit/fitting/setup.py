"""Prepares a fit: complete options, models, stages, the prior's weight, and what an earlier model gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..data.batch import is_driven
from ..data.dataset import Dataset
from ..data.interpolation import median_step, sample_evenly
from ..evaluation.metrics import score_predictions
from ..model import parameters
from ..model.fields.known import quantities
from ..model.neural_ode import NeuralODE
from ..objectives.losses import Number, Penalty
from ..options.options import Options
from ..options.recipes import Recipe, make_stages, some
from ..sysid.initialize import begin_as_linear, begin_with_filters, has_place
from ..sysid.linear_model import LinearModel
from ..training.members import Member, Members
from ..training.stage import Stage
from .auto import Choice, choose_options, keyword
from .screening import choose_beginnings, has_beginnings

# Options that the earlier model determines.
OF_THE_MODEL = ("field", "hidden", "start", "observation", "scaling", "evaluation")


def check_model_given(model: Any) -> NeuralODE:
    """The model to continue from.

    **Raises:** `ValueError` if it is not a single model.
    """
    if not isinstance(model, NeuralODE):
        raise ValueError(
            "model must be a NeuralODE to continue from, such as fit.model or node_fit.load(path), got a "
            f"{type(model).__name__}; of an ensemble take one of its members."
        )
    return model


def continue_from(model: NeuralODE, train: Dataset, options: Options) -> tuple[NeuralODE, Options]:
    """The earlier model as the initial model of a fit to `train`, with its own scaling, and the options of that fit.

    Starts that are fitted to each trajectory begin at the first measurements again. A ridge of `auto` is 0.

    **Raises:** `ValueError` if options ask for other parts, or the channels differ.
    """
    defaults = {each.name: each.default for each in fields(Options)}
    other = [name for name in OF_THE_MODEL if getattr(options, name) != defaults[name]]
    if other:
        raise ValueError(f"{other[0]} is part of the earlier model, so it can't be given with model=; leave it out.")
    model.check_channels(train)
    start = model.start.adapted(model.batch(train))
    assert isinstance(options.penalty, Penalty)
    return replace(model, start=start), options.with_ridge(0.0) if options.penalty.ridge == "auto" else options


# A record with fewer measured values is short.
SHORT = 200
# The share of each trajectory's rows that is held back.
PRIOR_HELD_BACK = 0.25
CANDIDATES = (0.0, 0.01, 0.1, 1.0)


def is_short(data: Dataset, model: NeuralODE) -> bool:
    """Whether there are few measured values, and fewer than weights, so that the data do not determine the weights."""
    values = int(data.mask.sum())
    return values < SHORT and values < sum(leaf.size for leaf in parameters.network_weights(model.field))


def choose_ridge(data: Dataset, predict: Callable[[Dataset, float], np.ndarray], *, hide: bool = True) -> float:
    """The candidate whose fit to the beginnings of the trajectories predicts their ends best.

    **Arguments:**

    - `data`: the training data.
    - `predict`: fits the field to data with a given weight of the prior, and predicts at all of their times.
    - `hide`: whether the beginnings hold no value of the ends; a start may be fitted to rows that do not count.

    **Returns:** one of `CANDIDATES`; the largest if no fit predicts anything.
    """
    last = data.lengths - np.maximum((PRIOR_HELD_BACK * data.lengths).astype(int), 1)
    early = np.arange(data.ts.shape[1])[None, :] < last[:, None]
    known = np.where(early[..., None], data.ys, np.nan) if hide else data.ys
    beginning, end = replace(data, ys=known, scored=data.scored & early), replace(data, scored=data.scored & ~early)
    if not (beginning.mask.any() and end.mask.any()):
        return 0.0
    errors = [score_predictions(end, predict(beginning, ridge)).nrmse for ridge in CANDIDATES]
    best = np.inf if np.isnan(errors).all() else np.nanmin(errors)
    return max(ridge for ridge, error in zip(CANDIDATES, errors, strict=True) if error <= best or not np.isfinite(best))


# Weights of the prior beside a linear model, per fitted value up to so many values: more data need no stronger prior.
LADDER, MOST_PRIOR_VALUES = (3e-5, 2e-4, 1.5e-3, 1e-2), 1_000
# Seeds of a fit's starts are so far apart that fits with neighbouring seeds share none.
SEEDS_APART = 1_000
# Makes a short fit to part of the data, and predicts all of it.
Trial = Callable[[Options, Dataset], np.ndarray]


@dataclass(frozen=True)
class PreparedFit:
    """A fit that is about to begin.

    - `options`: complete options.
    - `model`: the model with its initial parameters.
    - `ridges`: weights of the prior; if there are several, the validation data choose.
    - `choices`: what was chosen, and why. `notes`: why stages were left out.
    - `linear`: the linear model that the fit begins with, if any.
    """

    options: Options
    model: NeuralODE
    ridges: tuple[Number, ...]
    choices: list[Choice]
    notes: list[str]
    linear: LinearModel | None

    @property
    def said(self) -> list[str]:
        """The choices and notes as text."""
        return [*map(str, self.choices), *self.notes]

    def stages(self, train: Dataset, ridge: Number) -> Sequence[Stage]:
        return stages_of(self.options.with_ridge(ridge), self.model, train)[0]

    @property
    def middle(self) -> Number:
        """The weight of the prior in an ensemble."""
        return self.ridges[len(self.ridges) // 2]

    def settled(self, best: int | None) -> tuple[Options, list[Choice]]:
        """The options and choices with the final weight of the prior: that of the best member, or of an ensemble."""
        if len(self.ridges) == 1:
            return self.options.with_ridge(self.ridges[0]), self.choices
        ridge = self.middle if best is None else self.ridges[best % len(self.ridges)]
        shown = ", ".join(f"{weight:.2g}" for weight in self.ridges)
        why = "the middle" if best is None else "the best on the validation data"
        told = Choice("penalty.ridge", f"{ridge:.2g}", f"{why} of {shown}")
        return self.options.with_ridge(ridge), [told if each.key == told.key else each for each in self.choices]

    def members(self, train: Dataset, ensemble: Members) -> list[Member]:
        """The members to fit at once: those of an ensemble, or one for each start and weight of the prior."""
        options = self.options
        if ensemble.size == 1:
            assert isinstance(options.starts, int)
            seeds = [options.seed + SEEDS_APART * start for start in range(options.starts)]
            return [
                Member(model, self.stages(train, ridge), seed)
                for model, seed in zip(self.models(train, seeds, constants=True), seeds, strict=True)
                for ridge in self.ridges
            ]
        stages = self.stages(train, self.middle)
        seeds = [ensemble.seed(options.seed, index) for index in range(ensemble.size)]
        return [
            Member(model, stages, seed, ensemble.resample(options.seed, index))
            for index, (model, seed) in enumerate(zip(self.models(train, seeds), seeds, strict=True))
        ]

    def models(self, train: Dataset, seeds: Sequence[int], *, constants: bool = False) -> list[NeuralODE]:
        """Initial models, of which the first is already made; if `constants`, the others have other constants, too."""
        options = self.options
        more = [first_model(replace(options, seed=seed), train, self.linear)[0] for seed in seeds[1:]]
        if constants and more and has_beginnings(self.model):
            beginnings = choose_beginnings(self.model, train, len(more), seeds[0])
            more = [beginning(model) for model, beginning in zip(more, beginnings, strict=True)]
        return [options.place.one(model) for model in (self.model, *more)]


def prepare_fit(
    options: Options, train: Dataset, validation: Dataset | None, earlier: NeuralODE | None, trial: Trial
) -> PreparedFit:
    """Chooses the options that are still open, and makes the model and its stages.

    **Arguments:**

    - `options`, `train`, `validation`: as in `fit`. `earlier`: a model to continue from.
    - `trial`: makes a short fit.

    **Raises:** `ValueError` if no stage applies, or the data do not fit the model.
    """
    if earlier is not None:
        if options.starts not in ("auto", 1):
            raise ValueError("starts draws new models, and model continues an earlier one; pass one of the two.")
        model, options = continue_from(earlier, train, options)
        options, choices, linear = choose_options(options, train, validation, look=False)
    else:
        options, choices, linear = choose_options(options, train, validation)
        model, more = first_model(options, train, linear)
        choices = choices + more
    _ = quantities(options.derived, tuple(model.constants()))
    if validation is not None:
        model.check_channels(validation)
    assert isinstance(options.penalty, Penalty)
    ridge = options.penalty.ridge
    if not isinstance(ridge, str):
        ridges = (ridge,)
    else:
        ridges, more = choose_ridges(options, model, train, validation, linear, trial)
        choices = choices + more
    _, notes = stages_of(options.with_ridge(0.0), model, train)
    return PreparedFit(options, model, ridges, choices, notes, linear)


def choose_ridges(
    options: Options,
    model: NeuralODE,
    train: Dataset,
    validation: Dataset | None,
    linear: LinearModel | None,
    trial: Trial,
) -> tuple[tuple[float, ...], list[Choice]]:
    """The weights of the prior, one for each member, or the one that short fits choose."""
    if not isinstance(options.recipe, Recipe):
        return (0.0,), []
    beside_path = keyword(options.field, "linear") is True
    if linear is not None or beside_path or (options.training.window is not None and is_driven(train)):
        values = min(float(train.mask.sum()), MOST_PRIOR_VALUES)
        ridges = tuple(share * values for share in LADDER)
        if validation is None:
            return ridges[1:2], []
        shown = ", ".join(f"{ridge:.2g}" for ridge in ridges)
        return ridges, [Choice("penalty.ridge", f"[{shown}]", "one of these, by the validation data")]
    if not is_short(train, model):
        return (0.0,), []
    # A start that is the first row sees none of the ends, and data of one kind share their programs.
    hide = model.start.given_rows != 1
    ridge = choose_ridge(train, lambda part, weight: trial(options.with_ridge(weight), part), hide=hide)
    return (ridge,), [Choice("penalty.ridge", f"{ridge:g}", "it predicts the ends of the training data best")]


def first_model(options: Options, train: Dataset, linear: LinearModel | None) -> tuple[NeuralODE, list[Choice]]:
    """The model with its initial parameters, which may be those of a linear one or of filters of the inputs."""
    model = options.model(train)
    if linear is None and not (has_place(model) and is_driven(train)):
        return model, []
    rows = median_step(train)
    step = rows / float(model.scaler.time_scale)
    if linear is not None:
        return begin_as_linear(model, linear.system, step), []
    even = sample_evenly(train, rows, options.solver.inputs)
    model, error = begin_with_filters(model, even, options.solver.inputs, step, options.seed)
    return model, [Choice("filters", f"{error:.2g}", "NRMSE of the filters of the inputs that states begin as")]


def stages_of(options: Options, model: NeuralODE, train: Dataset) -> tuple[Sequence[Stage], list[str]]:
    """The stages of the options' recipe, and why others were left out."""
    if not isinstance(options.recipe, Recipe):
        assert not isinstance(options.recipe, str)
        return options.recipe, []
    stages, notes = make_stages(options.recipe, options.main_stage(), model, train)
    return some(stages), notes
