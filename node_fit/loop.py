"""The host's side of training: stage after stage, chunk after chunk, with a look at each chunk's end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from . import parameters
from .batch import Batch
from .compilation import PROGRAMS, Compilations, counted
from .dataset import Dataset
from .model import NeuralODE
from .objectives.objective import masked_mean
from .precision import numbers_as_arrays
from .training import Fixed, Scan, Stage, TrainState, begin, check_carry, chunk

Status = Literal["completed", "stopped_early", "interrupted", "failed"]
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

    @property
    def step(self) -> int:
        """Steps taken over all stages."""
        return self.offset + int(self.state.step)


@runtime_checkable
class Observer(Protocol):
    """Someone who is told of every chunk, and may end the run."""

    def begin(self, model: NeuralODE, notes: Sequence[str]) -> None:
        """The model has its initial parameters, and nothing is compiled yet. `notes` say what the recipe left out."""
        ...

    def resume(self, template: Callable[[int], TrainState]) -> Moment | None:
        """Where to go on from; None to begin. `template` gives a state of the kind that a stage has."""
        ...

    def compile_stage(self, stage: str, steps: int) -> None:
        """A stage of `steps` steps at the most is about to be compiled."""
        ...

    def begin_stage(self, stage: str) -> None:
        """The stage is compiled and about to run."""
        ...

    def observe(self, record: Record, moment: Moment) -> str | None:
        """A chunk has ended. A reason to stop, if there is one."""
        ...


class Silent(Observer):
    """An observer that says nothing."""

    def begin(self, model: NeuralODE, notes: Sequence[str]) -> None:
        return None

    def resume(self, template: Callable[[int], TrainState]) -> Moment | None:
        return None

    def compile_stage(self, stage: str, steps: int) -> None:
        return None

    def begin_stage(self, stage: str) -> None:
        return None

    def observe(self, record: Record, moment: Moment) -> str | None:
        return None


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `status`, the `reason` in a sentence, and where it was."""

    status: Status
    reason: str
    moment: Moment


