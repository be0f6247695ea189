"""Pictures of a fit: the loss, the model against the data, and the phase portrait."""

import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .dataset import Dataset
from .evaluation import deviations, mean_over_channels

Dense = tuple[Float[np.ndarray, "trajectory n"], Float[np.ndarray, "trajectory n state"]]
Field = Callable[[np.ndarray], Any]

TRAIN = "train"
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
START: dict[str, Any] = {"ls": "none", "marker": "s", "ms": 4, "mfc": "white", "mec": INK, "mew": 0.9}
DPI = 150
EACH, PANELS, INPUTS = 3, 6, 2  # Shown at most: trajectories of each kind, states, inputs.


@dataclass(frozen=True)
class Curves:
    """What a picture of a fit is drawn from, in the user's units.

    - `splits`: the data of each role: `train`, and those held out, such as `validation` and `test`. A role whose
      trajectory also stands in `train`, and of which only later rows are scored, is a forecast of it.
    - `dense`: the model's curve of each role at times of its own, as `(ts, ys)` of shapes `(trajectory, n)` and
      `(trajectory, n, state)`; not finite where the solution fails.
    """

    splits: dict[str, Dataset]
    dense: dict[str, Dense]


@dataclass
class Record:
    """One trajectory as it is drawn: its measurements by role, its inputs, its curve and its errors.

    - `points`: times and values of each role, NaN where a value does not count for it. The role `context` has the
      rows that are known and not scored, where no training record has them.
    - `data`: the dataset and the row that reach furthest, for the inputs.
    - `forecast`: the time after which rows are held out; `None` if there is none.
    - `errors`: NRMSE of each role.
    """

    name: str
    data: tuple[Dataset, int]
    ts: Float[np.ndarray, " n"]
    ys: Float[np.ndarray, "n state"]
    points: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    forecast: float | None = None
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether any measurement of it is held out."""
        return any(role not in (TRAIN, "context") for role in self.points)

    @property
    def error(self) -> float:
        """The error it is ranked by: of the held-out rows if there are some."""
        known = {role: error for role, error in self.errors.items() if not np.isnan(error)}
        held = [error for role, error in known.items() if role != TRAIN]
        return max(held) if held else known.get(TRAIN, np.inf)


def plot_loss(rows: Sequence[dict], path: str | Path) -> Path:
    """Draws the training and validation loss against the step.

    **Arguments:**

    - `rows`: one dict for each line of `metrics.csv`, with `step`, `stage`, `train_loss` and `validation_loss`;
      `None` or NaN where there is no figure.
    - `path`: the PNG to write.

    **Returns:** `path`.
    """
    with styled():
        figure = new_figure(6.0, 3.2)
        axes = figure.add_subplot()
        steps, stages = column(rows, "step"), [row.get("stage") for row in rows]
        losses = {"train_loss": column(rows, "train_loss"), "validation_loss": column(rows, "validation_loss")}
        drawn = {name: drawable(loss) for name, loss in losses.items()}
        labels = {"train_loss": "training", "validation_loss": "validation"}
        for (name, label), color in zip(labels.items(), ACCENTS, strict=False):
            # A line a stage: the losses of two stages are of two objectives.
            for index, part in enumerate(runs(stages)):
                known = part[np.isfinite(drawn[name][part])]
                curve = drawn[name][known]
                title = label if index == 0 else None
                if known.size:
                    axes.plot(steps[known], curve, color=color, lw=1.2, label=title, **lone(curve))
        if any(np.isfinite(loss).any() for loss in drawn.values()):
            axes.set_yscale("log")
            mark_best(axes, steps, stages, losses)
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)
        else:
            axes.text(0.5, 0.5, "no positive, finite loss", transform=axes.transAxes, ha="center", color=QUIET)
        mark_stages(axes, steps, stages)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.margins(x=0.02)
        return save(figure, path)


def plot_fit(curves: Curves, path: str | Path) -> Path:
    """Draws each state's data and the model's curve against time, for at most six trajectories.

    Of more trajectories, the best, the median and the worst of those fitted and of those held out are shown. Data that
    were fitted are filled dots; data held out are hollow, on a shaded ground. The errors in the titles are taken
    between the curve's times by linear interpolation.

    **Arguments:**

    - `curves`: data and curves.
    - `path`: the PNG to write.

    **Returns:** `path`.
    """
    records = collect(curves)
    shown = choose(records)
    first = next(iter(curves.splits.values()))
    states, inputs = first.states[:PANELS], first.inputs[:INPUTS]
    heights = [1.0] * len(states) + [0.42] * len(inputs)
    with styled():
        width = 7.0 if len(shown) == 1 else max(6.0, 2.15 * len(shown) + 0.6)
        height = (1.9 if len(shown) == 1 else 1.6) * sum(heights) + 1.3
        figure = new_figure(width, height)
        grid = figure.subplots(
            len(heights), len(shown), squeeze=False, sharex="col", sharey="row", gridspec_kw={"height_ratios": heights}
        )
        for across, (record, label) in enumerate(shown):
            frame_times(grid[0, across], record, len(shown))
            for down in range(len(states)):
                draw_state(grid[down, across], record, down, crowd=80 if len(shown) == 1 else 24)
            for down in range(len(inputs)):
                draw_input(grid[len(states) + down, across], record, down)
            grid[0, across].set_title(column_title(record, label, len(shown)), color=INK)
            grid[-1, across].set_xlabel(named(first, first.time))
        for down, name in enumerate((*states, *inputs)):
            grid[down, 0].set_ylabel(named(first, name))
        for down in range(len(states)):
            grid[down, 0].set_ylim(limits([record for record, _ in shown], down))
        figure.align_ylabels(grid[:, 0])
        headline(figure, records, shown, first)
        legend(figure, shown)
        return save(figure, path)


def plot_phase(curves: Curves, field: Field | None, path: str | Path) -> Path:
    """Draws one state against the other, with the trajectories, the data and the vector field.

    **Arguments:**

    - `curves`: data and curves of exactly two states.
    - `field`: the time derivative at points of shape `(n, 2)`, in the user's units, as `(n, 2)`; `None` to leave out.
    - `path`: the PNG to write.

    **Returns:** `path`.

    **Raises:** `ValueError` if there are not two states.
    """
    first = next(iter(curves.splits.values()))
    if len(first.states) != 2:
        raise ValueError(f"a phase portrait needs 2 states, got {len(first.states)}: {', '.join(first.states)}.")
    records = collect(curves)
    shown = choose(records)
    chosen = [record for record, _ in shown]
    with styled():
        figure = new_figure(5.4, 5.4)
        axes = figure.add_subplot()
        axes.set_xlim(limits(chosen, 0, room=0.12))
        axes.set_ylim(limits(chosen, 1, room=0.12))
        if field is not None:
            draw_field(axes, field)
        for record in chosen:
            draw_orbit(axes, record)
        axes.set_xlabel(named(first, first.states[0]))
        axes.set_ylabel(named(first, first.states[1]))
        headline(figure, records, shown, first)
        orbit_legend(figure, chosen, field is not None)
        return save(figure, path)


def collect(curves: Curves) -> list[Record]:
    """One record for each trajectory; a forecast joins the record of the trajectory it continues."""
    records: dict[tuple[str, str], Record] = {}
    for role, data in curves.splits.items():
        scales = deviations(data)
        ts, ys = curves.dense[role]
        for row, name in enumerate(data.trajectories):
            valid = data.valid[row]
            context = valid & ~data.scored[row]
            continued = role != TRAIN and bool(context.any())
            key = (TRAIN, name) if continued and (TRAIN, name) in records else (role, name)
            record = records.setdefault(key, Record(name, (data, row), ts[row], ys[row]))
            if ts[row][-1] >= record.ts[-1]:
                record.data, record.ts, record.ys = (data, row), ts[row], ys[row]
            counted = np.where(data.mask[row], data.ys[row], np.nan)[valid]
            record.points[role] = (data.ts[row][valid], counted)
            if continued:
                mark_forecast(record, key[0], data, row, context)
            record.errors[role] = curve_error(data.ts[row][valid], counted, scales, ts[row], ys[row])
    return list(records.values())


def mark_forecast(record: Record, owner: str, data: Dataset, row: int, context: np.ndarray) -> None:
    """Notes where the held-out rows begin, and the rows before them if no training record has them."""
    before = data.ts[row][context]
    if owner != TRAIN:
        record.points = {"context": (before, data.ys[row][context])} | record.points
    elif TRAIN in record.points:
        before = record.points[TRAIN][0]
    start = float(before.max())
    record.forecast = start if record.forecast is None else min(record.forecast, start)


def curve_error(
    ts: np.ndarray, ys: np.ndarray, scales: np.ndarray, dense_ts: np.ndarray, dense_ys: np.ndarray
) -> float:
    """NRMSE of a curve against points, as in `evaluation.score`; infinite where the curve is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        on_curve = np.stack([np.interp(ts, dense_ts, dense_ys[:, i]) for i in range(ys.shape[1])], axis=1)
        squares = np.square((on_curve - ys) / np.where(scales > 0, scales, 1.0))
    squares = np.where(np.isfinite(squares), squares, np.inf)
    return mean_over_channels(squares[None], (np.isfinite(ys) & (scales > 0))[None])


