"""`fit`: from measured trajectories to a fitted model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from . import parameters
from .batch import Batch
from .compilation import PROGRAMS, Compilations, counted
from .dataset import Dataset
from .evaluation import Score, score
from .fields import MLP
from .model import NeuralODE
from .objectives import DerivativeMatching, TrajectoryMatching
from .objectives.objective import masked_mean
from .optimizers import LBFGS, AbstractOptimizer, Adam
from .precision import Precision, ambient, carry, dtype_of, find_device, numbers_as_arrays, precision_of, scope
from .scaling import Scaler
from .smoothing import FEWEST
from .solver import Solver, VectorField
from .training import Fixed, Scan, Stage, TrainState, begin, check_carry, check_scan, chunk

Recipe = Literal["default", "direct"]
Status = Literal["completed", "stopped_early", "interrupted", "failed"]
MakeField = Callable[..., VectorField]
# Tolerances of predictions, well below the error of any fit in that precision.
TIGHT = {"x32": 1e-6, "x64": 1e-8}
# Progress that counts: the training loss falls by this fraction ...
PROGRESS = 1e-3
# ... within so many chunks.
PLATEAU = 5


@dataclass(frozen=True)
class Record:
    """A chunk of training, as a row of the log.

    `step` counts over all stages; losses are mean squared residuals in scaled units; `seconds` since the start.
    """

    step: int
    stage: str
    train_loss: float
    validation_loss: float | None
    gradient_norm: float
    learning_rate: float
    evaluations: int
    failed_solves: int
    seconds: float


@dataclass(frozen=True)
class Moment:
    """Where a run is: the index of its stage, the steps taken before that stage, and the stage's state."""

    stage: int
    offset: int
    state: TrainState


