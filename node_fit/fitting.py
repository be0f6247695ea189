"""`fit`: from measured trajectories to a fitted model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree

from . import parameters
from .dataset import Dataset
from .evaluation import Score, score
from .fields import MLP
from .loop import Loop, Observer, Record, Silent, Status
from .model import NeuralODE
from .model_file import save
from .objectives import TrajectoryMatching
from .optimizers import LBFGS, AbstractOptimizer, Adam
from .precision import Precision, ambient, carry, dtype_of, find_device, numbers_as_arrays, precision_of, scope
from .recipes import Recipe, make_stages
from .scaling import Scaler
from .solver import Solver, VectorField
from .training import Scan, Stage, check_scan

MakeField = Callable[..., VectorField]
# Tolerances of predictions, well below the error of any fit in that precision.
TIGHT = {"x32": 1e-6, "x64": 1e-8}


@dataclass(frozen=True)
class Fit:
    """A fitted model, and how the fit went.

    - `model`: with the parameters that were best on the validation data (on the training data if there are none).
    - `status`: `completed`, `stopped_early`, `interrupted` or `failed`, and the `reason` in a sentence.
    - `history`: a `Record` for each chunk.
    - `steps`, `parameters`: steps taken, and numbers trained.
    - `compiles`: XLA compilations of training chunks, as JAX reported them: one a stage, none if the process had it.
    - `compile_seconds`, `train_seconds`: where the time went.
    """

    model: NeuralODE
    status: Status
    reason: str
    history: list[Record]
    steps: int
    parameters: int
    compiles: int
    compile_seconds: float
    train_seconds: float

    def predict(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None) -> np.ndarray:
        """Simulated trajectories in the user's units; see `NeuralODE.predict`."""
        return self.model.predict(data, ts)

    def score(self, data: Dataset) -> Score:
        """How well simulated trajectories match the measured ones, in the user's units."""
        return score(data, self.predict(data))

    def save(self, path: str | Path) -> None:
        """Writes the model to a file that `node_fit.load` reads."""
        save(self.model, path)


def fit(
    train: Dataset,
    *,
    validation: Dataset | None = None,
    field: MakeField | VectorField = MLP,
    optimizer: AbstractOptimizer | None = None,
    solver: Solver | None = None,
    evaluation: Solver | None = None,
    recipe: Recipe | Sequence[Stage] = "default",
    steps: int = 2000,
    batch_size: int | None = None,
    clip: float | None = None,
    ridge: float = 0.0,
    freeze: Sequence[str] = (),
    scale: bool = True,
    log: Sequence[str] = (),
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
      is called with `(states, inputs, key=...)`, such as `functools.partial(MLP, width=32)`.
    - `optimizer`: of the main stage; if absent, `LBFGS()`, or `Adam()` on minibatches.
    - `solver`: of training. `evaluation`: of validation and prediction; as `solver`, but tight, if absent.
    - `recipe`: `default` begins with derivative matching, `direct` does not; or stages of your own.
    - `steps`: the most steps of the main stage. `batch_size`, `clip`: see `Stage`.
    - `ridge`: weight of a prior on the field's parameters, for short or noisy records; see `TrajectoryMatching`.
    - `freeze`: names of parts of the model that are not trained, such as `field.layers.0`.
    - `scale`: whether the field sees states, inputs and time of order one, rather than in the user's units.
    - `log`: names of positive states to see on a logarithmic scale.
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
    began = time.perf_counter()
    with scope(precision):
        target = find_device(device)

        def place(tree: PyTree) -> PyTree:
            return carry(tree, dtype_of(precision), target)

        init_key, train_key = jax.random.split(jax.random.key(seed))
        solver = solver or Solver()
        model = NeuralODE(
            field=make_field(field, train, init_key),
            scaler=Scaler.from_dataset(train, log=log, identity=not scale),
            solver=numbers_as_arrays(evaluation or with_tolerance(solver, TIGHT[precision])),
            states=train.states,
            inputs=train.inputs,
            time=train.time,
            units=tuple(sorted(train.units.items())),
        )
        precision_of(model.field)
        if validation is not None:
            model.check_channels(validation)
        if isinstance(recipe, str):
            optimizer = optimizer or (LBFGS() if batch_size is None else Adam())
            main = Stage(TrajectoryMatching(solver, ridge), optimizer, steps, "main", batch_size, clip)
            recipe = make_stages(recipe, main, ridge, train)
        if not recipe:
            raise ValueError("recipe must hold at least one stage.")
        loop = Loop(
            place(model),
            recipe,
            train,
            validation,
            place,
            train_key,
            freeze=freeze,
            chunk_steps=chunk_steps,
            patience=patience,
            scan=scan,
        )
        outcome = loop.run(observer or Silent())
        parts, state = loop.parts, outcome.moment.state
        return Fit(
            model=eqx.combine(state.best.params, parts.frozen, parts.static),
            status=outcome.status,
            reason=outcome.reason,
            history=loop.history,
            steps=outcome.moment.step,
            parameters=parameters.count(parts.params),
            compiles=loop.compilations.count,
            compile_seconds=loop.compile_seconds,
            train_seconds=time.perf_counter() - began - loop.compile_seconds,
        )


def make_field(field: MakeField | VectorField, data: Dataset, key: jax.Array) -> VectorField:
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    return cast(MakeField, field)(len(data.states), len(data.inputs), key=key)


def with_tolerance(solver: Solver, rtol: float) -> Solver:
    """The solver at other tolerances, `atol` a hundredth of `rtol`."""
    return replace(solver, rtol=rtol, atol=rtol / 100)
