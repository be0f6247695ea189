"""Data and style of plots: trajectories as drawn by Matplotlib and on pages, the curves of a plot, and the style."""

import functools
import io
import math
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..data.dataset import Dataset
from ..data.events import Marks
from ..data.inputs import Interpolations
from ..evaluation.metrics import mean_over_channels, prediction_errors, squared_errors
from ..evaluation.simulation import Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Dense = tuple[Float[np.ndarray, "trajectory n"], Float[np.ndarray, "trajectory n state"]]
Edges = tuple[Float[np.ndarray, "trajectory n state"], Float[np.ndarray, "trajectory n state"]]
TRAIN, CONTEXT = "train", "context"
RANKS = ("best", "median", "worst")
# Paul Tol's bright palette (technical note SRON/EPS/TN/09-002), readable by the colour-blind.
ACCENTS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE")
INK, QUIET, FAINT, SHADE = "#333333", "#777777", "#cfcfcf", "#f4f1ea"
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.05,
}
DPI = 150


@dataclass(frozen=True)
class Curves:
    """The data of a plot, in the user's units.

    - `splits`: the data of each role: `train`, and held-out data such as `validation` and `test`. If a trajectory of a
      role is also in `train`, and only its later rows are scored, it is a forecast of that trajectory.
    - `dense`: the model's curve for each role on its own time grid, as `(ts, ys)` of shapes `(trajectory, n)` and
      `(trajectory, n, state)`; not finite where the solve fails.
    - `bands`: lower and upper edges of bands around the curves, in the shape of the curves; empty without bands.
    - `left_out`: number of trajectories that were left out.
    - `at_rows`: the model's states at the times of the data; if missing, the curve is interpolated.
    - `hidden`: names of the model's hidden states.
    - `dense_hidden`: curves of the hidden states for each role, shape `(trajectory, n, hidden)`; empty without any.
    - `counted`: the complete data of each role, with the rows and values that count in errors; if missing, all count.
    - `inputs`: interpolation of inputs between rows; see `node_fit.Solver`.
    """

    splits: dict[str, Dataset]
    dense: dict[str, Dense]
    bands: dict[str, Edges] = field(default_factory=dict[str, Edges])
    left_out: int = 0
    at_rows: dict[str, Float[np.ndarray, "trajectory time state"]] = field(default_factory=dict[str, np.ndarray])
    hidden: tuple[str, ...] = ()
    dense_hidden: dict[str, Float[np.ndarray, "trajectory n hidden"]] = field(default_factory=dict[str, np.ndarray])
    counted: Mapping[str, Dataset] = field(default_factory=dict[str, Dataset])
    inputs: Interpolations = "linear"

    @staticmethod
    def of(simulated: Simulated, counted: Mapping[str, Dataset]) -> "Curves":
        """Returns the curves of a simulation; `counted` holds the scored rows."""
        return Curves(
            splits=simulated.pictured,
            dense=simulated.dense,
            bands=simulated.dense_bands,
            left_out=simulated.left_out,
            at_rows=simulated.pictured_rows,
            hidden=simulated.hidden,
            dense_hidden=simulated.dense_hidden,
            counted=counted,
            inputs=simulated.inputs,
        )

    def curve(self, role: str, row: int) -> "Curve":
        """Returns the model's curve of one trajectory."""
        ts, ys = self.dense[role]
        bands = (self.bands[role][0][row], self.bands[role][1][row]) if role in self.bands else None
        hidden = self.dense_hidden[role][row] if role in self.dense_hidden else None
        data = self.splits[role]
        events = () if data.events is None else data.events.marks(row, data.ts[row], data.valid[row])
        return Curve(ts[row], ys[row], bands, hidden, events)


class Curve(NamedTuple):
    """A model's curve between measurements, from the start of a trajectory.

    - `ts`, `ys`: times and states.
    - `bands`: lower and upper edges of bands, or None.
    - `hidden`: the hidden states, or None.
    - `events`: doses, resets and switches of the trajectory.
    """

    ts: Float[np.ndarray, " n"]
    ys: Float[np.ndarray, "n state"]
    bands: tuple[np.ndarray, np.ndarray] | None = None
    hidden: Float[np.ndarray, "n hidden"] | None = None
    events: Marks = ()


