"""`fit_several`: fits that share their data and, where possible, their programs."""

import functools
import itertools
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from ..data.dataset import Dataset, check_data
from ..options.options import Options
from ..runtime.placement import scope
from ..runtime.validation import check_argument
from ..training.callback import Callback, Record, RunState, Template
from ..training.members import Member, Members, kind_of
from ..training.state import TrainState
from .multistart import select_iterate
from .result import Fit
from .run import Run, select_member, starts_of
from .setup import PreparedFit


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
    with scope(options[0].kind), ExitStack() as stack:
        for each in callbacks:
            stack.callback(each.on_fit_end)
        mark = options[0].scaling.marked
        if any(each.scaling.turns != options[0].scaling.turns for each in options):
            raise ValueError("fits with different angles can't run together; pass those with the same angles.")
        train, validation = mark(train), None if validation is None else mark(validation)
        run = Run(train, validation)
        fits: dict[int, Fit | ValueError] = {}
        prepared: dict[int, PreparedFit] = {}
        members: dict[int, list[Member]] = {}
        for index, (each, callback) in enumerate(zip(options, callbacks, strict=True)):
            try:
                prepared[index] = run.prepare(each)
                callback.on_fit_start(prepared[index].model, prepared[index].said)
                members[index] = prepared[index].members(train, Members())
            except ValueError as error:
                fits[index] = error
        for group in alike(prepared, members):
            first = prepared[group[0]]
            own = ranges([len(members[index]) for index in group])
            together = [member for index in group for member in members[index]]
            loop = run.loop(first.options, together, starts_well=first.linear is not None)
            apart = Apart([callbacks[index] for index in group], own, overview or Callback())
            outcomes, state = loop.run(apart)
            excess = loop.step_excess(state)
            for index, among in zip(group, own, strict=True):
                best = select_member(state, among, validated=validation is not None)
                history = [renumber(record, among) for record in loop.history if record.member in among]
                model, outcome = select_iterate(loop, state, best, train, validation), outcomes[best]
                own_state, number = part_of(state, among), best - among[0]
                fits[index] = run.result(
                    prepared[index], loop, model, outcome, own_state,
                    history=history, best=number, step_excess=excess[best],
                    starts=starts_of(loop, state, among, prepared[index], run),
                )  # fmt: skip
            run = Run(train, validation)
        return [fits[index] for index in range(len(options))]


def ranges(sizes: Sequence[int]) -> list[range]:
    """Ranges of these sizes, one after another."""
    ends = list(itertools.accumulate(sizes))
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def part_of(state: RunState, among: range) -> RunState:
    """The state of a run with only some of its members."""
    return replace(state, members=tuple(state.members[member] for member in among))


def renumber(record: Record, among: range) -> Record:
    return replace(record, member=record.member - among[0])


class Apart(Callback):
    """Calls each of several callbacks for its own members only.

    **Arguments:** `callbacks`: one for each fit. `own`: the numbers of each fit's members. `overview`: called for all.
    """

    def __init__(self, callbacks: Sequence[Callback], own: Sequence[range], overview: Callback):
        self.callbacks = callbacks
        self.own = own
        self.overview = overview

    def restore(self, template: Template) -> RunState | None:
        found = []
        for callback, among in zip(self.callbacks, self.own, strict=True):

            @functools.cache
            def part(index: int, nodes: int, among: range = among) -> tuple[TrainState, ...]:
                return tuple(template(index, nodes)[member] for member in among)

            found.append(callback.restore(part))
        if any(state is not None for state in found):
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
            stops.append(callback.on_steps(step, part_of(state, among)))
        return next((stop for stop in stops if stop is not None), None)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        stops = [self.overview.on_chunk_end(records, state)]
        for callback, among in zip(self.callbacks, self.own, strict=True):
            own = [renumber(record, among) for record in records if record.member in among]
            if own:
                stops.append(callback.on_chunk_end(own, part_of(state, among)))
        return next((stop for stop in stops if stop is not None), None)


def alike(prepared: Mapping[int, PreparedFit], members: Mapping[int, Sequence[Member]]) -> list[list[int]]:
    """Groups of fits whose members can share one program, by number."""
    groups: dict[Hashable, list[int]] = {}
    for index, own in members.items():
        each = prepared[index].options
        host = (tuple(each.training.freeze), each.training.chunk_steps, each.training.patience)
        begun = prepared[index].linear is not None
        groups.setdefault((kind_of(own[0]), host, each.place, begun), []).append(index)
    return list(groups.values())
