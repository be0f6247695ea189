"""The pictures of a run, drawn here or, between the jobs of a sweep, in processes beside."""

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

from .plots import Curves, plot_fit, plot_loss, plot_phase

LOG = logging.getLogger(__name__)
# Drawing takes about as long as a small fit, and each process the memory of the imports.
PROCESSES = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Pictures:
    """All that the pictures of a run are drawn from; it can be pickled.

    - `folder`: where they are written.
    - `rows`: of `metrics.csv`.
    - `curves`: the data and the model's curves.
    - `slopes`: the field at `phase_points(curves)`; `None` if there is no phase portrait.
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
    """Draws in processes beside, while this one goes on; they end with it."""

    def __init__(self):
        self.pool: ProcessPoolExecutor | None = None
        self.under_way: list[tuple[Path, Future]] = []

    def begin(self) -> None:
        """Starts the processes before there is something to draw, since they load for a while."""
        with suppress(OSError, BrokenExecutor):  # of which the first picture will tell
            for _ in range(PROCESSES):
                self.submit(load)

    def draw(self, pictures: Pictures) -> None:
        try:
            future = self.submit(pictures.draw)
        except BrokenExecutor:  # a process was killed, as where memory runs out; what it and its like drew is lost
            self.pool = None
            future = self.submit(pictures.draw)
        self.under_way.append((pictures.folder, future))

    def submit(self, task: Callable[[], None]) -> Future:
        if self.pool is None:
            spawn = multiprocessing.get_context("spawn")  # since JAX has threads, which a fork would not have
            self.pool = ProcessPoolExecutor(PROCESSES, spawn, initializer=stay_with_parent)
        # A process that is begun here inherits that Ctrl-C is held back: that is for this one to hear.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self.pool.submit(task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def finish(self) -> None:
        """Waits until all is drawn, and says what could not be."""
        for folder, future in self.under_way:
            with forgiven(folder):
                future.result()
        self.under_way = []
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def load() -> None:
    """Loads what pictures are drawn with."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


@contextmanager
def forgiven(folder: Path):
    """Says what goes wrong, and goes on; a run is worth keeping without pictures."""
    try:
        yield
    except Exception as error:
        LOG.warning("%s were not drawn: %s: %s", folder, type(error).__name__, error)


def stay_with_parent() -> None:
    """Ends the process when its parent has ended, even if that was killed."""
    threading.Thread(target=leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


# Of the jobs of this process's multirun.
DRAWING = Drawing()
