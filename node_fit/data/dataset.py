"""Datasets: trajectories read from tables, and their split into training, validation and held-out test data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from ..runtime.placement import ArrayLike
from ..runtime.validation import check_argument, check_choice, nearest_choice, says_where
from .gaps import cut_at_gaps
from .tables.assembly import Assembled, assemble
from .tables.layout import (
    CovariateNumbers,
    Roles,
    as_names,
    as_numbers,
    as_rows,
    check_trajectories,
    with_covariates,
)
from .tables.marks import table_of_columns
from .tables.netcdf import table_of_dataset
from .tables.options import ReadingOptions
from .tables.reading import (
    ESTIMATE,
    MOST_BYTES,
    Sigma,
    make_roles,
    read_files,
    sigma_columns,
    with_columns,
    with_limits,
    with_sigma,
)
from .tables.table import RawTable, hint, list_names
from .tables.times import DATE, check_unit
from .trajectories import Cut, Trajectories

if TYPE_CHECKING:
    import pandas
    import xarray

# User-supplied channel values: by name, or as an array with a channel axis; None for no channels.
GivenStates = ArrayLike | Mapping[str, ArrayLike] | None


def place_of_scaling(name: str) -> str | None:
    """Returns where a `data` key of the command line that scales a model belongs in Python; None for other names."""
    if name in ("angles", "log", "bounds"):
        return f"it is part of a fit: pass options=node_fit.Options(scaling=node_fit.Scaling({name}=...)) to fit"
    return None


@dataclass(frozen=True, eq=False)
class Dataset(Trajectories):
    """Trajectories of measured states and inputs, in the user's units.

    A trajectory is one record of the system over time. Trajectories can differ in length and in times. They are padded
    at the end to a common length: a padded row repeats the last time and the last input, and its states are NaN.
    Missing measurements are NaN too.

    **Arguments:**

    - `ts`: times, shape `(trajectory, time)`, float64, strictly increasing up to each trajectory's length.
    - `ys`: measured states, shape `(trajectory, time, state)`, float64, NaN where a measurement is missing.
    - `us`: inputs, shape `(trajectory, time, input)`, float64, finite; `input` may be 0.
    - `lengths`: number of rows of each trajectory, shape `(trajectory,)`.
    - `scored`: rows that count in losses and metrics, shape `(trajectory, time)`. All other rows are context: they
      determine the initial state and the past inputs.
    - `states`, `inputs`, `trajectories`, `time`: names of the channels, the trajectories and the time.
    - `units`: units of channels, by name; can be empty.
    - `angles`: states that are angles, each with its turn (2π for radians). Measurements can be modulo a turn. The
      dataset stores them unwrapped: the first value of a trajectory is within half a turn of zero, and every other
      value within half a turn of the previous one.
    - `dates`: the instants at which times are zero, if times were timestamps.
    - `sigma`: standard deviation of each measurement, shape of `ys`; None if unknown. For a state with bounds or on a
      logarithmic scale, it is the standard deviation of its logarithm, or of its map to the real line.
    - `events`: doses, resets and switches, at which states jump; None without events. See `with_events`.
    - `notes`: properties of the table that were detected during reading. Each sentence names the option that overrides
      the detection.
    - `censored`: -1 if the true value is below `ys`, 1 if it is above, else 0; None if all values are exact.
    - `noise`: formulas of the standard deviation, by state, in place of `sigma`.
    - `levels`: words of covariates that were text, by name; such a covariate is the position of its word.
    - `other_end`: other end of the interval that contains a censored value, shape of `ys`, NaN for values without one;
      None if no value has one.

    **Raises:** `ValueError` that names the trajectory and the row.
    """

    @classmethod
    @says_where(place_of_scaling)
    def from_file(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        time: str | None = None,
        states: Sequence[str],
        inputs: Sequence[str] = (),
        covariates: Sequence[str] | CovariateNumbers = (),
        trajectory: str | None = None,
        series: Sequence[str] = (),
        observable: str | None = None,
        value: str | None = None,
        step: float | None = None,
        time_unit: str | None = None,
        day_first: bool | None = None,
        units: dict[str, str] | None = None,
        sigma: Sigma = ESTIMATE,
        censored: bool = False,
        max_bytes: float = MOST_BYTES,
        time_of_day: str | None = None,
        occasion: str | None = None,
        header: int | None = None,
        first_row: int | None = None,
        decimal: str | None = None,
        missing: Sequence[str | float | int] | None = None,
        sheet: str | None = None,
        time_format: str | None = None,
        input_gaps: str | Mapping[str, str] = "auto",
        repeats: str = "auto",
        row_order: str = "auto",
        input_interval: str | Mapping[str, str] = "after",
        levels: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> "Dataset":
        """Reads trajectories from files; by default a table has one row per time.

        Supported formats are text (commas, semicolons, tabs or blanks between columns, decimal points or commas, `#`
        comments, `.gz` compression), JSON lines, Excel sheets (`.xlsx`), Parquet, Feather, HDF5, NetCDF, `.npz` and
        `.mat` (one variable per column), and `.npy` (named fields, or `c0, c1, ...` for the columns of a matrix). An
        empty state is a missing measurement, and so are common words such as `NA`, `NaN`, `null` or `-`; any other word
        is an error. The layout of a table is detected: lines before the column names, rows of units below them, decimal
        commas, thousands separators, dates and times of day. The dataset lists these detections in `notes`.

        Arrays can be stacked: `(trajectory, time)` in `.npz` and `.mat`, with times `(time,)` shared by all
        trajectories; `(trajectory, time, column)` in `.npy`, with columns `c0, c1, ...`, or `NAME0, NAME1, ...` for a
        variable `NAME`.

        **Arguments:**

        - `path`: a file, a list of files, a glob, or a folder of tables. Without `trajectory`, each file is one
          trajectory, named after the file. Trajectories in stacks are named `0, 1, ...`, or `FILE/0` if there are
          several files.
        - `time`: column of times, as numbers or ISO 8601 timestamps. They must increase strictly within a trajectory.
        - `states`, `inputs`: numeric columns; inputs must be known at every time.
        - `covariates`: inputs that are constant within a trajectory, appended to `inputs`: either columns, whose empty
          cells take the value of other rows, or numbers by name and trajectory, `{"dose": {"A": 2.0, "default": 0.0}}`.
        - `trajectory`: column that identifies the trajectory; rows of different trajectories can be mixed.
        - `series`: patterns of columns, such as `["A*"]`, in a wide table with one column per trajectory. `states` then
          names the quantity in these columns, and all other columns apply to every trajectory.
        - `observable`, `value`: columns of the observable's name and its value in a tidy table, with one row per
          measurement. `states` are then names of observables, and so are `inputs` that are not columns. Rows of other
          observables are ignored.
        - `step`: time between two rows, in place of `time`; each trajectory begins at 0.
        - `time_unit`: unit to convert timestamps to, `s`, `min`, `h` or `d`, counted from the first time of the table.
          None selects the largest unit that is not longer than the time between two rows. Without `trajectory`, each
          file is a separate table.
        - `day_first`: whether 01.03.2024 is a day in March (or in January). None rejects such dates.
        - `units`: unit of a column, by name; only recorded, nothing is converted.
        - `sigma`: standard deviation of the measurements [unit of the state]: a number, or for each state a number, the
          name of a column, or `{"relative": 0.05, "absolute": 0.1}` for a part proportional to the measured value plus
          a constant part. Residuals are weighted by its inverse. `estimate` if unknown; all residuals in scaled units
          then have the same standard deviation. For a state on a logarithmic scale or with bounds, it is the standard
          deviation of its logarithm, or of its map to the real line: 0.1 is then a tenth of the value. If it is a
          formula, the constants of its noise are fitted; it is a name (`additive`, `proportional`, `combined`, `power`,
          `lognormal`) or text such as `{"y": "s0 + s1*y"}`, in which `y` is the predicted value.
        - `censored`: whether states can be limits, such as `<0.5` or `>100`, beyond which the values lie, or intervals
          such as `0.2..0.5`, within which they lie.
        - `max_bytes`: memory that one file can take once it is unpacked, where text counts fourfold [bytes].
        - `time_of_day`: column of times of day, if the `time` column holds only dates.
        - `occasion`: column that separates the records of one subject; `trajectory` names the subject. The records
          become trajectories with names such as `SUBJECT/OCCASION`.
        - `header`, `first_row`: the lines of a text file (rows of a spreadsheet) that name the columns, and that hold
          the first values; counted from 1.
        - `decimal`: the decimal mark, a point or a comma; the other one then groups thousands.
        - `missing`: words or numbers, such as `-999`, that stand for a missing value, in place of the common words.
        - `sheet`: the sheet of a spreadsheet, the group of an HDF5 or NetCDF file, or the struct of a MATLAB file.
        - `time_format`: `number`, `timestamp`, `hh:mm:ss`, `hh:mm`, `mm:ss`, or `unix_s`, `unix_ms`, `unix_us`,
          `unix_ns` for times since 1970.
        - `input_gaps`: how to fill rows without a value of an input: `linear`, `hold`, or `none` to reject such rows;
          or one of these for each input, by name. `auto` holds inputs with few levels and inputs that rarely change.
        - `repeats`: treatment of several rows of a trajectory at one time: their `mean`, or `none` to reject them.
          `auto` takes the mean if at least half of the times repeat. `sigma` applies to one measurement; a mean has a
          smaller one.
        - `row_order`: `written`, or `sorted` by time within each trajectory. `auto` reverses rows in descending order,
          and begins a new trajectory where the time begins again, if no column names trajectories.
        - `input_interval`: the interval for which a row gives the value of an input: `after` the row, or `before` it,
          as loggers give means of the time since the row before; or one of these for each input, by name.
        - `levels`: words of covariates that are text, by name, such as `{"strain": ["wild", "mutant"]}`; a covariate is
          the position of its word, from 0.

        **Returns:** the dataset, with trajectories in order of appearance.

        **Raises:** `FileNotFoundError`, or `ValueError` with one sentence that names the file, the column, and the line
        (the row in files without lines).
        """
        columns = sigma_columns(sigma, states, by_row=observable is None, is_wide=bool(series))
        measured = with_columns(states, columns)
        roles = make_roles(
            time,
            measured,
            inputs,
            covariates,
            trajectory,
            series,
            observable,
            value,
            step,
            columns,
            time_of_day,
            occasion,
        )
        constants = as_numbers(covariates)
        options = ReadingOptions(
            header,
            first_row,
            decimal,
            missing,
            sheet,
            time_format,
            input_gaps,
            repeats,
            row_order,
            input_interval,
            levels,
        )
        assembled = read_files(
            cls, path, roles, time_unit, units or {}, day_first, max_bytes, options=options, censored=censored
        )
        check_trajectories(constants, assembled.data.trajectories)
        return with_covariates(with_sigma(assembled, sigma, states), constants, units or {})

    @classmethod
    @says_where(place_of_scaling)
    def from_frame(
        cls,
        frame: "pandas.DataFrame",
        *,
        time: str | None = None,
        states: Sequence[str],
        inputs: Sequence[str] = (),
        covariates: Sequence[str] | CovariateNumbers = (),
        trajectory: str | None = None,
        series: Sequence[str] = (),
        observable: str | None = None,
        value: str | None = None,
        step: float | None = None,
        time_unit: str | None = None,
        day_first: bool | None = None,
        units: dict[str, str] | None = None,
        sigma: Sigma = ESTIMATE,
        censored: bool = False,
        time_of_day: str | None = None,
        occasion: str | None = None,
        decimal: str | None = None,
        missing: Sequence[str | float | int] | None = None,
        time_format: str | None = None,
        input_gaps: str | Mapping[str, str] = "auto",
        repeats: str = "auto",
        row_order: str = "auto",
        input_interval: str | Mapping[str, str] = "after",
        levels: Mapping[str, Sequence[str]] = MappingProxyType({}),
        origin: str = "data frame",
    ) -> "Dataset":
        """Takes trajectories from a `pandas.DataFrame`; by default it has one row per time.

        **Arguments:** `frame`: the data frame; `origin`: its name in error messages; the others as in `from_file`.

        **Returns:** the dataset; if nothing separates trajectories, it has a single one named `0`.

        **Raises:** `ValueError` with one sentence that names the row and the column.
        """
        if not hasattr(frame, "iloc"):
            raise ValueError(
                f"frame must be a pandas.DataFrame, got a {type(frame).__name__}; read files with node_fit.read_table, "
                "and pass frame.to_pandas() for frames of other libraries."
            )
        columns = sigma_columns(sigma, states, by_row=observable is None, is_wide=bool(series))
        measured = with_columns(states, columns)
        roles = make_roles(
            time,
            measured,
            inputs,
            covariates,
            trajectory,
            series,
            observable,
            value,
            step,
            columns,
            time_of_day,
            occasion,
        )
        constants = as_numbers(covariates)
        check_unit(time_unit, roles.time is not None)
        if frame.columns.nlevels > 1:
            raise ValueError(
                f"{origin} has columns of {frame.columns.nlevels} levels; join their names first: frame.columns = "
                "['_'.join(map(str, name)) for name in frame.columns]."
            )
        names = [str(name) for name in frame.columns]
        in_index = [name for name in roles.required_columns if name in frame.index.names and name not in names]
        if in_index:
            raise ValueError(f"{origin} has {in_index[0]!r} in its index, not as a column; pass frame.reset_index().")
        selected = {name: frame.iloc[:, i].reset_index(drop=True) for name, i in roles.find(names, origin).items()}
        options = ReadingOptions(
            decimal=decimal,
            missing=missing,
            time_format=time_format,
            input_gaps=input_gaps,
            repeats=repeats,
            row_order=row_order,
            input_interval=input_interval,
            levels=levels,
        )
        table = table_of_columns(selected, roles, options, origin)

        def arrange(tables: Sequence[RawTable], roles: Roles) -> Assembled[Dataset]:
            return assemble(
                cls, as_rows(tables, roles), ["0"], roles, time_unit, units or {}, day_first, options=options
            )

        assembled = with_limits([table], roles, arrange, censored=censored)
        check_trajectories(constants, assembled.data.trajectories)
        return with_covariates(with_sigma(assembled, sigma, states), constants, units or {})

    @classmethod
    def from_xarray(
        cls,
        dataset: "xarray.Dataset",
        *,
        time: str | None = None,
        states: Sequence[str],
        inputs: Sequence[str] = (),
        covariates: Sequence[str] | CovariateNumbers = (),
        trajectory: str | None = None,
        step: float | None = None,
        time_unit: str | None = None,
        units: dict[str, str] | None = None,
        sigma: Sigma = ESTIMATE,
        time_format: str | None = None,
        input_gaps: str | Mapping[str, str] = "auto",
        repeats: str = "auto",
        input_interval: str | Mapping[str, str] = "after",
        levels: Mapping[str, Sequence[str]] = MappingProxyType({}),
        origin: str = "dataset",
    ) -> "Dataset":
        """Takes trajectories from an `xarray.Dataset` (the extra `netcdf`).

        Variables have the time dimension, or the time dimension and another one whose values name the trajectories.
        Variables without the other dimension apply to all trajectories. Attributes `units` are read as units.

        **Arguments:** `dataset`: variables and coordinates; `origin`: its name in messages; the others as in
        `from_file`.

        **Returns:** the dataset of node_fit.

        **Raises:** `ValueError` with one sentence that names the variable.
        """
        if not hasattr(dataset, "data_vars"):
            raise ValueError(
                f"dataset must be an xarray.Dataset, got a {type(dataset).__name__}; see its to_dataset()."
            )
        columns = sigma_columns(sigma, states)
        measured = with_columns(states, columns)
        roles = make_roles(time, measured, inputs, covariates, trajectory, (), None, None, step, columns)
        constants = as_numbers(covariates)
        check_unit(time_unit, roles.time is not None)
        table = table_of_dataset(dataset, roles, origin)
        options = ReadingOptions(
            time_format=time_format,
            input_gaps=input_gaps,
            repeats=repeats,
            input_interval=input_interval,
            levels=levels,
        )
        assembled = assemble(cls, [table], ["0"], roles, time_unit, units or {}, options=options)
        check_trajectories(constants, assembled.data.trajectories)
        return with_covariates(with_sigma(assembled, sigma, states), constants, units or {})

    def split(self, **words: Any) -> "Splits":
        """Splits the data into training, validation and test data.

        ```python
        train, validation, test = data.split(validation=0.25, test=0.25)
        ```

        **Arguments:** `words`: arguments of `Split`.
        """
        return Split(**words)(self)


By = Literal["auto", "trajectory", "time"]
# With fewer trajectories than this, holding out whole ones leaves too little training data.
FEW_TRAJECTORIES = 5
# Default fraction of the data in each held-out part.
HELD_OUT = 0.2


class How(NamedTuple):
    """How data are split (`own`: every trajectory at a fraction of its own time span), and the `reason`."""

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

    def cut_at_gaps(self) -> "Splits":
        """Cuts the parts where rows are missing and a held input changes at an unknown time."""
        held = [part and cut_at_gaps(part) for part in (self.validation, self.test)]
        return Splits(cut_at_gaps(self.train), *held)

    def windows(self, rows: int | None) -> "Splits":
        """Cuts the parts into consecutive windows of `rows` rows; changes nothing if `rows` is `None`."""
        if rows is None:
            return self
        held = [part and part.windows(rows, rows) for part in (self.validation, self.test)]
        return Splits(self.train.windows(rows, rows), *held)


@says_where()
@dataclass(frozen=True)
class Split:
    """How to split a dataset into training, validation and test data.

    By trajectory, whole trajectories are drawn for validation and test. By time, each record is fitted up to a time,
    and the later rows are a forecast from the start of the record.

    **Arguments:**

    - `by`: `trajectory`, `time`, or `auto`: by trajectory with at least five trajectories, else by time. In the latter
      case, trajectories that share no time are each cut at the same fraction of their own time span.
    - `validation`, `test`: fractions of the trajectories, or of the time span, with the test part at its end and the
      validation part before it; 0 for none. `auto` is 0.2; a command with equations alone holds no data out.
    - `validation_from`, `test_from`: first time of that part [unit of time], or its date, in place of a fraction.
    - `validation_trajectories`, `test_trajectories`: names of that part's trajectories, in place of a fraction.
    - `restart`: for a split by time, whether validation and test parts are separate records, simulated from their own
      first rows, instead of forecasts from the start of the whole record.
    - `seed`: seed of the random choice of trajectories.
    - `gaps`: whether to `cut` each part of a single record where rows are missing and a held input changes at an
      unknown time, or to `bridge` such a gap with the input's last value.

    **Raises:** `ValueError` if a number is out of range or no training data are left.
    """

    by: By = "auto"
    validation: float | Literal["auto"] = "auto"
    test: float | Literal["auto"] = "auto"
    validation_from: float | str | None = None
    test_from: float | str | None = None
    validation_trajectories: Sequence[str | int] | None = None
    test_trajectories: Sequence[str | int] | None = None
    restart: bool = False
    seed: int = 0
    gaps: str = "cut"

    def __post_init__(self):
        check_choice("gaps", self.gaps, ("cut", "bridge"))
        if self.by not in ("auto", "trajectory", "time"):
            raise ValueError(f"by must be auto, trajectory or time, got {self.by!r}.")
        share, cut = float | Literal["auto"], float | str | None
        numbers = {"validation": share, "test": share, "validation_from": cut, "test_from": cut}
        for key, kind in {**numbers, "restart": bool, "seed": int}.items():
            check_argument(key, getattr(self, key), kind)
        for key in ("validation", "test"):
            if not 0 <= self.share(key) < 1:
                raise ValueError(f"{key} must be a fraction from 0 to below 1, got {getattr(self, key)}.")
        if self.share("validation") + self.share("test") >= 1:
            raise ValueError(
                f"validation and test leave nothing to fit: {self.share('validation')} + {self.share('test')} must be "
                "below 1."
            )
        if self.by == "trajectory" and self.is_by_time:
            raise ValueError("validation_from and test_from are times; they need by=time.")
        if self.is_by_name and (self.is_by_time or self.by == "time"):
            raise ValueError("validation_trajectories and test_trajectories need by=trajectory and no times.")
        for key in ("validation_trajectories", "test_trajectories"):
            as_names(getattr(self, key) or (), key)
        if self.restart and (self.is_by_name or self.by == "trajectory"):
            raise ValueError("restart is for by=time; by trajectory, every part is simulated from its beginning.")

    @property
    def is_by_time(self) -> bool:
        """Whether a part is defined by its first time."""
        return self.validation_from is not None or self.test_from is not None

    @property
    def is_by_name(self) -> bool:
        """Whether a part is defined by the names of its trajectories."""
        return self.validation_trajectories is not None or self.test_trajectories is not None

    def share(self, part: str, automatic: float = HELD_OUT) -> float:
        """Returns the fraction of the part `validation` or `test`; `automatic` in place of `auto`."""
        fraction = {"validation": self.validation, "test": self.test}[part]
        return automatic if isinstance(fraction, str) else fraction

    def with_shares(self, automatic: float) -> "Split":
        """Returns the split with `automatic` in place of each `auto`."""
        return replace(self, validation=self.share("validation", automatic), test=self.share("test", automatic))

    def __call__(self, data: Dataset) -> Splits:
        """Splits `data`."""
        split = {"trajectory": self.by_trajectory, "time": self.by_time, "own": self.by_own_time}
        parts = split[self.how(data).by](data)
        return parts if self.gaps == "bridge" else parts.cut_at_gaps()

    def how(self, data: Dataset) -> How:
        """Returns how `data` are split, and why."""
        count = len(data.trajectories)
        if self.by != "auto":
            return How(self.by, f"by {self.by}, as split.by says")
        if self.is_by_name:
            return How("trajectory", "by trajectory, since trajectories are named")
        if self.is_by_time:
            return How("time", "by time, since times are given")
        if count >= FEW_TRAJECTORIES:
            return How("trajectory", f"by trajectory, since there are {count}")
        count_text = "there is 1 trajectory" if count == 1 else f"there are {count} trajectories"
        if count > 1 and data.ts[:, 0].max() > data.ts.max(axis=1).min():
            return How("own", f"each trajectory by its own time, since {count_text} without a common time")
        return How("time", f"by time, since {count_text}")

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
            size = round(self.share("test") * count)
            test, free = free[:size], free[size:]
        if validation is None:
            size = round(self.share("validation") * count)
            validation, free = free[:size], free[size:]
        if not free:
            raise ValueError(
                f"{count} trajectories can't be divided into {len(validation)} for validation, {len(test)} for test "
                "and at least one to fit; take fewer, or use by=time."
            )

        def part(rows: Sequence[int]) -> Dataset | None:
            return data.select(sorted(rows)) if rows else None

        return Splits(data.select(sorted(free)), part(validation), part(test))

    def by_time(self, data: Dataset) -> Splits:
        start, end = float(data.ts.min()), float(data.ts.max())
        validation, test = self.share("validation"), self.share("test")
        # Cuts lie between rows: a part includes its first time, and a part of length 0 is None.
        test_given, validation_given = (
            read_cut(data, getattr(self, key), key) for key in ("test_from", "validation_from")
        )
        test_from = test_given if test_given is not None else end - test * (end - start)
        before_test = keep_before(data, test_from) if test_given is not None or test else end
        validation_from = validation_given if validation_given is not None else test_from - validation * (end - start)
        if validation_given is not None and validation_from > test_from:
            raise ValueError(
                f"validation_from {validation_from:g} is later than the test part, which begins at {test_from:g}."
            )
        fitted = keep_before(data, validation_from) if validation_given is not None or validation else before_test
        return self.cut_at(data, fitted, before_test, end)

    def by_own_time(self, data: Dataset) -> Splits:
        begin, end = data.ts[:, 0], data.ts.max(axis=1)
        validation, test = self.share("validation"), self.share("test")
        span = end - begin
        before_test = last_before(data, end - test * span) if test else end
        held = test + validation
        fitted = last_before(data, end - held * span) if validation else before_test
        return self.cut_at(data, fitted, before_test, end)

    def cut_at(self, data: Dataset, fitted: Cut, rest: Cut, end: Cut) -> Splits:
        """Cuts the data at the times `fitted`, `rest` and `end`, common to all trajectories or one per trajectory."""
        later = Dataset.after if self.restart else Dataset.score_after
        validation = later(data.until(rest), fitted) if np.any(fitted < rest) else None
        test = later(data, rest) if np.any(rest < end) else None
        return Splits(data.until(fitted), validation, test)


def read_cut(data: Dataset, given: float | str | None, key: str) -> float | None:
    """Returns the time of a part's first row [unit of time], which may be given as a date.

    **Raises:** `ValueError` that names the key if a text is no date of the data.
    """
    if not isinstance(given, str):
        return given
    if data.dates is None:
        raise ValueError(
            f"{key}={given} is a text, but the times {data.time!r} are numbers without dates; give a number."
        )
    if len(set(data.dates.zero.tolist())) > 1:
        raise ValueError(f"{key}={given} is a date, but the trajectories count from different ones; give a number.")
    try:
        if DATE.match(given) is not None:  # Pandas reads words such as "sept", too.
            return data.dates.time_of(given, data.dates.zero[0])
    except ValueError:
        pass
    raise ValueError(f"{key} must be a time or a date such as 2020-12-31, got {given!r}.")


def find_trajectories(data: Dataset, names: Sequence[str | int] | None, key: str) -> list[int] | None:
    """Returns the indices of the trajectories with these names; `None` if `names` is `None`.

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
    """Returns each trajectory's last measured time before `times`; its first time if no measurement is earlier."""
    earlier = np.where(data.valid & (data.ts < times[:, None]), data.ts, -np.inf)
    return np.maximum(earlier.max(axis=1), data.ts[:, 0])


