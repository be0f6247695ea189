"""Splits data into training data, validation data that choose the best iterate, and held-out test data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from ..runtime.validation import check_argument
from .dataset import Cut, Dataset
from .tables.layout import as_names
from .tables.table import hint, list_names

By = Literal["auto", "trajectory", "time"]
# With fewer trajectories, whole ones would be too much to leave out.
FEW_TRAJECTORIES = 5


class How(NamedTuple):
    """How data are split (each trajectory at a share of its `own` time, if not at common ones), and the `reason`."""

    by: Literal["trajectory", "time", "own"]
    reason: str


class Splits(NamedTuple):
    """Disjoint parts of the data; `validation` and `test` may be `None`."""

    train: Dataset
    validation: Dataset | None
    test: Dataset | None

    def named(self) -> dict[str, Dataset]:
        """The existing parts, by name."""
        return {name: part for name, part in self._asdict().items() if part is not None}

    def windows(self, rows: int | None) -> "Splits":
        """Cuts the parts into consecutive windows of `rows` rows; changes nothing if `rows` is `None`."""
        if rows is None:
            return self
        held = [part and part.windows(rows, rows) for part in (self.validation, self.test)]
        return Splits(self.train.windows(rows, rows), *held)


@dataclass(frozen=True)
class Split:
    """How to split a dataset into training, validation and test data.

    By trajectory, whole trajectories are drawn for validation and test. By time, the record is fitted up to a time and
    simulated on from there: later rows are a forecast from the start of the record.

    **Arguments:**

    - `by`: `trajectory`, `time`, or `auto`: by trajectory if there are at least five, else by time. There, trajectories
      that have no time in common are each cut at the same share of their own time.
    - `validation`, `test`: fractions of the trajectories, or of the time span, with the test part at its end and the
      validation part before it; 0 for none.
    - `validation_from`, `test_from`: first time of that part [unit of time], in place of a fraction.
    - `validation_trajectories`, `test_trajectories`: names of that part's trajectories, in place of a fraction.
    - `restart`: by time, whether validation and test parts are separate records, simulated from where they begin,
      instead of forecasts from the start of the whole record.
    - `seed`: seed of the random choice of trajectories.

    **Raises:** `ValueError` if a number is out of range or no training data are left.
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
        numbers = {"validation": float, "test": float, "validation_from": float | None, "test_from": float | None}
        for key, kind in {**numbers, "restart": bool, "seed": int}.items():
            check_argument(key, getattr(self, key), kind)
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
            raise ValueError("validation_trajectories and test_trajectories need by=trajectory and no times.")
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
        """Splits `data`."""
        split = {"trajectory": self.by_trajectory, "time": self.by_time, "own": self.by_own_time}
        return split[self.how(data).by](data)

    def how(self, data: Dataset) -> How:
        """How it splits `data`, and why."""
        count = len(data.trajectories)
        if self.by != "auto":
            return How(self.by, f"by {self.by}, as split.by says")
        if self.named:
            return How("trajectory", "by trajectory, since trajectories are named")
        if self.timed:
            return How("time", "by time, since times are given")
        if count >= FEW_TRAJECTORIES:
            return How("trajectory", f"by trajectory, since there are {count}")
        there = "there is 1 trajectory" if count == 1 else f"there are {count} trajectories"
        if count > 1 and data.ts[:, 0].max() > data.ts.max(axis=1).min():
            return How("own", f"each trajectory by its own time, since {there} without a common time")
        return How("time", f"by time, since {there}")

    def by_trajectory(self, data: Dataset) -> Splits:
        count = len(data.trajectories)
        test = find_trajectories(data, self.test_trajectories, "test_trajectories")
        validation = find_trajectories(data, self.validation_trajectories, "validation_trajectories")
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
        # Cuts lie between rows: a part includes its first time, and a part of length 0 is None.
        test_from = self.test_from if self.test_from is not None else end - self.test * (end - start)
        rest = keep_before(data, test_from) if self.test_from is not None or self.test else end
        validation_from = (
            self.validation_from if self.validation_from is not None else test_from - self.validation * (end - start)
        )
        if self.validation_from is not None and validation_from > test_from:
            raise ValueError(
                f"validation_from {validation_from:g} is later than the test part, which begins at {test_from:g}."
            )
        fitted = keep_before(data, validation_from) if self.validation_from is not None or self.validation else rest
        return self.cut_at(data, fitted, rest, end)

    def by_own_time(self, data: Dataset) -> Splits:
        begin, end = data.ts[:, 0], data.ts.max(axis=1)
        span = end - begin
        rest = last_before(data, end - self.test * span) if self.test else end
        held = self.test + self.validation
        fitted = last_before(data, end - held * span) if self.validation else rest
        return self.cut_at(data, fitted, rest, end)

    def cut_at(self, data: Dataset, fitted: Cut, rest: Cut, end: Cut) -> Splits:
        """Parts up to the times `fitted`, `rest` and `end`, of all trajectories or of each."""
        later = Dataset.after if self.restart else Dataset.scored_after
        validation = later(data.until(rest), fitted) if np.any(fitted < rest) else None
        test = later(data, rest) if np.any(rest < end) else None
        return Splits(data.until(fitted), validation, test)


