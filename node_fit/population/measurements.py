"""What was measured of subjects, and how probable it is given the predictions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..likelihood.limits import log_probability_beyond
from ..runtime.placement import AnyArray
from .noise import ResidualNoise


class Measurements(NamedTuple):
    """Measurements of one subject or of several.

    - `y`, `mask`: values in the user's units, 0 where there is none, and where there is one.
    - `sides`: -1 where the value lies below `y`, 1 where above, else 0; None if all are exact.
    - `other_end`: of the interval in which such a value lies, NaN where there is none; None if nowhere is one.
    """

    y: Float[AnyArray, "*rows channel"]
    mask: Bool[AnyArray, "*rows channel"]
    sides: Int[AnyArray, "*rows channel"] | None = None
    other_end: Float[AnyArray, "*rows channel"] | None = None

    @property
    def exact(self) -> Bool[AnyArray, "*rows channel"]:
        """Where a value itself was measured, not a limit."""
        return self.mask if self.sides is None else self.mask & (self.sides == 0)

    @property
    def is_between(self) -> Bool[AnyArray, "*rows channel"]:
        """Where a value lies between two limits."""
        return self.mask & (False if self.other_end is None else abs(self.other_end) < np.inf)

    @property
    def middles(self) -> Float[np.ndarray, "*rows channel"]:
        """The values on the host, limits as they are, and the middle of two between which a value lies."""
        y = np.asarray(self.y)
        return y if self.other_end is None else np.where(self.is_between, (y + np.asarray(self.other_end)) / 2, y)

    @property
    def arrays(self) -> "Measurements":
        """The measurements as arrays of compiled programs."""
        return jax.tree.map(jnp.asarray, self)

    def residuals(self, f: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """Measured less predicted values, on the host; 0 of a prediction beyond the limit, as the value is. The value
        between two limits is taken as their middle."""
        off = np.asarray(self.y) - f
        if self.sides is None:
            return off
        return np.where(self.is_between, self.middles - f, np.where(self.sides * off < 0, 0.0, off))


def measurement_misfit(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> Float[Array, ""]:
    """Minus twice the log density of measurements, without the constants 2 pi; of counts, of their probability.

    A value beyond a limit, or between two, has the probability of lying there (methods M3 and M4 of Beal, J.
    Pharmacokinet. Pharmacodyn. 28, 2001).

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
    logs = log_probability_beyond(*beyond_limit(noise, parameters, h, seen, given))
    return total - 2 * jnp.where(is_limit(seen), logs, 0).sum()


def is_limit(seen: Measurements) -> Bool[Array, "*rows channel"]:
    """Where a value lies beyond a limit, or between two."""
    return jnp.asarray(seen.mask & ~seen.exact)


def beyond_limit(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> tuple[Float[Array, "*rows channel"], Float[Array, "*rows channel"] | None]:
    """How far predictions lie beyond limits, in standard deviations, 0 where there is none; and how far values may lie
    beyond them, infinite where there is no other end."""
    assert seen.sides is not None
    variance = noise.variance(h, parameters) if variance is None else variance
    variance = jnp.where(is_limit(seen), variance, 1)
    limit = noise.transform(seen.y)
    distance = jnp.where(is_limit(seen), seen.sides * (h - limit) / jnp.sqrt(variance), 0)
    if seen.other_end is None:
        return distance, None
    is_between = jnp.isfinite(seen.other_end) & is_limit(seen)
    span = jnp.abs(noise.transform(jnp.where(is_between, seen.other_end, seen.y)) - limit)
    return distance, jnp.where(is_between, span / jnp.sqrt(variance), jnp.inf)


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

    at, by = jax.jvp(lambda h: beyond_limit(noise, parameters, h, seen, variance), (h,), (jnp.ones_like(h),))

    def along(step: Array) -> Array:
        return log_probability_beyond(*jax.tree.map(lambda at, by: at + step * by, at, by))

    def rise(step: Array) -> Array:
        return jax.jvp(along, (step,), (jnp.ones_like(step),))[1]

    bend = -jax.jvp(rise, (jnp.zeros_like(h),), (jnp.ones_like(h),))[1]
    return weight + jnp.where(is_limit(seen), jnp.maximum(bend, 0), 0)
