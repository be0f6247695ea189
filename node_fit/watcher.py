"""What a run writes and shows while it goes on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from omegaconf import DictConfig
from rich.console import Console

from .checkpoint import Checkpoints
from .console import Display
from .interruption import Interruption
from .model import NeuralODE
from .model_file import describe
from .observer import Moment, Record, Silent, Template
from .run_directory import RunDirectory
from .targets import ConfigError


@runtime_checkable
class Trial(Protocol):
    """A run's place in a search."""

    interruption: Interruption

    def judge(self, step: int, loss: float) -> str | None:
        """Takes the validation loss at a chunk's end. Why the run is to end there, if it is."""
        ...


class Heed(Silent):
    """Ends a fit at the end of the chunk in which a signal came."""

    def __init__(self, interruption: Interruption):
        self.interruption = interruption

    def observe(self, records: Sequence[Record], moment: Moment) -> str | None:
        return None if self.interruption.number is None else f"by {self.interruption.name}"


class Watcher(Silent):
    """Follows a fit: writes its log and checkpoints, shows its progress, and passes signals on.

    **Arguments:**

    - `config`: the job's.
    - `files`: where it writes.
    - `console`, `display`: where it shows.
    - `interruption`: what may end the run.
    - `trial`: the search that the run is part of, if it is part of one; it may end the run, too.
    """

    def __init__(
        self,
        config: DictConfig,
        files: RunDirectory,
        console: Console,
        display: Display,
        interruption: Interruption,
        trial: Trial | None = None,
    ):
        self.config = config
        self.files = files
        self.console = console
        self.display = display
        self.interruption = interruption
        self.trial = trial
        self.pruned = False
        self.checkpoints: Checkpoints  # made in `begin`, once the model is sound
        self.before = 0.0

    def begin(self, model: NeuralODE, notes: Sequence[str]) -> None:
        describe(model, "model", {})  # Refuses what the model file can't hold, before anything is trained.
        self.checkpoints = Checkpoints(self.files.checkpoints)
        for note in notes:
            self.console.print(note, soft_wrap=True, markup=False)

    def resume(self, template: Template) -> Moment | None:
        config = self.config
        self.checkpoints.check_room(template(0, 0))
        moment = self.checkpoints.restore(template, config.resume_from) if config.resume else None
        if config.resume and moment is None:
            raise ConfigError(f"resume={config.resume} holds no checkpoint yet; start the run again.")
        step = -1 if moment is None else moment.step
        rows = self.files.begin_metrics(step)
        self.before = rows[-1]["seconds"] if rows else 0.0
        if moment is not None:
            self.console.print(f"going on from step {step}")
        return moment

    def compile_stage(self, stage: str, steps: int) -> None:
        self.display.announce(stage, steps)

    def observe(self, records: Sequence[Record], moment: Moment) -> str | None:
        records = [replace(record, seconds=record.seconds + self.before) for record in records]
        self.files.add_metrics(records)
        best = min(records, key=merit)
        self.checkpoints.save(moment, merit(best))
        self.display.show(best, best.step - moment.offset)
        if self.trial is not None and best.validation_loss is not None:
            given_up = self.trial.judge(best.step, best.validation_loss)
            self.pruned = given_up is not None
            if given_up:
                return given_up
        if self.interruption.number is None:
            return None
        return f"by {self.interruption.name}; go on with resume={self.files.path}"


def merit(record: Record) -> float:
    """What a chunk is judged by: the lower the better, and never a NaN."""
    loss = record.train_loss if record.validation_loss is None else record.validation_loss
    return loss if np.isfinite(loss) else np.inf
