"""Vector fields in isolation."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from node_fit.model import make_model
from node_fit.model.fields.network import ACTIVATIONS, initial_layers
from node_fit.runtime.placement import dtype_of, scope

ZERO = jnp.zeros(())


@pytest.fixture(autouse=True)
def words_of_the_library(monkeypatch):
    """Disables the tests' type checker, which would refuse wrong arguments before the library does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_linear_is_linear():
    field = nf.Linear(2, 1, key=jax.random.key(0))
    a, b = np.split(np.asarray(field.layer.weight), [2], axis=1)
    c = np.asarray(field.layer.bias)
    y, u = np.array([1.5, -2.0], np.float32), np.array([0.7], np.float32)
    np.testing.assert_allclose(field(ZERO, jnp.asarray(y), jnp.asarray(u)), a @ y + b @ u + c, rtol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_is_what_it_says(activation):
    field = nf.MLP(2, 1, width=5, depth=2, activation=activation, key=jax.random.key(0))
    x = np.array([0.3, -1.0, 2.0], np.float32)
    for layer in field.network.layers[:-1]:
        x = np.asarray(ACTIVATIONS[activation](layer.weight @ x + layer.bias))
    last = field.network.layers[-1]
    expected = np.einsum("ij,j->i", np.asarray(last.weight), x) + np.asarray(last.bias)
    rates = field(ZERO, jnp.array([0.3, -1.0]), jnp.array([2.0]))
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_activations_differ():
    make = lambda name: nf.MLP(2, width=5, activation=name, key=jax.random.key(0))  # noqa: E731
    rates = [make(name)(ZERO, jnp.array([0.5, -1.0]), jnp.zeros(0)).tolist() for name in ACTIVATIONS]
    assert len({tuple(r) for r in rates}) == len(ACTIVATIONS)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_shapes(states, inputs, width, depth, time):
    field = nf.MLP(states, inputs, width=width, depth=depth, time=time, key=jax.random.key(0))
    out = jax.eval_shape(field, jnp.zeros(()), jnp.zeros(states), jnp.zeros(inputs))
    assert out.shape == (states,)
    assert len(field.network.layers) == depth + 1
    sizes = [int(time) + states + inputs, *[width] * depth, states]
    expected = sum((m + 1) * n for m, n in itertools.pairwise(sizes))
    assert sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(field, eqx.is_array))) == expected


@pytest.mark.parametrize("time", [False, True])
def test_only_a_field_of_time_sees_the_time(time):
    field = nf.MLP(2, width=5, time=time, key=jax.random.key(0))
    early, late = (field(jnp.asarray(t), jnp.ones(2), jnp.zeros(0)) for t in (0.0, 2.0))
    assert (np.asarray(early) != np.asarray(late)).any() == time


def test_dtype_follows_the_process(precision):
    with scope(precision):
        for field in (nf.MLP(2, key=jax.random.key(0)), nf.Linear(2, key=jax.random.key(0))):
            leaves = jax.tree.leaves(eqx.filter(field, eqx.is_array))
            assert {leaf.dtype for leaf in leaves} == {dtype_of(precision)}
            assert field(jnp.zeros(()), jnp.ones(2), jnp.zeros(0)).dtype == dtype_of(precision)


def test_keys_give_other_weights():
    one, same, other = (nf.MLP(2, key=jax.random.key(seed)) for seed in (0, 0, 1))
    assert eqx.tree_equal(one, same)
    assert not eqx.tree_equal(one, other)
    # Layers have independent random weights.
    first, second = (
        np.asarray(layer.weight) for layer in nf.MLP(5, width=5, depth=1, key=jax.random.key(0)).network.layers
    )
    assert (first != second).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"width": -3}, "width must be at least 1, got -3"),
        ({"depth": -1}, "depth must be at least 0, got -1"),
        ({"activation": "tahn"}, "activation must be one of tanh, .*, got 'tahn'"),
    ],
)
def test_mlp_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        nf.MLP(2, key=jax.random.key(0), **options)


def test_layers_begin_as_those_of_equinox():
    """Weights and biases are uniform within one over the square root of the number of inputs, and all different."""
    field = nf.MLP(3, 2, width=50, depth=2, key=jax.random.key(0))
    for layer, inputs in zip(field.network.layers, (5, 50, 50), strict=True):
        numbers = np.concatenate([np.ravel(layer.weight), np.ravel(layer.bias)])
        limit = 1 / np.sqrt(inputs)
        assert np.abs(numbers).max() <= limit and np.abs(numbers).max() > 0.9 * limit
        assert abs(numbers.mean()) < 0.2 * limit and len(np.unique(numbers)) == numbers.size
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = initial_layers((5, 50, 50, 3), jax.random.key(0))
    for layer, key, (inputs, outputs) in zip(drawn, keys, ((5, 50), (50, 50), (50, 3)), strict=True):
        equinox = eqx.nn.Linear(inputs, outputs, key=key)
        assert eqx.tree_equal(layer, equinox)
    other = nf.MLP(3, 2, width=50, depth=2, key=jax.random.key(1))
    assert (np.asarray(field.network.layers[0].weight) != np.asarray(other.network.layers[0].weight)).all()


def test_a_key_is_split_only_for_parts_that_ask_for_one(monkeypatch):
    """The first parameters of a field do not change by that, and a fit compiles one program less."""
    data = nf.Dataset.from_arrays(np.linspace(0, 1, 9), np.ones((1, 9, 1)), states=["x"])
    key, split = jax.random.key(3), []
    monkeypatch.setattr(make_model, "keys_beside_field", lambda key: split.append(key) or jax.random.split(key))
    for start, observation in (
        (nf.First, nf.MeasuredStates),
        (functools.partial(nf.Fitted, given=3), nf.LinearReadout),
    ):
        nf.make_model(data, start=start, observation=observation, key=key)
    assert not split
    for start, observation in (
        (nf.Encoder, nf.MeasuredStates),
        (nf.First, functools.partial(nf.NetworkReadout, width=2)),
    ):
        nf.make_model(data, hidden=1, start=start, observation=observation, key=key)
    assert len(split) == 2


def test_a_model_in_double_precision_computes_in_a_process_of_single():
    """A warning of JAX about what it cuts would be an error here."""
    data = nf.Dataset.from_arrays(np.linspace(0, 1, 9), np.ones((1, 9, 1)), states=["x"])
    field = functools.partial(nf.Known, equations={"x": "-k*x"}, constants={"k": 0.5})
    with scope("x64"):
        model = nf.make_model(data, field=field, key=jax.random.key(0))
        assert model.vector_field(0.0, [1.0]).dtype == np.float64
        slope = jax.grad(lambda model: model.vector_field(0.0, jnp.ones(1))[0], allow_int=True)(model)
        assert float(slope.field.constants.raw[0]) == pytest.approx(-0.5)
    assert model.vector_field(0.0, [1.0]).dtype == np.float32
    np.testing.assert_allclose(model.solve([1.0], np.linspace(0, 1, 3)).ys[:, 0], np.exp([0, -0.25, -0.5]), rtol=1e-4)
