"""Builds the problem that a fit solves: complete options, models, stages and weights of the prior."""

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
from ..data.groups import find_grouping_covariate, with_trajectory_numbers, without_levels
from ..data.inputs import are_held
from ..data.scaling import Scaler
from ..discover.individuals import Individuals
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
    make_model,
    maker_class,
    names_of_local_trajectories,
    trait_of,
    values_of_constants,
)
from ..model.neural_ode import NeuralODE
from ..model.noise import make_noise
from ..objectives.matching import hides_velocities, smooth_states
from ..objectives.objective import Number, Penalty
from ..options.options import TIGHT, Options, with_tolerance
from ..options.recipes import Recipe, make_stages, some, without_derivatives
from ..runtime.placement import carry, scope_of
from ..sysid.feedthrough import estimate_feedthrough, without_feedthrough
from ..sysid.initialize import begin_as_linear, begin_with_filters, has_place, limit_growth, with_feedthrough
from ..sysid.linear_model import LinearModel, linear_models, simplest_model
from ..training.callback import Callback
from ..training.loop import Loop
from ..training.task import Member, Members, Stage
from .held_inputs import with_responses
from .resolve import (
    ENCODER_ROWS,
    NOISY,
    SHORT,
    SHORT_RIDGE,
    TIGHTER,
    Choice,
    Identified,
    Resolved,
    fitted_start,
    reads_inputs,
    resolve,
)
from .screening import choose_beginnings, has_beginnings
from .unmeasured import describe_noisy_starts, with_empty_starts, with_hidden_of_equations

# Spacing between the seeds of a fit's restarts, so that fits with neighbouring seeds share none.
SEEDS_APART = 1_000
# Solver tolerance for a mechanism, as a fraction of the smallest noise relative to the spread, and its limits.
SMALL_STEP_ERROR, MOTION_TOLERANCES = 1 / 10, (1e-5, 1e-4)
# Maximum number of trajectories used to compare two iterates.
MOST_COMPARED = 64


