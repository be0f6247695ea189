"""Smooth one-to-one maps between an interval and the whole line, for positive or bounded states and parameters.

An optimizer and a solver move freely on the line, and what they find always lies within the bounds.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Bounds = tuple[float | None, float | None]
Values = Float[Any, "*shape"]  # of NumPy or JAX, and the same comes back

# Beyond this a number and its distance to a bound may leave the range of float32.
LARGEST = 1e30


def to_line(x: Values, bounds: Bounds) -> Values:
    """From the interval to the line: `x`, `log(x - lower)`, `-log(upper - x)` or `log((x - lower) / (upper - x))`.

    **Arguments:**

    - `x`: values within the bounds, any shape. One on a bound counts as the nearest that is not. NaN stays NaN.
    - `bounds`: lower and upper, `None` where there is none.

    **Returns:** values on the line, of the shape and dtype of `x`.
    """
    lower, upper = bounds
    xp = namespace(x)
    above = 0.0 if lower is None else xp.log(distance(x - lower, lower))
    below = 0.0 if upper is None else xp.log(distance(upper - x, upper))
    return x if bounds == (None, None) else above - below


def from_line(z: Values, bounds: Bounds) -> Values:
    """From the line to the interval, the inverse of `to_line`; far out it is constant, so that nothing overflows.

    **Arguments:**

    - `z`: values on the line, any shape.
    - `bounds`: lower and upper, `None` where there is none.

    **Returns:** values within the bounds (on one where floats are too coarse), of the shape and dtype of `z`.
    """
    lower, upper = bounds
    xp = namespace(z)
    if lower is not None and upper is not None:
        width = upper - lower
        rise, fall = lower + width * sigmoid(within_range(z)), upper - width * sigmoid(within_range(-z))
        return xp.where(z < 0, rise, fall)  # Each is exact at its own end.
    if lower is not None:
        return lower + xp.exp(within_range(z))
    if upper is not None:
        return upper - xp.exp(within_range(-z))
    return z


def slope(x: Values, bounds: Bounds) -> Values:
    """The derivative of `to_line`, by which a rate `dx/dt` becomes the rate `dz/dt = slope * dx/dt` on the line.

    **Arguments:** as of `to_line`.

    **Returns:** positive, of the shape and dtype of `x`.
    """
    lower, upper = bounds
    above = 0.0 if lower is None else reciprocal(distance(x - lower, lower))
    below = 0.0 if upper is None else reciprocal(distance(upper - x, upper))
    return namespace(x).ones_like(x) if bounds == (None, None) else above + below


def is_number(value: Any) -> bool:
    """Whether a value is a real number that any float can hold."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return real and bool(abs(value) <= LARGEST)


def check_bounds(bounds: Sequence[Any], name: str) -> Bounds:
    """Bounds as floats.

    **Arguments:**

    - `bounds`: lower and upper, numbers or `None`.
    - `name`: whose they are, for the sentence: `constant 'rate'`.

    **Raises:** `ValueError` if one is no number or too large, or lower is not below upper.
    """
    for bound in bounds:
        if bound is not None and not is_number(bound):
            raise ValueError(
                f"{name} has the bound {bound!r:.40}; a bound is a number of magnitude up to {LARGEST:g}, "
                "or null for none."
            )
    lower, upper = (None if bound is None else float(bound) for bound in bounds)
    if lower is not None and upper is not None and lower >= upper:
        raise ValueError(f"{name} has bounds {lower:g} and {upper:g}; the lower must be below the upper.")
    return lower, upper


def check_inside(values: Float[np.ndarray, "..."], bounds: Bounds, name: str) -> None:
    """Refuses values on or beyond a bound, which have no place on the line; NaN, as missing, passes.

    **Arguments:**

    - `values`: any shape.
    - `bounds`: lower and upper, `None` where there is none.
    - `name`: whose they are, for the sentence: `state 'hare'`.

    **Raises:** `ValueError` that names the first such value and, if there are several, its index.
    """
    lower, upper = bounds
    outside = np.argwhere(~is_inside(values, bounds))
    if not len(outside):
        return
    index = tuple(outside[0].tolist())
    where = f" at {list(index)}" if values.size > 1 else ""
    rules = [f"{word} {bound:g}" for word, bound in (("above", lower), ("below", upper)) if bound is not None]
    raise ValueError(
        f"{name} is {float(values[index]):g}{where}, but its bounds ask for values {' and '.join(rules)}; "
        "widen the bounds or correct the value."
    )


def is_inside(values: Float[np.ndarray, "*shape"], bounds: Bounds) -> Bool[np.ndarray, "*shape"]:
    """Whether values are neither on nor beyond a bound; NaN is not."""
    lower, upper = bounds
    low = np.zeros(values.shape, bool) if lower is None else values <= lower
    high = np.zeros(values.shape, bool) if upper is None else values >= upper
    return np.asarray(~(low | high))


def namespace(x: Values) -> Any:
    return jnp if isinstance(x, Array) else np


def distance(gap: Values, bound: float) -> Values:
    """The gap to a bound, at least what floats can tell from none."""
    kind = jnp.finfo(gap.dtype)
    least = max(float(kind.tiny), 0.5 * float(kind.eps) * abs(bound))
    # A selection, unlike a maximum, has the derivative 0 there even if what it is multiplied by has overflowed.
    return namespace(gap).where(gap < least, least, gap)


def reciprocal(gap: Values) -> Values:
    """`1 / gap` without its derivative's `gap**-2`, which overflows long before `gap` underflows."""
    xp = namespace(gap)
    return xp.exp(-xp.log(gap))


def within_range(z: Values) -> Values:
    """`z`, but not so far out that its exponential or the reciprocal of that leaves the normal numbers."""
    limit = -math.log(float(jnp.finfo(z.dtype).tiny)) - 1
    return namespace(z).clip(z, -limit, limit)


def sigmoid(z: Values) -> Values:
    if isinstance(z, Array):
        return jax.nn.sigmoid(z)
    from scipy.special import expit

    return expit(z)
