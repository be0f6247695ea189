"""What came of several starts: which found the same optimum."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..evaluation.metrics import jsonable
from ..training.callback import Status

# Losses that differ by less, relative to the best or absolutely, are of the same optimum.
SAME, EXACT = 1e-2, 1e-10


@dataclass(frozen=True)
class Start:
    """A fit from one of several starts.

    - `status`: how it ended.
    - `loss`: the validation loss of its best iterate, or the training loss without validation data; infinite if there
      is none.
    - `constants`: its fitted constants.
    """

    status: Status
    loss: float
    constants: Mapping[str, float]


@dataclass(frozen=True)
class Starts:
    """Fits from several starts, of which the best was kept. The first began at the constants that were given.

    - `fits`: a `Start` for each, in their order.
    """

    fits: tuple[Start, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(each.loss for each in self.fits)

    @property
    def best(self) -> float:
        return min(each.loss for each in self.fits)

    @property
    def found(self) -> int:
        """How many have found the best optimum, up to 1 % of its loss."""
        limit = self.best * (1 + SAME) + EXACT
        return sum(each.loss <= limit for each in self.fits) if math.isfinite(self.best) else 0

    @property
    def next_best(self) -> float | None:
        """The lowest loss of another optimum; None if there is none."""
        limit = self.best * (1 + SAME) + EXACT
        return min((each.loss for each in self.fits if limit < each.loss < math.inf), default=None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; None for a loss that is not finite."""
        table = [
            {"start": index, "status": each.status, "loss": jsonable(each.loss), "constants": dict(each.constants)}
            for index, each in enumerate(self.fits)
        ]
        return {"found": self.found, "tolerance": SAME, "table": table}

    def __str__(self) -> str:
        other = "" if self.next_best is None else f"; the next optimum has {self.next_best:.3g}"
        return f"{self.found} of {len(self.fits)} starts found the best optimum, of loss {self.best:.3g}{other}"
