"""Reads a run's directory for the report pages: text, scores, losses, dates, predictions and smooth curves."""

import csv
import functools
import io
import itertools
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, TypedDict, cast
from zipfile import BadZipFile

import numpy as np
import yaml
from jaxtyping import Bool, Float, Int

from ..data.dataset import Dataset
from ..data.tables.times import SECONDS, unit_for
from ..evaluation.metrics import SplitFigures
from ..plots.curves import Curve, Curves, Segment, Trajectory, join_segments, trajectory_errors
from ..plots.figures import SIDE, phase_points
from ..runtime.serialization import Json, check_yaml, is_json, is_list
from ..storage.files import BadFile, peek, write_file


class Summary(TypedDict):
    """The content of `summary.json`; a file can lack keys, for example if the run has not ended."""

    status: str
    reason: str
    overrides: NotRequired[list[str]]
    steps: int | None
    compiles: int
    cached: int
    seconds: dict[str, float]
    precision: str
    device: str
    devices: int
    parameters: int
    start: str
    model: Json
    equations: dict[str, str]
    constants: dict[str, float]
    derived: dict[str, float | None]
    likelihood: Json
    confidence: Json
    residuals: Json
    metrics: dict[str, SplitFigures | None]
    baselines: dict[str, dict[str, SplitFigures | None]]
    rows: dict[str, int]
    given_rows: dict[str, int]
    choices: dict[str, dict[str, str]]
    warnings: list[str]
    linear_is_best: bool
    diagnosis: Json
    expected: Json | None
    attempts: list[Json]
    horizon: int | None
    chaos: Json | None
    starts: Json | None
    ensemble: Json | None
    data: NotRequired[list[str]]


class LossRow(TypedDict):
    """A row of `metrics.csv`; older versions have no attempt."""

    stage: str
    attempt: NotRequired[str | None]
    member: float | None
    step: float | None
    seconds: float | None
    train_loss: float | None
    validation_loss: float | None


class MemberLosses(TypedDict):
    """The losses of an ensemble member in a stage."""

    step: list[float | None]
    seconds: list[float | None]
    train: list[float | None]
    validation: list[float | None]


class StageLosses(TypedDict):
    """The losses of a stage of an attempt, and the last step of the previous stage."""

    attempt: str | None
    name: str | None
    after: float
    members: list[MemberLosses]


class Origin(NamedTuple):
    """The origin of a page's times (UTC, `datetime64[us]`) and their unit."""

    first: np.datetime64
    unit: str

    def since(self, stamps: np.ndarray) -> Float[np.ndarray, "..."]:
        """Converts timestamps to times since this origin."""
        return (stamps - self.first) / np.timedelta64(1, "us") / (1e6 * SECONDS[self.unit])

    def times_of(self, data: Dataset, trajectory: int, ts: Float[np.ndarray, " time"]) -> Float[np.ndarray, " time"]:
        """Converts times of a dated trajectory to times since this origin."""
        assert data.dates is not None
        return (
            self.since(data.dates.zero[trajectory : trajectory + 1])
            + ts * SECONDS[data.dates.unit] / SECONDS[self.unit]
        )


def is_stamp(text: str) -> bool:
    """Whether a cell of the time column holds a timestamp."""
    return re.match(r"\s*\d{4}-\d{2}", text) is not None


def count_from_origin(name: str, texts: Sequence[str] | np.ndarray) -> tuple[str, Float[np.ndarray, " row"], Origin]:
    """Converts a column of timestamps to times; returns the column's label, the times, and their origin."""
    import pandas as pd

    stamps = pd.to_datetime(list(texts), format="ISO8601", utc=True).tz_localize(None).as_unit("us").to_numpy()
    steps = np.diff(stamps) / np.timedelta64(1, "s")
    origin = Origin(stamps.min(), unit_for(float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0))
    zone = " UTC" if re.search(r"(Z|[+-]\d{2}:?\d{2})$", texts[0].strip()) else ""
    first = np.datetime_as_string(origin.first, "s").replace("T", " ")
    return f"{name}, {origin.unit} from {first}{zone}", origin.since(stamps), origin


