"""`fit` fits a model to measured trajectories; `fit_several` makes several fits that share compiled programs."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import diffrax
import jax
import numpy as np
import optax
from jaxtyping import PyTree

from ..data.dataset import Dataset, check_data
from ..data.facts import noise_share
from ..model.ensemble import Ensemble
from ..model.make_model import MakeField, MakeStart, needs_double
from ..model.neural_ode import NeuralODE
from ..optimizers.optimizer import AbstractOptimizer
from ..options.options import Options, Training, place_of
from ..runtime.validation import check_argument, says_where
from ..solver.problem import VectorField
from ..solver.solver import Solver
from ..training.callback import Callback, Callbacks
from ..training.task import Members
from .candidates import FIRST_ATTEMPT
from .judge import CONTENT, UNFINISHED, EarlyFits, has_few_values
from .left_out import predict_left_out
from .long_records import best_of_race, race_long_record
from .mechanisms import fit_mechanism
from .problem import FitProblem, build_problem, check_model_given
from .progress import progress_bar
from .race import is_open, run_race
from .refit import refit_to_all
from .result import Fit
from .short_records import fit_short_record
from .train import train as solve

FIT_LOG = logging.getLogger(__name__)


# Number of members drawn around a fit: the fit itself and pairs on opposite sides of it.
DRAWN = 33
# Errors that can occur when drawing members.
NOT_DRAWN = (ValueError, MemoryError, np.linalg.LinAlgError, jax.errors.JaxRuntimeError)
# Noise below which bands are too narrow to see [fraction of the spread].
LITTLE_NOISE = 0.01
# Larger times overflow single precision.
LARGEST_SINGLE = 1e38
# The options that `fit` accepts as separate arguments.
OWN_OPTIONS = ("field", "hidden", "start", "solver", "optimizer", "training")


@says_where(lambda name: place_of(name, OWN_OPTIONS))
def fit(
    train: Dataset,
    *,
    validation: Dataset | None = None,
    field: MakeField | VectorField | str | None = None,
    hidden: int | Sequence[str] | Literal["auto"] | None = None,
    start: MakeStart | str | None = None,
    solver: Solver | diffrax.AbstractSolver[PyTree] | str | None = None,
    optimizer: AbstractOptimizer | optax.GradientTransformation | str | None = None,
    training: Training | None = None,
    model: NeuralODE | Ensemble | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    options: Options | None = None,
) -> Fit:
    """Fits a neural ODE to trajectories.

    ```python
    fit = node_fit.fit(train, validation=validation, training=node_fit.Training(steps=500))
    print(fit, fit.score(test).nrmse)
    fit = node_fit.fit(train, field="linear", options=node_fit.Options(loss="huber", seed=1))
    ```

    **Arguments:**

    - `train`: the data to fit. `validation`: data used to select the best iterate and to stop the fit early.
    - `field`: the right-hand side, such as `MLP(width=32)`. `hidden`: unmeasured states. `start`: rule for initial
      states, such as `Fitted`. `solver`, `optimizer`, `training`: how to solve and to train. These are the most common
      options; each overrides that in `options`, unless it is None. See `Options`.
    - `model`: an earlier model to continue from, or an ensemble drawn around one; it determines `field`, `hidden`,
      `start`, `observation`, `scaling` and `prediction_solver`.
    - `callbacks`: called at the end of every chunk; they can stop the run.
    - `progress`: whether to show progress; if None, in terminals and notebooks only.
    - `options`: all other options, such as `Options(penalty=Penalty(ridge=0.1), precision="x64")`.

    **Returns:** a `Fit`. Ctrl-C ends the training and returns the fit so far.

    **Raises:** `ValueError` if an argument has the wrong type, is out of range or does not fit the data;
    `TypeError` for an unknown argument; the message shows where it belongs.
    """
    check_data(train, "train")
    if validation is not None:
        check_data(validation, "validation")
    check_argument("progress", progress, bool | None)
    check_argument("options", options, Options | None, "a node_fit.Options such as Options(seed=1)")
    words = dict(zip(OWN_OPTIONS, (field, hidden, start, solver, optimizer, training), strict=True))
    options = replace(options or Options(), **{name: word for name, word in words.items() if word is not None})
    options = options if options.members.trained_members.size == 1 else with_one_start(options)
    earlier = None if model is None else check_model_given(model)
    options = with_precision(options.for_data(train), options.field if earlier is None else earlier.field, train)
    with options.place.scope(), progress_bar(progress) as bar, ExitStack() as stack:
        callback = Callbacks([*check_callbacks(callbacks), *bar])
        stack.callback(callback.on_fit_end)
        alone = model is None and options.members.trained_members.size == 1 and jax.process_count() == 1
        races = alone and is_open(options, options.effort)
        early = begin_race(options, train, validation, callback) if races else EarlyFits()
        before = early.tried
        if early.is_enough:
            warn_of_data([kept := best_of_race(before)])
            return with_bands(kept, options.members)
        steps = [before[-1].fit.steps if before else 0]
        problem = build_problem(options, train, validation, earlier=earlier, callback=callback, offset=steps[-1])
        warn_of_data([problem])
        if not before:
            callback.on_opening(FIRST_ATTEMPT)
        callback.on_fit_start(problem.model, problem.remarks)
        if before:
            callback.on_attempt(FIRST_ATTEMPT, f"{before[-1].attempt.name} is {before[-1].attempt.verdict}")
        result = solve([problem], [callback])[0]
        for judged in before:
            result = replace(result, rival=judged.fit.rival or result.rival)
        if races:
            steps.append(result.steps)

            def again(changed: Options, rows: int | None) -> Fit:
                parts = [
                    part if rows is None or part is None else part.windows(rows, rows)
                    for part in (problem.train, problem.validation)
                ]
                next_problem = build_problem(changed, parts[0] or train, parts[1], callback=callback, offset=steps[-1])
                steps.append((refit := solve([next_problem], [callback])[0]).steps)
                return refit

            def go_on(changed: Options, rows: Dataset, model: NeuralODE) -> Fit:
                next_problem = build_problem(changed, rows, None, earlier=model, callback=callback, offset=steps[-1])
                return solve([next_problem], [callback])[0]

            def anew(settled: Options, rows: Dataset) -> Fit:
                return solve([build_problem(settled, rows, None)], [Callback()])[0]

            result = run_race(options, result, again, options.effort, callback, early)
            result = refit_to_all(predict_left_out(result, anew, callback), go_on, callback)
        return with_bands(result, options.members)


# Fits tried before a network, for records with suitable columns or rows.
OPENINGS = (fit_mechanism, race_long_record, fit_short_record)


def begin_race(options: Options, train: Dataset, validation: Dataset | None, callback: Callback) -> EarlyFits:
    """Runs the fits that are tried before a network."""
    early = EarlyFits()
    for opening in OPENINGS:
        more = opening(options, train, validation, callback)
        early = more._replace(tried=(*early.tried, *more.tried))
        if early.is_enough:
            break
    return early


def with_precision(options: Options, field: object, train: Dataset) -> Options:
    """Returns the options, in double precision if equations read a time that single precision can't resolve."""
    if options.kind == "x64" or not needs_double(field, train):
        return options
    largest = float(np.abs(train.ts).max())
    FIT_LOG.warning(
        "precision=x64: the equations read the time %s, of which x32 resolves only multiples of %.2g at %.3g",
        *(train.time, np.spacing(np.float32(min(largest, LARGEST_SINGLE))), largest),
    )
    return replace(options, precision="x64")


