"""Background work of a run or a multirun: plots and pages in other processes, and compilation for the run's end."""

import importlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from ..data.dataset import Dataset
from ..evaluation.simulation import compile_simulation, simulate_splits
from ..fitting.progress import leading
from ..model.neural_ode import NeuralODE
from ..plots.curves import Curves, png, use_style
from ..plots.figures import fit_figure, plot_fit, plot_loss, plot_phase, plot_starts
from ..report.pages import PAGE_NAME, make_member_index, make_run_page, refresh_index
from ..runtime.serialization import Json
from ..storage.files import explain_disk, write_file
from ..training.callback import Callback, ModelOf, Record, RunState

BACKGROUND_LOG = logging.getLogger(__name__)
# Drawing takes about as long as a small fit, which needs a core for itself. A process needs the memory of the imports.
PROCESSES = max(1, min(4, (os.cpu_count() or 1) - 1))

FIT_PICTURE = "fit.png"
# Maximum number of values in a plot of an unfinished run; more take seconds to draw.
MAX_DRAWN_VALUES = 100_000
# Maximum share of a run's time for plots of the current fit, and minimum pause between them [s].
MAX_PICTURE_SHARE, MIN_PICTURE_PAUSE = 0.05, 3.0


@dataclass(frozen=True)
class Pictures:
    """The picklable content of a run's plots.

    - `folder`: the output folder.
    - `rows`: the rows of `metrics.csv`.
    - `curves`: the data and the model's curves.
    - `slopes`: the vector field at `phase_points(curves)`, or `None` if there is no phase portrait.
    - `starts`: the losses of several starts, or empty.
    - `kept`: the name of the kept attempt.
    - `trajectories`: the trajectories to draw; `None` for the best, the median and the worst.
    """

    folder: Path
    rows: Sequence[Json]
    curves: Curves
    slopes: np.ndarray | None
    starts: Sequence[float] = ()
    kept: str | None = None
    trajectories: Sequence[str] | None = None

    @property
    def title(self) -> str:
        return f"the plots in {self.folder} were"

    def draw(self) -> None:
        self.folder.mkdir(exist_ok=True)
        plot_loss(self.rows, self.folder / "loss.png", self.kept)
        plot_fit(self.curves, self.folder / FIT_PICTURE, self.trajectories)
        if self.starts:
            plot_starts(self.starts, self.folder / "starts.png")
        if self.slopes is not None:
            plot_phase(self.curves, self.slopes, self.folder / "phase.png")


@dataclass(frozen=True)
class Page:
    """The picklable content of a run's page that is not in its directory yet.

    - `folder`: the run's directory.
    - `curves`, `slopes`: as in `Pictures`.
    - `sweep`: the directory of the multirun that the run belongs to, or `None`.
    """

    folder: Path
    curves: Curves
    slopes: np.ndarray | None
    sweep: Path | None = None

    @property
    def path(self) -> Path:
        return self.folder / PAGE_NAME

    @property
    def title(self) -> str:
        return f"the page {self.path} was"

    def draw(self) -> None:
        make_run_page(self.folder, self.curves, self.slopes)
        make_member_index(self.folder)
        if self.sweep is not None:
            refresh_index(self.sweep)


def png_of_fit(curves: Curves, caption: str, trajectories: Sequence[str] | None = None) -> bytes:
    """Draws a preliminary plot of curves as a PNG file, with a caption."""
    with use_style():
        return png(fit_figure(curves, trajectories, caption))


class Drawing:
    """Draws in background processes, which end with this one."""

    def __init__(self):
        self.pool: ProcessPoolExecutor | None = None
        self.under_way: list[tuple[Pictures | Page, Future[None]]] = []

    def begin(self) -> None:
        """Starts a process early, since its imports take a while; the others start when they are needed."""
        with suppress(OSError, BrokenExecutor):  # The first plot reports the error.
            self.submit(load_plots)

    def draw(self, pictures: Pictures | Page) -> None:
        try:
            future = self.submit(pictures.draw)
        except BrokenExecutor:  # A worker was killed, for example out of memory; the pool's unfinished plots are lost.
            self.pool = None
            future = self.submit(pictures.draw)
        self.under_way.append((pictures, future))

    def submit(self, task: Callable[[], None]) -> Future[None]:
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
        """Draws pending plots in this process, waits for the running ones, and warns about failures."""
        while self.under_way:
            drawn, future = self.under_way.pop()
            with warn_on_error(drawn.title, drawn.folder):
                if future.cancel():
                    drawn.draw()
                else:
                    self.wait(future)
        if self.pool is not None:
            for process in self.pool._processes.values():
                process.kill()  # They are idle, and would take a while to exit.
            self.pool.shutdown()
            self.pool = None

    def wait(self, future: Future[None]) -> None:
        """Waits for a plot, unless the pool's manager thread has died for lack of memory."""
        while not future.done():
            wait([future], timeout=1.0)
            if not future.done() and not self.is_managed():
                raise BrokenExecutor("a thread could not be started; a limit on memory or threads is too low")
        future.result()

    def is_managed(self) -> bool:
        """Whether the pool's manager thread is alive; if it has died, the pool's futures never finish."""
        thread = getattr(self.pool, "_executor_manager_thread", None)
        return thread is None or thread.is_alive()


