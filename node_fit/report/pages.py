"""Writes the report page of a run and the index page of several runs from the files in their directories."""

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

from ..data.inputs import are_held
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
from ..plots.figures import constant_inputs, drawn_inputs
from ..runtime.serialization import Json, check_yaml, is_list
from ..training.callback import ENDED
from .page import jsonable_numbers, jsonable_times, write_page
from .population_figures import describe_population
from .run_files import (
    Field,
    Key,
    LossRow,
    Predictions,
    StageLosses,
    StoredCurves,
    Summary,
    command_of,
    field_of_model,
    fit_again,
    last_step,
    load_curves,
    read_config_text,
    read_discovery,
    read_json,
    read_levels,
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

# Maximum number of lags in the autocorrelation plot.
POINTS_OF_CHECK = 40
# Maximum number of histogram bins; otherwise the square root of the number of residuals.
HISTOGRAM_BINS = 41
INDEX_NAME = "index.html"
# Maximum number of points per learning curve, and of curves per plot.
MOST_POINTS, MOST_CURVES = 200, 300
# Maximum share of the running time spent on refreshing the page.
SHARE = 0.05
# When this process last finished each page, and how long it took [s].
LAST_MADE: dict[Path, tuple[float, float]] = {}
SPLITS = ("validation", "test", "train")


def describe_residuals(predictions: Predictions, checked: Mapping[str, Json]) -> list[Json]:
    """Computes the autocorrelation and distribution of the residuals, by split.

    **Arguments:** `checked`: the summary's residual checks by split; missing splits are checked here, in the user's
    units.

    **Returns:** for each split, its name, the `limit` that white noise would rarely exceed, for each state the
    autocorrelation at lags of 0, 1, ... rows and the density of residuals in bins of standard deviations, the
    autocorrelation of neighbouring rows (`first`), and its interpretation, as a short phrase and as sentences.
    """
    checks_by_split: list[Json] = []
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
        checks_by_split.append(
            {
                "role": role,
                "limit": limit,
                "correlations": jsonable_numbers(correlations, 4),
                "densities": [density(residuals[:, i]) for i in range(residuals.shape[1])],
                "first": first,
                "word": summarise_residuals(
                    [value for value in first if value is not None], limit, checks["says"], role
                ),
                "says": checks["says"],
            }
        )
    return checks_by_split


def describe_check(
    predictions: Predictions,
    residuals: Float[np.ndarray, "row state"],
    segment: Int[np.ndarray, " row"],
    us: Float[np.ndarray, "row input"],
) -> Json:
    """Checks the residuals of a split that the summary lacks."""
    channels = check_channels(residuals, segment, us, predictions.states, predictions.inputs)
    return ResidualChecks(channels, tuple(neighbours_in_words(channels) + inputs_in_words(channels))).as_dict()


def density(residuals: Float[np.ndarray, " row"]) -> list[float]:
    """Computes the density of residuals in bins that span four standard deviations to each side; empty for few rows."""
    finite = residuals[np.isfinite(residuals)]
    if finite.size < FEW_VALUES or finite.std() == 0:
        return []
    bins = min(HISTOGRAM_BINS, int(finite.size**0.5) | 1)
    counts, _ = np.histogram((finite - finite.mean()) / finite.std(), bins, (-4, 4))
    return jsonable_numbers(counts / finite.size / (8 / bins), 4)


def summarise_residuals(first: Sequence[float], limit: float, says: Sequence[str], role: str = "train") -> str:
    """Summarizes the residual tests, which correct for the number of channels, in a short phrase.

    Simulations beyond the fitted rows have persistent errors from the estimated constants, even with the right model.
    """
    worst = max(map(abs, first), default=None)
    if worst is None:
        return "too few rows to tell"
    if any(sentence.startswith("Neighbouring") for sentence in says):
        return "no noise: the model misses something" if role == "train" else "no noise: errors last"
    return "like noise" if worst <= limit else "nearly noise"


PAGE_NAME = "report.html"
# Maximum number of values drawn over all trajectories; keeps the page below 4 MB.
MOST_DRAWN_NUMBERS = 500_000
# Maximum number of trajectories on the page, and of rows per segment.
MOST_RECORDS, MOST_DRAWN_ROWS = 400, 4000
# Maximum number of points in the plot of all trajectories' errors.
MOST_ERRORS = 2000
# Keys of `summary.json`; some are missing for failed runs and older versions.
SUMMARY = (
    *("status", "reason", "diagnosis", "steps", "parameters", "seconds", "precision", "device", "start", "rows"),
    *("metrics", "baselines", "choices", "equations", "constants", "ensemble", "linear_is_best", "overrides"),
    *("confidence", "likelihood", "residuals", "starts", "given_rows", "derived", "attempts", "horizon", "model"),
    "warnings",
)
MODEL = ("field", "start", "inputs", "equations", "readout", "state_space")
BASELINES = {
    "mean": "mean",
    "persistence": "last value",
    "linear": "linear ODE",
    "state-space": "state-space model",
}


def make_run_page(
    folder: Path, curves: Curves | None = None, slopes: np.ndarray | None = None, *, extensions: Sequence[str] = ()
) -> Path:
    """Writes the report page of a run. The directory can be untrusted: nothing that it names is imported or called.

    **Arguments:**

    - `folder`: the run's directory.
    - `curves`, `slopes`: the model's curves between measurements, and its vector field at `phase_points(curves)`. They
      are stored in the directory for later pages. Without them, curves connect the predictions at measurement times.
    - `extensions`: packages besides node_fit whose classes the model file can use, to draw its vector field.

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
    starts = sorted(
        (summary["starts"] or {}).get("table", []), key=lambda start: (start["loss"] is None, start["loss"])
    )
    data["starts"] = [start["loss"] for start in starts if start["loss"] is not None]
    data["units"], data["levels"] = read_units(config), read_levels(config)
    context: Json = {"units": data["units"], "records": 0, "checks": [], "split": "", "forecast": False}
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
        data |= describe_run(predictions, records, chosen, kept, model["inputs"])
        data |= {"checks": checks, "field": describe_field(field)}
        context["records"] = len(records)
        context["checks"] = checks
        context["forecast"] = any(len(record.segments) > 1 for record in records)
        context["split"] = split_in_words(predictions, records, summary["rows"] or {}, summary["given_rows"] or {})
    return write_page(
        folder / PAGE_NAME,
        "run",
        data,
        **context,
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
    """Returns the intervals of constants and of derived quantities, whose names are distinct."""
    sure = summary["confidence"] or {}
    return {**(sure.get("constants") or {}), **(sure.get("derived") or {})}


def find_field(path: Path, predictions: Predictions, extensions: Sequence[str]) -> Field | None:
    """Loads the vector field of a model file; `None`, with a warning, if loading fails with these extensions."""
    try:
        return field_of_model(path, predictions, extensions)
    except ValueError as error:
        print(f"warning: the page lacks the vector field: {error}", file=sys.stderr)
        return None


def choose_records(predictions: Predictions, records: list[Trajectory]) -> list[Trajectory]:
    """Selects the records to draw: best, median and worst, and evenly spaced others up to the limits."""
    marked = rank_trajectories(records)
    widths = len(predictions.inputs) + len(predictions.states) * (2 if predictions.bands is None else 4)

    def cost(record: Trajectory) -> int:
        return sum(min(len(segment.ts), MOST_DRAWN_ROWS) + 300 for segment in record.segments) * (1 + widths)

    budget = MOST_DRAWN_NUMBERS - sum(map(cost, marked))
    marked_ids = set(map(id, marked))
    others = [record for record in records if id(record) not in marked_ids]
    sample = others[:: max(len(others) // 1000, 1)]
    most = int(np.clip(budget / max(np.mean([cost(each) for each in sample]), 1), 0, MOST_RECORDS)) if others else 0
    if len(others) > most:
        others = [others[i] for i in map(int, np.linspace(0, len(others) - 1, most))]
    return marked + sorted(others, key=lambda record: record.error)


def keys_of_records(records: list[Trajectory]) -> set[Key]:
    return {(segment.role, segment.name) for record in records for segment in record.segments}


def describe_run(
    predictions: Predictions,
    records: list[Trajectory],
    chosen: list[Trajectory],
    kept: StoredCurves,
    interpolation: str | list[str] | None,
) -> Json:
    """Builds the page's data for drawing measurements and predictions."""
    places = {id(record): index for index, record in enumerate(chosen)}
    scored = sorted((record for record in records if math.isfinite(record.error)), key=attrgetter("error"))
    ranked = {
        kind: [entry for entry in scored if entry.is_held_out == held]
        for kind, held in (("fitted", False), ("held", True))
    }
    constant = constant_inputs(records)
    moving = drawn_inputs(predictions.inputs, constant)
    kinds = tuple(interpolation) if isinstance(interpolation, list) else interpolation
    held = are_held(kinds or "linear", len(predictions.inputs))
    return {
        "states": list(predictions.states),
        "hidden": list(kept.hidden),
        "inputs": [predictions.inputs[place] for place in moving],
        "held": [held[place] for place in moving],
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
        # A forecast is simulated from the record's first row; skip the part that is already drawn.
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
        "held": record.is_held_out,
        "errors": errors,
        "forecast": None
        if record.forecast is None
        else jsonable_times([record.segments[0].ts[0], record.forecast])[-1],
        "events": [[time, text] for time, text in record.events],
        "segments": segments,
    }


def to_columns(values: np.ndarray) -> list[list[float | None]]:
    """Converts rows of states to one list per state."""
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
    """Builds a line per split and channel, with its scores and the NRMSE of each baseline."""
    lines: list[Json] = []
    for split, figures_of_split in (summary["metrics"] or {}).items():
        if figures_of_split is None:
            continue
        baseline_figures = [figures.get(split) for figures in (summary["baselines"] or {}).values()]
        rows: list[tuple[str, Figures, list[Figures | None]]] = []
        if len(figures_of_split["channels"]) > 1:
            rows.append(("all", figures_of_split, [*baseline_figures]))
        for name, channel in figures_of_split["channels"].items():
            rows.append((name, channel, [figure and figure["channels"].get(name) for figure in baseline_figures]))
        for channel, scores, baselines in rows:
            baseline_errors = [figure.get("nrmse") if figure else None for figure in baselines]
            errors = [value for value in (scores["nrmse"], *baseline_errors) if value is not None]
            lowest = min(errors, default=math.inf)  # Nothing worse than the mean is highlighted.
            line = {
                "split": split,
                "channel": channel,
                "others": baseline_errors,
                "best": lowest if lowest < 1 else None,
            }
            lines.append(line | {key: scores[key] for key in ("rmse", "nrmse", "r2")})
    return lines


def describe_attempts(losses: Sequence[StageLosses], tried: Sequence[Json]) -> list[Json]:
    """Describes the attempts whose losses are drawn: steps, verdicts and stages. Older runs have one unnamed attempt.

    **Arguments:** `tried`: the attempts in the summary, which omits failed ones.
    """
    by_name = {item["name"]: item for item in tried}
    attempts: list[Json] = []
    for name, group in itertools.groupby(enumerate(losses), lambda item: item[1]["attempt"]):
        numbered = list(group)
        attempts.append(
            {
                "name": name,
                "verdict": by_name.get(name or "", {}).get("verdict", "failed"),
                "kept": bool(by_name.get(name or "", {}).get("kept")),
                "first": numbered[0][1]["after"] + 1,
                "last": last_step(numbered[-1][1]),
                "stages": [
                    {"place": place, "name": item["name"], "said": chunk_in_words(item)} for place, item in numbered
                ],
            }
        )
    return attempts


def steps_in_words(losses: Sequence[StageLosses], tried: Sequence[Json], total: int | None) -> str | None:
    """Formats the steps of each stage of the kept attempts; falls back to the total if they are unknown.

    `training.steps` only applies to the last stage.
    """
    kept = [entry["name"] for entry in tried if entry["kept"]]
    counts = [
        last_step(entry) - entry["after"] for entry in losses if entry["attempt"] is None or entry["attempt"] in kept
    ]
    counts = counts or [last_step(entry) - entry["after"] for entry in losses]
    has_counts = bool(counts) and min(counts) > 0
    return " + ".join(f"{count:.0f}" for count in counts) if has_counts else None if total is None else f"{total}"


def chunk_in_words(stage: StageLosses) -> str | None:
    """Describes the losses of a stage with a single chunk, which a plot would show as a point; None for others."""
    member = stage["members"][0]
    if len(stage["members"]) > 1 or len(member["step"]) > 1:
        return None
    losses = {"training": member["train"][0], "validation": member["validation"][0]}
    text = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items() if loss is not None)
    return f"One chunk, which ended with a loss of {text}." if text else "One chunk, without a finite loss."


