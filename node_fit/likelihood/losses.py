"""Likelihoods of measurements: losses of residuals, and likelihoods of counts.

A likelihood is a function of the `Predictors` of a measurement. Its negative logarithm has derivatives of any order and
equals half the sum of its squared `rows`, up to a constant, so that least squares and line searches apply.
"""

import abc
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from ..runtime.placement import AnyArray
from ..runtime.validation import check_choice, check_fields
from .limits import ROOT_FLOOR, deviance_root, finite_width, log_probability_beyond, log_probability_within

Residual = Float[Array, "..."]
Host = Float[np.ndarray, "..."]

# Lower bound of the negative logarithm of the density of any t-distribution at its center.
LEAST_LOG_PEAK = 0.9
# Minimum predicted count.
LEAST_COUNT = 1e-10


class Predictors(NamedTuple):
    """The prediction of a measurement, and the measurement.

    - `location`: predicted minus measured value or, for a count, the logarithm of the predicted count.
    - `log_scale`: the logarithm of the standard deviation, in the unit of `location`; 0 for a count.
    - `shapes`: the logarithms of further constants of the noise, in the order of `shapes` of the likelihood.
    - `value`: the measured count; not used otherwise.
    - `censored`: -1 if the value is below the recorded limit, 1 if it is above, else 0.
    - `width`: the width of the interval beyond that limit, in the unit of `location`; infinite for a one-sided limit,
      None if all limits are one-sided.
    """

    location: Float[Array, "..."]
    log_scale: Float[Array, "..."]
    shapes: tuple[Float[Array, "..."], ...]
    value: Float[AnyArray, "..."]
    censored: Float[AnyArray, "..."]
    width: Float[AnyArray, "..."] | None = None

    @property
    def distance(self) -> Float[Array, "..."]:
        """`location` in standard deviations."""
        return self.location * jnp.exp(-self.log_scale)

    @property
    def spans(self) -> Float[Array, "..."] | None:
        """`width` in standard deviations."""
        if self.width is None:
            return None
        # An infinite factor would turn a zero gradient into NaN.
        is_interval, width = finite_width(jnp.asarray(self.width))
        return jnp.where(is_interval, width * jnp.exp(-self.log_scale), jnp.inf)

    @property
    def beyond(self) -> Float[Array, "..."]:
        """Distance of a censored value's prediction beyond the recorded limit, in standard deviations."""
        return jnp.asarray(self.censored) * self.distance


class AbstractLikelihood(eqx.Module):
    """The likelihood of a measurement given its prediction.

    - `is_count`: whether measurements are numbers of events; their noise has no separate scale.
    - `shapes`: the names of fitted constants of the noise, except those of its scale.
    """

    @property
    def is_count(self) -> bool:
        return False

    @property
    def shapes(self) -> tuple[str, ...]:
        return ()

    @property
    def robust(self) -> bool:
        """Whether large residuals count less, which requires their standard deviation."""
        return False

    @abc.abstractmethod
    def negative_log(self, at: Predictors) -> Residual:
        """Computes the negative log probability (density) of each measurement, in the unit of `location`."""

    @abc.abstractmethod
    def rows(self, at: Predictors) -> list[Residual]:
        """Computes residuals with a sum of squares of twice `negative_log` without the logarithm of the scale, up to a
        constant; the first residual has the sign of the misfit."""

    def all_rows(self, at: Predictors, *, has_scale: bool) -> list[Residual]:
        """Computes `rows` and, with a fitted scale, its row."""
        rows = self.rows(at)
        if has_scale:
            rows.append(jnp.where(at.censored == 0, row_of_scale(at.log_scale), row_of_width(at.spans)))
        return rows

    def spread(self, at: Predictors) -> Residual:
        """Computes the standard deviation of each measurement, in its unit."""
        return jnp.exp(at.log_scale)


# Minimum standard deviation of fitted noise [scaled units].
LEAST_SCALE = 1e-4


