"""The probability that a value with normal noise lies beyond a limit, or between two.

Distances are in standard deviations of the noise. The derivatives of the functions remain accurate far from an interval
and for intervals far narrower than the noise.
"""

import math

import jax.numpy as jnp
from jax.scipy.special import erf
from jax.scipy.stats import norm
from jaxtyping import Array, Float

Distance = Float[Array, "..."]

# Minimum argument of a square root, which keeps its slope finite.
ROOT_FLOOR = 1e-12
# Value below which the derivatives of the normal distribution's logarithm are differences of large numbers; the
# curvature is 1 there, to four digits.
FAR_TAIL = -100.0
# Product of width and distance below which a series of the density is more exact than a difference of probabilities.
NARROW_INTERVAL = 0.02
# Distance from the middle of an interval below which a series is more exact than the root of a difference.
NEAR_MIDDLE = 0.03


def log_probability(u: Distance) -> Distance:
    """Computes the logarithm of the standard normal distribution function.

    Its first two derivatives are accurate in the far tail, too (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 1964, 26.2.12)."""
    far = u < FAR_TAIL
    tail, near = jnp.where(far, u, FAR_TAIL), jnp.where(far, FAR_TAIL, u)
    inverse = tail**-2
    series = norm.logpdf(tail) - jnp.log(-tail) + jnp.log1p(-inverse * (1 - 3 * inverse * (1 - 5 * inverse)))
    return jnp.where(far, series, norm.logcdf(near))


def log_probability_beyond(u: Distance, width: Distance | None = None) -> Distance:
    """Computes the logarithm of the probability of a censored value.

    **Arguments:** `u`: distance of the prediction beyond the limit, on the side of the value. `width`: width of the
    interval beyond the limit; infinite for a one-sided limit, None if all limits are one-sided.
    """
    if width is None:
        return log_probability(u)
    is_interval, width = finite_width(width)
    within = log_probability_within(jnp.where(is_interval, u - width / 2, 0), width)
    return jnp.where(is_interval, within, log_probability(u))


def finite_width(width: Distance) -> tuple[Array, Distance]:
    """Returns which censored values have a second limit, and the widths of their intervals; 1 elsewhere."""
    is_interval = jnp.isfinite(width)
    return is_interval, jnp.where(is_interval, width, 1)


def log_probability_within(off: Distance, width: Distance) -> Distance:
    """Computes the logarithm of the probability of an interval.

    **Arguments:** `off`: distance from its middle to the prediction. `width`: its width, positive and finite.
    """
    # An absolute value would have no curvature at 0.
    off = jnp.where(off < 0, -off, off)
    is_narrow = width * (1 + off) < NARROW_INTERVAL
    thin, wide = jnp.where(is_narrow, width, NARROW_INTERVAL), jnp.where(is_narrow, 1, width)
    narrow = norm.logpdf(off) + jnp.log(thin) + jnp.log1p((off**2 - 1) * thin**2 / 24)
    upper = log_probability(wide / 2 - off)
    # The slope of the logarithm exceeds the distance; this bound applies if the difference is rounding errors.
    fall = jnp.maximum(upper - log_probability(-wide / 2 - off), wide * off)
    return jnp.where(is_narrow, narrow, upper + log_complement(fall))


def log_complement(x: Distance) -> Distance:
    """Computes `log(1 - exp(-x))` for positive numbers (Maechler, Accurately computing log(1 - exp(-|a|)), 2012)."""
    return jnp.where(x < math.log(2), jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


def deviance_root(off: Distance, width: Distance) -> Distance:
    """Computes a residual with a square of twice the deficit of `log_probability_within` from its maximum.

    The maximum is at the middle of the interval; for a narrow one, the residual is the distance from there."""
    half = width / 2
    bend = jnp.maximum(width * jnp.exp(norm.logpdf(half)) / erf(half / math.sqrt(2)), ROOT_FLOOR)
    is_near = jnp.abs(off) * (1 + half) < NEAR_MIDDLE
    near, away = jnp.where(is_near, off, 0), jnp.where(is_near, 1, off)
    series = jnp.sqrt(bend) * near * (1 + (half**2 - 3 + 3 * bend) * near**2 / 24)
    deviance = 2 * (log_probability_within(jnp.zeros_like(off), width) - log_probability_within(away, width))
    return jnp.where(is_near, series, jnp.sign(away) * jnp.sqrt(jnp.maximum(deviance, ROOT_FLOOR)))
