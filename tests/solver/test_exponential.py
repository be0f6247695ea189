"""Exponential steps: exact for linear fields, of the second order beside, and the same by every way of a solve."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from node_fit import MLP, Dataset, Linear
from node_fit.data.batch import Batch
from node_fit.data.scaling import Scaler
from node_fit.model.rollout import intervals_to
from node_fit.runtime.placement import scope
from node_fit.solver.exponential import NEEDS_LINEAR_PART, linear_parts, propagate
from node_fit.solver.problem import InitialValueProblem
from node_fit.solver.solver import Solver
from node_fit.sysid.linear_model import step_matrix

ROWS = np.array([[0.0, 1.0]])


@pytest.fixture(autouse=True)
def in_double():
    with scope("x64"):
        yield


def stiff_field():
    """Three states, of which one decays a hundred times within a row and another turns by 2 in a row."""
    field = Linear(3, 2, key=jax.random.key(0))
    matrix = np.array([[-0.1, 2.0, 0.3], [-2.0, -0.1, 0.0], [0.2, 0.0, -100.0]])
    return eqx.tree_at(lambda f: f.layer.weight, field, field.layer.weight.at[:, :3].set(matrix))


def weak_network(size=0.2):
    field = MLP(3, 2, width=8, linear=True, key=jax.random.key(0))
    last = size * jax.random.normal(jax.random.key(4), (3, 8))
    return eqx.tree_at(lambda f: f.network.layers[-1].weight, field, last)


def problem_of(field, rows=40, step=1.0, begin=0.0):
    rng = np.random.default_rng(0)
    ts = np.tile(begin + step * np.arange(rows), (2, 1))
    return InitialValueProblem(field, ts, jnp.ones((2, 3)), rng.normal(size=(2, rows, 2)), np.zeros(2))


def solver(kind, method="exponential"):
    return Solver(method, inputs=kind, rtol=1e-4, atol=1e-4)


def exact(kind):
    return Solver("kvaerno5", inputs=kind, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["hold", "linear"])
def test_steps_of_a_stiff_linear_field_are_exact(kind):
    problem = problem_of(stiff_field(), rows=30)
    found = solver(kind).forecast(problem).ys
    parts, held = linear_parts(problem.field), kind == "hold"
    step = step_matrix(*map(np.asarray, (parts.matrix, parts.push[:, :2], parts.push[:, 2])), held=held)
    y = np.ones((2, 3))
    for row in range(29):
        drives = [problem.us[:, row], *([] if held else [problem.us[:, row + 1]]), np.ones((2, 1))]
        y = np.concatenate([y, *drives], axis=1) @ step.T
        np.testing.assert_allclose(found[:, row + 1], y, atol=1e-9)
    other = Solver("heun", inputs=kind, rtol=1e-4, atol=1e-4).solve_held(problem, ROWS, between_rows=True)
    assert not np.allclose(found, other.ys, atol=1)  # What such a field makes of other steps of a row.


def test_propagators_are_exponentials_of_all_fractions():
    parts = linear_parts(stiff_field())
    for linear in (True, False):
        found = propagate(parts, jnp.asarray(1.5), linear=linear)
        for level in (0, 3, 12):
            np.testing.assert_allclose(found.free[level], expm(1.5 / 2**level * parts.matrix), rtol=1e-9, atol=1e-12)
            push = parts.push if linear else np.eye(3)
            integral = np.linalg.solve(parts.matrix, (found.free[level] - np.eye(3)) @ push)
            np.testing.assert_allclose(found.held[level], integral, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (stiff_field, "linear"),
        (weak_network, "hold"),
        pytest.param(stiff_field, "hold", marks=pytest.mark.slow),
        pytest.param(weak_network, "linear", marks=pytest.mark.slow),
    ],
)
def test_forecasts_held_steps_and_solves_are_equal(field, kind):
    problem = problem_of(field(), step=0.1)
    ways = solver(kind)
    found = ways.forecast(problem).ys
    np.testing.assert_array_equal(found, ways.solve_held(problem, ROWS, between_rows=True).ys)
    np.testing.assert_array_equal(found, ways.solve(problem, joint=True).ys)


def test_a_network_beside_is_solved_to_the_second_order():
    errors = []
    for rows, step in ((11, 0.2), (21, 0.1), (41, 0.05)):
        problem = problem_of(weak_network(), rows, step)
        problem = eqx.tree_at(lambda p: p.us, problem, np.ones((2, rows, 2)))
        tight = Solver("tsit5", inputs="hold", rtol=1e-10, atol=1e-12)
        off = solver("hold").forecast(problem).ys - tight.forecast(problem).ys
        errors.append(float(jnp.abs(off[:, -1]).max()))
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert 3.5 < errors[1] / errors[2] < 4.5


@pytest.mark.parametrize("kind", ["linear", pytest.param("hold", marks=pytest.mark.slow)])
def test_times_between_rows_move_no_row(kind):
    problem = problem_of(stiff_field(), rows=6)
    batch = eqx.tree_at(lambda b: (b.ts, b.us), blank_batch(), (problem.ts, problem.us))
    wanted = np.sort(np.random.default_rng(1).uniform(0, 5, (2, 9)), axis=1)
    intervals, index = intervals_to(batch, wanted, kind)
    plain, other = solver(kind), exact(kind)
    found, there = (each.advance(problem, intervals, each.begin(problem, intervals))[0] for each in (plain, other))
    np.testing.assert_allclose(found, there, atol=2e-4)
    np.testing.assert_allclose(found[:, -1], plain.forecast(problem).ys[:, -1], atol=2e-4)
    assert (index >= 0).all()


def blank_batch():
    ts, names = np.arange(6.0), {"states": ["a", "b", "c"], "inputs": ["u", "v"]}
    data = Dataset.from_arrays([ts, ts], [np.ones((6, 3))] * 2, [np.ones((6, 2))] * 2, **names)
    return Batch.from_dataset(data, Scaler.from_dataset(data, identity=True))


def test_late_rows_in_single_precision_are_whole_rows():
    with scope("x32"):
        field = jax.tree.map(lambda x: x.astype(jnp.float32), stiff_field())
        early, late = (
            jax.tree.map(
                lambda x: jnp.asarray(x, jnp.float32) if eqx.is_array(x) else x, problem_of(field, begin=begin)
            )
            for begin in (0.0, 3e4)
        )
        late = eqx.tree_at(lambda p: p.ts, late, late.ts)
        found = [solver("hold").forecast(each).ys for each in (early, late)]
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_derivatives_are_those_of_differences():
    problem = problem_of(weak_network(), rows=5, step=0.2)
    params, static = eqx.partition(problem.field, eqx.is_array)

    def total(params):
        moved = eqx.tree_at(lambda p: p.field, problem, eqx.combine(params, static))
        return (solver("linear").solve_held(moved, ROWS, between_rows=True).ys ** 2).sum()

    slope = jax.grad(total)(params)
    for place in (lambda f: f.path.layer.weight, lambda f: f.network.layers[0].bias):
        direction = jnp.ones_like(place(params))
        up, down = (total(eqx.tree_at(place, params, place(params) + s * 1e-6 * direction)) for s in (1, -1))
        assert float((place(slope) * direction).sum()) == pytest.approx(float(up - down) / 2e-6, rel=1e-5)


def test_fields_without_a_linear_part_are_refused():
    problem = problem_of(MLP(3, 2, key=jax.random.key(0)))
    with pytest.raises(ValueError, match="has none") as error:
        solver("hold").forecast(problem)
    assert str(error.value) == NEEDS_LINEAR_PART
    with pytest.raises(ValueError, match="stepping=held"):
        Solver("exponential", stepping="held")
