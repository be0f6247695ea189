"""The callbacks of a run: its log, checkpoints, progress display, and signals that end it with its state saved."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, runtime_checkable

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..fitting.candidates import FIRST_ATTEMPT
from ..fitting.progress import Display, leading
from ..model.neural_ode import NeuralODE
from ..storage.checkpoint import Checkpoints
from ..storage.model_file import describe_part
from ..training.callback import (
    AbstractLogger,
    Callback,
    MLflow,
    Record,
    RunState,
    Template,
    TensorBoard,
    WeightsAndBiases,
)
from .config.build import names_of_loggers
from .config.composition import ConfigError
from .run_directory import RunDirectory, flatten

# Signals of terminals, schedulers and limits on processor time; Slurm can be set to warn with SIGUSR1.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGXCPU") if hasattr(signal, name)
)


# Seconds from Ctrl-C to exit, kept short for the user; the saved state is already on disk.
PATIENCE_AT_CTRL_C = 1.7


class Interruption:
    """A context manager that records the first signal to end; a second one ends the process immediately.

    After Ctrl-C the process ends within two seconds, even during compilation, when Python runs no handlers: the signal
    wakes a thread for this. Signals that the process ignores, such as SIGHUP under `nohup`, stay ignored.

    **Arguments:** `say`: called with a message for the user at the first signal. `leave`: called before the thread ends
    the process.

    - `number`: the signal's number, or `None` before the first signal.
    """

    def __init__(self, say: Callable[[str], object], leave: Callable[[], object] = str):
        self.say = say
        self.leave = leave
        self.number: int | None = None

    def __enter__(self) -> "Interruption":
        heard = [kind for kind in SIGNALS if signal.getsignal(kind) is not signal.SIG_IGN]
        self._before = {kind: signal.signal(kind, lambda number, _: self.note(number)) for kind in heard}
        self._ended = threading.Event()
        self._bell, bell = socket.socketpair()
        bell.setblocking(False)
        self._ring = bell
        self._other_ring = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        signal.set_wakeup_fd(self._other_ring)
        self._ring.close()  # Ends the thread.
        for kind, old in self._before.items():
            signal.signal(kind, old)

    def _watch(self) -> None:
        """Ends the process in time after Ctrl-C, and at once after a second signal."""
        is_second = False
        with self._bell:
            while number := self._bell.recv(1):
                if is_second and number[0] in SIGNALS:
                    os._exit(128 + number[0])  # Python's handler would wait for a program that might never end.
                is_second |= number[0] in SIGNALS
                if number[0] == signal.SIGINT and not self._ended.wait(PATIENCE_AT_CTRL_C):
                    with suppress(Exception):  # For example a full disk.
                        self.leave()
                    os._exit(128 + signal.SIGINT)

    def note(self, number: int) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        self.say("stopping; send the signal again to stop immediately")

    @property
    def name(self) -> str:
        """The signal's name, such as `SIGTERM`."""
        return signal.Signals(self.number or signal.SIGTERM).name

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal ends: 128 plus its number."""
        return 128 + (self.number or signal.SIGTERM)


@runtime_checkable
class Pruner(Protocol):
    """A run's trial in a search, which can end the run early."""

    interruption: Interruption

    def judge(self, step: int, loss: float) -> str | None:
        """Takes the validation loss at a chunk's end; returns the reason to end the run, or `None` to continue."""
        ...


class StopOnSignal(Callback):
    """Ends a fit at the end of the chunk in which a signal arrives."""

    def __init__(self, interruption: Interruption):
        self.interruption = interruption

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        return None if self.interruption.number is None else f"by {self.interruption.name}"

    def on_steps(self, step: int, state: RunState) -> str | None:
        return self.on_chunk_end([], state)


