"""Groups of trajectories: those that share the value of a covariate, or single trajectories."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .dataset import Dataset
from .tables.layout import with_covariates
from .tables.table import list_names

# Name of the covariate that numbers trajectories, from 1 on.
BY_TRAJECTORY = "trajectory"
# Suffix that `Dataset.windows` adds to the name of a trajectory.
WINDOW_SUFFIX = re.compile(r"\[\d+(:\d+)?\]$")
# Largest value of a covariate that is treated as a trajectory number.
MAX_NUMBER = 1_000_000
# Relative difference (of the largest value) above which covariates differ from those of the fit.
SAME_VALUE = 1e-6


class Groups(NamedTuple):
    """Groups of a covariate: names, and the values of the covariate, in the user's units."""

    labels: tuple[str, ...]
    values: tuple[float, ...]


def with_trajectory_numbers(data: Dataset, names: Sequence[str]) -> Dataset:
    """Adds the number of each trajectory among `names` as a covariate; returns the data unchanged without names.

    **Raises:** `ValueError` that names a trajectory outside `names`.
    """
    if not names or BY_TRAJECTORY in data.inputs:
        return data
    numbers = {name: float(number) for number, name in enumerate(names, start=1)}
    number_of: dict[str, float] = {}
    for name in data.trajectories:
        record = name if name in numbers else WINDOW_SUFFIX.sub("", name)
        if record not in numbers:
            raise ValueError(
                f"trajectory {name!r} was not fitted, so the constants that each trajectory has of its own "
                f"(field.local) are not known for it; fit it, too, or predict one of {list_names(list(names))}."
            )
        number_of[name] = numbers[record]
    return with_covariates(data, {BY_TRAJECTORY: number_of}, {})


def names_by_number(data: Dataset) -> tuple[str, ...]:
    """Returns the names of trajectories in the order of their numbers; in their own order if they have no numbers.

    A number without a trajectory has an empty name. If the covariate of this name is not a number, the result is empty.
    """
    if BY_TRAJECTORY not in data.inputs:
        return data.trajectories
    numbers = data.us[:, 0, data.inputs.index(BY_TRAJECTORY)]
    if not ((numbers >= 1) & (numbers == np.round(numbers)) & (numbers <= MAX_NUMBER)).all():
        return ()
    names = [""] * int(numbers.max())
    for number, name in zip(numbers.astype(int).tolist(), data.trajectories, strict=True):
        names[number - 1] = WINDOW_SUFFIX.sub("", name)
    return tuple(names)


def without_levels(data: Dataset) -> Dataset:
    """Returns the data without covariates that are words, whose numbers mean nothing in equations."""
    kept = [index for index, name in enumerate(data.inputs) if name not in data.levels]
    if len(kept) == len(data.inputs):
        return data
    names = tuple(data.inputs[index] for index in kept)
    units = {name: unit for name, unit in data.units.items() if name not in data.levels}
    return replace(data, us=data.us[..., kept], inputs=names, units=units, levels={})


def find_grouping_covariate(data: Dataset) -> str | None:
    """Returns the covariate that is a word, if there is one alone, and each of its words has a trajectory."""
    names = [name for name in data.inputs if name in data.levels]
    if len(names) != 1:
        return None
    found = np.unique(data.us[:, 0, data.inputs.index(names[0])])
    return names[0] if len(found) == len(data.levels[names[0]]) else None


def find_groups(data: Dataset, local: Mapping[str, str]) -> dict[str, Groups]:
    """Finds the groups in training data by covariate.

    **Arguments:** `local`: covariate of each local constant, or `trajectory`, in which case data are numbered.

    **Raises:** `ValueError` for a name that is not a covariate.
    """
    return {by: groups_of(data, by, constant) for constant, by in local.items()}


def groups_of(data: Dataset, by: str, constant: str) -> Groups:
    if by not in data.inputs:
        known = ", ".join((BY_TRAJECTORY, *data.inputs))
        raise ValueError(f"local: {constant!r} is by {by!r}, which is no covariate of the data; choose from {known}.")
    column = data.us[..., data.inputs.index(by)]
    moves = np.ptp(column, axis=1) > 0
    if moves.any():
        name = data.trajectories[int(moves.argmax())]
        raise ValueError(
            f"local: {constant!r} is by {by!r}, which changes within trajectory {name!r}; name a covariate, which is "
            "one number for each trajectory (data.covariates)."
        )
    values, first = np.unique(column[:, 0], return_index=True)
    if by == BY_TRAJECTORY:
        rows: list[int] = first.tolist()
        return Groups(tuple(data.trajectories[row] for row in rows), tuple(values.tolist()))
    words = data.levels.get(by)
    names = [f"{value:g}" if words is None else words[int(value)] for value in values]
    return Groups(tuple(names), tuple(values.tolist()))


def check_known_groups(data: Dataset, by: str, values: Sequence[float], constants: Sequence[str]) -> None:
    """Rejects data with a value of a covariate that was not fitted.

    **Raises:** `ValueError` that names the trajectory, the value and the fitted ones.
    """
    known = np.asarray(values)
    column = data.us[:, 0, data.inputs.index(by)]
    is_unknown = np.abs(column[:, None] - known).min(axis=1) > SAME_VALUE * np.abs(known).max()
    if is_unknown.any():
        row = int(is_unknown.argmax())
        raise ValueError(
            f"trajectory {data.trajectories[row]!r} has {by} = {column[row]:g}, for which {', '.join(constants)} is "
            f"not known; the fit had {by} = {', '.join(f'{value:g}' for value in values)}."
        )