def row_of_scale(log_scale: Residual) -> Residual:
    """Computes the residual of a fitted scale; its square is twice the log of the scale over its minimum, plus 1."""
    return jnp.sqrt(jnp.maximum(2 * (log_scale - math.log(LEAST_SCALE)), 0) + 1)


def row_of_width(spans: Residual | None) -> Residual | float:
    """Computes the residual of an interval due to the scale, the remainder at its middle; 0 for a limit."""
    if spans is None:
        return 0.0
    is_interval, spans = finite_width(spans)
    least = log_probability_within(jnp.zeros_like(spans), spans)
    return jnp.where(is_interval, jnp.sqrt(ROOT_FLOOR - 2 * least), 0)


class Predicted(AbstractLikelihood):
    """A likelihood that returns its predictors as rows, for derivatives with respect to them on the host.

    **Arguments:** `loss`: the likelihood.
    """

    loss: AbstractLikelihood

    @property
    def is_count(self) -> bool:
        return self.loss.is_count

    @property
    def shapes(self) -> tuple[str, ...]:
        return self.loss.shapes

    def negative_log(self, at: Predictors) -> Residual:
        return self.loss.negative_log(at)

    def rows(self, at: Predictors) -> list[Residual]:
        return [at.location, *(jnp.broadcast_to(shape, at.location.shape) for shape in at.shapes)]

    def all_rows(self, at: Predictors, *, has_scale: bool) -> list[Residual]:
        return [*self.rows(at), at.log_scale] if has_scale else self.rows(at)


class AbstractResidualLoss(AbstractLikelihood):
    """A loss `rho(z)` of residuals `z` in standard deviations, about half the square of a small residual.

    Objectives sum the squares of `sign(z) sqrt(2 rho(z))`, so that Levenberg-Marquardt and line searches apply (as in
    `scipy.optimize.least_squares`, and in Triggs et al., "Bundle adjustment: a modern synthesis", 2000, section 4.3).
    """

    @property
    def robust(self) -> bool:
        return True

    @abc.abstractmethod
    def factor(self, z: Residual) -> Residual:
        """Computes `sqrt(2 rho(z)) / abs(z)`, the factor of a residual; about 1 for a small residual."""

    @abc.abstractmethod
    def influence(self, z: Host) -> tuple[Host, Host]:
        """Computes the first and second derivatives of `rho`."""

    @abc.abstractmethod
    def log_density(self, z: Host) -> Host:
        """Computes the logarithm of the probability density that is proportional to `exp(-rho(z))`."""

    def at_shapes(self, shapes: tuple[Residual, ...]) -> "AbstractResidualLoss":
        """Returns the loss with values for its fitted constants."""
        return self

    def log_peak(self) -> Residual | float:
        """The logarithm of the density at 0."""
        return float(self.log_density(np.zeros(1))[0])

    def rho(self, z: Residual) -> Residual:
        """Computes the loss, which is 0 at 0."""
        return (z * self.factor(z)) ** 2 / 2

    def information(self) -> tuple[float, float]:
        """Computes the Fisher information of a measurement on its scaled location and on the logarithm of its scale.

        **Returns:** the expectations of `rho'(z)**2` and of `(z rho'(z) - 1)**2`.
        """
        from scipy.integrate import quad

        def expect(score: Callable[[Host, Host], Host]) -> float:
            def integrand(number: float) -> float:
                z = np.array([number])
                return float((score(z, self.influence(z)[0]) ** 2 * np.exp(self.log_density(z)))[0])

            return quad(integrand, -np.inf, 0)[0] + quad(integrand, 0, np.inf)[0]

        return expect(lambda _, slope: slope), expect(lambda z, slope: z * slope - 1)

    def negative_log(self, at: Predictors) -> Residual:
        loss = self.at_shapes(at.shapes)
        density = loss.rho(at.distance) - loss.log_peak() + at.log_scale
        return jnp.where(at.censored == 0, density, -log_probability_beyond(at.beyond, at.spans))

    def rows(self, at: Predictors) -> list[Residual]:
        loss, z = self.at_shapes(at.shapes), at.distance
        first = z * loss.factor(z)
        beyond = -at.censored * jnp.sqrt(ROOT_FLOOR - 2 * log_probability_beyond(at.beyond))
        if at.spans is not None:
            is_interval, spans = finite_width(at.spans)
            inside = jnp.where(is_interval, at.beyond - spans / 2, 0)
            beyond = jnp.where(is_interval, at.censored * deviance_root(inside, spans), beyond)
        rows = [jnp.where(at.censored == 0, first, beyond)]
        if at.shapes:
            rows.append(jnp.broadcast_to(jnp.sqrt(2 * (-loss.log_peak() - LEAST_LOG_PEAK)), z.shape))
        return rows


