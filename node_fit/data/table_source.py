"""The data of a run: read from files, with events and optional noise, and split into parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from jaxtyping import Float

from ..runtime.validation import is_mapping, is_sequence
from .clipping import check_ranges, describe_ranges, find_ends, format_ranges
from .cycles import find_cycles
from .dataset import Dataset, Split, Splits, count_trajectories
from .delays import describe_delays, find_delays
from .doses import check_doses, events_of_doses, split_doses
from .events import WHERE, Events, KnownEvent, parse_events
from .gaps import cut_at_gaps, describe_gaps
from .phases import cycle_names, describe_cycles
from .scaling import Scaling
from .tables.layout import CovariateNumbers, Roles, as_numbers, check_trajectories, with_covariates
from .tables.options import ReadingOptions
from .tables.reading import (
    ESTIMATE,
    MOST_BYTES,
    Sigma,
    check_file_size,
    make_roles,
    read_files,
    sigma_columns,
    with_columns,
    with_sigma,
)
from .tables.times import SECONDS, read_digit_dates
from .trajectories import pad

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Table:
    """Trajectories in files, with one row per time by default; `Dataset.from_file` describes the layouts.

    **Arguments:**

    - `path`: a file, a list of files, a glob, or a folder of tables.
    - `time`, `states`, `inputs`: names of columns; `inputs` can be empty.
    - `step`: time between two rows, in place of `time`.
    - `covariates`: inputs that are constant within a trajectory: names of columns, or numbers by name and trajectory,
      where `default` applies to all others.
    - `trajectory`: the column that identifies the trajectory; without one, each file is a trajectory.
    - `series`: patterns of the trajectory columns, in a table with one column per trajectory.
    - `observable`, `value`: columns of a table with one row per measurement.
    - `test_path`: files for the final score only; `path` then provides no test data.
    - `time_unit`: unit to convert timestamps to: `s`, `min`, `h` or `d`; chosen by their spacing if null.
    - `day_first`: whether 01.03.2024 is a day in March (or in January).
    - `rename`: original column names by the new names used here, such as `{V: "Voltage (V)"}`, for names that equations
      can't contain.
    - `units`: unit of a column, by name.
    - `delays`: time after which an input acts, by name; the model then gets its value of that time before.
    - `cycles`: `day`, `week` and `year`, whose phases are further inputs, as in `Dataset.with_cycles`.
    - `ranges`: lower and upper end of the range of a state's sensor, by name; null for no end. Values at or beyond an
      end are censored: they only tell on which side of it the true value lies.
    - `log`: positive states and inputs to treat on a logarithmic scale.
    - `bounds`: lower and upper bounds of states and inputs, by name; null for no bound.
    - `angles`: states that are angles, in `angle_unit` (`rad` or `deg`); see `Scaling`.
    - `scale`: whether to scale states, inputs and time to order one for the vector field.
    - `noise`: Gaussian noise to add to the states for trials, relative to each state's standard deviation.
    - `noise_seed`: seed of that noise.
    - `split`: how to split the data.
    - `sigma`: standard deviation of the measurements, as in `Dataset.from_file`.
    - `censored`: whether states can be limits, such as `<0.5`, or intervals, as in `Dataset.from_file`.
    - `events`: doses, resets and switches: a file with the columns of the time, of the trajectory (if there are
      several), `state`, and `add`, `set` or `multiply`; or a list of such rows, as in `with_events`.
    - `doses`: columns whose values are added to a state at their rows, by state: `{gut: "dose (mg)"}`. An empty cell is
      no dose.
    - `max_bytes`: memory that one file can take once it is unpacked, where text counts fourfold [bytes].
    - `time_of_day`: column of times of day, if the `time` column holds only dates.
    - `occasion`: column that separates the records of one subject; `trajectory` names the subject.
    - `header`, `first_row`, `decimal`, `missing`, `sheet`, `time_format`, `input_gaps`, `repeats`, `row_order`: layout
      of the table, as in `Dataset.from_file`; detected by default. `input_interval`, `levels`: as there.

    **Raises:** `ValueError` if a number is out of range, `path` is missing, or roles of columns contradict each other.
    """

    path: str | Sequence[str]
    time: str | None
    states: Sequence[str]
    inputs: Sequence[str] = ()
    covariates: Sequence[str] | CovariateNumbers | None = None
    trajectory: str | None = None
    series: Sequence[str] = ()
    observable: str | None = None
    value: str | None = None
    step: float | None = None
    test_path: str | Sequence[str] | None = None
    time_unit: str | None = None
    day_first: bool | None = None
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    units: dict[str, str] = field(default_factory=dict[str, str])
    delays: Mapping[str, float] = field(default_factory=dict[str, float])
    cycles: Sequence[str] = ()
    ranges: Mapping[str, Sequence[float | None]] = field(default_factory=dict[str, Sequence[float | None]])
    log: Sequence[str] = ()
    bounds: Mapping[str, Sequence[float | None]] = field(default_factory=dict[str, Sequence[float | None]])
    angles: Sequence[str] = ()
    angle_unit: Literal["rad", "deg"] = "rad"
    scale: bool = True
    noise: float = 0.0
    noise_seed: int = 0
    split: Split = field(default_factory=Split)
    sigma: Sigma = ESTIMATE
    censored: bool = False
    events: str | Sequence[Mapping[str, object]] | None = None
    doses: Mapping[str, str] = field(default_factory=dict[str, str])
    max_bytes: float = MOST_BYTES
    time_of_day: str | None = None
    occasion: str | None = None
    header: int | None = None
    first_row: int | None = None
    decimal: str | None = None
    missing: Sequence[str | float | int] | None = None
    sheet: str | None = None
    time_format: str | None = None
    input_gaps: str | Mapping[str, str] = "auto"
    repeats: str = "auto"
    row_order: str = "auto"
    input_interval: str | Mapping[str, str] = "after"
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def __post_init__(self):
        if not self.noise >= 0:
            raise ValueError(f"noise must not be negative, got {self.noise}.")
        check_doses(self.doses, self.states, is_wide=bool(self.series))
        check_rename(self.rename, self.roles)
        _ = (
            self.roles,
            self.covariate_numbers,
            self.sigma_columns,
            self.scaling,
            self.reading,
        )  # raise here if they contradict each other, before any file is read

    @property
    def roles(self) -> Roles:
        """Role of each column."""
        return make_roles(
            time=self.time,
            states=with_columns(self.states, (*self.sigma_columns, *self.dose_columns)),
            inputs=self.inputs,
            covariates=self.covariates or (),
            trajectory=self.trajectory,
            series=self.series,
            observable=self.observable,
            value=self.value,
            step=self.step,
            deviations=self.sigma_columns,
            time_of_day=self.time_of_day,
            occasion=self.occasion,
        )

    @property
    def reading(self) -> ReadingOptions:
        """User-specified layout of the table, which overrides detection."""
        return ReadingOptions(
            header=self.header,
            first_row=self.first_row,
            decimal=self.decimal,
            missing=self.missing,
            sheet=self.sheet,
            time_format=self.time_format,
            input_gaps=self.input_gaps,
            repeats=self.repeats,
            row_order=self.row_order,
            input_interval=self.input_interval,
            levels=self.levels,
        )

    @property
    def sigma_columns(self) -> tuple[str, ...]:
        """Columns of standard deviations."""
        return sigma_columns(self.sigma, self.states, by_row=self.observable is None, is_wide=bool(self.series))

    @property
    def dose_columns(self) -> tuple[str, ...]:
        """Columns of doses."""
        return tuple(dict.fromkeys(self.doses.values()))

    @property
    def scaling(self) -> Scaling:
        """Scaling of states, inputs and time."""
        return Scaling(self.log, self.bounds, self.scale, self.angles, self.angle_unit)

    @property
    def covariate_numbers(self) -> dict[str, dict[str, float]]:
        """Numeric covariates, by name and trajectory."""
        return as_numbers(self.covariates or ())

    def load(self) -> Splits:
        """Reads and splits the data."""
        return self.load_with_notes()[0]

    def load_with_notes(self) -> tuple[Splits, list[str]]:
        """Loads the data, and describes automatic choices: the unit of timestamps, and the split."""
        data = self.read(self.path)
        check_rows(data)
        check_ranges(data, self.ranges)
        unit = None if data.dates is None else data.dates.unit
        test = None if self.test_path is None else self.read(self.test_path, unit)
        names = (*data.trajectories, *(test.trajectories if test else ()))
        check_trajectories(self.covariate_numbers, names)
        check_trajectories_of(self.event_rows, names)
        data = add_noise(data, self.noise, self.noise_seed)
        split = self.split if test is None else replace(self.split, test=0.0, test_from=None, test_trajectories=None)
        parts = split(data)
        if test is not None:
            parts = parts._replace(test=test if split.gaps == "bridge" else cut_at_gaps(test))
        notes = [*data.notes, *describe_time(data, chosen=self.time_unit is None)]
        notes += [] if data.events is None else [data.events.summary]
        notes += describe_gaps(data) if split.gaps == "cut" else []
        if self.delays:
            notes.append(f"inputs: moved, since {describe_delays(parts.train, self.delays)} (data.delays)")
        if self.cycles:
            names = ", ".join(cycle_names(self.cycles))
            notes.append(f"inputs: {names} tell {describe_cycles(self.cycles)} (data.cycles)")
        elif cycles := find_cycles(parts.train):
            key = ", ".join(cycles)
            notes.append(f"inputs: states follow {describe_cycles(cycles)}: 'data.cycles=[{key}]'")
        if self.ranges:
            notes.append(f"states: {describe_ranges(parts.train, self.ranges)} (data.ranges)")
        elif ranges := find_ends(parts.train):
            notes.append(f"states: {describe_ranges(parts.train, ranges)}: 'data.ranges={format_ranges(ranges)}'")
        if late := find_delays(parts.train):
            key = ", ".join(f"{name}: {self.delays.get(name, 0) + delay:g}" for name, delay in late.items())
            notes.append(
                f"inputs: {describe_delays(parts.train, late)}, as linear models show: 'data.delays={{{key}}}'"
            )
        return parts, [*notes, f"split: {split.how(data).reason}: {count_trajectories(parts)}"]

    def read(self, path: str | Sequence[str], unit: str | None = None) -> Dataset:
        """Reads other files with the same columns; `covariates` can name trajectories that they do not contain.

        **Arguments:** `unit`: unit of timestamps if `time_unit` is None.
        """
        limits = (self.day_first, self.max_bytes)
        dated = unit is not None
        assembled = read_files(
            Dataset,
            path,
            self.roles,
            self.time_unit,
            self.units,
            *limits,
            rename=self.rename,
            is_dated=dated,
            options=self.reading,
            censored=self.censored,
        )
        measured, doses = split_doses(assembled, len(self.dose_columns))
        data = with_sigma(measured, self.sigma, self.states)
        data = data if unit is None else convert_times(data, self.time_unit or unit)
        data = with_covariates(data, self.covariate_numbers, self.units)
        events = select_events(self.event_rows, data.trajectories)
        events += events_of_doses(data, self.doses, doses) if self.doses else []
        if self.events is not None or self.doses:
            data = with_events(data, events)
        return self.scaling.mark_angles(data.clip(self.ranges).delay_inputs(self.delays).with_cycles(self.cycles))

    @property
    def event_rows(self) -> list[dict[str, object]]:
        """Events as written by the user."""
        return read_events(self.events, self.trajectory, self.max_bytes)


def check_rename(rename: Mapping[str, str], roles: Roles) -> None:
    """Checks that each column gets one name, and that the name has a role.

    **Raises:** `ValueError` that names the entry.
    """
    single = (roles.time, roles.time_of_day, roles.trajectory, roles.occasion, roles.observable, roles.value)
    known = [name for name in (*single, *roles.states, *roles.inputs, *roles.covariates) if name is not None]
    columns = list(rename.values())
    for name, column in rename.items():
        if name not in known:
            fix = f"write rename={{{column}: {name!r}}}" if column in known else "name it in states or inputs"
            raise ValueError(f"rename: {name!r} is the new name of a column, but has no role; {fix}, or leave it out.")
        if columns.count(column) > 1:
            raise ValueError(f"rename: the column {column!r} gets two names; leave one out.")
        if column in known and column not in rename:
            raise ValueError(f"rename: the column {column!r} has a role under this name and under {name!r}; use one.")


def describe_time(data: Dataset, *, chosen: bool) -> list[str]:
    """Describes times that are dates, or look like dates.

    **Arguments:** `chosen`: whether their unit was selected from their spacing.
    """
    import pandas as pd

    if data.dates is not None:
        return [data.dates.describe_unit(data.time, chosen=chosen)]
    dates = read_digit_dates(pd.Series(data.ts[data.valid]))
    if dates is None:
        return []
    return [f"time: {data.time} is a number; if {dates.first} is a date, set data.time_unit=d"]


def check_rows(data: Dataset) -> None:
    """Rejects data without two consecutive rows.

    **Raises:** `ValueError` with a remedy.
    """
    if data.lengths.max() < 2:
        count = len(data.trajectories)
        what = "the data have one row" if count == 1 else f"each of the {count} trajectories has one row"
        fix = "add rows" if count == 1 else "name the column that tells trajectories apart, or none"
        raise ValueError(f"{what}, and a fit needs rows that follow one another in a trajectory; {fix}.")


def convert_times(data: Dataset, unit: str) -> Dataset:
    """Converts times from timestamps or times of day to another unit; leaves others unchanged."""
    current = data.units.get(data.time) if data.dates is None else data.dates.unit
    is_written = data.dates is not None or any(note.startswith("time: ") for note in data.notes)
    if current not in SECONDS or not is_written:
        return data
    factor = SECONDS[current] / SECONDS[unit]
    return replace(
        data,
        ts=data.ts if factor == 1 else data.ts * factor,
        dates=None if data.dates is None else data.dates._replace(unit=unit),
        units={**data.units, data.time: unit},
    )


def add_noise(data: Dataset, noise: float, seed: int) -> Dataset:
    """Adds Gaussian noise to the states, relative to each state's standard deviation."""
    if noise == 0:
        return data
    draws = np.random.default_rng(seed).standard_normal(data.ys.shape)
    return data.shift(noise * np.nanstd(data.ys, axis=(0, 1)) * draws)