def split_in_words(
    predictions: Predictions, records: list[Trajectory], rows: Mapping[str, int], given: Mapping[str, int]
) -> str:
    """Describes the split of the data, with the number of input rows and of scored rows."""
    counts = {role: sum(name == role for name in predictions.roles) for role in dict.fromkeys(predictions.roles)}
    uses = {"train": "fitted", "validation": "used to choose the best iterate", "test": "held out for the score"}
    joined = any(len(record.segments) > 1 for record in records)
    parts: list[str] = []
    for role, count in counts.items():
        total = given.get(role, rows.get(role))
        scored = f"{total:,} {'row' if total == 1 else 'rows'}" if total is not None else ""
        if total is not None and rows.get(role, total) < total:
            scored += f" ({rows[role]:,} scored)" if joined else f", {rows[role]:,} scored"
        trajectories = "" if joined else f"{count:,} {'trajectory' if count == 1 else 'trajectories'}"
        size = f"{trajectories} ({scored})" if trajectories and scored else trajectories or scored
        parts.append(f"{size} {uses.get(role, role)}")
    if len(counts) == 1:
        return f"{parts[0][:1].upper()}{parts[0][1:]}; nothing was held out."
    how = "By time: the past is fitted, the rest is forecast" if joined else "By trajectory"
    return f"{how}. {', '.join(parts)}."


