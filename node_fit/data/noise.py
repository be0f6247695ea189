"""How sure measurements are: their standard deviations, and the weights of residuals that follow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from .dataset import Dataset, check_known_values
from .domains import is_real
from .scaling import Scaler

# `estimate`, a number for every state, or by state a number, the name of a column, or numbers of `NOISE_PARTS`.
Sigma = float | str | Mapping[str, float | str | Mapping[str, float]]
NOISE_PARTS = ("relative", "absolute")
ESTIMATE = "estimate"
# The median of the absolute value of a standard normal variable.
NORMAL_MEDIAN = 0.6745
# Fewer distances tell no noise. Less noise than this can't be told from the solver's error [standard deviations].
FEWEST_RESIDUALS, LEAST_NOISE = 3, 1e-3
NOISE_PASS = "estimate, a positive number, or {state: number or column}"
OF_STATE = "a positive number, the name of a column, or {relative: 0.05, absolute: 0.1}"


def sigma_columns(sigma: object, states: Sequence[str], *, by_row: bool = True) -> tuple[str, ...]:
    """Checks `sigma`, and gives the columns that it names.

    **Arguments:** `by_row`: whether the table has one row per time, and so a place for such columns.

    **Raises:** `ValueError` that names the state and says what to pass.
    """
    if not isinstance(sigma, Mapping):
        if sigma != ESTIMATE:
            check_deviation(sigma, "sigma", NOISE_PASS)
        return ()
    check_known_values("sigma", sigma, states)
    lacking = [name for name in states if name not in sigma]
    if lacking:
        raise ValueError(f"sigma has no entry for the state {lacking[0]!r}; give one for each of {', '.join(states)}.")
    for name, given in sigma.items():
        if isinstance(given, Mapping):
            check_noise_parts(given, f"sigma of {name!r}")
        elif not isinstance(given, str) or not given:
            check_deviation(given, f"sigma of {name!r}", OF_STATE)
    columns = tuple(dict.fromkeys(given for given in sigma.values() if isinstance(given, str)))
    if columns and not by_row:
        raise ValueError(
            f"sigma names the column {columns[0]!r}, which needs a table with one row per time; give numbers."
        )
    return columns


def with_columns(states: Sequence[str], columns: Sequence[str]) -> Sequence[str]:
    """What a table is read for: the states, and after them the columns of standard deviations."""
    return (*states, *columns) if columns else states


def check_deviation(given: object, name: str, what: str) -> None:
    if not (is_real(given) and given > 0):
        raise ValueError(f"{name} must be {what}, got {given!r:.40}.")


def check_noise_parts(given: Mapping[str, object], name: str) -> None:
    if not given or set(given) - set(NOISE_PARTS):
        raise ValueError(f"{name} must be {OF_STATE}, got {dict(given)!r:.60}.")
    for part, value in given.items():
        check_deviation(value, f"the {part} part of {name}", "a positive number")


def with_sigma(data: Dataset, sigma: Sigma, states: Sequence[str]) -> Dataset:
    """The data with the standard deviations of their measurements.

    **Arguments:**

    - `data`: the states, and after them the columns that `sigma` names.
    - `sigma`: as in `read_table`.
    - `states`: names of the states.

    **Raises:** `ValueError` if a measurement has no positive standard deviation.
    """
    if isinstance(sigma, str):
        return data
    count = len(states)
    ys, columns = data.ys[..., :count], named_columns(data, count)
    given = [sigma[name] if isinstance(sigma, Mapping) else sigma for name in states]
    parts = [read_deviation(each, ys[..., index], columns) for index, each in enumerate(given)]
    units = {name: unit for name, unit in data.units.items() if name not in columns}
    return replace(data, ys=ys, states=tuple(states), units=units, sigma=np.stack(parts, axis=-1))


def read_deviation(
    given: float | str | Mapping[str, float], values: np.ndarray, columns: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The standard deviations of a state's values; the relative part is taken of what was measured."""
    if isinstance(given, str):
        return columns[given]
    if isinstance(given, Mapping):
        return np.hypot(given.get("absolute", 0.0), given.get("relative", 0.0) * np.abs(values))
    return np.full(values.shape, float(given))


