"""The files of a run."""

import csv
import hashlib
import io
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..data.dataset import Dataset
from ..runtime.serialization import Json
from ..storage.checkpoint import steps_in
from ..storage.disk import PROBE_BYTES, lock, sweep, write_file
from ..training.callback import Record
from .resuming import RECORD

if TYPE_CHECKING:
    import pandas

PREDICTION_COLUMNS = [field.name for field in fields(Record)]


class RunExists(ValueError):
    """Raised when a run would start or resume in a directory that belongs to another run or process."""


class OtherData(ValueError):
    """Raised when a run would resume with data that differ from those it was started with."""


class RunDirectory:
    """The directory of a run: names, writes and reads its files.

    **Arguments:**

    - `path`: the directory, created if it does not exist.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        # Whether this process has begun a run here; the files of another are not touched.
        self.ours = False
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.csv"
        self.model = self.path / "model.safetensors"
        self.plots = self.path / "plots"
        self.predictions = self.path / "predictions.csv"
        self.starts = self.path / "starts.json"
        self.summary = self.path / "summary.json"
        self.config = self.path / "config.yaml"
        self.record = self.path / RECORD

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory for a block of code, and removes what a killed process left there.

        **Raises:** `RunExists` if another process holds the lock.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(self.path / ".lock"))
            except BlockingIOError:
                raise RunExists(
                    f"another process is using {self.path}; wait for it, stop it, or choose another hydra.run.dir."
                ) from None
            self.sweep()
            yield

    def check_foreign(self) -> None:
        """Checks that a new run would replace no file that node_fit has not written here.

        **Raises:** `RunExists` that names the first such file.
        """
        others = self.foreign()
        if others:
            raise RunExists(
                f"{others[0]} is in the way, and no run of node_fit has written it; choose another hydra.run.dir, or "
                "move it."
            )

    def foreign(self) -> list[Path]:
        """What is here under the names of a run's files, though no run has begun here."""
        if self.record.is_file():
            return []
        written = (self.metrics, self.model, self.plots, self.predictions, self.config, self.checkpoints, self.starts)
        others = [path for path in written if path.exists() or path.is_symlink()]
        return others + ([self.summary] if self.summary.exists() and not is_summary(self.summary) else [])

    def sweep(self) -> None:
        """Removes half-written files of a killed process."""
        pages = (self.path / name for name in ("report.html", "index.html", ".curves.npz"))
        for path in (self.metrics, self.model, self.predictions, self.starts, self.summary, self.record, *pages):
            sweep(path.parent, path.name)
        for path in self.checkpoints.glob(f"{PROBE_BYTES}*"):
            path.unlink(missing_ok=True)

    def check_unused(self) -> None:
        """Checks that the directory does not hold a run yet.

        **Raises:** `RunExists`, a `ValueError`, that says how to resume the run.
        """
        if self.holds_run():
            raise RunExists(
                f"{self.path} already holds a run; resume it with resume={self.path} or resume=auto, "
                "or choose another hydra.run.dir."
            )
        self.check_foreign()
        self.ours = True

    def holds_run(self) -> bool:
        """Whether there is a run to resume."""
        return bool(steps_in(self.checkpoints)) or self.starts.is_file()

    def write_record(self, command: Mapping[str, object], data: Mapping[str, Dataset]) -> None:
        """Writes a new identity, how the run was started, and the fingerprints of its data."""
        content = {
            "run": secrets.token_hex(16),
            **command,
            "data": {name: fingerprint_data(part) for name, part in data.items()},
        }
        write_file(self.record, (json.dumps(content, indent=2) + "\n").encode())

    def identity(self) -> str | None:
        """What the run's checkpoints carry; `None` for a run of an earlier version."""
        return json.loads(self.record.read_text()).get("run") if self.record.is_file() else None

    def check_data(self, data: Mapping[str, Dataset]) -> None:
        """Checks that the training and validation data are those of the record; test data may change.

        **Raises:** `OtherData` that says what differs.
        """
        before = json.loads(self.record.read_text())["data"]
        for name in ("train", "validation"):
            then, now = before.get(name), fingerprint_data(data[name]) if name in data else None
            if then != now:
                raise OtherData(
                    f"the {name} data differ from those that {self.path} started with: then {shorten_list(then)}, now "
                    f"{shorten_list(now)}; restore them, or start a new run."
                )

    def checkpoints_of(self, attempt: int) -> Path:
        """Where the checkpoints of an attempt are; the first has the folder's top."""
        return self.checkpoints if attempt == 1 else self.checkpoints / f"attempt-{attempt}"

    def last_step_after(self, attempt: int) -> int | None:
        """The last step that a later attempt has saved; None if there is none."""
        later = [step for folder in self.checkpoints.glob("attempt-*") for step in steps_in(folder)]
        here = steps_in(self.checkpoints_of(attempt))
        return max((step for step in later if step > max(here, default=0)), default=None)

    def begin_metrics(self, until: int) -> list[Json]:
        """Drops the rows of `metrics.csv` after step `until`, and returns the remaining rows."""
        rows = [row for row in self.read_metrics() if row["step"] <= until]
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, PREDICTION_COLUMNS)
        writer.writeheader()
        writer.writerows({key: csv_text(value) for key, value in row.items()} for row in rows)
        write_file(self.metrics, file.getvalue().encode())
        return rows

    def add_metrics(self, records: Sequence[Record]) -> None:
        with open(self.metrics, "a", newline="") as file:
            rows = ({key: csv_text(value) for key, value in asdict(record).items()} for record in records)
            csv.DictWriter(file, PREDICTION_COLUMNS).writerows(rows)

    def read_metrics(self) -> list[Json]:
        """Reads the rows of `metrics.csv` and parses their numbers; skips a row that a full disk or kill truncated."""
        if not self.metrics.is_file():
            return []
        with open(self.metrics, newline="") as file:
            whole = [line for line in file if line.endswith("\n")]
        rows = csv.DictReader(whole)
        try:
            if not {"step", "seconds"} <= set(rows.fieldnames or ()) <= set(PREDICTION_COLUMNS):
                raise ValueError
            return [{key: csv_number(key, value) for key, value in row.items()} for row in rows]
        except (ValueError, KeyError, TypeError, AttributeError, csv.Error):
            raise RunExists(
                f"{self.metrics} is not the log of a run, which has the columns {', '.join(PREDICTION_COLUMNS)}; "
                "move it "
                "elsewhere, or choose another hydra.run.dir."
            ) from None

    def write_summary(self, summary: Mapping[str, object]) -> None:
        write_file(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def write_predictions(self, frame: "pandas.DataFrame") -> None:
        """Writes a row for each time of a split; see `Assessment.frame`."""
        write_file(self.predictions, frame.to_csv(index=False).encode())


def is_summary(path: Path) -> bool:
    """Whether a file is a summary of node_fit's, which a run that could not begin leaves alone in its directory."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"status", "overrides"} <= set(content)


def fingerprint_data(data: Dataset) -> Json:
    """The identity of a dataset: names, sizes, and a SHA-256 digest of its numbers."""
    total = hashlib.sha256()
    sigma = () if data.sigma is None else (data.sigma,)
    events = () if data.events is None else (data.events.factor, data.events.shift)
    for array in (data.ts, data.ys, data.us, data.lengths, data.scored, *sigma, *events):
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    total.update("".join(data.events.states if data.events else ()).encode())
    return {
        "trajectories": list(data.trajectories),
        "rows": int(data.lengths.sum()),
        "states": list(data.states),
        "inputs": list(data.inputs),
        "sha256": total.hexdigest(),
    }


def shorten_list(digest: Json | None) -> str:
    """A short text for a fingerprint."""
    if digest is None:
        return "none"
    channels = ", ".join(digest["states"] + digest["inputs"])
    count = len(digest["trajectories"])
    return f"{digest['rows']} rows of {channels} in {count} trajectories (sha256 {digest['sha256'][:12]})"


def csv_text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def csv_number(key: str, value: str) -> str | float | None:
    if key == "stage":
        return value
    if value == "":
        return None
    return int(value) if key in ("step", "evaluations", "failed_solves", "member") else float(value)
