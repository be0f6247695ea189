"""The leaderboard of a multirun or a search: its jobs, best first."""

import contextlib
import csv
import io
import logging
import math
import signal
import time
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import TypedDict, cast

from hydra.conf import HydraConf
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.table import Table as RichTable

from ..report.pages import make_index
from ..report.run_files import Summary, read_summary
from ..storage.files import write_file as write_whole
from .background import DRAWING, warn_on_error
from .console import format_number, make_console

LEADERBOARD_LOG = logging.getLogger(__name__)

LEADERBOARD_COLUMNS: tuple[str, ...] = (
    "job",
    "overrides",
    "status",
    "ranked_by",
    "validation_nrmse",
    "train_nrmse",
    "test_nrmse",
    "steps",
    "compiles",
    "seconds",
)
# These rank below all others. A job without its own summary is lost: it was killed or ran out of memory.
RANKED_LAST = ("pruned", "running", "failed", "lost")
FAILURES = ("interrupted", "failed", "lost")
# Seconds by which the time of a new file can precede the clock.
TICK = 0.05
# A job is clearly better than another if its NRMSE is below this share of the other's.
CLEARLY = 0.9


class JobRow(TypedDict):
    """A row of the leaderboard; None for missing figures."""

    job: str
    overrides: str
    status: str
    ranked_by: str | None
    validation_nrmse: float | None
    train_nrmse: float | None
    test_nrmse: float | None
    steps: int | None
    compiles: int | None
    seconds: float | None


class Leaderboard(Callback):
    """Writes `leaderboard.csv` into the directory of a multirun and prints it, sorted by validation NRMSE."""

    # Number of failed jobs in this process's multirun, for the command's exit code.
    failures = 0
    # Leaderboard to write if a launcher fails.
    under_way: "Leaderboard | None" = None

    def __init__(self):
        self.began = time.time()
        self.directory = Path()
        self.report = True

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        self.directory = Path(config.hydra.sweep.dir).absolute()
        self.report = bool(config.get("report", True))
        Leaderboard.under_way = self
        if runs_here(config.hydra):
            DRAWING.begin()
        else:
            # The launcher ends its worker processes when it gets a KeyboardInterrupt.
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_multirun_end(self, config: DictConfig, **_: object) -> None:
        self.finish()

    @staticmethod
    def write_unfinished() -> None:
        """Writes the leaderboard of a multirun that ended with an error, if files can still be written."""
        if Leaderboard.under_way:
            with contextlib.suppress(OSError):
                Leaderboard.under_way.finish()

    def finish(self) -> None:
        Leaderboard.under_way = None
        begun = (path.parent.parent for path in self.directory.glob("*/.hydra/overrides.yaml") if self.is_new(path))
        rows = [row(job, "lost" if not self.is_new(job / "summary.json") else None) for job in begun]
        Leaderboard.failures = sum(entry["status"] in FAILURES for entry in rows)
        if rows:
            publish(self.directory, rows, report=self.report)

    def is_new(self, path: Path) -> bool:
        return path.is_file() and path.stat().st_mtime >= self.began - TICK


def runs_here(hydra: HydraConf) -> bool:
    """Whether Hydra runs the jobs of a multirun in this process, one after another."""
    return hydra.launcher._target_.endswith("BasicLauncher")


def publish(directory: Path, rows: Iterable[JobRow], *, report: bool) -> None:
    """Writes and prints the rows of a leaderboard, best first, and the jobs' page if `report` is true."""
    ranked = sorted(rows, key=rank_entry)
    if is_foreign(directory / "leaderboard.csv"):
        LEADERBOARD_LOG.warning("%s is not written, since another file has that name", directory / "leaderboard.csv")
        return show(ranked)
    write_leaderboard(directory / "leaderboard.csv", ranked)
    show(ranked)
    make_console().print(describe_winner(ranked), soft_wrap=True)
    make_console().print(f"leaderboard: {directory / 'leaderboard.csv'}", soft_wrap=True, markup=False)
    if report:
        DRAWING.finish()  # The page links to the pages of the jobs.
        with warn_on_error(f"the page of the jobs in {directory} was", directory):
            path = make_index(directory, {entry["job"]: entry["status"] for entry in ranked})
            make_console().print(f"report: {path}", soft_wrap=True, markup=False)


