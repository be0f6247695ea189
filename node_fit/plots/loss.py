"""The plots of losses: against the step, and those of several starts in order, a waterfall whose steps are optima."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .curves import ACCENTS, FAINT, INK, QUIET, LineStyle, new_figure, plain_label, save_figure, use_style

if TYPE_CHECKING:
    import matplotlib.axes


def plot_loss(rows: Sequence[dict], path: str | Path) -> Path:
    """Plots training and validation loss against the step.

    **Arguments:**

    - `rows`: one dict per line of `metrics.csv`, with `step`, `stage`, `train_loss` and `validation_loss`; `None` or
      NaN for a missing value.
    - `path`: the PNG to write.

    **Returns:** `path`.
    """
    with use_style():
        figure = new_figure(6.0, 3.2)
        axes = figure.add_subplot()
        steps, stages = column(rows, "step"), [row.get("stage") for row in rows]
        members = np.array([row.get("member") or 0 for row in rows])
        losses = {"train_loss": column(rows, "train_loss"), "validation_loss": column(rows, "validation_loss")}
        drawn = {name: positive(loss) for name, loss in losses.items()}
        labels = {"train_loss": "training", "validation_loss": "validation"}
        for (name, label), color in zip(labels.items(), ACCENTS, strict=False):
            # One line per stage and member: losses of two stages belong to two objectives.
            parts = [part[members[part] == m] for part in runs(stages) for m in np.unique(members[part])]
            for index, part in enumerate(parts):
                known = part[np.isfinite(drawn[name][part])]
                curve = drawn[name][known]
                title = label if index == 0 else None
                if known.size:
                    axes.plot(steps[known], curve, color=color, lw=1.2, label=title, **single_point_style(curve))
        if len(rows) == 1:  # A point shows no course.
            axes.clear()
            said = [f"{label} {losses[name][0]:.3g}" for name, label in labels.items() if np.isfinite(losses[name][0])]
            text = f"after {steps[0]:g} steps, in one chunk:\n{', '.join(said) or 'no finite loss'}"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
            axes.set_axis_off()
            return save_figure(figure, path)
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
        return save_figure(figure, path)


def mark_best(axes: "matplotlib.axes.Axes", steps: np.ndarray, stages: list, losses: dict[str, np.ndarray]) -> None:
    """Marks the lowest validation loss or, without one, the lowest training loss of the last stage.

    Stages may minimise different objectives, so their training losses do not compare.
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


def mark_stages(axes: "matplotlib.axes.Axes", steps: np.ndarray, stages: list) -> None:
    parts = runs(stages)
    if len(parts) < 2:
        return
    for index, part in enumerate(parts):
        begin = float(steps[part[0] - 1]) if index else 0.0
        if index:
            axes.axvline(begin, color=FAINT, lw=0.8, zorder=0)
        axes.annotate(
            plain_label(str(stages[part[0]])),
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


def positive(loss: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(loss) & (loss > 0), loss, np.nan)


def single_point_style(values: np.ndarray) -> LineStyle:
    """Marks a line that has a single point, which would otherwise be invisible."""
    return {"marker": "o", "ms": 3} if np.isfinite(values).sum() < 2 else {}


# Factor between the losses and the edges of the picture.
ROOM_ABOVE = 2.0


def plot_starts(losses: Sequence[float], path: str | Path, *, is_likelihood: bool = False) -> Path:
    """Plots the losses of fits from several starts, the lowest first; those that failed are not drawn.

    **Arguments:**

    - `losses`: of each start; infinite if it failed. `path`: the PNG to write.
    - `is_likelihood`: whether they are negative log-likelihoods, of which differences count, and not ratios.

    **Returns:** `path`.
    """
    known = np.sort([loss for loss in losses if np.isfinite(loss)])
    with use_style():
        figure = new_figure(4.5, 3.0)
        axes = figure.add_subplot()
        if known.size and known[0] > 0 and not is_likelihood:
            axes.set_yscale("log")
            # Without limits, rounding errors would fill the picture where all losses are equal.
            axes.set_ylim(known[0] / ROOM_ABOVE, known[-1] * ROOM_ABOVE)
        axes.plot(np.arange(1, known.size + 1), known, "o-", ms=3.5, lw=0.8, color=ACCENTS[0])
        if known.size < len(losses):
            axes.set_title(f"{len(losses) - known.size} of {len(losses)} failed", color=QUIET)
        axes.set_xlabel("starts, the best first")
        axes.set_ylabel("negative log-likelihood" if is_likelihood else "loss")
        axes.locator_params(axis="x", integer=True)
        return save_figure(figure, path)
