"""What is drawn in tests, and how to look at a picture."""

import numpy as np

from node_fit.app.background import Pictures
from node_fit.data.dataset import Dataset
from node_fit.plots.curves import Curves
from node_fit.plots.figures import phase_points

TIMES = np.linspace(0, 6, 25)


def waves(trajectories: int, states: int = 2, inputs: int = 0) -> Dataset:
    phases = np.linspace(0, 3, trajectories)[:, None, None] + np.arange(states)
    us = np.cos(TIMES)[None, :, None] * np.ones((trajectories, 1, inputs))
    return Dataset.from_arrays(TIMES, np.sin(TIMES[:, None] + phases), us)


def curve(data: Dataset, error: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """The data as the model's curve, with an offset that grows by `error` from one trajectory to the next."""
    return data.ts, np.nan_to_num(data.ys) + error * np.arange(1, len(data.ts) + 1)[:, None, None]


def split_by_trajectory(data: Dataset, train: int, error: float = 0.01) -> Curves:
    splits = {"train": data.select(range(train)), "validation": data.select(range(train, len(data.ts)))}
    return Curves(splits, {role: curve(part, error) for role, part in splits.items()})


def pixels(path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(path)


ROWS = [{"step": step, "stage": "main", "train_loss": 1.0 / step, "validation_loss": None} for step in range(1, 5)]


def pictures(folder) -> Pictures:
    curves = split_by_trajectory(waves(3), train=2)
    return Pictures(folder, ROWS, curves, -phase_points(curves))
