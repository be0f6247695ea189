"""`fit`: from measured trajectories to a fitted model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree

from . import parameters
from .construction import MakeField, MakeObservation, MakeStart, make_model
from .dataset import Dataset
from .evaluation import Score, score
from .fields import MLP, VectorField
from .loop import Loop, Observer, Record, Silent, Status
from .model import NeuralODE
from .model_file import save
from .objectives import TrajectoryMatching
from .observations import MeasuredStates
from .optimizers import LBFGS, AbstractOptimizer, Adam
from .precision import Precision, ambient, carry, dtype_of, find_device, precision_of, scope
from .recipes import Recipe, make_stages, why_no_derivatives
from .solver import Solver
from .starts import First
from .training import Scan, Stage, check_scan

# Tolerances of predictions, well below the error of any fit in that precision.
TIGHT = {"x32": 1e-6, "x64": 1e-8}
LOW_ORDER = ("euler", "heun", "bosh3")
MOST_STEPS = 16384


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
    hidden: int | Sequence[str] = 0,
    start: MakeStart = First,
    observation: MakeObservation = MeasuredStates,
    optimizer: AbstractOptimizer | None = None,
    solver: Solver | None = None,
    evaluation: Solver | None = None,
    recipe: Recipe | Sequence[Stage] = "default",
    steps: int = 2000,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    ridge: float = 0.0,
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
    - `recipe`: `default` begins with derivative matching, `direct` does not; or stages of your own.
    - `steps`: the most steps of the main stage. `batch_size`, `clip`: see `Stage`.
    - `window`, `stride`: fit windows of so many rows first, begun every `stride` rows, then whole trajectories.
    - `ridge`: weight of a prior on the field's parameters, for short or noisy records; see `TrajectoryMatching`.
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
        model = make_model(
            train,
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
        if validation is not None:
            model.check_channels(validation)
        notes: list[str] = []
        if isinstance(recipe, str):
            optimizer = optimizer or (LBFGS() if batch_size is None else Adam())
            objective = TrajectoryMatching(solver, ridge, window, stride)
            main = Stage(objective, optimizer, steps, "main", batch_size, clip)
            reason = None if recipe == "direct" else why_no_derivatives(model, train)
            notes = [] if reason is None else [reason]
            recipe = make_stages(recipe, main, model, train)
        if not recipe:
            raise ValueError("recipe must hold at least one stage.")
        observer.begin(model, notes)
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
        outcome = loop.run(observer)
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


def with_tolerance(solver: Solver, rtol: float) -> Solver:
    """A solver for predictions: at other tolerances, `atol` a hundredth of `rtol`, with steps that keep to them.

    What is cheap in training, a low order or steps that are fixed, is dear at tight tolerances.
    """
    method = "tsit5" if solver.method in LOW_ORDER else solver.method
    steps = max(solver.max_steps, MOST_STEPS)
    return replace(solver, method=method, rtol=rtol, atol=rtol / 100, adaptive=True, max_steps=steps)
