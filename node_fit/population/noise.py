"""Residual noise: the distribution of measurements around the prediction, normal or of counts.

One table of kinds serves the likelihood, simulated measurements and reports.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..likelihood.losses import AbstractCounts, NegativeBinomial, Poisson
from ..runtime.placement import AnyArray, scope
from ..runtime.validation import is_mapping

Variance = Callable[[AnyArray, Sequence[AnyArray]], AnyArray]
FirstValues = Callable[[float, float], tuple[float, ...]]


class NoiseKind(NamedTuple):
    """A kind of noise.

    - `parameters`: names of its positive parameters.
    - `variance`: variance as a function of the prediction, in its units or as a logarithm, and the parameters; for
      counts, the inverse of the information on their log-mean.
    - `first`: initial parameters from the root mean square of residuals and of measurements.
    - `is_logarithmic`: whether the logarithm of a measurement is normal.
    - `counts`: the distribution of counts around the prediction; None for normal measurements.
    """

    parameters: tuple[str, ...]
    variance: Variance
    first: FirstValues
    is_logarithmic: bool = False
    counts: AbstractCounts | None = None

    @property
    def predicts_logarithm(self) -> bool:
        """Whether the likelihood uses the logarithm of the prediction."""
        return self.is_logarithmic or self.counts is not None


# Lower bound of predictions in powers, and maximum initial noise, as a share of the prediction.
LEAST_PREDICTION, MAX_SHARE = 1e-12, 0.5
# Largest mean of simulated counts; larger ones come from diverging models, and NumPy can't draw such counts.
MOST_COUNTED = 1e15


def constant_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return s[0] ** 2 + 0 * f


def proportional_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return (s[0] * f) ** 2


def combined_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return s[0] ** 2 + (s[1] * f) ** 2


def power_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return s[0] ** 2 * jnp.exp(2 * s[1] * jnp.log(jnp.maximum(jnp.abs(f), LEAST_PREDICTION)))


def variance_of_counts(counts: AbstractCounts) -> Variance:
    """Returns the variance of a log-mean estimated from one count."""
    return lambda h, s: 1 / counts.curvature(jnp.asarray(h), tuple(jnp.log(parameter) for parameter in s))


def first_additive(residual: float, size: float) -> tuple[float, ...]:
    return (residual,)


def first_share(residual: float, size: float) -> tuple[float, ...]:
    return (min(residual / size, MAX_SHARE),)


def first_combined(residual: float, size: float) -> tuple[float, ...]:
    return (0.5 * residual, min(0.5 * residual / size, MAX_SHARE))


def first_power(residual: float, size: float) -> tuple[float, ...]:
    return (residual / size**0.5, 0.5)


def first_of_none(residual: float, size: float) -> tuple[float, ...]:
    return ()


def first_dispersion(residual: float, size: float) -> tuple[float, ...]:
    return (min(max((residual**2 - size) / size**2, 0.01), 1.0),)


# Beal and Sheiner, NONMEM Users Guides, part V: errors that add, in proportion to the prediction, or both.
NOISE_KINDS: dict[str, NoiseKind] = {
    "additive": NoiseKind(("additive",), constant_variance, first_additive),
    "proportional": NoiseKind(("proportional",), proportional_variance, first_share),
    "combined": NoiseKind(("additive", "proportional"), combined_variance, first_combined),
    "power": NoiseKind(("proportional", "exponent"), power_variance, first_power),
    "lognormal": NoiseKind(("lognormal",), constant_variance, first_share, is_logarithmic=True),
    "poisson": NoiseKind((), variance_of_counts(Poisson()), first_of_none, counts=Poisson()),
    "negative_binomial": NoiseKind(
        ("dispersion",), variance_of_counts(NegativeBinomial()), first_dispersion, counts=NegativeBinomial()
    ),
}
# Type of `noise`: a kind for all channels, or by channel, or initial values.
NoiseWords = str | Mapping[str, str | Mapping[str, float]]


@dataclass(frozen=True)
class ResidualNoise:
    """The noise of all channels.

    - `channels`, `kinds`: their names and kinds.
    - `given`: the initial values of each channel's parameters; empty if the user provided none.
    """

    channels: tuple[str, ...]
    kinds: tuple[str, ...]
    given: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(words: object, channels: Sequence[str]) -> "ResidualNoise":
        """Reads the noise: a kind such as `proportional`, or by channel a kind or initial values of its parameters.

        **Raises:** `ValueError` that names the channel and the kinds.
        """
        if not is_mapping(words):
            words = dict.fromkeys(channels, words)
        for name in words:
            if name not in channels:
                raise ValueError(
                    f"noise names {name!r}, which is not measured; the channels are {', '.join(channels)}."
                )
        kinds: list[str] = []
        given: list[tuple[float, ...]] = []
        for name in channels:
            entry = words.get(name, "additive")
            if is_mapping(entry) and entry:
                kind = kind_with({str(key) for key in entry}, name)
                given.append(
                    tuple(read_positive(entry[key], f"noise.{name}.{key}") for key in NOISE_KINDS[kind].parameters)
                )
            elif isinstance(entry, str) and entry in NOISE_KINDS:
                kind = str(entry)
                given.append(())
            else:
                raise ValueError(f"noise of {name!r} must be one of {', '.join(NOISE_KINDS)}, got {entry!r:.40}.")
            kinds.append(kind)
        return ResidualNoise(tuple(channels), tuple(kinds), tuple(given))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, such as `c.additive`."""
        pairs = zip(self.channels, self.kinds, strict=True)
        return tuple(f"{channel}.{parameter}" for channel, kind in pairs for parameter in NOISE_KINDS[kind].parameters)

    @property
    def sizes(self) -> list[int]:
        """The number of parameters of each channel."""
        return [len(NOISE_KINDS[kind].parameters) for kind in self.kinds]

    def first(self, residual: Sequence[float], size: Sequence[float]) -> Float[np.ndarray, " parameter"]:
        """Returns the logarithms of the initial parameters.

        **Arguments:** `residual`, `size`: root mean square of the residuals and of the measurements of each channel.
        """
        values: list[float] = []
        for kind, given, deviation, scale in zip(self.kinds, self.given, residual, size, strict=True):
            values += given or NOISE_KINDS[kind].first(max(deviation, 1e-6 * scale), scale)
        return np.log(values)

    def transform(self, f: Float[AnyArray, "*rows channel"]) -> Float[Array, "*rows channel"]:
        """Transforms measurements or predictions to the likelihood scale; a log for log-normal noise and counts."""
        logarithmic = np.array([NOISE_KINDS[kind].predicts_logarithm for kind in self.kinds])
        if not logarithmic.any():
            return jnp.asarray(f)
        inside = jnp.where(f > 0, f, 1.0)
        # Extend it linearly beyond the domain, so that a search can return.
        logs = jnp.where(f > 0, jnp.log(inside), -1e3 + f)
        return jnp.where(logarithmic.reshape((1,) * (f.ndim - 1) + (-1,)), logs, f)

    def untransform(self, h: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """Inverts `transform`, on the host."""
        logarithmic = np.array([NOISE_KINDS[kind].predicts_logarithm for kind in self.kinds])
        return np.where(logarithmic, np.exp(np.where(logarithmic, h, 0.0)), h)

    @property
    def is_count(self) -> Bool[np.ndarray, " channel"]:
        """Mask of the channels that are counts."""
        return np.array([NOISE_KINDS[kind].counts is not None for kind in self.kinds])

    def misfit_of_counts(
        self, h: Float[Array, "*rows channel"], x: Float[Array, " parameter"], y: Float[AnyArray, "*rows channel"]
    ) -> Float[Array, "*rows channel"]:
        """Computes minus twice the log-probability of counts; 0 for other channels."""
        columns: list[Array] = []
        for index, (kind, own) in enumerate(zip(self.kinds, self.split(x), strict=True)):
            counts, at = NOISE_KINDS[kind].counts, h[..., index]
            value = jnp.asarray(y[..., index])
            columns.append(at * 0 if counts is None else 2 * counts.negative_log_at(at, tuple(own), value))
        return jnp.stack(columns, axis=-1)

    def split(self, x: Float[Array, " parameter"]) -> list[Float[Array, " own"]]:
        """Splits log-parameters by channel."""
        ends = np.cumsum(self.sizes)
        return [x[end - count : end] for count, end in zip(self.sizes, ends, strict=True)]

    def simulate(
        self, f: Float[np.ndarray, "*rows channel"], x: Float[np.ndarray, " parameter"], rng: np.random.Generator
    ) -> Float[np.ndarray, "*rows channel"]:
        """Simulates measurements around predictions in the user's units; NaN for missing predictions."""
        with scope("x64"):
            h = self.transform(jnp.asarray(f))
            deviation = np.sqrt(np.asarray(self.variance(h, jnp.asarray(x))))
        with np.errstate(invalid="ignore", over="ignore"):
            simulated = self.untransform(np.asarray(h) + deviation * rng.standard_normal(deviation.shape))
        for index in np.flatnonzero(self.is_count):
            mean = f[..., index]
            is_mean = np.isfinite(mean) & (mean < MOST_COUNTED)
            rate = np.where(is_mean, np.maximum(mean, 0.0), 0.0)
            if self.kinds[index] == "negative_binomial":  # Poisson counts with gamma-distributed rates.
                dispersion = float(np.exp(np.split(x, np.cumsum(self.sizes))[index][0]))
                rate = rng.gamma(1 / dispersion, dispersion * rate)
            simulated[..., index] = np.where(is_mean, rng.poisson(rate), np.nan)
        return simulated

    def deviation(
        self, f: Float[np.ndarray, "*rows channel"], x: Float[np.ndarray, " parameter"]
    ) -> Float[np.ndarray, "*rows channel"]:
        """Computes standard deviations of transformed measurements, and of untransformed counts."""
        with scope("x64"):
            deviations = np.sqrt(np.asarray(self.variance(self.transform(jnp.asarray(f)), jnp.asarray(x))))
        return np.where(self.is_count, f * deviations, deviations)

    def jacobian(self, y: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """Computes the term of the log-transform in minus twice the log-density of a measurement."""
        logarithmic = np.array([NOISE_KINDS[kind].is_logarithmic for kind in self.kinds])
        return np.where(logarithmic, 2 * np.log(np.where(logarithmic & (y > 0), y, 1.0)), 0.0)

    def variance(
        self, h: Float[Array, "*rows channel"], x: Float[Array, " parameter"]
    ) -> Float[Array, "*rows channel"]:
        """Computes variances of transformed measurements from transformed predictions and log-parameters."""
        columns = [
            NOISE_KINDS[kind].variance(h[..., index], list(jnp.exp(own)))
            for index, (kind, own) in enumerate(zip(self.kinds, self.split(x), strict=True))
        ]
        return jnp.stack([jnp.asarray(column) for column in columns], axis=-1)

    def check(self, y: Float[np.ndarray, "*rows channel"], f: Float[np.ndarray, "*rows channel"]) -> None:
        """Refuses measurements that the noise can't explain.

        **Arguments:** `y`, `f`: measurements, NaN if missing, and predictions.

        **Raises:** `ValueError` that names the channel and another kind.
        """
        for index, (channel, kind) in enumerate(zip(self.channels, self.kinds, strict=True)):
            known = np.isfinite(y[..., index])
            if kind == "lognormal" and (y[..., index][known] <= 0).any():
                raise ValueError(
                    f"noise of {channel!r} is log-normal, and a measurement is not positive; use combined, or leave "
                    "these rows out."
                )
            values = y[..., index][known]
            if NOISE_KINDS[kind].counts is not None and ((values < 0) | (values % 1 != 0)).any():
                bad = float(values[(values < 0) | (values % 1 != 0)][0])
                raise ValueError(
                    f"noise of {channel!r} is {kind}, which is of counts, and {bad:g} is none; counts are 0, 1, 2 and "
                    "so on, so scale the column back to them, or use another noise."
                )
            if kind in ("proportional", "power") and (known & (np.abs(f[..., index]) < 1e-12)).any():
                raise ValueError(
                    f"noise of {channel!r} is {kind}, and the model predicts 0 where a value was measured, which then "
                    "has no noise at all; use combined, or leave these rows out."
                )


def kind_with(parameters: set[str], channel: str) -> str:
    """Returns the kind of noise with these parameters."""
    kind = next((kind for kind, candidate in NOISE_KINDS.items() if set(candidate.parameters) == parameters), None)
    if kind is None:
        known = "; ".join(f"{kind}: {', '.join(candidate.parameters)}" for kind, candidate in NOISE_KINDS.items())
        raise ValueError(f"noise of {channel!r} has the parameters {', '.join(sorted(parameters))}; they are {known}.")
    return kind


def read_positive(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r:.40}.")
    return float(cast(float, value))
