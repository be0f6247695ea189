"""The files that a run leaves behind."""

import csv
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from .dataset import Dataset
from .loop import Record
from .model_file import write

# Enough digits for a float32, and no noise after them.
FLOAT = "%.8g"
COLUMNS = [field.name for field in fields(Record)]


class RunExists(ValueError):
    """A new run was to begin in the directory of another."""


class RunDirectory:
    """Names and writes the files of a run.

    **Arguments:**

    - `path`: the directory; made if absent.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.csv"
        self.model = self.path / "model.safetensors"
        self.plots = self.path / "plots"
        self.predictions = self.path / "predictions.csv"
        self.summary = self.path / "summary.json"

    def check_unused(self) -> None:
        """Refuses a directory that holds a run already.

        **Raises:** `ValueError` that says how to go on with it.
        """
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            raise RunExists(
                f"{self.path} already holds a run; go on with it by resume={self.path}, "
                "or choose another hydra.run.dir."
            )

    def begin_metrics(self, until: int) -> list[dict[str, Any]]:
        """Keeps the rows up to step `until`, drops those after it, and gives them back."""
        rows = [row for row in self.read_metrics() if row["step"] <= until]
        with open(self.metrics, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({key: text(value) for key, value in row.items()} for row in rows)
        return rows

    def add_metrics(self, record: Record) -> None:
        with open(self.metrics, "a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow({key: text(value) for key, value in asdict(record).items()})

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.csv`, numbers as numbers."""
        if not self.metrics.is_file():
            return []
        with open(self.metrics, newline="") as file:
            return [{key: number(key, value) for key, value in row.items()} for row in csv.DictReader(file)]

    def write_summary(self, summary: dict[str, Any]) -> None:
        write(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def write_predictions(self, splits: dict[str, Dataset], predicted: dict[str, np.ndarray]) -> None:
        """A row for each measured time: split, trajectory, time, inputs, and each state as measured and predicted."""
        frames = [predictions_frame(part, predicted[name], name) for name, part in splits.items()]
        import pandas as pd

        write(self.predictions, pd.concat(frames).to_csv(index=False, float_format=FLOAT).encode())


def predictions_frame(data: Dataset, predicted: np.ndarray, split: str | None = None):
    """A data frame with a row for each row of `data` that counts."""
    import pandas as pd

    at = data.valid & data.scored
    columns: dict[str, Any] = {} if split is None else {"split": [split] * int(at.sum())}
    columns["trajectory"] = np.repeat(np.array(data.trajectories), at.sum(axis=1))
    columns[data.time] = data.ts[at]
    columns |= {name: data.us[at][:, index] for index, name in enumerate(data.inputs)}
    for index, name in enumerate(data.states):
        columns[name] = data.ys[at][:, index]
        columns[f"{name}_predicted"] = predicted[at][:, index]
    return pd.DataFrame(columns)


def text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def number(key: str, value: str) -> Any:
    if key == "stage":
        return value
    if value == "":
        return None
    return int(value) if key in ("step", "evaluations", "failed_solves") else float(value)
