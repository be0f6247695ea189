"""Constants of known equations: their values, their bounds, and their trained parameters."""

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit as nf
from node_fit.model.fields.known import Constants
from node_fit.runtime.placement import carry, dtype_of, scope
from node_fit.storage.model_file import describe_part, rebuild

RATES = {"a": 0.5, "b": [0.03, 0, None], "c": [0.8, 0, 2], "d": [-4, None, -1.5], "huge": -3e7, "none": 0}


def test_constants_begin_at_their_values(precision):
    with scope(precision):
        constants = Constants.of(RATES)
        values = eqx.filter_jit(lambda module: module.values())(constants)
        assert list(values) == list(RATES) == list(constants.as_dict())
        for name, entry in RATES.items():
            expected = entry[0] if isinstance(entry, list) else entry
            assert values[name].shape == () and values[name].dtype == dtype_of(precision)
            np.testing.assert_allclose(values[name], expected, rtol=1e-6)
            np.testing.assert_allclose(constants.as_dict()[name], expected, rtol=1e-6)
        assert all(type(value) is float for value in constants.as_dict().values())


def test_one_array_of_order_one_is_trained():
    constants = Constants.of(RATES)
    (leaf,) = jax.tree.leaves(constants)
    assert leaf is constants.raw and leaf.shape == (6,)
    assert (jnp.abs(leaf) < 4).all()
    assert jax.tree.leaves(Constants.of({})) == [] or Constants.of({}).values() == {}


@pytest.mark.parametrize("far", [-1e4, -20.0, 20.0, 1e4])
def test_no_step_leaves_the_bounds(far):
    constants = eqx.tree_at(lambda module: module.raw, Constants.of(RATES), jnp.full(6, far))
    values = constants.as_dict()
    assert values["b"] > 0 and 0 < values["c"] <= 2 and values["d"] <= -1.5
    assert all(np.isfinite(value) for value in values.values())
    gradient = jax.grad(lambda module: sum(module.values().values()))(constants)
    assert np.isfinite(gradient.raw).all()


HELD = {"a": 0.5, "g": [0.14, 0.14, 0.14], "b": [0.03, 0, None]}


def test_equal_bounds_hold_a_constant(precision):
    with scope(precision):
        constants = Constants.of(HELD)
        values = constants.values()
        assert [float(values[name]) for name in HELD] == pytest.approx([0.5, 0.14, 0.03])
        assert {value.dtype for value in values.values()} == {dtype_of(precision)}
    assert constants.raw.shape == (2,) and [name for name, _, _ in constants.free()] == ["a", "b"]
    assert constants.around(np.array([[0.0, 0.0], [1.0, 1.0]]), 10.0).shape == (2, 2)
    again = rebuild(json.loads(json.dumps(describe_part(constants, "field", tensors := {}))), tensors, ())
    assert again.as_dict() == pytest.approx(constants.as_dict(), rel=1e-6) and again.bounds == constants.bounds


HALF_HELD = functools.partial(nf.Known, equations={"x": "-(k + g)*x"}, constants={"k": 0.3, "g": [0.2, 0.2, 0.2]})


def noisy_decay() -> nf.Dataset:
    ts = np.linspace(0.0, 4.0, 30)
    noise = np.random.default_rng(0).normal(size=30) * 0.01
    return nf.Dataset.from_arrays(ts, (2.0 * np.exp(-0.7 * ts) + noise)[:, None], states=["x"])


@pytest.mark.slow
def test_a_held_constant_stays_and_has_no_interval():
    fit = nf.fit(noisy_decay(), field=HALF_HELD, options=nf.Options(derived={"both": "k + g"}))
    assert fit.constants["g"] == pytest.approx(0.2) and fit.constants["k"] == pytest.approx(0.5, abs=0.02)
    found = fit.confidence()
    assert list(found.constants) == ["k"] and found.derived["both"].estimate == pytest.approx(0.7, abs=0.02)
    assert found.derived["both"].lower > 0.65 and "g" not in fit.diagnose().sentence.split()


def test_a_constant_is_held_by_its_bounds_and_not_frozen():
    with pytest.raises(ValueError, match=r"freeze names the constant 'g'; hold it by equal bounds"):
        nf.fit(noisy_decay(), field=HALF_HELD, options=nf.Options(training=nf.Training(freeze=["g"])))


def test_a_changed_precision_is_followed():
    constants = Constants.of(RATES)
    with scope("x64"):
        double = carry(constants, np.float64)
        assert {value.dtype for value in double.values().values()} == {np.dtype(np.float64)}
        np.testing.assert_allclose(list(double.as_dict().values()), list(constants.as_dict().values()), rtol=1e-12)


def test_a_model_file_gives_them_back():
    constants, tensors = Constants.of(RATES), {}
    structure = json.loads(json.dumps(describe_part(constants, "field", tensors)))
    names = list(tensors)
    again = rebuild(structure, tensors, ())
    assert names == ["field.raw"] and jax.tree.structure(again) == jax.tree.structure(constants)
    assert again.as_dict() == constants.as_dict()


def test_tiny_rates_are_kept(precision):
    with scope(precision):
        constants = Constants.of({"k": [3.1e-31, 0, None]})
        np.testing.assert_allclose(constants.values()["k"], 3.1e-31, rtol=1e-5)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"a": [3, 0, 2]}, "constant 'a' is 3, but its bounds ask for values above 0 and below 2"),
        ({"a": [0, 0, None]}, "constant 'a' is 0, but its bounds ask for values above 0;"),
        ({"a": float("nan")}, "constant 'a' must be a number of magnitude up to 1e\\+30, got nan"),
        ({"a": [float("inf"), 0, None]}, "constant 'a' must be a number of magnitude up to 1e\\+30, got inf"),
        ({"a": "0.5"}, "constant 'a' must be a number of magnitude up to 1e\\+30, got '0.5'"),
        ({"a": 10**400}, "constant 'a' must be a number of magnitude"),
        ({"a": True}, "constant 'a' must be a number of magnitude"),
        ({"a": None}, "constant 'a' must be a number of magnitude"),
        ({"a": [0.5, 0]}, r"constant 'a' must be a number or \[value, lower, upper\], got a list of 2"),
        ({"a": []}, "got a list of 0"),
        ({"a": [0.5, 2, 1]}, "constant 'a' has bounds 2 and 1; the lower must be below the upper"),
        ({"a": [0.5, "low", 1]}, "constant 'a' has the bound 'low'"),
        ({"a b": 1}, "constant 'a b' has a name that is not valid in an equation"),
        ({"lambda": 1}, "constant 'lambda' has a name that is not valid in an equation"),
        ({"exp": 1}, "constant 'exp' has the name of a function"),
        ({1: 1}, "constant 1 has a name that is not a string"),
    ],
)
def test_what_is_no_constant_is_refused(entry, sentence):
    with pytest.raises(ValueError, match=f"^.*{sentence}"):
        Constants.of(entry)
