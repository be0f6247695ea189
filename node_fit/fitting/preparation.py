"""Prepares a fit: complete options, models, stages, and notes on what was chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ..data.batch import is_driven
from ..data.dataset import Dataset
from ..data.resampling import evenly_sampled, median_step
from ..model.fields.constants import Constants
from ..model.fields.derived import quantities
from ..model.neural_ode import NeuralODE
from ..objectives.penalty import Number, Penalty
from ..training.members import Member, Members
from ..training.stage import Stage
from .choices import Choice, choose, keyword
from .continuing import continued
from .filters import begun_with_filters, has_place
from .linear_model import LinearModel
from .linear_start import begun_linear
from .options import Options
from .prior import choose_ridge, is_short
from .recipes import Recipe, make_stages, some

# Weights of the prior beside a linear model, per fitted value up to so many values: more data need no stronger prior.
LADDER, MOST_VALUES = (3e-5, 2e-4, 1.5e-3, 1e-2), 1_000
# Seeds of a fit's starts are so far apart that fits with neighbouring seeds share none.
APART = 1_000
# Makes a short fit to part of the data, and predicts all of it.
Trial = Callable[[Options, Dataset], np.ndarray]


@dataclass(frozen=True)
class Prepared:
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
            seeds = [options.seed + APART * start for start in range(options.starts)]
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
        if constants:
            more = [elsewhere(model, seed) for model, seed in zip(more, seeds[1:], strict=True)]
        return [options.place.one(model) for model in (self.model, *more)]


def prepare(
    options: Options, train: Dataset, validation: Dataset | None, earlier: NeuralODE | None, trial: Trial
) -> Prepared:
    """Chooses the options that are still open, and makes the model and its stages.

    **Arguments:**

    - `options`, `train`, `validation`: as in `fit`. `earlier`: a model to continue from.
    - `trial`: makes a short fit.

    **Raises:** `ValueError` if no stage applies, or the data do not fit the model.
    """
    if earlier is not None:
        if options.starts not in ("auto", 1):
            raise ValueError("starts draws new models, and model continues an earlier one; pass one of the two.")
        model, options = continued(earlier, train, options)
        options, choices, linear = choose(options, train, validation, look=False)
    else:
        options, choices, linear = choose(options, train, validation)
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
        ridges, more = chosen_ridges(options, model, train, validation, linear, trial)
        choices = choices + more
    _, notes = stages_of(options.with_ridge(0.0), model, train)
    return Prepared(options, model, ridges, choices, notes, linear)


def chosen_ridges(
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
        values = min(float(train.mask.sum()), MOST_VALUES)
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
        return begun_linear(model, linear.system, step), []
    even = evenly_sampled(train, rows, options.solver.inputs)
    model, error = begun_with_filters(model, even, options.solver.inputs, step, options.seed)
    return model, [Choice("filters", f"{error:.2g}", "NRMSE of the filters of the inputs that states begin as")]


def elsewhere(model: NeuralODE, seed: int) -> NeuralODE:
    """The model with other constants, drawn around its own."""
    rng = np.random.default_rng(seed)

    def other(leaf: Any) -> Any:
        return leaf.drawn(rng) if isinstance(leaf, Constants) and leaf.raw is not None else leaf

    return jax.tree.map(other, model, is_leaf=lambda leaf: isinstance(leaf, Constants))


def stages_of(options: Options, model: NeuralODE, train: Dataset) -> tuple[Sequence[Stage], list[str]]:
    """The stages of the options' recipe, and why others were left out."""
    if not isinstance(options.recipe, Recipe):
        assert not isinstance(options.recipe, str)
        return options.recipe, []
    stages, notes = make_stages(options.recipe, options.main_stage(), model, train)
    return some(stages), notes