# File that `python -m node_fit.discover` writes beside the fit of the best equations.
DISCOVERY_NAME = "discovery.json"
# Maximum size of a config [bytes].
LARGEST_CONFIG_TEXT = 4 << 20


def read_json(path: Path) -> Json:
    """Reads a JSON file; empty if it is missing or can't be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if is_json(content) else {}


def read_summary(folder: Path) -> "Summary":
    """Reads the summary of a run, with current status names; empty if it is missing or can't be read."""
    return cast(Summary, with_statuses(read_json(folder / "summary.json")))


def with_statuses(node: object) -> object:
    """Replaces the status `stopped_early` of version 0.2 by `converged` or `stopped`."""
    if is_list(node):
        return [with_statuses(child) for child in node]
    if not is_json(node):
        return node
    renamed = {key: with_statuses(child) for key, child in node.items()}
    if renamed.get("status") == "stopped_early":
        reason = str(renamed.get("reason", ""))
        converged = reason.startswith(("converged: ", "the training loss has stalled"))
        renamed["status"] = "converged" if converged else "stopped"
        if "reason" in renamed:
            renamed["reason"] = reason.removeprefix("converged: ")
    return renamed


def read_config_text(path: Path) -> tuple[Json, str]:
    """Reads a config as keys and values and as text; empty if it can't be read or node_fit did not write it."""
    try:
        if path.stat().st_size > LARGEST_CONFIG_TEXT:
            return {}, ""
        text = path.read_text()
        check_yaml(text)
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}, ""
    return (content if is_json(content) else {}), text


def read_units(config: Mapping[str, object]) -> dict[str, str]:
    """Returns the column units in a config."""
    data = config.get("data")
    units = data.get("units") if is_json(data) else None
    return {str(name): str(unit) for name, unit in units.items()} if is_json(units) else {}


def read_levels(config: Mapping[str, object]) -> dict[str, list[str]]:
    """Returns the words of covariates in a config, by name."""
    data = config.get("data")
    levels = data.get("levels") if is_json(data) else None
    lists = levels.items() if is_json(levels) else ()
    return {str(name): list(map(str, words)) for name, words in lists if is_list(words)}


