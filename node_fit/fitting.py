"""`fit`: from measured trajectories to a fitted model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float, PyTree

from . import parameters
from .construction import MakeField, MakeObservation, MakeStart, make_model
from .dataset import Dataset
from .diagnosis import Diagnosis, diagnose
from .evaluation import Score, score
from .fields import MLP, VectorField
from .loop import Loop
from .model import NeuralODE
from .model_file import save
from .objectives import Penalty, TrajectoryMatching
from .observations import MeasuredStates
from .observer import Observer, Record, Silent, Status
from .optimizers import LBFGS, AbstractOptimizer, Adam
from .precision import Precision, ambient, carry, dtype_of, find_device, precision_of, scope
from .prior import choose_ridge, is_short
from .recipes import RECIPES, Kitchen, Recipe
from .solver import Solver
from .starts import First
from .training import Scan, Stage, check_scan

# Tolerances of predictions, well below the error of any fit in that precision.
TIGHT = {"x32": 1e-6, "x64": 1e-8}
LOW_ORDER = ("euler", "heun", "bosh3")
MOST_STEPS = 16384
# Of the main stage, in fits that try a prior.
TRIAL_STEPS = 200


@dataclass(frozen=True)
class Fit:
    """A fitted model, and how the fit went.

    - `model`: with the parameters that were best on the validation data (on the training data if there are none).
    - `status`: `completed`, `stopped_early`, `interrupted` or `failed`, and the `reason` in a sentence.
    - `history`: a `Record` for each chunk.
    - `steps`, `parameters`: steps taken, and numbers trained.
    - `compiles`: XLA compilations of training chunks, as JAX reported them: one a stage, none if the process had it.
    - `cached`: training chunks that came from JAX's compile cache instead.
    - `compile_seconds`, `train_seconds`: where the time went.
    """

    model: NeuralODE
    status: Status
    reason: str
    history: list[Record]
    steps: int
    parameters: int
    compiles: int
    cached: int
    compile_seconds: float
    train_seconds: float

    def predict(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None) -> np.ndarray:
        """Simulated trajectories in the user's units; see `NeuralODE.predict`."""
        return self.model.predict(data, ts)

    def score(self, data: Dataset) -> Score:
        """How well simulated trajectories match the measured ones, in the user's units."""
        return score(data, self.predict(data))

    def diagnose(self, data: Dataset) -> Diagnosis:
        """What the fit has come to on the data that it was fitted to, and what to try next."""
        return diagnose(self.status, self.history, {"train": data}, {"train": self.predict(data)})

    def save(self, path: str | Path) -> None:
        """Writes the model to a file that `node_fit.load` reads."""
        save(self.model, path)


