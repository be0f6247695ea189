"""Switches of equations at times: stops of the solver, with derivatives by their times."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.expressions.parsing import EQUATION_DIALECT, parse_text
from node_fit.expressions.tree import changes_once, degree
from node_fit.runtime.placement import scope

KEY = jax.random.key(0)
RATE, ON, STRONG = 0.8, 1.37, 2.5
TS = np.linspace(0.0, 4.0, 9)
# A leak that is filled from a time on.
LEAK = functools.partial(
    nf.Known,
    equations={"x": "-k*x + piecewise(f, t > t1, 0)"},
    constants={"k": [RATE, 0, None], "t1": [ON, 0, 4], "f": [STRONG, 0, None]},
)


def filled(ts: np.ndarray = TS, on: float = ON) -> np.ndarray:
    later = np.maximum(ts - on, 0)
    return np.exp(-RATE * ts) + STRONG / RATE * (1 - np.exp(-RATE * later))


def leak(ts: np.ndarray = TS, noise: float = 0.0) -> nf.Dataset:
    ys = filled(ts) + noise * np.random.default_rng(0).normal(size=len(ts))
    return nf.Dataset.from_arrays(ts, ys[:, None], states=["x"])


def model_of(data: nf.Dataset, solver: nf.Solver, **options) -> nf.NeuralODE:
    with scope("x64"):
        return nf.make_model(data, **({"field": LEAK, "key": KEY, "solver": solver} | options))


SOLVERS = [
    nf.Solver(rtol=1e-8, atol=1e-10),
    nf.Solver(rtol=1e-8, atol=1e-10, stepping="adaptive"),
    pytest.param(nf.Solver("kvaerno5", rtol=1e-8, atol=1e-10), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=["held", "adaptive", "stiff"])
def test_no_step_crosses_a_switch(solver):
    """A simulation is as exact as without a switch, though it is between two rows."""
    data = leak()
    model = model_of(data, solver)
    np.testing.assert_allclose(model.predict(data)[0, :, 0], filled(), atol=1e-7)
    fine = np.linspace(0.0, 4.0, 33)
    np.testing.assert_allclose(model.predict(data, ts=fine[None])[0, :, 0], filled(fine), atol=1e-7)


def held_states(model: nf.NeuralODE, data: nf.Dataset, raw: jax.Array, steps: int = 8) -> jax.Array:
    """States at rows of held steps between rows, with other constants."""
    moved = eqx.tree_at(lambda m: m.field.constants.raw, model, raw)
    batch = moved.batch(data)
    problem = moved.problem(batch, moved.first_states(batch))
    return moved.solver.solve_held(problem, np.linspace(0, 1, steps + 1)[None], between_rows=batch.driven).ys


def test_derivatives_by_the_time_of_a_switch_are_those_of_differences():
    data = leak()
    model = model_of(data, SOLVERS[0])
    with scope("x64"):
        assert model.batch(data).driven
        raw = model.field.constants.raw
        states = jax.jit(lambda raw: held_states(model, data, raw)[0, :, 0])
        np.testing.assert_allclose(
            model.scaler.unscale_states(np.asarray(states(raw))[:, None])[:, 0], filled(), atol=1e-6
        )
        forward = np.asarray(jax.jit(jax.jacfwd(states))(raw))
        reverse = np.asarray(jax.jit(jax.jacrev(states))(raw))
        differences = np.stack([(states(raw + e) - states(raw - e)) / 2e-6 for e in 1e-6 * np.eye(3)], axis=1)
    np.testing.assert_allclose(forward, differences, atol=1e-7)
    np.testing.assert_allclose(reverse, forward, atol=1e-10)
    assert np.abs(forward[5:, 1]).min() > 0.05, "rows after the switch move with it"
    np.testing.assert_allclose(forward[:3, 1], 0, atol=1e-12)


def test_switches_at_rows_before_and_after_the_record():
    for on in (-1.0, 0.0, 2.0, 4.0, 9.0):
        field = functools.partial(LEAK, constants=LEAK.keywords["constants"] | {"t1": on})
        model = model_of(leak(), SOLVERS[0], field=field)
        start = max(on, 0.0)
        np.testing.assert_allclose(model.predict(leak())[0, :, 0], filled(on=start), atol=1e-7)


def test_a_dose_before_a_switch_acts_once():
    """The interval of its row is cut at the switch, and the second piece has no dose."""
    data = nf.with_events(leak(), [{"time": 1.0, "state": "x", "add": 1.0}])
    expected = filled() + np.where(TS > 1, np.exp(-RATE * (TS - 1)), 0)
    np.testing.assert_allclose(model_of(data, SOLVERS[0]).predict(data)[0, :, 0], expected, atol=1e-7)


def test_several_switches_and_a_dose_at_one_time():
    """A pulse from 1 to 2.5, and a dose when it ends, at a row that is put in between."""
    field = functools.partial(
        nf.Known,
        equations={"x": "-k*x + piecewise(2, t >= on and t - on < width, 0)"},
        constants={"k": RATE, "on": 1.0, "width": 1.5},
    )
    data = nf.with_events(leak(), [{"time": 2.5, "state": "x", "add": 1.0}])
    model = model_of(data, SOLVERS[0], field=field)
    assert len(model.field.switches) == 2
    grown = 2 / RATE
    at = {1.0: np.exp(-RATE), 2.5: np.exp(-2.5 * RATE) + grown * (1 - np.exp(-1.5 * RATE))}
    expected = {
        t: np.exp(-RATE * t) + (grown * (1 - np.exp(-RATE * (t - 1))) if 1 < t <= 2.5 else 0) if t <= 2.5
        else (at[2.5] + 1.0) * np.exp(-RATE * (t - 2.5)) for t in data.ts[0].tolist()
    }  # fmt: skip
    np.testing.assert_allclose(model.predict(data)[0, :, 0], list(expected.values()), atol=1e-7)


def test_conditions_of_states_and_curves_are_no_switches():
    cases = {"t > t1": True, "2*t - 1 <= t1/3": True, "t < t": False, "t*t > t1": False, "x > t1": False,
             "sin(t) > 0": False, "t1 > 2": False, "t == t1": False, "t/t1 > 1": True, "t1/t > 1": False}  # fmt: skip
    for text, expected in cases.items():
        condition = parse_text(f"piecewise(1, {text}, 0)", EQUATION_DIALECT).arguments[1]
        found = changes_once(condition, "t", {"t1"})
        assert found == expected or text == "t < t", text
    assert degree(parse_text("3*t*t - t", EQUATION_DIALECT), "t") == 2


def test_a_switch_that_is_never_passed_does_no_harm():
    field = functools.partial(LEAK, equations={"x": "-k*x + piecewise(f, t1*t > t - 1 + t1*t, f)"})
    model = model_of(leak(), SOLVERS[0], field=field)
    expected = np.exp(-RATE * TS) + STRONG / RATE * (1 - np.exp(-RATE * TS))
    np.testing.assert_allclose(model.predict(leak())[0, :, 0], expected, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tsit5", "kvaerno5"])
def test_a_fitted_switching_time_converges(method):
    ts = np.linspace(0.0, 4.0, 33)
    constants = {"k": [0.6, 0, None], "t1": [2.0, 0, 4], "f": [2.0, 0, None]}
    options = nf.Options(precision="x64", effort="quick")
    field = functools.partial(LEAK, constants=constants)
    fit = nf.fit(leak(ts, noise=0.01), field=field, solver=method, start=nf.Fitted, options=options)
    assert fit.status == "converged"
    intervals = fit.confidence().constants
    for name, true in {"k": RATE, "t1": ON, "f": STRONG}.items():
        assert abs(fit.constants[name] - true) < 4 * intervals[name].standard_error
    assert intervals["t1"].standard_error < 0.01
