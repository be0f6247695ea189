"""What was measured of subjects, and how probable it is given the predictions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, Int

from ..runtime.placement import AnyArray
from .noise import ResidualNoise

# Farther below zero, the derivatives of the normal distribution's logarithm are differences of large numbers; the
# curvature is 1 there, to four digits.
FAR_TAIL = -100.0


class Measurements(NamedTuple):
    """Measurements of one subject or of several.

    - `y`, `mask`: values in the user's units, 0 where there is none, and where there is one.
    - `sides`: -1 where the value lies below `y`, 1 where above, else 0; None if all are exact.
    """

    y: Float[AnyArray, "*rows channel"]
    mask: Bool[AnyArray, "*rows channel"]
    sides: Int[AnyArray, "*rows channel"] | None = None

    @property
    def exact(self) -> Bool[AnyArray, "*rows channel"]:
        """Where a value itself was measured, not a limit."""
        return self.mask if self.sides is None else self.mask & (self.sides == 0)

    @property
    def arrays(self) -> "Measurements":
        """The measurements as arrays of compiled programs."""
        sides = None if self.sides is None else jnp.asarray(self.sides)
        return Measurements(jnp.asarray(self.y), jnp.asarray(self.mask), sides)

    def residuals(self, f: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """Measured less predicted values, on the host; 0 of a prediction beyond the limit, as the value is."""
        off = np.asarray(self.y) - f
        return off if self.sides is None else np.where(self.sides * off < 0, 0.0, off)


def measurement_misfit(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> Float[Array, ""]:
    """Minus twice the log density of measurements, without the constants 2 pi; of counts, of their probability.

    A value beyond a limit has the probability of lying there (method M3 of Beal, J. Pharmacokinet. Pharmacodyn. 28,
    2001).

    **Arguments:** `parameters`: of the noise, as logarithms. `h`: transformed predictions. `variance`: of the
    measurements; by default that at `h`.
    """
    given = noise.variance(h, parameters) if variance is None else variance
    is_count = np.broadcast_to(noise.is_count, h.shape)
    is_normal = seen.exact & ~is_count
    exact = jnp.where(is_normal, given, 1)
    squares = (noise.transform(seen.y) - h) ** 2 / exact + jnp.log(exact)
    total = jnp.where(is_normal, squares, 0).sum()
    if is_count.any():
        counted = seen.exact & is_count
        at = jnp.where(counted, h, 0)
        total = total + jnp.where(counted, noise.misfit_of_counts(at, parameters, seen.y), 0).sum()
    if seen.sides is None:
        return total
    distance = beyond_limit(noise, parameters, h, seen, given)
    return total - 2 * jnp.where(is_limit(seen), log_probability(distance), 0).sum()


def log_probability(u: Float[Array, "*rows channel"]) -> Float[Array, "*rows channel"]:
    """The logarithm of the standard normal distribution function, with two derivatives that hold in its far tail, too
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 26.2.12)."""
    far = u < FAR_TAIL
    tail, near = jnp.where(far, u, FAR_TAIL), jnp.where(far, FAR_TAIL, u)
    inverse = tail**-2
    series = norm.logpdf(tail) - jnp.log(-tail) + jnp.log1p(-inverse * (1 - 3 * inverse * (1 - 5 * inverse)))
    return jnp.where(far, series, norm.logcdf(near))


def is_limit(seen: Measurements) -> Bool[Array, "*rows channel"]:
    """Where a value lies beyond a limit."""
    return jnp.asarray(seen.mask & ~seen.exact)


def beyond_limit(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> Float[Array, "*rows channel"]:
    """How far predictions lie beyond limits, in standard deviations; 0 where there is none."""
    assert seen.sides is not None
    variance = noise.variance(h, parameters) if variance is None else variance
    variance = jnp.where(is_limit(seen), variance, 1)
    return jnp.where(is_limit(seen), seen.sides * (h - noise.transform(seen.y)) / jnp.sqrt(variance), 0)


def weights(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> Float[Array, "*rows channel"]:
    """Twice the curvature of half the misfit by each prediction: the expected one of exact values, of a given
    `variance` that of the mean alone; and of a limit that of the logarithm of the probability beyond it."""
    is_count = np.broadcast_to(noise.is_count, h.shape)
    own, slope = jax.jvp(lambda h: noise.variance(h, parameters), (h,), (jnp.ones_like(h),))
    if variance is not None:
        own, slope = jnp.where(is_count, own, variance), 0 * slope
    own = jnp.where(seen.exact, own, 1)
    # The variance of counts is no parameter beside their mean.
    weight = jnp.where(seen.exact, 1 / own + jnp.where(is_count, 0, 0.5 * (slope / own) ** 2), 0)
    if seen.sides is None:
        return weight

    def distance(h: Array) -> Array:
        return beyond_limit(noise, parameters, h, seen, variance)

    u, slope = jax.jvp(distance, (h,), (jnp.ones_like(h),))
    u = jnp.maximum(u, FAR_TAIL)
    ratio = jnp.exp(norm.logpdf(u) - norm.logcdf(u))
    return weight + jnp.where(is_limit(seen), jnp.maximum(ratio * (ratio + u), 0) * slope**2, 0)
