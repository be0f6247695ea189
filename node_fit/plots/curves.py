"""What a picture of a fit is drawn from, collected into one record for each trajectory."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ..dataset import Dataset
from ..evaluation import deviations, mean_over_channels

Dense = tuple[Float[np.ndarray, "trajectory n"], Float[np.ndarray, "trajectory n state"]]
Edges = tuple[Float[np.ndarray, "trajectory n state"], Float[np.ndarray, "trajectory n state"]]
TRAIN = "train"


@dataclass(frozen=True)
class Curves:
    """What a picture of a fit is drawn from, in the user's units.

    - `splits`: the data of each role: `train`, and those held out, such as `validation` and `test`. A role whose
      trajectory also stands in `train`, and of which only later rows are scored, is a forecast of it.
    - `dense`: the model's curve of each role at times of its own, as `(ts, ys)` of shapes `(trajectory, n)` and
      `(trajectory, n, state)`; not finite where the solution fails.
    - `bands`: lower and upper edges of bands around the curves, if there are some, of their shape.
    - `left_out`: how many trajectories there are besides.
    """

    splits: dict[str, Dataset]
    dense: dict[str, Dense]
    bands: dict[str, Edges] = field(default_factory=dict)
    left_out: int = 0


@dataclass
class Record:
    """One trajectory as it is drawn: its measurements by role, its inputs, its curve and its errors.

    - `points`: times and values of each role, NaN where a value does not count for it. The role `context` has the
      rows that are known and not scored, where no training record has them.
    - `data`: the dataset and the row that reach furthest, for the inputs.
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
        """Whether any measurement of it is held out."""
        return any(role not in (TRAIN, "context") for role in self.points)

    @property
    def error(self) -> float:
        """The error it is ranked by: of the held-out rows if there are some."""
        known = {role: error for role, error in self.errors.items() if not np.isnan(error)}
        held = [error for role, error in known.items() if role != TRAIN]
        return max(held) if held else known.get(TRAIN, np.inf)


def collect(curves: Curves) -> list[Record]:
    """One record for each trajectory; a forecast joins the record of the trajectory it continues."""
    records: dict[tuple[str, str], Record] = {}
    for role, data in curves.splits.items():
        scales = deviations(data)
        ts, ys = curves.dense[role]
        for row, name in enumerate(data.trajectories):
            valid = data.valid[row]
            context = valid & ~data.scored[row]
            continued = role != TRAIN and bool(context.any())
            key = (TRAIN, name) if continued and (TRAIN, name) in records else (role, name)
            band = (curves.bands[role][0][row], curves.bands[role][1][row]) if role in curves.bands else None
            record = records.setdefault(key, Record(name, (data, row), ts[row], ys[row], band))
            if ts[row][-1] >= record.ts[-1]:
                record.data, record.ts, record.ys, record.band = (data, row), ts[row], ys[row], band
            counted = np.where(data.mask[row], data.ys[row], np.nan)[valid]
            record.points[role] = (data.ts[row][valid], counted)
            if continued:
                mark_forecast(record, key[0], data, row, context)
            record.errors[role] = curve_error(data.ts[row][valid], counted, scales, ts[row], ys[row])
    return list(records.values())


def mark_forecast(record: Record, owner: str, data: Dataset, row: int, context: np.ndarray) -> None:
    """Notes where the held-out rows begin, and the rows before them if no training record has them."""
    before = data.ts[row][context]
    if owner != TRAIN:
        record.points = {"context": (before, data.ys[row][context])} | record.points
    elif TRAIN in record.points:
        before = record.points[TRAIN][0]
    start = float(before.max())
    record.forecast = start if record.forecast is None else min(record.forecast, start)


def curve_error(
    ts: np.ndarray, ys: np.ndarray, scales: np.ndarray, dense_ts: np.ndarray, dense_ys: np.ndarray
) -> float:
    """NRMSE of a curve against points, as in `evaluation.score`; infinite where the curve is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        on_curve = np.stack([np.interp(ts, dense_ts, dense_ys[:, i]) for i in range(ys.shape[1])], axis=1)
        squares = np.square((on_curve - ys) / np.where(scales > 0, scales, 1.0))
    squares = np.where(np.isfinite(squares), squares, np.inf)
    return mean_over_channels(squares[None], (np.isfinite(ys) & (scales > 0))[None])
