"""Smooth curves of a model and its vector field, kept in a run's directory so that its page can be made again."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float

from ..plots.curves import Curve, Curves
from ..plots.phase import SIDE, phase_points
from ..storage.disk import write
from .dates import Origin
from .predictions import Predictions

NAME = ".curves.npz"
Key = tuple[str, str]


@dataclass(frozen=True)
class Field:
    """A vector field of two states at the points of a grid, in the user's units.

    - `xs`, `ys`: coordinates of the grid.
    - `slopes`: time derivatives, shape `(len(ys), len(xs), 2)`.
    """

    xs: Float[np.ndarray, " n"]
    ys: Float[np.ndarray, " n"]
    slopes: Float[np.ndarray, "n n 2"]


def save_curves(
    folder: Path, curves: Curves, slopes: np.ndarray | None, wanted: set[Key], origin: Origin | None = None
) -> None:
    """Writes the curves of the wanted splits and trajectories, and the field; dated ones at times since `origin`."""
    arrays: dict[str, Any] = {}
    for role, data in curves.splits.items():
        rows = [i for i, name in enumerate(data.trajectories) if (role, name) in wanted]
        ts, ys = (part[rows] for part in curves.dense[role])
        marks = [curves.curve(role, row).events for row in rows]
        times = [np.array([time for time, _ in each]) for each in marks]
        if origin is not None and data.dates is not None:
            ts = np.stack([origin.times_of(data, i, t) for i, t in zip(rows, ts, strict=True)]) if rows else ts
            times = [origin.times_of(data, i, t) for i, t in zip(rows, times, strict=True)]
        arrays[f"{role}/names"] = np.array([data.trajectories[i] for i in rows], dtype=str)
        arrays |= {f"{role}/ts": ts, f"{role}/ys": ys.astype(np.float32)}
        if role in curves.bands:
            lower, upper = (edge[rows].astype(np.float32) for edge in curves.bands[role])
            arrays |= {f"{role}/lower": lower, f"{role}/upper": upper}
        if role in curves.dense_hidden:
            arrays[f"{role}/hidden"] = curves.dense_hidden[role][rows].astype(np.float32)
        if any(marks):
            arrays[f"{role}/event counts"] = np.array([len(each) for each in marks])
            arrays[f"{role}/event times"] = np.concatenate(times)
            arrays[f"{role}/events"] = np.array([text for each in marks for _, text in each], dtype=str)
    arrays["hidden"] = np.array(curves.hidden, dtype=str)
    if slopes is not None:
        arrays |= {"points": phase_points(curves), "slopes": slopes}
    file = io.BytesIO()
    with np.errstate(over="ignore"):
        np.savez_compressed(file, **arrays)
    write(folder / NAME, file.getvalue())


@dataclass(frozen=True)
class Kept:
    """What `save_curves` has written: curves, names of hidden states, and the vector field."""

    curves: Mapping[Key, Curve]
    hidden: tuple[str, ...] = ()
    field: Field | None = None


def load_curves(folder: Path) -> Kept:
    """Reads what `save_curves` wrote; nothing if there is no such file, or if it is damaged."""
    try:
        # Read from memory, because NumPy leaves a damaged file open.
        with np.load(io.BytesIO((folder / NAME).read_bytes()), allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError, BadZipFile):
        return Kept({})
    found = {}
    for key in [key for key in arrays if key.endswith("/names")]:
        role = key.removesuffix("/names")
        lower, upper, hidden = (arrays.get(f"{role}/{part}") for part in ("lower", "upper", "hidden"))
        ends = np.cumsum(arrays.get(f"{role}/event counts", np.zeros(len(arrays[key]), int)))
        instants, texts = (arrays.get(f"{role}/{part}", np.zeros(0)).tolist() for part in ("event times", "events"))
        marks = tuple(zip(instants, texts, strict=True))
        for i, name in enumerate(arrays[key]):
            found[role, str(name)] = Curve(
                arrays[f"{role}/ts"][i],
                arrays[f"{role}/ys"][i],
                None if lower is None or upper is None else (lower[i], upper[i]),
                None if hidden is None else hidden[i],
                marks[ends[i - 1] if i else 0 : ends[i]],
            )
    field = grid(arrays["points"], arrays["slopes"]) if "slopes" in arrays else None
    return Kept(found, tuple(arrays.get("hidden", np.zeros(0)).tolist()), field)


def grid(points: Float[np.ndarray, "point 2"], slopes: Float[np.ndarray, "point 2"]) -> Field:
    whole = points.reshape(SIDE, SIDE, 2)
    return Field(whole[0, :, 0], whole[:, 0, 1], slopes.reshape(SIDE, SIDE, 2))


def field_of_model(path: Path, predictions: Predictions, extensions: Sequence[str]) -> Field | None:
    """The vector field of a model file around the data; `None` unless there are two states, both of them measured."""
    from ..storage.model_file import load

    if len(predictions.states) != 2 or not path.is_file():
        return None
    model = load(path, extensions=extensions).typical
    if not model.is_measured:
        return None
    sides = []
    for values in predictions.ys.T:
        low, high = np.nanmin(values), np.nanmax(values)
        room = 0.12 * ((high - low) or 1.0)
        sides.append(np.linspace(low - room, high + room, SIDE))
    points = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    return grid(points, np.asarray(model.derivative(points)))
