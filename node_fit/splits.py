"""Which trajectories, or which times, are fitted, which choose the best iterate, and which are kept for the score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from .dataset import Dataset
from .tables.roles import as_names
from .tables.table import hint, shown

By = Literal["auto", "trajectory", "time"]


class Splits(NamedTuple):
    """Disjoint parts of the data; `validation` and `test` may be absent."""

    train: Dataset
    validation: Dataset | None
    test: Dataset | None

    def named(self) -> dict[str, Dataset]:
        """The parts that are there, by name."""
        return {name: part for name, part in self._asdict().items() if part is not None}

    def windows(self, rows: int | None) -> "Splits":
        """The parts cut into windows of so many rows, one after another; as they are if `rows` is None."""
        if rows is None:
            return self
        held = [part and part.windows(rows, rows) for part in (self.validation, self.test)]
        return Splits(self.train.windows(rows, rows), *held)


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
    - `validation_trajectories`, `test_trajectories`: instead of a fraction, the names of that part's trajectories.
    - `restart`: by time, whether validation and test part are records of their own, simulated from where they begin,
      instead of forecasts from the beginning of the record.
    - `seed`: of the draw of trajectories.

    **Raises:** `ValueError` if a number is out of range or nothing is left to fit.
    """

    by: By = "auto"
    validation: float = 0.2
    test: float = 0.2
    validation_from: float | None = None
    test_from: float | None = None
    validation_trajectories: Sequence[str | int] | None = None
    test_trajectories: Sequence[str | int] | None = None
    restart: bool = False
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
        if self.by == "trajectory" and self.timed:
            raise ValueError("validation_from and test_from are times; they need by=time.")
        if self.named and (self.timed or self.by == "time"):
            raise ValueError("validation_trajectories and test_trajectories need by=trajectory, and no times beside.")
        for key in ("validation_trajectories", "test_trajectories"):
            as_names(getattr(self, key) or (), key)
        if self.restart and (self.named or self.by == "trajectory"):
            raise ValueError("restart is for by=time; by trajectory, every part is simulated from its beginning.")

    @property
    def timed(self) -> bool:
        """Whether a part is given by its first time."""
        return self.validation_from is not None or self.test_from is not None

    @property
    def named(self) -> bool:
        """Whether a part is given by the names of its trajectories."""
        return self.validation_trajectories is not None or self.test_trajectories is not None

    def __call__(self, data: Dataset) -> Splits:
        """The parts of `data`."""
        few = len(data.trajectories) < 5 and not self.named
        if self.by == "time" or (self.by == "auto" and (self.timed or few)):
            return self.by_time(data)
        return self.by_trajectory(data)

    def by_trajectory(self, data: Dataset) -> Splits:
        count = len(data.trajectories)
        test = find(data, self.test_trajectories, "test_trajectories")
        validation = find(data, self.validation_trajectories, "validation_trajectories")
        both = sorted(set(test or ()) & set(validation or ()))
        if both:
            raise ValueError(
                f"trajectory {data.trajectories[both[0]]!r} is named in validation_trajectories and in "
                "test_trajectories; remove it from one."
            )
        taken = {*(test or ()), *(validation or ())}
        free = [row for row in np.random.default_rng(self.seed).permutation(count).tolist() if row not in taken]
        if test is None:
            size = round(self.test * count)
            test, free = free[:size], free[size:]
        if validation is None:
            size = round(self.validation * count)
            validation, free = free[:size], free[size:]
        if not free:
            raise ValueError(
                f"{count} trajectories can't be divided into {len(validation)} for validation, {len(test)} for test "
                "and at least one to fit; take fewer, or use by=time."
            )
        part = lambda rows: data.select(sorted(rows)) if rows else None  # noqa: E731
        return Splits(data.select(sorted(free)), part(validation), part(test))

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
        later = Dataset.after if self.restart else Dataset.scored_after
        validation = later(data.until(rest), fitted) if fitted < rest else None
        test = later(data, rest) if rest < end else None
        return Splits(train, validation, test)


def find(data: Dataset, names: Sequence[str | int] | None, key: str) -> list[int] | None:
    """The numbers of the trajectories with these names; None if there are no names.

    **Raises:** `ValueError` if there is no such trajectory.
    """
    if names is None:
        return None
    wanted = dict.fromkeys(str(name) for name in names)
    for name in wanted:
        if name not in data.trajectories:
            raise ValueError(
                f"{key} names {name!r}, which does not exist; the trajectories are {shown(data.trajectories)}."
                f"{hint(name, data.trajectories)}"
            )
    return [data.trajectories.index(name) for name in wanted]


def before(data: Dataset, time: float) -> float:
    """The last measured time before `time`.

    **Raises:** `ValueError` if there is none.
    """
    earlier = data.ts[data.valid & (data.ts < time)]
    if earlier.size == 0:
        raise ValueError(f"no row is earlier than {data.time} = {time:g}, so nothing is left to fit; cut later.")
    return float(earlier.max())
