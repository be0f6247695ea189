"""Plots of a run: model and data over time and in the phase plane, losses, and fits from several starts."""

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..data.inputs import are_held
from ..data.phases import CYCLE_INPUTS
from ..runtime.validation import nearest_choice
from .curves import (
    ACCENTS,
    CONTEXT,
    EVENT,
    FAINT,
    INK,
    INTERVAL,
    INTERVAL_MARK,
    LIMIT_MARKS,
    QUIET,
    RANKS,
    SHADE,
    TRAIN,
    Curves,
    LineStyle,
    Segment,
    Trajectory,
    collect,
    entry,
    label_of,
    marker,
    new_figure,
    plain_label,
    rank_trajectories,
    save_figure,
    use_style,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A line of `metrics.csv`.
LogRow = Mapping[str, float | str | None]
PER_KIND, PANELS, INPUTS = 3, 6, 2  # Maximum numbers of trajectories of each kind, states and inputs.
LONGEST_LABEL = 12  # Longest label of an input in one line; its panel is low.
# Maximum line lengths of the title of a single trajectory and of one of several, and maximum number of lines.
WIDE_TITLE, NARROW_TITLE, MOST_TITLE_LINES = 100, 32, 3
# Maximum number of entries in a row of the legend.
MOST_IN_LEGEND_ROW = 6
# Minimum size of a limit marker [points].
LEAST_LIMIT_MARK = 4.0


def choose_trajectories(records: list[Trajectory]) -> list[tuple[Trajectory, str]]:
    """Returns at most three fitted and three held-out trajectories, with ranks if some are left out."""
    if len(records) <= PER_KIND:
        return [(record, "") for record in records]
    order = {name: place for place, name in enumerate(RANKS)}
    ranked = sorted(
        rank_trajectories(records),
        key=lambda trajectory: (trajectory.is_held_out, trajectory.error, order.get(trajectory.rank, 0)),
    )
    many = {held: sum(record.is_held_out == held for record in records) > PER_KIND for held in (False, True)}
    return [(record, record.rank if many[record.is_held_out] else "") for record in ranked]


def select_trajectories(records: list[Trajectory], names: Sequence[str]) -> list[tuple[Trajectory, str]]:
    """Returns the trajectories of these names, in order; for one cut into windows, the best, median and worst.

    **Raises:** `ValueError` for an unknown name.
    """
    chosen: list[tuple[Trajectory, str]] = []
    for name in dict.fromkeys(names):
        complete = [(record, "") for record in records if record.name == name]
        windows = [record for record in records if re.fullmatch(rf"{re.escape(name)}\[\d+:\d+\]", record.name)]
        if not complete and not windows:
            check_known_names([name], [record.name for record in records])
        chosen += complete or choose_trajectories(windows)
    return chosen


def check_known_names(names: Sequence[str], known: Collection[str]) -> None:
    """Rejects names of trajectories that the data lack.

    **Raises:** `ValueError` that names the first one and the known ones.
    """
    for name in names:
        if name not in known:
            shown = textwrap.shorten(", ".join(dict.fromkeys(known)), 300, placeholder=" ...")
            near = nearest_choice(name, known)
            raise ValueError(f"there is no trajectory {name!r} to plot; the data have {shown}{near}")


def constant_inputs(records: Sequence[Trajectory]) -> list[int]:
    """Returns the places of inputs that are constant in each trajectory, which need no panel."""
    inputs = [np.concatenate([segment.us for segment in record.segments]) for record in records]
    count = inputs[0].shape[1] if inputs else 0
    return [place for place in range(count) if all(np.ptp(us[:, place]) == 0 for us in inputs)]


def drawn_inputs(names: Sequence[str], constant: Sequence[int]) -> list[int]:
    """Returns the places of inputs with a panel: those that move, without the phases that times show already."""
    return [place for place, name in enumerate(names) if place not in constant and name not in CYCLE_INPUTS]


def add_headline(
    figure: "Figure",
    records: list[Trajectory],
    shown: list[tuple[Trajectory, str]],
    sizes: tuple[int, int],
    left_out: int = 0,
    caption: str = "",
) -> None:
    """Notes which part is shown, unless it is everything.

    **Arguments:** `sizes`: number of states and inputs. `caption`: text before the note.
    """
    states, inputs = sizes
    parts = [caption] if caption else []
    if len(shown) < len(records) and not any(rank for _, rank in shown):
        parts.append(f"{len(shown)} of {len(records)} trajectories")
    elif len(shown) < len(records):
        counts = [
            (sum(record.is_held_out == held for record in records), kind)
            for held, kind in ((False, "fitted"), (True, "held out"))
        ]
        ranked = [f"of {n} {kind}" for n, kind in counts if n > PER_KIND]
        complete = [f"all {n} {kind}" for n, kind in counts if 0 < n <= PER_KIND]
        kinds = ["best, median and worst " + " and ".join(ranked)] * bool(ranked) + complete
        parts.append(f"{len(shown)} of {len(records)} trajectories: {', and '.join(kinds)}")
    if left_out:
        parts.append(f"sampled evenly from {len(records) + left_out}")
    if states > PANELS:
        parts.append(f"first {PANELS} of {states} states")
    if inputs > INPUTS:
        parts.append(f"first {INPUTS} of {inputs} inputs")
    if parts:
        lines = textwrap.wrap("; ".join(parts), int(13 * figure.get_figwidth()))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9, color=QUIET)


