"""The state of a run at the end of a chunk, and the callbacks that receive it; loggers are callbacks."""

import abc
import importlib
import logging
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ..model.neural_ode import NeuralODE
from .step import Iterate, TrainState

# How a fit ended: `converged` if its optimizer finds nothing lower, `stopped` before that, usually because the
# validation loss rose, `completed` after all of its steps.
Status = Literal["converged", "stopped", "completed", "interrupted", "pruned", "failed"]
# Statuses of a fit that ended normally.
ENDED: tuple[Status, ...] = ("converged", "stopped", "completed")


@dataclass(frozen=True)
class Record:
    """A chunk of a member's training, as a row of the log.

    `step` counts over all stages. Losses are mean squared residuals in scaled units, and `seconds` count from the start
    of the run. The `member` of a single fit is 0.
    """

    step: int
    stage: str
    train_loss: float
    validation_loss: float | None
    gradient_norm: float
    learning_rate: float
    evaluations: int
    failed_solves: int
    seconds: float
    member: int = 0

    @property
    def judged_loss(self) -> float:
        """The validation loss, or the training loss without validation data; infinity for NaN."""
        loss = self.train_loss if self.validation_loss is None else self.validation_loss
        return loss if math.isfinite(loss) else math.inf


@dataclass(frozen=True)
class RunState:
    """The state of a run between two chunks.

    - `stage`: index of the stage.
    - `offset`: number of steps before that stage, the maximum over the members.
    - `members`: each member's state in the stage, on the host.
    """

    stage: int
    offset: int
    members: tuple[TrainState, ...]

    @property
    def step(self) -> int:
        """Number of steps over all stages, the maximum over the members."""
        return self.offset + max(int(np.asarray(state.step)) for state in self.members)

    @property
    def nodes(self) -> int:
        """Number of nodes of the held steps; 0 without held steps."""
        return self.members[0].nodes

    def of(self, member: int) -> "RunState":
        """Returns the state of one member only."""
        return RunState(self.stage, self.offset, (self.members[member],))


# Maps the index of a stage and a number of nodes of held steps to states of that structure.
Template = Callable[[int, int], tuple[TrainState, ...]]


# Maps an iterate and the number of its member to the model with these parameters.
ModelOf = Callable[[Iterate, int], NeuralODE]


class Callback:
    """Hooks that a fit calls between chunks; a callback can stop the fit.

    By default, every hook does nothing. This callback stops when the loss is low enough:

    ```python
    class StopBelow(node_fit.Callback):
        def __init__(self, loss):
            self.loss = loss

        def on_chunk_end(self, records, state):
            if records[0].train_loss < self.loss:
                return f"the loss is below {self.loss}"


    node_fit.fit(train, callbacks=[StopBelow(1e-3)])
    ```
    """

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        """The model has its initial parameters, and nothing is compiled yet. `notes` explain the choices made."""

    def on_trial(self, what: str) -> None:
        """A part of a search, such as a linear model or a generation of several starts, is about to begin.

        A `KeyboardInterrupt` ends the search and keeps the fits completed so far.
        """

    def on_opening(self, name: str) -> None:
        """The first fit is about to begin: the one with the chosen options, or a named preliminary one."""

    def on_attempt(self, name: str, why: str) -> None:
        """Another fit is about to begin since the best so far is poor, for the reason `why`; step counts continue."""

    def on_training_start(self, model_of: ModelOf) -> None:
        """The stages of a fit, or of another attempt, are about to run.

        `model_of(state.members[member].best, member)` is the model with the best parameters of a state.
        """

    def restore(self, template: Template) -> RunState | None:
        """Returns the state to resume from; None to start. `template` makes states of the structure of a stage."""
        return None

    def on_stage_compile(self, stage: str, steps: int) -> None:
        """A stage of at most `steps` steps is about to be compiled; small fits of equations run without."""

    def on_stage_start(self, stage: str) -> None:
        """The stage is about to run."""

    def on_steps(self, step: int, state: RunState) -> str | None:
        """A long chunk has reached a step; called every few seconds. Return a reason to stop, or None.

        A stop discards the chunk: the run ends in `state`, the state before the chunk.
        """
        return None

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        """A chunk has ended, with a record for each participating member. Return a reason to stop, or None."""
        return None

    def on_fit_end(self) -> None:
        """The training has ended, perhaps with an error or Ctrl-C; release resources here."""


