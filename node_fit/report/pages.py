"""The pages of a run, with its section on residuals, and of several runs, made from what their directories hold."""

import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Literal, TypedDict, cast

import numpy as np
import yaml
from jaxtyping import Float, Int

from ..evaluation.metrics import Figures
from ..evaluation.residuals import (
    FEW_VALUES,
    MOST_VALUES,
    ResidualChecks,
    autocorrelation,
    check_channels,
    inputs_in_words,
    neighbours_in_words,
)
from ..plots.curves import Curve, Curves, Trajectory, rank_trajectories
from ..plots.figures import constant_inputs
from ..runtime.serialization import Json, check_yaml, is_list
from ..training.callback import ENDED
from .page import jsonable_numbers, jsonable_times, write_page
from .population_figures import describe_population
from .run_files import (
    Field,
    Kept,
    Key,
    LossRow,
    Predictions,
    StageLosses,
    Summary,
    command_of,
    field_of_model,
    fit_again,
    last_step,
    load_curves,
    read_config_text,
    read_discovery,
    read_json,
    read_losses,
    read_predictions,
    read_summary,
    read_units,
    read_versions,
    save_curves,
    score_records,
    stages,
    trajectories_of,
)

# Lags of the picture.
POINTS_OF_CHECK = 40
# Bins of a distribution: so many at the most, and as many as the root of the number of residuals.
HISTOGRAM_BINS = 41
INDEX_NAME = "index.html"
# Points of a learning curve, and curves of one picture.
MOST_POINTS, MOST_CURVES = 200, 300
# While jobs run, the page may take this share of the time.
SHARE = 0.05
# When this process last finished a page, and how long that took [s].
LAST_MADE: dict[Path, tuple[float, float]] = {}
SPLITS = ("validation", "test", "train")


