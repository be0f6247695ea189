"""Run directories as a run leaves them, written by hand, for tests of their pages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import node_fit as nf
from node_fit.evaluation.metrics import score_predictions
from node_fit.evaluation.simulation import predictions_frame
from node_fit.plots.curves import Curves

METRICS = "step,stage,train_loss,validation_loss,gradient_norm,learning_rate,evaluations,failed_solves,seconds,member"


def spirals(trajectories: int = 6, times: int = 40, states: tuple[str, ...] = ("x", "y"), **more: Any) -> nf.Dataset:
    """Trajectories that spiral towards the origin, with noise."""
    ts = np.linspace(0.0, 4.0, times)
    angle = ts[None, :] + np.arange(trajectories)[:, None]
    ys = np.exp(-0.2 * ts)[:, None] * np.stack([np.cos(angle), -np.sin(angle)], axis=-1)
    noise = 0.05 * np.random.default_rng(0).normal(size=ys.shape)
    return nf.Dataset.from_arrays(ts, ys + noise, states=states, **more)


def model_of(data: nf.Dataset) -> np.ndarray:
    """What a model predicts: the noiseless spiral, which fits the later trajectories worse.

    A trajectory's name is its number, or begins with it.
    """
    angle = data.ts + np.array([float(name.split()[0]) for name in data.trajectories])[:, None]
    exact = np.exp(-0.2 * data.ts)[..., None] * np.stack([np.cos(angle), -np.sin(angle)], axis=-1)
    return exact * (1 + 0.2 * np.arange(len(data.ts)))[:, None, None]


def by_trajectory(data: nf.Dataset) -> dict[str, nf.Dataset]:
    count = len(data.trajectories)
    return {"train": data.select(range(count // 2)), "test": data.select(range(count // 2, count))}


def by_time(data: nf.Dataset) -> dict[str, nf.Dataset]:
    return {"train": data.until(3.0), "test": data.score_after(3.0)}


def write_run(
    folder: Path, splits: dict[str, nf.Dataset], *, bands: bool = False, words: tuple[str, ...] = (), **summary: Any
) -> Path:
    """Writes the files of a run; `summary` replaces entries of `summary.json`."""
    folder.mkdir(parents=True)
    predicted = {role: model_of(part) for role, part in splits.items()}
    edges = {role: (ys - 0.1, ys + 0.1) for role, ys in predicted.items()} if bands else {}
    frames = [predictions_frame(part, predicted[role], edges.get(role), role) for role, part in splits.items()]
    pd.concat(frames).assign(scored=1).to_csv(folder / "predictions.csv", index=False)
    scores = {role: score_predictions(part, predicted[role]).as_dict() for role, part in splits.items()}
    content = {
        "status": "completed",
        "reason": "took all 40 steps of stage main",
        "steps": 40,
        "parameters": 90,
        "seconds": {"import": 1.0, "compile": 2.0, "train": 3.0, "total": 7.5},
        "precision": "x32",
        "device": "cpu",
        "start": "the first measurement of each state",
        "constants": {"a": 0.5},
        "metrics": {"train": None, "validation": None, "test": None} | scores,
        "baselines": {"mean": {"train": None, "validation": None, "test": None} | scores},
        "rows": {role: int(part.scored.sum()) for role, part in splits.items()},
        "choices": {"start": {"value": "first", "reason": "all states are measured"}},
        "linear_is_best": False,
        "diagnosis": {"kind": "good", "sentence": "good: NRMSE 0.1 on training and 0.2 on test data."},
        "ensemble": None,
        "overrides": list(words),
    }
    (folder / "summary.json").write_text(json.dumps(content | summary))
    rows = [f"{step},{stage},{2.0 / step:.9g},{3.0 / step:.9g},1,1,{step},0,{0.1 * step:.9g},0"
            for stage, steps in (("derivative", (10, 20)), ("main", (30, 40))) for step in steps]  # fmt: skip
    (folder / "metrics.csv").write_text("\n".join([METRICS, *rows, ""]))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "data": {"units": {"x": "m"}}}))
    (folder / ".run.json").write_text(json.dumps({"overrides": list(words), "config_dirs": [], "cwd": "/my home"}))
    return folder


def curves_of(splits: dict[str, nf.Dataset], *, bands: bool = False) -> Curves:
    """The model's curves at many times."""
    points = 300
    dense = {}
    for role, part in splits.items():
        ts = np.linspace(part.ts[:, 0], part.ts[:, -1], points, axis=1)
        fine = nf.Dataset.from_arrays(list(ts), [np.zeros((points, 2))] * len(ts), trajectories=part.trajectories)
        dense[role] = (ts, model_of(fine))
    return Curves(splits, dense, {role: (ys - 0.1, ys + 0.1) for role, (_, ys) in dense.items()} if bands else {})


def with_hidden(curves: Curves, name: str) -> Curves:
    """The curves with a hidden state, which is the sum of the others."""
    return replace(
        curves, hidden=(name,), dense_hidden={role: ys.sum(2, keepdims=True) for role, (_, ys) in curves.dense.items()}
    )


def write_job(sweep: Path, number: int, words: tuple[str, ...], **summary: Any) -> Path:
    """Writes a job of a multirun."""
    splits = by_trajectory(spirals())
    folder = write_run(sweep / str(number), splits, words=words, **summary)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(words)))
    return folder
