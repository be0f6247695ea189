"""Events of a dataset: read from a file, and each given a row of its own where there is none at its time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from jaxtyping import Float

from .dataset import Dataset, pad
from .dates import SECONDS
from .events import WHERE, Events, KnownEvent, parse_events
from .interpolation import are_held
from .tables.reading import check_file_size

if TYPE_CHECKING:
    import pandas


def read_events(
    given: str | Sequence[Mapping[str, object]] | None, trajectory: str | None, max_bytes: float
) -> list[dict[str, object]]:
    """Events as rows, whose trajectory has the key `trajectory`.

    **Arguments:**

    - `given`: a file of text with a line of column names, or the rows themselves.
    - `trajectory`: the name of the column of trajectories.
    - `max_bytes`: memory that the file may take.

    **Raises:** `FileNotFoundError`, or `ValueError` if the file can't be read as a table.
    """
    rows = of_file(Path(given), max_bytes) if isinstance(given, str) else [dict(row) for row in given or ()]
    return [{"trajectory" if key == trajectory else key: value for key, value in row.items()} for row in rows]


def of_file(path: Path, max_bytes: float) -> list[dict[str, object]]:
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"data.events names {path}, which is not a file.")
    check_file_size(path, max_bytes)
    try:
        frame = pd.read_csv(path, sep=None, engine="python", dtype=str, comment="#", keep_default_na=False)
    except (ValueError, UnicodeError) as error:
        fault = str(error).splitlines()[0]
        raise ValueError(f"{path} can't be read as a table of events: {fault}") from None
    frame.columns = [str(name).strip() for name in frame.columns]
    rows = frame.to_dict("records")
    return [
        {**{key: value.strip() for key, value in row.items()}, WHERE: f"{path}, row {number + 1}"}
        for number, row in enumerate(rows)
    ]


def of_trajectories(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> list[Mapping[str, object]]:
    """The events of these trajectories, and of all."""
    return [row for row in rows if row.get("trajectory") in (None, "") or str(row["trajectory"]) in names]


def check_trajectories_of(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    """Refuses events of trajectories that no file has."""
    left = [row for row in rows if row not in of_trajectories(rows, names)]
    if left:
        raise ValueError(
            f"{left[0].get(WHERE, 'data.events')} is of trajectory {left[0]['trajectory']!r}, which the data do not "
            f"have; they have {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        )


# Events as close to a row as this share of a trajectory's duration are at the row.
CLOSE = 1e-9


def with_events(data: Dataset, events: "pandas.DataFrame | Sequence[Mapping[str, object]]") -> Dataset:
    """The data with doses, resets and switches: states that jump at known times.

    ```python
    data = node_fit.with_events(data, [{"time": 8, "state": "gut", "add": 100, "person": "A"}])
    ```

    **Arguments:**

    - `data`: the measurements.
    - `events`: a `pandas.DataFrame`, or a list of dicts, with the time (`time`, or the name of the data's time), the
      `state`, measured or hidden, one of `add`, `set` and `multiply` with a value in the state's unit, and the
      `trajectory`; without one, all of them have the event. Several events of one time apply in their order.

    **Returns:** data with a row at each event. Where none was measured, states are missing, and inputs are
    interpolated, or held if they look like it. What is measured at an event's own time comes before it. Events after
    the last row of a trajectory are left out.

    **Raises:** `ValueError` that names the event, or if the data have events already.
    """
    if data.events is not None:
        raise ValueError("the data have events already; give all of them at once.")
    found = parse_events(events_as_rows(events, data), data.trajectories)
    for event in found:
        first = data.ts[event.trajectory, 0]
        if event.time < first:
            raise ValueError(
                f"{event.where}, at {event.time:g}, comes before the first row of trajectory "
                f"{data.trajectories[event.trajectory]!r}, at {first:g}; add a row there, its states may be empty."
            )
    return with_jumps(with_rows(data, found), found)


def events_as_rows(events: object, data: Dataset) -> list[dict[str, object]]:
    """Events as mappings with the keys `time`, a number, and `trajectory`."""
    if hasattr(events, "to_dict"):
        events = cast("pandas.DataFrame", events).to_dict("records")
    if not isinstance(events, Sequence) or not all(isinstance(each, Mapping) for each in events):
        raise ValueError(
            "events must be a pandas.DataFrame, or a list of dicts such as {'time': 8, 'state': 'gut', 'add': 100}, "
            f"got {events!r:.60}."
        )
    rows = [{str(key): value for key, value in each.items()} for each in events]
    for number, row in enumerate(rows):
        if data.time != "time" and data.time in row:
            row["time"] = row.pop(data.time)
        own = row.get("trajectory")
        if isinstance(own, float) and own.is_integer():  # a column of numbers with empty cells
            row["trajectory"] = int(own)
        if data.dates is not None:
            row["time"] = since(row.get("time"), data, row.get("trajectory"), row.get(WHERE, f"event {number + 1}"))
    return rows


def since(time: object, data: Dataset, trajectory: object, where: str) -> object:
    """The time of a timestamp, as the data count it; a number as it is."""
    import pandas as pd

    if isinstance(time, int | float):
        return time
    dates = data.dates
    assert dates is not None
    try:
        instant = pd.Timestamp(cast(str, time))
    except (TypeError, ValueError):
        raise ValueError(f"{where} needs a timestamp such as 2020-12-31T23:59:00 as its time, got {time!r}.") from None
    if instant.tzinfo is None:
        instant = instant.tz_localize(dates.zone or "UTC")
    zeros = dict(zip(data.trajectories, dates.zero, strict=True))
    zero = zeros.get(str(trajectory))
    if zero is None:
        if len(set(dates.zero.tolist())) > 1:
            raise ValueError(f"{where} names no trajectory, but the data's trajectories begin at different times.")
        zero = dates.zero[0]
    seconds = (instant.tz_convert(None) - pd.Timestamp(zero)).total_seconds()
    return seconds / SECONDS[dates.unit]


def with_rows(data: Dataset, events: Sequence[KnownEvent]) -> Dataset:
    """The data with a row at the time of each event."""
    held = are_held(data)
    parts = [one_with_rows(data, index, held, events) for index in range(len(data.trajectories))]
    lengths = np.array([len(part["ts"]) for part in parts])
    longest = int(lengths.max())

    def whole(name: str, fill: float | None) -> np.ndarray:
        return pad([part[name] for part in parts], longest, fill)

    return replace(
        data,
        ts=whole("ts", None),
        ys=whole("ys", np.nan),
        us=whole("us", None),
        lengths=lengths,
        scored=whole("scored", 0.0).astype(bool),
        sigma=None if data.sigma is None else whole("sigma", 1.0),
    )


def one_with_rows(data: Dataset, index: int, held: bool, events: Sequence[KnownEvent]) -> dict[str, np.ndarray]:
    """The arrays of one trajectory, without padding, with a row at each of its events."""
    length = int(data.lengths[index])
    ts, us = data.ts[index, :length], data.us[index, :length]
    times = np.array([event.time for event in events if event.trajectory == index and event.time < ts[-1]])
    new = np.array([time for time in np.unique(times) if np.abs(ts - time).min() > close(ts)])
    before = np.searchsorted(ts, new, side="right") - 1
    order = np.argsort(np.concatenate([ts, new]), kind="stable")

    def merged(old: np.ndarray, added: float | np.ndarray) -> np.ndarray:
        return np.concatenate([old, np.broadcast_to(added, (len(new), *old.shape[1:]))])[order]

    between = [us[before, column] if held else np.interp(new, ts, us[:, column]) for column in range(us.shape[1])]
    parts = {
        "ts": np.concatenate([ts, new])[order],
        "ys": merged(data.ys[index, :length], np.nan),
        "us": merged(us, np.stack(between, axis=1) if between else np.zeros((len(new), 0))),
        "scored": merged(data.scored[index, :length].astype(float), 1.0),
    }
    if data.sigma is not None:
        parts["sigma"] = merged(data.sigma[index, :length], 1.0)
    return parts


def close(ts: Float[np.ndarray, " time"]) -> float:
    return CLOSE * float(ts[-1] - ts[0])


def with_jumps(data: Dataset, events: Sequence[KnownEvent]) -> Dataset:
    """The data with the jumps of events, for each of which there is a row."""
    states = tuple(dict.fromkeys(event.state for event in events))
    factor = np.ones((*data.ts.shape, len(states)))
    shift = np.zeros_like(factor)
    for event in events:
        length = int(data.lengths[event.trajectory])
        ts = data.ts[event.trajectory, :length]
        row = int(np.abs(ts - event.time).argmin())
        if abs(ts[row] - event.time) <= close(ts):
            at = (event.trajectory, row, states.index(event.state))
            factor[at], shift[at] = event.factor * factor[at], event.factor * shift[at] + event.shift
    return replace(data, events=Events(states, factor, shift))
