"""Which trajectories, or which times, are fitted, which choose the best iterate, and which are kept for the score."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from .dataset import Dataset

By = Literal["auto", "trajectory", "time"]


class Splits(NamedTuple):
    """Disjoint parts of the data; `validation` and `test` may be absent."""

    train: Dataset
    validation: Dataset | None
    test: Dataset | None

    def named(self) -> dict[str, Dataset]:
        """The parts that are there, by name."""
        return {name: part for name, part in self._asdict().items() if part is not None}


@dataclass(frozen=True)
class Split:
    """How to divide a dataset.

    By trajectory, whole trajectories are drawn for validation and test. By time, the record is fitted up to a time
    and simulated on from there: what comes later is a forecast from the start of the record.

    **Arguments:**

    - `by`: `trajectory`, `time`, or `auto`: by trajectory if there are at least five, else by time.
    - `validation`, `test`: fractions of the trajectories, or of the whole time span, the test part at its end and the
      validation part before it; 0 for none.
    - `validation_from`, `test_from`: instead of a fraction, the first time of that part [unit of time].
    - `seed`: of the draw of trajectories.

    **Raises:** `ValueError` if a number is out of range or nothing is left to fit.
    """

    by: By = "auto"
    validation: float = 0.2
    test: float = 0.2
    validation_from: float | None = None
    test_from: float | None = None
    seed: int = 0

    def __post_init__(self):
        if self.by not in ("auto", "trajectory", "time"):
            raise ValueError(f"by must be auto, trajectory or time, got {self.by!r}.")
        for key in ("validation", "test"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"{key} must be a fraction from 0 to below 1, got {getattr(self, key)}.")
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation and test leave nothing to fit: {self.validation} + {self.test} must be below 1."
            )
        if self.by == "trajectory" and (self.validation_from is not None or self.test_from is not None):
            raise ValueError("validation_from and test_from are times; they need by=time.")

    def __call__(self, data: Dataset) -> Splits:
        """The parts of `data`."""
        timed = self.validation_from is not None or self.test_from is not None
        if self.by == "time" or (self.by == "auto" and (timed or len(data.trajectories) < 5)):
            return self.by_time(data)
        return self.by_trajectory(data)

    def by_trajectory(self, data: Dataset) -> Splits:
        count = len(data.trajectories)
        order = np.random.default_rng(self.seed).permutation(count)
        test = round(self.test * count)
        validation = round(self.validation * count)
        if test + validation >= count:
            raise ValueError(
                f"{count} trajectories can't be divided into {validation} for validation, {test} for test and at least "
                "one to fit; lower the fractions, or use by=time."
            )
        part = lambda rows: data.select(np.sort(rows)) if rows.size else None  # noqa: E731
        train = data.select(np.sort(order[test + validation :]))
        return Splits(train, part(order[test : test + validation]), part(order[:test]))

    def by_time(self, data: Dataset) -> Splits:
        start, end = float(data.ts.min()), float(data.ts.max())
        # The cuts lie between rows: "from" a time includes it, and a part of no length is no part.
        test_from = self.test_from if self.test_from is not None else end - self.test * (end - start)
        rest = before(data, test_from) if self.test_from is not None or self.test else end
        validation_from = (
            self.validation_from if self.validation_from is not None else test_from - self.validation * (end - start)
        )
        if self.validation_from is not None and validation_from > test_from:
            raise ValueError(
                f"validation_from {validation_from:g} is later than the test part, which begins at {test_from:g}."
            )
        fitted = before(data, validation_from) if self.validation_from is not None or self.validation else rest
        train = data.until(fitted)
        validation = data.until(rest).scored_after(fitted) if fitted < rest else None
        test = data.scored_after(rest) if rest < end else None
        return Splits(train, validation, test)


def before(data: Dataset, time: float) -> float:
    """The last measured time before `time`.

    **Raises:** `ValueError` if there is none.
    """
    earlier = data.ts[data.valid & (data.ts < time)]
    if earlier.size == 0:
        raise ValueError(f"no row is earlier than {data.time} = {time:g}, so nothing is left to fit; cut later.")
    return float(earlier.max())