def read_losses(path: Path) -> list[LossRow]:
    """Reads the rows of `metrics.csv`; numbers are finite or `None`."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(line for line in file if line.endswith("\n")))
    except OSError:
        return []
    texts = ("stage", "attempt")
    parsed = [{key: value if key in texts else finite_number(value) for key, value in row.items()} for row in rows]
    return cast(list[LossRow], parsed)


def finite_number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def read_versions(model: Path) -> dict[str, str]:
    """Reads the versions of the packages that wrote a model file."""
    try:
        content = peek(model)
    except (BadFile, OSError):
        return {}
    return {"node_fit": str(content.get("node_fit", "?")), **content.get("versions", {})}


def command_of(record: Json, summary: "Summary") -> str:
    """Returns the command that repeats a run."""
    words = [word for path in record.get("config_dirs", []) for word in ("--config-dir", path)]
    overrides = record.get("overrides", summary.get("overrides") or [])
    words += [word for word in overrides if not word.startswith(("resume=", "resume_from="))]
    lines = [f"cd {shlex.quote(record['cwd'])}"] if record.get("cwd") else []
    return "\n".join([*lines, f"python -m node_fit {shlex.join(words)}".rstrip()])


def fit_again(folder: Path) -> str:
    """Returns the command that refits the equations of a discovery."""
    return f"python -m node_fit --config-dir {shlex.quote(str(folder))} experiment=discovered"


def read_discovery(folder: Path) -> Json | None:
    """Reads the discovered equations to show on a page; None if the file is missing, empty or damaged."""
    content = read_json(folder / DISCOVERY_NAME)
    try:
        weights = [float(weight) for weight in content["weights"]]
        rivals = [entry["equations"] for entry in content["rivals"]]
        systems = [
            {
                "size": int(entry["size"]),
                "error": float(entry["error"]),
                "lines": [f"d{state}/dt = {text}" for state, text in entry["shown"].items()],
                "weight": weights[0] if place == 0 else None,
            }
            for place, entry in enumerate(content["ranked"])
        ]
        for entry, system in zip(content["ranked"], systems, strict=True):
            if entry["equations"] in rivals:
                system["weight"] = weights[1 + rivals.index(entry["equations"])]
        front = [[int(entry["size"]), float(entry["error"])] for entry in content["front"]]
        discovery = {
            "verdict": str(content["verdict"]),
            "systems": systems,
            "front": front,
            "curves": dict(content["curves"]),
        }
        json.dumps(discovery, allow_nan=False)
        return discovery if systems else None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None


def stages(rows: list[LossRow]) -> list[StageLosses]:
    """Groups losses by attempt, stage and member.

    **Returns:** for each stage its `attempt`, its `name`, the step `after` which it begins, and `members`: dicts with
    lists `step`, `seconds`, `train`, `validation`.
    """
    losses: list[StageLosses] = []
    after = 0.0
    for (attempt, name), group in itertools.groupby(rows, lambda row: (row.get("attempt") or None, row.get("stage"))):
        members: dict[int, MemberLosses] = {}
        for row in group:
            empty: MemberLosses = {"step": [], "seconds": [], "train": [], "validation": []}
            member = members.setdefault(int(row.get("member") or 0), empty)
            member["step"].append(row.get("step"))
            member["seconds"].append(row.get("seconds"))
            member["train"].append(row.get("train_loss"))
            member["validation"].append(row.get("validation_loss"))
        losses.append({"attempt": attempt, "name": name, "after": after, "members": list(members.values())})
        after = last_step(losses[-1])
    return losses


def last_step(stage: StageLosses) -> float:
    """Returns the last step of a stage, over all members."""
    return max((member["step"][-1] or 0 for member in stage["members"]), default=0)


@dataclass(frozen=True)
class Predictions:
    """All rows of `predictions.csv`.

    - `states`, `inputs`, `time`: names of columns.
    - `ts`, `us`, `ys`, `predicted`: the columns; NaN for missing values. Timestamps are times since `origin`.
    - `bands`: lower and upper edges of the states; `None` without bands.
    - `scored`: rows included in the score.
    - `roles`, `names`, `starts`: split, trajectory and first row of each segment. A segment is a trajectory's rows in
      one split.
    """

    states: tuple[str, ...]
    inputs: tuple[str, ...]
    time: str
    ts: Float[np.ndarray, " row"]
    us: Float[np.ndarray, "row input"]
    ys: Float[np.ndarray, "row state"]
    predicted: Float[np.ndarray, "row state"]
    bands: tuple[np.ndarray, np.ndarray] | None
    scored: Bool[np.ndarray, " row"]
    roles: list[str]
    names: list[str]
    starts: Int[np.ndarray, " segment"]
    origin: Origin | None = None

    @property
    def ends(self) -> Int[np.ndarray, " segment"]:
        return np.append(self.starts[1:], len(self.ts))

    @functools.cached_property
    def residuals(self) -> Float[np.ndarray, "row state"]:
        """Measured minus predicted; NaN for unscored values, infinite for non-finite predictions."""
        counted = self.scored[:, None] & np.isfinite(self.ys)
        with np.errstate(invalid="ignore", over="ignore"):
            misses = np.where(np.isfinite(self.predicted), self.ys - self.predicted, np.inf)
        return np.where(counted, misses, np.nan)

    def rows_of(self, role: str) -> Bool[np.ndarray, " row"]:
        """Returns a mask of the rows in a split."""
        return np.repeat(np.array([name == role for name in self.roles], dtype=bool), self.ends - self.starts)

    def errors(self) -> Float[np.ndarray, " segment"]:
        """Computes the NRMSE of each segment in standard deviations of its split; NaN if nothing is scored."""
        squares, counted = np.zeros_like(self.ys), np.isfinite(self.residuals) | np.isinf(self.residuals)
        for role in dict.fromkeys(self.roles):
            rows = self.rows_of(role)
            for state in range(len(self.states)):
                here = rows & counted[:, state]
                scale = self.ys[here, state].std() if here.any() else 0.0
                with np.errstate(over="ignore"):
                    squares[here, state] = (self.residuals[here, state] / scale) ** 2 if scale > 0 else 0.0
        sums, counts = (np.add.reduceat(values, self.starts, axis=0) for values in (squares, counted.astype(float)))
        with np.errstate(invalid="ignore"):
            means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
            finite = (~np.isnan(means)).sum(axis=1)
            return np.sqrt(np.where(finite > 0, np.nansum(means, axis=1) / np.maximum(finite, 1), np.nan))


def read_predictions(path: Path) -> Predictions | None:
    """Reads `predictions.csv`; `None` if it is missing or has no rows."""
    if not path.is_file():
        return None
    with open(path, newline="") as file:
        rows = csv.reader(file)
        header, first = next(rows, list[str]()), next(rows, list[str]())
    # Identify columns by position, since names are arbitrary: split, trajectory, time, inputs, states.
    places = [i for i in range(3, len(header) - 1) if header[i + 1] == f"{header[i]}_predicted"]
    dated = len(first) > 2 and is_stamp(first[2])
    columns = read_columns(path, header, texts=2 + dated)
    if not places or not len(columns[-1]):
        return None
    time, ts, origin = count_from_origin(header[2], columns[2]) if dated else (header[2], columns[2], None)
    has_bands = header[places[0] + 2 : places[0] + 3] == [f"{header[places[0]]}_lower"]
    changes = (np.diff(codes, prepend=-1) != 0 for codes, _ in columns[:2])
    starts = np.flatnonzero(np.logical_or(*changes))

    def stack(offset: int) -> np.ndarray:
        return np.stack([columns[place + offset] for place in places], axis=1)

    inputs = range(3, places[0])
    return Predictions(
        states=tuple(header[place] for place in places),
        inputs=tuple(header[i] for i in inputs),
        time=time,
        ts=ts,
        us=np.stack([columns[i] for i in inputs], axis=1) if inputs else np.zeros((len(ts), 0)),
        ys=stack(0),
        predicted=stack(1),
        bands=(stack(2), stack(3)) if has_bands else None,
        scored=columns[-1] > 0 if header[-1] == "scored" else np.ones(len(ts), dtype=bool),
        roles=[columns[0][1][code] for code in columns[0][0][starts].tolist()],
        names=[columns[1][1][code] for code in columns[1][0][starts].tolist()],
        starts=starts,
        origin=origin,
    )


def read_columns(path: Path, header: list[str], texts: int) -> list[Any]:
    """Reads the columns of a CSV file: first two dictionary-encoded, the others as text or numbers.

    **Arguments:** `texts`: number of text columns.
    """
    from pyarrow import csv as reader
    from pyarrow import float64, string

    kinds = {name: float64() for name in header[texts:]} | {name: string() for name in header[:texts]}
    table = reader.read_csv(
        path,
        parse_options=reader.ParseOptions(newlines_in_values=True),
        convert_options=reader.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=False),
    )
    coded = [column.combine_chunks().dictionary_encode() for column in table.columns[:2]]
    codes = [(column.indices.to_numpy(), column.dictionary.to_pylist()) for column in coded]
    return codes + [column.to_numpy() for column in table.columns[2:]]


Key = tuple[str, str]


def score_records(predictions: Predictions, counted: Mapping[str, Dataset]) -> dict[Key, float]:
    """Computes the NRMSE of each trajectory by split and name, as in the scores of the run.

    **Arguments:** `counted`: the data with limits, angles, and robust-loss weights, which the table lacks.
    """
    errors_by_key: dict[Key, float] = {}
    for role, data in counted.items():
        mask, rows = data.valid & data.scored, predictions.rows_of(role) & predictions.scored
        if mask.sum() != rows.sum():  # The table is from different data.
            continue
        predicted = np.full(data.ys.shape, np.nan)
        predicted[mask] = predictions.predicted[rows]
        errors = trajectory_errors(Curves({role: data}, {}, at_rows={role: predicted}), role)
        errors_by_key |= {(role, name): error for name, error in zip(data.trajectories, errors, strict=True)}
    return errors_by_key


def trajectories_of(predictions: Predictions, errors: Mapping[Key, float] = MappingProxyType({})) -> list[Trajectory]:
    """Builds all trajectories, joined with rows of other splits that continue them. Segments have no curves yet.

    **Arguments:** `errors`: from `score_records`; missing ones are computed from the table's values.
    """
    starts, ends = predictions.starts.tolist(), predictions.ends.tolist()
    keys, plain = zip(predictions.roles, predictions.names, strict=True), predictions.errors().tolist()
    scores = [errors.get(key, error) for key, error in zip(keys, plain, strict=True)]
    ts, ys, us = predictions.ts, predictions.ys, predictions.us
    segments = zip(predictions.roles, predictions.names, starts, ends, scores, strict=True)
    return join_segments(
        (Segment(role, name, ts[begin:end], ys[begin:end], us[begin:end], error, None, place), True)
        for place, (role, name, begin, end, error) in enumerate(segments)
    )


CURVES_NAME = ".curves.npz"


@dataclass(frozen=True)
class Field:
    """A vector field of two states at the points of a grid, in the user's units.

    - `xs`, `ys`: coordinates of the grid.
    - `slopes`: time derivatives, shape `(len(ys), len(xs), 2)`.
    """

    xs: Float[np.ndarray, " n"]
    ys: Float[np.ndarray, " n"]
    slopes: Float[np.ndarray, "n n 2"]


def save_curves(
    folder: Path,
    curves: Curves,
    slopes: np.ndarray | None,
    wanted: set[Key],
    origin: Origin | None = None,
    errors: Mapping[Key, float] = MappingProxyType({}),
) -> None:
    """Writes the curves of the wanted splits and trajectories, the vector field, and the errors of `score_records`.

    Curves of dated data are written at times since `origin`.
    """
    arrays: dict[str, Any] = {}
    for role in dict.fromkeys(role for role, _ in errors):
        role_errors = {name: error for (split, name), error in errors.items() if split == role}
        arrays |= {
            f"{role}/judged": np.array(list(role_errors), dtype=str),
            f"{role}/errors": np.array(list(role_errors.values())),
        }
    for role, data in curves.splits.items():
        rows = [i for i, name in enumerate(data.trajectories) if (role, name) in wanted]
        ts, ys = (part[rows] for part in curves.dense[role])
        marks = [curves.curve(role, row).events for row in rows]
        times = [np.array([time for time, _ in events]) for events in marks]
        if origin is not None and data.dates is not None:
            ts = np.stack([origin.times_of(data, i, t) for i, t in zip(rows, ts, strict=True)]) if rows else ts
            times = [origin.times_of(data, i, t) for i, t in zip(rows, times, strict=True)]
        arrays[f"{role}/names"] = np.array([data.trajectories[i] for i in rows], dtype=str)
        arrays |= {f"{role}/ts": ts, f"{role}/ys": ys.astype(np.float32)}
        if role in curves.bands:
            lower, upper = (edge[rows].astype(np.float32) for edge in curves.bands[role])
            arrays |= {f"{role}/lower": lower, f"{role}/upper": upper}
        if role in curves.dense_hidden:
            arrays[f"{role}/hidden"] = curves.dense_hidden[role][rows].astype(np.float32)
        if any(marks):
            arrays[f"{role}/event counts"] = np.array([len(events) for events in marks])
            arrays[f"{role}/event times"] = np.concatenate(times)
            arrays[f"{role}/events"] = np.array([text for events in marks for _, text in events], dtype=str)
    arrays["hidden"] = np.array(curves.hidden, dtype=str)
    if slopes is not None:
        arrays |= {"points": phase_points(curves), "slopes": slopes}
    file = io.BytesIO()
    with np.errstate(over="ignore"):
        np.savez_compressed(file, **arrays)
    write_file(folder / CURVES_NAME, file.getvalue())


@dataclass(frozen=True)
class StoredCurves:
    """The content of a file of `save_curves`: curves, names of hidden states, errors, and the vector field."""

    curves: Mapping[Key, Curve]
    hidden: tuple[str, ...] = ()
    errors: Mapping[Key, float] = field(default_factory=dict[Key, float])
    field: Field | None = None


def load_curves(folder: Path) -> StoredCurves:
    """Reads the file of `save_curves`; empty if it is missing or damaged."""
    try:
        # Read from memory, because NumPy leaves a damaged file open.
        with np.load(io.BytesIO((folder / CURVES_NAME).read_bytes()), allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError, BadZipFile):
        return StoredCurves({})
    curves: dict[Key, Curve] = {}
    for key in [key for key in arrays if key.endswith("/names")]:
        role = key.removesuffix("/names")
        lower, upper, hidden = (arrays.get(f"{role}/{part}") for part in ("lower", "upper", "hidden"))
        ends = np.cumsum(arrays.get(f"{role}/event counts", np.zeros(len(arrays[key]), int)))
        instants, texts = (arrays.get(f"{role}/{part}", np.zeros(0)).tolist() for part in ("event times", "events"))
        marks = tuple(zip(instants, texts, strict=True))
        for i, name in enumerate(arrays[key]):
            curves[role, str(name)] = Curve(
                arrays[f"{role}/ts"][i],
                arrays[f"{role}/ys"][i],
                None if lower is None or upper is None else (lower[i], upper[i]),
                None if hidden is None else hidden[i],
                marks[ends[i - 1] if i else 0 : ends[i]],
            )
    field = grid(arrays["points"], arrays["slopes"]) if "slopes" in arrays else None
    errors: dict[Key, float] = {}
    for key in [key for key in arrays if key.endswith("/judged")]:
        role = key.removesuffix("/judged")
        pairs = zip(arrays[key].tolist(), arrays.get(f"{role}/errors", np.zeros(0)).tolist(), strict=False)
        errors |= {(role, str(name)): float(error) for name, error in pairs}
    return StoredCurves(curves, tuple(arrays.get("hidden", np.zeros(0)).tolist()), errors, field)


def grid(points: Float[np.ndarray, "point 2"], slopes: Float[np.ndarray, "point 2"]) -> Field:
    mesh = points.reshape(SIDE, SIDE, 2)
    return Field(mesh[0, :, 0], mesh[:, 0, 1], slopes.reshape(SIDE, SIDE, 2))


def field_of_model(path: Path, predictions: Predictions, extensions: Sequence[str]) -> Field | None:
    """Evaluates a model file's vector field around the data; `None` unless the model has two states, both measured."""
    from ..storage.model_file import load

    if len(predictions.states) != 2 or not path.is_file():
        return None
    model = load(path, extensions=extensions).typical
    if not model.is_measured:
        return None
    sides: list[np.ndarray] = []
    for values in predictions.ys.T:
        low, high = np.nanmin(values), np.nanmax(values)
        room = 0.12 * ((high - low) or 1.0)
        sides.append(np.linspace(low - room, high + room, SIDE))
    points = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    return grid(points, np.asarray(model.derivative(points)))
