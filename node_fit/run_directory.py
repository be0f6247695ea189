"""The files that a run leaves behind."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import steps_in
from .dataset import Dataset
from .disk import PROBE, locked, sweep, write
from .observer import Record
from .resuming import RECORD

# Enough digits for a float32, and no noise after them.
FLOAT = "%.8g"
Edges = tuple[np.ndarray, np.ndarray]
SIDES = ("lower", "upper")
COLUMNS = [field.name for field in fields(Record)]


class RunExists(ValueError):
    """A run was to begin or to go on in a directory that belongs to another."""


class OtherData(ValueError):
    """A run was to go on with other data than it began with."""


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
        self.config = self.path / "config.yaml"
        self.record = self.path / RECORD

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out of the directory for a block of code, and sweeps what a killed one left there.

        **Raises:** `RunExists` if a process is at work in the directory.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock"))
            except BlockingIOError:
                raise RunExists(
                    f"a process is at work in {self.path}; wait for its end, stop it, or choose another hydra.run.dir."
                ) from None
            self.sweep()
            yield

    def sweep(self) -> None:
        """Removes half-written files of a process that was killed."""
        for path in (self.metrics, self.model, self.predictions, self.summary, self.record):
            sweep(path.parent, path.name)
        for path in self.checkpoints.glob(f"{PROBE}*"):
            path.unlink(missing_ok=True)

    def check_unused(self) -> None:
        """Refuses a directory that holds a run already.

        **Raises:** `ValueError` that says how to go on with it.
        """
        if self.holds_run():
            raise RunExists(
                f"{self.path} already holds a run; go on with it by resume={self.path} or resume=auto, "
                "or choose another hydra.run.dir."
            )

    def holds_run(self) -> bool:
        """Whether there is a run to go on with."""
        return bool(steps_in(self.checkpoints))

    def write_record(self, command: Mapping[str, Any], data: Mapping[str, Dataset]) -> None:
        """Keeps how the run was begun, and of which data it is."""
        content = {**command, "data": {name: fingerprint(part) for name, part in data.items()}}
        write(self.record, (json.dumps(content, indent=2) + "\n").encode())

    def check_data(self, data: Mapping[str, Dataset]) -> None:
        """Refuses other data than those of the record; the test data, which train nothing, may change.

        **Raises:** `OtherData` that says what differs.
        """
        before = json.loads(self.record.read_text())["data"]
        for name in ("train", "validation"):
            then, now = before.get(name), fingerprint(data[name]) if name in data else None
            if then != now:
                raise OtherData(
                    f"the {name} data are not those that {self.path} began with: then {brief(then)}, now {brief(now)}; "
                    "bring them back, or start a new run."
                )

    def begin_metrics(self, until: int) -> list[dict[str, Any]]:
        """Keeps the rows up to step `until`, drops those after it, and gives them back."""
        rows = [row for row in self.read_metrics() if row["step"] <= until]
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({key: text(value) for key, value in row.items()} for row in rows)
        write(self.metrics, file.getvalue().encode())
        return rows

    def add_metrics(self, records: Sequence[Record]) -> None:
        with open(self.metrics, "a", newline="") as file:
            rows = ({key: text(value) for key, value in asdict(record).items()} for record in records)
            csv.DictWriter(file, COLUMNS).writerows(rows)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.csv`, numbers as numbers; without one that a full disk or a kill cut short."""
        if not self.metrics.is_file():
            return []
        with open(self.metrics, newline="") as file:
            whole = [line for line in file if line.endswith("\n")]
        return [{key: number(key, value) for key, value in row.items()} for row in csv.DictReader(whole)]

    def write_summary(self, summary: dict[str, Any]) -> None:
        write(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def write_predictions(
        self, splits: dict[str, Dataset], predicted: dict[str, np.ndarray], bands: dict[str, Edges]
    ) -> None:
        """A row for each measured time: split, trajectory, time, inputs, and each state as measured and predicted."""
        frames = [predictions_frame(part, predicted[name], bands.get(name), name) for name, part in splits.items()]
        import pandas as pd

        write(self.predictions, pd.concat(frames).to_csv(index=False, float_format=FLOAT).encode())


def fingerprint(data: Dataset) -> dict[str, Any]:
    """What tells two datasets apart: names, sizes, and a digest of the numbers."""
    total = hashlib.sha256()
    for array in (data.ts, data.ys, data.us, data.lengths, data.scored):
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return {
        "trajectories": list(data.trajectories),
        "rows": int(data.lengths.sum()),
        "states": list(data.states),
        "inputs": list(data.inputs),
        "sha256": total.hexdigest(),
    }


def brief(print_of: dict[str, Any] | None) -> str:
    """A fingerprint in a few words."""
    if print_of is None:
        return "none"
    channels = ", ".join(print_of["states"] + print_of["inputs"])
    count = len(print_of["trajectories"])
    return f"{print_of['rows']} rows of {channels} in {count} trajectories (sha256 {print_of['sha256'][:12]})"


def predictions_frame(data: Dataset, predicted: np.ndarray, edges: Edges | None = None, split: str | None = None):
    """A data frame with a row for each row of `data` that counts; with the edges of bands if there are some."""
    import pandas as pd

    at = data.valid & data.scored
    columns: dict[str, Any] = {} if split is None else {"split": [split] * int(at.sum())}
    columns["trajectory"] = np.repeat(np.array(data.trajectories), at.sum(axis=1))
    columns[data.time] = data.ts[at]
    columns |= {name: data.us[at][:, index] for index, name in enumerate(data.inputs)}
    for index, name in enumerate(data.states):
        columns[name] = data.ys[at][:, index]
        columns[f"{name}_predicted"] = predicted[at][:, index]
        if edges is not None:
            columns |= {f"{name}_{side}": edge[at][:, index] for side, edge in zip(SIDES, edges, strict=True)}
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
    return int(value) if key in ("step", "evaluations", "failed_solves", "member") else float(value)