class Squares(AbstractResidualLoss):
    """Least squares: maximum likelihood with normal noise."""

    @property
    def robust(self) -> bool:
        return False

    def factor(self, z: Residual) -> Residual:
        return jnp.ones_like(z)

    def influence(self, z: Host) -> tuple[Host, Host]:
        return z, np.ones_like(z)

    def log_density(self, z: Host) -> Host:
        return -(z**2) / 2 - math.log(2 * math.pi) / 2

    def information(self) -> tuple[float, float]:
        return 1.0, 2.0


LEAST_SQUARES = Squares()


class Huber(AbstractResidualLoss):
    """Squares of small residuals, and absolute values of large ones (Huber, Ann. Math. Statist. 35, 1964).

    **Arguments:** `threshold`: the residual where they meet [standard deviations]; 1.345 costs 5 % of the efficiency
    with normal noise.

    **Raises:** `ValueError` if it is not positive.
    """

    threshold: float | Float[Array, ""] = 1.345

    def __check_init__(self):
        check_fields(self)
        if isinstance(self.threshold, float | int) and not self.threshold > 0:
            raise ValueError(f"threshold must be positive, got {self.threshold}.")

    def factor(self, z: Residual) -> Residual:
        limit = jnp.asarray(self.threshold, z.dtype)
        # Exactly 1 up to the limit.
        share = limit / jnp.maximum(jnp.abs(z), limit)
        return jnp.sqrt(share * (2 - share))

    def influence(self, z: Host) -> tuple[Host, Host]:
        limit = float(self.threshold)
        return np.clip(z, -limit, limit), (np.abs(z) <= limit).astype(z.dtype)

    def log_density(self, z: Host) -> Host:
        from scipy.special import ndtr

        limit = float(self.threshold)
        rho = np.where(np.abs(z) <= limit, z**2 / 2, limit * (np.abs(z) - limit / 2))
        inside = math.sqrt(2 * math.pi) * (2 * ndtr(limit) - 1)
        return -rho - math.log(inside + 2 * math.exp(-(limit**2) / 2) / limit)


class Laplace(AbstractResidualLoss):
    """Absolute values: maximum likelihood with Laplace's distribution.

    The standard deviation is the scale times the square root of 2 (P. S. Laplace, Mém. Acad. R. Sci. Paris 6, 1774)."""

    def factor(self, z: Residual) -> Residual:
        return jnp.sqrt(2 / jnp.maximum(jnp.abs(z), LEAST_DISTANCE))

    def influence(self, z: Host) -> tuple[Host, Host]:
        # All curvature is at 0; its mean is 1.
        return np.sign(z), np.ones_like(z)

    def log_density(self, z: Host) -> Host:
        return -np.abs(z) - math.log(2)


# Distance below which an absolute value is replaced by a square, for a finite slope.
LEAST_DISTANCE = 1e-6