@dataclass(slots=True)
class Segment:
    """A trajectory's rows in one split.

    - `role`, `name`: the split, and the trajectory. The role `context` holds rows that are known, but not scored.
    - `ts`, `ys`, `us`: times, measurements (NaN where none counts for the role) and inputs.
    - `error`: NRMSE, NaN if nothing counts.
    - `curve`: the model's curve, from the start of the trajectory if it is known there.
    - `limits`: -1 where the value lies below `ys`, 1 where it lies above, else 0; None if all are exact.
    - `place`: position of the segment in its source table.
    - `other_end`: the other end of the interval that contains a value, NaN without one; None if no value has one.
    """

    role: str
    name: str
    ts: Float[np.ndarray, " row"]
    ys: Float[np.ndarray, "row state"]
    us: Float[np.ndarray, "row input"]
    error: float
    curve: Curve | None = None
    place: int = 0
    limits: Int[np.ndarray, "row state"] | None = None
    other_end: Float[np.ndarray, "row state"] | None = None

    @property
    def is_between(self) -> Bool[np.ndarray, "row state"]:
        """Mask of values that lie between two limits."""
        return np.isfinite(self.ys) & np.isfinite(np.nan if self.other_end is None else self.other_end)

    @property
    def sides(self) -> Int[np.ndarray, "row state"]:
        """The side of a single limit on which a value lies; 0 for other values."""
        return np.zeros(self.ys.shape, np.int8) if self.limits is None else np.where(self.is_between, 0, self.limits)


@dataclass
class Trajectory:
    """A trajectory as drawn: its segments in order of time; later ones are forecasts of the first.

    - `errors`: NRMSE by role.
    - `end`: its last time.
    - `rank`: `best`, `median`, `worst` or empty.

    `held` and `error` are computed once, after the trajectory is complete.
    """

    name: str
    segments: list[Segment] = field(default_factory=list[Segment])
    errors: dict[str, float] = field(default_factory=dict[str, float])
    end: float = -math.inf
    rank: str = ""

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.end = max(self.end, float(segment.ts[-1]))
        if segment.role != CONTEXT:
            self.errors[segment.role] = segment.error

    @functools.cached_property
    def is_held_out(self) -> bool:
        """Whether any part was held out from the fit."""
        return any(role != TRAIN for role in self.errors)

    @functools.cached_property
    def error(self) -> float:
        """The error used for ranking: that of held-out data if present, else of fitted data; infinite if unknown."""
        errors = {role: error for role, error in self.errors.items() if not math.isnan(error)}
        held = [error for role, error in errors.items() if role != TRAIN]
        return max(held) if held else errors.get(TRAIN, math.inf)

    @property
    def forecast(self) -> float | None:
        """The time after which rows are held out; None if all or no rows are."""
        before = [segment for segment in self.segments if segment.role in (TRAIN, CONTEXT)]
        return float(before[-1].ts[-1]) if before and self.is_held_out else None

    @property
    def curve(self) -> Curve:
        """The curve that reaches furthest in time."""
        curves = [segment.curve for segment in self.segments if segment.curve is not None]
        return max(curves, key=lambda curve: curve.ts[-1])

    @property
    def events(self) -> Marks:
        """Its doses, resets and switches."""
        return self.curve.events


def join_segments(segments: Iterable[tuple[Segment, bool]]) -> list[Trajectory]:
    """Joins segments that follow one another into trajectories.

    **Arguments:** `segments`: segments, with whether each can continue a trajectory of its name. It does so if it
    begins after the end of that trajectory, in another split.
    """
    trajectories: list[Trajectory] = []
    latest: dict[str, Trajectory] = {}
    for segment, continues in segments:
        trajectory = latest.get(segment.name)
        if trajectory is None or not continues or segment.ts[0] < trajectory.end or segment.role in trajectory.errors:
            trajectory = latest[segment.name] = Trajectory(segment.name)
            trajectories.append(trajectory)
        trajectory.append(segment)
    return trajectories