def choose(records: list[Record]) -> list[tuple[Record, str]]:
    """At most three trajectories of those fitted and three of those held out, each with what it is among them."""
    if len(records) <= EACH:
        return [(record, "") for record in records]
    shown = []
    for held in (False, True):
        group = sorted((record for record in records if record.held == held), key=lambda record: record.error)
        if len(group) <= EACH:
            shown += [(record, "") for record in group]
        else:
            shown += [(group[0], "best"), (group[(len(group) - 1) // 2], "median"), (group[-1], "worst")]
    return shown


def frame_times(axes: Any, record: Record, columns: int) -> None:
    """Limits and ticks of the time, which the panels of a trajectory share."""
    from matplotlib.ticker import MaxNLocator

    times = np.concatenate([record.ts, *(ts for ts, _ in record.points.values())])
    room = 0.03 * (float(np.ptp(times)) or 1.0)
    axes.set_xlim(times.min() - room, times.max() + room)
    whole = all((ts == np.round(ts)).all() for ts, _ in record.points.values())
    axes.xaxis.set_major_locator(MaxNLocator(9 if columns == 1 else 5, integer=whole, steps=[1, 2, 5, 10]))


def draw_state(axes: Any, record: Record, state: int, crowd: int) -> None:
    """Data and curve of one state. More points than `crowd` are drawn pale, with the curve above them."""
    colour = ACCENTS[state % len(ACCENTS)]
    shade(axes, record, label=state == 0)
    count = sum(int(np.isfinite(ys[:, state]).sum()) for _, ys in record.points.values())
    crowded = count > crowd
    for role, (ts, ys) in record.points.items():
        axes.plot(ts, ys[:, state], **marker(role, colour, count, crowded), zorder=2)
    line = {"color": darker(colour), "zorder": 3} if crowded else {"color": colour, "zorder": 1.9}
    axes.plot(record.ts, visible(record, state), lw=1.3, **line)
    note_failure(axes, record)
    axes.label_outer()


def draw_input(axes: Any, record: Record, which: int) -> None:
    data, row = record.data
    valid = data.valid[row]
    shade(axes, record, label=False)
    axes.plot(data.ts[row][valid], data.us[row][valid, which], color=QUIET, lw=0.9)
    axes.label_outer()


def shade(axes: Any, record: Record, label: bool) -> None:
    """A light ground where the measurements were held out from the fit."""
    if record.forecast is not None:
        axes.axvspan(record.forecast, axes.get_xlim()[1], color=SHADE, lw=0, zorder=0)
        axes.axvline(record.forecast, color=QUIET, lw=0.7, ls=(0, (4, 3)), zorder=1)
        if label:
            axes.annotate(
                "forecast",
                (record.forecast, 1.0),
                (4, -2),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                va="top",
                color=QUIET,
                fontsize=7.5,
                style="italic",
                zorder=4,
            )
    elif record.held:
        axes.set_facecolor(SHADE)


def note_failure(axes: Any, record: Record) -> None:
    failed = ~np.isfinite(record.ys).all(axis=1)
    if failed.any():
        note = f"no finite solution from {record.ts[failed.argmax()]:.4g} on"
        axes.text(0.03, 0.04, note, transform=axes.transAxes, color="#b03030", fontsize=7, style="italic", zorder=4)


def draw_field(axes: Any, field: Field) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    xs, ys = np.linspace(left, right, 28), np.linspace(low, high, 28)
    points = np.stack(np.meshgrid(xs, ys), axis=-1)
    slopes = np.asarray(field(points.reshape(-1, 2)), dtype=np.float64).reshape(points.shape)
    slopes = np.ma.masked_invalid(slopes)
    axes.streamplot(
        xs, ys, slopes[..., 0], slopes[..., 1], color=FAINT, linewidth=0.6, arrowsize=0.6, density=1.1, zorder=0
    )
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def draw_orbit(axes: Any, record: Record) -> None:
    xs, ys = np.where(np.isfinite(record.ys).all(axis=1, keepdims=True), record.ys, np.nan).T
    end = record.forecast if record.forecast is not None else (-np.inf if record.held else np.inf)
    fitted = np.asarray(record.ts <= end)
    later = ~fitted
    later[:-1] |= later[1:]  # The two pieces of the curve meet.
    count = sum(len(ts) for ts, _ in record.points.values())
    for part, role in ((fitted, TRAIN), (later, "held out")):
        axes.plot(np.where(part, xs, np.nan), np.where(part, ys, np.nan), color=role_colour(role), lw=1.3, zorder=2)
    for role, (_, values) in record.points.items():
        axes.plot(values[:, 0], values[:, 1], **marker(role, role_colour(role), count, crowded=count > 80), zorder=3)
    finite = np.flatnonzero(np.isfinite(xs))
    if finite.size:
        axes.plot(xs[finite[0]], ys[finite[0]], **START, zorder=4)


def role_colour(role: str) -> str:
    return ACCENTS[0] if role in (TRAIN, "context") else ACCENTS[1]


def marker(role: str, colour: str, count: int, crowded: bool = False) -> dict[str, Any]:
    """How the measurements of a role look: filled if they were fitted, hollow if not, smaller if there are many."""
    size = float(np.clip(30 / np.sqrt(max(count, 1)), 1.8, 3.6))
    style: dict[str, Any] = {"ls": "none", "marker": "o", "color": colour, "ms": size, "mew": 0.0}
    if role == TRAIN:
        return style | {"alpha": 0.45 if crowded else 1.0}
    if role == "context":
        return style | {"alpha": 0.35}
    hollow = style | {
        "mew": 0.6 if crowded else 0.8,
        "alpha": 0.55 if crowded else 1.0,
        "mfc": "none" if crowded else "white",
    }
    return hollow | ({"marker": "D", "ms": size} if role == "test" else {"ms": size + 0.6})


def darker(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(0.72 * part for part in to_rgb(colour))


def limits(records: list[Record], state: int, room: float = 0.06) -> tuple[float, float]:
    """Limits of an axis: the data's, and the curve's as far as it goes a quarter of their range beyond."""
    data = finite_values([ys[:, state] for record in records for _, ys in record.points.values()])
    curve = finite_values([record.ys[:, state] for record in records])
    if not data.size:
        data = curve if curve.size else np.array([0.0, 1.0])
    low, high = float(data.min()), float(data.max())
    span = (high - low) or abs(high) or 1.0
    if curve.size:
        low = min(low, max(float(curve.min()), low - span / 4))
        high = max(high, min(float(curve.max()), high + span / 4))
    margin = room * ((high - low) or span)
    return low - margin, high + margin


def finite_values(arrays: list[np.ndarray]) -> np.ndarray:
    values = np.concatenate(arrays)
    return values[np.isfinite(values)]


def visible(record: Record, state: int) -> np.ndarray:
    """The finite part of a curve, without values so large that they cannot be drawn."""
    values = record.ys[:, state].astype(np.float64)
    return np.where(np.isfinite(values) & (np.abs(values) < 1e30), values, np.nan)


def column_title(record: Record, label: str, columns: int) -> str:
    errors = [
        f"{role} {error:.2g}" if np.isfinite(error) else f"{role} failed"
        for role, error in record.errors.items()
        if not np.isnan(error)
    ]
    head = f"{plain(record.name)} ({label})" if label else plain(record.name)
    if columns == 1:
        return f"trajectory {head}   ·   NRMSE: {', '.join(errors)}"
    return f"{head}\nNRMSE: {', '.join(errors)}"


def headline(figure: Any, records: list[Record], shown: list[tuple[Record, str]], data: Dataset) -> None:
    """Says what of the whole is shown, where it is not all."""
    parts = []
    if len(shown) < len(records):
        counts = [
            (sum(record.held == held for record in records), kind)
            for held, kind in ((False, "fitted"), (True, "held out"))
        ]
        ranked = [f"of {n} {kind}" for n, kind in counts if n > EACH]
        whole = [f"all {n} {kind}" for n, kind in counts if 0 < n <= EACH]
        kinds = ["best, median and worst " + " and ".join(ranked)] * bool(ranked) + whole
        parts.append(f"{len(shown)} of {len(records)} trajectories: {', and '.join(kinds)}")
    if len(data.states) > PANELS:
        parts.append(f"first {PANELS} of {len(data.states)} states")
    if len(data.inputs) > INPUTS:
        parts.append(f"first {INPUTS} of {len(data.inputs)} inputs")
    if parts:
        lines = textwrap.wrap("; ".join(parts), int(13 * figure.get_figwidth()))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=QUIET)


def legend(figure: Any, shown: list[tuple[Record, str]]) -> None:
    roles = dict.fromkeys(role for record, _ in shown for role in record.points)
    entries = [entry(label_of(role), **marker(role, INK, 40)) for role in roles]
    entries.append(entry("model", color=INK, lw=1.3))
    if any(record.held for record, _ in shown):
        entries.append(entry("held out from the fit", color=SHADE, lw=8, solid_capstyle="butt"))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries))


def orbit_legend(figure: Any, records: list[Record], has_field: bool) -> None:
    roles = dict.fromkeys(role for record in records for role in record.points)
    entries = [entry(label_of(role), lw=1.3, **(marker(role, role_colour(role), 40) | {"ls": "-"})) for role in roles]
    entries.append(entry("start", **START))
    if has_field:
        entries.append(entry("vector field", color=FAINT, lw=1.0))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries))