class StudentT(AbstractResidualLoss):
    """Maximum likelihood with noise that has Student's t-distribution (Lange, Little and Taylor, JASA 84, 1989).

    A very large residual has almost no influence, so a poor initial guess may not recover; with `Huber` it always does.

    **Arguments:** `degrees`: degrees of freedom; fewer allow more outliers. With `fitted`, they are the fitted constant
    `degrees` of the noise, and its scale is fitted, too.

    **Raises:** `ValueError` if it is below 1.
    """

    degrees: float | Float[Array, "..."] | Literal["fitted"] = 4.0

    def __check_init__(self):
        check_fields(self, {"degrees": "a number or fitted"})
        if isinstance(self.degrees, float | int) and not self.degrees >= 1:
            raise ValueError(f"degrees must be at least 1, got {self.degrees}.")

    @property
    def shapes(self) -> tuple[str, ...]:
        return ("degrees",) if isinstance(self.degrees, str) else ()

    @property
    def number(self) -> float | Float[Array, "..."]:
        """The degrees of freedom; if fitted, the typical value used for scores."""
        return TYPICAL_DEGREES if isinstance(self.degrees, str) else self.degrees

    def at_shapes(self, shapes: tuple[Residual, ...]) -> "StudentT":
        return StudentT(jnp.exp(shapes[0])) if shapes else self

    def log_peak(self) -> Residual | float:
        if isinstance(self.degrees, float | int | str):
            return super().log_peak()
        degrees = self.degrees
        return gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - jnp.log(degrees * math.pi) / 2

    def factor(self, z: Residual) -> Residual:
        degrees = jnp.asarray(self.number, z.dtype)
        square = z**2 / degrees
        tiny = square < 1e-4
        # The square root of log(1 + x) / x is smooth at 0.
        ratio = jnp.where(tiny, 1 - square / 2 + square**2 / 3, jnp.log1p(square) / jnp.where(tiny, 1, square))
        return jnp.sqrt((degrees + 1) / degrees * ratio)

    def influence(self, z: Host) -> tuple[Host, Host]:
        degrees = float(self.number)
        weight = (degrees + 1) / (degrees + z**2)
        return weight * z, weight * (degrees - z**2) / (degrees + z**2)

    def log_density(self, z: Host) -> Host:
        from scipy.stats import t

        return t.logpdf(z, float(self.number))


# Initial guess for fitted degrees of freedom, and their value in scores.
TYPICAL_DEGREES = 4.0


class AbstractCounts(AbstractLikelihood):
    """A likelihood of counts around a predicted mean; the location is the logarithm of the mean."""

    @property
    def is_count(self) -> bool:
        return True

    @abc.abstractmethod
    def negative_log_at(self, log_mean: Residual, shapes: tuple[Residual, ...], value: Residual) -> Residual:
        """Computes the negative log probability of a count."""

    def negative_log(self, at: Predictors) -> Residual:
        return self.negative_log_at(at.location, at.shapes, jnp.asarray(at.value))

    def rows(self, at: Predictors) -> list[Residual]:
        """Computes deviance residuals, and the remainder when the prediction equals the count (McCullagh and Nelder,
        Generalized Linear Models, 1989, section 2.4)."""
        value = jnp.asarray(at.value)
        exact = jnp.log(jnp.maximum(value, LEAST_COUNT))
        least = self.negative_log_at(exact, at.shapes, value)
        # Near the count, the root of a rounded difference has no slope; its first-order term is accurate enough there.
        off = at.location - exact
        slope = jnp.sqrt(jnp.maximum(self.curvature(exact, at.shapes), ROOT_FLOOR))
        near = jnp.abs(off) < NEAR_COUNT
        away = jnp.where(near, exact + 1, at.location)
        deviance = 2 * (self.negative_log_at(away, at.shapes, value) - least)
        root = jnp.sign(off) * jnp.sqrt(jnp.maximum(deviance, ROOT_FLOOR))
        rows = [jnp.where(near, slope * off, root)]
        return [*rows, jnp.sqrt(2 * least + ROOT_FLOOR)] if at.shapes else rows

    @abc.abstractmethod
    def curvature(self, log_mean: Residual, shapes: tuple[Residual, ...]) -> Residual:
        """Computes the expected second derivative of `negative_log` in the location: squared mean over variance."""

    def spread(self, at: Predictors) -> Residual:
        return jnp.exp(at.location) / jnp.sqrt(self.curvature(at.location, at.shapes))