def find_trajectories(data: Dataset, names: Sequence[str | int] | None, key: str) -> list[int] | None:
    """Indices of the trajectories with these names; `None` if `names` is `None`.

    **Raises:** `ValueError` if a trajectory does not exist.
    """
    if names is None:
        return None
    wanted = dict.fromkeys(str(name) for name in names)
    for name in wanted:
        if name not in data.trajectories:
            raise ValueError(
                f"{key} names {name!r}, which does not exist; the trajectories are {list_names(data.trajectories)}."
                f"{hint(name, data.trajectories)}"
            )
    return [data.trajectories.index(name) for name in wanted]


def last_before(data: Dataset, times: Float[np.ndarray, " trajectory"]) -> Float[np.ndarray, " trajectory"]:
    """The last measured time of each trajectory before one of its own; its first if there is none."""
    earlier = np.where(data.valid & (data.ts < times[:, None]), data.ts, -np.inf)
    return np.maximum(earlier.max(axis=1), data.ts[:, 0])


def count_trajectories(parts: Splits) -> str:
    """How many rows that count, of how many trajectories, each part has."""
    texts = []
    for name, part in parts.named().items():
        of = np.flatnonzero(part.scored.any(axis=1)).size
        rows, whole = int(part.scored.sum()), "trajectory" if of == 1 else "trajectories"
        texts.append(f"{name} {rows} {'row' if rows == 1 else 'rows'} of {of} {whole}")
    missing = [name for name, part in parts._asdict().items() if part is None]
    return ", ".join(texts) + (f"; no {' and no '.join(missing)} data" if missing else "")


def held_out(parts: Splits) -> str:
    """What is not fitted, of how many trajectories or rows; empty if everything is."""
    held = {name: part for name, part in parts.named().items() if name != "train"}
    fitted = parts.train
    if not held:
        return ""
    if any(set(part.trajectories) <= set(fitted.trajectories) for part in held.values()):
        rows = {name: int(part.scored.sum()) for name, part in held.items()}
        left, what = sum(rows.values()), "rows"
        whole = left + int(fitted.scored.sum())
        said = [f"{count} later rows for {name}" for name, count in rows.items()]
    else:
        left, what = sum(len(part.trajectories) for part in held.values()), "trajectories"
        whole = left + len(fitted.trajectories)
        said = [f"{', '.join(part.trajectories)} for {name}" for name, part in held.items()]
    return f"{' and '.join(said)}: {left} of {whole} {what}"


def keep_before(data: Dataset, time: float) -> float:
    """The last measured time before `time`.

    **Raises:** `ValueError` if there is none.
    """
    earlier = data.ts[data.valid & (data.ts < time)]
    if earlier.size == 0:
        raise ValueError(f"no row is earlier than {data.time} = {time:g}, so nothing is left to fit; cut later.")
    return float(earlier.max())
