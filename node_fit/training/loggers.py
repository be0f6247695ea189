"""Callbacks that show a fit's records in TensorBoard, MLflow or Weights & Biases, each with an extra of its own."""

import abc
import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .callback import Callback, Record, RunState

LOGGERS_LOG = logging.getLogger(__name__)
# What a record has that is no figure.
LOGGER_WORDS = ("step", "stage", "member")


class AbstractLogger(Callback, abc.ABC):
    """Sends the figures of each record, such as `train_loss`, to a tracker, by step.

    The figures of several members stand under `member0/`, `member1/`, ... The tracker is opened at the end of the first
    chunk and closed when the fit ends. A tracker that fails is a warning, and the fit goes on without it.

    **Raises:** `ValueError` if its package is not installed, with the command that installs it.
    """

    # The package to import, and the extra that installs it.
    package: str
    extra: str

    def __init__(self):
        self.module = needed(self.package, self.extra)
        self.tracker: Any = None
        self.works = True

    @abc.abstractmethod
    def open(self, step: int) -> Any:
        """The tracker of a fit whose first figures are those of a step."""

    @abc.abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Sends the figures of a step."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what `open` began."""

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
    def tolerant(self) -> Iterator[None]:
        """Turns an error into a warning, after which nothing more is sent in this fit."""
        try:
            yield
        except Exception as error:  # Trackers raise what they like, and write to disks and networks.
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

    - `folder`: where the event files go. A fit that resumes there replaces the steps that it repeats.
    - `settings`: what the fit was made with, by name; shown as text.

    **Raises:** `ValueError` if tensorboardX is not installed.
    """

    package = "tensorboardX"
    extra = "tensorboard"

    def __init__(self, folder: str | Path = "tensorboard", settings: Mapping[str, Any] | None = None):
        super().__init__()
        self.folder = Path(folder)
        self.settings = dict(settings or {})

    def open(self, step: int) -> Any:
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
    """Makes a run in MLflow, in the store that `MLFLOW_TRACKING_URI` names, or else in MLflow's own default.

    **Arguments:**

    - `name`: of the run.
    - `experiment`: to which it belongs; `MLFLOW_EXPERIMENT_NAME`, or `node_fit`, if None.
    - `settings`: what the fit was made with, by name; its parameters.

    **Raises:** `ValueError` if mlflow is not installed.
    """

    package = "mlflow"
    extra = "mlflow"

    def __init__(
        self, name: str | None = None, experiment: str | None = None, settings: Mapping[str, Any] | None = None
    ):
        super().__init__()
        self.name = name
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "node_fit")
        self.settings = dict(settings or {})
        self.run = ""

    def open(self, step: int) -> Any:
        client = (
            self.module.MlflowClient()
        )  # Several fits at once have a run each, which MLflow's functions don't allow.
        found = client.get_experiment_by_name(self.experiment)
        number = client.create_experiment(self.experiment) if found is None else found.experiment_id
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
    """Makes a run of Weights & Biases, offline unless `WANDB_MODE=online`; `wandb sync` uploads it.

    **Arguments:**

    - `folder`: in which wandb makes its own folder.
    - `name`, `project`: of the run.
    - `settings`: what the fit was made with, by name; its config.

    **Raises:** `ValueError` if wandb is not installed.
    """

    package = "wandb"
    extra = "wandb"

    def __init__(
        self,
        folder: str | Path = ".",
        name: str | None = None,
        project: str = "node_fit",
        settings: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.folder = Path(folder)
        self.name = name
        self.project = project
        self.settings = dict(settings or {})

    def open(self, step: int) -> Any:
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


# By their names in the config.
LOGGERS: dict[str, type[AbstractLogger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def needed(package: str, extra: str) -> Any:
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