def count_trajectories(parts: Splits) -> str:
    """Describes each part by its numbers of scored rows and of trajectories."""
    texts: list[str] = []
    for name, part in parts.named().items():
        count = np.flatnonzero(part.scored.any(axis=1)).size
        rows, noun = int(part.scored.sum()), "trajectory" if count == 1 else "trajectories"
        texts.append(f"{name} {rows} {'row' if rows == 1 else 'rows'} of {count} {noun}")
    missing = [name for name, part in parts._asdict().items() if part is None]
    return ", ".join(texts) + (f"; no {' and no '.join(missing)} data" if missing else "")


def keep_before(data: Dataset, time: float) -> float:
    """Returns the last measured time before `time`.

    **Raises:** `ValueError` if no row is earlier.
    """
    earlier = data.ts[data.valid & (data.ts < time)]
    if earlier.size == 0:
        raise ValueError(f"no row is earlier than {data.time} = {time:g}, so nothing is left to fit; cut later.")
    return float(earlier.max())


def check_data(data: object, name: str) -> None:
    """Rejects objects that are not datasets.

    **Raises:** `ValueError` with instructions to make one.
    """
    if not isinstance(data, Dataset):
        raise ValueError(
            f"{name} must be a node_fit.Dataset, got a {type(data).__name__}; make one with "
            "node_fit.from_frame(frame, time=..., states=[...]) or node_fit.Dataset.from_arrays(ts, ys)."
        )