class Callbacks(Callback):
    """Several callbacks combined; the first one with a state to restore, or a reason to stop, decides."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = callbacks

    def on_fit_start(self, model: NeuralODE, notes: Sequence[str]) -> None:
        for callback in self.callbacks:
            callback.on_fit_start(model, notes)

    def on_trial(self, what: str) -> None:
        for callback in self.callbacks:
            callback.on_trial(what)

    def on_opening(self, name: str) -> None:
        for callback in self.callbacks:
            callback.on_opening(name)

    def on_attempt(self, name: str, why: str) -> None:
        for callback in self.callbacks:
            callback.on_attempt(name, why)

    def on_training_start(self, model_of: ModelOf) -> None:
        for callback in self.callbacks:
            callback.on_training_start(model_of)

    def restore(self, template: Template) -> RunState | None:
        states = [callback.restore(template) for callback in self.callbacks]
        return next((state for state in states if state is not None), None)

    def on_stage_compile(self, stage: str, steps: int) -> None:
        for callback in self.callbacks:
            callback.on_stage_compile(stage, steps)

    def on_stage_start(self, stage: str) -> None:
        for callback in self.callbacks:
            callback.on_stage_start(stage)

    def on_steps(self, step: int, state: RunState) -> str | None:
        reasons = [callback.on_steps(step, state) for callback in self.callbacks]
        return next((reason for reason in reasons if reason is not None), None)

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        reasons = [callback.on_chunk_end(records, state) for callback in self.callbacks]
        return next((reason for reason in reasons if reason is not None), None)

    def on_fit_end(self) -> None:
        for callback in self.callbacks:
            callback.on_fit_end()


LOGGERS_LOG = logging.getLogger(__name__)
# Fields of a record that are not figures.
LOGGER_WORDS = ("step", "stage", "member")


class AbstractLogger(Callback, abc.ABC):
    """A callback that sends the figures of each record, such as `train_loss`, to a tracker, by step.

    The figures of several members are prefixed with `member0/`, `member1/`, ... The tracker is opened at the end of the
    first chunk and closed when the fit ends. If a tracker fails, the fit warns and continues without it.

    **Raises:** `ValueError` with the command to install its package if that is missing.
    """

    # The package to import, and the extra that installs it.
    package: str
    extra: str

    def __init__(self):
        self.module = import_extra(self.package, self.extra)
        self.tracker: Any = None
        self.works = True

    @abc.abstractmethod
    def open(self, step: int) -> object:
        """Opens the tracker of a fit whose first figures belong to this step."""

    @abc.abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Sends the figures of a step."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the tracker."""

    def on_chunk_end(self, records: Sequence[Record], state: RunState) -> str | None:
        if not self.works:
            return None
        with self.tolerant():
            if self.tracker is None:
                self.tracker = self.open(records[0].step)
            for record in records:
                self.write(figures_of(record, several=len(state.members) > 1), record.step)
        return None

    def on_fit_end(self) -> None:
        if self.tracker is not None and self.works:
            with self.tolerant():
                self.close()
        self.tracker, self.works = None, True

    @contextmanager
    def tolerant(self) -> Generator[None]:
        """Turns an error into a warning and disables the tracker for this fit."""
        try:
            yield
        except Exception as error:  # Trackers write to disks and networks and can raise any exception.
            self.works = False
            LOGGERS_LOG.warning(
                "%s takes no more records, and the fit goes on (%s: %s)",
                type(self).__name__,
                type(error).__name__,
                error,
            )


