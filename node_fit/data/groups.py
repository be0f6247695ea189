"""Groups of trajectories: those that share the value of a covariate, or each trajectory by itself."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .dataset import Dataset
from .tables.layout import with_covariates
from .tables.table import list_names

# The covariate that numbers trajectories, from 1 on.
BY_TRAJECTORY = "trajectory"
# What `Dataset.windows` adds to the name of a trajectory.
WINDOW_SUFFIX = re.compile(r"\[\d+(:\d+)?\]$")
# A larger number of a covariate counts no trajectories.
MAX_NUMBER = 1_000_000
# Covariates differ from those of the fit if they do by more than this share of the largest.
SAME_VALUE = 1e-6


class Groups(NamedTuple):
    """The groups of a covariate: names, and the values of the covariate, in the user's units."""

    labels: tuple[str, ...]
    values: tuple[float, ...]


def with_trajectory_numbers(data: Dataset, names: Sequence[str]) -> Dataset:
    """Data with the number of each trajectory among those of these names, as a covariate; none if there are no names.

    **Raises:** `ValueError` that names a trajectory that is none of them.
    """
    if not names or BY_TRAJECTORY in data.inputs:
        return data
    numbers = {name: float(number) for number, name in enumerate(names, start=1)}
    found: dict[str, float] = {}
    for name in data.trajectories:
        whole = name if name in numbers else WINDOW_SUFFIX.sub("", name)
        if whole not in numbers:
            raise ValueError(
                f"trajectory {name!r} was not fitted, so the constants that each trajectory has of its own "
                f"(field.local) are not known for it; fit it, too, or predict one of {list_names(list(names))}."
            )
        found[name] = numbers[whole]
    return with_covariates(data, {BY_TRAJECTORY: found}, {})


def names_by_number(data: Dataset) -> tuple[str, ...]:
    """The names of trajectories in the order of their numbers; of data that have none, in their own order.

    A number without a trajectory has an empty name. Data whose covariate of this name is no number have no names.
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


def find_groups(data: Dataset, local: Mapping[str, str]) -> dict[str, Groups]:
    """The groups in training data by covariate.

    **Arguments:** `local`: the covariate of each local constant, or `trajectory`; data are numbered then.

    **Raises:** `ValueError` that names what is no covariate.
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
    return Groups(tuple(f"{value:g}" for value in values), tuple(values.tolist()))


def check_known_groups(data: Dataset, by: str, values: Sequence[float], constants: Sequence[str]) -> None:
    """Refuses data with a value of a covariate that was not fitted.

    **Raises:** `ValueError` that names the trajectory, the value and the fitted ones.
    """
    known = np.asarray(values)
    column = data.us[:, 0, data.inputs.index(by)]
    off = np.abs(column[:, None] - known).min(axis=1) > SAME_VALUE * np.abs(known).max()
    if off.any():
        row = int(off.argmax())
        raise ValueError(
            f"trajectory {data.trajectories[row]!r} has {by} = {column[row]:g}, for which {', '.join(constants)} is "
            f"not known; the fit had {by} = {', '.join(f'{value:g}' for value in values)}."
        )
