"""Domains of states: bounded intervals and circles.

Bounded states and parameters are mapped smoothly to the real line, where optimizers and solvers work without
constraints; their results always lie within the bounds. Angles are measured modulo a turn and are unwrapped along a
record.
"""

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..runtime.placement import AnyArray
from ..runtime.validation import is_sequence

# NumPy in, NumPy out; JAX in, JAX out.
Numbers = TypeVar("Numbers", bound=AnyArray)
# Size of a turn in each unit.
TURNS = {"rad": 2 * math.pi, "deg": 360.0}
# Turn of each column that is an angle, None for others; empty if no column is.
Turns = tuple[float | None, ...]


def near(angles: Numbers, to: AnyArray, turn: float | int | AnyArray) -> Numbers:
    """Shifts angles to the turn nearest to `to`: `to - near(angles, to)` is in `[-turn / 2, turn / 2)`."""
    xp: ModuleType = np if isinstance(angles, np.ndarray) and isinstance(to, np.ndarray) else jnp
    return cast(Numbers, angles + turn * xp.floor((to - angles) / turn + 0.5))


def near_columns(values: Numbers, to: AnyArray, turns: Turns, scale: AnyArray | None = None) -> Numbers:
    """Applies `near` to the columns that are angles; leaves the others unchanged.

    **Arguments:**

    - `values`, `to`: shape `(..., column)`, NumPy or JAX arrays.
    - `turns`: turn of each column. `scale`: divisor of each column's values, shape `(column,)`.
    """
    if not any(turns):
        return values
    on_host = isinstance(values, np.ndarray) and isinstance(to, np.ndarray)
    xp: ModuleType = np if on_host else jnp
    shape = (1,) * (values.ndim - 1) + (-1,)
    turn = xp.asarray([turn or 1.0 for turn in turns], values.dtype).reshape(shape)
    turn = turn if scale is None else turn / xp.asarray(scale, values.dtype).reshape(shape)
    is_angle = np.array([bool(turn) for turn in turns]).reshape(shape)
    return cast(Numbers, xp.where(is_angle, near(values, to, turn), values))


def unwrap(ys: Float[np.ndarray, "trajectory time state"], turns: Turns) -> Float[np.ndarray, "trajectory time state"]:
    """Unwraps angles: the first within half a turn of zero, every other within half a turn of the previous one.

    Missing values (NaN) stay missing, and the next value follows the last known one.
    """
    ys = ys.copy()
    for index, turn in enumerate(turns):
        if not turn:
            continue
        column = ys[..., index]
        known = np.isfinite(column)
        last = np.maximum.accumulate(np.where(known, np.arange(int(column.shape[1])), -1), axis=1)
        before = np.concatenate([np.full((len(column), 1), -1), last[:, :-1]], axis=1)
        previous = np.where(before >= 0, np.take_along_axis(column, np.maximum(before, 0), axis=1), 0.0)
        jumps = np.where(known, np.floor((column - previous) / turn + 0.5), 0.0)
        ys[..., index] = column - turn * np.cumsum(jumps, axis=1)
    return ys


def rebase_to_end(
    ys: Float[np.ndarray, "trajectory row state"], turns: Turns
) -> Float[np.ndarray, "trajectory row state"]:
    """Shifts unwrapped angles by whole turns so that the last known one is within half a turn of zero."""
    ys = ys.copy()
    for index, turn in enumerate(turns):
        if turn:
            column = ys[..., index]
            known = np.isfinite(column)
            row = column.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
            last = np.nan_to_num(np.take_along_axis(column, row[:, None], axis=1))
            ys[..., index] = column - turn * np.floor(last / turn + 0.5)
    return ys


def gather_turns(values: Float[np.ndarray, " value"], turn: float | None) -> Float[np.ndarray, " value"]:
    """Shifts angles to within half a turn of their mean direction, which makes mean and deviation meaningful."""
    if not turn or not values.size:
        return values
    phases = values * (2 * np.pi / turn)
    mean = np.arctan2(np.sin(phases).mean(), np.cos(phases).mean()) * turn / (2 * np.pi)
    return near(values, np.full_like(values, mean), turn)


def turns_of(names: Sequence[str], angles: dict[str, float]) -> Turns:
    """Returns the turns of columns with these names; empty if no column is an angle."""
    return tuple(angles.get(name) for name in names) if set(names) & set(angles) else ()


Bounds = tuple[float | None, float | None]

# Larger numbers, or their distances to a bound, can exceed the range of float32.
LARGEST_BOUND = 1e30


def to_line(x: Numbers, bounds: Bounds) -> Numbers:
    """Maps the interval to the line: `x`, `log(x - lower)`, `-log(upper - x)` or `log((x - lower) / (upper - x))`.

    **Arguments:**

    - `x`: values within the bounds, any shape. A value on a bound counts as the nearest one inside. NaN stays NaN.
    - `bounds`: lower and upper bound, `None` for no bound.

    **Returns:** values on the line, with the shape and dtype of `x`.
    """
    lower, upper = bounds
    xp = namespace(x)
    above = 0.0 if lower is None else xp.log(distance(x - lower, lower))
    below = 0.0 if upper is None else xp.log(distance(upper - x, upper))
    return x if bounds == (None, None) else cast(Numbers, above - below)


