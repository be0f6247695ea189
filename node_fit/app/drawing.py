"""The plots of a run, drawn in this process or, for the jobs of a multirun, in background processes."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..plots.curves import Curves
from ..plots.fit import plot_fit
from ..plots.loss import plot_loss
from ..plots.phase import plot_phase

LOG = logging.getLogger(__name__)
# Drawing takes about as long as a small fit. Each process needs the memory of the imports.
PROCESSES = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Pictures:
    """The picklable content of a run's plots.

    - `folder`: the output folder.
    - `rows`: the rows of `metrics.csv`.
    - `curves`: the data and the model's curves.
    - `slopes`: the vector field at `phase_points(curves)`, or `None` if there is no phase portrait.
    """

    folder: Path
    rows: Sequence[dict[str, Any]]
    curves: Curves
    slopes: np.ndarray | None

    def draw(self) -> None:
        self.folder.mkdir(exist_ok=True)
        plot_loss(self.rows, self.folder / "loss.png")
        plot_fit(self.curves, self.folder / "fit.png")
        if self.slopes is not None:
            plot_phase(self.curves, self.slopes, self.folder / "phase.png")


class Drawing:
    """Draws in background processes, which end with this one."""

    def __init__(self):
        self.pool: ProcessPoolExecutor | None = None
        self.under_way: list[tuple[Path, Future]] = []

    def begin(self) -> None:
        """Starts the processes early, since their imports take a while."""
        with suppress(OSError, BrokenExecutor):  # The first plot reports the error.
            for _ in range(PROCESSES):
                self.submit(load)

    def draw(self, pictures: Pictures) -> None:
        try:
            future = self.submit(pictures.draw)
        except BrokenExecutor:  # A worker was killed, for example out of memory; the pool's unfinished plots are lost.
            self.pool = None
            future = self.submit(pictures.draw)
        self.under_way.append((pictures.folder, future))

    def submit(self, task: Callable[[], None]) -> Future:
        if self.pool is None:
            spawn = multiprocessing.get_context("spawn")  # A fork would lose JAX's threads.
            self.pool = ProcessPoolExecutor(PROCESSES, spawn, initializer=exit_with_parent)
        # A worker that starts here inherits the blocked SIGINT, so that Ctrl-C reaches only this process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self.pool.submit(task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def finish(self) -> None:
        """Waits for all plots, and warns about those that failed."""
        for folder, future in self.under_way:
            with warn_on_error(folder):
                future.result()
        self.under_way = []
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def load() -> None:
    """Imports Matplotlib in a worker."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


@contextmanager
def warn_on_error(folder: Path):
    """Turns an exception into a warning, since a run is worth keeping without plots."""
    try:
        yield
    except Exception as error:
        LOG.warning("the plots in %s were not drawn: %s: %s", folder, type(error).__name__, error)


def exit_with_parent() -> None:
    """Ends this process when its parent ends, even if the parent is killed."""
    threading.Thread(target=exit_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


# Shared by the jobs of this process's multirun.
DRAWING = Drawing()
