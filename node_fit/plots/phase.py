"""The phase portrait: one state against the other."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .curves import CONTEXT, TRAIN, Curves, Trajectory, collect
from .fit import choose_trajectories, headline, limits
from .style import ACCENTS, FAINT, INK, entry, label_of, marker, new_figure, save_figure, use_style, with_unit

SIDE = 28  # grid points of the vector field along each axis
ROOM_AROUND = 0.12  # margin of the axes
START_MARK: dict[str, Any] = {"ls": "none", "marker": "s", "ms": 4, "mfc": "white", "mec": INK, "mew": 0.9}


def phase_points(curves: Curves) -> Float[np.ndarray, "n 2"]:
    """The points at which a phase portrait shows the vector field, in the user's units."""
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

    **Raises:** `ValueError` if there are not two states.
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
        axes.set_xlabel(with_unit(first, first.states[0]))
        axes.set_ylabel(with_unit(first, first.states[1]))
        headline(figure, records, shown, first, curves.left_out)
        orbit_legend(figure, chosen, slopes is not None)
        return save_figure(figure, path)


def draw_field(axes: Any, slopes: np.ndarray) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    xs, ys = np.linspace(left, right, SIDE), np.linspace(low, high, SIDE)
    slopes = slopes.astype(np.float64).reshape(SIDE, SIDE, 2)
    speed = np.hypot(slopes[..., 0], slopes[..., 1])
    # Where nothing moves, or where there is no slope, Matplotlib would follow a line forever.
    lost = ~np.isfinite(speed) | (speed < 1e-9 * np.nanmax(np.where(np.isfinite(speed), speed, 0.0)))
    slopes = np.ma.masked_array(slopes, np.repeat(lost[..., None], 2, axis=-1))
    axes.streamplot(
        xs, ys, slopes[..., 0], slopes[..., 1], color=FAINT, linewidth=0.6, arrowsize=0.6, density=0.8, zorder=0
    )
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def draw_orbit(axes: Any, record: Trajectory) -> None:
    curve = record.curve
    xs, ys = np.where(np.isfinite(curve.ys).all(axis=1, keepdims=True), curve.ys, np.nan).T
    end = record.forecast if record.forecast is not None else (-np.inf if record.held else np.inf)
    fitted = np.asarray(curve.ts <= end)
    later = ~fitted
    later[:-1] |= later[1:]  # The two pieces of the curve meet.
    count = sum(len(segment.ts) for segment in record.segments)
    for part, role in ((fitted, TRAIN), (later, "held out")):
        axes.plot(np.where(part, xs, np.nan), np.where(part, ys, np.nan), color=role_colour(role), lw=1.3, zorder=2)
    for segment in record.segments:
        style = marker(segment.role, role_colour(segment.role), count, crowded=count > 80)
        axes.plot(segment.ys[:, 0], segment.ys[:, 1], **style, zorder=3)
    finite = np.flatnonzero(np.isfinite(xs))
    if finite.size:
        axes.plot(xs[finite[0]], ys[finite[0]], **START_MARK, zorder=4)


def role_colour(role: str) -> str:
    return ACCENTS[0] if role in (TRAIN, CONTEXT) else ACCENTS[1]


def orbit_legend(figure: Any, records: list[Trajectory], has_field: bool) -> None:
    roles = dict.fromkeys(segment.role for record in records for segment in record.segments)
    entries = [entry(label_of(role), lw=1.3, **(marker(role, role_colour(role), 40) | {"ls": "-"})) for role in roles]
    entries.append(entry("start", **START_MARK))
    if has_field:
        entries.append(entry("vector field", color=FAINT, lw=1.0))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries))