def from_initial_values(
    y0: GivenStates, ts: ArrayLike | None, u: GivenStates, states: Sequence[str], inputs: Sequence[str], time: str
) -> Dataset:
    """Builds trajectories with known first rows, times and inputs.

    **Arguments:**

    - `y0`: states at the first time, shape `(state,)` or `(trajectory, state)`; or by name, numbers or arrays of shape
      `(trajectory,)`; a number for a single state.
    - `ts`: times, shape `(time,)` or `(trajectory, time)`.
    - `u`: inputs at `ts`, shape `(time, input)` or `(trajectory, time, input)`; or by name, numbers or arrays without
      the last axis; `(time,)` for a single input. None without inputs.
    - `states`, `inputs`, `time`: names.

    **Raises:** `ValueError` that names the missing argument.
    """
    if y0 is None or ts is None:
        raise ValueError("predict needs data, or y0 and ts: the channels at the first time, and the times.")
    if inputs and u is None:
        raise ValueError(f"the model has the inputs {list(inputs)}; give u, with a row for each of ts.")
    starts, times = np.atleast_2d(stack_values(y0, "y0", states)), np.atleast_2d(np.asarray(ts, float))
    if starts.shape[1] != len(states):
        several = f"; for {starts.size} trajectories pass shape ({starts.size}, 1)" if len(states) == 1 else ""
        noun = "number" if len(states) == 1 else "numbers"
        raise ValueError(f"y0 must have {len(states)} {noun} ({', '.join(states)}), got {starts.shape[1]}{several}.")
    times = np.broadcast_to(times, (len(starts), times.shape[1]))
    ys = np.full((*times.shape, len(states)), np.nan)
    ys[:, 0] = starts
    if u is not None:
        shape = times.shape[1:] if np.ndim(ts) == 1 else times.shape
        u = stack_values(u, "u", inputs, shape)
        u = u[:, None] if u.shape == times.shape[1:] and len(inputs) == 1 else u
        u = np.broadcast_to(u, (len(starts), *u.shape)) if u.ndim == 2 else u
    return Dataset.from_arrays(list(times), ys, u, states=states, inputs=inputs or None, time=time)