def entry(label: str, **style: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def label_of(role: str) -> str:
    return {TRAIN: "fitted data", "context": "known before", "validation": "validation", "test": "test"}.get(role, role)


def mark_best(axes: Any, steps: np.ndarray, stages: list, losses: dict[str, np.ndarray]) -> None:
    """Marks the lowest validation loss or, without one, the lowest training loss of the last stage.

    Stages may minimise different objectives, so that their training losses cannot be compared.
    """
    name = "validation_loss" if np.isfinite(losses["validation_loss"]).any() else "train_loss"
    last = np.array([stage == stages[-1] or name == "validation_loss" for stage in stages])
    loss = np.where(last & np.isfinite(losses[name]), losses[name], np.inf)
    best = int(loss.argmin())
    if 0 < loss[best] < np.inf:
        label = f"best: {loss[best]:.3g} at step {steps[best]:g}"
        axes.plot(
            steps[best], loss[best], marker="o", ms=6, mfc="white", mec=INK, mew=1.0, ls="none", zorder=4, label=label
        )


def mark_stages(axes: Any, steps: np.ndarray, stages: list) -> None:
    parts = runs(stages)
    if len(parts) < 2:
        return
    for index, part in enumerate(parts):
        begin = steps[part[0] - 1] if index else 0.0
        if index:
            axes.axvline(begin, color=FAINT, lw=0.8, zorder=0)
        axes.annotate(
            plain(str(stages[part[0]])),
            ((begin + steps[part[-1]]) / 2, 0.0),
            (0, 4),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            color=QUIET,
            fontsize=7.5,
        )


def runs(stages: list) -> list[np.ndarray]:
    """Indices of the rows of each stage."""
    changes = [i for i in range(1, len(stages)) if stages[i] != stages[i - 1]]
    return np.split(np.arange(len(stages)), changes)


def column(rows: Sequence[dict], key: str) -> np.ndarray:
    return np.array([np.nan if row.get(key) is None else float(row[key]) for row in rows], dtype=np.float64)


def drawable(loss: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(loss) & (loss > 0), loss, np.nan)


def lone(values: np.ndarray) -> dict[str, Any]:
    """A dot for a line that has a single point, which would not be seen."""
    return {"marker": "o", "ms": 3} if np.isfinite(values).sum() < 2 else {}


def named(data: Dataset, name: str) -> str:
    unit = data.units.get(name)
    return plain(f"{name} [{unit}]" if unit else name)


def plain(text: str) -> str:
    """`text` without a meaning for mathematics: names are the user's and may hold dollar signs."""
    return text.replace("$", r"\$")


def styled() -> Any:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Any, path: str | Path) -> Path:
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to stop a run.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, format="png", dpi=DPI)
    return Path(path)