def named_columns(data: Dataset, first: int) -> dict[str, Float[np.ndarray, "trajectory time"]]:
    """The channels from a number on, by name."""
    return {name: data.ys[..., index] for index, name in enumerate(data.states) if index >= first}


def is_relative(data: Dataset, scaler: Scaler) -> Float[np.ndarray, "trajectory time state"]:
    """The standard deviation of each measurement in scaled units; that of a bounded state is one on the line."""
    assert data.sigma is not None
    return np.where(np.isfinite(data.ys), data.sigma / np.asarray(scaler.state_scale, np.float64), 1.0)


def noise_unit(data: Dataset, scaler: Scaler) -> float:
    """The standard deviation of a weighted residual: one over the root mean square of `1 / relative`."""
    inverse = 1 / is_relative(data, scaler)[data.mask]
    return 1 / math.sqrt(float((inverse**2).mean())) if inverse.size else 1.0


def typical_residuals(data: Dataset, scaler: Scaler) -> Float[np.ndarray, " state"]:
    """The standard deviation of the weighted residuals of each state, from what is given or from neighbouring rows.

    **Raises:** `ValueError` that names a state whose noise can't be estimated.
    """
    if data.sigma is not None:
        return np.full(len(data.states), noise_unit(data, scaler))
    known = np.where(data.mask, scaler.scale_states(data.ys), np.nan)
    found = np.array([local_noise(data.ts, known[..., index]) for index in range(len(data.states))])
    for name, level in zip(data.states, found, strict=True):
        if np.isnan(level):
            raise ValueError(
                f"sigma is needed with a robust loss, since the state {name!r} has too few rows to estimate its noise "
                f"from; pass sigma={{{name}: 0.1}} or a column."
            )
    return np.maximum(found, LEAST_NOISE)


def local_noise(ts: Float[np.ndarray, "trajectory time"], ys: Float[np.ndarray, "trajectory time"]) -> float:
    """The noise of a series, which outliers hardly change: the median distance from the line through both neighbours
    (Gasser, Sroka and Jennen-Steinmetz, Biometrika 73, 1986), or from a cubic through four, whichever is less.

    **Returns:** its standard deviation; NaN for less than five rows of a trajectory.
    """
    levels = []
    for reach in (1, 2):
        found = [distances(t[known], y[known], reach) for t, y, known in zip(ts, ys, np.isfinite(ys), strict=True)]
        whole = np.concatenate(found) if found else np.zeros(0)
        levels.append(float(np.median(np.abs(whole))) / NORMAL_MEDIAN if whole.size >= FEWEST_RESIDUALS else math.nan)
    return float(np.nanmin(levels)) if np.isfinite(levels).any() else math.nan


def distances(t: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], reach: int) -> Float[np.ndarray, " middle"]:
    """The distance of each value from the polynomial through its neighbours, of the variance of the noise."""
    offsets = [*range(-reach, 0), *range(1, reach + 1)]
    middle = np.arange(reach, len(t) - reach)
    if not middle.size:
        return np.zeros(0)
    near = np.stack([t[middle + k] - t[middle] for k in offsets])
    # Lagrange's weights at the middle.
    factors = [
        np.prod([near[j] / (near[j] - near[i]) for j in range(len(offsets)) if j != i], axis=0)
        for i in range(len(offsets))
    ]
    guess = sum(factor * y[middle + k] for factor, k in zip(factors, offsets, strict=True))
    return (y[middle] - guess) / np.sqrt(1 + sum(factor**2 for factor in factors))


def noise_weights(data: Dataset, scaler: Scaler) -> Float[np.ndarray, "trajectory time state"]:
    """The weights of residuals, proportional to one over their standard deviation, which is known.

    Their mean square is 1, so losses stay of order one, and penalties keep their meaning.
    """
    return noise_unit(data, scaler) / is_relative(data, scaler)