def read_events(
    given: str | Sequence[Mapping[str, object]] | None, trajectory: str | None, max_bytes: float
) -> list[dict[str, object]]:
    """Returns events as rows, with the trajectory under the key `trajectory`.

    **Arguments:**

    - `given`: a text file with a line of column names, or the rows themselves.
    - `trajectory`: name of the trajectory column.
    - `max_bytes`: memory that the file can take.

    **Raises:** `FileNotFoundError`, or `ValueError` if the file can't be read as a table.
    """
    rows = read_event_file(Path(given), max_bytes) if isinstance(given, str) else [dict(row) for row in given or ()]
    return [{"trajectory" if key == trajectory else key: value for key, value in row.items()} for row in rows]


def read_event_file(path: Path, max_bytes: float) -> list[dict[str, object]]:
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
        {**{str(key): value.strip() for key, value in row.items()}, WHERE: f"{path}, row {number + 1}"}
        for number, row in enumerate(rows)
    ]


def select_events(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> list[Mapping[str, object]]:
    """Returns the events of these trajectories and the events of all trajectories."""
    return [row for row in rows if row.get("trajectory") in (None, "") or str(row["trajectory"]) in names]


def check_trajectories_of(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    """Rejects events whose trajectory is in no file."""
    unknown = [row for row in rows if row not in select_events(rows, names)]
    if unknown:
        raise ValueError(
            f"{unknown[0].get(WHERE, 'data.events')} is of trajectory {unknown[0]['trajectory']!r}, which the data do "
            f"not have; they have {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        )


# Maximum distance between an event and its row, as a fraction of a trajectory's duration.
CLOSE = 1e-9


def with_events(data: Dataset, events: "pandas.DataFrame | Sequence[Mapping[str, object]]") -> Dataset:
    """Adds doses, resets and switches to data: states that jump at known times.

    ```python
    data = node_fit.with_events(data, [{"time": 8, "state": "gut", "add": 100, "trajectory": "A"}])
    ```

    **Arguments:**

    - `data`: the measurements.
    - `events`: a `pandas.DataFrame` or a list of dicts, one row per event: `time` (or the name of the data's time);
      `state`, measured or hidden; one of `add`, `set` and `multiply`, with a value in the state's unit or a factor; and
      `trajectory`, the name of the affected trajectory, or nothing for all. Simultaneous events apply in order.

    **Returns:** data with a row at each event. In added rows, states are missing, and inputs are interpolated, or held
    if they look piecewise constant. A measurement at an event's time precedes the event. Events after the last row of a
    trajectory are left out.

    **Raises:** `ValueError` that names the event, or if the data already have events.
    """
    if data.events is not None:
        raise ValueError("the data have events already; give all of them at once.")
    parsed = parse_events(events_as_rows(events, data), data.trajectories)
    for event in parsed:
        first = data.ts[event.trajectory, 0]
        if event.time < first:
            raise ValueError(
                f"{event.where}, at {event.time:g}, comes before the first row of trajectory "
                f"{data.trajectories[event.trajectory]!r}, at {first:g}; add a row there, its states may be empty."
            )
    return with_jumps(with_rows(data, parsed), parsed)


def events_as_rows(events: object, data: Dataset) -> list[dict[str, object]]:
    """Returns events as mappings with the keys `time`, a number, and `trajectory`."""
    if hasattr(events, "to_dict"):
        events = cast("pandas.DataFrame", events).to_dict("records")
    mappings = [mapping for mapping in events if is_mapping(mapping)] if is_sequence(events) else []
    if not is_sequence(events) or len(mappings) < len(events):
        raise ValueError(
            "events must be a pandas.DataFrame, or a list of dicts such as {'time': 8, 'state': 'gut', 'add': 100}, "
            f"got {events!r:.60}."
        )
    rows = [{str(key): value for key, value in mapping.items()} for mapping in mappings]
    for number, row in enumerate(rows):
        if data.time != "time" and data.time in row:
            row["time"] = row.pop(data.time)
        trajectory = row.get("trajectory")
        if isinstance(trajectory, float) and trajectory.is_integer():  # a column of numbers with empty cells
            row["trajectory"] = int(trajectory)
        if data.dates is not None:
            row["time"] = time_since_start(
                row.get("time"), data, row.get("trajectory"), row.get(WHERE, f"event {number + 1}")
            )
    return rows


def time_since_start(time: object, data: Dataset, trajectory: object, where: object) -> object:
    """Converts a timestamp to the time of the data; returns numbers unchanged."""
    if isinstance(time, int | float):
        return time
    dates = data.dates
    assert dates is not None
    zeros = dict(zip(data.trajectories, dates.zero, strict=True))
    zero = zeros.get(str(trajectory))
    if zero is None:
        if len(set(dates.zero.tolist())) > 1:
            raise ValueError(f"{where} names no trajectory, but the data's trajectories begin at different times.")
        zero = dates.zero[0]
    try:
        return dates.time_of(time, zero)
    except (TypeError, ValueError):
        raise ValueError(f"{where} needs a timestamp such as 2020-12-31T23:59:00 as its time, got {time!r}.") from None


def with_rows(data: Dataset, events: Sequence[KnownEvent]) -> Dataset:
    """Adds a row at the time of each event."""
    held = data.held_inputs
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
        censored=None if data.censored is None else whole("censored", 0.0).astype(np.int8),
        other_end=None if data.other_end is None else whole("other_end", np.nan),
    )


def with_times(data: Dataset, times: Sequence[Float[np.ndarray, " time"]]) -> Dataset:
    """Adds rows without measurements at further times of each trajectory, before its last row."""
    added = [
        KnownEvent("", index, float(time), "", 1.0, 0.0)
        for index, row_times in enumerate(times)
        for time in np.unique(row_times)
    ]
    wide = with_rows(replace(data, events=None), added)
    if data.events is None:
        return wide
    factor = np.ones((*wide.ts.shape, len(data.events.states)))
    shift = np.zeros_like(factor)
    for index, length in enumerate(data.lengths):
        rows = np.searchsorted(wide.ts[index, : wide.lengths[index]], data.ts[index, :length])
        factor[index, rows], shift[index, rows] = data.events.factor[index, :length], data.events.shift[index, :length]
    return replace(wide, events=Events(data.events.states, factor, shift))


def one_with_rows(
    data: Dataset, index: int, held: Sequence[bool], events: Sequence[KnownEvent]
) -> dict[str, np.ndarray]:
    """Returns the arrays of one trajectory, without padding, with a row at each of its events."""
    length = int(data.lengths[index])
    ts, us = data.ts[index, :length], data.us[index, :length]
    times = np.array([event.time for event in events if event.trajectory == index and event.time < ts[-1]])
    new = np.array([time for time in np.unique(times) if np.abs(ts - time).min() > time_tolerance(ts)])
    before = np.searchsorted(ts, new, side="right") - 1
    order = np.argsort(np.concatenate([ts, new]), kind="stable")

    def merge(old: np.ndarray, added: float | np.ndarray) -> np.ndarray:
        return np.concatenate([old, np.broadcast_to(added, (len(new), *old.shape[1:]))])[order]

    between = [us[before, at] if is_held else np.interp(new, ts, us[:, at]) for at, is_held in enumerate(held)]
    parts = {
        "ts": np.concatenate([ts, new])[order],
        "ys": merge(data.ys[index, :length], np.nan),
        "us": merge(us, np.stack(between, axis=1) if between else np.zeros((len(new), 0))),
        "scored": merge(data.scored[index, :length].astype(float), 1.0),
    }
    if data.sigma is not None:
        parts["sigma"] = merge(data.sigma[index, :length], 1.0)
    if data.censored is not None:
        parts["censored"] = merge(data.censored[index, :length].astype(float), 0.0)
    if data.other_end is not None:
        parts["other_end"] = merge(data.other_end[index, :length], np.nan)
    return parts


def time_tolerance(ts: Float[np.ndarray, " time"]) -> float:
    return CLOSE * float(ts[-1] - ts[0])


def with_jumps(data: Dataset, events: Sequence[KnownEvent]) -> Dataset:
    """Adds the jumps of events, which all have a row in the data."""
    states = tuple(dict.fromkeys(event.state for event in events))
    factor = np.ones((*data.ts.shape, len(states)))
    shift = np.zeros_like(factor)
    for event in events:
        length = int(data.lengths[event.trajectory])
        ts = data.ts[event.trajectory, :length]
        row = int(np.abs(ts - event.time).argmin())
        if abs(ts[row] - event.time) <= time_tolerance(ts):
            index = (event.trajectory, row, states.index(event.state))
            factor[index], shift[index] = event.factor * factor[index], event.factor * shift[index] + event.shift
    return replace(data, events=Events(states, factor, shift))
