"""Builds the problem that a fit solves: complete options, models, stages and the weights of the prior."""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.facts import Facts, check_trainable, find_oddities
from ..data.groups import with_trajectory_numbers
from ..data.scaling import Scaler
from ..discover.search import FEWEST_ROWS, Vocabulary, search
from ..discover.watch import SearchWatch
from ..evaluation.metrics import root_mean, score_values
from ..likelihood.losses import AbstractLikelihood
from ..mechanics.identify import find_mechanism
from ..mechanics.pairing import pair_states
from ..model import parameters
from ..model.ensemble import Ensemble
from ..model.fields.known import Known, Sparse, quantities
from ..model.initial_state.rule import First
from ..model.initial_state.trained import Fitted
from ..model.make_model import (
    is_equations_alone,
    keywords,
    made_of,
    make_model,
    names_of_local_trajectories,
    says,
    values_of_constants,
)
from ..model.neural_ode import NeuralODE
from ..model.noise import make_noise
from ..objectives.objective import Number, Penalty
from ..options.options import TIGHT, Options, with_tolerance
from ..options.recipes import Recipe, make_stages, some, without_derivatives
from ..runtime.placement import carry, scope_of
from ..sysid.initialize import begin_as_linear, begin_with_filters, has_place
from ..sysid.linear_model import LinearModel, linear_models, simplest_model
from ..training.callback import Callback
from ..training.loop import Loop
from ..training.task import Member, Members, Stage
from .resolve import (
    ENCODER_ROWS,
    NOISY,
    SHORT,
    SHORT_RIDGE,
    TIGHTER,
    WINDOWS,
    Choice,
    Identified,
    Resolved,
    fitted_start,
    resolve,
)
from .screening import choose_beginnings, has_beginnings

# Seeds of a fit's starts are so far apart that fits with neighbouring seeds share none.
SEEDS_APART = 1_000
# The tolerance of a mechanism's steps, as a share of the least noise relative to its spread, and its limits.
SMALL_STEP_ERROR, MOTION_TOLERANCES = 1 / 10, (1e-5, 1e-4)
# Trajectories that are enough to compare two iterates by.
MOST_COMPARED = 64


