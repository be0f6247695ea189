"""Equations that are read from a fitted model's field: of all states, with a hidden one, and of what a network adds."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.discover.reading import read_field
from node_fit.model.make_model import make_model

QUICK = {"symbolic": False, "effort": "quick", "resamples": 5}
KEY = jax.random.key(0)
TS = np.linspace(0.0, 15.0, 120)


def noisy(rates, starts, ts, noise, seen=slice(None)):
    """Records from some starts, with noise of this share of each state's deviation."""
    clean = np.stack([solve_ivp(rates, ts[[0, -1]], y0, t_eval=ts, rtol=1e-9, atol=1e-9).y.T for y0 in starts])
    clean = clean[..., seen]
    draw = np.random.default_rng(0).standard_normal(clean.shape)
    return clean + noise * clean.std(axis=(0, 1)) * draw


def lotka_volterra(t, y):
    return [y[0] - 0.5 * y[0] * y[1], 0.25 * y[0] * y[1] - 0.8 * y[1]]


def grow(t, y):
    """Biomass X on a substrate S, at the rate of Monod."""
    growth = 0.8 * y[0] / (0.5 + y[0])
    return [-2 * growth * y[1], growth * y[1] - 0.05 * y[1]]


def test_rates_are_those_of_the_field_at_the_models_own_states():
    data = nf.Dataset.from_arrays(TS, noisy(lotka_volterra, [(4, 1)], TS, 0.02)[0], states=["prey", "predator"])
    model = make_model(data, field=nf.MLP, key=KEY)
    (record,) = read_field(model, data).records
    states = model.predict(data)[0]
    assert record.values == pytest.approx(states) and record.raw == pytest.approx(data.ys[0])
    rates = jax.vmap(model.vector_field)(TS, states)
    assert record.rates == pytest.approx(np.asarray(rates), rel=1e-4, abs=1e-5)


def test_the_functions_of_a_hybrid_are_those_that_its_network_gives():
    """At the model's states, the known equations with what is read in their place are the rates of the whole field."""
    data = nf.Dataset.from_arrays(TS, noisy(lotka_volterra, [(4, 1)], TS, 0.02)[0], states=["prey", "predator"])
    field = functools.partial(
        nf.Hybrid, equations={"prey": "prey - f*prey", "predator": "-b*predator"}, constants={"b": 0.7},
        terms={"f": 2.0}, rest=["predator"],
    )  # fmt: skip
    model = make_model(data, field=field, key=KEY)
    network = jax.tree.map(lambda x: x + 0.05 if eqx.is_inexact_array(x) else x, model.field.network)
    model = eqx.tree_at(lambda one: one.field.network, model, network)
    reading = read_field(model, data)
    (record,) = reading.records
    assert reading.balance.titles == ("f", "rest of predator", "b") and record.rates.shape == (120, 2)
    rates = np.asarray(jax.vmap(model.vector_field)(TS, record.values))
    prey, predator = record.values.T
    assert np.abs(record.rates).min() > 0
    assert prey - record.rates[:, 0] * prey == pytest.approx(rates[:, 0], rel=1e-4, abs=1e-4)
    assert -0.7 * predator + record.rates[:, 1] == pytest.approx(rates[:, 1], rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_the_equations_of_a_network_are_those_of_the_system_that_it_was_fitted_to():
    data = nf.Dataset.from_arrays(TS, noisy(lotka_volterra, [(4, 1)], TS, 0.02)[0], states=["prey", "predator"])
    found = nf.discover(nf.fit(data, field=nf.MLP, progress=False, options=nf.Options(effort="quick")), **QUICK)
    assert found.explained and found.shares["prey"].keys() == {"prey", "prey*predator"}
    assert list(found.found.constants.values()) == pytest.approx([1, -0.5, -0.8, 0.25], rel=0.02)
    assert list(found.best.constants.values()) == pytest.approx([1, -0.5, -0.8, 0.25], rel=0.02)


@pytest.mark.slow
def test_a_hidden_velocity_has_an_equation_too():
    """Its unit is the model's, and becomes that of the angle's rate, which it is."""

    def swing(t, y):
        return [y[1], -2 * np.sin(y[0]) - 0.1 * y[1]]

    ts = np.linspace(0, 20, 200)
    data = nf.Dataset.from_arrays(ts, noisy(swing, [(2.5, 0)], ts, 0.01, slice(1))[0], states=["angle"])
    fit = nf.fit(data, field="second_order", hidden=1, progress=False, options=nf.Options(effort="quick"))
    found = nf.discover(fit, **QUICK)
    assert found.explained and found.states == ("angle", "hidden0")
    assert found.found.equations["angle"] == "hidden0" and set(found.shares["hidden0"]) == {"hidden0", "sin(angle)"}
    assert list(found.best.constants.values()) == pytest.approx([-0.1, -2], rel=0.05)
    assert all(np.isfinite(each.upper - each.lower) for each in found.best.confidence().constants.values())
    assert found.predict({"angle": 2.5, "hidden0": 0.0}, ts).mean.shape == (200, 2)


@pytest.mark.long
@pytest.mark.slow
def test_the_term_of_a_hybrid_becomes_an_equation_and_the_known_part_stays():
    ts = np.linspace(0, 5, 60)
    data = nf.Dataset.from_arrays(
        np.stack([ts] * 3), noisy(grow, [(5, 0.1), (2, 0.3), (0.8, 0.2)], ts, 0.01), states=["S", "X"]
    )
    field = functools.partial(
        nf.Hybrid, equations={"S": "-y*mu*X", "X": "mu*X - 0.05*X"}, constants={"y": [1.5, 0, None]},
        terms={"mu": 0.5}, sees=["S"],
    )  # fmt: skip
    fit = nf.fit(data, field=field, progress=False, options=nf.Options(effort="quick"))
    found = nf.discover(fit, **QUICK)
    assert found.explained and found.found.equations["X"] == "c1*S/(c2 + S)*X - 0.05*X"
    assert found.best.constants == pytest.approx({"c1": 0.8, "c2": 0.5, "y": 2.0}, rel=0.05)
    with pytest.raises(ValueError, match="conserved and mass_action are of whole equations"):
        nf.discover(fit, conserved=["S + X"])


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"equations": {"x": "-t*x + f"}, "terms": {"f": 1.0}}, "the equations have the time 't'"),
        ({"equations": {"x": "-x + f"}, "terms": {"f": 1.0}, "sees": ["x", "t"]}, "the network sees the time 't'"),
    ],
)
def test_a_field_that_can_not_be_read_is_a_sentence(field, sentence):
    data = nf.Dataset.from_arrays(TS, np.exp(-TS)[:, None], states=["x"])
    with pytest.raises(ValueError, match=sentence):
        read_field(make_model(data, field=functools.partial(nf.Hybrid, **field), key=KEY), data)
