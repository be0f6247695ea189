"""A multirun that fits its jobs at once: jobs that differ only in seeds and numbers become members of one program."""

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from ..fitting.fit import fit_several
from ..fitting.progress import Display, ShowProgress
from ..fitting.result import Fit
from ..options.options import Options
from ..runtime.placement import explain_memory, scope
from ..training.callback import Callbacks
from .application import EXIT, Job, report_failure
from .config.composition import ConfigError
from .console import make_console
from .leaderboard import runs_here
from .run_directory import fingerprint_data, plain_runtime
from .run_logger import Interruption, RunLogger, make_loggers

PreparedJob = tuple[Job, Options]

Result = TypeVar("Result")


def runs_at_once(config: DictConfig) -> bool:
    """Whether jobs become members: as set by `sweep`, else on a GPU, which one member leaves mostly idle."""
    if config.sweep != "auto":
        return config.sweep == "vectorized"
    is_alone = OmegaConf.select(config, "ensemble.size") == 1 and not config.get("random")
    return is_alone and OmegaConf.select(config, "device.kind") == "gpu" and runs_here(HydraConfig.get())


def run_jobs(jobs: Sequence[Job]) -> list[int]:
    """Runs jobs, writes their directories, and returns the exit code of each."""
    console = make_console()
    with ExitStack() as stack, Interruption(functools.partial(console.print, soft_wrap=True)) as interruption:
        ready = [
            prepared
            for job in jobs
            if (prepared := attempt(job, functools.partial(prepare_job, job, stack))) is not None
        ]
        ends: dict[Job, int] = {}
        for group in group_jobs(ready):
            results = attempt(group[0][0], functools.partial(fit_in_memory, group, interruption))
            for (job, _), result in zip(group, results or [], strict=bool(results)):
                job.announce()
                finished = attempt(job, functools.partial(finish, job, result))
                ends[job] = 1 if finished is None else EXIT.get(finished, interruption.exit_code)
        return [ends.get(job, 1) for job in jobs]


def attempt(job: Job, task: Callable[[], Result]) -> Result | None:
    """Returns the task's result, or reports the job as failed and returns `None`."""
    try:
        return task()
    except Exception as error:  # A failed job must not end the others.
        report_failure(error, job.config, job.files, list(job.hydra.overrides.task), tracebacks=False)
        return None


def prepare_job(job: Job, stack: ExitStack) -> PreparedJob:
    """Locks a job's directory, reads its data, and returns the job with its fit options."""
    stack.enter_context(job.files.hold_lock())
    with scope(job.config.precision):
        options = job.prepare()
    if options.members.count > 1:
        raise ConfigError("sweep=vectorized needs ensemble.size=1, since jobs become members; or use sweep=serial.")
    return job, options


def group_jobs(ready: Sequence[PreparedJob]) -> list[list[PreparedJob]]:
    """Groups jobs that have the same data and precision."""
    groups: dict[str, list[PreparedJob]] = {}
    for job, options in ready:
        prints = {name: fingerprint_data(part)["sha256"] for name, part in job.splits.named().items()}
        groups.setdefault(f"{prints} {options.kind}", []).append((job, options))
    return list(groups.values())


def fit_in_memory(group: Sequence[PreparedJob], interruption: Interruption) -> list[Fit | ValueError]:
    """Fits a group at once, or in halves if it does not fit into memory."""
    try:
        return fit_group(group, interruption)
    except Exception as error:
        if explain_memory(error) is None or len(group) == 1:
            raise
    middle = len(group) // 2
    group[0][0].console.print(f"memory does not hold {len(group)} jobs at once; {middle} come first", soft_wrap=True)
    return [*fit_in_memory(group[:middle], interruption), *fit_in_memory(group[middle:], interruption)]


def fit_group(group: Sequence[PreparedJob], interruption: Interruption) -> list[Fit | ValueError]:
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
        return fit_several(
            splits.train, options, validation=splits.validation, callbacks=loggers, overview=ShowProgress(display)
        )


def finish(job: Job, result: Fit | ValueError) -> str:
    if isinstance(result, ValueError):
        raise result
    with scope(job.config.precision), Display(job.console) as display:
        job.finish(result, display)
    job.say_where()
    return result.status


class Vectorized(Callback):
    """Runs the jobs of a multirun whose jobs become members."""

    # The collected jobs of this process's multirun, and later their exit codes.
    waiting: list[Job] = []  # noqa: RUF012
    codes: list[int] = []  # noqa: RUF012

    @staticmethod
    def wait(config: DictConfig, imported: float) -> None:
        """Collects a job for later.

        **Raises:** `ConfigError` if a launcher runs the jobs in other processes.
        """
        from .application import Job
        from .console import make_console
        from .run_directory import RunDirectory

        hydra = HydraConfig.get()
        if not runs_here(hydra):
            raise ConfigError("sweep=vectorized runs all jobs in this process; leave hydra/launcher at its default.")
        files = RunDirectory(plain_runtime(hydra)["output_dir"])
        Vectorized.waiting.append(Job(config, files, make_console(), time.perf_counter(), imported))

    def on_multirun_end(self, config: DictConfig, **_: object) -> None:
        jobs, Vectorized.waiting = Vectorized.waiting, []
        if jobs:
            Vectorized.codes += run_jobs(jobs)
