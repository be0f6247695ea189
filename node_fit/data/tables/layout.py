"""The layout of a table: the role of each column, and conversion of any layout to one row per time."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from ...runtime.validation import is_mapping
from ..trajectories import Data
from .table import (
    UNKNOWN_FIX,
    RawTable,
    as_numbers_of_column,
    choose_columns,
    describe_missing,
    hint,
    list_names,
    read_names,
)

# A quantity and its number in the name of a column, or in a pattern of such names.
CONDITION = re.compile(
    r"(\w[^=]*?)\s*=\s*([-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?|\*)(?:\s*[^\d\s.,=][^=]*)?"
)


@dataclass(frozen=True)
class Roles:
    """The role of each column, in one of three table layouts.

    By default a table has one row per time. With `series` it is wide: one column per trajectory. With `observable` and
    `value` it is tidy: one row per measurement.

    **Arguments:**

    - `time`: column of times, or `None` if `step` is used.
    - `states`, `inputs`, `covariates`: names of columns. In a tidy table, states, and inputs that are not columns, are
      names in the column `observable`. A wide table has one state, whose name is not a column.
    - `trajectory`: column that identifies the trajectory, or `None`.
    - `series`: patterns of the columns that are trajectories, such as `A*`.
    - `observable`, `value`: columns of the observable's name and its value.
    - `step`: time between two rows of a trajectory that begins at 0, if the table has no column of times.
    - `time_of_day`: column of times of day, if the `time` column holds only dates.
    - `occasion`: column that separates the records of one subject; `trajectory` then names the subject.
    - `deviations`: members of `states` that are standard deviations of the others; in a wide table, a pattern of their
      columns such as `sd*`.

    **Raises:** `ValueError` if no state is named, a column has two roles, or roles contradict each other.
    """

    time: str | None
    states: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    trajectory: str | None = None
    series: tuple[str, ...] = ()
    observable: str | None = None
    value: str | None = None
    step: float | None = None
    deviations: tuple[str, ...] = ()
    time_of_day: str | None = None
    occasion: str | None = None

    def __post_init__(self):
        if not self.states:
            raise ValueError("states is empty; name at least one column to fit, such as states=['x'].")
        self.check_layout()
        single = () if self.trajectory is None else (self.trajectory,)
        for names in ((self.clock, *self.states, *self.inputs, *self.covariates, *single), self.required_columns):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"column {twice[0]!r} is named twice among time, states, inputs, covariates and trajectory; "
                    "a column has one role, so remove one of them."
                )

    def check_layout(self) -> None:
        """Rejects roles that contradict each other."""
        if (self.time is None) == (self.step is None):
            fault = "time is missing" if self.time is None else "time and step are both given"
            raise ValueError(
                f"{fault}; name the column of times, time=NAME (data.time in a command), or, if there is none, give "
                "the time between two rows, step=NUMBER (data.step)."
            )
        if self.occasion is not None and self.trajectory is None:
            raise ValueError(
                "occasion tells the records of a subject apart, and no column names the subjects; give trajectory=NAME "
                "(data.trajectory in a command), or, if there is one subject, trajectory in place of occasion."
            )
        if self.time_of_day is not None and self.time is None:
            raise ValueError("time_of_day needs time: name the column of dates as well.")
        if self.step is not None and not 0 < self.step < math.inf:
            raise ValueError(f"step must be a positive number, the time between two rows, got {self.step}.")
        if self.series and len(self.state_columns) != 1:
            raise ValueError(
                f"series makes each column a trajectory of one state, but states names {len(self.state_columns)}; give "
                "one name for what all of these columns hold."
            )
        if self.series and (self.trajectory is not None or self.observable is not None):
            raise ValueError(
                "series makes each column a trajectory; leave it out, or leave out trajectory, observable and value."
            )
        if (self.observable is None) != (self.value is None):
            raise ValueError("observable and value go together; name the columns of both.")
        if self.observable is not None and self.time is None:
            raise ValueError("observable needs time: with one row per measurement, each row has its own time.")

    @property
    def state_columns(self) -> tuple[str, ...]:
        """States without the columns of their standard deviations."""
        return tuple(name for name in self.states if name not in self.deviations)

    @property
    def clock(self) -> str:
        """Name of the time in the dataset."""
        return "t" if self.time is None else self.time

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that every file must have; columns of `series` are matched in each file."""
        tidy = self.observable is not None
        channels = () if self.series or tidy else self.states
        inputs = () if tidy else self.inputs
        single = (self.time_of_day, self.trajectory, self.occasion, self.observable, self.value)
        covariates = [name for name in self.covariates if name not in self.named_covariates]
        names = (self.time, *channels, *inputs, *covariates, *single)
        return tuple(name for name in names if name is not None)

    @property
    def named_covariates(self) -> tuple[str, ...]:
        """Covariates whose numbers stand in the names of series, such as `S0` in `S0=0.5`."""
        conditions = [condition_in(pattern) for pattern in self.series]
        named = {condition[0] for condition in conditions if condition is not None}
        return tuple(name for name in self.covariates if name in named)

    def find(self, names: Sequence[str], origin: str) -> dict[str, int]:
        """Returns the needed columns of a file, each with its position.

        **Raises:** `ValueError` if a column is missing, or appears twice.
        """
        wanted = [*self.required_columns, *self.match_series(names, origin), *self.matched_deviations(names, origin)]
        if self.observable is not None:
            wanted += [name for name in self.inputs if name in names]
        return dict(zip(wanted, choose_columns(names, wanted, origin), strict=True))

    def rename(self, names: Mapping[str, str]) -> "Roles":
        """Renames the columns of the roles."""

        def every(old: Sequence[str]) -> tuple[str, ...]:
            return tuple(names.get(name, name) for name in old)

        def one(old: str | None) -> str | None:
            return None if old is None else names.get(old, old)

        return replace(
            self,
            time=one(self.time),
            states=every(self.states),
            inputs=every(self.inputs),
            covariates=every(self.covariates),
            trajectory=one(self.trajectory),
            observable=one(self.observable),
            value=one(self.value),
            deviations=every(self.deviations),
            time_of_day=one(self.time_of_day),
            occasion=one(self.occasion),
        )

    def match_series(self, names: Sequence[str], origin: str) -> list[str]:
        """Returns the columns that `series` matches, in file order."""
        free = [name for name in names if name not in self.required_columns and not self.is_deviation(name)]
        columns = {pattern: {name for name in free if is_column_names(name, pattern)} for pattern in self.series}
        for pattern, names_matched in columns.items():
            if not names_matched:
                raise ValueError(
                    f"{origin} has no column for series {pattern!r}; its other columns are {list_names(free)}."
                    f"{hint(pattern, free)}"
                )
        matched = set[str]().union(*columns.values())
        if "" in matched:
            raise ValueError(
                f"{origin}: column {names.index('') + 1} has no name but matches series; name it, or narrow the "
                "pattern."
            )
        return [name for name in dict.fromkeys(free) if name in matched]

    def is_deviation(self, name: str) -> bool:
        """Whether a column of a wide table holds standard deviations."""
        return bool(self.series) and any(is_column_names(name, pattern) for pattern in self.deviations)

    def matched_deviations(self, names: Sequence[str], origin: str) -> list[str]:
        """Returns the standard deviation columns of a wide table, in the order of their series.

        Columns of the pattern `sd*` and the series `G*` correspond if `*` stands for the same text; without such
        patterns, the order is that of the file.

        **Raises:** `ValueError` if a series has none.
        """
        columns = [name for name in names if self.is_deviation(name)]
        if not (self.series and self.deviations):
            return []
        series, pattern = self.match_series(names, origin), self.deviations[0]
        stars = {star_of(name, pattern): name for name in columns}
        stars_of_series = [
            star_of(name, glob) for name in series for glob in self.series if is_column_names(name, glob)
        ]
        if len(self.series) == 1 and None not in stars_of_series and set(stars_of_series) <= set(stars):
            return [stars[star] for star in stars_of_series]
        if len(columns) != len(series):
            raise ValueError(
                f"{origin} has {len(series)} columns for series and {len(columns)} for their standard deviations, "
                f"sigma {pattern!r}; give each series one, whose name differs in the same text as that of the series."
            )
        return columns


