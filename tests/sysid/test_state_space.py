"""The state-space form of a fitted linear model: the model's own rates in the user's units, poles and gain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.exported import network, records, stirred

import node_fit as nf
from node_fit.sysid.state_space import StateSpace


@pytest.mark.parametrize("observation", ["measured", "linear", "direct"])
def test_matrices_are_the_models_own_rates_and_channels(observation):
    model, _ = network(records(), field="linear", observation=observation, hidden=1)
    model = stirred(model)
    space = StateSpace.of(model)
    assert space is not None and space.states == model.latent and space.channels == ("x", "v")
    rng = np.random.default_rng(0)
    x, u = jnp.asarray(rng.normal(size=3), jnp.float32), jnp.asarray([0.7], jnp.float32)
    t, z, v = model.system.in_solver_units(jnp.zeros(()), x, u)
    rates = model.system.users_rates(x, model.field(t, z, v))
    np.testing.assert_allclose(space.a @ x + space.b @ u + space.rest, rates, rtol=1e-4, atol=1e-4)
    channels = model.scaler.unscale_states(np.asarray(jax.device_get(model.channels(t, z, v))))
    np.testing.assert_allclose(space.c @ x + space.direct @ u + space.shift, channels, rtol=1e-4, atol=1e-4)
    assert bool(space.direct.any()) is (observation == "direct")


def test_poles_and_gain_of_an_oscillator():
    space = StateSpace(
        ("x", "v"),
        ("f",),
        ("x",),
        np.array([[0.0, 1.0], [-4.0, -0.4]]),
        np.array([[0.0], [8.0]]),
        np.zeros(2),
        np.eye(1, 2),
        np.array([[0.5]]),
        np.zeros(1),
    )
    found = space.as_dict()
    assert found["gain"] == [[pytest.approx(2.5)]] and found["D"] == [[0.5]]
    upper, lower = found["poles"]
    assert upper["imaginary"] > 0 > lower["imaginary"] and upper["damping"] == pytest.approx(0.1)
    assert upper["time_constant"] == pytest.approx(5.0) and upper["period"] == pytest.approx(2 * np.pi / 3.96**0.5)


def test_what_does_not_settle_has_no_gain():
    one = np.ones((1, 1))
    for a in (0.0, 0.5):
        space = StateSpace(("x",), ("u",), ("x",), a * one, one, one[0], one, one, one[0])
        assert space.gain is None and space.as_dict()["poles"][0]["time_constant"] is None


def test_other_models_have_no_state_space_form():
    assert StateSpace.of(network()[0]) is None
    data = nf.Dataset.from_arrays(np.arange(5.0), np.exp(-np.arange(5.0)), states=["x"])
    logarithmic = nf.make_model(data, field="linear", scaling=nf.Scaling(log=("x",)), key=jax.random.key(0))
    assert StateSpace.of(logarithmic) is None