def rank_trajectories(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Marks and returns the best, the median and the worst of the held-out and of the fitted trajectories.

    A kind with fewer than three trajectories is returned in full, without marks.
    """
    marked: list[Trajectory] = []
    kinds: dict[bool, list[tuple[float, Trajectory]]] = {True: [], False: []}
    for trajectory in trajectories:
        kinds[trajectory.is_held_out].append((trajectory.error, trajectory))
    for group in kinds.values():
        group.sort(key=lambda pair: pair[0])
        if len(group) < len(RANKS):
            marked += [trajectory for _, trajectory in group]
            continue
        for name, place in zip(RANKS, (0, (len(group) - 1) // 2, len(group) - 1), strict=True):
            group[place][1].rank = name
        marked += [group[place][1] for place in ((len(group) - 1) // 2, len(group) - 1, 0)]
    return marked


def collect(curves: Curves) -> list[Trajectory]:
    """Returns the trajectories of a plot; a forecast joins the trajectory that it continues."""
    pieces: list[tuple[Segment, bool]] = []
    fitted = set(curves.splits[TRAIN].trajectories) if TRAIN in curves.splits else set[str]()
    for role, data in curves.splits.items():
        errors = trajectory_errors(curves, role)
        for row, name in enumerate(data.trajectories):
            context = data.valid[row] & ~data.scored[row]
            continues = role != TRAIN and bool(context.any())
            rows = data.valid[row] & data.scored[row] if continues else data.valid[row]
            ts, us, curve = data.ts[row], data.us[row], curves.curve(role, row)
            if continues and name not in fitted:
                past = Segment(CONTEXT, name, ts[context], data.ys[row][context], us[context], math.nan, curve)
                pieces.append((past, False))
            counted = np.where(data.mask[row], data.ys[row], np.nan)[rows]
            if rows.any():
                part = Segment(role, name, ts[rows], counted, us[rows], errors[row], curve)
                part.limits = None if data.censored is None else data.censored[row][rows]
                part.other_end = None if data.other_end is None else data.other_end[row][rows]
                pieces.append((part, continues))
    return join_segments(pieces)


def interpolate_curve(ts: Float[np.ndarray, " time"], curve: Curve) -> Float[np.ndarray, "time state"]:
    """Interpolates a curve at other times."""
    columns: list[np.ndarray] = [np.interp(ts, curve.ts, ys) for ys in curve.ys.T]
    return np.stack(columns, axis=1)


def trajectory_errors(curves: Curves, role: str) -> list[float]:
    """Returns the NRMSE of each trajectory of a split, in units of the spread of the split.

    The error of a split's only trajectory is thus the split's score. Non-finite predictions have infinite errors.
    """
    data = curves.splits[role]
    counted = curves.counted.get(role, data)
    places = {name: place for place, name in enumerate(counted.trajectories)}
    judged, scales = counted.select([places[name] for name in data.trajectories]), prediction_errors(counted)
    predicted = curves.at_rows.get(role)
    if predicted is None:
        rows = [interpolate_curve(ts, curves.curve(role, row)) for row, ts in enumerate(data.ts)]
        predicted = np.stack(rows)
    squares = squared_errors(judged, predicted[:, : judged.ts.shape[1]]) / np.where(scales > 0, scales, 1.0) ** 2
    counts = judged.mask & (scales > 0)
    return [mean_over_channels(squares[[row]], counts[[row]]) for row in range(len(data.trajectories))]


def use_style() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save_figure(figure: "Figure", path: str | Path) -> Path:
    Path(path).write_bytes(png(figure))
    return Path(path)


def png(figure: "Figure") -> bytes:
    """Renders a figure as a PNG file."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; that must not stop a run.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            figure.savefig(content, format="png", dpi=DPI)
        except UserWarning:  # Long names leave no room, so the picture grows with them.
            content = io.BytesIO()
            figure.set_layout_engine("none")
            figure.savefig(content, format="png", dpi=DPI, bbox_inches="tight")
    return content.getvalue()


def plain_label(text: str) -> str:
    """Escapes dollar signs, which would otherwise start mathematics."""
    return text.replace("$", r"\$")


# Properties of lines and markers, by their Matplotlib names.
LineStyle = dict[str, Any]
EVENT: LineStyle = {"ls": "none", "marker": "|", "color": "#228833", "ms": 8, "mew": 2.0}


def marker(role: str, colour: str, count: int, crowded: bool = False) -> LineStyle:
    """Returns the marker style for measurements of a role: filled if fitted, else hollow; smaller for large counts."""
    size = float(np.clip(30 / np.sqrt(max(count, 1)), 1.8, 3.6))
    style: LineStyle = {"ls": "none", "marker": "o", "color": colour, "ms": size, "mew": 0.0}
    if role == TRAIN:
        return style | {"alpha": 0.45 if crowded else 1.0}
    if role == CONTEXT:
        return style | {"alpha": 0.35}
    hollow = style | {
        "mew": 0.6 if crowded else 0.8,
        "alpha": 0.55 if crowded else 1.0,
        "mfc": "none" if crowded else "white",
    }
    return hollow | ({"marker": "D", "ms": size} if role == "test" else {"ms": size + 0.6})


# Markers of limits, by the side on which the value lies; their tips point to it.
LIMIT_MARKS = {-1: ("v", "below a limit"), 1: ("^", "above a limit")}
# Bars between two limits.
INTERVAL: LineStyle = {"lw": 1.6, "ls": "-", "marker": "none"}
INTERVAL_MARK: LineStyle = {"marker": "|", "ms": 8, "mew": 1.6}


def label_of(role: str) -> str:
    return {TRAIN: "fitted data", CONTEXT: "context", "validation": "validation", "test": "test"}.get(role, role)


def entry(label: str, **style: Any) -> "Line2D":
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)
