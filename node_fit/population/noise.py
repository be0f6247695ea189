"""Residual noise: the standard deviation of a measurement as a function of the prediction.

One table of kinds serves the likelihood, simulated measurements and reports.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..runtime.placement import AnyArray
from ..runtime.validation import is_mapping

Variance = Callable[[AnyArray, Sequence[AnyArray]], AnyArray]
FirstValues = Callable[[float, float], tuple[float, ...]]


class NoiseKind(NamedTuple):
    """A kind of noise.

    - `parameters`: names of its positive parameters.
    - `variance`: from the prediction, in its own units or their logarithm, and the parameters.
    - `first`: its parameters from the root mean square of residuals and of measurements.
    - `is_logarithmic`: whether the logarithm of a measurement is normal.
    """

    parameters: tuple[str, ...]
    variance: Variance
    first: FirstValues
    is_logarithmic: bool = False


# The least prediction of which a power is taken, and the largest noise before a fit, as a share of the prediction.
LEAST_PREDICTION, MAX_SHARE = 1e-12, 0.5


def constant_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return s[0] ** 2 + 0 * f


def proportional_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return (s[0] * f) ** 2


def combined_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return s[0] ** 2 + (s[1] * f) ** 2


def power_variance(f: AnyArray, s: Sequence[AnyArray]) -> AnyArray:
    return s[0] ** 2 * jnp.exp(2 * s[1] * jnp.log(jnp.maximum(jnp.abs(f), LEAST_PREDICTION)))


def first_additive(residual: float, size: float) -> tuple[float, ...]:
    return (residual,)


def first_share(residual: float, size: float) -> tuple[float, ...]:
    return (min(residual / size, MAX_SHARE),)


def first_combined(residual: float, size: float) -> tuple[float, ...]:
    return (0.5 * residual, min(0.5 * residual / size, MAX_SHARE))


def first_power(residual: float, size: float) -> tuple[float, ...]:
    return (residual / size**0.5, 0.5)


# Beal and Sheiner, NONMEM Users Guides, part V: errors that add, in proportion to the prediction, or both.
NOISE_KINDS: dict[str, NoiseKind] = {
    "additive": NoiseKind(("additive",), constant_variance, first_additive),
    "proportional": NoiseKind(("proportional",), proportional_variance, first_share),
    "combined": NoiseKind(("additive", "proportional"), combined_variance, first_combined),
    "power": NoiseKind(("proportional", "exponent"), power_variance, first_power),
    "lognormal": NoiseKind(("lognormal",), constant_variance, first_share, is_logarithmic=True),
}
# `noise` of a command and of Python: a kind for all channels, or by channel, or numbers to begin with.
NoiseWords = str | Mapping[str, str | Mapping[str, float]]


@dataclass(frozen=True)
class ResidualNoise:
    """The noise of all channels.

    - `channels`, `kinds`: their names, and the kind of each.
    - `given`: the first values of each channel's parameters; empty where the user has given none.
    """

    channels: tuple[str, ...]
    kinds: tuple[str, ...]
    given: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(words: object, channels: Sequence[str]) -> "ResidualNoise":
        """Reads the noise: a kind such as `proportional`, or by channel a kind or first values of its parameters.

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
            if is_mapping(entry):
                kind = kind_with({str(key) for key in entry}, name)
                given.append(
                    tuple(read_positive(entry[key], f"noise.{name}.{key}") for key in NOISE_KINDS[kind].parameters)
                )
            elif entry in NOISE_KINDS:
                kind = str(entry)
                given.append(())
            else:
                raise ValueError(f"noise of {name!r} must be one of {', '.join(NOISE_KINDS)}, got {entry!r:.40}.")
            kinds.append(kind)
        return ResidualNoise(tuple(channels), tuple(kinds), tuple(given))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, such as `c.additive`."""
        pairs = zip(self.channels, self.kinds, strict=True)
        return tuple(f"{channel}.{parameter}" for channel, kind in pairs for parameter in NOISE_KINDS[kind].parameters)

    @property
    def counts(self) -> list[int]:
        """The number of parameters of each channel."""
        return [len(NOISE_KINDS[kind].parameters) for kind in self.kinds]

    def first(self, residual: Sequence[float], size: Sequence[float]) -> Float[np.ndarray, " parameter"]:
        """The logarithms of first parameters.

        **Arguments:** `residual`, `size`: root mean square of the residuals and of the measurements of each channel.
        """
        values: list[float] = []
        for kind, given, deviation, scale in zip(self.kinds, self.given, residual, size, strict=True):
            values += given or NOISE_KINDS[kind].first(max(deviation, 1e-6 * scale), scale)
        return np.log(values)

    def transform(self, f: Float[AnyArray, "*rows channel"]) -> Float[Array, "*rows channel"]:
        """Measurements or predictions where their noise is normal: the logarithm of log-normal channels."""
        logarithmic = np.array([NOISE_KINDS[kind].is_logarithmic for kind in self.kinds])
        if not logarithmic.any():
            return jnp.asarray(f)
        inside = jnp.where(f > 0, f, 1.0)
        # Beyond the domain a straight line, so that a search comes back.
        logs = jnp.where(f > 0, jnp.log(inside), -1e3 + f)
        return jnp.where(logarithmic.reshape((1,) * (f.ndim - 1) + (-1,)), logs, f)

    def untransform(self, h: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """The inverse of `transform`, on the host."""
        logarithmic = np.array([NOISE_KINDS[kind].is_logarithmic for kind in self.kinds])
        return np.where(logarithmic, np.exp(np.where(logarithmic, h, 0.0)), h)

    def jacobian(self, y: Float[np.ndarray, "*rows channel"]) -> Float[np.ndarray, "*rows channel"]:
        """What the logarithm of a measurement adds to minus twice its log density."""
        logarithmic = np.array([NOISE_KINDS[kind].is_logarithmic for kind in self.kinds])
        return np.where(logarithmic, 2 * np.log(np.where(logarithmic & (y > 0), y, 1.0)), 0.0)

    def variance(
        self, h: Float[Array, "*rows channel"], x: Float[Array, " parameter"]
    ) -> Float[Array, "*rows channel"]:
        """Variances of transformed measurements, from transformed predictions and the logarithms of the parameters."""
        columns: list[AnyArray] = []
        begin = 0
        for index, kind in enumerate(self.kinds):
            end = begin + len(NOISE_KINDS[kind].parameters)
            columns.append(NOISE_KINDS[kind].variance(h[..., index], [jnp.exp(x[at]) for at in range(begin, end)]))
            begin = end
        return jnp.stack([jnp.asarray(column) for column in columns], axis=-1)

    def check(self, y: Float[np.ndarray, "*rows channel"], f: Float[np.ndarray, "*rows channel"]) -> None:
        """Refuses measurements that the noise can't explain.

        **Arguments:** `y`, `f`: measurements, NaN where there are none, and predictions.

        **Raises:** `ValueError` that names the channel and another kind.
        """
        for index, (channel, kind) in enumerate(zip(self.channels, self.kinds, strict=True)):
            known = np.isfinite(y[..., index])
            if kind == "lognormal" and (y[..., index][known] <= 0).any():
                raise ValueError(
                    f"noise of {channel!r} is log-normal, and a measurement is not positive; use combined, or leave "
                    "these rows out."
                )
            if kind in ("proportional", "power") and (known & (np.abs(f[..., index]) < 1e-12)).any():
                raise ValueError(
                    f"noise of {channel!r} is {kind}, and the model predicts 0 where a value was measured, which then "
                    "has no noise at all; use combined, or leave these rows out."
                )


def kind_with(parameters: set[str], channel: str) -> str:
    """The kind of noise that has these parameters."""
    kind = next((kind for kind, each in NOISE_KINDS.items() if set(each.parameters) == parameters), None)
    if kind is None:
        known = "; ".join(f"{kind}: {', '.join(each.parameters)}" for kind, each in NOISE_KINDS.items())
        raise ValueError(f"noise of {channel!r} has the parameters {', '.join(sorted(parameters))}; they are {known}.")
    return kind


def read_positive(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r:.40}.")
    return float(cast(float, value))