def from_line(z: Numbers, bounds: Bounds) -> Numbers:
    """Maps the line to the interval, the inverse of `to_line`; constant far out to avoid overflow.

    **Arguments:**

    - `z`: values on the line, any shape.
    - `bounds`: lower and upper bound, `None` for no bound.

    **Returns:** values within the bounds (or on one, after rounding), with the shape and dtype of `z`.
    """
    lower, upper = bounds
    xp = namespace(z)
    if lower is not None and upper is not None:
        width = upper - lower
        rise, fall = lower + width * sigmoid(within_range(z)), upper - width * sigmoid(within_range(-z))
        return xp.where(z < 0, rise, fall)  # Each branch is exact at its own end.
    if lower is not None:
        return lower + xp.exp(within_range(z))
    if upper is not None:
        return upper - xp.exp(within_range(-z))
    return z


def slope(x: Numbers, bounds: Bounds) -> Numbers:
    """Computes the derivative of `to_line`, which maps a rate `dx/dt` to the rate `dz/dt = slope * dx/dt` on the line.

    **Arguments:** as in `to_line`.

    **Returns:** positive values, with the shape and dtype of `x`.
    """
    lower, upper = bounds
    above = 0.0 if lower is None else reciprocal(distance(x - lower, lower))
    below = 0.0 if upper is None else reciprocal(distance(upper - x, upper))
    return cast(Numbers, namespace(x).ones_like(x) if bounds == (None, None) else above + below)


def is_real(value: object) -> TypeGuard[float | np.number]:
    """Whether a value is a real number that any float type can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(abs(cast("float | np.number", value)) <= LARGEST_BOUND)


def is_pair(given: object) -> bool:
    return is_sequence(given) and len(given) == 2


def check_bounds(bounds: Sequence[object], name: str) -> Bounds:
    """Checks bounds and converts them to floats.

    **Arguments:**

    - `bounds`: lower and upper bound, numbers or `None`.
    - `name`: the bounded quantity, for the error message: `constant 'rate'`.

    **Raises:** `ValueError` if a bound is too large or not a number, or if lower is not below upper.
    """
    for bound in bounds:
        if bound is not None and not is_real(bound):
            raise ValueError(
                f"{name} has the bound {bound!r:.40}; a bound is a number of magnitude up to {LARGEST_BOUND:g}, "
                "or null for none."
            )
    lower, upper = (None if bound is None else float(cast(float, bound)) for bound in bounds)
    if lower is not None and upper is not None and lower >= upper:
        raise ValueError(f"{name} has bounds {lower:g} and {upper:g}; the lower must be below the upper.")
    return lower, upper


def check_inside(
    values: Float[np.ndarray, "..."],
    bounds: Bounds,
    name: str,
    place: Callable[[tuple[int, ...]], str] = lambda index: f"at {list(index)}",
    *,
    is_logarithmic: bool = False,
) -> None:
    """Rejects values on or beyond a bound, which the line can't represent; NaN means missing and passes.

    **Arguments:**

    - `values`: any shape.
    - `bounds`: lower and upper bound, `None` for no bound.
    - `name`: the checked quantity, for the error message: `state 'hare'`.
    - `place`: describes the place of a value by its index, if there are several values.
    - `is_logarithmic`: whether the bound comes from a logarithmic scale.

    **Raises:** `ValueError` that names the first such value and its place.
    """
    lower, upper = bounds
    outside = np.argwhere(~is_inside(values, bounds))
    if not len(outside):
        return
    index = tuple(outside[0].tolist())
    where = f" {place(index)}" if values.size > 1 else ""
    rules = [f"{word} {bound:g}" for word, bound in (("above", lower), ("below", upper)) if bound is not None]
    source, fix = (
        ("data.log asks", "leave it out of data.log") if is_logarithmic else ("its bounds ask", "widen the bounds")
    )
    raise ValueError(
        f"{name} is {float(values[index]):g}{where}, but {source} for values {' and '.join(rules)}; "
        f"{fix} or correct the value."
    )


def is_inside(values: Float[np.ndarray, "*shape"], bounds: Bounds) -> Bool[np.ndarray, "*shape"]:
    """Whether values are strictly inside the bounds; true for NaN."""
    lower, upper = bounds
    low = np.zeros(values.shape, bool) if lower is None else values <= lower
    high = np.zeros(values.shape, bool) if upper is None else values >= upper
    return np.asarray(~(low | high))


def namespace(x: AnyArray) -> ModuleType:
    return jnp if isinstance(x, Array) else np


def distance(gap: Numbers, bound: float) -> Numbers:
    """Returns the gap to a bound, but at least the smallest one that floats resolve."""
    kind = jnp.finfo(gap.dtype)
    least = max(float(kind.tiny), 0.5 * float(kind.eps) * abs(bound))
    # `where`, unlike `maximum`, has derivative 0 there even if the factor that multiplies it has overflowed.
    return namespace(gap).where(gap < least, least, gap)


def reciprocal(gap: Numbers) -> Numbers:
    """Computes `1 / gap`, without the `gap**-2` of its derivative, which overflows long before `gap` underflows."""
    array_namespace = namespace(gap)
    return array_namespace.exp(-array_namespace.log(gap))


def within_range(z: Numbers) -> Numbers:
    """Clips `z` so that its exponential and the reciprocal of that stay normal numbers."""
    limit = -math.log(float(jnp.finfo(z.dtype).tiny)) - 1
    return namespace(z).clip(z, -limit, limit)


def sigmoid(z: Numbers) -> Numbers:
    if isinstance(z, Array):
        return jax.nn.sigmoid(z)
    from scipy.special import expit

    return expit(z)
