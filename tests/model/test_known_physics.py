"""Known equations with constants, alone and with a network for an unknown part, recover the known solution."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit, read_summary
from helpers.problems import fit_to

import node_fit as nf
from node_fit.model.parameters import network_weights, partition
from node_fit.runtime.placement import carry, scope

pytestmark = pytest.mark.slow

GRAVITY, DAMPING = 4.0, 0.3
PENDULUM = {"angle": "velocity", "velocity": "-g*sin(angle) - d*velocity"}
CONSTANTS = {"g": [2.0, 0.0, None], "d": [0.1, 0.0, 1.0]}


def pendulum(starts=((1.5, 0.0), (0.3, 1.0), (-1.0, 0.5), (0.8, -1.2)), times=40, torque=None) -> nf.Dataset:
    """Trajectories of a damped pendulum."""
    from scipy.integrate import solve_ivp

    ts = np.linspace(0.0, 5.0, times)
    us = (
        np.zeros((len(starts), times, 0))
        if torque is None
        else np.array(torque)[:, None, None] * np.ones((1, times, 1))
    )

    def swing(start, push):
        def rates(t, y):
            return [y[1], -GRAVITY * np.sin(y[0]) - DAMPING * y[1] + push]

        return solve_ivp(rates, (0.0, 5.0), start, t_eval=ts, rtol=1e-10, atol=1e-12).y.T

    pushes = [0.0] * len(starts) if torque is None else torque
    ys = np.stack([swing(start, push) for start, push in zip(starts, pushes, strict=True)])
    inputs = () if torque is None else ("torque",)
    return nf.Dataset.from_arrays(ts, ys, us, states=("angle", "velocity"), inputs=inputs)


def fit(data, equations, constants, make=nf.Known, **options):
    field = functools.partial(make, equations=equations, constants=constants)
    solver = nf.Solver("bosh3", rtol=1e-6, atol=1e-8)  # Compiles in half the time.
    return fit_to(data, field=field, solver=solver, precision="x64", **{"steps": 300, "recipe": "direct", **options})


def test_the_constants_are_found_again_within_their_bounds():
    found = fit(pendulum(), PENDULUM, CONSTANTS).model.constants()
    assert found == pytest.approx({"g": GRAVITY, "d": DAMPING}, rel=1e-3)
    held = fit(pendulum(), PENDULUM, {"g": [2.0, 0.0, 3.0], "d": 0.1}).model.constants()
    assert 2.9 < held["g"] <= 3.0, "the true value is outside the bound"


def test_a_covariate_stands_in_the_equations_by_its_name():
    data = pendulum(torque=(0.0, 1.0, -1.0, 2.0))
    equations = PENDULUM | {"velocity": "-g*sin(angle) - d*velocity + b*torque"}
    found = fit(data, equations, CONSTANTS | {"b": 0.3}).model.constants()
    assert found == pytest.approx({"g": GRAVITY, "d": DAMPING, "b": 1.0}, rel=1e-3)


def test_the_network_finds_a_term_that_nobody_wrote_down():
    train, test = pendulum(), pendulum(starts=((1.2, 0.3),))
    equations = {"angle": "velocity", "velocity": "-pull - d*velocity"}
    unknown = functools.partial(nf.Hybrid, terms={"pull": 1.0}, width=16, depth=1)
    hybrid = fit(train, equations, {"d": DAMPING}, make=unknown)
    assert hybrid.score(test).nrmse < 0.03
    without = fit(train, {"angle": "velocity", "velocity": "-d*velocity"}, {"d": DAMPING})
    assert without.score(test).nrmse > 0.3, "the equations alone are not enough"


def test_the_network_adds_what_the_equations_leave_out():
    train, test = pendulum(), pendulum(starts=((1.2, 0.3),))
    equations = {"angle": "velocity", "velocity": "-g*sin(angle)"}
    rest = functools.partial(nf.Hybrid, rest=["velocity"], width=8, depth=1)
    assert fit(train, equations, {"g": 3.0}, make=rest).score(test).nrmse < 0.03


def test_the_network_sees_what_it_is_told_to():
    data = pendulum()
    hybrid = functools.partial(nf.Hybrid, equations=PENDULUM, constants=CONSTANTS, sees=["angle"], rest=["velocity"])
    field = nf.make_model(data, field=hybrid, key=jax.random.key(0)).field
    loud = eqx.tree_at(lambda f: f.network.layers[-1].weight, field, jnp.ones((1, 32)))
    assert loud.network.layers[0].weight.shape == (32, 1)

    def given(t, angle, velocity):
        y = jnp.array([angle, velocity])
        return (loud(jnp.asarray(t), y, jnp.zeros(0)) - field(jnp.asarray(t), y, jnp.zeros(0)))[1]

    assert given(0.0, 0.3, 0.1) == pytest.approx(float(given(5.0, 0.3, 2.0)), rel=1e-4)
    assert given(0.0, 0.3, 0.1) != pytest.approx(float(given(0.0, 0.9, 0.1)), rel=1e-2)


def test_a_hybrid_begins_as_its_equations():
    data = pendulum()
    with scope("x64"):
        models = [
            carry(nf.make_model(data, field=functools.partial(make, equations=PENDULUM, constants=CONSTANTS),
                                key=jax.random.key(0)), np.float64)
            for make in (nf.Known, nf.Hybrid)
        ]  # fmt: skip
        known, hybrid = (model.derivative(data.ys[0]) for model in models)
    np.testing.assert_allclose(hybrid, known, rtol=1e-12)
    truth = np.stack([data.ys[0, :, 1], -2.0 * np.sin(data.ys[0, :, 0]) - 0.1 * data.ys[0, :, 1]], axis=1)
    np.testing.assert_allclose(known, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_positive_and_bounded_states_are_solved_in_the_users_equations():
    ts = np.linspace(0.0, 6.0, 30)
    starts = np.array([0.02, 0.1, 0.5])
    shares = 1 / (1 + (1 / starts[:, None] - 1) * np.exp(-1.3 * ts))
    data = nf.Dataset.from_arrays(ts, shares[..., None], states=("share",))
    logistic = {"share": "r*share*(1 - share)"}
    for bounds in ({"share": [0.0, 1.0]}, {"share": [0.0, None]}, {}):
        found = fit(data, logistic, {"r": 0.5}, bounds=bounds)
        assert found.model.constants()["r"] == pytest.approx(1.3, rel=1e-3)
        assert found.score(data).nrmse < 1e-3


class Decay(eqx.Module):
    rate: jax.Array

    def __call__(self, t, y, u):
        return -self.rate * y


def test_a_field_of_ones_own_may_speak_the_users_units():
    ts = np.linspace(1900.0, 1960.0, 20)
    data = nf.Dataset.from_arrays(ts, 5e3 * np.exp(-0.05 * (ts - 1900.0))[:, None])
    field = functools.partial(nf.Physical, field=Decay(jnp.asarray(0.02)))
    for log in ((), ("y0",)):
        found = fit_to(data, field=field, log=log, steps=100)
        assert float(found.model.field.field.rate) == pytest.approx(0.05, rel=1e-3)


def test_scales_are_not_trained_and_constants_have_no_prior():
    hybrid = functools.partial(nf.Hybrid, equations=PENDULUM, constants=CONSTANTS)
    model = carry(nf.make_model(pendulum(), field=hybrid, key=jax.random.key(0)), np.float32)
    trained = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(partition(model).params)}
    assert any("constants.raw" in name for name in trained) and any("network" in name for name in trained)
    assert not any("scaler" in name for name in trained)
    sizes = {leaf.size for leaf in network_weights(model.field)}
    assert sizes == {leaf.size for leaf in jax.tree.leaves(eqx.filter(model.field.network, eqx.is_array))}


def test_a_known_system_is_saved_and_read(tmp_path):
    found = fit(pendulum(), PENDULUM, CONSTANTS, steps=20)
    found.save(tmp_path / "model.safetensors")
    again = nf.load(tmp_path / "model.safetensors")
    assert again.constants() == found.model.constants()
    np.testing.assert_array_equal(again.predict(pendulum()), found.predict(pendulum()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"equations": {"angle": "velocity"}}, "equations has no entry for the state 'velocity'"),
        ({"equations": PENDULUM | {"ange": "1"}}, "equations has an entry for 'ange', which is not a state"),
        ({"equations": PENDULUM | {"angle": "velocty"}}, "'velocty' is not a state"),
        ({"constants": {"g": 1.0, "d": 1.0, "t": 1.0}}, "'t' is used twice"),
        ({"constants": {"g": [1.0, 2.0, 3.0], "d": 1.0}}, "constant 'g' is 1"),
    ],
)
def test_wrong_equations_are_refused(options, sentence):
    given = {"equations": PENDULUM, "constants": CONSTANTS} | options
    with pytest.raises(ValueError, match=sentence):
        fit_to(pendulum(), field=functools.partial(nf.Known, **given))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"terms": {"lift": 1.0}}, "terms names 'lift', which occurs in no equation"),
        ({"rest": ["speed"]}, "rest names 'speed', which is not a state"),
        ({"rest": False}, "leave the network without outputs"),
        ({"terms": {"sin": 1.0}}, "term 'sin' has the name of a function"),
        ({"sees": []}, "sees is empty"),
        ({"sees": ["anglé"]}, "sees names 'anglé', which is not a state, an input or the time; did you mean 'angle'"),
    ],
)
def test_wrong_hybrids_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_to(pendulum(), field=functools.partial(nf.Hybrid, equations=PENDULUM, constants=CONSTANTS, **options))


@pytest.mark.long
def test_a_run_of_known_equations_says_that_it_fits_all_rows(tmp_path):
    """A third of twelve subjects would be much to hold out from three constants."""
    ts = np.linspace(0.0, 4.0, 6)
    rows = [{"id": f"P{i:02}", "t": t, "x": (i + 1) * np.exp(-0.5 * t)} for i in range(12) for t in ts]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
    words = (
        "data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "data.trajectory=id", "recipe=direct",
        "training.steps=2", "report=false", "confidence=none",
    )  # fmt: skip
    known = ("field=known", "field.equations={x: -k*x}", "+field.constants={k: [1, 0, null]}")
    said = {}
    for name, more in {
        "default": known,
        "sigma": (*known, "data.sigma=0.1"),
        "all": (*known, "data.split.validation=0", "data.split.test=0"),
        "named": (*known, "data.split.test_trajectories=[P03]", "data.split.validation=0"),
        "network": ("field.width=4", "field.depth=1"),
    }.items():
        ran = node_fit(tmp_path, *words, *more, f"hydra.run.dir={name}")
        assert ran.code == 0, ran.err
        said[name] = read_summary(tmp_path / name)["data"][1:]
        assert all(note in ran.out for note in said[name])
    whole, sigma = said["default"]
    assert whole.startswith("all rows are fitted") and "data.split.test=0.2" in whole
    assert (
        sigma.startswith("data.sigma is not given: ") and "'data.sigma={x: {relative: 0.1, absolute: 0.01}}'" in sigma
    )
    assert said["sigma"] == [whole], "the noise is given"
    assert said["all"] == [whole, sigma] and said["named"] == [sigma] and said["network"] == []
