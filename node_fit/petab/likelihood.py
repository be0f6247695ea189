"""Likelihoods of measurements under their noise, and prior densities of parameters."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import jax.scipy.stats as densities
from jaxtyping import Array, Float

from .formulas import Value
from .tables import Prior, TableParameter

LOG_10 = math.log(10.0)


def to_scale(value: Value, scale: str) -> Float[Array, "..."]:
    """A value on a scale of `lin`, `log` or `log10`."""
    number = jnp.asarray(value, float)
    return number if scale == "lin" else jnp.log(number) if scale == "log" else jnp.log(number) / LOG_10


def from_scale(value: Float[Array, "..."], scale: str) -> Float[Array, "..."]:
    """The value whose place on a scale is given."""
    return value if scale == "lin" else jnp.exp(value) if scale == "log" else jnp.exp(value * LOG_10)


class Noise(NamedTuple):
    """Noise of some measurements.

    - `kind`: `normal` or `laplace`. `scale`: on which it is added.
    - `measured`: the measurements, not transformed.
    """

    kind: str
    scale: str
    measured: Float[Array, " measurement"]

    def log_density(
        self, simulated: Float[Array, " measurement"], log_sigma: Float[Array, " measurement"]
    ) -> Float[Array, " measurement"]:
        """The log-likelihood of each measurement, from the simulated values on the noise's scale."""
        residual = self.residuals(simulated, log_sigma)
        constant = 0.5 * math.log(2 * math.pi) if self.kind == "normal" else math.log(2.0)
        distance = 0.5 * residual**2 if self.kind == "normal" else jnp.abs(residual)
        return -distance - log_sigma - constant - self.log_stretch()

    def residuals(
        self, simulated: Float[Array, " measurement"], log_sigma: Float[Array, " measurement"]
    ) -> Float[Array, " measurement"]:
        return (to_scale(self.measured, self.scale) - simulated) * jnp.exp(-log_sigma)

    def log_stretch(self) -> Float[Array, " measurement"]:
        """The logarithm of the derivative of a measurement by its value on the scale."""
        if self.scale == "lin":
            return jnp.zeros_like(self.measured)
        return jnp.log(self.measured) + (0.0 if self.scale == "log" else math.log(LOG_10))

    def slopes(
        self, simulated: Float[Array, " measurement"], log_sigma: Float[Array, " measurement"]
    ) -> tuple[Float[Array, " measurement"], Float[Array, " measurement"]]:
        """The derivatives of the log-likelihoods by the simulated values and by the logarithms of sigma."""
        residual = self.residuals(simulated, log_sigma)
        if self.kind == "normal":
            return residual * jnp.exp(-log_sigma), residual**2 - 1
        return jnp.sign(residual) * jnp.exp(-log_sigma), jnp.abs(residual) - 1

    def information(self, log_sigma: Float[Array, " measurement"]) -> tuple[Float[Array, " measurement"], float]:
        """The Fisher information of the simulated values and of the logarithm of sigma."""
        return jnp.exp(-2 * log_sigma), 2.0 if self.kind == "normal" else 1.0


DENSITIES: dict[str, Callable[..., Array]] = {
    "uniform": lambda x, lower, upper: densities.uniform.logpdf(x, lower, upper - lower),
    "normal": densities.norm.logpdf,
    "laplace": densities.laplace.logpdf,
    "log-normal": lambda x, mean, deviation: densities.norm.logpdf(jnp.log(x), mean, deviation) - jnp.log(x),
    "log-laplace": lambda x, middle, scale: densities.laplace.logpdf(jnp.log(x), middle, scale) - jnp.log(x),
    "log-uniform": lambda x, lower, upper: (
        densities.uniform.logpdf(jnp.log(x), math.log(lower), math.log(upper / lower)) - jnp.log(x)
    ),
    "cauchy": densities.cauchy.logpdf,
    "gamma": lambda x, shape, scale: densities.gamma.logpdf(x, shape, scale=scale),
    "chisquare": densities.chi2.logpdf,
    "exponential": lambda x, scale: densities.expon.logpdf(x, scale=scale),
    "rayleigh": lambda x, scale: jnp.log(x) - 2 * math.log(scale) - 0.5 * (x / scale) ** 2,
}


def mass_between(prior: Prior, lower: float, upper: float) -> float:
    """The probability between two bounds of a prior."""
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
    """The logarithm of the prior density of each estimated parameter that has one."""
    found = {}
    for name, parameter in parameters.items():
        if parameter.prior is None or not parameter.is_estimated:
            continue
        prior = parameter.prior
        value = jnp.asarray(values[name], float)
        value = to_scale(value, parameter.scale) if prior.is_on_scale else value
        density = DENSITIES[prior.name](value, *prior.numbers)
        if prior.is_truncated:
            density = density - math.log(mass_between(prior, parameter.lower, parameter.upper))
        found[name] = density
    return found
