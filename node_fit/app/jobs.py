"""Several jobs at once: jobs that differ only in seeds and numbers become ensemble members of one program."""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from ..fitting.options import Options
from ..fitting.progress import Display, ShowProgress
from ..fitting.result import Fit
from ..fitting.several import fit_several
from ..runtime.precision import scope
from ..training.callback import Callbacks
from .application import EXIT, Job, report_failure
from .config.targets import ConfigError
from .console import make_console
from .interruption import Interruption
from .run_directory import fingerprint
from .run_logger import RunLogger, make_loggers

Prepared = tuple[Job, Options]


def run(jobs: Sequence[Job]) -> list[int]:
    """Runs jobs, writes their directories, and returns the exit code of each."""
    console = make_console()
    with ExitStack() as stack, Interruption(functools.partial(console.print, soft_wrap=True)) as interruption:
        ready = [made for job in jobs if (made := attempt(job, functools.partial(prepare, job, stack))) is not None]
        ends: dict[Job, int] = {}
        for group in group_jobs(ready):
            found = attempt(group[0][0], functools.partial(fit_group, group, interruption))
            for (job, _), result in zip(group, found or [], strict=bool(found)):
                job.announce()
                finished = attempt(job, functools.partial(finish, job, result))
                ends[job] = 1 if finished is None else EXIT.get(finished, interruption.exit_code)
        return [ends.get(job, 1) for job in jobs]


def attempt(job: Job, task: Callable[[], Any]) -> Any:
    """Returns the task's result, or reports the job as failed and returns `None`."""
    try:
        return task()
    except Exception as error:  # A failed job must not end the others.
        report_failure(error, job.config, job.files, list(job.hydra.overrides.task), tracebacks=False)
        return None


def prepare(job: Job, stack: ExitStack) -> Prepared:
    """Locks a job's directory, reads its data, and returns the job with its fit options."""
    stack.enter_context(job.files.locked())
    with scope(job.config.precision):
        options, ensemble = job.prepare()
    if ensemble.size > 1:
        raise ConfigError("sweep=vectorized needs ensemble.size=1, since jobs become members; or use sweep=serial.")
    return job, options


def group_jobs(ready: Sequence[Prepared]) -> list[list[Prepared]]:
    """Groups jobs that have the same data and precision."""
    groups: dict[str, list[Prepared]] = {}
    for job, options in ready:
        prints = {name: fingerprint(part)["sha256"] for name, part in job.splits.named().items()}
        groups.setdefault(f"{prints} {options.kind}", []).append((job, options))
    return list(groups.values())


def fit_group(group: Sequence[Prepared], interruption: Interruption) -> list[Fit | ValueError]:
    jobs, options = zip(*group, strict=True)
    splits, console, quiet = jobs[0].splits, jobs[0].console, make_console()
    quiet.quiet = True
    jobs[0].announce_data(f"{len(jobs)} jobs at once; ")
    with Display(console) as display, Display(quiet) as silent:
        loggers = [
            Callbacks(
                [
                    RunLogger(job.config, job.files, quiet, silent, interruption),
                    *make_loggers(job.config, job.files),
                ]
            )
            for job in jobs
        ]
        keywords = {"validation": splits.validation, "callbacks": loggers, "overview": ShowProgress(display)}
        return fit_several(splits.train, options, **keywords)


def finish(job: Job, result: Fit | ValueError) -> str:
    if isinstance(result, ValueError):
        raise result
    with scope(job.config.precision):
        job.finish(result)
    return result.status