def star_of(name: str, pattern: str) -> str | None:
    """Returns the text matched by the single star of a pattern in a name; None without such a star."""
    before, star, after = pattern.partition("*")
    if not star or any(sign in before + after for sign in "*?["):
        return None
    return name[len(before) : len(name) - len(after)]


def is_column_names(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def as_names(names: Sequence[str | int], role: str) -> tuple[str, ...]:
    """Returns a tuple of names; rejects a bare string, whose letters would be taken for names."""
    if isinstance(names, str):
        raise ValueError(f"{role} must be a list of names, got the text {names!r}; write {role}=[{names!r}].")
    return tuple(str(name) for name in names)


def as_rows(tables: Sequence[RawTable], roles: Roles) -> list[RawTable]:
    """Converts the tables to one column per state and input.

    Rows of a tidy table hold one measurement each; `assemble` joins the rows of the same time.
    """
    words = describe_missing(tables, (roles.trajectory, roles.observable))
    tables = [replace(table, notes=(*table.notes, *words)) for table in tables]
    if roles.series or roles.observable is not None:
        reject_stacks(tables, roles)
    if roles.series:
        return [melt(table, roles) for table in tables]
    if roles.observable is not None:
        return spread_columns(tables, roles, roles.observable, str(roles.value))
    return list(tables)


def reject_stacks(tables: Sequence[RawTable], roles: Roles) -> None:
    """Rejects stacks, whose trajectories a wide or tidy layout would mix up."""
    stack = next((table for table in tables if table.own is not None), None)
    if stack is not None and roles.trajectory is None:
        keys = "series" if roles.series else "observable and value"
        raise ValueError(
            f"{stack.origin} holds stacks, (trajectory, time), which already separate the trajectories; leave out "
            f"{keys}, and name its arrays in states."
        )


def melt(table: RawTable, roles: Roles) -> RawTable:
    """Stacks the columns of a wide table below one another.

    A series runs from its first value to its last. If the table's last row is empty in every series, they all run to
    that row: the times after the last value are to be predicted.
    """
    import pandas as pd

    series = [name for name in table.columns if name not in roles.required_columns and not roles.is_deviation(name)]
    values = np.stack([as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True) for name in series], axis=1)
    known = ~np.isnan(values)
    if not known.any(axis=0).all():
        empty = series[int((~known.any(axis=0)).argmax())]
        raise ValueError(f"{table.origin}, column {empty!r} has no values; fill it, or narrow series to the others.")
    row = np.arange(len(table))
    last = len(table) - 1 - known[::-1].argmax(axis=0) if known[-1].any() else np.full(len(series), len(table) - 1)
    inside = (row >= known.argmax(axis=0)[:, None]) & (row <= last[:, None])
    which, row = np.nonzero(inside)
    shared = {name: table.columns[name].iloc[row].reset_index(drop=True) for name in roles.required_columns}
    for covariate in roles.named_covariates:
        numbers = [number_in_name(name, covariate, table.origin) for name in series]
        shared[covariate] = pd.Series(np.array(numbers)[which])
    channels = {roles.state_columns[0]: pd.Series(values[row, which])}
    if roles.deviations:
        columns = roles.matched_deviations(list(table.columns), table.origin)
        spread = np.stack([as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True) for name in columns], axis=1)
        channels[roles.deviations[0]] = pd.Series(spread[row, which])
    return table.take(row, shared | channels, np.array(series, dtype=object)[which])