def limits(records: list[Trajectory], state: int, room: float = 0.06) -> tuple[float, float]:
    """Returns axis limits: the range of the data, extended towards curve and band by at most a quarter on each side.

    If values are limits, the curve may lie far beyond them, and the range is extended by at most its width.
    """
    measured = [part for record in records for segment in record.segments for part in (segment.ys, segment.other_end)]
    data = finite_values([part[:, state] for part in measured if part is not None])
    curve = finite_values(
        [part[:, state] for trajectory in records for part in (trajectory.curve.ys, *(trajectory.curve.bands or ()))]
    )
    if not data.size:
        data = curve if curve.size else np.array([0.0, 1.0])
    low, high = float(data.min()), float(data.max())
    span = (high - low) or abs(high) or 1.0
    has_limits = any((segment.sides[:, state] != 0).any() for record in records for segment in record.segments)
    reach = span if has_limits else span / 4
    if curve.size:
        low = min(low, max(float(curve.min()), low - reach))
        high = max(high, min(float(curve.max()), high + reach))
    margin = room * ((high - low) or span)
    return low - margin, high + margin


def finite_values(arrays: list[np.ndarray]) -> np.ndarray:
    values = np.concatenate(arrays)
    return values[np.isfinite(values)]


def plot_fit(curves: Curves, path: str | Path, trajectories: Sequence[str] | None = None) -> Path:
    """Writes the plot of `fit_figure` to a PNG at `path`, and returns `path`."""
    with use_style():
        return save_figure(fit_figure(curves, trajectories), path)


def fit_figure(curves: Curves, trajectories: Sequence[str] | None = None, caption: str = "") -> "Figure":
    """Plots each state's data and the model's curve against time, for at most six trajectories.

    With more trajectories, the plot shows the best, the median and the worst of the fitted and of the held-out ones.
    Fitted data are filled dots; held-out data are hollow, on a shaded background; limits are triangles that point to
    their values. Inputs that are constant in each trajectory are listed in its title.

    **Arguments:**

    - `curves`: data and curves.
    - `trajectories`: names of the trajectories to draw instead.
    - `caption`: description of the curves, above all panels.

    **Returns:** a `matplotlib.figure.Figure`.

    **Raises:** `ValueError` for an unknown name of a trajectory.
    """
    records = collect(curves)
    shown = choose_trajectories(records) if trajectories is None else select_trajectories(records, trajectories)
    first = next(iter(curves.splits.values()))
    constant = constant_inputs([record for record, _ in shown])
    moving = drawn_inputs(first.inputs, constant)
    states, inputs = first.states[:PANELS], [first.inputs[place] for place in moving[:INPUTS]]
    heights = [1.0] * len(states) + [0.42] * len(inputs)
    with use_style():
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
            draw_events(grid[len(states) - 1, across], record)
            held = are_held(curves.inputs, len(first.inputs))
            for down, place in enumerate(moving[:INPUTS]):
                draw_input(grid[len(states) + down, across], record, place, held=held[place])
            constants = [
                f"{first.label(first.inputs[index])} = {first.format_input(index, record.segments[0].us[0, index])}"
                for index in constant
            ]
            grid[0, across].set_title(column_title(record, label, len(shown), constants), color=INK)
            grid[-1, across].set_xlabel(plain_label(first.label(first.time)))
        for down, name in enumerate((*states, *inputs)):
            label = plain_label(first.label(name))
            is_low = down >= len(states) and len(label) > LONGEST_LABEL
            grid[down, 0].set_ylabel("\n[".join(label.rsplit(" [", 1)) if is_low else label)
        for down in range(len(states)):
            grid[down, 0].set_ylim(limits([record for record, _ in shown], down))
        figure.align_ylabels(grid[:, 0])
        add_headline(figure, records, shown, (len(first.states), len(moving)), curves.left_out, caption)
        add_legend(figure, shown)
        return figure


