"""The data of a run: read from files, with optional noise, and split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from .dataset import Dataset
from .dates import SECONDS
from .event_rows import check_trajectories_of, of_trajectories, read_events, with_events
from .noise import ESTIMATE, Sigma, sigma_columns, with_columns, with_sigma
from .scaling import Scaling
from .splits import Split, Splits, count_trajectories
from .tables.layout import CovariateNumbers, Roles, as_numbers, check_trajectories, with_covariates
from .tables.reading import MOST_BYTES, make_roles, read_files


@dataclass(frozen=True)
class Table:
    """Trajectories in files, with one row per time by default; `read_table` describes the layouts.

    **Arguments:**

    - `path`: a file, a list of files, or a glob.
    - `time`, `states`, `inputs`: names of columns; `inputs` may be empty.
    - `step`: time between two rows, in place of `time`.
    - `covariates`: inputs that are constant within a trajectory: names of columns, or numbers by name and trajectory,
      where `default` applies to all others.
    - `trajectory`: the column that identifies the trajectory; without one, each file is a trajectory.
    - `series`: patterns of the trajectory columns, in a table with one column per trajectory.
    - `observable`, `value`: columns of a table with one row per measurement.
    - `test_path`: files for the final score only; `path` then provides no test data.
    - `time_unit`: unit to convert timestamps to: `s`, `min`, `h` or `d`; chosen by their spacing if null.
    - `day_first`: whether 01.03.2024 is a day in March (or in January).
    - `units`: unit of a column, by name.
    - `log`: positive states and inputs to see on a logarithmic scale.
    - `bounds`: lower and upper bounds of states and inputs, by name; null for no bound.
    - `angles`: states that are angles, in `angle_unit` (`rad` or `deg`); see `Scaling`.
    - `scale`: whether to scale states, inputs and time to order one for the field.
    - `noise`: Gaussian noise to add to the states, relative to each state's standard deviation, for trials.
    - `noise_seed`: seed of that noise.
    - `split`: how to split the data.
    - `sigma`: standard deviation of the measurements, as in `read_table`.
    - `events`: doses, resets and switches: a file with the columns of the time, of the trajectory (if there are
      several), `state`, and `add`, `set` or `multiply`; or a list of such rows, as in `with_events`.
    - `max_bytes`: memory that one file may take once it is unpacked, where text counts fourfold [bytes].

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
    units: dict[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()
    bounds: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    angles: Sequence[str] = ()
    angle_unit: Literal["rad", "deg"] = "rad"
    scale: bool = True
    noise: float = 0.0
    noise_seed: int = 0
    split: Split = field(default_factory=Split)
    sigma: Sigma = ESTIMATE
    events: str | Sequence[Mapping[str, object]] | None = None
    max_bytes: float = MOST_BYTES

    def __post_init__(self):
        if not self.noise >= 0:
            raise ValueError(f"noise must not be negative, got {self.noise}.")
        _ = (
            self.roles,
            self.covariate_numbers,
            self.sigma_columns,
            self.scaling,
        )  # raise here if they contradict each other, before any file is read

    @property
    def roles(self) -> Roles:
        """The role of each column."""
        return make_roles(
            time=self.time,
            states=with_columns(self.states, self.sigma_columns),
            inputs=self.inputs,
            covariates=self.covariates or (),
            trajectory=self.trajectory,
            series=self.series,
            observable=self.observable,
            value=self.value,
            step=self.step,
        )

    @property
    def sigma_columns(self) -> tuple[str, ...]:
        """The columns of standard deviations."""
        return sigma_columns(self.sigma, self.states, by_row=not self.series and self.observable is None)

    @property
    def scaling(self) -> Scaling:
        """How states, inputs and time are scaled."""
        return Scaling(self.log, self.bounds, self.scale, self.angles, self.angle_unit)

    @property
    def covariate_numbers(self) -> dict[str, dict[str, float]]:
        """The covariates given as numbers, by name and trajectory."""
        return as_numbers(self.covariates or ())

    def load(self) -> Splits:
        """Reads and splits the data."""
        return self.load_and_tell()[0]

    def load_and_tell(self) -> tuple[Splits, list[str]]:
        """`load`, and sentences on what was chosen: the unit of timestamps, and how the data are split."""
        data = self.read(self.path)
        check_rows(data)
        unit = None if data.dates is None else data.dates.unit
        test = None if self.test_path is None else self.read(self.test_path, unit)
        names = (*data.trajectories, *(test.trajectories if test else ()))
        check_trajectories(self.covariate_numbers, names)
        check_trajectories_of(self.event_rows, names)
        data = add_noise(data, self.noise, self.noise_seed)
        split = self.split if test is None else replace(self.split, test=0.0, test_from=None, test_trajectories=None)
        parts = split(data) if test is None else split(data)._replace(test=test)
        notes = [] if data.dates is None else [data.dates.told(data.time, chosen=self.time_unit is None)]
        notes += [] if data.events is None else [data.events.told]
        return parts, [*notes, f"split: {split.how(data).reason}: {count_trajectories(parts)}"]

    def read(self, path: str | Sequence[str], unit: str | None = None) -> Dataset:
        """Reads other files with the same columns; `covariates` may name trajectories that they do not contain.

        **Arguments:** `unit`: of times that are timestamps, if `time_unit` says nothing.
        """
        data = read_files(path, self.roles, self.time_unit, self.units, self.day_first, self.max_bytes)
        data = data if data.dates is None or unit is None else counted_in(data, self.time_unit or unit)
        data = with_sigma(data, self.sigma, self.states)
        data = with_covariates(data, self.covariate_numbers, self.units)
        if self.events is not None:
            data = with_events(data, of_trajectories(self.event_rows, data.trajectories))
        return self.scaling.marked(data)

    @property
    def event_rows(self) -> list[dict[str, object]]:
        """The events as they are written."""
        return read_events(self.events, self.trajectory, self.max_bytes)


def check_rows(data: Dataset) -> None:
    """Refuses data without two rows that follow one another.

    **Raises:** `ValueError` that says what to do.
    """
    if data.lengths.max() < 2:
        count = len(data.trajectories)
        what = "the data have one row" if count == 1 else f"each of the {count} trajectories has one row"
        fix = "add rows" if count == 1 else "name the column that tells trajectories apart, or none"
        raise ValueError(f"{what}, and a fit needs rows that follow one another in a trajectory; {fix}.")


def counted_in(data: Dataset, unit: str) -> Dataset:
    """Data whose times come from timestamps, with times in another unit."""
    assert data.dates is not None
    factor = SECONDS[data.dates.unit] / SECONDS[unit]
    return replace(
        data,
        ts=data.ts if factor == 1 else data.ts * factor,
        dates=data.dates._replace(unit=unit),
        units={**data.units, data.time: unit},
    )


def add_noise(data: Dataset, noise: float, seed: int) -> Dataset:
    """Adds Gaussian noise to the states, relative to each state's standard deviation."""
    if noise == 0:
        return data
    draws = np.random.default_rng(seed).standard_normal(data.ys.shape)
    return replace(data, ys=data.ys + noise * np.nanstd(data.ys, axis=(0, 1)) * draws)
