"""Several jobs at once: those that differ in seeds and numbers alone are members of one program."""

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from .application import EXIT, Job, tell
from .console import Display, make_console
from .drawing import DRAWING
from .fitting import Fit, fit
from .interruption import Interruption
from .observer import Moment, Record, Silent
from .precision import scope
from .run_directory import fingerprint
from .setting import Setting
from .several import fit_several
from .targets import ConfigError
from .watcher import Watcher, merit

Prepared = tuple[Job, Setting]


def run(jobs: Sequence[Job]) -> list[int]:
    """Runs jobs and writes their directories; the exit code of each."""
    console = make_console()
    with ExitStack() as stack, Interruption(functools.partial(console.print, soft_wrap=True)) as interruption:
        ready = [made for job in jobs if (made := attempt(job, functools.partial(prepare, job, stack))) is not None]
        ends: dict[Job, int] = {}
        if ready:
            DRAWING.begin()
        for group in alike(ready):
            found = attempt(group[0][0], functools.partial(fit_group, group, interruption))
            for (job, _), result in zip(group, found or [], strict=bool(found)):
                job.announce()
                finished = attempt(job, functools.partial(finish, job, result))
                ends[job] = 1 if finished is None else EXIT.get(finished, interruption.exit_code)
        return [ends.get(job, 1) for job in jobs]


def attempt(job: Job, task: Callable[[], Any]) -> Any:
    """What a task gives; None if it raises, which is told as the job's failure."""
    try:
        return task()
    except Exception as error:  # One job's failure must not end the others.
        tell(error, job.config, job.files, list(job.hydra.overrides.task), tracebacks=False)
        return None


def prepare(job: Job, stack: ExitStack) -> Prepared:
    """A job that holds its directory, has read its data, and knows its setting."""
    stack.enter_context(job.files.locked())
    with scope(job.config.precision):
        train, options = job.prepare()
    ensemble = options.pop("ensemble")
    if ensemble.size > 1:
        raise ConfigError("sweep=vectorized makes members of jobs, so ensemble.size must be 1; or use sweep=serial.")
    if not isinstance(train, functools.partial) or inspect.unwrap(train.func) is not fit:
        raise ConfigError("sweep=vectorized needs train._target_=node_fit.fit; or use sweep=serial.")
    return job, Setting(**{**train.keywords, **options})


def alike(ready: Sequence[Prepared]) -> list[list[Prepared]]:
    """Jobs in groups of the same data and precision."""
    groups: dict[str, list[Prepared]] = {}
    for job, setting in ready:
        prints = {name: fingerprint(part)["sha256"] for name, part in job.splits.named().items()}
        groups.setdefault(f"{prints} {setting.kind}", []).append((job, setting))
    return list(groups.values())


def fit_group(group: Sequence[Prepared], interruption: Interruption) -> list[Fit | ValueError]:
    jobs, settings = zip(*group, strict=True)
    splits, console, quiet = jobs[0].splits, jobs[0].console, make_console()
    quiet.quiet = True
    jobs[0].announce_data(f"{len(jobs)} jobs at once; ")
    with Display(console) as display, Display(quiet) as nothing:
        watchers = [Watcher(job.config, job.files, quiet, nothing, interruption) for job in jobs]
        options = {"validation": splits.validation, "observers": watchers, "overview": Overview(display)}
        return fit_several(splits.train, settings, **options)


def finish(job: Job, result: Fit | ValueError) -> str:
    if isinstance(result, ValueError):
        raise result
    with scope(job.config.precision):
        job.finish(result)
    return result.status


class Overview(Silent):
    """Shows the best of all jobs."""

    def __init__(self, display: Display):
        self.display = display

    def compile_stage(self, stage: str, steps: int) -> None:
        self.display.announce(stage, steps)

    def observe(self, records: Sequence[Record], moment: Moment) -> str | None:
        best = min(records, key=merit)
        self.display.show(best, best.step - moment.offset)
        return None