def describe_residuals(predictions: Predictions, checked: Mapping[str, Json]) -> list[Json]:
    """Autocorrelation and distribution of the residuals, by split.

    **Arguments:** `checked`: what the summary says of the residuals of each split; those of others are checked here, in
    the user's units.

    **Returns:** for each split, its name, the `limit` that white noise would rarely exceed, for each state the
    autocorrelation at lags of 0, 1, ... rows and the density of residuals in bins of standard deviations, the
    autocorrelation of neighbouring rows (`first`), and what it says, in a word and in sentences.
    """
    found: list[Json] = []
    for role in dict.fromkeys(predictions.roles):
        rows = np.flatnonzero(predictions.rows_of(role))[:MOST_VALUES]
        residuals = predictions.residuals[rows]
        residuals = np.where(np.isfinite(residuals), residuals, np.nan)
        segment = np.searchsorted(predictions.starts, rows, side="right")
        count = int(np.isfinite(residuals).any(axis=1).sum())
        if count < 5:
            continue
        lags = min(POINTS_OF_CHECK, int(np.bincount(segment).max()) // 2)
        correlations = np.stack([autocorrelation(residuals[:, i], segment, lags) for i in range(residuals.shape[1])])
        checks = checked.get(role) or describe_check(predictions, residuals, segment, predictions.us[rows])
        limit = 1.96 / count**0.5
        first = [checks["channels"].get(name, {}).get("lag1") for name in predictions.states]
        found.append(
            {
                "role": role,
                "limit": limit,
                "correlations": jsonable_numbers(correlations, 4),
                "densities": [density(residuals[:, i]) for i in range(residuals.shape[1])],
                "first": first,
                "word": in_a_word([value for value in first if value is not None], limit, checks["says"], role),
                "says": checks["says"],
            }
        )
    return found


def describe_check(
    predictions: Predictions,
    residuals: Float[np.ndarray, "row state"],
    segment: Int[np.ndarray, " row"],
    us: Float[np.ndarray, "row input"],
) -> Json:
    """The checks of a split whose summary holds none."""
    channels = check_channels(residuals, segment, us, predictions.states, predictions.inputs)
    return ResidualChecks(channels, tuple(neighbours_in_words(channels) + inputs_in_words(channels))).as_dict()


def density(residuals: Float[np.ndarray, " row"]) -> list[float]:
    """Density of residuals in bins that span four standard deviations to each side; empty for few rows."""
    known = residuals[np.isfinite(residuals)]
    if known.size < FEW_VALUES or known.std() == 0:
        return []
    bins = min(HISTOGRAM_BINS, int(known.size**0.5) | 1)
    counts, _ = np.histogram((known - known.mean()) / known.std(), bins, (-4, 4))
    return jsonable_numbers(counts / known.size / (8 / bins), 4)


def in_a_word(first: Sequence[float], limit: float, says: Sequence[str], role: str = "train") -> str:
    """What the autocorrelations of neighbouring rows say, and the tests, which allow for the number of channels.

    A simulation beyond the rows that were fitted has the errors of its constants, which last, whatever the model.
    """
    worst = max(map(abs, first), default=None)
    if worst is None:
        return "too few rows to tell"
    if any(sentence.startswith("Neighbouring") for sentence in says):
        return "no noise: the model misses something" if role == "train" else "no noise: errors last"
    return "like noise" if worst <= limit else "nearly noise"


PAGE_NAME = "report.html"
# Numbers that are drawn of all trajectories together, which keeps the page below 4 MB.
MOST_DRAWN_NUMBERS = 500_000
# Trajectories to pick from, and rows of each.
MOST_RECORDS, MOST_DRAWN_ROWS = 400, 4000
# Points of the picture of all trajectories' errors.
MOST_ERRORS = 2000
# What `summary.json` may hold; that of a run which has failed, or of an older version, may lack some of it.
SUMMARY = (
    *("status", "reason", "diagnosis", "steps", "parameters", "seconds", "precision", "device", "start", "rows"),
    *("metrics", "baselines", "choices", "equations", "constants", "ensemble", "linear_is_best", "overrides"),
    *("confidence", "likelihood", "residuals", "starts", "given_rows", "derived", "attempts", "horizon", "model"),
    "warnings",
)
MODEL = ("field", "start", "inputs", "equations", "state_space")
BASELINES = {
    "mean": "mean",
    "persistence": "last value",
    "linear": "linear ODE",
    "state-space": "state-space model",
}


def make_run_page(
    folder: Path, curves: Curves | None = None, slopes: np.ndarray | None = None, *, extensions: Sequence[str] = ()
) -> Path:
    """Makes the page of a run. The directory may come from a stranger: nothing that it names is imported or called.

    **Arguments:**

    - `folder`: the run's directory.
    - `curves`, `slopes`: the model's curves between measurements, and its vector field at `phase_points(curves)`. They
      are kept in the directory, where later pages find them. Without them, curves join the measurements' times.
    - `extensions`: packages besides node_fit whose classes the model file may use, to draw its vector field.

    **Returns:** the path of the page.
    """
    predictions = read_predictions(folder / "predictions.csv")
    discovery = read_discovery(folder)
    summary = cast(Summary, dict.fromkeys(SUMMARY) | read_summary(folder))
    diagnosis = summary["diagnosis"] or {}
    model = dict.fromkeys(MODEL) | (summary["model"] or {})
    config, config_text = read_config_text(folder / "config.yaml")
    losses = stages(read_losses(folder / "metrics.csv"))
    data: Json = {"stages": losses, "discovery": discovery}
    starts = sorted((summary["starts"] or {}).get("table", []), key=lambda each: (each["loss"] is None, each["loss"]))
    data["starts"] = [each["loss"] for each in starts if each["loss"] is not None]
    data["units"] = read_units(config)
    words: Json = {"units": data["units"], "records": 0, "checks": [], "split": "", "forecast": False}
    if predictions is not None:
        errors = load_curves(folder).errors if curves is None else score_records(predictions, curves.counted)
        records = trajectories_of(predictions, errors)
        chosen = choose_records(predictions, records)
        if curves is not None:
            save_curves(folder, curves, slopes, keys_of_records(chosen), predictions.origin, errors)
        kept = load_curves(folder)
        field = kept.field
        if field is None and curves is None:
            field = find_field(folder / "model.safetensors", predictions, extensions)
        checks = describe_residuals(predictions, summary["residuals"] or {})
        data |= describe_run(predictions, records, chosen, kept) | {"checks": checks, "field": describe_field(field)}
        data["held"] = model["inputs"] == "hold"
        words["records"] = len(records)
        words["checks"] = checks
        words["forecast"] = any(len(record.segments) > 1 for record in records)
        words["split"] = split_in_words(predictions, records, summary["rows"] or {}, summary["given_rows"] or {})
    return write_page(
        folder / PAGE_NAME,
        "run",
        data,
        **words,
        name=f"{folder.parent.name}/{folder.name}" if folder.parent.name else folder.name,
        folder=str(folder),
        summary=summary,
        sure=summary["confidence"] or {},
        likely=summary["likelihood"] or {},
        intervals=intervals_of(summary),
        starts=starts,
        kind=diagnosis.get("kind") or summary["status"] or "unknown",
        sentence=diagnosis.get("sentence") or summary["reason"] or "There is no summary yet.",
        scores=score_table(summary),
        baselines=[BASELINES.get(name, name) for name in summary["baselines"] or {}],
        attempts=describe_attempts(losses, summary["attempts"] or []),
        steps=steps_in_words(losses, summary["attempts"] or [], summary["steps"]),
        model=model,
        population=describe_population(summary, folder),
        formulas=model["equations"] or summary["equations"] or {},
        shown=len(data.get("records", [])),
        has_field=data.get("field") is not None,
        predictions=predictions,
        discovery=discovery,
        config=config_text,
        versions=read_versions(folder / "model.safetensors"),
        command=command_of(read_json(folder / ".run.json"), summary) if discovery is None else fit_again(folder),
    )


def intervals_of(summary: Summary) -> Json:
    """The intervals of constants and of what follows from them; their names differ."""
    sure = summary["confidence"] or {}
    return {**(sure.get("constants") or {}), **(sure.get("derived") or {})}


def find_field(path: Path, predictions: Predictions, extensions: Sequence[str]) -> Field | None:
    """The vector field of a model file; `None`, with a warning, if the file can't be loaded with these extensions."""
    try:
        return field_of_model(path, predictions, extensions)
    except ValueError as error:
        print(f"warning: the page lacks the vector field: {error}", file=sys.stderr)
        return None


def choose_records(predictions: Predictions, records: list[Trajectory]) -> list[Trajectory]:
    """The records that are drawn: best, median and worst, and an even choice of the others if they are many."""
    marked = rank_trajectories(records)
    widths = len(predictions.inputs) + len(predictions.states) * (2 if predictions.bands is None else 4)

    def cost(record: Trajectory) -> int:
        return sum(min(len(segment.ts), MOST_DRAWN_ROWS) + 300 for segment in record.segments) * (1 + widths)

    left = MOST_DRAWN_NUMBERS - sum(map(cost, marked))
    apart = set(map(id, marked))
    others = [record for record in records if id(record) not in apart]
    sample = others[:: max(len(others) // 1000, 1)]
    most = int(np.clip(left / max(np.mean([cost(each) for each in sample]), 1), 0, MOST_RECORDS)) if others else 0
    if len(others) > most:
        others = [others[i] for i in map(int, np.linspace(0, len(others) - 1, most))]
    return marked + sorted(others, key=lambda record: record.error)


def keys_of_records(records: list[Trajectory]) -> set[Key]:
    return {(segment.role, segment.name) for record in records for segment in record.segments}


def describe_run(predictions: Predictions, records: list[Trajectory], chosen: list[Trajectory], kept: Kept) -> Json:
    """What the page draws of data and predictions."""
    places = {id(record): index for index, record in enumerate(chosen)}
    known = sorted((record for record in records if math.isfinite(record.error)), key=attrgetter("error"))
    ranked = {kind: [each for each in known if each.held == held] for kind, held in (("fitted", False), ("held", True))}
    constant = constant_inputs(records)
    moving = [place for place in range(len(predictions.inputs)) if place not in constant]
    return {
        "states": list(predictions.states),
        "hidden": list(kept.hidden),
        "inputs": [predictions.inputs[place] for place in moving],
        "constants": [predictions.inputs[place] for place in constant],
        "time": predictions.time,
        "records": [
            describe_record(predictions, record, kept.curves, moving)
            | {"constants": jsonable_numbers(record.segments[0].us[0, constant])}
            for record in chosen
        ],
        "errors": {
            kind: [
                [(i + 0.5) / len(group), float(f"{group[i].error:.4g}"), group[i].name, places.get(id(group[i]), -1)]
                for i in map(int, np.unique(np.linspace(0, len(group) - 1, min(len(group), MOST_ERRORS)).astype(int)))
            ]
            for kind, group in ranked.items()
            if group
        },
    }


def describe_record(
    predictions: Predictions, record: Trajectory, smooth: Mapping[Key, Curve], moving: Sequence[int]
) -> Json:
    segments: list[Json] = []
    past = -np.inf
    for segment in record.segments:
        begin, step = int(predictions.starts[segment.place]), -(-len(segment.ts) // MOST_DRAWN_ROWS)
        rows, ts = slice(begin, begin + len(segment.ts), step), segment.ts[::step]
        edges = None if predictions.bands is None else (predictions.bands[0][rows], predictions.bands[1][rows])
        curve = smooth.get((segment.role, record.name), Curve(ts, predictions.predicted[rows], edges))
        segment.curve = curve
        # A forecast is simulated from the record's beginning; its earlier part is drawn already.
        new = slice(max(int(np.searchsorted(curve.ts, past)) - 1, 0), None)
        past = float(ts[-1])
        segments.append(
            {
                "role": segment.role,
                "step": step,
                "ts": jsonable_times(ts),
                "ys": to_columns(segment.ys[::step]),
                "us": to_columns(segment.us[::step, moving]),
                "residuals": to_columns(predictions.residuals[rows]),
                "curve": {
                    "ts": jsonable_times(curve.ts[new]),
                    "ys": to_columns(curve.ys[new]),
                    "bands": None if curve.bands is None else [to_columns(edge[new]) for edge in curve.bands],
                    "hidden": None if curve.hidden is None else to_columns(curve.hidden[new]),
                },
            }
        )
    errors = {role: error if np.isfinite(error) else None for role, error in record.errors.items()}
    return {
        "name": record.name,
        "rank": record.rank,
        "held": record.held,
        "errors": errors,
        "forecast": None
        if record.forecast is None
        else jsonable_times([record.segments[0].ts[0], record.forecast])[-1],
        "events": [[time, text] for time, text in record.events],
        "segments": segments,
    }


def to_columns(values: np.ndarray) -> list[list[float | None]]:
    """Rows of states as a list for each state."""
    return [jsonable_numbers(column) for column in values.T]


def describe_field(field: Field | None) -> Json | None:
    if field is None:
        return None
    return {
        "xs": jsonable_numbers(field.xs),
        "ys": jsonable_numbers(field.ys),
        "slopes": jsonable_numbers(field.slopes, 4),
    }


def score_table(summary: Summary) -> list[Json]:
    """A line for each split and channel: its scores, and the NRMSE of each baseline."""
    lines: list[Json] = []
    for split, own in (summary["metrics"] or {}).items():
        if own is None:
            continue
        simple = [figures.get(split) for figures in (summary["baselines"] or {}).values()]
        rows: list[tuple[str, Figures, list[Figures | None]]] = []
        if len(own["channels"]) > 1:
            rows.append(("all", own, [*simple]))
        for name, channel in own["channels"].items():
            rows.append((name, channel, [each and each["channels"].get(name) for each in simple]))
        for channel, scores, baselines in rows:
            others = [each.get("nrmse") if each else None for each in baselines]
            known = [value for value in (scores["nrmse"], *others) if value is not None]
            lowest = min(known, default=math.inf)  # Of errors that the mean would make too, none is to be praised.
            line = {"split": split, "channel": channel, "others": others, "best": lowest if lowest < 1 else None}
            lines.append(line | {key: scores[key] for key in ("rmse", "nrmse", "r2")})
    return lines


def describe_attempts(losses: Sequence[StageLosses], tried: Sequence[Json]) -> list[Json]:
    """The attempts whose losses are drawn: their steps, verdicts and stages; one without a name in older runs.

    **Arguments:** `tried`: the attempts of the summary, which lack those that have failed.
    """
    known = {each["name"]: each for each in tried}
    found: list[Json] = []
    for name, group in itertools.groupby(enumerate(losses), lambda each: each[1]["attempt"]):
        own = list(group)
        found.append(
            {
                "name": name,
                "verdict": known.get(name or "", {}).get("verdict", "failed"),
                "kept": bool(known.get(name or "", {}).get("kept")),
                "first": own[0][1]["after"] + 1,
                "last": last_step(own[-1][1]),
                "stages": [{"place": at, "name": each["name"], "said": chunk_in_words(each)} for at, each in own],
            }
        )
    return found


def steps_in_words(losses: Sequence[StageLosses], tried: Sequence[Json], total: int | None) -> str | None:
    """The steps of each stage of what is kept, since `training.steps` is that of the last; all together where they are
    not known."""
    kept = [each["name"] for each in tried if each["kept"]]
    counts = [last_step(each) - each["after"] for each in losses if each["attempt"] is None or each["attempt"] in kept]
    counts = counts or [last_step(each) - each["after"] for each in losses]
    known = bool(counts) and min(counts) > 0
    return " + ".join(f"{count:.0f}" for count in counts) if known else None if total is None else f"{total}"


def chunk_in_words(stage: StageLosses) -> str | None:
    """The losses of a stage that has a single chunk, of which a picture would show a point; None of others."""
    member = stage["members"][0]
    if len(stage["members"]) > 1 or len(member["step"]) > 1:
        return None
    losses = {"training": member["train"][0], "validation": member["validation"][0]}
    said = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items() if loss is not None)
    return f"One chunk, which ended with a loss of {said}." if said else "One chunk, without a finite loss."


def split_in_words(
    predictions: Predictions, records: list[Trajectory], rows: Mapping[str, int], given: Mapping[str, int]
) -> str:
    """How the data were split; the rows are those that the run was given, and of them those that are scored."""
    counts = {role: sum(each == role for each in predictions.roles) for role in dict.fromkeys(predictions.roles)}
    uses = {"train": "fitted", "validation": "used to choose the best iterate", "test": "held out for the score"}
    joined = any(len(record.segments) > 1 for record in records)
    parts: list[str] = []
    for role, count in counts.items():
        whole = given.get(role, rows.get(role))
        scored = f"{whole:,} {'row' if whole == 1 else 'rows'}" if whole is not None else ""
        if whole is not None and rows.get(role, whole) < whole:
            scored += f" ({rows[role]:,} scored)" if joined else f", {rows[role]:,} scored"
        of = "" if joined else f"{count:,} {'trajectory' if count == 1 else 'trajectories'}"
        size = f"{of} ({scored})" if of and scored else of or scored
        parts.append(f"{size} {uses.get(role, role)}")
    if len(counts) == 1:
        return f"{parts[0][:1].upper()}{parts[0][1:]}; nothing was held out."
    how = "By time: the past is fitted, the rest is forecast" if joined else "By trajectory"
    return f"{how}. {', '.join(parts)}."


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
    """Makes the page of an ensemble's members; `None` if the run has trained a single one."""
    ensemble = read_summary(folder).get("ensemble")
    rows = read_losses(folder / "metrics.csv")
    if not ensemble or not ensemble["members"] or not rows:
        return None
    members: list[JobEntry] = []
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
    steps: float | None
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
        "page": f"{folder.name}/{PAGE_NAME}" if (folder / PAGE_NAME).is_file() else None,
    }


def read_overrides(folder: Path) -> list[str]:
    try:
        text = (folder / ".hydra" / "overrides.yaml").read_text()
        check_yaml(text)
        words = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [str(word) for word in words] if is_list(words) else []


def learning_curve(rows: list[LossRow]) -> dict[str, list[float | None]] | None:
    """Steps, seconds and losses of the last stage, of the best member in each chunk."""
    last = [row for row in rows if all(row.get(key) == rows[-1].get(key) for key in ("attempt", "stage"))]
    if not last:
        return None
    steps = sorted({row["step"] for row in last if row["step"] is not None})
    places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).astype(int))
    kept: dict[float, list[LossRow]] = {steps[place]: [] for place in map(int, places)}
    for row in last:
        if row["step"] in kept:
            kept[row["step"]].append(row)

    def lowest(key: Literal["train_loss", "validation_loss"]) -> list[float | None]:
        return jsonable_numbers(
            [min((loss for row in rows if (loss := row[key]) is not None), default=math.nan) for rows in kept.values()]
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
        report=PAGE_NAME,
    )


def rank_job(job: JobEntry) -> tuple[bool, float, float]:
    """Completed jobs by validation error, or by training error; then all others."""
    scores = (job["scores"][key] for key in ("validation", "train"))
    validation, train = (math.inf if score is None else score for score in scores)
    return job["status"] not in ENDED, validation, train