def condition_in(name: str) -> tuple[str, float] | None:
    """Returns the quantity and the number that a column's name gives, such as those of `S0=0.5 mM`; None without any.

    The number of a pattern that ends there, such as `S0=*`, is NaN.
    """
    match = CONDITION.fullmatch(name.strip())
    if match is None:
        return None
    return match[1], math.nan if match[2] == "*" else float(match[2].replace(",", "."))


def number_in_name(name: str, covariate: str, origin: str) -> float:
    """Returns the number that the name of a series gives for a covariate.

    **Raises:** `ValueError` if it gives none.
    """
    condition = condition_in(name)
    if condition is None or condition[0] != covariate or not math.isfinite(condition[1]):
        raise ValueError(
            f"{origin}, column {name!r}: its name gives no number of the covariate {covariate!r}, as {covariate}=0.5 "
            "does; rename it, or narrow series to the others."
        )
    return condition[1]


def spread_columns(tables: Sequence[RawTable], roles: Roles, observable: str, value: str) -> list[RawTable]:
    """Gives each wanted observable of tidy tables its own column, and drops the rows of other observables."""
    observed = read_names(tables, observable, "observable")
    observables = list(dict.fromkeys(name for labels in observed for name in labels))
    columns = set[str]().union(*(table.columns for table in tables))
    wanted = [*roles.states, *(name for name in roles.inputs if name not in columns)]
    for name in wanted:
        if name not in observables:
            origin = tables[0].origin if len(tables) == 1 else f"all {len(tables)} files, such as {tables[0].origin}"
            raise ValueError(
                f"{origin}, column {observable!r} never names {name!r}; it names "
                f"{list_names(observables)}.{hint(name, observables)}"
            )
    return [pick(table, labels, wanted, value) for table, labels in zip(tables, observed, strict=True)]


