"""The jobs of a multirun, best first."""

import csv
import io
import json
import math
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.table import Table as RichTable

from .console import figure, make_console

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


class Leaderboard(Callback):
    """Writes `leaderboard.csv` beside the jobs of a multirun, and shows it, sorted by validation NRMSE."""

    # Jobs of this process's multirun that did not end well; the command's exit code tells of them.
    failures = 0

    def __init__(self):
        self.began = time.time()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        directory = Path(config.hydra.sweep.dir).absolute()
        rows = sorted(
            (row(path) for path in directory.glob("*/summary.json") if path.stat().st_mtime >= self.began), key=rank
        )
        Leaderboard.failures = sum(entry["status"] in ("failed", "interrupted") for entry in rows)
        write(directory / "leaderboard.csv", rows)
        show(rows)
        make_console().print(f"leaderboard: {directory / 'leaderboard.csv'}", soft_wrap=True, markup=False)


def row(path: Path) -> dict[str, Any]:
    """The line of one job, from its summary."""
    summary = json.loads(path.read_text())
    metrics = summary.get("metrics", {})
    nrmse = {f"{name}_nrmse": (metrics.get(name) or {}).get("nrmse") for name in ("validation", "train", "test")}
    return {
        "job": path.parent.name,
        "overrides": " ".join(summary.get("overrides", [])),
        "status": summary["status"],
        **nrmse,
        "steps": summary.get("steps"),
        "compiles": summary.get("compiles"),
        "seconds": summary.get("seconds", {}).get("total"),
    }


def rank(entry: dict[str, Any]) -> tuple[bool, float, float]:
    """By validation NRMSE; by training NRMSE where nothing was held out for validation; failures last."""
    validation, train = (math.inf if entry[key] is None else entry[key] for key in ("validation_nrmse", "train_nrmse"))
    return entry["status"] == "failed", validation, train


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())


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
