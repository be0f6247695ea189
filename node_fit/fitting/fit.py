"""`fit`: from measured trajectories to a fitted model; and several fits that share their programs."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import jax
import optax

from ..data.dataset import Dataset, check_data
from ..data.scaling import Scaling
from ..model.make_model import MakeField, MakeObservation, MakeStart
from ..model.neural_ode import NeuralODE
from ..objectives.objective import AbstractResidualLoss, Penalty
from ..optimizers.optimizer import AbstractOptimizer
from ..options.options import Devices, Effort, Options, Training, says_where
from ..options.recipes import Recipe
from ..runtime.placement import Precision, scope
from ..runtime.validation import check_argument
from ..solver.problem import VectorField
from ..solver.solver import Solver
from ..training.callback import Callback, Callbacks
from ..training.task import Members, Stage, as_members
from .ladder import climb, is_open
from .problem import FitProblem, build_problem, check_model_given
from .progress import progress_bar
from .result import Fit
from .train import train as solve

ODDITIES_LOG = logging.getLogger(__name__)


@says_where
def fit(
    train: Dataset,
    *,
    validation: Dataset | None = None,
    field: MakeField | VectorField | str = Options.field,
    hidden: int | Sequence[str] | Literal["auto"] = Options.hidden,
    start: MakeStart | str = Options.start,
    observation: MakeObservation | str = Options.observation,
    scaling: Scaling = Options.scaling,
    solver: Any = Options.solver,
    prediction_solver: Solver | None = Options.prediction_solver,
    recipe: Recipe | str | Sequence[Stage] = Options.recipe,
    optimizer: AbstractOptimizer | optax.GradientTransformation | str | None = Options.optimizer,
    penalty: Penalty | Literal["auto"] = Options.penalty,
    loss: AbstractResidualLoss | str = Options.loss,
    training: Training = Options.training,
    ensemble: Members | int = 1,
    restarts: int | Literal["auto"] = Options.restarts,
    derived: Mapping[str, str | float] | None = Options.derived,
    model: NeuralODE | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    precision: Precision | None = Options.precision,
    device: Devices | str = Options.device,
    seed: int = Options.seed,
    effort: Effort = "normal",
) -> Fit:
    """Fits a neural ODE to trajectories.

    ```python
    fit = node_fit.fit(train, validation=validation, training=node_fit.Training(steps=500))
    print(fit, fit.score(test).nrmse)
    ```

    **Arguments:**

    - `train`: the data to fit. `validation`: data that choose the best iterate and stop the fit early.
    - `field`: the right-hand side: an `equinox.Module` called with `(t, y, u)`, or something that makes one when it
      is called with `(states, inputs, key=...)`, such as `MLP(width=32)`, or, if its first parameter is called
      `system`, with `(system, key=...)`, where the `System` holds names and scales, such as
      `Known(equations={"x": "-a*x"}, constants={"a": 1.0})`.
    - `hidden`: states that nobody measured: their number, or their names.
    - `start`: where trajectories start: `First`, `Fitted(given=5)`, `Encoder`, `Stated`, `Steady`.
    - `observation`: what is measured: `MeasuredStates`, `LinearReadout`, `NetworkReadout(width=8)`.
    - `scaling`: how states, inputs and time are brought to order one, with logarithms and bounds, and which are angles.
    - `solver`: of training: a `Solver`, the name of a method such as `kvaerno5` (`heun` of the command line is
      `Solver("heun", stepping="even", max_steps=16384)`), or a `diffrax.AbstractSolver`. `prediction_solver`: of
      validation and prediction; if None as `solver`, but tight and of at least the fifth order.
    - `recipe`: `default` begins with derivative matching, `direct` does not; or a `Recipe`, or stages of your own.
    - `optimizer`: of the main stage; if None, `LBFGS()`, or `Adam()` on minibatches. It may be an Optax transformation.
    - `penalty`: penalties on the field and its weights; with `auto`, `fit` chooses the ridge.
    - `loss`: how much large residuals count: `Squares`, or `Huber` or `StudentT` for data with outliers.
    - `training`: budget, windows, minibatches, patience.
    - `ensemble`: the number of members that are fitted at once, or a `Members` that says how they differ.
    - `restarts`: the number of fits from different starts, of which the best is kept; see `Fit.restarts`. The first
      begins at the given constants of equations, the others at those that simulate the data best, of thousands within
      a factor of a hundred of them, or between two bounds. Networks begin with other weights. `auto` takes 3 for short
      driven records that have validation data, and 1 otherwise.
    - `derived`: quantities that follow from the constants, as expressions by their names, such as
      `{"half_life": "log(2)/k"}`; see `Fit.derived`.
    - `model`: an earlier model to continue from; it determines `field`, `hidden`, `start`, `observation`, `scaling` and
      `prediction_solver`.
    - `callbacks`: called at the end of every chunk; they may stop the run.
    - `progress`: whether to show the progress; if None, in a terminal and in a notebook.
    - `precision`: `x32` or `x64`; the process's mode if None.
    - `device`: `auto`, `cpu` or `gpu`, or `Devices`.
    - `seed`: the seed of initial parameters and minibatches.
    - `effort`: what to try where the first fit is not good, or rows are few: with `normal`, equations of few terms, a
      polynomial, windows that grow and a linear field, or several starts of known equations; with `thorough`, more
      starts; with `quick`, nothing. Where a recipe, an optimizer or `training` is given, nothing else is tried. See
      `Fit.attempts`.

    `field`, `start`, `observation`, `optimizer`, `loss` and `recipe` may be names, as on the command line: `mlp`,
    `linear`, `polynomial`, `second_order`, `sparse`; `first`, `fitted`, `encoder`, `steady`; `measured`, `linear`,
    `network`; `lbfgs`, `adam`, `adamw`, `lm`; `squares`, `huber`, `student`; `default`, `direct`.

    **Returns:** a `Fit`. Ctrl-C ends the training and returns the fit so far.

    **Raises:** `ValueError` if an argument has the wrong type, is out of range or does not fit the data;
    `TypeError` if there is no such argument, which says where it belongs.
    """
    options = Options(  # It converts names.
        field=field,  # pyright: ignore[reportArgumentType]
        hidden=hidden,
        start=start,  # pyright: ignore[reportArgumentType]
        observation=observation,  # pyright: ignore[reportArgumentType]
        scaling=scaling,
        solver=solver,
        prediction_solver=prediction_solver,
        recipe=recipe,
        optimizer=optimizer,
        penalty=penalty,
        loss=loss,  # pyright: ignore[reportArgumentType]
        training=training,
        restarts=restarts,
        derived=derived,
        precision=precision,
        device=device,
        seed=seed,
    )
    return fit_with(
        options,
        train,
        validation,
        ensemble=ensemble,
        model=model,
        callbacks=callbacks,
        progress=progress,
        effort=effort,
    )


def fit_with(
    options: Options,
    train: Dataset,
    validation: Dataset | None = None,
    *,
    ensemble: Members | int = 1,
    model: NeuralODE | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    effort: Effort = "quick",
) -> Fit:
    """`fit`, with its options in one object."""
    check_data(train, "train")
    if validation is not None:
        check_data(validation, "validation")
    check_argument("progress", progress, bool | None)
    check_argument("effort", effort, Effort, "quick, normal or thorough")
    model = model if model is None else check_model_given(model)
    asked = as_members(ensemble)
    ensemble = asked.trained
    options = options if ensemble.size == 1 else with_one_start(options)
    with scope(options.kind), progress_bar(progress) as bar, ExitStack() as stack:
        callback = Callbacks([*check_callbacks(callbacks), *bar])
        stack.callback(callback.on_fit_end)
        problem = build_problem(options, train, validation, earlier=model, ensemble=ensemble, callback=callback)
        warn_of_data([problem])
        callback.on_fit_start(problem.model, problem.said)
        result = solve([problem], [callback])[0]
        if model is None and ensemble.size == 1 and is_open(options, effort) and jax.process_count() == 1:
            steps = [result.steps]

            def again(changed: Options, rows: int | None, validated: bool) -> Fit:
                parts = [
                    part if rows is None or part is None else part.windows(rows, rows)
                    for part in (problem.train, problem.validation)
                ]
                held = parts[1] if validated else None
                other = build_problem(changed, parts[0] or train, held, callback=callback, offset=steps[-1])
                steps.append((found := solve([other], [callback])[0]).steps)
                return replace(found, data={**found.data, **({} if parts[1] is None else {"validation": parts[1]})})

            result = climb(options, result, again, effort, callback)
        return result.with_laplace(asked.size) if asked.vary == "laplace" else result


def fit_several(
    train: Dataset,
    options: Sequence[Options],
    *,
    validation: Dataset | None = None,
    callbacks: Sequence[Callback] | None = None,
    overview: Callback | None = None,
) -> list[Fit | ValueError]:
    """Makes several fits to the same data; those that differ only in seeds and numbers run in one program.

    **Arguments:**

    - `train`, `validation`: as in `fit`.
    - `options`: the options of each fit, all of one precision.
    - `callbacks`: one for each fit, called for that fit only.
    - `overview`: a callback for all fits together.

    **Returns:** a fit for each of the options, in their order, or the `ValueError` that `fit` would raise for it. The
    compilations of a program are counted in its first fit.

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
    if len({each.kind for each in options}) > 1:
        raise ValueError("fits of different precisions can't run together; pass x32 and x64 separately.")
    if any(each.scaling.turns != options[0].scaling.turns for each in options):
        raise ValueError("fits with different angles can't run together; pass those with the same angles.")
    with scope(options[0].kind), ExitStack() as stack:
        for each in callbacks:
            stack.callback(each.on_fit_end)
        problems: dict[int, FitProblem] = {}
        fits: dict[int, Fit | ValueError] = {}
        for index, (each, callback) in enumerate(zip(options, callbacks, strict=True)):
            try:
                problem = build_problem(each, train, validation)
                callback.on_fit_start(problem.model, problem.said)
                problems[index] = problem
            except ValueError as error:
                fits[index] = error
        if problems:
            warn_of_data(list(problems.values()))
            found = solve(list(problems.values()), [callbacks[index] for index in problems], overview or Callback())
            fits |= dict(zip(problems, found, strict=True))
        return [fits[index] for index in range(len(options))]


def warn_of_data(problems: Sequence[FitProblem]) -> None:
    """Says once what looks wrong in the data."""
    for odd in dict.fromkeys(odd for problem in problems for odd in problem.warnings):
        ODDITIES_LOG.warning("%s", odd)


def with_one_start(options: Options) -> Options:
    """The options of an ensemble, each of whose members has its own initial network."""
    if options.restarts not in ("auto", 1):
        raise ValueError("restarts keeps the best of several fits, and an ensemble keeps all; pass one of the two.")
    return replace(options, restarts=1)


def check_callbacks(callbacks: Any) -> Sequence[Callback]:
    """The callbacks as a list; a single one is a list of one."""
    found = [callbacks] if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence) else list(callbacks)
    for each in found:
        if not isinstance(each, Callback):
            raise ValueError(
                f"callbacks must be a list of node_fit.Callback objects, got {each!r:.60}; subclass node_fit.Callback "
                "and override on_chunk_end(records, state)."
            )
    return found
