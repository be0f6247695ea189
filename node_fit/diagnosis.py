"""What a fit has come to, in a sentence with the next thing to try."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from .dataset import Dataset
from .evaluation import score
from .observer import Record, Status
from .smoothing import noise_levels

Kind = Literal["failed", "unstable", "flat", "unfinished", "noise-limited", "overfitted", "poor", "good"]
# A fit that explains less of the variance than this is as good as a constant.
FLAT = 0.1
# Below this a fit is good whatever else may be said.
GOOD = 0.02
# The last chunk's fall of the loss in one that could have gone on.
FALLING = 0.05
NEAR_NOISE = 1.3
OVERFITTED = 3.0
# Times the largest measurement: a state beyond that has run away.
FAR = 10.0
# Trajectories besides the first that a sentence names.
MOST_NAMED = 4


@dataclass(frozen=True)
class Diagnosis:
    """The `kind` of outcome, and a `sentence` that says so and what to try next."""

    kind: Kind
    sentence: str


@dataclass(frozen=True)
class Gone:
    """A trajectory that can't be simulated to its end: its `name`, the last `time` at which it can, and whether it
    has run `away` by then."""

    name: str
    time: float
    away: bool


def diagnose(
    status: Status,
    history: Sequence[Record],
    splits: dict[str, Dataset],
    predicted: dict[str, Float[np.ndarray, "trajectory time state"]],
) -> Diagnosis:
    """What a fit has come to.

    **Arguments:**

    - `status`, `history`: of the fit.
    - `splits`: data by their names, `train` and perhaps `validation` and `test`. The score on the test is not looked
      at, but whether it could be predicted at all is.
    - `predicted`: predictions for each split.
    """
    if status == "failed":
        return Diagnosis("failed", "failed: no loss was finite; check the scale of the data and the solver.")
    for name, data in splits.items():
        gone = where_not_finite(data, predicted[name])
        if gone:
            return Diagnosis(
                "unstable",
                f"unstable: {name} {what_is_gone(data, gone)}; try a prior (train.ridge=0.1), shorter windows first "
                "(train.window=50), or solver=kvaerno5 if it is stiff.",
            )
    train = score(splits["train"], predicted["train"])
    held = score(splits["validation"], predicted["validation"]) if "validation" in splits else None
    fit = f"R² {train.r2:.2f} on the training data"
    if not train.r2 > FLAT:
        return Diagnosis("flat", f"flat: {fit}, no better than a constant; {what_helps_flat(history)}.")
    if is_falling(history) and status == "completed" and train.nrmse > GOOD:
        return Diagnosis("unfinished", "unfinished: the loss was still falling at the last step; raise train.steps.")
    if held is not None and held.nrmse > max(OVERFITTED * train.nrmse, GOOD):
        return Diagnosis(
            "overfitted",
            f"overfitted: NRMSE {held.nrmse:.2g} on validation data against {train.nrmse:.2g} on those of training; "
            "try a prior (train.ridge=0.1) or a smaller network (field.width=16).",
        )
    good = Diagnosis("good", f"good on the training data: NRMSE {train.nrmse:.2g}.")
    if train.nrmse <= GOOD:
        return good
    if is_noise(splits["train"], predicted["train"]):
        return Diagnosis(
            "noise-limited",
            "noise-limited: what is left is as large as the noise in the data; more data would help, more steps not.",
        )
    if train.r2 < 0.9:
        return Diagnosis(
            "poor", f"poor: {fit}; if not all that matters was measured, try hidden=1 start=encoder or field.time=true."
        )
    return good


def where_not_finite(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> list[Gone]:
    """The trajectories with a prediction that is not finite."""
    lost = ~np.isfinite(predicted).all(axis=2) & data.valid
    measured = np.abs(np.where(data.mask, data.ys, 0)).max(axis=(0, 1))
    found = []
    for row in np.flatnonzero(lost.any(axis=1)):
        last = max(int(lost[row].argmax()) - 1, 0)
        away = bool((np.abs(predicted[row, last]) > FAR * measured).any())
        found.append(Gone(data.trajectories[row], float(data.ts[row, last]), away))
    return found


def what_is_gone(data: Dataset, gone: Sequence[Gone]) -> str:
    """Says how many trajectories can't be simulated, which, from when on, and why."""
    first = gone[0]
    reason = "where it runs away" if first.away else "where the solver takes all its steps"
    text = f"trajectory {first.name!r} can't be simulated beyond {data.time} = {first.time:g}, {reason}"
    if len(gone) == 1:
        return text
    others = ", ".join(repr(each.name) for each in gone[1 : MOST_NAMED + 1])
    more = ", ..." if len(gone) > MOST_NAMED + 1 else ""
    return f"{text} ({len(gone)} of {len(data.trajectories)} can't; the others: {others}{more})"


def what_helps_flat(history: Sequence[Record]) -> str:
    stages = {record.stage for record in history}
    if len(stages) == 1:
        return "try recipe=default, which begins with short or no solves"
    return "try shorter windows first (train.window=20), or hidden=1 start=encoder if not all that matters was measured"


def is_falling(history: Sequence[Record]) -> bool:
    """Whether the loss fell clearly in the last chunk."""
    last = [record.train_loss for record in history if record.stage == history[-1].stage][-2:]
    return len(last) == 2 and last[1] < (1 - FALLING) * last[0]


def is_noise(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> bool:
    """Whether every channel's error is about that of the measurements."""
    noise = noise_levels(data.ts, np.where(data.mask, data.ys, np.nan))
    residual = np.where(data.mask, predicted - data.ys, np.nan)
    error = np.sqrt(np.nanmean(residual**2, axis=(0, 1)))
    return bool((np.isfinite(noise) & (noise > 0) & (error <= NEAR_NOISE * noise)).all())