def is_single(y0: GivenStates) -> bool:
    """Whether `y0` is the initial state of a single trajectory, without a trajectory axis."""
    return (
        all(np.ndim(value) == 0 for value in y0.values()) if isinstance(y0, Mapping) else y0 is None or np.ndim(y0) < 2
    )


def stack_values(given: GivenStates, what: str, names: Sequence[str], shape: tuple[int, ...] = ()) -> np.ndarray:
    """Stacks values along a last axis in the order of `names`; from one array or from values by name.

    **Arguments:** `shape`: shape to which the values are broadcast at least.

    **Raises:** `ValueError` if a name is missing or unknown.
    """
    if not isinstance(given, Mapping):
        return np.asarray(given, float)
    if not names:
        raise ValueError(
            f"{what} has {', '.join(map(str, given)) or 'no names'}, and the model has no inputs; leave it out."
        )
    for name in given:
        if name not in names:
            raise ValueError(f"{what} has {name!r}; its names are {', '.join(names)}{nearest_choice(str(name), names)}")
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"{what} lacks {missing[0]!r}; give a value for each of {', '.join(names)}.")
    values = [np.asarray(given[name], float) for name in names]
    return np.stack(
        [np.broadcast_to(value, np.broadcast_shapes(shape, *map(np.shape, values))) for value in values], -1
    )


read_table = Dataset.from_file
"""`Dataset.from_file` by the name that it always had."""
from_frame = Dataset.from_frame
"""`Dataset.from_frame` by the name that it always had."""
from_xarray = Dataset.from_xarray
"""`Dataset.from_xarray` beside the others."""
