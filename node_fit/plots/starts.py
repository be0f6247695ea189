"""The losses of several starts, in order: a waterfall, whose steps are optima."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .style import ACCENTS, QUIET, new_figure, save, styled

# Factor between the losses and the edges of the picture.
ROOM = 2.0


def plot_starts(losses: Sequence[float], path: str | Path) -> Path:
    """Plots the losses of fits from several starts, the lowest first; those that failed are not drawn.

    **Arguments:** `losses`: of each start; infinite if it failed. `path`: the PNG to write.

    **Returns:** `path`.
    """
    known = np.sort([loss for loss in losses if np.isfinite(loss)])
    with styled():
        figure = new_figure(4.5, 3.0)
        axes = figure.add_subplot()
        if known.size and known[0] > 0:
            axes.set_yscale("log")
            # Without limits, rounding errors would fill the picture where all losses are equal.
            axes.set_ylim(known[0] / ROOM, known[-1] * ROOM)
        axes.plot(np.arange(1, known.size + 1), known, "o-", ms=3.5, lw=0.8, color=ACCENTS[0])
        if known.size < len(losses):
            axes.set_title(f"{len(losses) - known.size} of {len(losses)} failed", color=QUIET)
        axes.set_xlabel("starts, the best first")
        axes.set_ylabel("loss")
        axes.locator_params(axis="x", integer=True)
        return save(figure, path)
