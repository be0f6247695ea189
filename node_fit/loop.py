"""The host's side of training: stage after stage, chunk after chunk, with a look at each chunk's end."""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from . import parameters
from .batch import Batch
from .compilation import PROGRAMS, Compilations, counted
from .dataset import Dataset
from .ending import ADVICE, NOTHING_SOLVED, Counters, End, end_of, grows
from .goal import Unknowns
from .judging import judge, validation_loss
from .members import Crew, Member, kind_of
from .model import NeuralODE
from .observer import Moment, Observer, Record, Template
from .placement import Placement
from .processes import agreed, is_first, of_first, to_host
from .stage import Stage
from .steps import astray, settled
from .supply import Supply
from .training import HOPELESS, RESTARTS, Scan, TrainState, begin, check_carry, chunk, restart

LOG = logging.getLogger(__name__)

# An objective that grows is grown after this share of its stage's steps.
GROWTH = 0.7
# Validation trajectories that are solved at a chunk's end, at the most.
JUDGED = 4096


class Loop:
    """A run of one or more members under way.

    **Arguments:**

    - `members`: what is fitted; they differ in arrays and numbers alone.
    - `train`, `validation`: what they are fitted to, and what iterates are judged on, if there is any.
    - `place`: where arrays are.
    - `freeze`, `chunk_steps`, `patience`, `scan`: see `fit`.

    **Raises:** `ValueError` if the members can't share their programs.
    """

    def __init__(
        self,
        members: Sequence[Member],
        train: Dataset,
        validation: Dataset | None,
        place: Placement,
        *,
        freeze: Sequence[str],
        chunk_steps: int,
        patience: int,
        scan: Scan,
    ):
        check_alike(members)
        self.members = members
        self.crew = Crew(len(members))
        self.stages = members[0].stages
        self.train = train
        self.place = place.among(spreadable(members, train))
        self.validation = (
            None
            if validation is None
            else self.place(Batch.from_dataset(validation.sample(JUDGED), members[0].model.scaler))
        )
        self.chunk_steps = chunk_steps
        self.patience = None if validation is None else patience
        self.scan = scan
        self.parts = [parameters.partition(member.model, freeze) for member in members]
        self.static = self.parts[0].static
        self.compilations = Compilations()
        self.compile_seconds = 0.0
        self.history: list[Record] = []
        self.supplies: dict[int, Supply] = {}
        self.began = time.perf_counter()

    def run(self, observer: Observer) -> tuple[list[End], Moment]:
        """All stages, from the beginning or from where `observer` says: how each member ended, and where."""
        initial = [parts.params for parts in self.parts]

        def template(index: int, nodes: int) -> TrainState:
            state = self.state(index, initial)
            return state if state.grid is None else replace(state, grid=state.grid[..., :1].repeat(nodes, axis=-1))

        moment = shared(observer.resume(template), template)
        moment = moment or Moment(0, 0, self.settled(0, self.state(0, initial), fresh=True))
        while True:
            ends, moment = self.run_stage(moment, observer)
            statuses = {end.status for end in ends}
            if moment.stage == len(self.stages) - 1 or "interrupted" in statuses or statuses == {"failed"}:
                return ends, moment
            moment = self.next_stage(moment, ends)

    def fitted(self, moment: Moment, member: int = 0) -> NeuralODE:
        """A member's model with its best parameters."""
        best = self.crew.of(moment.state.best.params.model, member)
        return self.place.one(eqx.combine(best, self.parts[member].frozen, self.static))

    def placed(self, state: TrainState) -> TrainState:
        """The state with its arrays where they belong: members spread, or the steps of their trajectories."""
        if self.crew.size > 1:
            return self.place.spread(state)
        return replace(self.place(replace(state, grid=None)), grid=self.place.spread(state.grid))

    def state(self, index: int, params: Sequence[PyTree]) -> TrainState:
        """The state before a stage, on the host, from models' parameters, with a grid that is not settled."""
        supply, states = self.supply(index), []
        for member, given, parts, rows, grid in zip(
            self.members, params, self.parts, supply.rows, supply.grids, strict=True
        ):
            stage, model = member.stages[index], eqx.combine(given, parts.frozen, parts.static)
            states.append(begin(stage, Unknowns(given, self.place(stage.objective.own(model, rows))), grid))
        return self.place.host(self.crew.stack(states))

    def supply(self, index: int) -> Supply:
        """What a stage's programs are given, made once."""
        if index not in self.supplies:
            self.supplies[index] = Supply.of(index, self.members, self.parts, self.train, self.place)
        return self.supplies[index]

    def settled(self, index: int, state: TrainState, *, fresh: bool = False) -> TrainState:
        """The state with steps that keep to the tolerance for its chosen parameters; if `fresh`, for its first."""
        return settled(self.supply(index), self.stages[index], self.static, state, fresh)

    def next_stage(self, moment: Moment, ends: Sequence[End]) -> Moment:
        """The beginning of the next stage, from the best parameters of this one."""
        best, index = moment.state.best, moment.stage + 1
        state = self.state(index, [self.crew.of(best.params.model, member) for member in range(self.crew.size)])
        state = self.waiting(state, [end.status == "failed" for end in ends])
        state = self.settled(index, state, fresh=True)
        if self.validation is not None:
            # Validation losses compare across stages, training losses of other objectives do not.
            carried = replace(best, params=Unknowns(best.params.model, state.params.own))
            state = replace(state, best=carried)
        return Moment(index, moment.step, state)

    def run_stage(self, moment: Moment, observer: Observer) -> tuple[list[End], Moment]:
        stage = self.stages[moment.stage]
        observer.compile_stage(stage.name, stage.steps)
        nodes, (advance, validate) = moment.nodes, self.compile(moment)
        observer.begin_stage(stage.name)
        while True:
            ends = self.ends(moment)
            found = [end for end in ends if end is not None]
            if len(found) == len(ends):
                return found, moment
            if moment.nodes != nodes:
                nodes, (advance, validate) = moment.nodes, self.compile(moment)
            before = self.waiting(moment.state, [end is not None for end in ends])
            with counted(self.compilations):
                new, rate = advance(self.placed(before), self.drawn(moment))
            results = to_host((new, rate, validate(new.chosen.params.model)))
            seconds = time.perf_counter() - self.began
            state, records = judge(self.crew, stage.name, seconds, replace(moment, state=before), *results)
            moment = replace(moment, state=self.renewed(moment.stage, state))
            self.history.extend(records)
            stop = observer.observe(records, moment)
            if agreed(stop is not None):
                stop = stop or "by another process of the run"
            ends = self.ends(moment)
            if not before.step.any():
                self.warn_of_nothing(moment, ends)
            if stop is not None and any(end is None or end.status != "failed" for end in ends):
                return [end if end and end.status == "failed" else End("interrupted", stop) for end in ends], moment

    def ends(self, moment: Moment) -> list[End | None]:
        """How the stage has ended for each member; None while it goes on."""
        at, stage = Counters.of(moment.state), self.stages[moment.stage]
        count = self.supply(moment.stage).blocks
        each = (Counters(*(np.reshape(x, -1)[member] for x in at)) for member in range(self.crew.size))
        return [end_of(stage, one, count, self.patience) for one in each]

    def waiting(self, state: TrainState, flags: Sequence[bool]) -> TrainState:
        """The state in which these members wait for the others."""
        over = np.reshape(flags, self.crew.shape)
        return replace(state, over=over)

    def warn_of_nothing(self, moment: Moment, ends: Sequence[End | None]) -> None:
        """Says so if a stage has begun, and goes on, without a trajectory that can be solved."""
        at = Counters.of(moment.state)
        if not self.solvable(moment.state, moment.stage).any() and any(end is None for end in ends):
            LOG.warning("%s in the first %d evaluations; %s", NOTHING_SOLVED, at.evaluations.max(), ADVICE)

    def solvable(self, state: TrainState, index: int, which: Sequence[str] = ("best", "chosen")) -> np.ndarray:
        """Whether one of these iterates of a member is one from which there is a way."""
        count, found = self.supply(index).blocks, np.zeros(self.crew.shape, bool)
        for name in which:
            iterate = getattr(state, name)
            found = found | (np.isfinite(iterate.loss) & (iterate.unsolved < count))
        return np.asarray(found)

    def renewed(self, index: int, state: TrainState) -> TrainState:
        """The state after a chunk's end, where the objective may grow and steps that became too long are made anew."""
        stage = self.stages[index]
        state = self.restarted(index, state)
        lowest = self.lowest(stage, state)
        new = self.settled(index, lowest)
        old = state.progress
        progress = np.minimum(old + self.chunk_of(stage) / (GROWTH * stage.steps), 1.0).astype(old.dtype)
        if grows(stage) and (progress > old).any():
            zero = np.zeros(self.crew.shape, np.int32)
            new = replace(
                new, progress=progress, mark=np.full_like(old, np.inf), plateau=zero, stale=zero, done=zero.astype(bool)
            )
        if new is lowest:
            return state
        # What the optimizer remembers of the last objective's values would mislead it, and us.
        mark = np.where(astray(lowest), new.mark, np.inf).astype(old.dtype)
        new = replace(new, params=new.chosen.params, mark=mark, opt_state=stage.optimizer.reopen(new.opt_state))
        if self.validation is None:
            new = replace(new, best=replace(new.chosen, loss=np.full_like(old, np.inf)))
        waits = state.over
        return self.place.host(self.crew.choose(waits, replace(state, grid=new.grid), new))

    def lowest(self, stage: Stage, state: TrainState) -> TrainState:
        """The state in which the stage's best iterate is the chosen one, where the training loss judges both: an
        objective that changes makes the loss of the best worthless, and it would be lost."""
        if self.validation is not None or stage.batch_size is not None:
            return state
        best = state.best.loss < state.chosen.loss
        return replace(state, chosen=self.crew.choose(best, state.best, state.chosen)) if best.any() else state

    def restarted(self, index: int, state: TrainState) -> TrainState:
        """The state after a chunk's end, from the best iterate with smaller steps if nothing was learnt any more."""
        spent = state.over | (state.restarts >= RESTARTS)
        again = (state.rejected >= HOPELESS) & ~spent & self.solvable(state, index)
        if not again.any():
            return state
        anchor = self.crew.choose(self.solvable(state, index, ["best"]), state.best, state.chosen)
        afresh = self.crew.map(functools.partial(restart, self.stages[index]))(state, anchor)
        return self.place.host(self.crew.choose(again, afresh, state))

    def compile(self, moment: Moment) -> tuple[Callable, Callable[[PyTree], Any]]:
        """The stage's compiled chunk, and what gives the validation loss of a model's parameters."""
        began = time.perf_counter()
        state, supply, stage = self.placed(moment.state), self.supply(moment.stage), self.stages[moment.stage]
        static = (self.static, eqx.partition(stage, eqx.is_array_like)[1], self.chunk_of(stage), self.scan)
        given = (supply.own, supply.shared)
        check = functools.partial(check_chunk, state)
        axes = self.crew.axes(True, True, False, True)
        advance = PROGRAMS.get(chunk, static, (state, *given, self.drawn(moment)), self.compilations, check, axes)
        rest = (supply.own.frozen, supply.shared.frozen, self.validation)
        validate = None
        if self.validation is not None:
            axes = self.crew.axes(True, True, False, False)
            arguments = (state.params.model, *rest)
            validate = PROGRAMS.get(validation_loss, self.static, arguments, Compilations(), axes=axes)
        self.compile_seconds += time.perf_counter() - began
        return (
            lambda state, drawn: advance(state, *given, drawn),
            lambda params: None if validate is None else validate(params, *rest),
        )

    def drawn(self, moment: Moment) -> PyTree:
        """The minibatches of the chunk that comes next."""
        steps = self.crew.each(moment.state.step)
        return self.supply(moment.stage).drawn(steps, self.chunk_of(self.stages[moment.stage]))

    def chunk_of(self, stage: Stage) -> int:
        """Steps in a chunk: fewer if each is dear."""
        return max(self.chunk_steps // stage.optimizer.pace, 1)


def check_alike(members: Sequence[Member]) -> None:
    """Refuses members that would need programs of their own."""
    kinds = {kind_of(member) for member in members}
    if len(kinds) != 1:
        raise ValueError("members of one run must have the same model and stages, but for arrays and numbers.")


def shared(moment: Moment | None, template: Template) -> Moment | None:
    """The moment that the first of several processes goes on from, in all of them."""
    if jax.process_count() == 1:
        return moment
    told = np.array([-1, 0, 0] if moment is None else [moment.stage, moment.offset, moment.nodes])
    stage, offset, nodes = of_first(told).tolist()
    if stage < 0:
        return None
    state = moment.state if moment is not None and is_first() else template(stage, nodes)
    return Moment(stage, offset, of_first(state))


def spreadable(members: Sequence[Member], train: Dataset) -> int:
    """How long the axis is along which arrays are spread over devices."""
    if len(members) > 1:
        return len(members)
    return members[0].stages[-1].batch_size or len(train.trajectories)


def check_chunk(state: TrainState, out: tuple[TrainState, Any]) -> None:
    check_carry(state, out[0])