# Difference below which the logarithms of a predicted and a measured count are treated as equal.
NEAR_COUNT = 1e-3


class Poisson(AbstractCounts):
    """Counts of independent events: maximum likelihood with Poisson's distribution around the predicted number."""

    def negative_log_at(self, log_mean: Residual, shapes: tuple[Residual, ...], value: Residual) -> Residual:
        return jnp.exp(log_mean) - value * log_mean + gammaln(value + 1)

    def curvature(self, log_mean: Residual, shapes: tuple[Residual, ...]) -> Residual:
        return jnp.exp(log_mean)


class NegativeBinomial(AbstractCounts):
    """Overdispersed counts: their variance is `mean + dispersion * mean**2` (Lawless, Can. J. Statist. 15, 1987).

    The constant `dispersion` is fitted."""

    @property
    def shapes(self) -> tuple[str, ...]:
        return ("dispersion",)

    def negative_log_at(self, log_mean: Residual, shapes: tuple[Residual, ...], value: Residual) -> Residual:
        size = jnp.exp(-shapes[0])
        # With a small dispersion, the difference of two large logarithms equals a product of few factors.
        log_total = jnp.logaddexp(jnp.log(size), log_mean)
        binomial = gammaln(value + size) - gammaln(size) - gammaln(value + 1)
        return -(binomial + size * (jnp.log(size) - log_total) + value * (log_mean - log_total))

    def curvature(self, log_mean: Residual, shapes: tuple[Residual, ...]) -> Residual:
        return jnp.exp(log_mean) / (1 + jnp.exp(shapes[0] + log_mean))


# Likelihoods by their command-line names.
LOSSES: dict[str, AbstractLikelihood] = {
    "squares": LEAST_SQUARES,
    "huber": Huber(),
    "student": StudentT(),
    "laplace": Laplace(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
}


def as_loss(given: AbstractLikelihood | str) -> AbstractLikelihood:
    """Converts a name to its loss; returns a loss unchanged."""
    check_choice("loss", given, LOSSES)
    return LOSSES[given] if isinstance(given, str) else given


class LikelihoodDerivatives(NamedTuple):
    """Derivatives of `negative_log` with respect to the predictors: location, logarithm of the scale, shapes.

    - `gradient`: shape `(predictor, ...)`. `hessian`: shape `(predictor, predictor, ...)`.
    """

    gradient: Host
    hessian: Host


def differentiate_likelihood(loss: AbstractLikelihood, at: Predictors) -> LikelihoodDerivatives:
    """Computes the first and second derivatives of each measurement's negative logarithm, on the host."""
    shape = np.shape(at.location)
    varied = [at.location, at.log_scale, *at.shapes]
    columns = jnp.stack([jnp.broadcast_to(leaf, shape).reshape(-1) for leaf in varied], axis=1)
    known = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape).reshape(-1), (at.value, at.censored, at.width))

    def one(x: Array, known: tuple[Array, Array, Array | None]) -> Array:
        return loss.negative_log(Predictors(x[0], x[1], tuple(x[2:]), *known))

    gradient = jax.vmap(jax.grad(one))(columns, known)
    hessian = jax.vmap(jax.jacfwd(jax.grad(one)))(columns, known)
    count = columns.shape[1]
    return LikelihoodDerivatives(
        np.asarray(gradient, np.float64).T.reshape(count, *shape),
        np.moveaxis(np.asarray(hessian, np.float64), 0, -1).reshape(count, count, *shape),
    )