def load_plots() -> None:
    """Imports the modules for plots and pages in a worker."""
    for name in ("jinja2", "matplotlib.backends.backend_agg", "matplotlib.figure", "pyarrow.csv"):
        importlib.import_module(name)


@contextmanager
def warn_on_error(title: str, folder: Path):
    """Turns an exception into a warning, since a run is worth keeping without plots or its page.

    **Arguments:** `title`: the subject of the warning, `folder`: the output folder.
    """
    try:
        yield
    except OSError as error:
        BACKGROUND_LOG.warning("%s not drawn: %s", title, explain_disk(error, folder))
    except Exception as error:
        BACKGROUND_LOG.warning("%s not drawn: %s: %s", title, type(error).__name__, error)


def exit_with_parent() -> None:
    """Ends this process when its parent ends, even if the parent is killed."""
    threading.Thread(target=exit_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def exit_after(parent: BaseProcess | None) -> None:
    assert parent is not None
    parent.join()
    os._exit(1)


# Shared by the jobs of this process's multirun.
DRAWING = Drawing()


class Rehearsal(Callback):
    """Compiles the final simulation of a single fit in a thread, after its first steps.

    Failures are ignored, since the end of the run reports them. A process that ends with an error waits for the thread,
    since Python can't exit while it compiles.

    **Arguments:** `splits`: returns the data to predict, by name.
    """

    def __init__(self, splits: Callable[[], dict[str, Dataset]]):
        self.splits = splits
        self.model: NeuralODE | None = None
        self.thread: threading.Thread | None = None

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        self.model = model

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="rehearsal")
            self.thread.start()
        return None

    def on_fit_end(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def run(self) -> None:
        assert self.model is not None
        with suppress(Exception):
            compile_simulation(self.model, self.splits())
            load_plots()


class MovingPicture(Callback):
    """Draws the best model so far while a run trains, in a thread, until the picture of the fit replaces it.

    It takes a twentieth of the time. Failures are ignored. A process that ends with an error waits for the thread, as
    for a rehearsal.

    **Arguments:**

    - `splits`: returns the data to predict, by name.
    - `picture`: the file to write.
    - `trajectories`: names of the trajectories to draw.
    """

    def __init__(self, splits: Callable[[], dict[str, Dataset]], picture: Path, trajectories: Sequence[str]):
        self.splits, self.picture, self.trajectories = splits, picture, trajectories
        self.model_of: ModelOf | None = None
        self.thread: threading.Thread | None = None
        self.due = 0.0

    def on_training_start(self, model_of: ModelOf) -> None:
        self.model_of = model_of
        # Each attempt recompiles its programs, which is not worthwhile for short attempts.
        self.due = max(self.due, time.perf_counter() + MIN_PICTURE_PAUSE)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        if self.model_of is None or time.perf_counter() < self.due or (self.thread and self.thread.is_alive()):
            return None
        record = leading(records, state)
        best = state.members[record.member].best
        if best.is_evaluated:
            arguments = (self.model_of(best, record.member), record.step)
            self.thread = threading.Thread(target=self.draw, args=arguments, name="picture")
            self.thread.start()
        return None

    def end(self) -> None:
        """Waits for an unfinished plot."""
        if self.thread is not None:
            self.thread.join()

    def draw(self, model: NeuralODE, step: int) -> None:
        began = time.perf_counter()
        with suppress(Exception):
            splits = self.splits()
            if sum(part.ys.size for part in splits.values()) <= MAX_DRAWN_VALUES:
                curves = Curves.of(simulate_splits(model, splits, pictured=self.trajectories), {})
                self.picture.parent.mkdir(exist_ok=True)
                write_file(self.picture, png_of_fit(curves, f"the best model after {step} steps", self.trajectories))
        now = time.perf_counter()
        self.due = max(now + MIN_PICTURE_PAUSE, began + (now - began) / MAX_PICTURE_SHARE)
