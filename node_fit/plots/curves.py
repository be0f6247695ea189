"""The data of a plot, collected into one record per trajectory."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..evaluation.metrics import deviations, mean_over_channels
from ..evaluation.simulation import Simulated

Dense = tuple[Float[np.ndarray, "trajectory n"], Float[np.ndarray, "trajectory n state"]]
Edges = tuple[Float[np.ndarray, "trajectory n state"], Float[np.ndarray, "trajectory n state"]]
TRAIN = "train"


@dataclass(frozen=True)
class Curves:
    """The data of a plot, in the user's units.

    - `splits`: the data of each role: `train`, and held-out data such as `validation` and `test`. If a trajectory of a
      role is also in `train`, and only its later rows are scored, it is a forecast of that trajectory.
    - `dense`: the model's curve for each role at times of its own, as `(ts, ys)` of shapes `(trajectory, n)` and
      `(trajectory, n, state)`; not finite where the solve fails.
    - `bands`: lower and upper edges of bands around the curves, in the shape of the curves; empty if there are none.
    - `left_out`: number of further trajectories.
    - `at_rows`: the model's states at the data's own times; where they are missing, the curve is interpolated.
    """

    splits: dict[str, Dataset]
    dense: dict[str, Dense]
    bands: dict[str, Edges] = field(default_factory=dict)
    left_out: int = 0
    at_rows: dict[str, Float[np.ndarray, "trajectory time state"]] = field(default_factory=dict)

    @staticmethod
    def of(simulated: Simulated) -> "Curves":
        """The curves of a simulation."""
        return Curves(
            splits=simulated.pictured,
            dense=simulated.dense,
            bands=simulated.dense_bands,
            left_out=simulated.left_out,
            at_rows=simulated.pictured_rows,
        )


@dataclass
class DrawnTrajectory:
    """One trajectory as drawn: its measurements by role, its inputs, its curve and its errors.

    - `points`: times and values of each role, NaN where a value does not count for it. The role `context` holds rows
      that are known but not scored, if no training record has them.
    - `data`: the dataset and the row that reach furthest in time, for the inputs.
    - `forecast`: the time after which rows are held out; `None` if there is none.
    - `errors`: NRMSE of each role.
    """

    name: str
    data: tuple[Dataset, int]
    ts: Float[np.ndarray, " n"]
    ys: Float[np.ndarray, "n state"]
    band: tuple[np.ndarray, np.ndarray] | None = None
    points: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    forecast: float | None = None
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether any of its measurements are held out."""
        return any(role not in (TRAIN, "context") for role in self.points)

    @property
    def error(self) -> float:
        """The error that ranks it: of the held-out rows if there are any."""
        known = {role: error for role, error in self.errors.items() if not np.isnan(error)}
        held = [error for role, error in known.items() if role != TRAIN]
        return max(held) if held else known.get(TRAIN, np.inf)


def collect(curves: Curves) -> list[DrawnTrajectory]:
    """One record per trajectory; a forecast joins the record of the trajectory that it continues."""
    records: dict[tuple[str, str], DrawnTrajectory] = {}
    for role, data in curves.splits.items():
        scales = deviations(data)
        ts, ys = curves.dense[role]
        for row, name in enumerate(data.trajectories):
            valid = data.valid[row]
            context = valid & ~data.scored[row]
            continued = role != TRAIN and bool(context.any())
            key = (TRAIN, name) if continued and (TRAIN, name) in records else (role, name)
            band = (curves.bands[role][0][row], curves.bands[role][1][row]) if role in curves.bands else None
            record = records.setdefault(key, DrawnTrajectory(name, (data, row), ts[row], ys[row], band))
            if ts[row][-1] >= record.ts[-1]:
                record.data, record.ts, record.ys, record.band = (data, row), ts[row], ys[row], band
            counted = np.where(data.mask[row], data.ys[row], np.nan)[valid]
            record.points[role] = (data.ts[row][valid], counted)
            if continued:
                mark_forecast(record, key[0], data, row, context)
            if role in curves.at_rows:
                predicted = curves.at_rows[role][row][valid]
            else:
                predicted = interpolated(data.ts[row][valid], ts[row], ys[row])
            record.errors[role] = row_error(counted, predicted, scales)
    return list(records.values())


def mark_forecast(record: DrawnTrajectory, owner: str, data: Dataset, row: int, context: np.ndarray) -> None:
    """Marks where held-out rows begin, and adds the rows before them if no training record has them."""
    before = data.ts[row][context]
    if owner != TRAIN:
        record.points = {"context": (before, data.ys[row][context])} | record.points
    elif TRAIN in record.points:
        before = record.points[TRAIN][0]
    start = float(before.max())
    record.forecast = start if record.forecast is None else min(record.forecast, start)


def interpolated(ts: np.ndarray, dense_ts: np.ndarray, dense_ys: np.ndarray) -> Float[np.ndarray, "time state"]:
    """A curve at other times."""
    return np.stack([np.interp(ts, dense_ts, dense_ys[:, i]) for i in range(dense_ys.shape[1])], axis=1)


def row_error(ys: np.ndarray, predicted: np.ndarray, scales: np.ndarray) -> float:
    """NRMSE of predictions of rows, as in `evaluation.score`; infinite where a prediction is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.square((predicted - ys) / np.where(scales > 0, scales, 1.0))
    squares = np.where(np.isfinite(squares), squares, np.inf)
    return mean_over_channels(squares[None], (np.isfinite(ys) & (scales > 0))[None])