@runtime_checkable
class Observer(Protocol):
    """Someone who is told of every chunk, and may end the run."""

    def resume(self, template: Callable[[int], TrainState]) -> Moment | None:
        """Where to go on from; None to begin. `template` gives a state of the kind that a stage has."""
        ...

    def compiled(self, stage: str, steps: int) -> None:
        """A stage is about to run, for `steps` steps at the most."""
        ...

    def observe(self, record: Record, moment: Moment) -> str | None:
        """A chunk has ended. A reason to stop, if there is one."""
        ...


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

    def save(self, path: Any) -> None:
        """Writes the model to a file that `node_fit.load` reads."""
        from .model_file import save

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
    with scope(precision):
        place = find_device(device)
        dtype = dtype_of(precision)
        init_key, train_key = jax.random.split(jax.random.key(seed))
        solver = solver or Solver()
        model = NeuralODE(
            field=make_field(field, train, init_key),
            scaler=Scaler.from_dataset(train, log=log, identity=not scale),
            solver=numbers_as_arrays(evaluation or replace_tolerances(solver, TIGHT[precision])),
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
            stages = make_stages(recipe, main, ridge, train)
        else:
            stages = tuple(recipe)
        training = Training(
            model, stages, train, validation, train_key, dtype, place,
            freeze=freeze, chunk_steps=chunk_steps, patience=patience, scan=scan,
        )  # fmt: skip
        return training.run(observer or Silent())


def make_field(field: MakeField | VectorField, data: Dataset, key: jax.Array) -> VectorField:
    if isinstance(field, eqx.Module):
        return cast(VectorField, field)
    return cast(MakeField, field)(len(data.states), len(data.inputs), key=key)


def replace_tolerances(solver: Solver, tolerance: float) -> Solver:
    return eqx.tree_at(lambda s: (s.rtol, s.atol), solver, (tolerance, tolerance / 100))


def make_stages(recipe: str, main: Stage, ridge: float, train: Dataset) -> tuple[Stage, ...]:
    """The stages of a recipe by name.

    **Raises:** `ValueError` if the name is unknown.
    """
    if recipe not in ("default", "direct"):
        raise ValueError(f"recipe must be default or direct, got {recipe!r}.")
    enough = (train.mask.sum(axis=1) >= FEWEST).all(axis=1).any()
    if recipe == "direct" or not enough:
        return (main,)
    return (Stage(DerivativeMatching(ridge=ridge), LBFGS(), 300, "derivative"), main)


class Silent:
    """An observer that says nothing."""

    def resume(self, template: Callable[[int], TrainState]) -> Moment | None:
        return None

    def compiled(self, stage: str, steps: int) -> None:
        return None

    def observe(self, record: Record, moment: Moment) -> str | None:
        return None


class Training:
    """A fit under way: what is constant over its stages."""

    def __init__(self, model, stages, train, validation, key, dtype, device, *, freeze, chunk_steps, patience, scan):
        self.stages: tuple[Stage, ...] = stages
        self.train: Dataset = train
        self.key = key
        self.dtype = dtype
        self.device = device
        self.chunk_steps: int = chunk_steps
        self.patience: int = patience
        self.scan = scan
        self.model: NeuralODE = self.place(model)
        self.parts = parameters.partition(self.model, trainable(model), freeze)
        self.validation = None if validation is None else self.place(Batch.from_dataset(validation, model.scaler))
        self.compilations = Compilations()
        self.compile_seconds = 0.0
        self.history: list[Record] = []
        self.began = time.perf_counter()

    def place(self, tree: PyTree) -> PyTree:
        return carry(tree, self.dtype, self.device)

    def run(self, observer: Observer) -> Fit:
        def template(index: int) -> TrainState:
            return self.begin(index, self.parts.params)

        moment = observer.resume(template) or Moment(0, 0, template(0))
        status, reason = "completed", ""
        while True:
            status, reason, moment = self.run_stage(moment, observer)
            if status in ("interrupted", "failed") or moment.stage == len(self.stages) - 1:
                break
            moment = self.next_stage(moment)
        elapsed = time.perf_counter() - self.began
        return Fit(
            model=eqx.combine(moment.state.best.params, self.parts.frozen, self.parts.static),
            status=status,
            reason=reason,
            history=self.history,
            steps=moment.offset + int(moment.state.step),
            parameters=parameters.count(self.parts.params),
            compiles=self.compilations.count,
            compile_seconds=self.compile_seconds,
            train_seconds=elapsed - self.compile_seconds,
        )

    def begin(self, index: int, params: PyTree) -> TrainState:
        return self.place(begin(self.stages[index], params, jax.random.fold_in(self.key, index)))

    def next_stage(self, moment: Moment) -> Moment:
        """The beginning of the next stage, from the best parameters of this one."""
        best = moment.state.best
        state = self.begin(moment.stage + 1, best.params)
        if self.validation is not None:
            # Validation losses compare across stages, training losses of other objectives do not.
            state = eqx.tree_at(lambda s: s.best, state, self.place(best))
        return Moment(moment.stage + 1, moment.offset + int(moment.state.step), state)

    def run_stage(self, moment: Moment, observer: Observer) -> tuple[Status, str, Moment]:
        stage = self.stages[moment.stage]
        advance, judge = self.compile(stage, moment.state)
        observer.compiled(stage.name, stage.steps)
        state, offset = moment.state, moment.offset
        while True:
            over, reason = self.is_over(stage, state)
            if over:
                return ("completed" if int(state.step) >= stage.steps else "stopped_early"), reason, moment
            with counted(self.compilations):
                new, rate = advance(state)
            state, record = self.judge(stage, state, new, float(rate), judge(new.chosen.params), offset)
            moment = Moment(moment.stage, offset, state)
            self.history.append(record)
            stop = observer.observe(record, moment)
            if not np.isfinite(float(state.best.loss)) and not np.isfinite(record.train_loss):
                return "failed", self.why_nothing_is_finite(record), moment
            if stop is not None:
                return "interrupted", stop, moment

    def compile(self, stage: Stage, state: TrainState):
        """The stage's compiled chunk, and the compiled judge of its iterates."""
        began = time.perf_counter()
        numbers, stage_static = eqx.partition(numbers_as_arrays(stage), eqx.is_array_like)
        fixed = Fixed(
            self.parts.frozen, self.place(numbers), self.place(stage.objective.prepare(self.train, self.model))
        )
        static = (self.parts.static, stage_static, self.chunk_steps, self.scan)
        program = PROGRAMS.get(chunk, static, (state, fixed), self.compilations, lambda out: check_carry(state, out[0]))
        if self.validation is None:
            judge = lambda params: None  # noqa: E731
        else:
            arguments = (state.params, self.parts.frozen, self.validation)
            validate = PROGRAMS.get(validation_loss, self.parts.static, arguments, Compilations())
            judge = lambda params: float(validate(params, *arguments[1:]))  # noqa: E731
        self.compile_seconds += time.perf_counter() - began
        return (lambda s: program(s, fixed)), judge

    def judge(
        self, stage: Stage, old: TrainState, new: TrainState, rate: float, validation: float | None, offset: int
    ) -> tuple[TrainState, Record]:
        """The state after a chunk with its best iterate and counters brought up to date, and the chunk's record."""
        loss = float(new.chosen.loss)
        judged = loss if validation is None else validation
        better = judged < float(old.best.loss)
        falls = loss < (1 - PROGRESS) * float(old.mark)
        chosen = eqx.tree_at(lambda i: i.loss, new.chosen, jnp.asarray(judged, self.dtype))
        changes = {
            "best": chosen if better else old.best,
            "stale": jnp.int32(0 if better else int(old.stale) + 1),
            "mark": new.chosen.loss if falls else old.mark,
            "plateau": jnp.int32(0 if falls else int(old.plateau) + 1),
        }
        state = replace(new, **changes)
        record = Record(
            step=offset + int(new.step),
            stage=stage.name,
            train_loss=loss,
            validation_loss=validation,
            gradient_norm=float(new.chosen.gradient_norm),
            learning_rate=rate,
            evaluations=int(new.evaluations) - int(old.evaluations),
            failed_solves=int(new.failed) - int(old.failed),
            seconds=time.perf_counter() - self.began,
        )
        return self.place(state), record

    def is_over(self, stage: Stage, state: TrainState) -> tuple[bool, str]:
        if int(state.step) >= stage.steps:
            return True, f"took all {stage.steps} steps"
        if bool(state.done):
            return True, "the line search finds no lower training loss, not even along the gradient"
        if self.validation is not None and int(state.stale) >= self.patience:
            return True, f"the validation loss has not improved for {self.patience} chunks"
        if stage.optimizer.full_batch and int(state.plateau) >= PLATEAU:
            return True, f"the training loss has stalled: less than {PROGRESS:.1%} lower in {PLATEAU} chunks"
        return False, ""

    def why_nothing_is_finite(self, record: Record) -> str:
        return (
            f"no loss was finite in the first {record.evaluations} evaluations ({record.failed_solves} failed solves); "
            "check the scale of the data, loosen the tolerances, or choose an implicit solver for a stiff system"
        )


def trainable(model: NeuralODE) -> PyTree:
    """A tree like `model` that is True on the field's floating arrays and False elsewhere."""
    nothing = jax.tree.map(lambda _: False, model)
    return eqx.tree_at(lambda m: m.field, nothing, jax.tree.map(eqx.is_inexact_array, model.field))


def validation_loss(static: PyTree, params: PyTree, frozen: PyTree, batch: Batch):
    """Mean squared residual of simulated trajectories in scaled units; infinite if a solve fails."""
    model: NeuralODE = eqx.combine(params, frozen, static)
    solution = model.simulate(batch, model.solver, joint=batch.joint)
    loss = masked_mean((solution.ys - batch.ys) ** 2, batch.mask)
    return jnp.where(jnp.isfinite(loss), loss, jnp.inf)
