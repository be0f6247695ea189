"""Trains problems: one fit, the members of an ensemble, or several fits, sharing compiled programs if possible."""

import functools
import itertools
import logging
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace

from ..model import parameters
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..training.callback import Callback, ModelOf, Record, RunState, Template
from ..training.decisions import Outcome
from ..training.loop import Loop
from ..training.step import TrainState
from ..training.task import Member, kind_of
from .optimum import bring_to_optimum
from .problem import FitProblem
from .result import Fit
from .selection import (
    Restarts,
    keeps_beginning,
    merge_outcomes,
    restarts_of,
    select_iterate,
    select_member,
    steps_to_best,
)

TRAIN_LOG = logging.getLogger(__name__)


def train(problems: Sequence[FitProblem], callbacks: Sequence[Callback], overview: Callback | None = None) -> list[Fit]:
    """Solves problems; those on the same data that differ only in seeds and numbers share one program.

    **Arguments:**

    - `problems`: from `build_problem`; an ensemble is a single problem and must be the only one.
    - `callbacks`: one for each problem, called for its members only. `overview`: called for all.

    **Returns:** a fit for each problem, in order. Each compilation is counted in one of them. Ctrl-C ends a single
    problem and returns its fit so far.
    """
    ledger = Ledger(min(problem.began for problem in problems))
    members = [problem.members(callback) for problem, callback in zip(problems, callbacks, strict=True)]
    fits: dict[int, Fit] = {}
    for group in group_alike(problems, members):
        spans = ranges([len(members[index]) for index in group])
        loop = ledger.open_loop(problems[group[0]], [member for index in group for member in members[index]])
        alone = len(problems) == 1 and overview is None
        parts = CallbackParts([callbacks[index] for index in group], spans, overview or Callback())
        outcomes, state = run_until_interrupted(loop, callbacks[0] if alone else parts, alone=alone)
        for index, among in zip(group, spans, strict=True):
            fits[index] = bring_to_optimum(ledger.result(problems[index], loop, outcomes, state, among))
    return [fits[index] for index in range(len(problems))]


def run_until_interrupted(loop: Loop, callback: Callback, *, alone: bool) -> tuple[list[Outcome], RunState]:
    """Runs the loop; Ctrl-C ends a single problem with the state after the last chunk, if any."""
    try:
        return loop.run(callback)
    except KeyboardInterrupt:
        if not alone or loop.latest is None:
            raise
        return [Outcome("interrupted", "by Ctrl-C") for _ in loop.latest.members], loop.latest


class Ledger:
    """Tracks the time and compilations of fits that are made together.

    **Arguments:** `began`: time at which building of the first problem began.
    """

    def __init__(self, began: float):
        self.began = began
        self.loops: list[Loop] = []
        self.counted = 0

    def open_loop(self, problem: FitProblem, members: Sequence[Member]) -> Loop:
        """Opens the training loop for members of a problem, and of others like it."""
        loop = problem.loop(members)
        offered, used = len(problem.options.placement_for(len(members)).devices), len(loop.setup.place.devices)
        if used < offered and problem.options.device.count != "auto":
            TRAIN_LOG.warning("using %d of %d devices, since members or trajectories are spread evenly", used, offered)
        self.loops.append(loop)
        return loop

    def result(
        self, problem: FitProblem, loop: Loop, outcomes: Sequence[Outcome], state: RunState, among: range
    ) -> Fit:
        """Returns the fit of a problem, whose members are some of the loop's."""
        several, keep = problem.ensemble.count > 1, problem.ensemble.keep
        best = select_member(state, among, outcomes, validated=problem.selection_data is not None)
        model, outcome = keep_model(problem, loop, outcomes, state, best)
        options, choices = problem.settle_options(None if several else best - among[0])
        excess = loop.step_excess(state)
        new = [programs for opened in self.loops[self.counted :] for programs in opened.compiled_programs]
        self.counted = len(self.loops)
        compiling = sum(programs.compile_seconds for opened in self.loops for programs in opened.compiled_programs)
        return Fit(
            model=model,
            status=outcome.status,
            reason=outcome.reason,
            history=[renumber(record, among) for record in loop.history if record.member in among],
            steps=state.step,
            parameters=parameters.count_parameters(loop.setup.parts[0].params),
            compiles=sum(programs.compilations.count for programs in new),
            cached=sum(programs.compilations.cached for programs in new),
            compile_seconds=sum((programs.compile_seconds for programs in new), 0.0),
            train_seconds=time.perf_counter() - self.began - compiling,
            members=tuple(outcomes) if several else (),
            devices=len(loop.setup.place.devices),
            data=problem.data,
            options=options,
            choices=choices,
            warnings=problem.warnings,
            linear=problem.options.place.one(problem.model) if problem.begins_linear else None,
            step_excess=max(excess) if several and keep == "all" else excess[best],
            restarts=None if several else self.restarts(problem, loop, state, among),
            steps_to_best=steps_to_best(loop, state, best),
        )

    def restarts(self, problem: FitProblem, loop: Loop, state: RunState, among: range) -> Restarts | None:
        """Returns the results of several restarts; None for one."""
        return None if problem.options.restarts == 1 else restarts_of(problem, loop, state, among)


