"""Plots of a population: observed against predicted values, and the visual predictive check."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .curves import ACCENTS, FAINT, INK, QUIET, new_figure, save_figure, use_style


class PredictiveBands(NamedTuple):
    """Quantiles of measurements in time bins, with their range over simulated studies; shape `(quantile, bin)`."""

    times: Float[np.ndarray, " bin"]
    observed: Float[np.ndarray, "quantile bin"]
    lower: Float[np.ndarray, "quantile bin"]
    middle: Float[np.ndarray, "quantile bin"]
    upper: Float[np.ndarray, "quantile bin"]


def plot_observed(
    observed: Float[np.ndarray, " value"],
    population: Float[np.ndarray, " value"],
    individual: Float[np.ndarray, " value"],
    path: str | Path,
    *,
    label: str,
) -> Path:
    """Plots measurements against the predictions for a typical subject, and with each subject's own constants.

    **Arguments:** `label`: name of the measured quantity, with its unit. `path`: the PNG to write.

    **Returns:** `path`.
    """
    with use_style():
        figure = new_figure(6.4, 3.2)
        values = np.concatenate([observed, population, individual])
        ends = [float(np.nanmin(values)), float(np.nanmax(values))]
        for place, (predicted, whose) in enumerate(((population, "typical subject"), (individual, "each subject"))):
            axes = figure.add_subplot(1, 2, place + 1)
            axes.plot(ends, ends, color=QUIET, lw=0.8)
            axes.plot(predicted, observed, "o", ms=2.5, color=ACCENTS[0], alpha=0.7)
            axes.set_xlabel(f"{label} of {whose}")
            axes.set_ylabel(f"{label}, observed" if place == 0 else "")
        return save_figure(figure, path)


def plot_predictive_check(
    bands: PredictiveBands,
    times: Float[np.ndarray, " value"],
    values: Float[np.ndarray, " value"],
    path: str | Path,
    *,
    labels: Sequence[str],
) -> Path:
    """Plots a visual predictive check.

    **Arguments:**

    - `bands`: quantiles of the measurements and of simulated studies. `times`, `values`: the measurements.
    - `path`: the PNG to write. `labels`: names of the time and of the values, with their units.

    **Returns:** `path`.
    """
    with use_style():
        figure = new_figure(5.2, 3.6)
        axes = figure.add_subplot()
        middle = len(bands.observed) // 2
        for row in range(len(bands.observed)):
            colour = ACCENTS[1] if row == middle else ACCENTS[0]
            label = "simulated median" if row == middle else "simulated 5 % and 95 %" if row == 0 else None
            axes.fill_between(
                bands.times, bands.lower[row], bands.upper[row], color=colour, alpha=0.25, lw=0, label=label
            )
            style = "-" if row == middle else "--"
            axes.plot(
                bands.times, bands.observed[row], style, color=INK, lw=1, label="observed" if row == middle else None
            )
        axes.plot(times, values, "o", ms=2, color=FAINT, zorder=0)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.legend(loc="best")
        return save_figure(figure, path)
