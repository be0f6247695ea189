"""Random effects: their kinds, the covariance of several, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit
from node_fit.population.effects import coordinates_of, read_covariance, read_random
from node_fit.runtime.placement import scope


def make(constants):
    data = node_fit.Dataset.from_arrays(np.arange(3.0), np.ones((2, 3, 1)), states=["x"])
    equation = " + ".join(f"{name}*x" for name in constants)
    field = functools.partial(node_fit.Known, equations={"x": equation}, constants=constants)
    return node_fit.make_model(data, field=field, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("constant", "kind", "bounds"),
    [
        (2.0, "lognormal", (0.0, None)),
        ([2.0, 0, None], "lognormal", (0.0, None)),
        ([0.5, 0, 1], "logit", (0.0, 1.0)),
        (-1.0, "normal", (None, None)),
    ],
)
def test_kind_follows_from_the_constant(constant, kind, bounds):
    (coordinate,) = coordinates_of(make({"a": constant}), ["a"])
    assert (coordinate.kind, coordinate.bounds) == (kind, bounds)


def test_kinds_and_variances_are_read():
    assert read_random({"a": "normal", "b": {"variance": "1e-2"}}) == {"a": ("normal", 0.1), "b": (None, 0.01)}


@pytest.mark.parametrize(
    ("random", "said"),
    [
        (["b"], "the constants are a"),
        (["a", "a"], "twice"),
        ("a", "a list of constants"),
        ({"a": "gamma"}, "lognormal, normal or logit"),
        ({"a": {"sd": 1}}, "its keys are kind, variance"),
        ({"a": {"variance": -1}}, "a positive number"),
        ({"a": "logit"}, "needs two bounds"),
    ],
)
def test_wrong_effects_are_refused(random, said):
    with pytest.raises(ValueError, match=said):
        coordinates_of(make({"a": 2.0}), random)


def test_lognormal_effect_of_a_negative_constant_is_refused():
    with pytest.raises(ValueError, match="needs a positive constant"):
        coordinates_of(make({"a": -2.0}), {"a": "lognormal"})


def test_held_constant_has_no_effect():
    with pytest.raises(ValueError, match="hold at one value"):
        coordinates_of(make({"a": [1, 1, 1], "b": 1.0}), ["a"])


@pytest.mark.parametrize("words", ["full", [["b", "c"]]])
def test_factor_gives_back_the_covariance(words):
    covariances = read_covariance(words, ["a", "b", "c"])
    root = np.random.default_rng(0).standard_normal((3, 3))
    wanted = root @ root.T + np.eye(3)
    if words != "full":
        wanted[0, 1:] = wanted[1:, 0] = 0
    with scope("x64"):
        factor = np.asarray(covariances.factor(jnp.asarray(covariances.parameters_of(wanted))))
    np.testing.assert_allclose(factor @ factor.T, wanted, rtol=1e-12)
    assert covariances.parameters == (6 if words == "full" else 4)


@pytest.mark.parametrize(
    ("words", "said"), [("banded", "diagonal, full"), ([["d"]], "no effect"), ([["a", "a"]], "twice")]
)
def test_wrong_covariances_are_refused(words, said):
    with pytest.raises(ValueError, match=said):
        read_covariance(words, ["a", "b"])
