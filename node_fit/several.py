"""`fit_several`: fits that share their data, and if they can their programs."""

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from .dataset import Dataset
from .fitting import Fit, Run
from .members import Crew, Member, kind_of
from .observer import Moment, Observer, Record, Silent, Template
from .precision import scope
from .setting import Setting
from .training import TrainState


def fit_several(
    train: Dataset,
    settings: Sequence[Setting],
    *,
    validation: Dataset | None = None,
    observers: Sequence[Observer] | None = None,
    overview: Observer | None = None,
) -> list[Fit | ValueError]:
    """Several fits to the same data: those that differ in seeds and numbers alone are members of one program.

    **Arguments:**

    - `train`, `validation`: as of `fit`.
    - `settings`: of each fit; all of one precision.
    - `observers`: one for each, which is told of its own fit.
    - `overview`: told of all of them.

    **Returns:** a fit for each setting, in their order, or the `ValueError` that `fit` would raise for it. The
    compilations of a program are counted in its first fit.

    **Raises:** `ValueError` if the precisions differ.
    """
    observers = observers or [Silent() for _ in settings]
    if len({setting.kind for setting in settings}) > 1:
        raise ValueError("fits of several precisions can't run at once; run those of x32 and of x64 apart.")
    with scope(settings[0].kind):
        run = Run(train, validation)
        members: dict[int, Member] = {}
        fits: dict[int, Fit | ValueError] = {}
        for index, (setting, observer) in enumerate(zip(settings, observers, strict=True)):
            try:
                model, stages, notes = run.prepare(setting)
                observer.begin(model, notes)
                members[index] = setting.member(model, stages)
            except ValueError as error:
                fits[index] = error
        for group in alike(settings, members):
            loop = run.loop(settings[group[0]], [members[index] for index in group])
            ends, moment = loop.run(Apart([observers[index] for index in group], loop.crew, overview or Silent()))
            for place, (index, end) in enumerate(zip(group, ends, strict=True)):
                own = Moment(moment.stage, moment.offset, loop.crew.of(moment.state, place))
                history = [replace(record, member=0) for record in loop.history if record.member == place]
                fits[index] = run.fit(loop, loop.fitted(moment, place), end, own, (), history)
            run = Run(train, validation)
        return [fits[index] for index in range(len(settings))]


class Apart(Silent):
    """An observer that tells each of several of its own member alone.

    **Arguments:** `observers`: one for each of the `crew`. `overview`: told of all.
    """

    def __init__(self, observers: Sequence[Observer], crew: Crew, overview: Observer):
        self.observers = observers
        self.crew = crew
        self.overview = overview

    def resume(self, template: Template) -> Moment | None:
        @functools.cache  # since every observer asks for the same
        def own(index: int, nodes: int) -> TrainState:
            return self.crew.of(template(index, nodes), 0)

        moments = [observer.resume(own) for observer in self.observers]
        if any(moment is not None for moment in moments):
            raise ValueError("a fit that was interrupted goes on by itself; run it alone.")
        return None

    def compile_stage(self, stage: str, steps: int) -> None:
        for observer in (*self.observers, self.overview):
            observer.compile_stage(stage, steps)

    def begin_stage(self, stage: str) -> None:
        for observer in (*self.observers, self.overview):
            observer.begin_stage(stage)

    def observe(self, records: Sequence[Record], moment: Moment) -> str | None:
        stops = [self.overview.observe(records, moment)]
        for record in records:
            own = Moment(moment.stage, moment.offset, self.crew.of(moment.state, record.member))
            stops.append(self.observers[record.member].observe([replace(record, member=0)], own))
        return next((stop for stop in stops if stop is not None), None)


def alike(settings: Sequence[Setting], members: Mapping[int, Member]) -> list[list[int]]:
    """The numbers of the fits that can be members of one program, in groups."""
    groups: dict[Hashable, list[int]] = {}
    for index, member in members.items():
        setting = settings[index]
        host = (tuple(setting.freeze), setting.chunk_steps, setting.patience, setting.scan)
        groups.setdefault((kind_of(member), host, setting.place), []).append(index)
    return list(groups.values())