@dataclass(frozen=True)
class FitProblem:
    """What a fit solves; `build_problem` makes it, and `train` solves it.

    - `train`, `validation`: the data, with their angles named. `facts`: what is known of them.
    - `options`: complete options.
    - `model`: the model with its initial parameters.
    - `ridges`: weights of the prior; if there are several, the validation data choose.
    - `choices`: what was chosen, and why. `notes`: why stages were left out. `warnings`: what looks wrong in the data.
    - `linear`: the linear model that the fit begins with, if any.
    - `began`: when its building began [s of the process].
    - `offset`: steps of earlier attempts, from which steps are counted.
    - `begins_as_modes`: whether the model begins as the linear system of a long record.
    """

    train: Dataset
    validation: Dataset | None
    facts: Facts
    options: Options
    model: NeuralODE
    ridges: tuple[Number, ...]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    linear: LinearModel | None
    began: float
    offset: int = 0
    begins_as_modes: bool = False

    @property
    def begins_linear(self) -> bool:
        """Whether the model begins as a linear model of the data."""
        return self.linear is not None or self.begins_as_modes

    @property
    def ensemble(self) -> Members:
        """The members that are fitted at once."""
        return self.options.members.trained

    @property
    def picking(self) -> Dataset | None:
        """The data that pick iterates, members and restarts: none for equations alone, whose constants are those of the
        optimum of the training likelihood. Validation data only judge them."""
        return None if is_equations_alone(self.model.field) else self.validation

    @property
    def said(self) -> list[str]:
        """The choices and notes as text."""
        return [*map(str, self.choices), *self.notes]

    @property
    def data(self) -> dict[str, Dataset]:
        """The data by their roles."""
        return {"train": self.train} | ({} if self.validation is None else {"validation": self.validation})

    def stages(self, ridge: Number) -> Sequence[Stage]:
        return stages_of(self.options.with_ridge(ridge), self.model, self.facts)[0]

    @property
    def middle(self) -> Number:
        """The weight of the prior in an ensemble."""
        return self.ridges[len(self.ridges) // 2]

    def settled(self, best: int | None) -> tuple[Options, tuple[Choice, ...]]:
        """The options and choices with the final weight of the prior: that of the best member, or of an ensemble."""
        if len(self.ridges) == 1:
            return self.options.with_ridge(self.ridges[0]), self.choices
        ridge = self.middle if best is None else self.ridges[best % len(self.ridges)]
        shown = ", ".join(f"{weight:.2g}" for weight in self.ridges)
        why = "the middle" if best is None else "the best on the validation data"
        told = Choice("penalty.ridge", f"{ridge:.2g}", f"{why} of {shown}")
        return self.options.with_ridge(ridge), tuple(told if each.key == told.key else each for each in self.choices)

    def members(self, callback: Callback) -> list[Member]:
        """The members to fit at once: those of an ensemble, or one for each start and weight of the prior.

        **Arguments:** `callback`: told of the search for several starts.
        """
        options, ensemble = self.options, self.ensemble
        if ensemble.count == 1:
            assert isinstance(options.restarts, int)
            seeds = [options.seed + SEEDS_APART * start for start in range(options.restarts)]
            return [
                Member(model, self.stages(ridge), seed)
                for model, seed in zip(self.models(seeds, callback), seeds, strict=True)
                for ridge in self.ridges
            ]
        stages = self.stages(self.middle)
        seeds = [ensemble.seed(options.seed, index) for index in range(ensemble.count)]
        return [
            Member(model, stages, seed, ensemble.resample(options.seed, index))
            for index, (model, seed) in enumerate(zip(self.models(seeds), seeds, strict=True))
        ]

    def models(self, seeds: Sequence[int], callback: Callback | None = None) -> list[NeuralODE]:
        """Initial models, of which the first is already made; with a callback, the others have other constants, too."""
        options = self.options
        more = [first_model(replace(options, seed=seed), self.train, self.linear)[0] for seed in seeds[1:]]
        if callback is not None and more and has_beginnings(self.model):
            beginnings = choose_beginnings(self.model, self.train, len(more), seeds[0], callback.on_trial)
            more = [beginning(model) for model, beginning in zip(more, beginnings, strict=True)]
        return [options.place.one(model) for model in (self.model, *more)]

    def errors(self, model: NeuralODE) -> tuple[float, float]:
        """The errors of a model on samples of the training and the validation data, in scaled units."""
        assert self.validation is not None
        train, held = (root_mean(scaled_squares(model, part.sample(MOST_COMPARED))) for part in self.data.values())
        return train, held

    def pooled_error(self, model: NeuralODE) -> float:
        """The error of a model on samples of all data together, every value counted alike, in scaled units."""
        return pooled_error(model, self.data)

    def loop(self, members: Sequence[Member]) -> Loop:
        """The training loop of members of this problem, or of others that share its programs."""
        return make_loop(
            self.options,
            members,
            self.train,
            self.picking,
            starts_well=self.begins_linear,
            offset=self.offset,
        )


def build_problem(
    options: Options,
    train: Dataset,
    validation: Dataset | None,
    *,
    earlier: NeuralODE | None = None,
    callback: Callback | None = None,
    offset: int = 0,
) -> FitProblem:
    """Resolves the options, and makes the model and its stages.

    **Arguments:**

    - `options`, `train`, `validation`: as in `fit`. `earlier`: a model to continue from.
    - `callback`: told of trials. `offset`: as of `FitProblem`.

    **Raises:** `ValueError` if no stage applies, or the data do not fit the model.
    """
    began, callback = time.perf_counter(), callback or Callback()
    mark = (options.scaling if earlier is None else earlier.scaler).marked
    train, validation = mark(train), None if validation is None else mark(validation)
    if numbered := names_of_local_trajectories(train, options.field, options.start, options.observation):
        validation = None if validation is None else with_trajectory_numbers(validation, numbered)
        train = with_trajectory_numbers(train, numbered)
    check_trainable(train)
    facts = Facts.of(train, validation)
    model, equations = None, ()
    if earlier is None:
        options, equations = find_equations(options, train, validation, callback)
    if earlier is not None:
        if options.restarts not in ("auto", 1):
            raise ValueError("restarts draws new models, and model continues an earlier one; pass one of the two.")
        model, options = continue_from(earlier, train, options)
    plan, linear, more = resolve(options, facts, continued=model is not None), None, []
    if plan.identify:
        found = identify(plan.options, train, validation, callback)
        plan, linear = resolve(options, facts, found), found.model
    options = plan.options
    if model is None:
        model, more = first_model(options, train, linear)
        model = with_estimated_starts(model, train) if equations else model
    _ = quantities(options.derived, tuple(model.constants()))
    if validation is not None:
        model.check_channels(validation)
    ridges, prior = weigh_prior(plan, facts, model)
    options.members.trained.check(facts.trajectories, options.training.budget.window)
    window, states = options.training.window, [name for name in model.states if name in model.latent]
    from_first = states if model.start.is_first_measurement else []
    return FitProblem(
        train,
        validation,
        facts,
        options,
        model,
        ridges,
        (*equations, *plan.choices, *prior, *more),
        tuple(stages_of(options.with_ridge(0.0), model, facts)[1]),
        tuple(find_oddities(train, options.scaling, window, from_first=from_first)),
        linear,
        began,
        offset,
    )


def weigh_prior(plan: Resolved, facts: Facts, model: NeuralODE) -> tuple[tuple[Number, ...], list[Choice]]:
    """The weights of the prior, and what is said of that of a short record: it is for more weights than values."""
    assert isinstance(plan.options.penalty, Penalty)
    if plan.options.penalty.ridge != "auto" or plan.ridges != (SHORT_RIDGE,):
        return plan.ridges, []
    weights = sum(leaf.size for leaf in parameters.network_weights(model.field))
    if weights <= facts.values:
        return (0.0,), []
    why = f"{facts.values} values do not determine {weights} weights"
    return plan.ridges, [Choice("penalty.ridge", f"{SHORT_RIDGE:g}", why, is_advised=True)]


# Windows to which a linear model is fitted: few, since that is cheaper, but with many different starts.
LINEAR_WINDOWS = 64
# Where no input drives, what repeats is nonlinear, and further linear states only imitate it: they must be worth more.
WORTH_OF_FREE = 0.25


def identify(options: Options, train: Dataset, validation: Dataset | None, callback: Callback) -> Identified:
    """The linear model that validates best; uneven rows are interpolated for it.

    **Arguments:** `options`: with the window and the kind of inputs. `callback`: told of each model.
    """
    names = () if isinstance(options.hidden, int | str) else options.hidden
    limits = options.scaling.limits((*train.states, *names), train.inputs)
    scaler = Scaler.from_dataset(train, bounds=limits, identity=not options.scaling.affine)
    step, kind = train.median_step, options.solver.inputs
    train = train.resample(step, kind)
    validation = None if validation is None else validation.resample(step, kind)
    rows = (options.training.budget.window or WINDOWS[0]) + ENCODER_ROWS - 1
    stride = max(int(train.lengths.sum()) // LINEAR_WINDOWS, 1)
    windows = Batch.from_dataset(train.windows(rows, stride).sample(LINEAR_WINDOWS), scaler, ENCODER_ROWS)
    held = windows if validation is None else Batch.from_dataset(validation, scaler, ENCODER_ROWS)
    count = None if options.hidden == "auto" else options.hidden if isinstance(options.hidden, int) else len(names)
    callback.on_trial("linear models with hidden states")
    models: list[LinearModel] = []
    tried = ""
    for model in linear_models(windows, held, Batch.from_dataset(train, scaler), kind, count):
        models.append(model)
        tried = ", ".join(f"{each.hidden}: {each.judged:.2g}" for each in models)
        callback.on_trial(f"linear models with hidden states (NRMSE with {tried})")
    if not models:
        return Identified()
    best = simplest_model(models) if train.is_driven else simplest_model(models, WORTH_OF_FREE)
    what = "training" if validation is None else "validation"
    if count is not None:
        text = f"NRMSE on {what} data of a linear model with {count} hidden states"
        return Identified(best, "linear", f"{best.error:.2g}", text)
    text = f"NRMSE of linear models by hidden states ({tried}), on {what} data and by cross-validation"
    return Identified(best, "hidden", best.hidden, text)


# Options that the earlier model determines.
OF_THE_MODEL = ("field", "hidden", "start", "observation", "scaling", "prediction_solver")


def check_model_given(model: object) -> NeuralODE:
    """The model to continue from; of an ensemble that was drawn around a fit, that fit.

    **Raises:** `ValueError` if it is not a single model.
    """
    if isinstance(model, Ensemble):
        model = model.center or model
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
    assert isinstance(options.penalty, Penalty) and isinstance(options.loss, AbstractLikelihood)
    with scope_of(model):
        constants = values_of_constants((model.field, model.observation))
        noise = make_noise(model.scaler.marked(train), options.loss, model.system, constants)
        noise = None if noise is None else carry(noise, model.scaler.state_scale.dtype)
    return replace(model, start=start, noise=noise), options.with_ridge(
        0.0
    ) if options.penalty.ridge == "auto" else options


def first_model(options: Options, train: Dataset, linear: LinearModel | None) -> tuple[NeuralODE, list[Choice]]:
    """The model with its initial parameters, which may be those of a linear one or of filters of the inputs."""
    model = make_model(train, **options.parts)
    if linear is None and not (has_place(model) and train.is_driven):
        return model, []
    rows = train.median_step
    step = rows / float(model.scaler.time_scale)
    if linear is not None:
        return begin_as_linear(model, linear.system, step), []
    even = train.resample(rows, options.solver.inputs)
    model, error = begin_with_filters(model, even, options.solver.inputs, step, options.seed)
    return model, [Choice("filters", f"{error:.2g}", "NRMSE of the filters of the inputs that states begin as")]


def with_estimated_starts(model: NeuralODE, train: Dataset) -> NeuralODE:
    """The model with the starts that its constants and the first rows ask for: constants that were found are near their
    optimum, from which the noise of single rows would lead away."""
    if not isinstance(model.start, Fitted):
        return model
    starts = model.scaler.scale_states(model.predict(train)[:, 0])
    with scope_of(model):
        values = jnp.where(np.isfinite(starts), carry(starts, model.start.values.dtype), model.start.values)
        return replace(model, start=eqx.tree_at(lambda start: start.values, model.start, values))


def stages_of(options: Options, model: NeuralODE, facts: Facts) -> tuple[Sequence[Stage], list[str]]:
    """The stages of the options' recipe, and why others were left out."""
    if not isinstance(options.recipe, Recipe):
        assert not isinstance(options.recipe, str)
        return options.recipe, []
    stages, notes = make_stages(options.recipe, options.main_stage(), model, facts)
    return some(stages), notes


def make_loop(
    options: Options,
    members: Sequence[Member],
    train: Dataset,
    validation: Dataset | None,
    *,
    starts_well: bool = False,
    offset: int = 0,
) -> Loop:
    training = options.training
    return Loop(
        members,
        train,
        validation,
        options.placed(len(members)),
        freeze=training.freeze,
        chunk_steps=training.budget.chunk_steps,
        patience=training.patience,
        starts_well=starts_well,
        offset=offset,
    )


def scaled_squares(model: NeuralODE, data: Dataset) -> Float[np.ndarray, " value"]:
    """The squared errors of the values that count, in scaled units; infinite where a prediction is not finite."""
    predicted, scaler = model.scaler.scale_states(model.predict(data)), model.scaler
    off = predicted - scaler.near(scaler.scale_states(data.ys), predicted)
    return np.nan_to_num(off[score_values(model, data).mask] ** 2, nan=np.inf)


def pooled_error(model: NeuralODE, data: Mapping[str, Dataset]) -> float:
    """The error of whole simulations of samples of all data, every value counted alike, in scaled units."""
    squares = [scaled_squares(model, part.sample(MOST_COMPARED)) for part in data.values()]
    return root_mean(np.concatenate(squares))


def find_equations(
    options: Options, train: Dataset, validation: Dataset | None, callback: Callback
) -> tuple[Options, tuple[Choice, ...]]:
    """The options with the equations in the place of `Sparse` or `Mechanical`, and what was found; other options as
    they are.

    **Raises:** `ValueError` if states are hidden, no equation leaves nothing but noise, or there is no mechanism.
    """
    if not says(options.field, "is_sought", False):
        return options, ()
    kind = "sparse" if made_of(options.field) is Sparse else "mechanical"
    if options.hidden not in ("auto", 0, ()):
        raise ValueError(f"field={kind} needs measurements of all states; leave out hidden, or use another field.")
    search_for = find_sparse if kind == "sparse" else find_motion
    changed, verdict = search_for(options, train, Facts.of(train, validation), callback)
    told = Choice("field", kind, verdict)
    return replace(changed, hidden=0, recipe=without_derivatives(options.recipe)), (told,)


class NoEquations(ValueError):
    """No equation of few terms describes a record; `verdict` says how near the best comes."""

    def __init__(self, verdict: str):
        super().__init__(f"field=sparse: {verdict} Other fields may, such as field=mlp.")
        self.verdict = verdict


def find_sparse(options: Options, train: Dataset, facts: Facts, callback: Callback) -> tuple[Options, str]:
    """The options of equations of few terms, and what is said of these."""
    given = dict(keywords(options.field))
    effort = given.pop("effort", "normal")
    watch = SearchWatch(lambda what: callback.on_trial(f"equations of few terms: {what}"))
    found = search(train, Vocabulary(**given), effort=effort, seed=options.seed, watch=watch)
    if not found.fits:
        raise NoEquations(found.verdict)
    best, start = found.ranked[0], options.start
    if start == "auto":
        # A start that is the first row needs no rows of a new trajectory, where these have little noise.
        start = fitted_start(facts) if facts.values < SHORT or facts.noise > NOISY else First
    field = functools.partial(Known, equations=best.equations, constants=best.constants)
    return replace(options, field=field, start=start), found.verdict


def find_motion(options: Options, train: Dataset, facts: Facts, callback: Callback) -> tuple[Options, str]:
    """The options of a mechanism's equations of motion, and what is said of these."""
    given = keywords(options.field)
    pairing = pair_states(train, given.get("positions"), given.get("velocities"))
    watch = SearchWatch(lambda what: callback.on_trial(f"mechanisms: {what}"))
    found = find_mechanism(train, pairing, held=facts.inputs == "hold", watch=watch)
    field = functools.partial(Known, equations=found.equations, constants=found.constants)
    # Errors of velocities grow in what swings, so that all rows tell where it starts.
    start = functools.partial(Fitted, given=None) if options.start == "auto" else options.start
    if options.solver.rtol is None:
        spread = np.nanstd(np.where(train.mask, train.ys, np.nan), axis=(0, 1))
        rtol = float(f"{np.clip((found.noise / spread).min() * SMALL_STEP_ERROR, *MOTION_TOLERANCES):.1g}")
        options = replace(options, solver=replace(options.solver, rtol=rtol))
        if options.prediction_solver is None:
            tight = with_tolerance(options.solver, max(float(f"{rtol / TIGHTER:.1g}"), TIGHT[options.kind]))
            options = replace(options, prediction_solver=tight)
    return replace(options, field=field, start=start), f"the equations of motion of {found.mechanism.title}"


def has_enough_rows(train: Dataset) -> bool:
    """Whether equations can be looked for: of data without events, with enough measurements of each state."""
    return train.events is None and int(train.mask.sum(axis=1).min()) >= FEWEST_ROWS