@dataclass(frozen=True)
class FitProblem:
    """The problem that a fit solves; made by `build_problem`, solved by `train`.

    - `train`, `validation`: the data, with their angles named. `facts`: facts about them.
    - `options`: complete options.
    - `model`: the model with its initial parameters.
    - `ridges`: weights of the prior; with several, the validation data decide.
    - `choices`: choices with reasons. `notes`: why stages were left out. `warnings`: suspicious findings in the data.
    - `linear`: the linear model from which the fit is initialized, if any.
    - `began`: time at which building began [s of the process].
    - `offset`: steps of earlier attempts, from which steps are counted.
    - `begins_as_modes`: whether the model is initialized as the linear system of a long record.
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
        """Whether the model is initialized as a linear model of the data."""
        return self.linear is not None or self.begins_as_modes

    @property
    def ensemble(self) -> Members:
        """The members that are fitted simultaneously."""
        return self.options.members.trained_members

    @property
    def selection_data(self) -> Dataset | None:
        """The data used to select iterates, members and restarts.

        None for equations alone, whose constants are at the optimum of the training likelihood; validation data only
        judge them.
        """
        return None if is_equations_alone(self.model.field) else self.validation

    @property
    def remarks(self) -> list[str]:
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
        """The weight of the prior used for an ensemble."""
        return self.ridges[len(self.ridges) // 2]

    def settle_options(self, best: int | None) -> tuple[Options, tuple[Choice, ...]]:
        """Returns the options and choices with the final weight of the prior, of the best member or of an ensemble."""
        if len(self.ridges) == 1:
            return self.options.with_ridge(self.ridges[0]), self.choices
        ridge = self.middle if best is None else self.ridges[best % len(self.ridges)]
        shown = ", ".join(f"{weight:.2g}" for weight in self.ridges)
        why = "the middle" if best is None else "the best on the validation data"
        final = Choice("penalty.ridge", f"{ridge:.2g}", f"{why} of {shown}")
        return self.options.with_ridge(ridge), tuple(
            final if choice.key == final.key else choice for choice in self.choices
        )

    def members(self, callback: Callback) -> list[Member]:
        """Returns the members to fit simultaneously: an ensemble, or one for each restart and weight of the prior.

        **Arguments:** `callback`: notified of the search for several starts.
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
        """Returns the initial models, the first being `model`; with a callback, the others also vary in constants."""
        options = self.options
        more = [first_model(replace(options, seed=seed), self.train, self.linear)[0] for seed in seeds[1:]]
        if callback is not None and more and has_beginnings(self.model):
            beginnings = choose_beginnings(self.model, self.train, len(more), seeds[0], callback.on_trial)
            more = [beginning(model) for model, beginning in zip(more, beginnings, strict=True)]
        return [options.place.one(model) for model in (self.model, *more)]

    def errors(self, model: NeuralODE) -> tuple[float, float]:
        """Computes the errors of a model on samples of the training and the validation data, in scaled units."""
        assert self.validation is not None
        train, held = (root_mean(scaled_squares(model, part.sample(MOST_COMPARED))) for part in self.data.values())
        return train, held

    def pooled_error(self, model: NeuralODE) -> float:
        """Computes the error of a model on samples of all data, with every value weighted equally, in scaled units."""
        return pooled_error(model, self.data)

    def loop(self, members: Sequence[Member]) -> Loop:
        """Returns the training loop for members of this problem, or of others that share its programs."""
        return make_loop(
            self.options,
            members,
            self.train,
            self.selection_data,
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
    """Resolves the options and builds the model and its stages.

    **Arguments:**

    - `options`, `train`, `validation`: as in `fit`. `earlier`: a model to continue from.
    - `callback`: notified of trials. `offset`: see `FitProblem`.

    **Raises:** `ValueError` if no stage applies, or the data do not fit the model.
    """
    began, callback = time.perf_counter(), callback or Callback()
    mark = (options.scaling if earlier is None else earlier.scaler).mark_angles
    train, validation = mark(train), None if validation is None else mark(validation)
    if numbered := names_of_local_trajectories(train, options.field, options.start, options.observation):
        validation = None if validation is None else with_trajectory_numbers(validation, numbered)
        train = with_trajectory_numbers(train, numbered)
    check_trainable(train)
    facts = Facts.of(train, validation)
    model, equations, unmeasured = None, (), []
    if earlier is None:
        options, equations = find_equations(options, train, validation, callback)
        options, hidden = with_hidden_of_equations(options, train)
        options, empty = with_empty_starts(options, train, facts)
        unmeasured = [*hidden, *empty]
        facts = with_responses(facts, options, train)
    if earlier is not None:
        if options.restarts not in ("auto", 1):
            raise ValueError("restarts draws new models, and model continues an earlier one; pass one of the two.")
        model, options = continue_from(earlier, train, options)
    plan, linear, more = resolve(options, facts, continued=model is not None), None, []
    if plan.identify:
        identified = identify(plan.options, train, validation, callback)
        plan, linear = resolve(options, facts, identified), identified.model
    options = plan.options
    if model is None:
        model, more = first_model(options, train, linear)
        model = with_estimated_starts(model, train) if equations else with_estimated_velocities(model, train)
    _ = quantities(options.derived, tuple(model.constants()))
    if validation is not None:
        model.check_channels(validation)
    ridges, prior = weigh_prior(plan, facts, model)
    options.members.trained_members.check(facts.trajectories, options.training.budget.window)
    window, states = options.training.window, [name for name in model.states if name in model.latent]
    from_first = states if model.start.is_first_measurement else []
    return FitProblem(
        train,
        validation,
        facts,
        options,
        model,
        ridges,
        (*equations, *unmeasured, *plan.choices, *prior, *more),
        tuple(stages_of(options.with_ridge(0.0), model, facts)[1]),
        (*find_oddities(train, options.scaling, window, from_first=from_first), *describe_noisy_starts(model)),
        linear,
        began,
        offset,
    )


def weigh_prior(plan: Resolved, facts: Facts, model: NeuralODE) -> tuple[tuple[Number, ...], list[Choice]]:
    """Returns the weights of the prior and, for a short record, a choice that explains its use.

    A short record gets a prior only if the network has more weights than the record has values.
    """
    assert isinstance(plan.options.penalty, Penalty)
    if plan.options.penalty.ridge != "auto" or plan.ridges != (SHORT_RIDGE,):
        return plan.ridges, []
    weights = sum(leaf.size for leaf in parameters.network_weights(model.field))
    if weights <= facts.values:
        return (0.0,), []
    why = f"{facts.values} values do not determine {weights} weights"
    return plan.ridges, [Choice("penalty.ridge", f"{SHORT_RIDGE:g}", why, is_advised=True)]


# Number of windows for fitting a linear model: few for speed, but enough for varied initial states.
LINEAR_WINDOWS = 64
# Without inputs, recurring behaviour is nonlinear and extra linear states only imitate it, so they must gain more.
WORTH_OF_FREE = 0.25


def identify(options: Options, train: Dataset, validation: Dataset | None, callback: Callback) -> Identified:
    """Identifies the linear model with the best validation error; uneven rows are interpolated.

    **Arguments:** `options`: with the window and the kind of inputs resolved. `callback`: notified of each model.
    """
    names = () if isinstance(options.hidden, int | str) else options.hidden
    limits = options.scaling.limits((*train.states, *names), train.inputs)
    scaler = Scaler.from_dataset(train, bounds=limits, identity=not options.scaling.affine)
    if (direct := feedthrough_of(options, train)) is not None:
        train = without_feedthrough(train, direct)
        validation = None if validation is None else without_feedthrough(validation, direct)
    step, kind = train.median_step, options.solver.inputs
    train = train.resample(step, kind)
    validation = None if validation is None else validation.resample(step, kind)
    # A short record gives windows of half of its rows.
    window = options.training.window
    rows = (window if isinstance(window, int) else int(train.lengths.max()) // 2) + ENCODER_ROWS - 1
    stride = max(int(train.lengths.sum()) // LINEAR_WINDOWS, 1)
    windows = Batch.from_dataset(train.windows(rows, stride).sample(LINEAR_WINDOWS), scaler, ENCODER_ROWS)
    held = windows if validation is None else Batch.from_dataset(validation, scaler, ENCODER_ROWS)
    count = None if options.hidden == "auto" else options.hidden if isinstance(options.hidden, int) else len(names)
    callback.on_trial("linear models with hidden states")
    models: list[LinearModel] = []
    tried = ""
    for model in linear_models(windows, held, Batch.from_dataset(train, scaler), kind, count):
        models.append(model)
        tried = ", ".join(f"{candidate.hidden}: {candidate.judged:.2g}" for candidate in models)
        callback.on_trial(f"linear models with hidden states (NRMSE with {tried})")
    if not models:
        return Identified()
    best = simplest_model(models) if train.is_driven else simplest_model(models, WORTH_OF_FREE)
    role = "training" if validation is None else "validation"
    if count is not None:
        text = f"NRMSE on {role} data of a linear model with {count} hidden states"
        return Identified(best, "linear", f"{best.error:.2g}", text)
    text = f"NRMSE of linear models by hidden states ({tried}), on {role} data and by cross-validation"
    return Identified(best, "hidden", best.hidden, text)


def feedthrough_of(options: Options, train: Dataset) -> Float[np.ndarray, "channel input"] | None:
    """Returns the direct responses of channels to inputs, if channels are read with the inputs; None without any."""
    return estimate_feedthrough(train) if reads_inputs(options) else None


def describe_feedthrough(direct: Float[np.ndarray, "channel input"], train: Dataset) -> Choice:
    """Returns a choice that names the largest direct response."""
    spread = train.us[train.valid].std(axis=0) / np.nanstd(train.ys, axis=(0, 1))[:, None]
    channel, index = divmod(int(np.abs(direct * spread).argmax()), direct.shape[1])
    size = f"{direct[channel, index]:.2g} of {train.inputs[index]}"
    return Choice("observation", "direct", f"{train.states[channel]} changes with an input at once, by {size}")


# Options determined by the earlier model.
OF_THE_MODEL = ("field", "hidden", "start", "observation", "scaling", "prediction_solver")


def check_model_given(model: object) -> NeuralODE:
    """Returns the model to continue from; for an ensemble drawn around a fit, the model of that fit.

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
    """Returns the earlier model, with its own scaling, as the initial model of a fit to `train`, and the fit's options.

    Starts fitted per trajectory are reset to the first measurements. A ridge of `auto` becomes 0.

    **Raises:** `ValueError` if options request other parts, or the channels differ.
    """
    defaults = {option.name: option.default for option in fields(Options)}
    changed = [name for name in OF_THE_MODEL if getattr(options, name) != defaults[name]]
    if changed:
        raise ValueError(f"{changed[0]} is part of the earlier model, so it can't be given with model=; leave it out.")
    model.check_channels(train)
    start = model.start.adapt(model.batch(train))
    assert isinstance(options.penalty, Penalty) and isinstance(options.loss, AbstractLikelihood)
    with scope_of(model):
        constants = values_of_constants((model.field, model.observation))
        noise = make_noise(model.scaler.mark_angles(train), options.loss, model.system, constants)
        noise = None if noise is None else carry(noise, model.scaler.state_scale.dtype)
    return replace(model, start=start, noise=noise), options.with_ridge(
        0.0
    ) if options.penalty.ridge == "auto" else options


def first_model(options: Options, train: Dataset, linear: LinearModel | None) -> tuple[NeuralODE, list[Choice]]:
    """Builds the model with initial parameters, possibly taken from a regression, a linear model or input filters."""
    model, choices = make_model(train, **options.parts), []
    if (direct := feedthrough_of(options, train)) is not None:
        model, choices = with_feedthrough(model, direct), [describe_feedthrough(direct, train)]
    if linear is None and not (has_place(model) and train.is_driven):
        return model, choices
    rows = train.median_step
    step = rows / float(model.scaler.time_scale)
    if linear is not None:
        is_whole = options.training.window is None
        system = limit_growth(linear.system, int(train.lengths.max())) if is_whole else linear.system
        return begin_as_linear(model, system, step), choices
    even = train.resample(rows, options.solver.inputs)
    model, error = begin_with_filters(model, even, options.solver.inputs, step, options.seed)
    return model, [Choice("filters", f"{error:.2g}", "NRMSE of the filters of the inputs that states begin as")]


def with_estimated_starts(model: NeuralODE, train: Dataset) -> NeuralODE:
    """Returns the model with initial states estimated from its constants and the first rows.

    Constants found by a search are near their optimum; starts read from single noisy rows would lead away from it.
    """
    if not isinstance(model.start, Fitted):
        return model
    starts = model.scaler.scale_states(model.predict(train)[:, 0])
    with scope_of(model):
        values = jnp.where(np.isfinite(starts), carry(starts, model.start.values.dtype), model.start.values)
        return replace(model, start=eqx.tree_at(lambda start: start.values, model.start, values))


def with_estimated_velocities(model: NeuralODE, train: Dataset) -> NeuralODE:
    """Returns the model with fitted starts at the velocities of smoothing splines, if velocities are not measured."""
    if not (isinstance(model.start, Fitted) and hides_velocities(model.field)):
        return model
    known = np.where(train.mask, model.scaler.scale_states(train.exact.ys), np.nan)
    starts = smooth_states(model, model.scaler.scale_times(train.ts), known)[0][:, 0]
    with scope_of(model):
        values = jnp.where(np.isfinite(starts), carry(starts, model.start.values.dtype), model.start.values)
        return replace(model, start=eqx.tree_at(lambda start: start.values, model.start, values))


def stages_of(options: Options, model: NeuralODE, facts: Facts) -> tuple[Sequence[Stage], list[str]]:
    """Returns the stages of the options' recipe, and why others were left out."""
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
        options.placement_for(len(members)),
        freeze=training.freeze,
        chunk_steps=training.budget.chunk_steps,
        patience=training.patience,
        starts_well=starts_well,
        offset=offset,
    )


def scaled_squares(model: NeuralODE, data: Dataset) -> Float[np.ndarray, " value"]:
    """Computes the squared errors of the scored values in scaled units; infinite for non-finite predictions."""
    predicted = model.scaler.scale_states(model.predict(data))
    off = predicted - model.scaler.scale_measured(data, predicted)
    return np.nan_to_num(off[score_values(model, data).mask] ** 2, nan=np.inf)


def pooled_error(model: NeuralODE, data: Mapping[str, Dataset]) -> float:
    """Computes the error of full simulations of samples of all data, all values weighted equally, in scaled units."""
    squares = [scaled_squares(model, part.sample(MOST_COMPARED)) for part in data.values()]
    return root_mean(np.concatenate(squares))


def find_equations(
    options: Options, train: Dataset, validation: Dataset | None, callback: Callback
) -> tuple[Options, tuple[Choice, ...]]:
    """Replaces `Sparse` or `Mechanical` in the options by the equations found, and returns the resulting choices.

    Other options are returned unchanged.

    **Raises:** `ValueError` if states are hidden, no equation leaves only noise, or no mechanism is found.
    """
    if not trait_of(options.field, "is_sought", False):
        return options, ()
    kind = "sparse" if maker_class(options.field) is Sparse else "mechanical"
    if options.hidden not in ("auto", 0, ()):
        raise ValueError(f"field={kind} needs measurements of all states; leave out hidden, or use another field.")
    search_for = find_sparse if kind == "sparse" else find_motion
    changed, verdict = search_for(options, train, Facts.of(train, validation), callback)
    choice = Choice("field", kind, verdict)
    return replace(changed, hidden=0, recipe=without_derivatives(options.recipe)), (choice,)


class NoEquations(ValueError):
    """Raised if no sparse equation describes a record.

    `verdict` describes how close the best one comes. `individuals` are equations with constants of each trajectory, if
    these describe it.
    """

    def __init__(self, verdict: str, individuals: Individuals | None = None):
        super().__init__(f"field=sparse: {verdict} Other fields may, such as field=mlp.")
        self.verdict, self.individuals = verdict, individuals


def find_sparse(options: Options, train: Dataset, facts: Facts, callback: Callback) -> tuple[Options, str]:
    """Searches sparse equations and returns the options with them, and the verdict on them."""
    arguments = dict(keywords(options.field))
    effort = arguments.pop("effort", "normal")
    watch = SearchWatch(lambda what: callback.on_trial(f"equations of few terms: {what}"))
    inputs, searched = options.solver.inputs, without_levels(train)
    held = None if inputs == "auto" else are_held(inputs, len(searched.inputs))
    findings = search(searched, Vocabulary(**arguments), effort=effort, seed=options.seed, watch=watch, held=held)
    if not findings.fits:
        if findings.individuals is not None and (by := find_grouping_covariate(train)) is not None:
            return with_groups_of(options, findings.individuals, by, facts), f"found an equation with constants by {by}"
        raise NoEquations(findings.verdict, findings.individuals)
    best, start, solver = findings.ranked[0], options.start, options.solver
    if inputs == "auto" and searched.inputs and best.held == searched.inputs:
        solver = replace(solver, inputs="hold")
    if start == "auto":
        # With little noise, the first row can serve as the start, so that new trajectories need no further rows.
        start = fitted_start(facts) if facts.values < SHORT or facts.noise > NOISY else First
    field = functools.partial(Known, equations=best.equations, constants=best.constants)
    return replace(options, field=field, start=start, solver=solver), findings.verdict


def with_groups_of(options: Options, individuals: Individuals, by: str, facts: Facts) -> Options:
    """Returns options for equations whose constants differ between groups of trajectories.

    **Arguments:** `individuals`: equations with constants of each trajectory. `by`: the covariate of the groups.
    """
    means = {name: float(np.mean(values)) for name, values in individuals.constants.items()}
    local = dict.fromkeys(individuals.varying, by)
    field = functools.partial(Known, equations=individuals.equations, constants=means, local=local)
    start = fitted_start(facts) if options.start == "auto" else options.start
    return replace(options, field=field, start=start)


def find_motion(options: Options, train: Dataset, facts: Facts, callback: Callback) -> tuple[Options, str]:
    """Finds a mechanism's equations of motion and returns the options with them, and a description of them."""
    arguments = keywords(options.field)
    pairing = pair_states(train, arguments.get("positions"), arguments.get("velocities"))
    watch = SearchWatch(lambda what: callback.on_trial(f"mechanisms: {what}"))
    identified = find_mechanism(train, pairing, held=are_held(facts.inputs, len(train.inputs)), watch=watch)
    field = functools.partial(Known, equations=identified.equations, constants=identified.constants)
    # Errors in initial velocities grow in oscillations, so the start is fitted to all rows.
    start = functools.partial(Fitted, given=None) if options.start == "auto" else options.start
    if options.solver.rtol is None:
        spread = np.nanstd(np.where(train.mask, train.ys, np.nan), axis=(0, 1))
        rtol = float(f"{np.clip((identified.noise / spread).min() * SMALL_STEP_ERROR, *MOTION_TOLERANCES):.1g}")
        options = replace(options, solver=replace(options.solver, rtol=rtol))
        if options.prediction_solver is None:
            tight = with_tolerance(options.solver, max(float(f"{rtol / TIGHTER:.1g}"), TIGHT[options.kind]))
            options = replace(options, prediction_solver=tight)
    return replace(options, field=field, start=start), f"the equations of motion of {identified.mechanism.title}"


def has_enough_rows(train: Dataset) -> bool:
    """Whether equations can be searched: the data have no events and enough measurements of each state."""
    return train.events is None and int(train.mask.sum(axis=1).min()) >= FEWEST_ROWS