def is_foreign(path: Path) -> bool:
    """Whether the file exists but is not a leaderboard."""
    return path.exists() and not path.read_bytes().startswith(LEADERBOARD_COLUMNS[0].encode() + b",")


def row(job: Path, status: str | None = None) -> JobRow:
    """Builds the leaderboard row of one job.

    **Arguments:**

    - `job`: the job's directory.
    - `status`: replaces the job's summary if that is missing or outdated.
    """
    if status is None:
        summary = read_summary(job)
    else:
        words = job / ".hydra" / "overrides.yaml"
        overrides = list(OmegaConf.load(words)) if words.is_file() else []
        summary = cast(Summary, {"status": status, "overrides": overrides})
    metrics = summary.get("metrics", {})
    validation, train, test = ((metrics.get(name) or {}).get("nrmse") for name in ("validation", "train", "test"))
    return {
        "job": job.name,
        "overrides": " ".join(word for word in summary.get("overrides", []) if word != "resume=auto"),
        "status": summary.get("status", "lost"),
        "ranked_by": "validation_nrmse" if validation is not None else "train_nrmse" if train is not None else None,
        "validation_nrmse": validation,
        "train_nrmse": train,
        "test_nrmse": test,
        "steps": summary.get("steps"),
        "compiles": summary.get("compiles"),
        "seconds": summary.get("seconds", {}).get("total"),
    }


def rank_entry(entry: JobRow) -> tuple[int, float, float]:
    """Sorts by validation NRMSE, or by training NRMSE if there are no validation data; failures come last."""
    validation, train = (math.inf if x is None else x for x in (entry["validation_nrmse"], entry["train_nrmse"]))
    return (RANKED_LAST.index(entry["status"]) + 1 if entry["status"] in RANKED_LAST else 0), validation, train


def describe_winner(rows: list[JobRow]) -> str:
    """Describes the ranking criterion."""
    kinds = {entry["ranked_by"] for entry in rows} - {None}
    if kinds == {"train_nrmse"}:
        return (
            "ranked by train NRMSE, for lack of validation data; it can't tell which job predicts best, so set data "
            "aside with data.split.validation=0.2"
        )
    without = ", then by train NRMSE those without validation data" if "train_nrmse" in kinds else ""
    return f"ranked by validation NRMSE{without}{describe_alternatives(rows)}"


def describe_alternatives(rows: list[JobRow]) -> str:
    """Returns a note if another job than the first is clearly better on the test data."""
    tested = [
        (error, entry["job"])
        for entry in rows
        if (error := entry["test_nrmse"]) is not None and entry["status"] not in RANKED_LAST
    ]
    if not tested:
        return ""
    (first, _), (best, job) = tested[0], min(tested, key=itemgetter(0))
    if best == first or best > CLEARLY * first:
        return ""
    figures = f"{format_number(best)} against {format_number(first)}"
    return (
        f"; job {job} does better on the test data ({figures}), which may not choose: more validation data "
        "(data.split.validation) would order the jobs better"
    )


def write_leaderboard(path: Path, rows: list[JobRow]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(LEADERBOARD_COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def show(rows: list[JobRow]) -> None:
    """Prints the jobs with the overrides that differ between them."""
    console = make_console()
    overrides = [set(entry["overrides"].split()) for entry in rows]
    common = overrides[0].intersection(*overrides[1:]) if len(overrides) > 1 else set[str]()
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("job")
    table.add_column("overrides", overflow="fold")
    table.add_column("status", no_wrap=True)
    for title in ("validation\nNRMSE", "train\nNRMSE", "test\nNRMSE", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in rows:
        differing = "\n".join(word for word in entry["overrides"].split() if word not in common)
        figures = (entry["validation_nrmse"], entry["train_nrmse"], entry["test_nrmse"], entry["seconds"])
        table.add_row(entry["job"], differing, entry["status"], *(format_number(number) for number in figures))
    console.print(table)