def pick(table: RawTable, observed: np.ndarray, wanted: Sequence[str], value: str) -> RawTable:
    """Selects the rows of a tidy table that measure a wanted observable."""
    import pandas as pd

    kept = np.flatnonzero(np.isin(observed, wanted))
    if kept.size == 0:
        raise ValueError(f"{table.origin} has no row for any of {list_names(wanted)}; leave this file out.")
    selected = {name: column.iloc[kept].reset_index(drop=True) for name, column in table.columns.items()}
    rows = table.take(kept, selected)
    measured = as_numbers_of_column(rows, value, UNKNOWN_FIX, may_miss=True)
    channels = {name: pd.Series(np.where(observed[kept] == name, measured, np.nan)) for name in wanted}
    return table.take(kept, selected | channels)


# By covariate, then by trajectory; `default` applies to all other trajectories.
CovariateNumbers = Mapping[str, Mapping[str | int, float | int]]
ANY_TRAJECTORY = "default"


def as_numbers(covariates: Sequence[str] | CovariateNumbers) -> dict[str, dict[str, float]]:
    """Returns covariate numbers by name and trajectory; empty if `covariates` names columns.

    **Raises:** `ValueError` if a value is not a finite number.
    """
    if not isinstance(covariates, Mapping):
        return {}
    for name, numbers in covariates.items():
        check_numbers(name, numbers)
    return {str(name): {str(key): float(value) for key, value in values.items()} for name, values in covariates.items()}


def check_numbers(name: str, numbers: object) -> None:
    """Rejects numbers of a covariate that are not finite, or not by trajectory."""
    if not is_mapping(numbers):
        raise ValueError(
            f"covariates.{name} must map trajectories to numbers, such as {{'A': 1.0, 'default': 0.0}}, "
            f"got {numbers!r}."
        )
    for trajectory, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"covariates.{name}.{trajectory} must be a finite number, got {number!r}.")


def with_covariates(data: Data, constants: dict[str, dict[str, float]], units: Mapping[str, str]) -> Data:
    """Appends these covariates to the inputs of the dataset.

    **Raises:** `ValueError` if a trajectory has neither a number nor a `default`.
    """
    if not constants:
        return data
    values = np.array(
        [
            [find_covariates(numbers, name, trajectory) for name, numbers in constants.items()]
            for trajectory in data.trajectories
        ]
    )
    wide = np.broadcast_to(values[:, None, :], (*data.ts.shape, len(constants)))
    return replace(
        data,
        us=np.concatenate([data.us, wide], axis=2),
        inputs=(*data.inputs, *constants),
        units=data.units | {name: units[name] for name in constants if name in units},
    )


def find_covariates(numbers: dict[str, float], name: str, trajectory: str) -> float:
    if trajectory not in numbers and ANY_TRAJECTORY not in numbers:
        raise ValueError(
            f"covariates.{name} has no number for trajectory {trajectory!r}, only for "
            f"{list_names(list(numbers))}; add it, "
            f"or {ANY_TRAJECTORY!r} for all others."
        )
    return numbers.get(trajectory, numbers.get(ANY_TRAJECTORY, math.nan))


def check_trajectories(constants: dict[str, dict[str, float]], trajectories: Sequence[str]) -> None:
    """Rejects a number for a trajectory that does not exist, and suggests the nearest name."""
    for name, numbers in constants.items():
        for trajectory in numbers:
            if trajectory != ANY_TRAJECTORY and trajectory not in trajectories:
                raise ValueError(
                    f"covariates.{name} names trajectory {trajectory!r}, which does not exist; the trajectories are "
                    f"{list_names(trajectories)}.{hint(trajectory, trajectories)}"
                )
