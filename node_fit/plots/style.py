"""The style that all plots share: colours, markers, legends, figures, texts and files."""

import io
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .curves import CONTEXT, TRAIN

if TYPE_CHECKING:
    import matplotlib.figure
    import matplotlib.lines

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


def use_style() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def save_figure(figure: "matplotlib.figure.Figure", path: str | Path) -> Path:
    Path(path).write_bytes(png(figure))
    return Path(path)


def png(figure: "matplotlib.figure.Figure") -> bytes:
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


def plain_label(text: str) -> str:
    """`text` with dollar signs escaped: they may be part of a name, and must not start mathematics."""
    return text.replace("$", r"\$")


# Of lines and markers, by the names of Matplotlib's properties.
LineStyle = dict[str, Any]
EVENT: LineStyle = {"ls": "none", "marker": "|", "color": "#228833", "ms": 8, "mew": 2.0}


def marker(role: str, colour: str, count: int, crowded: bool = False) -> LineStyle:
    """Marker style for the measurements of a role: filled if fitted, hollow if not, smaller if there are many."""
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


def label_of(role: str) -> str:
    return {TRAIN: "fitted data", CONTEXT: "context", "validation": "validation", "test": "test"}.get(role, role)


def entry(label: str, **style: Any) -> "matplotlib.lines.Line2D":
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)
