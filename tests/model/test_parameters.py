"""Selecting the trained parts of a model by name."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to

import node_fit as nf
from node_fit.data.scaling import Scaler
from node_fit.model.parameters import count_parameters, is_within, name, parameter_nodes, partition
from node_fit.runtime.placement import carry


class Mixed(eqx.Module):
    """A module with twelve layers, an index, a number and a function."""

    layers: list[eqx.nn.Linear]
    order: jax.Array
    gain: jax.Array
    activation: object

    def __init__(self):
        self.layers = [eqx.nn.Linear(2, 2, key=key) for key in jax.random.split(jax.random.key(0), 12)]
        self.order = jnp.array([1, 0])
        self.gain = jnp.ones(2)
        self.activation = jnp.tanh

    def __call__(self, t, y, u):
        return self.gain * y[self.order]


def model() -> nf.NeuralODE:
    data = nf.Dataset.from_arrays(np.arange(5.0), np.arange(10.0).reshape(5, 2))
    return carry(nf.make_model(data, field=Mixed(), key=jax.random.key(0)), np.float32)


def names(tree) -> set[str]:
    return {name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def parts(freeze=()):
    whole = model()
    return partition(whole, freeze)


def test_the_parts_are_disjoint_and_make_the_model():
    whole, divided = model(), parts()
    assert eqx.tree_equal(eqx.combine(*divided), whole)
    leaves = [names(part) for part in divided]
    assert set().union(*leaves) == names(whole)
    assert sum(map(len, leaves)) == len(names(whole))


def test_floats_of_the_field_are_trained_and_nothing_else():
    divided = parts()
    layers = {f"field.layers.{i}.{leaf}" for i in range(12) for leaf in ("weight", "bias")}
    assert names(divided.params) == layers | {"field.gain"}
    assert {"field.order", "scaler.state_shift"} <= names(divided.frozen)
    assert "field.activation" in names(divided.static)
    assert count_parameters(divided.params) == 12 * 6 + 2
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(divided.frozen))


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        (["field.gain"], {"field.gain"}),
        (["field.layers.1"], {"field.layers.1.weight", "field.layers.1.bias"}),
        (["field.layers.0.bias", "field.gain"], {"field.layers.0.bias", "field.gain"}),
        (["scaler"], set()),
    ],
)
def test_a_part_is_frozen_by_its_whole_name(freeze, frozen):
    before, after = parts(), parts(freeze)
    assert names(before.params) - names(after.params) == frozen
    assert names(after.frozen) - names(before.frozen) == frozen


@pytest.mark.parametrize(
    ("wrong", "near"), [("field.layer.1", "field.layers.1"), ("feild", "field"), ("field.layers.1.wieght", "weight")]
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong, near):
    with pytest.raises(
        ValueError, match=f"freeze names '{wrong}', which is no part of the model; did you mean '.*{near}'"
    ):
        parts([wrong])


def test_a_name_like_no_other_is_refused_with_all_names():
    with pytest.raises(ValueError, match=r"freeze names '[?]{4}', .*; the parts are field, .*field\.gain"):
        parts(["????"])


def test_nothing_left_to_train_is_refused():
    with pytest.raises(ValueError, match="nothing is left to train"):
        parts(["field"])


def test_the_scales_of_a_field_are_no_parameters():
    """Known equations hold the scaler, to be written in the user's units."""
    data = nf.Dataset.from_arrays(np.arange(5.0), np.arange(1.0, 11.0).reshape(5, 2), states=("x", "y"))
    field = functools.partial(nf.Known, equations={"x": "-a*x", "y": "x - y"}, constants={"a": 1.0})
    whole = carry(nf.make_model(data, field=field, key=jax.random.key(0)), np.float32)
    inside = {name(path) for path, _ in parameter_nodes(whole, Scaler)}
    assert any(path.startswith("field.") for path in inside), "the field holds no scaler, so the test is void"
    divided = partition(whole)
    assert count_parameters(divided.params) == 1
    scales = {leaf for leaf in names(divided.frozen) if any(is_within(leaf, path) for path in inside)}
    assert scales and not any(is_within(leaf, path) for leaf in names(divided.params) for path in inside)


def test_the_scales_stay_as_they_are_in_a_fit():
    ts = np.linspace(0.0, 3.0, 12)
    data = nf.Dataset.from_arrays(ts, 5 + 3 * np.exp(-ts)[:, None], states=("x",))
    field = functools.partial(nf.Known, equations={"x": "-a*(x - b)"}, constants={"a": 0.5, "b": 4.0})
    stage = [nf.Stage(nf.DerivativeMatching(), nf.Adam(1e-1), steps=5)]
    fitted = fit_to(data, field=field, recipe=stage, chunk_steps=5).model
    parts = parameter_nodes(fitted, Scaler)
    assert len(parts) > 1
    for _, scaler in parts:
        for leaf, expected in zip(jax.tree.leaves(scaler), jax.tree.leaves(Scaler.from_dataset(data)), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=1e-6)
    assert fitted.constants()["a"] != pytest.approx(0.5, rel=1e-3)


def test_frozen_parts_stay_as_they_are_in_a_fit():
    ts = np.linspace(0.0, 3.0, 12)
    data = nf.Dataset.from_arrays(ts, np.stack([np.cos(ts), np.sin(ts)], axis=1))
    field = nf.MLP(2, 0, width=4, depth=1, key=jax.random.key(0))
    stage = [nf.Stage(nf.DerivativeMatching(), nf.Adam(1e-2), steps=5)]
    fitted = fit_to(data, field=field, recipe=stage, freeze=["field.network.layers.0"], chunk_steps=5).model.field
    assert eqx.tree_equal(fitted.network.layers[0], field.network.layers[0])
    assert not np.allclose(fitted.network.layers[1].weight, field.network.layers[1].weight)
    assert not np.allclose(fitted.network.layers[1].bias, field.network.layers[1].bias)
