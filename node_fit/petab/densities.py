"""The probability densities of PEtab's tables: measurement noise and priors of parameters."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.stats as densities
from jaxtyping import Array, Float

from ..expressions.operations import Value
from ..likelihood.losses import AbstractResidualLoss
from .tables import Prior, TableParameter

LOG_10 = math.log(10.0)


def to_scale(value: Value, scale: str) -> Float[Array, "..."]:
    """Transforms a value to the scale `lin`, `log` or `log10`."""
    number = jnp.asarray(value, float)
    return number if scale == "lin" else jnp.log(number) if scale == "log" else jnp.log(number) / LOG_10


def from_scale(value: Float[Array, "..."], scale: str) -> Float[Array, "..."]:
    """Transforms a value back from its scale."""
    return value if scale == "lin" else jnp.exp(value) if scale == "log" else jnp.exp(value * LOG_10)


class Noise(NamedTuple):
    """The noise of a block of measurements.

    - `loss`: the negative logarithm of its density. `scale`: the scale on which it is added.
    - `measured`: the measurements, not transformed.
    """

    loss: AbstractResidualLoss
    scale: str
    measured: Float[Array, " measurement"]

    def log_density(
        self, simulated: Float[Array, " measurement"], log_sigma: Float[Array, " measurement"]
    ) -> Float[Array, " measurement"]:
        """Computes the log-likelihood of each measurement from the simulated values on the noise's scale."""
        distance = self.loss.rho(self.residuals(simulated, log_sigma))
        return self.loss.log_peak() - distance - log_sigma - self.log_stretch()

    def residuals(
        self, simulated: Float[Array, " measurement"], log_sigma: Float[Array, " measurement"]
    ) -> Float[Array, " measurement"]:
        return (to_scale(self.measured, self.scale) - simulated) * jnp.exp(-log_sigma)

    def log_stretch(self) -> Float[Array, " measurement"]:
        """Computes the log-derivative of a measurement with respect to its value on the scale."""
        if self.scale == "lin":
            return jnp.zeros_like(self.measured)
        return jnp.log(self.measured) + (0.0 if self.scale == "log" else math.log(LOG_10))

    def slopes(
        self, simulated: Float[Array, " measurement"], log_sigma: Float[Array, " measurement"]
    ) -> tuple[Float[Array, " measurement"], Float[Array, " measurement"]]:
        """Computes derivatives of the log-likelihoods in the simulated values and in the logarithms of sigma."""
        residual = self.residuals(simulated, log_sigma)
        influence = jax.vmap(jax.grad(self.loss.rho))(residual)
        return influence * jnp.exp(-log_sigma), influence * residual - 1

    def information(self, log_sigma: Float[Array, " measurement"]) -> tuple[Float[Array, " measurement"], float]:
        """Computes the Fisher information of the simulated values and of the logarithm of sigma."""
        of_location, of_scale = self.loss.information()
        return of_location * jnp.exp(-2 * log_sigma), of_scale


def of_logarithm(density: Callable[..., Array]) -> Callable[..., Array]:
    """Converts the density of a number's logarithm to that of the number."""

    def of_number(x: Array, *numbers: float) -> Array:
        return density(jnp.log(x), *numbers) - jnp.log(x)

    return of_number


def uniform(x: Array, lower: float, upper: float) -> Array:
    return densities.uniform.logpdf(x, lower, upper - lower)


def log_uniform(x: Array, lower: float, upper: float) -> Array:
    return of_logarithm(densities.uniform.logpdf)(x, math.log(lower), math.log(upper / lower))


def gamma(x: Array, shape: float, scale: float) -> Array:
    return densities.gamma.logpdf(x, shape, scale=scale)


def exponential(x: Array, scale: float) -> Array:
    return densities.expon.logpdf(x, scale=scale)


def rayleigh(x: Array, scale: float) -> Array:
    return jnp.log(x) - 2 * math.log(scale) - 0.5 * (x / scale) ** 2


DENSITIES: dict[str, Callable[..., Array]] = {
    "uniform": uniform,
    "normal": densities.norm.logpdf,
    "laplace": densities.laplace.logpdf,
    "log-normal": of_logarithm(densities.norm.logpdf),
    "log-laplace": of_logarithm(densities.laplace.logpdf),
    "log-uniform": log_uniform,
    "cauchy": densities.cauchy.logpdf,
    "gamma": gamma,
    "chisquare": densities.chi2.logpdf,
    "exponential": exponential,
    "rayleigh": rayleigh,
}


def mass_between(prior: Prior, lower: float, upper: float) -> float:
    """Computes the probability mass of a prior between two bounds."""
    from scipy import stats

    a, b = (*prior.numbers, 0.0)[:2]
    distributions = {
        "uniform": lambda: stats.uniform(a, b - a), "normal": lambda: stats.norm(a, b),
        "laplace": lambda: stats.laplace(a, b), "log-normal": lambda: stats.lognorm(b, scale=math.exp(a)),
        "log-uniform": lambda: stats.loguniform(a, b), "cauchy": lambda: stats.cauchy(a, b),
        "gamma": lambda: stats.gamma(a, scale=b), "chisquare": lambda: stats.chi2(a),
        "exponential": lambda: stats.expon(scale=a), "rayleigh": lambda: stats.rayleigh(scale=a),
    }  # fmt: skip
    if prior.name == "log-laplace":
        law = stats.laplace(a, b)
        return float(law.cdf(math.log(upper)) - (law.cdf(math.log(lower)) if lower > 0 else 0.0))
    law = distributions[prior.name]()
    return float(law.cdf(upper) - law.cdf(lower))


def log_priors(parameters: Mapping[str, TableParameter], values: Mapping[str, Value]) -> dict[str, Float[Array, ""]]:
    """Computes the log-density of the prior of each estimated parameter that has one."""
    log_densities: dict[str, Array] = {}
    for name, parameter in parameters.items():
        if parameter.prior is None or not parameter.is_estimated:
            continue
        prior = parameter.prior
        value = jnp.asarray(values[name], float)
        value = to_scale(value, parameter.scale) if prior.is_on_scale else value
        density = DENSITIES[prior.name](value, *prior.numbers)
        if prior.is_truncated:
            density = density - math.log(mass_between(prior, parameter.lower, parameter.upper))
        log_densities[name] = density
    return log_densities
