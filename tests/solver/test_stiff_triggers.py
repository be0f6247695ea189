"""Triggers and doses in a stiff system, with implicit methods."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.runtime.placement import scope

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
# A tank that drains and is filled up at a level; a sensor follows it 100,000 times as fast.
DRAIN, LEVEL, FILL, FAST = 0.7, 0.3, 1.0, 1e5
TS = np.linspace(0, 10, 41)
DOSE_AT, DOSE = 5.0, 0.4
TANK = functools.partial(
    nf.Known,
    equations={"x": "-k*x", "s": "K*(x - s)"},
    constants={"k": [DRAIN, 0, None], "low": [LEVEL, 0, None], "K": [FAST, FAST, FAST]},
    triggers=[{"when": "x - low", "set": {"x": f"x + {FILL}"}}],
)


def levels(drain: float = DRAIN, low: float = LEVEL) -> np.ndarray:
    """The tank in closed form at the rows, just before a dose there."""
    x, t, doses = 1.0, 0.0, [(DOSE_AT, DOSE), (np.inf, 0.0)]
    found: list[float] = []
    for row in TS:
        while True:
            fills = t + np.log(x / low) / drain
            dosed = doses[0][0]
            if min(fills, dosed) >= row:
                break
            if fills < dosed:
                t, x = fills, low + FILL
            else:
                t, x = dosed, x * np.exp(-drain * (dosed - t)) + doses.pop(0)[1]
        found.append(x * np.exp(-drain * (row - t)))
    return np.array(found)


def tank(noise: float = 0.0) -> nf.Dataset:
    x = levels()
    # Away from jumps, the sensor is at the slow manifold.
    ys = np.stack([x, x * FAST / (FAST - DRAIN)], axis=1)
    ys = ys + noise * np.random.default_rng(1).normal(size=ys.shape)
    data = nf.Dataset.from_arrays(TS, ys, states=["x", "s"])
    return nf.with_events(data, [{"time": DOSE_AT, "state": "x", "add": DOSE}])


def model_of(data: nf.Dataset, method: str, rtol: float = 1e-8) -> nf.NeuralODE:
    with scope("x64"):
        return nf.make_model(data, field=TANK, key=KEY, solver=nf.Solver(method, rtol=rtol, atol=rtol / 100))


def test_a_stiff_tank_is_filled_when_it_should_be():
    data = tank()
    predicted = model_of(data, "kvaerno5").predict(data)
    np.testing.assert_allclose(predicted[0, :, 0], data.ys[0, :, 0], atol=1e-7)
    np.testing.assert_allclose(predicted[0, 1:, 1], data.ys[0, 1:, 1], atol=1e-4)
    assert (np.diff(levels()) > 0.3).sum() >= 4, "fillings and a dose"


@pytest.mark.long
def test_derivatives_pass_through_the_times_of_fillings_in_both_modes():
    data = tank()
    model = model_of(data, "kvaerno3")
    with scope("x64"):
        batch = model.batch(data)
        weight = np.random.default_rng(0).normal(size=(1, len(TS), 2))

        def weighed(raw: jax.Array, adjoint: str) -> jax.Array:
            moved = eqx.tree_at(lambda m: m.field.constants.raw, model, raw)
            solved = moved.solver.solve(moved.problem(batch, moved.first_states(batch)), joint=False, adjoint=adjoint)
            return (weight * solved.ys).sum()

        raw = model.field.constants.raw
        forward = np.asarray(jax.jit(jax.jacfwd(lambda raw: weighed(raw, "forward")))(raw))
        reverse = np.asarray(jax.jit(jax.grad(lambda raw: weighed(raw, "checkpointed")))(raw))
        value = jax.jit(lambda raw: weighed(raw, "forward"))
        differences = [float(value(raw + step) - value(raw - step)) / 2e-5 for step in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(forward, differences, rtol=1e-4)
    np.testing.assert_allclose(reverse, forward, rtol=1e-8)


@pytest.mark.long
def test_constants_of_a_stiff_tank_with_a_dose_are_found():
    field = functools.partial(TANK, constants={"k": [0.66, 0, None], "low": [0.32, 0, None], "K": [FAST, FAST, FAST]})
    options = nf.Options(precision="x64", effort="quick")
    fit = nf.fit(tank(noise=0.005), field=field, solver="kvaerno5", start=nf.Fitted, options=options)
    assert fit.constants["k"] == pytest.approx(DRAIN, rel=0.01)
    assert fit.constants["low"] == pytest.approx(LEVEL, rel=0.01)
    assert fit.score(tank()).r2 > 0.999
