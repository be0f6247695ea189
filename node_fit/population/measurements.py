"""The measurements of subjects, and their likelihood given the predictions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..likelihood.limits import log_probability_beyond
from ..runtime.placement import AnyArray
from .noise import ResidualNoise


class Measurements(NamedTuple):
    """Measurements of one or several subjects.

    - `y`, `mask`: values in the user's units, 0 if missing, and the mask of the present ones.
    - `sides`: -1 if the value lies below `y`, 1 if above, else 0; None if all are exact.
    - `other_end`: other end of the interval that contains such a value, NaN if it has none; None if none has one.
    """

    y: Float[AnyArray, "*rows channel"]
    mask: Bool[AnyArray, "*rows channel"]
    sides: Int[AnyArray, "*rows channel"] | None = None
    other_end: Float[AnyArray, "*rows channel"] | None = None

    @property
    def exact(self) -> Bool[AnyArray, "*rows channel"]:
        """Mask of the measured values that are not limits."""
        return self.mask if self.sides is None else self.mask & (self.sides == 0)

    @property
    def is_between(self) -> Bool[AnyArray, "*rows channel"]:
        """Mask of the values between two limits."""
        return self.mask & (False if self.other_end is None else abs(self.other_end) < np.inf)

    @property
    def middles(self) -> Float[np.ndarray, "*rows channel"]:
        """The values on the host, with limits as values, and the middle of two limits for a value between them."""
        y = np.asarray(self.y)
        return y if self.other_end is None else np.where(self.is_between, (y + np.asarray(self.other_end)) / 2, y)

    @property
    def arrays(self) -> "Measurements":
        """The measurements as arrays for compiled programs."""
        return jax.tree.map(jnp.asarray, self)

    def residuals(self, f: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """Computes measured minus predicted values, on the host; 0 for a prediction beyond the limit of the value.
        A value between two limits counts as their middle."""
        off = np.asarray(self.y) - f
        if self.sides is None:
            return off
        return np.where(self.is_between, self.middles - f, np.where(self.sides * off < 0, 0.0, off))


def measurement_misfit(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> Float[Array, ""]:
    """Computes minus twice the log-density of measurements, without the constants 2 pi; for counts the log-probability.

    A value beyond a limit, or between two, has the probability of lying there (methods M3 and M4 of Beal, J.
    Pharmacokinet. Pharmacodyn. 28, 2001).

    **Arguments:** `parameters`: log-parameters of the noise. `h`: transformed predictions. `variance`: variance of the
    measurements; by default that at `h`.
    """
    variance_used = noise.variance(h, parameters) if variance is None else variance
    is_count = np.broadcast_to(noise.is_count, h.shape)
    is_normal = seen.exact & ~is_count
    exact = jnp.where(is_normal, variance_used, 1)
    squares = (noise.transform(seen.y) - h) ** 2 / exact + jnp.log(exact)
    total = jnp.where(is_normal, squares, 0).sum()
    if is_count.any():
        counted = seen.exact & is_count
        at = jnp.where(counted, h, 0)
        total = total + jnp.where(counted, noise.misfit_of_counts(at, parameters, seen.y), 0).sum()
    if seen.sides is None:
        return total
    logs = log_probability_beyond(*beyond_limit(noise, parameters, h, seen, variance_used))
    return total - 2 * jnp.where(is_limit(seen), logs, 0).sum()


def is_limit(seen: Measurements) -> Bool[Array, "*rows channel"]:
    """Returns the mask of values beyond a limit, or between two."""
    return jnp.asarray(seen.mask & ~seen.exact)


def beyond_limit(
    noise: ResidualNoise, parameters: Array, h: Array, seen: Measurements, variance: Array | None = None
) -> tuple[Float[Array, "*rows channel"], Float[Array, "*rows channel"] | None]:
    """Computes the distances of predictions beyond limits, in standard deviations, 0 without a limit; and the distances
    that values can lie beyond them, infinite without another end."""
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
    """Computes twice the curvature of half the misfit in each prediction: for exact values the expected one, or with a
    fixed `variance` that of the mean alone; for limits that of the log-probability beyond them."""
    is_count = np.broadcast_to(noise.is_count, h.shape)
    own, slope = jax.jvp(lambda h: noise.variance(h, parameters), (h,), (jnp.ones_like(h),))
    if variance is not None:
        own, slope = jnp.where(is_count, own, variance), 0 * slope
    own = jnp.where(seen.exact, own, 1)
    # The variance of counts is not a separate parameter besides their mean.
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
