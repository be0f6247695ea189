"""Starts at a steady state: found, differentiated, fitted and predicted from."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.commands import node_fit, read_summary
from helpers.problems import fit_to

import node_fit as nf
from node_fit.runtime.placement import carry, scope

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
EQUATIONS = {"level": "s*(1 + u) - k*level", "effect": "q*(level - effect)"}
CONSTANTS = {"s": [0.8, 0.0, None], "k": [0.4, 0.0, None], "q": [0.3, 0.0, None]}
FIELD = functools.partial(nf.Known, equations=EQUATIONS, constants=CONSTANTS)
OPTIONS = {"hidden": ["level"], "start": nf.Steady, "solver": nf.Solver(inputs="hold"), "precision": "x64"}


def responses(*drugs: float) -> nf.Dataset:
    """The effect of a drug from time 0 on, before which the system had rested with another amount of it."""
    ts = np.linspace(-1.0, 10.0, 45)
    true, before = {"s": 0.5, "k": 0.5, "q": 0.3}, np.array([0.0, 0.5])[: len(drugs)]
    us = np.where(ts >= 0, np.array(drugs)[:, None], before[:, None])
    k, q = true["k"], true["q"]
    rest, jump = true["s"] * (1 + before) / k, true["s"] * (np.array(drugs) - before) / k
    later = ts.clip(0)
    rise = 1 + (q * np.exp(-k * later) - k * np.exp(-q * later)) / (k - q)  # from Laplace transforms
    effect = rest[:, None] + jump[:, None] * rise
    return nf.Dataset.from_arrays(ts, effect[..., None], us[..., None], states=["effect"], inputs=["u"])


def test_a_start_is_the_steady_state_and_has_its_derivatives():
    data = responses(1.0, 2.0)
    with scope("x64"):
        model = nf.make_model(data, field=FIELD, start=nf.Steady, hidden=["level"], key=KEY)
        batch = model.batch(data)

        def starts(model: nf.NeuralODE) -> jax.Array:
            return model.first_states(batch)

        found = model.system.scaler.unscale_states(np.asarray(starts(model)))
        expected = CONSTANTS["s"][0] * (1 + np.array([0.0, 0.5])) / CONSTANTS["k"][0]
        np.testing.assert_allclose(found, np.stack([expected, expected], axis=1), rtol=1e-7)
        # By central differences, in the direction of all parameters of the field.
        arrays, static = eqx.partition(model, eqx.is_inexact_array)
        ones = eqx.tree_at(
            lambda m: m.field,
            jax.tree.map(np.zeros_like, arrays),
            jax.tree.map(np.ones_like, arrays.field),
        )
        along = lambda size: starts(eqx.combine(jax.tree.map(lambda a, d: a + size * d, arrays, ones), static))  # noqa: E731
        _, slope = jax.jvp(along, (0.0,), (1.0,))
        np.testing.assert_allclose(slope, (along(1e-4) - along(-1e-4)) / 2e-4, rtol=1e-5, atol=1e-7)
        weights = np.random.default_rng(0).normal(size=slope.shape)
        backward = jax.grad(lambda size: (weights * along(size)).sum())(0.0)
        np.testing.assert_allclose(backward, (weights * np.asarray(slope)).sum(), rtol=1e-7)


@pytest.mark.long
def test_constants_are_recovered_and_forecasts_begin_at_rest():
    fit = fit_to(responses(1.0, 2.0), field=FIELD, **OPTIONS)
    for name, true in {"s": 0.5, "k": 0.5, "q": 0.3}.items():
        assert fit.model.constants()[name] == pytest.approx(true, rel=1e-2), name
    other = responses(3.0)
    np.testing.assert_allclose(fit.model.predict(other), other.ys, atol=0.02)


def test_where_nothing_rests_the_start_is_finite():
    data = responses(1.0)
    field = functools.partial(nf.Known, equations={"effect": "c"}, constants={"c": 0.3})
    with scope("x32"):
        model = nf.make_model(data, field=field, start=nf.Steady, key=KEY)
        batch = carry(model.batch(data), np.float32)
        assert np.isfinite(np.asarray(model.first_states(batch))).all()


def test_the_command_starts_at_rest(tmp_path):
    data = responses(1.0)
    table = np.column_stack([data.ts[0], data.us[0, :, 0], data.ys[0, :, 0]])
    np.savetxt(tmp_path / "drug.csv", table, delimiter=",", header="t,u,effect", comments="")
    ran = node_fit(
        tmp_path, "data=table", "data.path=drug.csv", "data.time=t", "data.states=[effect]", "data.inputs=[u]",
        "start=steady", "solver.inputs=hold", "field=known", "+field.equations={effect: s + s*u - k*effect}",
        "+field.constants={s: 1.0, k: 0.5}", "training.steps=5", "hydra.run.dir=run",
    )  # fmt: skip
    assert ran.code == 0, ran
    assert read_summary(tmp_path / "run")["start"] == "the steady state under the first inputs"