def refresh_index(directory: Path) -> None:
    """Updates the page of a running multirun, unless that would take too large a share of the time."""
    ended, took = LAST_MADE.get(directory, (-math.inf, 0.0))
    if time.monotonic() - ended > took / SHARE:
        make_index(directory, running=True)


def make_index(directory: Path, statuses: Mapping[str, str] | None = None, *, running: bool = False) -> Path:
    """Writes the page of the jobs in a directory; returns its path.

    **Arguments:**

    - `directory`: the multirun's directory, with a directory for each job.
    - `statuses`: job statuses by name, which override those in the summaries.
    - `running`: whether jobs without a summary count as running; otherwise they are lost.
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
    """Writes the page of an ensemble's members; `None` if the run has no ensemble."""
    ensemble = read_summary(folder).get("ensemble")
    rows = read_losses(folder / "metrics.csv")
    if not ensemble or not ensemble["members"] or not rows:
        return None
    members: list[JobEntry] = []
    for number, end in enumerate(ensemble["members"]):
        member_rows = [row for row in rows if int(row.get("member") or 0) == number]
        curve = learning_curve(member_rows)
        last = [row for row in member_rows if row["stage"] == member_rows[-1]["stage"]]
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
                "seconds": max((row["seconds"] or 0 for row in member_rows), default=None),
                "steps": max((row["step"] or 0 for row in member_rows), default=None),
                "curve": curve,
                "page": None,
            }
        )
    return write_index(folder, members, [], "member")


LOSS_COLUMNS = ("train_loss", "validation_loss")


class JobEntry(TypedDict):
    """A job or an ensemble member, as shown on the page.

    - `words`: its diagnosis, or the reason it ended. `varied`: overrides by key. `scores`: NRMSE by split.
    - `curve`: the losses of its last stage. `page`: its own page, if it exists.
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
    """Reads the page's entry of a job. `missing`: the status of a job without a summary."""
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
    """Returns steps, seconds and losses of the last stage, for the best member in each chunk."""
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
    """Returns the keys in which jobs differ, in the order of their first use."""
    keys = dict.fromkeys(key for job in jobs for key in job["varied"] if key not in ("resume", "hydra.run.dir"))
    return [key for key in keys if len({job["varied"].get(key) for job in jobs}) > 1]


def write_index(directory: Path, jobs: list[JobEntry], varied: list[str], noun: str) -> Path:
    """Writes the page of jobs or members, best first."""
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
    """Returns the sort key of a job: completed jobs by validation, or else training, error; then all others."""
    scores = (job["scores"][key] for key in ("validation", "train"))
    validation, train = (math.inf if score is None else score for score in scores)
    return job["status"] not in ENDED, validation, train
