"""Residual noise: variances, the logarithm of log-normal measurements, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.population.noise import NOISE_KINDS, ResidualNoise
from node_fit.runtime.placement import scope

F = np.array([[1.0], [4.0]])


@pytest.mark.parametrize(
    ("kind", "parameters", "wanted"),
    [
        ("additive", [0.5], [0.25, 0.25]),
        ("proportional", [0.5], [0.25, 4.0]),
        ("combined", [0.3, 0.5], [0.34, 4.09]),
        ("power", [0.5, 0.5], [0.25, 1.0]),
        ("lognormal", [0.5], [0.25, 0.25]),
    ],
)
def test_variances(kind, parameters, wanted):
    noise = ResidualNoise.of(kind, ["y"])
    with scope("x64"):
        found = noise.variance(jnp.asarray(F), jnp.log(jnp.asarray(parameters)))
    np.testing.assert_allclose(np.asarray(found)[:, 0], wanted)
    assert len(noise.names) == len(NOISE_KINDS[kind].parameters)


def test_lognormal_measurements_are_normal_as_logarithms():
    """With the Jacobian, minus twice the log density is that of the log-normal distribution."""
    noise, y, f, s = ResidualNoise.of("lognormal", ["y"]), np.array([[2.0]]), np.array([[3.0]]), 0.4
    with scope("x64"):
        off = np.asarray(noise.transform(jnp.asarray(y)) - noise.transform(jnp.asarray(f)))
    from scipy.stats import lognorm

    found = float((off**2 / s**2 + 2 * np.log(s) + noise.jacobian(y)).sum())
    assert found + np.log(2 * np.pi) == pytest.approx(-2 * lognorm.logpdf(2.0, s, scale=3.0))
    np.testing.assert_allclose(noise.untransform(np.log(y)), y)


def test_each_channel_has_its_own():
    noise = ResidualNoise.of({"a": "proportional", "b": {"additive": 0.1, "proportional": 0.2}}, ["a", "b"])
    assert noise.kinds == ("proportional", "combined")
    assert noise.names == ("a.proportional", "b.additive", "b.proportional")
    np.testing.assert_allclose(np.exp(noise.first([1.0, 1.0], [10.0, 10.0])), [0.1, 0.1, 0.2])
    variance = noise.variance(jnp.array([[10.0, 3.0]]), jnp.log(jnp.array([0.3, 0.1, 0.2])))
    np.testing.assert_allclose(variance, [[3.0**2, 0.1**2 + 0.6**2]], rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gamma", "must be one of"),
        ({"z": "additive"}, "not measured"),
        ({"y": {"sd": 1.0}}, "they are additive"),
        ({"y": {"additive": -1.0}}, "a positive number"),
    ],
)
def test_wrong_noise_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        ResidualNoise.of(words, ["y"])


def test_proportional_noise_of_zero_is_refused():
    with pytest.raises(ValueError, match="use combined"):
        ResidualNoise.of("proportional", ["y"]).check(np.ones((1, 1)), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="not positive"):
        ResidualNoise.of("lognormal", ["y"]).check(np.zeros((1, 1)), np.ones((1, 1)))
