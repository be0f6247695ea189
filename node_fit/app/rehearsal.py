"""What a run's end needs, made ready while it trains: compiled predictions, and the library that draws."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..data.dataset import Dataset
from ..evaluation.simulation import compile_simulation
from ..model.neural_ode import NeuralODE
from ..training.callback import Callback, Record, RunState
from .drawing import load


class Rehearsal(Callback):
    """Rehearses the end of a single fit in a thread, once its first steps have been taken.

    A failure is passed over: the end itself will report it.

    **Arguments:** `splits`: returns the data that will be predicted, by name.
    """

    def __init__(self, splits: Callable[[], dict[str, Dataset]]):
        self.splits = splits
        self.model: NeuralODE | None = None
        self.thread: threading.Thread | None = None

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        self.model = model

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="rehearsal", daemon=True)
            self.thread.start()
        return None

    def on_fit_end(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def run(self) -> None:
        assert self.model is not None
        with suppress(Exception):
            compile_simulation(self.model, self.splits())
            load()
