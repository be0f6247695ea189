"""The page of several runs: the jobs of a multirun, the trials of a search, or the members of an ensemble."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np
import yaml

from ..training.callback import ENDED
from .page import jsonable_numbers, write_page
from .run_files import LossRow, read_losses, read_summary
from .run_page import PAGE_NAME as RUN_PAGE

INDEX_NAME = "index.html"
# Points of a learning curve, and curves of one picture.
MOST_POINTS, MOST_CURVES = 200, 300
# While jobs run, the page may take this share of the time.
SHARE = 0.05
# When this process last finished a page, and how long that took [s].
LAST_MADE: dict[Path, tuple[float, float]] = {}
SPLITS = ("validation", "test", "train")


def refresh_index(directory: Path) -> None:
    """Makes the page of a multirun whose jobs are under way, unless that would take too much of their time."""
    ended, took = LAST_MADE.get(directory, (-math.inf, 0.0))
    if time.monotonic() - ended > took / SHARE:
        make_index(directory, running=True)


def make_index(directory: Path, statuses: Mapping[str, str] | None = None, *, running: bool = False) -> Path:
    """Makes the page of the jobs in a directory; returns its path.

    **Arguments:**

    - `directory`: of the multirun, with a directory for each job.
    - `statuses`: of jobs by their names, in place of what they wrote themselves.
    - `running`: whether jobs without a summary may be under way; otherwise they are lost.
    """
    began = time.monotonic()
    folders = [path for path in directory.iterdir() if (path / ".hydra").is_dir() or is_run(path)]
    missing = "running" if running else "lost"
    jobs = [read_job(path, (statuses or {}).get(path.name), missing) for path in sorted(folders, key=sort_key)]
    varied = find_varied(jobs)
    path = write_index(directory, jobs, varied, "job")
    LAST_MADE[directory] = (time.monotonic(), time.monotonic() - began)
    return path


def make_member_index(folder: Path) -> Path | None:
    """Makes the page of an ensemble's members; `None` if the run has a single member."""
    ensemble = read_summary(folder).get("ensemble")
    rows = read_losses(folder / "metrics.csv")
    if not ensemble or not rows:
        return None
    members = []
    for number, end in enumerate(ensemble["members"]):
        own = [row for row in rows if int(row.get("member") or 0) == number]
        curve = learning_curve(own)
        last = [row for row in own if row["stage"] == own[-1]["stage"]]
        lowest = {
            key: min((loss for row in last if (loss := row[key]) is not None), default=None) for key in LOSS_COLUMNS
        }
        members.append(
            {
                "name": str(number),
                "status": end["status"],
                "words": end["reason"],
                "varied": {},
                "scores": {"validation": lowest["validation_loss"], "test": None, "train": lowest["train_loss"]},
                "seconds": max((row["seconds"] or 0 for row in own), default=None),
                "steps": max((row["step"] or 0 for row in own), default=None),
                "curve": curve,
                "page": None,
            }
        )
    return write_index(folder, members, [], "member")


LOSS_COLUMNS = ("train_loss", "validation_loss")


class JobEntry(TypedDict):
    """What the page shows of a job, or of a member.

    - `words`: its diagnosis, or how it ended. `varied`: overrides by key. `scores`: NRMSE by split.
    - `curve`: the losses of its last stage. `page`: its own page, if there is one.
    """

    name: str
    status: str
    words: str
    varied: Mapping[str, str | None]
    scores: dict[str, float | None]
    seconds: float | None
    steps: int | None
    curve: dict[str, list[float | None]] | None
    page: str | None


def is_run(path: Path) -> bool:
    return (path / "summary.json").is_file() and (path / "config.yaml").is_file()


def sort_key(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdecimal() else 1 << 60), path.name


def read_job(folder: Path, status: str | None, missing: str) -> JobEntry:
    """What the page shows of a job. `missing`: the status of a job without a summary."""
    summary = read_summary(folder)
    metrics = summary.get("metrics") or {}
    overrides = summary.get("overrides") or read_overrides(folder)
    return {
        "name": folder.name,
        "status": status or summary.get("status", missing),
        "words": (summary.get("diagnosis") or {}).get("sentence") or summary.get("reason", ""),
        "varied": dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word),
        "scores": {split: (metrics.get(split) or {}).get("nrmse") for split in SPLITS},
        "seconds": (summary.get("seconds") or {}).get("total"),
        "steps": summary.get("steps"),
        "curve": learning_curve(read_losses(folder / "metrics.csv")),
        "page": f"{folder.name}/{RUN_PAGE}" if (folder / RUN_PAGE).is_file() else None,
    }


def read_overrides(folder: Path) -> list[str]:
    try:
        words = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


def learning_curve(rows: list[LossRow]) -> dict[str, list[float | None]] | None:
    """Steps, seconds and losses of the last stage, of the best member in each chunk."""
    last = [row for row in rows if row.get("stage") == rows[-1].get("stage")]
    if not last:
        return None
    steps = sorted({row["step"] for row in last if row["step"] is not None})
    places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).astype(int))
    kept = {steps[place]: [] for place in places}
    for row in last:
        if row["step"] in kept:
            kept[row["step"]].append(row)

    def lowest(key: str) -> list:
        return jsonable_numbers(
            [min((row[key] for row in rows if row[key] is not None), default=math.nan) for rows in kept.values()]
        )

    seconds = jsonable_numbers(
        [rows[0]["seconds"] if rows[0]["seconds"] is not None else math.nan for rows in kept.values()]
    )
    return {
        "step": list(kept),
        "seconds": seconds,
        "train": lowest("train_loss"),
        "validation": lowest("validation_loss"),
    }


def find_varied(jobs: list[JobEntry]) -> list[str]:
    """The keys in which jobs differ, in the order in which they were given."""
    keys = dict.fromkeys(key for job in jobs for key in job["varied"] if key not in ("resume", "hydra.run.dir"))
    return [key for key in keys if len({job["varied"].get(key) for job in jobs}) > 1]


def write_index(directory: Path, jobs: list[JobEntry], varied: list[str], noun: str) -> Path:
    """Writes the page of jobs or members, the best first."""
    ranked = sorted(jobs, key=rank_job)
    for place, job in enumerate(ranked):
        job["varied"] = {key: job["varied"].get(key) for key in varied}
        if place >= MOST_CURVES:
            job["curve"] = None
    statuses = [job["status"] for job in jobs]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    splits = [split for split in SPLITS if any(job["scores"][split] is not None for job in jobs)]
    return write_page(
        directory / INDEX_NAME,
        "index",
        {"jobs": ranked, "varied": varied, "splits": splits, "noun": noun},
        jobs=ranked,
        varied=varied,
        splits=splits,
        noun=noun,
        score="loss" if noun == "member" else "NRMSE",
        counts=counts,
        running=counts.get("running", 0) > 0,
        many=len(ranked) > MOST_CURVES,
        most=MOST_CURVES,
        folder=str(directory),
        name=directory.name,
        report=RUN_PAGE,
    )


def rank_job(job: JobEntry) -> tuple[bool, float, float]:
    """Completed jobs by validation error, or by training error; then all others."""
    scores = (job["scores"][key] for key in ("validation", "train"))
    validation, train = (math.inf if score is None else score for score in scores)
    return job["status"] not in ENDED, validation, train
