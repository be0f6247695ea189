"""The host's side of training: stage after stage, chunk after chunk, with a look at each chunk's end."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from . import grid as grids
from . import parameters
from .batch import Batch
from .compilation import PROGRAMS, Compilations, counted
from .dataset import Dataset
from .goal import Unknowns
from .model import NeuralODE
from .objectives import AbstractSimulation
from .objectives.objective import masked_mean
from .observer import Moment, Observer, Record, Status
from .precision import numbers_as_arrays
from .training import (
    HOPELESS,
    RESTARTS,
    Fixed,
    Iterate,
    Scan,
    Stage,
    TrainState,
    begin,
    blocks,
    check_carry,
    chunk,
    restart,
    says_nothing,
    step_errors,
)

LOG = logging.getLogger(__name__)

# Progress that counts: the training loss falls by this fraction ...
PROGRESS = 1e-3
# ... within so many chunks.
PLATEAU = 5
NOTHING_SOLVED = "not one trajectory could be simulated to its end"
ADVICE = "check the scale of the data, loosen the tolerances, or choose an implicit solver for a stiff system"
# An objective that grows is grown after this share of its stage's steps.
GROWTH = 0.7


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
        self.prepared: dict[int, Fixed] = {}
        self.began = time.perf_counter()

    def run(self, observer: Observer) -> Outcome:
        """All stages, from the beginning or from where `observer` says."""

        def template(index: int, nodes: int) -> TrainState:
            state = self.state(index, self.parts.params)
            return state if state.grid is None else replace(state, grid=state.grid[:, :1].repeat(nodes, axis=1))

        moment = observer.resume(template)
        moment = moment or Moment(0, 0, self.settled(0, self.state(0, self.parts.params), fresh=True))
        while True:
            outcome = self.run_stage(moment, observer)
            if outcome.status in ("interrupted", "failed") or outcome.moment.stage == len(self.stages) - 1:
                return outcome
            moment = self.next_stage(outcome.moment)

    def fitted(self, outcome: Outcome) -> NeuralODE:
        """The model with its best parameters."""
        return eqx.combine(outcome.moment.state.best.params.model, self.parts.frozen, self.parts.static)

    def state(self, index: int, params: PyTree) -> TrainState:
        """The state before a stage, from a model's parameters, with a grid that is not settled."""
        objective, batch = self.stages[index].objective, self.fixed(index).batch
        unknowns = Unknowns(params, self.place(objective.own(eqx.combine(*self.parts), batch)))
        key = jax.random.fold_in(self.key, index)
        grid = objective.first_grid(batch) if isinstance(objective, AbstractSimulation) else None
        return self.place(begin(self.stages[index], unknowns, grid, key))

    def settled(self, index: int, state: TrainState, *, fresh: bool = False) -> TrainState:
        """The state with a grid that keeps to the tolerance for its chosen parameters; if `fresh`, for its first."""
        objective, fixed = self.stages[index].objective, self.fixed(index)
        if not isinstance(objective, AbstractSimulation) or objective.error_order is None:
            return state
        params = state.params if fresh else state.chosen.params
        static = (self.parts.static, eqx.partition(self.stages[index], eqx.is_array_like)[1])

        def errors_of(nodes: np.ndarray) -> np.ndarray:
            steps = nodes.shape[1] - 1
            room = grids.padded(nodes, grids.room(steps))
            arguments = (params, self.place(room), state.progress, fixed)
            return np.asarray(PROGRAMS.get(step_errors, static, arguments, Compilations())(*arguments))[:, :steps]

        before = np.asarray(state.grid)
        after = grids.settle(errors_of, before, objective.error_order, objective.solver.max_steps)
        return state if after is before else self.place(replace(state, grid=after))

    def fixed(self, index: int) -> Fixed:
        """The arrays that a stage's programs are given."""
        if index not in self.prepared:
            stage = self.stages[index]
            numbers = eqx.partition(numbers_as_arrays(stage), eqx.is_array_like)[0]
            batch = stage.objective.prepare(self.train, self.model)
            self.prepared[index] = Fixed(self.parts.frozen, self.place(numbers), self.place(batch))
        return self.prepared[index]

    def next_stage(self, moment: Moment) -> Moment:
        """The beginning of the next stage, from the best parameters of this one."""
        best, index = moment.state.best, moment.stage + 1
        state = self.settled(index, self.state(index, best.params.model), fresh=True)
        if self.validation is not None:
            # Validation losses compare across stages, training losses of other objectives do not.
            carried = replace(best, params=Unknowns(best.params.model, state.params.own))
            state = replace(state, best=self.place(carried))
        return Moment(index, moment.step, state)

    def run_stage(self, moment: Moment, observer: Observer) -> Outcome:
        stage = self.stages[moment.stage]
        observer.compile_stage(stage.name, stage.steps)
        advance, validate = self.compile(moment)
        observer.begin_stage(stage.name)
        while True:
            over, reason = self.is_over(stage, moment.state)
            if over:
                if self.is_unsolved(moment):
                    return Outcome("failed", f"{NOTHING_SOLVED}; {ADVICE}", moment)
                status = "completed" if int(moment.state.step) >= stage.steps else "stopped_early"
                return Outcome(status, reason, moment)
            with counted(self.compilations):
                new, rate = advance(moment.state)
            state, record = self.judge(stage, moment, new, float(rate), validate(new.chosen.params.model))
            first = int(moment.state.step) == 0
            renewed = self.renewed(moment.stage, state)
            nodes, moment = moment.nodes, replace(moment, state=renewed)
            self.history.append(record)
            stop = observer.observe(record, moment)
            if not np.isfinite(float(state.best.loss)) and not np.isfinite(record.train_loss):
                return Outcome("failed", why_nothing_is_finite(record), moment)
            if first and self.is_unsolved(moment) and not self.is_over(stage, moment.state)[0]:
                LOG.warning("%s in the first %d evaluations; %s", NOTHING_SOLVED, record.evaluations, ADVICE)
            if stop is not None:
                return Outcome("interrupted", stop, moment)
            if moment.nodes != nodes:
                advance, validate = self.compile(moment)

    def renewed(self, index: int, state: TrainState) -> TrainState:
        """The state after a chunk's end, where the objective may grow and steps that became too long are made anew."""
        stage = self.stages[index]
        state = self.restarted(index, state)
        new = self.settled(index, state)
        progress = min(float(state.progress) + self.chunk_of(stage) / (GROWTH * stage.steps), 1.0)
        if grows(stage) and progress > float(state.progress):
            infinite = jnp.full_like(new.best.loss, jnp.inf)
            new = replace(
                new,
                progress=jnp.asarray(progress, state.progress.dtype),
                mark=infinite,
                plateau=jnp.int32(0),
                stale=jnp.int32(0),
                done=jnp.zeros((), bool),
            )
        if new is not state:
            # What the optimizer remembers of the last objective's values would mislead it, and us.
            new = replace(new, params=new.chosen.params, opt_state=stage.optimizer.reopen(new.opt_state))
            if self.validation is None:
                new = replace(new, best=replace(new.chosen, loss=jnp.full_like(new.best.loss, jnp.inf)))
        return self.place(new)

    def restarted(self, index: int, state: TrainState) -> TrainState:
        """The state after a chunk's end, from the best iterate with smaller steps if nothing was learnt any more."""
        anchor = self.anchor(index, state)
        if int(state.rejected) < HOPELESS or int(state.restarts) >= RESTARTS or anchor is None:
            return state
        chosen = replace(anchor, loss=state.chosen.loss)
        return self.place(replace(restart(self.stages[index], state, anchor), chosen=chosen))

    def anchor(self, index: int, state: TrainState) -> Iterate | None:
        """The best iterate from which there is a way, if there is one."""
        count = blocks(self.fixed(index))
        return next((each for each in (state.best, state.chosen) if not says_nothing(each, count)), None)

    def is_unsolved(self, moment: Moment) -> bool:
        """Whether not one trajectory could be solved so far."""
        return self.anchor(moment.stage, moment.state) is None

    def compile(self, moment: Moment) -> tuple[Callable, Callable[[PyTree], float | None]]:
        """The stage's compiled chunk, and what gives the validation loss of a model's parameters."""
        began = time.perf_counter()
        state, fixed = moment.state, self.fixed(moment.stage)
        static = (
            self.parts.static,
            eqx.partition(self.stages[moment.stage], eqx.is_array_like)[1],
            self.chunk_of(self.stages[moment.stage]),
            self.scan,
        )
        advance = PROGRAMS.get(chunk, static, (state, fixed), self.compilations, lambda out: check_carry(state, out[0]))
        validate = None
        if self.validation is not None:
            arguments = (state.params.model, self.parts.frozen, self.validation)
            validate = PROGRAMS.get(validation_loss, self.parts.static, arguments, Compilations())
        self.compile_seconds += time.perf_counter() - began
        return (
            lambda state: advance(state, fixed),
            lambda params: None if validate is None else float(validate(params, self.parts.frozen, self.validation)),
        )

    def chunk_of(self, stage: Stage) -> int:
        """Steps in a chunk: fewer if each is dear."""
        return max(self.chunk_steps // stage.optimizer.pace, 1)

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
        grown = not grows(stage) or float(state.progress) >= 1
        if bool(state.done) and grown:
            return True, "the line search finds no lower training loss, not even along the gradient"
        if int(state.rejected) >= HOPELESS:
            return True, (
                f"{HOPELESS} evaluations in a row were not finite or solved nothing, and again after {RESTARTS} "
                "returns to the best iterate with smaller steps; lower the learning rate, or check the field for "
                "roots, logarithms and divisions"
            )
        if self.validation is not None and int(state.stale) >= self.patience:
            return True, f"the validation loss has not improved for {self.patience} chunks"
        if grown and stage.optimizer.full_batch and int(state.plateau) >= PLATEAU:
            return True, f"the training loss has stalled: less than {PROGRESS:.1%} lower in {PLATEAU} chunks"
        return False, ""


def grows(stage: Stage) -> bool:
    return isinstance(stage.objective, AbstractSimulation) and stage.objective.grows


def why_nothing_is_finite(record: Record) -> str:
    failed = record.failed_solves
    return f"no loss was finite in the first {record.evaluations} evaluations ({failed} failed solves); {ADVICE}"


def validation_loss(static: PyTree, params: PyTree, frozen: PyTree, batch: Batch):
    """Mean squared residual of simulated trajectories in scaled units; infinite if a solve fails."""
    model: NeuralODE = eqx.combine(params, frozen, static)
    solution = model.forecast(batch, joint=batch.joint)
    loss = masked_mean((solution.ys - batch.ys) ** 2, batch.mask)
    return jnp.where(jnp.isfinite(loss), loss, jnp.inf)