class TensorBoard(AbstractLogger):
    """Shows a fit in TensorBoard: `tensorboard --logdir FOLDER`.

    **Arguments:**

    - `folder`: the folder of the event files. A fit that resumes there replaces the steps that it repeats.
    - `settings`: the settings of the fit by name; shown as text.

    **Raises:** `ValueError` if tensorboardX is not installed.
    """

    package = "tensorboardX"
    extra = "tensorboard"

    def __init__(self, folder: str | Path = "tensorboard", settings: Mapping[str, object] | None = None):
        super().__init__()
        self.folder = Path(folder)
        self.settings = dict(settings or {})

    def open(self, step: int) -> object:
        writer = self.module.SummaryWriter(str(self.folder), purge_step=step)
        if self.settings:
            rows = [f"| {name} | {value} |" for name, value in self.settings.items()]
            writer.add_text("settings", "\n".join(["| key | value |", "|---|---|", *rows]))
        return writer

    def write(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self.tracker.add_scalar(name, value, step)
        self.tracker.flush()

    def close(self) -> None:
        self.tracker.close()


class MLflow(AbstractLogger):
    """Logs a fit as a run in MLflow, in the store of `MLFLOW_TRACKING_URI` or else in MLflow's default store.

    **Arguments:**

    - `name`: the name of the run.
    - `experiment`: the experiment of the run; `MLFLOW_EXPERIMENT_NAME`, or `node_fit`, if None.
    - `settings`: the settings of the fit by name; logged as the run's parameters.

    **Raises:** `ValueError` if mlflow is not installed.
    """

    package = "mlflow"
    extra = "mlflow"

    def __init__(
        self, name: str | None = None, experiment: str | None = None, settings: Mapping[str, object] | None = None
    ):
        super().__init__()
        self.name = name
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "node_fit")
        self.settings = dict(settings or {})
        self.run = ""

    def open(self, step: int) -> object:
        client = (
            self.module.MlflowClient()
        )  # Simultaneous fits need one run each, which MLflow's functions don't allow.
        existing = client.get_experiment_by_name(self.experiment)
        number = client.create_experiment(self.experiment) if existing is None else existing.experiment_id
        self.run = client.create_run(number, run_name=self.name).info.run_id
        for name, value in self.settings.items():
            client.log_param(self.run, name, value)
        return client

    def write(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self.tracker.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.tracker.set_terminated(self.run)


class WeightsAndBiases(AbstractLogger):
    """Logs a fit as a run of Weights & Biases, offline unless `WANDB_MODE=online`; `wandb sync` uploads it.

    **Arguments:**

    - `folder`: the folder in which wandb creates its own.
    - `name`, `project`: the name and the project of the run.
    - `settings`: the settings of the fit by name; the run's config.

    **Raises:** `ValueError` if wandb is not installed.
    """

    package = "wandb"
    extra = "wandb"

    def __init__(
        self,
        folder: str | Path = ".",
        name: str | None = None,
        project: str = "node_fit",
        settings: Mapping[str, object] | None = None,
    ):
        super().__init__()
        self.folder = Path(folder)
        self.name = name
        self.project = project
        self.settings = dict(settings or {})

    def open(self, step: int) -> object:
        mode = os.environ.get("WANDB_MODE", "offline")
        return self.module.init(
            project=self.project,
            name=self.name,
            dir=str(self.folder),
            mode=mode,
            config=self.settings,
            reinit="create_new",
        )

    def write(self, figures: Mapping[str, float], step: int) -> None:
        self.tracker.log(dict(figures), step=step)

    def close(self) -> None:
        self.tracker.finish()


# Loggers by their names in the config.
LOGGERS: dict[str, type[AbstractLogger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def import_extra(package: str, extra: str) -> ModuleType:
    """Imports a package that an extra installs.

    **Raises:** `ValueError` with the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(
            f"logger={extra} needs {package}, which can't be imported ({error}); install it with pip install "
            f"'node_fit[{extra}]'."
        ) from error


def figures_of(record: Record, *, several: bool) -> dict[str, float]:
    """The figures of a record by name, without those that it lacks."""
    prefix = f"member{record.member}/" if several else ""
    return {
        prefix + key: value for key, value in asdict(record).items() if key not in LOGGER_WORDS and value is not None
    }
