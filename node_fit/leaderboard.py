"""The jobs of a multirun, best first."""

import csv
import io
import json
import math
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.table import Table as RichTable

from .console import figure, make_console
from .disk import write as write_whole

COLUMNS: tuple[str, ...] = (
    "job",
    "overrides",
    "status",
    "validation_nrmse",
    "train_nrmse",
    "test_nrmse",
    "steps",
    "compiles",
    "seconds",
)
# Below all others. A job without a summary of its own is lost: killed, or out of memory.
LAST = ("pruned", "running", "failed", "lost")
FAILURES = ("interrupted", "failed", "lost")


class Leaderboard(Callback):
    """Writes `leaderboard.csv` beside the jobs of a multirun, and shows it, sorted by validation NRMSE."""

    # Jobs of this process's multirun that did not end well; the command's exit code tells of them.
    failures = 0
    # What is to be written if a launcher gives up.
    under_way: "Leaderboard | None" = None

    def __init__(self):
        self.began = time.time()
        self.directory = Path()

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self.directory = Path(config.hydra.sweep.dir).absolute()
        Leaderboard.under_way = self
        if not runs_here(config.hydra):
            # The launcher ends its processes when a KeyboardInterrupt reaches it.
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self.finish()

    @staticmethod
    def write_what_there_is() -> None:
        """For a multirun that an error ends."""
        if Leaderboard.under_way:
            Leaderboard.under_way.finish()

    def finish(self) -> None:
        Leaderboard.under_way = None
        begun = (path.parent.parent for path in self.directory.glob("*/.hydra/overrides.yaml") if self.is_new(path))
        rows = [row(job, "lost" if not self.is_new(job / "summary.json") else None) for job in begun]
        Leaderboard.failures = sum(entry["status"] in FAILURES for entry in rows)
        publish(self.directory, rows)

    def is_new(self, path: Path) -> bool:
        return path.is_file() and path.stat().st_mtime >= self.began


def runs_here(hydra: Any) -> bool:
    """Whether Hydra's config has the jobs of a multirun in this process, one after another."""
    return hydra.launcher._target_.endswith("BasicLauncher")


def publish(directory: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes and shows the lines of jobs, the best first."""
    ranked = sorted(rows, key=rank)
    write(directory / "leaderboard.csv", ranked)
    show(ranked)
    make_console().print(f"leaderboard: {directory / 'leaderboard.csv'}", soft_wrap=True, markup=False)


def row(job: Path, status: str | None = None) -> dict[str, Any]:
    """The line of one job.

    **Arguments:**

    - `job`: its directory.
    - `status`: instead of that of its summary, which it does not have or which is of an earlier time.
    """
    if status is None:
        summary = json.loads((job / "summary.json").read_text())
    else:
        words = job / ".hydra" / "overrides.yaml"
        summary = {"status": status, "overrides": list(OmegaConf.load(words)) if words.is_file() else []}
    metrics = summary.get("metrics", {})
    nrmse = {f"{name}_nrmse": (metrics.get(name) or {}).get("nrmse") for name in ("validation", "train", "test")}
    return {
        "job": job.name,
        "overrides": " ".join(word for word in summary.get("overrides", []) if word != "resume=auto"),
        "status": summary["status"],
        **nrmse,
        "steps": summary.get("steps"),
        "compiles": summary.get("compiles"),
        "seconds": summary.get("seconds", {}).get("total"),
    }


def rank(entry: dict[str, Any]) -> tuple[int, float, float]:
    """By validation NRMSE; by training NRMSE where nothing was held out for validation; failures last."""
    validation, train = (math.inf if entry[key] is None else entry[key] for key in ("validation_nrmse", "train_nrmse"))
    return (LAST.index(entry["status"]) + 1 if entry["status"] in LAST else 0), validation, train


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the jobs with the overrides that tell them apart."""
    console = make_console()
    given = [set(entry["overrides"].split()) for entry in rows]
    common = set.intersection(*given) if len(given) > 1 else set()
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("job")
    table.add_column("overrides", overflow="fold")
    table.add_column("status", no_wrap=True)
    for title in ("validation\nNRMSE", "train\nNRMSE", "test\nNRMSE", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in rows:
        apart = "\n".join(word for word in entry["overrides"].split() if word not in common)
        figures = (entry[key] for key in ("validation_nrmse", "train_nrmse", "test_nrmse", "seconds"))
        table.add_row(entry["job"], apart, entry["status"], *(figure(number) for number in figures))
    console.print(table)
