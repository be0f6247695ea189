"""Covariates given as numbers per trajectory, not as table columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..dataset import Dataset
from .table import hint, shown

# By covariate, then by trajectory; `default` applies to all other trajectories.
CovariateNumbers = Mapping[str, Mapping[str | int, float | int]]
DEFAULT = "default"


def as_numbers(covariates: Sequence[str] | CovariateNumbers) -> dict[str, dict[str, float]]:
    """Covariate numbers by name and trajectory; empty if `covariates` names columns.

    **Raises:** `ValueError` if a value is not a finite number.
    """
    if not isinstance(covariates, Mapping):
        return {}
    for name, numbers in covariates.items():
        if not isinstance(numbers, Mapping):
            raise ValueError(
                f"covariates.{name} must map trajectories to numbers, such as {{'A': 1.0, 'default': 0.0}}, "
                f"got {numbers!r}."
            )
        for trajectory, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
                raise ValueError(f"covariates.{name}.{trajectory} must be a finite number, got {number!r}.")
    return {str(name): {str(key): float(value) for key, value in each.items()} for name, each in covariates.items()}


def with_covariates(data: Dataset, constants: dict[str, dict[str, float]], units: Mapping[str, str]) -> Dataset:
    """Appends these covariates to the inputs of the dataset.

    **Raises:** `ValueError` if a trajectory has no number and there is no `default`.
    """
    if not constants:
        return data
    values = np.array([[find(of, name, each) for name, of in constants.items()] for each in data.trajectories])
    wide = np.broadcast_to(values[:, None, :], (*data.ts.shape, len(constants)))
    return replace(
        data,
        us=np.concatenate([data.us, wide], axis=2),
        inputs=(*data.inputs, *constants),
        units=data.units | {name: units[name] for name in constants if name in units},
    )


def find(numbers: dict[str, float], name: str, trajectory: str) -> float:
    if trajectory not in numbers and DEFAULT not in numbers:
        raise ValueError(
            f"covariates.{name} has no number for trajectory {trajectory!r}, only for {shown(list(numbers))}; add it, "
            f"or {DEFAULT!r} for all others."
        )
    return numbers.get(trajectory, numbers.get(DEFAULT, math.nan))


def check_trajectories(constants: dict[str, dict[str, float]], trajectories: Sequence[str]) -> None:
    """Rejects a number for a trajectory that does not exist, and suggests the nearest name."""
    for name, numbers in constants.items():
        for trajectory in numbers:
            if trajectory != DEFAULT and trajectory not in trajectories:
                raise ValueError(
                    f"covariates.{name} names trajectory {trajectory!r}, which does not exist; the trajectories are "
                    f"{shown(trajectories)}.{hint(trajectory, trajectories)}"
                )