class RunLogger(Callback):
    """Writes a fit's log and checkpoints, shows its progress, and ends it on a signal.

    **Arguments:**

    - `config`: the job's config.
    - `files`: the run directory to write to.
    - `console`, `display`: for notes and for progress.
    - `interruption`: the signal that can end the run.
    - `trial`: the run's trial in a search, which can also end it; `None` outside of a search.
    """

    def __init__(
        self,
        config: DictConfig,
        files: RunDirectory,
        console: Console,
        display: Display,
        interruption: Interruption,
        trial: Pruner | None = None,
    ):
        self.config = config
        self.files = files
        self.console = console
        self.display = display
        self.interruption = interruption
        self.trial = trial
        self.pruned = False
        self.checkpoints: Checkpoints  # Set in `on_fit_start`, after the model is checked.
        self.attempt = 1
        self.attempt_name = FIRST_ATTEMPT
        self.before = 0.0

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        describe_part(model, "model", {})  # Raises before training if the model file can't hold the model.
        self.checkpoints = Checkpoints(self.files.checkpoints, run=self.files.identity())
        for note in notes:
            self.console.print(note, soft_wrap=True, markup=False)

    def on_trial(self, what: str) -> None:
        self.display.say(f"trying {what}")
        if stop := self.stop_by_signal():
            raise KeyboardInterrupt(stop)

    def on_opening(self, name: str) -> None:
        self.attempt_name = name

    def on_attempt(self, name: str, why: str) -> None:
        self.attempt += 1
        self.attempt_name = name
        self.console.print(f"attempt {self.attempt}: {name}, since {why}", soft_wrap=True, markup=False)
        self.display.does(f"preparing {name}")
        self.checkpoints = Checkpoints(self.files.checkpoints_of(self.attempt), run=self.files.identity())

    def restore(self, template: Template) -> RunState | None:
        config = self.config
        self.checkpoints.check_room(template(0, 0))
        restored = self.checkpoints.restore(template, config.resume_from) if config.resume else None
        if config.resume and restored is None and self.attempt == 1:
            raise ConfigError(f"resume={config.resume} has no checkpoint yet; start the run again.")
        # Later attempts have rows, too.
        later = self.files.last_step_after(self.attempt) if config.resume else None
        step = later or (-1 if restored is None else restored.step)
        # The first attempt can have been fitted without training.
        begins = self.attempt == 1 or restored is not None or not self.files.metrics.is_file()
        rows = self.files.begin_metrics(step) if begins else self.files.read_metrics()
        self.before = rows[-1]["seconds"] if rows else 0.0
        if restored is not None:
            self.console.print(f"resuming from step {step}")
        return restored

    def on_stage_compile(self, stage: str, steps: int) -> None:
        self.display.announce(stage, steps)

    def on_stage_start(self, stage: str) -> None:
        self.display.began(stage)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        records = [replace(record, seconds=record.seconds + self.before) for record in records]
        self.files.add_metrics(records, self.attempt_name)
        best = min(records, key=lambda record: record.judged_loss)
        self.checkpoints.save(state, best.judged_loss)
        self.display.show(leading(records, state), state)
        if self.trial is not None and best.validation_loss is not None:
            given_up = self.trial.judge(best.step, best.validation_loss)
            self.pruned = given_up is not None
            if given_up:
                return given_up
        return self.stop_by_signal()

    def on_steps(self, step: int, state: RunState) -> str | None:
        self.display.show_steps(step - state.offset)
        stop = self.stop_by_signal()
        if stop is not None:  # The run might not have finished a chunk yet.
            self.checkpoints.save(state)
        return stop

    def stop_by_signal(self) -> str | None:
        """Returns the reason to stop if a signal has arrived."""
        if self.interruption.number is None:
            return None
        return f"by {self.interruption.name}; continue with resume={self.files.path}"


def make_loggers(config: DictConfig, files: RunDirectory) -> list[AbstractLogger]:
    """Builds the config's loggers, with its keys as their settings."""
    settings = flatten(OmegaConf.to_container(config, resolve=True))
    folder, name = files.path.absolute(), "/".join(files.path.absolute().parts[-2:])
    makers = {
        "tensorboard": lambda: TensorBoard(folder / "tensorboard", settings),
        "mlflow": lambda: MLflow(name, settings=settings),
        "wandb": lambda: WeightsAndBiases(folder, name, settings=settings),
    }
    return [makers[logger]() for logger in names_of_loggers(config.logger)]