def frame_times(axes: "Axes", record: Trajectory, columns: int) -> None:
    """Sets limits and ticks of the time axis that a trajectory's panels share."""
    from matplotlib.ticker import MaxNLocator

    times = np.concatenate([record.curve.ts, *(segment.ts for segment in record.segments)])
    room = 0.03 * (float(np.ptp(times)) or 1.0)
    axes.set_xlim(times.min() - room, times.max() + room)
    has_integer_times = all((segment.ts == np.round(segment.ts)).all() for segment in record.segments)
    axes.xaxis.set_major_locator(MaxNLocator(9 if columns == 1 else 5, integer=has_integer_times, steps=[1, 2, 5, 10]))


def draw_state(axes: "Axes", record: Trajectory, state: int, crowd: int) -> None:
    """Draws data and curve of one state; more points than `crowd` are pale, below the curve."""
    colour = ACCENTS[state % len(ACCENTS)]
    shade(axes, record, label=state == 0)
    curve = record.curve
    count = sum(int(np.isfinite(segment.ys[:, state]).sum()) for segment in record.segments)
    crowded = count > crowd
    for segment in record.segments:
        draw_measured_values(axes, segment, state, marker(segment.role, colour, count, crowded))
    line: LineStyle = {"color": darken(colour), "zorder": 3} if crowded else {"color": colour, "zorder": 1.9}
    axes.plot(curve.ts, finite_part(curve.ys[:, state]), lw=1.3, **line)
    if curve.bands is not None:
        low, high = (finite_part(edge[:, state]) for edge in curve.bands)
        axes.fill_between(curve.ts, low, high, color=colour, alpha=0.22, lw=0, zorder=1.5)
        for edge in (low, high):  # above the measurements, which could hide a narrow band
            axes.plot(curve.ts, edge, color=colour, lw=0.6, alpha=0.8, zorder=2.5)
    note_failure(axes, record)
    axes.label_outer()


def draw_measured_values(axes: "Axes", segment: Segment, state: int, style: LineStyle) -> None:
    """Draws the measurements of a segment: limits as triangles that point to the values, intervals as bars."""
    ys = segment.ys[:, state]
    sides, is_between = segment.sides[:, state], segment.is_between[:, state]
    if segment.other_end is not None and is_between.any():
        ts, ends = segment.ts[is_between], segment.other_end[is_between, state]
        gaps = np.full_like(ends, np.nan)
        bars = np.stack([ends, ys[is_between], gaps], axis=1).reshape(-1)
        axes.plot(np.repeat(ts, 3), bars, **style | INTERVAL, zorder=2)
    axes.plot(segment.ts, np.where((sides == 0) & ~is_between, ys, np.nan), **style, zorder=2)
    for side, (shape, _) in LIMIT_MARKS.items():
        if (sides == side).any():
            mark = style | {"marker": shape, "ms": max(style["ms"] + 1, LEAST_LIMIT_MARK)}
            axes.plot(segment.ts, np.where(sides == side, ys, np.nan), **mark, zorder=2)


