"""What `predictions.csv` holds: measurements beside predictions, by split and trajectory."""

import csv
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ..plots.curves import Segment, Trajectory, join
from .dates import Origin, count, is_stamp


@dataclass(frozen=True)
class Predictions:
    """All rows of `predictions.csv`.

    - `states`, `inputs`, `time`: names of columns.
    - `ts`, `us`, `ys`, `predicted`: the columns; NaN where a value is missing. Timestamps are times since `origin`.
    - `bands`: lower and upper edges of the states; `None` without bands.
    - `scored`: rows that count in the score.
    - `roles`, `names`, `starts`: split, trajectory and first row of each segment. A segment is a trajectory's rows in
      one split.
    """

    states: tuple[str, ...]
    inputs: tuple[str, ...]
    time: str
    ts: Float[np.ndarray, " row"]
    us: Float[np.ndarray, "row input"]
    ys: Float[np.ndarray, "row state"]
    predicted: Float[np.ndarray, "row state"]
    bands: tuple[np.ndarray, np.ndarray] | None
    scored: Bool[np.ndarray, " row"]
    roles: list[str]
    names: list[str]
    starts: Int[np.ndarray, " segment"]
    origin: Origin | None = None

    @property
    def ends(self) -> Int[np.ndarray, " segment"]:
        return np.append(self.starts[1:], len(self.ts))

    @functools.cached_property
    def residuals(self) -> Float[np.ndarray, "row state"]:
        """Measured minus predicted; NaN where nothing counts, infinite where the prediction is not finite."""
        counted = self.scored[:, None] & np.isfinite(self.ys)
        with np.errstate(invalid="ignore", over="ignore"):
            misses = np.where(np.isfinite(self.predicted), self.ys - self.predicted, np.inf)
        return np.where(counted, misses, np.nan)

    def rows_of(self, role: str) -> Bool[np.ndarray, " row"]:
        """The rows of a split."""
        return np.repeat(np.array([each == role for each in self.roles], dtype=bool), self.ends - self.starts)

    def errors(self) -> Float[np.ndarray, " segment"]:
        """NRMSE of each segment, with the standard deviations of its split; NaN where nothing counts."""
        squares, counted = np.zeros_like(self.ys), np.isfinite(self.residuals) | np.isinf(self.residuals)
        for role in dict.fromkeys(self.roles):
            rows = self.rows_of(role)
            for state in range(len(self.states)):
                here = rows & counted[:, state]
                scale = self.ys[here, state].std() if here.any() else 0.0
                with np.errstate(over="ignore"):
                    squares[here, state] = (self.residuals[here, state] / scale) ** 2 if scale > 0 else 0.0
        sums, counts = (np.add.reduceat(each, self.starts, axis=0) for each in (squares, counted.astype(float)))
        with np.errstate(invalid="ignore"):
            means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
            known = (~np.isnan(means)).sum(axis=1)
            return np.sqrt(np.where(known > 0, np.nansum(means, axis=1) / np.maximum(known, 1), np.nan))


def read_predictions(path: Path) -> Predictions | None:
    """Reads `predictions.csv`; `None` if it is missing or has no rows."""
    if not path.is_file():
        return None
    with open(path, newline="") as file:
        rows = csv.reader(file)
        header, first = next(rows, []), next(rows, [])
    # Columns are told apart by their places, since names may be anything: split, trajectory, time, inputs, states.
    places = [i for i in range(3, len(header) - 1) if header[i + 1] == f"{header[i]}_predicted"]
    dated = len(first) > 2 and is_stamp(first[2])
    columns = read_columns(path, header, texts=2 + dated)
    if not places or not len(columns[-1]):
        return None
    time, ts, origin = count(header[2], columns[2]) if dated else (header[2], columns[2], None)
    has_bands = header[places[0] + 2 : places[0] + 3] == [f"{header[places[0]]}_lower"]
    changes = (np.diff(codes, prepend=-1) != 0 for codes, _ in columns[:2])
    starts = np.flatnonzero(np.logical_or(*changes))

    def stacked(offset: int) -> np.ndarray:
        return np.stack([columns[place + offset] for place in places], axis=1)

    inputs = range(3, places[0])
    return Predictions(
        states=tuple(header[place] for place in places),
        inputs=tuple(header[i] for i in inputs),
        time=time,
        ts=ts,
        us=np.stack([columns[i] for i in inputs], axis=1) if inputs else np.zeros((len(ts), 0)),
        ys=stacked(0),
        predicted=stacked(1),
        bands=(stacked(2), stacked(3)) if has_bands else None,
        scored=columns[-1] > 0 if header[-1] == "scored" else np.ones(len(ts), dtype=bool),
        roles=[columns[0][1][code] for code in columns[0][0][starts].tolist()],
        names=[columns[1][1][code] for code in columns[1][0][starts].tolist()],
        starts=starts,
        origin=origin,
    )


def read_columns(path: Path, header: list[str], texts: int) -> list[Any]:
    """The columns of a CSV file: of the first two a code in each row and the text of each code; texts, and numbers.

    **Arguments:** `texts`: number of columns of text.
    """
    from pyarrow import csv as reader
    from pyarrow import float64, string

    kinds = {name: float64() for name in header[texts:]} | {name: string() for name in header[:texts]}
    table = reader.read_csv(
        path,
        parse_options=reader.ParseOptions(newlines_in_values=True),
        convert_options=reader.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=False),
    )
    coded = [column.combine_chunks().dictionary_encode() for column in table.columns[:2]]
    codes = [(column.indices.to_numpy(), column.dictionary.to_pylist()) for column in coded]
    return codes + [column.to_numpy() for column in table.columns[2:]]


def trajectories_of(predictions: Predictions) -> list[Trajectory]:
    """All trajectories; rows of another split that follow on a trajectory join it. Segments have no curves yet."""
    starts, ends, errors = predictions.starts.tolist(), predictions.ends.tolist(), predictions.errors().tolist()
    ts, ys, us = predictions.ts, predictions.ys, predictions.us
    segments = zip(predictions.roles, predictions.names, starts, ends, errors, strict=True)
    return join(
        (Segment(role, name, ts[begin:end], ys[begin:end], us[begin:end], error, None, place), True)
        for place, (role, name, begin, end, error) in enumerate(segments)
    )
