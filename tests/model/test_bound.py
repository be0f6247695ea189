"""Bounds beyond which a solution over held steps has run away: hidden states of equations may grow far, others not."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit as nf
from node_fit.data.dataset import Dataset
from node_fit.runtime.placement import carry
from node_fit.solver import held_steps

TIMES = np.linspace(0.0, 24.0, 49)
GROWTH = {"x": "0.5*q/(1 + q)*x*(1 - x)", "q": "r*q"}


def solve_held(equations, values, r: float):
    """A solution over a day of held steps of a measured `x` and a hidden `q`, and the gradient of its end by `r`."""
    data = Dataset.from_arrays(TIMES, np.linspace(0.02, 1, 49)[:, None], states=["x"])
    model = nf.make_model(
        data,
        field=functools.partial(nf.Known, equations=equations, constants={"r": r}),
        start=functools.partial(nf.Stated, values=values),
        hidden=["q"],
        key=jax.random.key(0),
    )
    batch = carry(model.batch(data), np.float32)
    grid = jnp.asarray(held_steps.stretch(held_steps.even(np.asarray(batch.ts), 200), np.asarray(batch.ts)))

    @eqx.filter_jit
    @functools.partial(eqx.filter_value_and_grad, has_aux=True)
    def end(model):
        solution = model.solver.solve_held(model.problem(batch, model.first_states(batch)), grid)
        return jnp.where(solution.ok[0], solution.ys[0, -1, 1], 0), solution

    (_, solution), gradient = end(model)
    return solution, float(gradient.field.constants.raw[0])


@pytest.mark.parametrize("r", [pytest.param(0.55, marks=pytest.mark.slow), 1.0])
def test_a_hidden_state_may_grow_by_ten_orders_of_magnitude(r):
    solution, slope = solve_held(GROWTH, {"q": "0.2", "x": "0.02"}, r)
    assert solution.ok.all()
    exact = 0.2 * np.exp(r * 24)
    np.testing.assert_allclose(solution.ys[0, -1, 1], exact, rtol=1e-3)
    np.testing.assert_allclose(slope, exact * 24 * r, rtol=1e-2)  # Of the constant over its first value.


@pytest.mark.parametrize("equations", [{"x": "x^2*r", "q": "0"}, {"x": "0", "q": "q^2*r"}], ids=["measured", "hidden"])
def test_a_state_that_runs_away_is_a_failure_with_a_finite_gradient(equations):
    solution, slope = solve_held(equations, {"q": "0.5", "x": "0.5"}, 1.0)
    assert not solution.ok.any()
    assert np.isfinite(slope)


class Own(eqx.Module):
    """A field that says nothing of itself."""

    def __call__(self, t, y, u):
        return -y


def test_a_field_of_ones_own_is_bounded_by_the_data():
    data = Dataset.from_arrays(TIMES, np.exp(-TIMES)[:, None], states=["x"])
    model = nf.make_model(data, field=Own(), key=jax.random.key(0))
    batch = carry(model.batch(data), np.float32)
    assert 1e4 < float(model.problem(batch, batch.ys[:, 0]).bound[0]) < 1e6