def fit(
    train: Dataset,
    *,
    validation: Dataset | None = None,
    field: MakeField | VectorField = MLP,
    hidden: int | Sequence[str] = 0,
    start: MakeStart = First,
    observation: MakeObservation = MeasuredStates,
    optimizer: AbstractOptimizer | None = None,
    solver: Solver | None = None,
    evaluation: Solver | None = None,
    recipe: Recipe | str | Sequence[Stage] = "default",
    steps: int = 2000,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    ridge: float | Literal["auto"] = "auto",
    smoothness: float | None = None,
    kinetic_energy: float | None = None,
    physics: float | None = None,
    freeze: Sequence[str] = (),
    scale: bool = True,
    log: Sequence[str] = (),
    bounds: Mapping[str, Sequence[float | None]] | None = None,
    chunk_steps: int = 100,
    patience: int = 10,
    scan: Scan = "lax",
    precision: Precision | None = None,
    device: str = "auto",
    seed: int = 0,
    observer: Observer | None = None,
) -> Fit:
    """Fits a neural ODE to trajectories.

    **Arguments:**

    - `train`: what is fitted.
    - `validation`: what the best iterate is chosen on and early stopping looks at; may be left out.
    - `field`: the right-hand side: an `equinox.Module` called with `(t, y, u)`, or something that makes one when it
      is called with `(states, inputs, key=...)`, such as `functools.partial(MLP, width=32)`, or, if its first
      parameter is called `system`, with `(system, key=...)`, where the `System` holds names and scales.
    - `hidden`: states that nobody measured: their number, or their names.
    - `start`: where trajectories start: `First`, `Fitted`, `Encoder`, or partials of them.
    - `observation`: what is measured: `MeasuredStates`, `LinearReadout`, `NetworkReadout`, or partials of them.
    - `optimizer`: of the main stage; if absent, `LBFGS()`, or `Adam()` on minibatches.
    - `solver`: of training. `evaluation`: of validation and prediction; as `solver`, but tight and of at least the
      fifth order, if absent.
    - `recipe`: `default` begins with derivative matching, `direct` does not; or a `Recipe`, or stages of your own.
    - `steps`: the most steps of the main stage. `batch_size`, `clip`: see `Stage`.
    - `window`, `stride`: fit windows of so many rows first, begun every `stride` rows, then whole trajectories.
    - `ridge`, `smoothness`, `kinetic_energy`, `physics`: weights of what is asked of the field besides; see `Penalty`.
      With `ridge="auto"`, that of a record of few values and more weights is the one with which a fit to the beginnings
      of the trajectories predicts their ends best; that of others is 0.
    - `freeze`: names of parts of the model that are not trained, such as `field.network.layers.0`.
    - `scale`: whether the field sees states, inputs and time of order one, rather than in the user's units.
    - `log`: names of positive states to see on a logarithmic scale. `bounds`: pairs of a lower and an upper bound,
      null for none, of states that stay within them, by name.
    - `chunk_steps`: steps between looks at the validation data, the log and the observer.
    - `patience`: chunks without a better validation loss after which a stage stops.
    - `scan`: `lax`, or `checkpointed` for less memory when the training itself is differentiated.
    - `precision`: `x32` or `x64`; the process's mode if absent.
    - `device`: `auto`, `cpu` or `gpu`. `seed`: of initial parameters and minibatches.
    - `observer`: told of every chunk.

    **Raises:** `ValueError` if an argument is out of range or does not fit the data.
    """
    if chunk_steps < 1 or patience < 1:
        raise ValueError(f"chunk_steps and patience must be at least 1, got {chunk_steps} and {patience}.")
    check_scan(scan)
    precision = precision or ambient()
    observer = observer or Silent()
    began = time.perf_counter()
    with scope(precision):
        target = find_device(device)

        def place(tree: PyTree) -> PyTree:
            return carry(tree, dtype_of(precision), target)

        init_key, train_key = jax.random.split(jax.random.key(seed))
        solver = solver or Solver()
        optimizer = optimizer or (LBFGS() if batch_size is None else Adam())

        loops: list[Loop] = []

        def model_for(data: Dataset) -> NeuralODE:
            model = make_model(
                data,
                field=field,
                hidden=hidden,
                start=start,
                observation=observation,
                solver=evaluation or with_tolerance(solver, TIGHT[precision]),
                scale=scale,
                log=log,
                bounds=bounds,
                key=init_key,
            )
            precision_of(model.field)
            return model

        def kitchen_for(model: NeuralODE, data: Dataset, ridge: float, steps: int) -> Kitchen:
            penalty = Penalty(ridge, smoothness, kinetic_energy, physics)
            objective = TrajectoryMatching(penalty, solver, window, stride)
            return Kitchen(Stage(objective, optimizer, steps, "main", batch_size, clip), model, data)

        def loop_for(model: NeuralODE, stages: Sequence[Stage], data: Dataset, validation: Dataset | None) -> Loop:
            options = {"freeze": freeze, "chunk_steps": chunk_steps, "patience": patience, "scan": scan}
            return Loop(place(model), stages, data, validation, place, train_key, **options)

        def tried(data: Dataset, ridge: float) -> np.ndarray:
            model = model_for(data)
            stages = kitchen_for(model, data, ridge, min(steps, TRIAL_STEPS)).stages(chosen)
            loop = loop_for(model, stages, data, None)
            loops.append(loop)
            return loop.fitted(loop.run(Silent())).predict(data)

        model = model_for(train)
        if validation is not None:
            model.check_channels(validation)
        notes: list[str] = []
        if isinstance(recipe, Recipe | str):
            chosen = named(recipe)
            if ridge == "auto":
                ridge = 0.0
                if is_short(train, sum(leaf.size for leaf in parameters.weights(model.field))):
                    ridge = choose_ridge(train, tried)
                    notes.append(f"a prior of train.ridge={ridge:g}, which predicts the ends of the training data best")
            kitchen = kitchen_for(model, train, ridge, steps)
            stages = kitchen.stages(chosen)
            notes += kitchen.notes
        else:
            stages = recipe
        if not stages:
            raise ValueError("recipe must hold at least one stage that makes sense for the data.")
        observer.begin(model, notes)
        loop = loop_for(model, stages, train, validation)
        loops.append(loop)
        outcome = loop.run(observer)
        compile_seconds = sum(each.compile_seconds for each in loops)
        return Fit(
            model=loop.fitted(outcome),
            status=outcome.status,
            reason=outcome.reason,
            history=loop.history,
            steps=outcome.moment.step,
            parameters=parameters.count(loop.parts.params),
            compiles=sum(each.compilations.count for each in loops),
            cached=sum(each.compilations.cached for each in loops),
            compile_seconds=compile_seconds,
            train_seconds=time.perf_counter() - began - compile_seconds,
        )


def named(recipe: Recipe | str) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be {', '.join(RECIPES)} or a Recipe, got {recipe!r}.")
    return RECIPES[recipe]


def with_tolerance(solver: Solver, rtol: float) -> Solver:
    """A solver for predictions: at other tolerances, `atol` a hundredth of `rtol`, with steps that keep to them.

    What is cheap in training, a low order or steps that are fixed, is dear at tight tolerances.
    """
    method = "tsit5" if solver.method in LOW_ORDER else solver.method
    steps = max(solver.max_steps, MOST_STEPS)
    return replace(solver, method=method, rtol=rtol, atol=rtol / 100, steps="adaptive", max_steps=steps)
