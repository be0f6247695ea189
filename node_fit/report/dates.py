"""Timestamps on a page: times since the first of them."""

import re
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.dates import SECONDS, unit_for


class Origin(NamedTuple):
    """The instant from which a page counts times (UTC, `datetime64[us]`), and in which unit."""

    first: np.datetime64
    unit: str

    def since(self, stamps: np.ndarray | np.datetime64) -> Any:
        """Instants as times."""
        return (stamps - self.first) / np.timedelta64(1, "us") / (1e6 * SECONDS[self.unit])

    def times_of(self, data: Dataset, trajectory: int, ts: Float[np.ndarray, " time"]) -> Float[np.ndarray, " time"]:
        """Times of a trajectory of dated data, counted from this origin."""
        assert data.dates is not None
        return self.since(data.dates.zero[trajectory]) + ts * SECONDS[data.dates.unit] / SECONDS[self.unit]


def is_stamp(text: str) -> bool:
    """Whether a cell of the time's column holds a timestamp."""
    return re.match(r"\s*\d{4}-\d{2}", text) is not None


def count(name: str, texts: Any) -> tuple[str, Float[np.ndarray, " row"], Origin]:
    """A column of timestamps as times: what to call it, the times, and their origin."""
    import pandas as pd

    stamps = pd.to_datetime(texts, format="ISO8601", utc=True).tz_localize(None).as_unit("us").to_numpy()
    steps = np.diff(stamps) / np.timedelta64(1, "s")
    origin = Origin(stamps.min(), unit_for(float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0))
    zone = " UTC" if re.search(r"(Z|[+-]\d{2}:?\d{2})$", texts[0].strip()) else ""
    first = np.datetime_as_string(origin.first, "s").replace("T", " ")
    return f"{name}, {origin.unit} from {first}{zone}", origin.since(stamps), origin
