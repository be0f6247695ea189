"""What the pictures and tables of the gallery are made from: finished runs. See `gallery.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import node_fit

Rows = list[tuple[str, str, str, str]]
DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3, "alpha": 0.55, "markeredgewidth": 0}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its `summary.json` (empty for a multirun), and the seconds of its command."""

    folder: Path
    summary: dict[str, Any]
    seconds: float

    def predictions(self, split: str | None = None) -> pd.DataFrame:
        frame = pd.read_csv(self.folder / "predictions.csv", dtype={"trajectory": str})
        return frame.loc[frame["split"] == split] if split else frame

    def score(self, split: str, key: str = "nrmse") -> float:
        return self.summary["metrics"][split][key]

    def other(self, model: str, split: str = "test", key: str = "nrmse") -> float:
        return self.summary["baselines"][model][split][key]

    def model(self) -> Any:
        return node_fit.load(self.folder / "model.safetensors")


@dataclass(frozen=True)
class Subject:
    """`needs` are files below `--data`, `makes` tables of `gallery_data.py`; `draw` fills a figure."""

    draw: Callable[[Any, Sequence[Run]], None]
    rows: Callable[[Sequence[Run]], Rows]
    needs: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()


def fine(data: node_fit.Dataset, points: int = 300) -> np.ndarray:
    return np.linspace(data.ts.min(axis=1), data.ts.max(axis=1), points, axis=1)


def constants(run: Run, names: dict[str, str], others: Sequence[str], whose: str) -> Rows:
    """A row for each constant: what it is, its estimate with the 95 % interval, and another value."""
    found = run.summary["confidence"]["constants"] if run.summary.get("confidence") else {}
    rows = []
    for (name, what), other in zip(names.items(), others, strict=True):
        value, bounds = run.summary["constants"][name], found.get(name)
        interval = f" [{bounds['lower']:.3g}, {bounds['upper']:.3g}]" if bounds and bounds["lower"] is not None else ""
        rows.append((what, f"{value:.3g}{interval}", other, whose))
    return rows


def by_error(run: Run, states: Sequence[str]) -> list[tuple[float, str]]:
    """Test trajectories by the root mean square of their errors."""
    frame = run.predictions("test")
    found, true = (frame[[name + end for name in states]].to_numpy() for end in ("_predicted", ""))
    off, names = ((found - true) ** 2).sum(axis=1), frame["trajectory"].to_numpy()
    return sorted((float(off[names == name].mean()) ** 0.5, str(name)) for name in np.unique(names))
