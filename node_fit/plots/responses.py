"""Plots of a linear system: Bode diagram and step responses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .curves import ACCENTS, QUIET, new_figure, plain_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bode_figure(
    frequencies: Float[np.ndarray, " frequency"],
    magnitudes: Float[np.ndarray, "frequency curve"],
    phases: Float[np.ndarray, "frequency curve"],
    names: Sequence[str],
    unit: str | None,
) -> "Figure":
    """Plots gains [dB] and phases [degrees] against angular frequencies, a curve for each input and channel."""
    figure = new_figure(7.0, 5.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for index, name in enumerate(names):
        colour = ACCENTS[index % len(ACCENTS)]
        upper.semilogx(frequencies, magnitudes[:, index], color=colour, label=plain_label(name))
        lower.semilogx(frequencies, phases[:, index], color=colour)
    upper.set_ylabel("gain [dB]")
    lower.set_ylabel("phase [degrees]")
    lower.set_xlabel(f"angular frequency [rad/{unit or 'unit of time'}]")
    for axes in (upper, lower):
        axes.grid(True, which="both", color=QUIET, alpha=0.25, linewidth=0.5)
    upper.legend(frameon=False)
    return figure


def step_figure(
    ts: Float[np.ndarray, " time"],
    ys: Float[np.ndarray, "time channel"],
    names: Sequence[str],
    title: str,
    unit: str | None,
) -> "Figure":
    """Plots channels against the time after a step of an input."""
    figure = new_figure(7.0, 2.0 * len(names) + 1.0)
    for index, (axes, name) in enumerate(
        zip(figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0], names, strict=True)
    ):
        axes.plot(ts, ys[:, index], color=ACCENTS[index % len(ACCENTS)])
        axes.axhline(0.0, color=QUIET, linewidth=0.5)
        axes.set_ylabel(plain_label(name))
    figure.axes[0].set_title(plain_label(title))
    figure.axes[-1].set_xlabel(f"time after the step{f' [{unit}]' if unit else ''}")
    return figure