class Loop:
    """A run under way.

    **Arguments:**

    - `model`: with its initial parameters, placed.
    - `stages`: what is done to it, in this order.
    - `train`, `validation`: what is fitted, and what iterates are judged on, if there is any.
    - `place`: makes a tree's arrays leaves of this run's state.
    - `key`: for minibatches.
    - `freeze`, `chunk_steps`, `patience`, `scan`: see `fit`.
    """

    def __init__(
        self,
        model: NeuralODE,
        stages: Sequence[Stage],
        train: Dataset,
        validation: Dataset | None,
        place: Callable[[PyTree], PyTree],
        key: PRNGKeyArray,
        *,
        freeze: Sequence[str],
        chunk_steps: int,
        patience: int,
        scan: Scan,
    ):
        self.model = model
        self.stages = stages
        self.train = train
        self.validation = None if validation is None else place(Batch.from_dataset(validation, model.scaler))
        self.place = place
        self.key = key
        self.chunk_steps = chunk_steps
        self.patience = patience
        self.scan = scan
        self.parts = parameters.partition(model, freeze)
        self.compilations = Compilations()
        self.compile_seconds = 0.0
        self.history: list[Record] = []
        self.began = time.perf_counter()

    def run(self, observer: Observer) -> Outcome:
        """All stages, from the beginning or from where `observer` says."""

        def template(index: int) -> TrainState:
            return self.begin(index, self.parts.params)

        moment = observer.resume(template) or Moment(0, 0, template(0))
        while True:
            outcome = self.run_stage(moment, observer)
            if outcome.status in ("interrupted", "failed") or outcome.moment.stage == len(self.stages) - 1:
                return outcome
            moment = self.next_stage(outcome.moment)

    def begin(self, index: int, params: PyTree) -> TrainState:
        return self.place(begin(self.stages[index], params, jax.random.fold_in(self.key, index)))

    def next_stage(self, moment: Moment) -> Moment:
        """The beginning of the next stage, from the best parameters of this one."""
        best = moment.state.best
        state = self.begin(moment.stage + 1, best.params)
        if self.validation is not None:
            # Validation losses compare across stages, training losses of other objectives do not.
            state = replace(state, best=self.place(best))
        return Moment(moment.stage + 1, moment.step, state)

    def run_stage(self, moment: Moment, observer: Observer) -> Outcome:
        stage = self.stages[moment.stage]
        observer.compile_stage(stage.name, stage.steps)
        advance, validate = self.compile(stage, moment.state)
        observer.begin_stage(stage.name)
        while True:
            over, reason = self.is_over(stage, moment.state)
            if over:
                status = "completed" if int(moment.state.step) >= stage.steps else "stopped_early"
                return Outcome(status, reason, moment)
            with counted(self.compilations):
                new, rate = advance(moment.state)
            state, record = self.judge(stage, moment, new, float(rate), validate(new.chosen.params))
            moment = replace(moment, state=state)
            self.history.append(record)
            stop = observer.observe(record, moment)
            if not np.isfinite(float(state.best.loss)) and not np.isfinite(record.train_loss):
                return Outcome("failed", why_nothing_is_finite(record), moment)
            if stop is not None:
                return Outcome("interrupted", stop, moment)

    def compile(self, stage: Stage, state: TrainState) -> tuple[Callable, Callable[[PyTree], float | None]]:
        """The stage's compiled chunk, and what gives the validation loss of parameters."""
        began = time.perf_counter()
        numbers, stage_static = eqx.partition(numbers_as_arrays(stage), eqx.is_array_like)
        batch = stage.objective.prepare(self.train, self.model)
        fixed = Fixed(self.parts.frozen, self.place(numbers), self.place(batch))
        static = (self.parts.static, stage_static, self.chunk_steps, self.scan)
        advance = PROGRAMS.get(chunk, static, (state, fixed), self.compilations, lambda out: check_carry(state, out[0]))
        validate = None
        if self.validation is not None:
            arguments = (state.params, self.parts.frozen, self.validation)
            validate = PROGRAMS.get(validation_loss, self.parts.static, arguments, Compilations())
        self.compile_seconds += time.perf_counter() - began
        return (
            lambda state: advance(state, fixed),
            lambda params: None if validate is None else float(validate(params, self.parts.frozen, self.validation)),
        )

    def judge(
        self, stage: Stage, moment: Moment, new: TrainState, rate: float, validation: float | None
    ) -> tuple[TrainState, Record]:
        """The state after a chunk with its best iterate and counters brought up to date, and the chunk's record."""
        old = moment.state
        loss = float(new.chosen.loss)
        judged = loss if validation is None else validation
        better = judged < float(old.best.loss)
        falls = loss < (1 - PROGRESS) * float(old.mark)
        chosen = replace(new.chosen, loss=jnp.asarray(judged, new.chosen.loss.dtype))
        state = replace(
            new,
            best=chosen if better else old.best,
            stale=jnp.int32(0 if better else int(old.stale) + 1),
            mark=new.chosen.loss if falls else old.mark,
            plateau=jnp.int32(0 if falls else int(old.plateau) + 1),
        )
        record = Record(
            step=moment.offset + int(new.step),
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
        """Whether a stage has ended, and why."""
        if int(state.step) >= stage.steps:
            return True, f"took all {stage.steps} steps of stage {stage.name}"
        if bool(state.done):
            return True, "the line search finds no lower training loss, not even along the gradient"
        if self.validation is not None and int(state.stale) >= self.patience:
            return True, f"the validation loss has not improved for {self.patience} chunks"
        if stage.optimizer.full_batch and int(state.plateau) >= PLATEAU:
            return True, f"the training loss has stalled: less than {PROGRESS:.1%} lower in {PLATEAU} chunks"
        return False, ""


def why_nothing_is_finite(record: Record) -> str:
    return (
        f"no loss was finite in the first {record.evaluations} evaluations ({record.failed_solves} failed solves); "
        "check the scale of the data, loosen the tolerances, or choose an implicit solver for a stiff system"
    )


def validation_loss(static: PyTree, params: PyTree, frozen: PyTree, batch: Batch):
    """Mean squared residual of simulated trajectories in scaled units; infinite if a solve fails."""
    model: NeuralODE = eqx.combine(params, frozen, static)
    solution = model.forecast(batch, joint=batch.joint)
    loss = masked_mean((solution.ys - batch.ys) ** 2, batch.mask)
    return jnp.where(jnp.isfinite(loss), loss, jnp.inf)
