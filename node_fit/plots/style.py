"""The style that all plots share: colours, figures, texts and files."""

import io
import warnings
from pathlib import Path
from typing import Any

from ..data.dataset import Dataset

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


def styled() -> Any:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Any, path: str | Path) -> Path:
    Path(path).write_bytes(png(figure))
    return Path(path)


def png(figure: Any) -> bytes:
    """A figure as a PNG file."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; that must not stop a run.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            figure.savefig(content, format="png", dpi=DPI)
        except UserWarning:  # Long names leave no room; then the picture is as large as they are.
            content = io.BytesIO()
            figure.set_layout_engine("none")
            figure.savefig(content, format="png", dpi=DPI, bbox_inches="tight")
    return content.getvalue()


def named(data: Dataset, name: str) -> str:
    unit = data.units.get(name)
    return plain(f"{name} [{unit}]" if unit else name)


def named_time(data: Dataset) -> str:
    """The label of the time axis; of timestamps, with the instant that it counts from."""
    dates = data.dates
    if dates is None or (dates.zero != dates.zero[0]).any():
        return named(data, data.time)
    return plain(f"{data.time} [{dates.unit} since {dates.first}]")


def plain(text: str) -> str:
    """`text` with dollar signs escaped: they may be part of a name, and must not start mathematics."""
    return text.replace("$", r"\$")