def draw_events(axes: "Axes", record: Trajectory) -> None:
    """Marks the times of doses, resets and switches at the bottom."""
    times = [time for time, _ in record.events]
    if times:
        axes.plot(times, np.zeros_like(times), **EVENT, transform=axes.get_xaxis_transform(), clip_on=False, zorder=4)


def draw_input(axes: "Axes", record: Trajectory, which: int, *, held: bool) -> None:
    """Draws an input as the model interpolates it: `held` at its last value, or linearly to the next."""
    shade(axes, record, label=False)
    ts, us = (np.concatenate([getattr(segment, name) for segment in record.segments]) for name in ("ts", "us"))
    axes.plot(ts, us[:, which], color=QUIET, lw=0.9, drawstyle="steps-post" if held else "default")
    axes.label_outer()


def shade(axes: "Axes", record: Trajectory, label: bool) -> None:
    """Shades the background where measurements were held out."""
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
    elif record.is_held_out:
        axes.set_facecolor(SHADE)


def note_failure(axes: "Axes", record: Trajectory) -> None:
    failed = ~np.isfinite(record.curve.ys).all(axis=1)
    if failed.any():
        note = f"no finite solution from {record.curve.ts[failed.argmax()]:.4g} on"
        axes.text(0.03, 0.04, note, transform=axes.transAxes, color="#b03030", fontsize=7, style="italic", zorder=4)


