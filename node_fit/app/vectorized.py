"""A multirun that collects its jobs and then runs all of them at once."""

import time
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from .config.targets import ConfigError
from .leaderboard import runs_here
from .resuming import plain_runtime


class Vectorized(Callback):
    """Runs the jobs of a multirun with `sweep=vectorized`."""

    # The collected jobs of this process's multirun, and later their exit codes.
    waiting: list[Any] = []  # noqa: RUF012
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

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        jobs, Vectorized.waiting = Vectorized.waiting, []
        if jobs:
            from .jobs import run

            Vectorized.codes += run(jobs)
