"""Markers of measurements by role, and legend entries."""

from typing import Any

import numpy as np

from .curves import CONTEXT, TRAIN

EVENT = {"ls": "none", "marker": "|", "color": "#228833", "ms": 8, "mew": 2.0}


def marker(role: str, colour: str, count: int, crowded: bool = False) -> dict[str, Any]:
    """Marker style for the measurements of a role: filled if fitted, hollow if not, smaller if there are many."""
    size = float(np.clip(30 / np.sqrt(max(count, 1)), 1.8, 3.6))
    style: dict[str, Any] = {"ls": "none", "marker": "o", "color": colour, "ms": size, "mew": 0.0}
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


def entry(label: str, **style: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)