def keep_model(
    problem: FitProblem, loop: Loop, outcomes: Sequence[Outcome], state: RunState, best: int
) -> tuple[NeuralODE | Ensemble, Outcome]:
    """Returns the best member, or an ensemble of all that have not failed, and the outcome of the run."""
    model = functools.partial(select_iterate, problem, loop, state)
    if problem.ensemble.count == 1:
        kept = model(best)
        return problem.options.place.one(problem.model) if keeps_beginning(problem, kept) else kept, outcomes[best]
    alive = [index for index, outcome in enumerate(outcomes) if outcome.status != "failed"]
    if problem.ensemble.keep == "best" or not alive:
        return model(best), merge_outcomes(outcomes)
    members = [model(index) for index in alive]
    return Ensemble.of(members, problem.train, problem.validation), merge_outcomes(outcomes)


def group_alike(problems: Sequence[FitProblem], members: Sequence[Sequence[Member]]) -> list[list[int]]:
    """Groups the indices of problems whose members can share one program."""
    groups: dict[Hashable, list[int]] = {}
    for index, (problem, own_members) in enumerate(zip(problems, members, strict=True)):
        training, begun = problem.options.training, problem.begins_linear
        host = (tuple(training.freeze), training.chunk_steps, training.patience)
        groups.setdefault((kind_of(own_members[0]), host, problem.options.place, begun), []).append(index)
    return list(groups.values())


def ranges(sizes: Sequence[int]) -> list[range]:
    """Returns consecutive ranges of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def state_of(state: RunState, among: range) -> RunState:
    """Returns the state of a run with only some of its members."""
    return replace(state, members=tuple(state.members[member] for member in among))


def renumber(record: Record, among: range) -> Record:
    return replace(record, member=record.member - among[0])


class CallbackParts(Callback):
    """Calls each of several callbacks for its own members only.

    **Arguments:** `callbacks`: one for each fit. `own`: the indices of each fit's members. `overview`: called for all.
    """

    def __init__(self, callbacks: Sequence[Callback], own: Sequence[range], overview: Callback):
        self.callbacks = callbacks
        self.own = own
        self.overview = overview

    def on_training_start(self, model_of: ModelOf) -> None:
        for callback, among in zip(self.callbacks, self.own, strict=True):
            callback.on_training_start(lambda iterate, member, among=among: model_of(iterate, among[member]))

    def restore(self, template: Template) -> RunState | None:
        restored: list[RunState | None] = []
        for callback, among in zip(self.callbacks, self.own, strict=True):

            @functools.cache
            def part(index: int, nodes: int, among: range = among) -> tuple[TrainState, ...]:
                return tuple(template(index, nodes)[member] for member in among)

            restored.append(callback.restore(part))
        if any(state is not None for state in restored):
            raise ValueError("an interrupted fit can't resume together with others; resume it on its own.")
        return None

    def on_stage_compile(self, stage: str, steps: int) -> None:
        for callback in (*self.callbacks, self.overview):
            callback.on_stage_compile(stage, steps)

    def on_stage_start(self, stage: str) -> None:
        for callback in (*self.callbacks, self.overview):
            callback.on_stage_start(stage)

    def on_steps(self, step: int, state: RunState) -> str | None:
        stops = [self.overview.on_steps(step, state)]
        for callback, among in zip(self.callbacks, self.own, strict=True):
            stops.append(callback.on_steps(step, state_of(state, among)))
        return next((stop for stop in stops if stop is not None), None)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        stops = [self.overview.on_chunk_end(records, state)]
        for callback, among in zip(self.callbacks, self.own, strict=True):
            own_records = [renumber(record, among) for record in records if record.member in among]
            if own_records:
                stops.append(callback.on_chunk_end(own_records, state_of(state, among)))
        return next((stop for stop in stops if stop is not None), None)