def with_bands(fit: Fit, members: Members) -> Fit:
    """Returns the fit with an ensemble drawn around it, if one is requested or rows are few.

    Otherwise, or if no ensemble can be drawn, returns the fit unchanged.
    """
    is_requested = members.vary == "laplace"
    if not (is_requested or (members.size is None and has_few_noisy_rows(fit))):
        return fit
    try:
        return replace(fit, model=fit.laplace(members.size or DRAWN), optimum=fit.model)
    except NOT_DRAWN as error:  # Failing bands must not lose the fit.
        if is_requested:
            FIT_LOG.warning("no ensemble is drawn: %s", error)
        return fit


def has_few_noisy_rows(fit: Fit) -> bool:
    """Whether a fit describes few noisy values, which leave it poorly determined."""
    train: Dataset = fit.data["train"]
    described = (
        any(attempt.kept and attempt.verdict in CONTENT for attempt in fit.attempts) and fit.status not in UNFINISHED
    )
    return described and fit.horizon is None and has_few_values(train) and noise_share(train) > LITTLE_NOISE


def fit_several(
    train: Dataset,
    options: Sequence[Options],
    *,
    validation: Dataset | None = None,
    callbacks: Sequence[Callback] | None = None,
    overview: Callback | None = None,
) -> list[Fit | ValueError]:
    """Makes several fits to the same data; fits that differ only in seeds and numbers share one program.

    **Arguments:**

    - `train`, `validation`: as in `fit`.
    - `options`: the options of each fit, all of the same precision. Each makes a single fit, so `effort` has no effect,
      and `ensemble` is rejected.
    - `callbacks`: one for each fit, called for that fit only.
    - `overview`: a callback for all fits together.

    **Returns:** a fit for each of the options, in order, or the `ValueError` that `fit` would raise for it. Each
    compilation is counted in the first fit that uses the program.

    **Raises:** `ValueError` if an argument has the wrong type, or the precisions differ.
    """
    check_data(train, "train")
    if validation is not None:
        check_data(validation, "validation")
    check_argument("options", options, Sequence[Options], "a list of node_fit.Options")
    check_argument("callbacks", callbacks, Sequence[Callback] | None, "a list of node_fit.Callback objects")
    check_argument("overview", overview, Callback | None)
    callbacks = callbacks or [Callback() for _ in options]
    if not options:
        raise ValueError("options is empty; pass a node_fit.Options for each fit.")
    if len(callbacks) != len(options):
        raise ValueError(f"callbacks must be one for each of the {len(options)} options, got {len(callbacks)}.")
    if any(setup.members.count > 1 for setup in options):
        raise ValueError("fit_several makes one fit for each of the options; pass ensemble=1, or use fit.")
    if len({setup.kind for setup in options}) > 1:
        raise ValueError("fits of different precisions can't run together; pass x32 and x64 separately.")
    if any(setup.scaling.turns != options[0].scaling.turns for setup in options):
        raise ValueError("fits with different angles can't run together; pass those with the same angles.")
    options = [setup.for_data(train, len(options)) for setup in options]
    if any(needs_double(setup.field, train) for setup in options):  # They share a precision.
        options = [replace(setup, precision="x64") for setup in options]
    with options[0].place.scope(), ExitStack() as stack:
        for handler in callbacks:
            stack.callback(handler.on_fit_end)
        problems: dict[int, FitProblem] = {}
        fits: dict[int, Fit | ValueError] = {}
        for index, (setup, callback) in enumerate(zip(options, callbacks, strict=True)):
            try:
                problem = build_problem(setup, train, validation)
                callback.on_fit_start(problem.model, problem.remarks)
                problems[index] = problem
            except ValueError as error:
                fits[index] = error
        if problems:
            warn_of_data(list(problems.values()))
            solved = solve(list(problems.values()), [callbacks[index] for index in problems], overview or Callback())
            fits |= dict(zip(problems, solved, strict=True))
        return [fits[index] for index in range(len(options))]


def warn_of_data(problems: Sequence[FitProblem | Fit]) -> None:
    """Logs each oddity of the data once."""
    for warning in dict.fromkeys(warning for problem in problems for warning in problem.warnings):
        FIT_LOG.warning("%s", warning)


def with_one_start(options: Options) -> Options:
    """Returns the options of an ensemble, whose members each have their own initial network."""
    if options.restarts not in ("auto", 1):
        raise ValueError("restarts keeps the best of several fits, and an ensemble keeps all; pass one of the two.")
    return replace(options, restarts=1)


def check_callbacks(callbacks: Any) -> Sequence[Callback]:
    """Returns the callbacks as a list, wrapping a single callback."""
    several = isinstance(callbacks, Sequence) and not isinstance(callbacks, Callback)
    checked: list[Any] = [*callbacks] if several else [callbacks]
    for item in checked:
        if not isinstance(item, Callback):
            raise ValueError(
                f"callbacks must be a list of node_fit.Callback objects, got {item!r:.60}; subclass node_fit.Callback "
                "and override on_chunk_end(records, state)."
            )
    return checked
