"""Timestamps: the unit that their times are counted in, and the way back to dates."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

TIME_UNITS = {"s": "s", "min": "min", "h": "h", "d": "D"}  # our names to those of pandas
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Dates(NamedTuple):
    """When trajectories took place.

    - `zero`: the instant of time 0 of each trajectory, UTC, shape `(trajectory,)`, `datetime64[us]`.
    - `unit`: of times: `s`, `min`, `h` or `d`.
    - `zone`: in which timestamps were written; None if they named none.
    """

    zero: np.ndarray
    unit: str
    zone: str | None

    def of(self, trajectories: np.ndarray) -> "Dates":
        """The dates of some trajectories, by index."""
        return self._replace(zero=self.zero[trajectories])

    def told(self, name: str, *, chosen: bool) -> str:
        """A sentence on the unit of a column of timestamps, and whether it was chosen by their spacing."""
        why = f", chosen by its rows' spacing (data.time_unit={self.unit})" if chosen else ""
        return f"time: {name} counts in {self.unit} from {self.first}{why}"

    @property
    def first(self) -> str:
        """The first instant of all, without a time of day if that is midnight."""
        found = np.datetime_as_string(self.zero.min(), "s").replace("T", " ").removesuffix(" 00:00:00")
        return f"{found} UTC" if self.zone else found

    def stamps(self, trajectories: np.ndarray, times: Float[np.ndarray, " row"]) -> Any:
        """The timestamps of times, a `pandas.DatetimeIndex` to the microsecond, in the zone that they came in.

        **Arguments:** `trajectories`: index of each time's trajectory.
        """
        import pandas as pd

        since = np.round(times * SECONDS[self.unit] * 1e6).astype("timedelta64[us]")
        found = pd.DatetimeIndex(self.zero[trajectories] + since)
        return found if self.zone is None else found.tz_localize("UTC").tz_convert(self.zone)


def unit_for(seconds: float) -> str:
    """The largest unit that is not longer than a step of so many seconds; seconds at the least."""
    return next((unit for unit in ("d", "h", "min") if seconds >= SECONDS[unit]), "s")