def darken(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(0.72 * part for part in to_rgb(colour))


def finite_part(curve: np.ndarray) -> np.ndarray:
    """Returns the finite part of a curve, without values too large to draw."""
    values = curve.astype(np.float64)
    return np.where(np.isfinite(values) & (np.abs(values) < 1e30), values, np.nan)


def column_title(record: Trajectory, label: str, columns: int, constants: Sequence[str] = ()) -> str:
    """Returns the splits, the name and the rank of a trajectory, its errors, and its constant inputs."""
    has_roles = len(record.errors) > 1
    errors = [
        " ".join([*[role] * has_roles, f"{error:.2g}" if np.isfinite(error) else "failed"])
        for role, error in record.errors.items()
        if not np.isnan(error)
    ]
    name = f"{plain_label(record.name)} ({label})" if label else plain_label(record.name)
    score = [f"NRMSE{':' * has_roles} {', '.join(errors)}"] if errors else []
    if columns == 1:
        lines, width = ["   ·   ".join([f"trajectory {name}, {' and '.join(record.errors)}", *score])], WIDE_TITLE
    else:
        width = NARROW_TITLE
        # Lines break between errors only, not between a role and its error.
        kept = ", ".join(text.replace(" ", "\N{NO-BREAK SPACE}") for text in errors)
        wrapped = textwrap.wrap(f"NRMSE{':' * has_roles} {kept}", width) if errors else []
        roles = ", ".join(record.errors)
        head = [f"{roles} · {name}"] if len(roles) + len(name) + 3 <= width else [roles, name]
        lines = [*head, *(line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped)]
    constant_lines = textwrap.wrap(
        plain_label(", ".join(constants)), width, max_lines=MOST_TITLE_LINES, placeholder=" ..."
    )
    return "\n".join([*lines, *constant_lines])


def add_legend(figure: "Figure", shown: list[tuple[Trajectory, str]]) -> None:
    segments = [segment for record, _ in shown for segment in record.segments]
    entries = [entry(label_of(role), **marker(role, INK, 40)) for role in dict.fromkeys(part.role for part in segments)]
    entries.append(entry("model", color=INK, lw=1.3))
    if any(record.curve.bands is not None for record, _ in shown):
        entries.append(entry("band", color=INK, lw=8, alpha=0.18, solid_capstyle="butt"))
    if any(record.is_held_out for record, _ in shown):
        entries.append(entry("held out from the fit", color=SHADE, lw=8, solid_capstyle="butt"))
    for side, (shape, label) in LIMIT_MARKS.items():
        if any((segment.sides == side).any() for segment in segments):
            entries.append(entry(label, **marker(TRAIN, INK, 40) | {"marker": shape, "ms": LEAST_LIMIT_MARK}))
    if any(segment.is_between.any() for segment in segments):
        entries.append(entry("between two limits", **marker(TRAIN, INK, 40) | INTERVAL_MARK))
    if any(record.events for record, _ in shown):
        entries.append(entry("event", **EVENT))
    rows = -(-len(entries) // MOST_IN_LEGEND_ROW)
    figure.legend(handles=entries, loc="outside lower center", ncols=-(-len(entries) // rows))


SIDE = 28  # grid points of the vector field along each axis
ROOM_AROUND = 0.12  # margin of the axes
START_MARK: LineStyle = {"ls": "none", "marker": "s", "ms": 4, "mfc": "white", "mec": INK, "mew": 0.9}


def phase_points(curves: Curves) -> Float[np.ndarray, "n 2"]:
    """Returns the points at which a phase portrait shows the vector field, in the user's units."""
    chosen = [record for record, _ in choose_trajectories(collect(curves))]
    xs, ys = (np.linspace(*limits(chosen, state, ROOM_AROUND), SIDE) for state in (0, 1))
    return np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)


def plot_phase(curves: Curves, slopes: Float[np.ndarray, "n 2"] | None, path: str | Path) -> Path:
    """Plots one state against the other, with the trajectories, the data and the vector field.

    **Arguments:**

    - `curves`: data and curves of exactly two states.
    - `slopes`: the vector field at `phase_points(curves)`, in the user's units per time; `None` to leave it out.
    - `path`: the PNG to write.

    **Returns:** `path`.

    **Raises:** `ValueError` if the number of states is not two.
    """
    first = next(iter(curves.splits.values()))
    if len(first.states) != 2:
        raise ValueError(f"a phase portrait needs 2 states, got {len(first.states)}: {', '.join(first.states)}.")
    records = collect(curves)
    shown = choose_trajectories(records)
    chosen = [record for record, _ in shown]
    with use_style():
        figure = new_figure(5.4, 5.4)
        axes = figure.add_subplot()
        axes.set_xlim(limits(chosen, 0, ROOM_AROUND))
        axes.set_ylim(limits(chosen, 1, ROOM_AROUND))
        if slopes is not None:
            draw_field(axes, slopes)
        for record in chosen:
            draw_orbit(axes, record)
        axes.set_xlabel(plain_label(first.label(first.states[0])))
        axes.set_ylabel(plain_label(first.label(first.states[1])))
        add_headline(figure, records, shown, (len(first.states), 0), curves.left_out)
        orbit_legend(figure, chosen, slopes is not None)
        return save_figure(figure, path)


def draw_field(axes: "Axes", slopes: np.ndarray) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    xs, ys = np.linspace(left, right, SIDE), np.linspace(low, high, SIDE)
    slopes = slopes.astype(np.float64).reshape(SIDE, SIDE, 2)
    speed = np.hypot(slopes[..., 0], slopes[..., 1])
    # Matplotlib would follow a line forever where slopes are zero or undefined.
    lost = ~np.isfinite(speed) | (speed < 1e-9 * np.nanmax(np.where(np.isfinite(speed), speed, 0.0)))
    slopes = np.ma.masked_array(slopes, np.repeat(lost[..., None], 2, axis=-1))
    axes.streamplot(
        xs, ys, slopes[..., 0], slopes[..., 1], color=FAINT, linewidth=0.6, arrowsize=0.6, density=0.8, zorder=0
    )
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def draw_orbit(axes: "Axes", record: Trajectory) -> None:
    curve = record.curve
    xs, ys = np.where(np.isfinite(curve.ys).all(axis=1, keepdims=True), curve.ys, np.nan).T
    end = record.forecast if record.forecast is not None else (-np.inf if record.is_held_out else np.inf)
    fitted = np.asarray(curve.ts <= end)
    later = ~fitted
    later[:-1] |= later[1:]  # The two pieces of the curve meet.
    count = sum(len(segment.ts) for segment in record.segments)
    for part, role in ((fitted, TRAIN), (later, "held out")):
        axes.plot(np.where(part, xs, np.nan), np.where(part, ys, np.nan), color=role_colour(role), lw=1.3, zorder=2)
    for segment in record.segments:
        style = marker(segment.role, role_colour(segment.role), count, crowded=count > 80)
        # A row with a limit is no point in the plane.
        exact = segment.ys if segment.limits is None else np.where(segment.limits == 0, segment.ys, np.nan)
        axes.plot(exact[:, 0], exact[:, 1], **style, zorder=3)
    finite = np.flatnonzero(np.isfinite(xs))
    if finite.size:
        axes.plot(xs[finite[0]], ys[finite[0]], **START_MARK, zorder=4)


def role_colour(role: str) -> str:
    return ACCENTS[0] if role in (TRAIN, CONTEXT) else ACCENTS[1]


def orbit_legend(figure: "Figure", records: list[Trajectory], has_field: bool) -> None:
    roles = dict.fromkeys(segment.role for record in records for segment in record.segments)
    entries = [entry(label_of(role), lw=1.3, **(marker(role, role_colour(role), 40) | {"ls": "-"})) for role in roles]
    entries.append(entry("start", **START_MARK))
    if has_field:
        entries.append(entry("vector field", color=FAINT, lw=1.0))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries))


def plot_loss(rows: Sequence[LogRow], path: str | Path, kept: str | None = None) -> Path:
    """Plots training and validation loss against the step, each attempt in a panel, with the bounds of its stages.

    **Arguments:**

    - `rows`: one dict per line of `metrics.csv`, with `step`, `stage`, `train_loss` and `validation_loss`, and
      `attempt` if several were made; `None` or NaN for a missing value.
    - `path`: the PNG to write. `kept`: the attempt that is the result.

    **Returns:** `path`.
    """
    parts = runs([row.get("attempt") for row in rows])
    with use_style():
        figure = new_figure(max(6.0, 2.3 * len(parts)), 3.2 + 0.2 * (len(parts) > 1))
        panels = figure.subplots(1, len(parts), squeeze=False, sharey=True)[0]
        if len(rows) == 1:
            write_losses(panels[0], rows[0])
            return save_figure(figure, path)
        entries: dict[str, Artist] = {}
        after = 0.0
        for axes, part in zip(panels, parts, strict=True):
            attempt_rows = [rows[place] for place in map(int, part)]
            attempt = attempt_rows[0].get("attempt") if attempt_rows else None
            is_kept = len(parts) == 1 or attempt == kept
            draw_losses(axes, attempt_rows, after, is_kept)
            after = max(column(attempt_rows, "step"), default=0.0)
            if len(parts) > 1:
                name = f"{attempt} (kept)" if is_kept else str(attempt)
                axes.set_title("\n".join(textwrap.wrap(plain_label(name), 24)), color=INK if is_kept else QUIET)
                axes.set_facecolor(SHADE if is_kept else "white")
            handles, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        panels[0].set_ylabel("loss")
        if entries:
            figure.legend(handles=list(entries.values()), labels=list(entries), loc="outside lower center", ncols=3)
        else:
            panels[0].text(
                0.5, 0.5, "no positive, finite loss", transform=panels[0].transAxes, ha="center", color=QUIET
            )
        return save_figure(figure, path)


DRAWN_LOSSES = {"train_loss": "training", "validation_loss": "validation"}


def write_losses(axes: "Axes", row: LogRow) -> None:
    """Writes the losses of a single chunk as text: one point shows no trend."""
    losses = {label: column([row], name)[0] for name, label in DRAWN_LOSSES.items()}
    texts = [f"{label} {loss:.3g}" for label, loss in losses.items() if np.isfinite(loss)]
    text = f"after {row['step']:g} steps, in one chunk:\n{', '.join(texts) or 'no finite loss'}"
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
    axes.set_axis_off()


def draw_losses(axes: "Axes", rows: Sequence[LogRow], after: float, is_kept: bool) -> None:
    """Draws the losses of an attempt that begins after a step.

    Each stage and member has its own line, since stages have different objectives.
    """
    steps, stages = column(rows, "step"), [row.get("stage") for row in rows]
    members = np.array([row.get("member") or 0 for row in rows])
    losses = {name: column(rows, name) for name in DRAWN_LOSSES}
    for (name, label), color in zip(DRAWN_LOSSES.items(), ACCENTS, strict=False):
        drawn = positive(losses[name])
        for part in (rows_of[members[rows_of] == m] for rows_of in runs(stages) for m in np.unique(members[rows_of])):
            finite = part[np.isfinite(drawn[part])]
            if finite.size:
                axes.plot(
                    steps[finite], drawn[finite], color=color, lw=1.2, label=label, **single_point_style(drawn[finite])
                )
    if any(np.isfinite(positive(loss)).any() for loss in losses.values()):
        axes.set_yscale("log")
        if is_kept:
            mark_best(axes, steps, stages, losses)
    mark_stages(axes, steps, stages, after)
    axes.set_xlabel("step")
    axes.locator_params(axis="x", nbins=4, integer=True)
    if len(rows):
        axes.set_xlim(after, after + 1.03 * (steps.max() - after or 1.0))


def mark_best(axes: "Axes", steps: np.ndarray, stages: Sequence[object], losses: dict[str, np.ndarray]) -> None:
    """Marks the lowest validation loss or, without one, the lowest training loss of the last stage.

    Stages can minimise different objectives, so their training losses do not compare.
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


def mark_stages(axes: "Axes", steps: np.ndarray, stages: Sequence[object], after: float) -> None:
    """Marks the bounds and names of the stages if several exist."""
    parts = runs(stages)
    for part in parts if len(parts) > 1 else []:
        begin = float(steps[part[0] - 1]) if part[0] else after
        axes.axvline(begin, color=FAINT, lw=0.8, zorder=0)
        axes.annotate(
            plain_label(str(stages[part[0]])),
            (begin, 0.0),
            (3, 4),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            rotation=90,
            color=QUIET,
            fontsize=7.5,
        )


def runs(stages: Sequence[object]) -> list[np.ndarray]:
    """Returns the indices of the rows of each stage or attempt."""
    changes = [i for i in range(1, len(stages)) if stages[i] != stages[i - 1]]
    return np.split(np.arange(len(stages)), changes)


def column(rows: Sequence[LogRow], key: str) -> np.ndarray:
    return np.array([np.nan if (value := row.get(key)) is None else float(value) for row in rows], dtype=np.float64)


def positive(loss: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(loss) & (loss > 0), loss, np.nan)


def single_point_style(values: np.ndarray) -> LineStyle:
    """Returns a marker for a line with a single point, which would otherwise be invisible."""
    return {"marker": "o", "ms": 3} if np.isfinite(values).sum() < 2 else {}


# Factor between the losses and the edges of the picture.
ROOM_ABOVE = 2.0


def plot_starts(losses: Sequence[float], path: str | Path, *, is_likelihood: bool = False) -> Path:
    """Plots the losses of fits from several starts, the lowest first, without failed ones.

    **Arguments:**

    - `losses`: loss of each start; infinite if it failed. `path`: the PNG to write.
    - `is_likelihood`: whether losses are negative log-likelihoods, for which differences matter instead of ratios.

    **Returns:** `path`.
    """
    finite = np.sort([loss for loss in losses if np.isfinite(loss)])
    with use_style():
        figure = new_figure(4.5, 3.0)
        axes = figure.add_subplot()
        if finite.size and finite[0] > 0 and not is_likelihood:
            axes.set_yscale("log")
            # Without limits, rounding errors would fill the picture where all losses are equal.
            axes.set_ylim(finite[0] / ROOM_ABOVE, finite[-1] * ROOM_ABOVE)
        axes.plot(np.arange(1, finite.size + 1), finite, "o-", ms=3.5, lw=0.8, color=ACCENTS[0])
        if finite.size < len(losses):
            axes.set_title(f"{len(losses) - finite.size} of {len(losses)} failed", color=QUIET)
        axes.set_xlabel("starts, the best first")
        axes.set_ylabel("negative log-likelihood" if is_likelihood else "loss")
        axes.locator_params(axis="x", integer=True)
        return save_figure(figure, path)
