"""Held steps: orders of convergence, interpolation, gradients, and grids that meet a tolerance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to

import node_fit as nf
from node_fit.runtime.placement import scope
from node_fit.solver import held_steps
from node_fit.solver.problem import InitialValueProblem

TIMES = np.linspace(0.0, 4.0, 9)
STARTS = jnp.array([[1.0, 0.0], [0.3, -0.8]])
ORDERS = {"euler": 1, "heun": 2, "bosh3": 3, "tsit5": 5, "dopri5": 5}
FAR = jnp.full(2, 1e4)


def turn(t, y, u):
    """A rotation whose speed grows with time."""
    return (1 + 0.5 * t) * jnp.stack([y[1], -y[0]])


def exact(ts) -> np.ndarray:
    angle = np.asarray(ts) + 0.25 * np.asarray(ts) ** 2
    starts = np.asarray(STARTS)
    return np.stack(
        [[[a * np.cos(s) + b * np.sin(s), b * np.cos(s) - a * np.sin(s)] for s in angle] for a, b in starts]
    )


def follow(method, steps, *, field=turn, ts=TIMES, y0=STARTS, us=None, grid=None, inputs="linear"):
    with scope("x64"):
        times = jnp.broadcast_to(jnp.asarray(ts), (len(y0), len(ts)))
        us = jnp.zeros((len(y0), len(ts), 0)) if us is None else us
        shares = held_steps.even(np.asarray(times), steps) if grid is None else grid
        grid = held_steps.stretch(jnp.asarray(shares), times)
        solver = nf.Solver(method, inputs=inputs)
        bound = jnp.full(y0.shape[1], 1e4)
        y0, origin = jnp.asarray(y0, float), jnp.zeros(len(y0))
        return solve_held(solver, InitialValueProblem(field, times, y0, us, origin, bound), grid)


# One program instead of many operations, each of which is compiled.
solve_held = eqx.filter_jit(nf.Solver.solve_held)
step_errors = eqx.filter_jit(nf.Solver.step_errors)


@pytest.mark.slow
@pytest.mark.parametrize("method", ORDERS)
def test_orders_of_convergence(method):
    """At the nodes, the error falls with the order of the method."""
    errors = []
    for steps in (64, 128, 256) if method == "tsit5" else (32, 64, 128):
        solution = follow(method, steps)
        assert solution.ok.all()
        errors.append(np.abs(np.asarray(solution.ys) - exact(TIMES)).max())
    found = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(np.abs(found - ORDERS[method]) < 0.35), found


@pytest.mark.parametrize(("method", "order"), [("euler", 2), ("heun", 2), ("bosh3", 3), ("tsit5", 4), ("dopri5", 4)])
def test_orders_between_the_nodes(method, order):
    """Between nodes, the error falls nearly with the order of the method, or of its interpolant if that is lower."""
    ts = np.linspace(0.0, 4.0, 24)  # Not at the nodes of any grid below.
    errors = [np.abs(np.asarray(follow(method, steps, ts=ts).ys) - exact(ts)).max() for steps in (32, 64, 128)]
    found = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(found > min(order, ORDERS[method]) - 0.35), found


@pytest.mark.slow
def test_the_solution_is_that_of_diffrax_on_the_same_steps():
    with scope("x64"):
        times = jnp.broadcast_to(jnp.asarray(TIMES), (2, len(TIMES)))
        us = jnp.zeros((2, len(TIMES), 0))
        solver = nf.Solver("tsit5", stepping="even")
        problem = InitialValueProblem(turn, times, jnp.asarray(STARTS, float), us, jnp.zeros(2))
        theirs = solver.solve(problem, joint=True).ys
        mine = follow("tsit5", len(TIMES) - 1).ys
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_the_gradient_against_finite_differences():
    def loss(rate):
        return (follow("tsit5", 12, field=lambda t, y, u: rate * turn(t, y, u)).ys ** 2)[..., 0].sum()

    with scope("x64"):
        h = 1e-6
        difference = (loss(1 + h) - loss(1 - h)) / (2 * h)
        np.testing.assert_allclose(jax.grad(loss)(1.0), difference, rtol=1e-7)


@pytest.mark.parametrize("inputs", ["linear", "hold", "cubic"])
def test_inputs(inputs):
    """A pure integral of the input is exact for straight lines, as each kind of interpolation represents them."""
    with scope("x64"):
        us = jnp.asarray(np.stack([TIMES, -TIMES])[..., None])
        # A step that ends at a jump also sees the value after it.
        steps, tolerance = (4096, 0.01) if inputs == "hold" else (64, 1e-12)
        ys = follow("tsit5", steps, field=lambda t, y, u: u, us=us, y0=jnp.zeros((2, 1)), inputs=inputs).ys
        whole = np.concatenate([[0.0], np.cumsum(TIMES[:-1] * 0.5)]) if inputs == "hold" else TIMES**2 / 2
        np.testing.assert_allclose(ys[0, :, 0], whole, atol=tolerance)
        np.testing.assert_allclose(ys[1], -ys[0], atol=1e-12)


@pytest.mark.slow
def test_a_solution_that_runs_away_is_named_and_its_gradient_is_finite():
    with scope("x64"):
        y0 = jnp.array([[3.0], [0.1]])

        @jax.value_and_grad
        def blow(power):
            solution = follow("tsit5", 16, field=lambda t, y, u: power * y**2, y0=y0)
            return jnp.where(jnp.isfinite(solution.ys), solution.ys, 0).sum()

        solution = follow("tsit5", 16, field=lambda t, y, u: y**2, y0=y0)
        assert solution.ok.tolist() == [False, True]
        assert np.isfinite(solution.ys[0, 0]).all() and not np.isfinite(solution.ys[0, -1]).any()
        value, gradient = blow(1.0)
        assert np.isfinite(value) and np.isfinite(gradient)


def stiffening(t, y, u):
    """Slow at first, then fast."""
    return 20 * jnp.exp(-((t - 3) ** 2) / 0.02) * jnp.stack([y[1], -y[0]]) + turn(t, y, u)


def errors_of(grid, method="tsit5", rtol=1e-6, field=stiffening):
    times = jnp.broadcast_to(jnp.asarray(TIMES), (2, len(TIMES)))
    us = jnp.zeros((2, len(TIMES), 0))
    solver = nf.Solver(method, rtol=rtol, atol=rtol / 100)
    nodes = held_steps.stretch(jnp.asarray(grid), times)
    problem = InitialValueProblem(field, times, jnp.asarray(STARTS, float), us, jnp.zeros(2), FAR)
    return np.asarray(step_errors(solver, problem, nodes))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heun", "bosh3", "tsit5", "dopri8"])
def test_a_settled_grid_keeps_to_its_tolerance(method):
    """Steps are short where the field is fast, and the solution meets the tolerance."""
    rtol = 1e-4 if method == "heun" else 1e-6
    with scope("x64"):
        order = nf.Solver(method).error_order
        first = held_steps.even(np.broadcast_to(TIMES, (2, len(TIMES))), 8)
        asked = []
        grid = held_steps.settle(lambda g: asked.append(g.shape) or errors_of(g, method, rtol), first, order, 4096)
        assert errors_of(grid, method, rtol).max() <= held_steps.SLACK
        assert (np.diff(grid, axis=1) > 0).all()
        np.testing.assert_allclose(grid[:, [0, -1]], [[0.0, 1.0]] * 2)
        steps = np.diff(grid[0])
        fast = np.abs(TIMES[-1] * (grid[0, :-1] + grid[0, 1:]) / 2 - 3) < 0.1
        assert steps[fast].mean() < 0.3 * steps[~fast].mean()
        ys = follow(method, None, field=stiffening, grid=grid).ys
        fine = follow("dopri8", 2000, field=stiffening).ys
        assert np.abs(np.asarray(ys - fine)).max() < 300 * rtol
        # A settled grid does not change.
        assert held_steps.settle(lambda g: errors_of(g, method, rtol), grid, order, 4096) is grid
        # Settling costs few evaluations of a grid.
        assert len(asked) <= held_steps.SETTLING_ROUNDS


def test_a_grid_has_no_more_steps_than_allowed():
    with scope("x64"):
        first = held_steps.even(np.broadcast_to(TIMES, (2, len(TIMES))), 8)
        grid = held_steps.settle(lambda g: errors_of(g, rtol=1e-10), first, 5, 20)
        assert grid.shape == (2, 21)


def test_even_grids():
    ts = np.array([[0.0, 1.0, 2.0, 4.0], [1.0, 3.0, 3.0, 3.0]])
    on_times = lambda shares: held_steps.stretch(shares, ts)  # noqa: E731
    np.testing.assert_allclose(on_times(held_steps.even(ts)), [[0, 4 / 3, 8 / 3, 4], [1, 3, 3, 3]])
    np.testing.assert_allclose(on_times(held_steps.even(ts, 2)), [[0, 2, 4], [1, 2, 3]])
    np.testing.assert_allclose(
        on_times(held_steps.finest(held_steps.even(ts))), [[0, 4 / 3, 8 / 3, 4], [1, 5 / 3, 7 / 3, 3]]
    )


def test_sizes_are_few():
    assert [held_steps.size(n) for n in (1, 8, 8.1, 12.5, 33, 50, 65)] == [8, 8, 9, 13, 36, 52, 72]


@pytest.mark.slow
def test_a_grid_far_finer_than_needed_becomes_coarser():
    with scope("x64"):
        first = held_steps.even(np.broadcast_to(TIMES, (2, len(TIMES))), 200)
        grid = held_steps.settle(lambda g: errors_of(g, rtol=1e-4), first, 5, 4096)
        assert grid.shape[1] < 60
        errors = errors_of(grid, rtol=1e-4)
        assert errors.max() <= held_steps.SLACK and held_steps.needed_steps(errors, 5) <= grid.shape[1] - 1


def test_a_grid_as_coarse_as_can_be_stays():
    with scope("x64"):
        first = held_steps.even(np.broadcast_to(TIMES, (2, len(TIMES))), held_steps.FEWEST_STEPS)
        assert held_steps.settle(lambda g: errors_of(g, rtol=1.0), first, 5, 4096) is first


def test_what_no_grid_can_do_is_refused():
    with pytest.raises(ValueError, match="needs an explicit method, and kvaerno5 is implicit"):
        nf.Solver("kvaerno5", stepping="held")
    with pytest.raises(ValueError, match="euler has no error estimate"):
        nf.Solver("euler", stepping="held")
    assert [nf.Solver(m).stepping for m in ("tsit5", "kvaerno3", "euler")] == ["held", "adaptive", "even"]


class Seen(nf.Callback):
    """Records the grids of a fit's chunks."""

    def __init__(self):
        self.grids = []

    def on_chunk_end(self, records, state):
        self.grids.append(None if state.members[0].grid is None else np.asarray(state.members[0].grid))


@pytest.mark.slow
def test_steps_change_between_chunks_where_the_field_has_outgrown_them():
    """An initially slow field is fitted to a fast rotation; its first steps are too long for the final field."""
    ts = np.linspace(0, 6, 60)
    ys = np.stack([np.cos(5 * ts), -np.sin(5 * ts)], axis=1)
    seen = Seen()
    slow = jnp.array([[0.0, 4.0], [-4.0, 0.0]])
    field = eqx.tree_at(lambda f: f.layer.weight, nf.Linear(2, key=jax.random.key(0)), slow)
    solver = nf.Solver(rtol=1e-7, atol=1e-9)
    options = {"steps": 60, "chunk_steps": 10, "precision": "x64", "callbacks": [seen]}
    data = nf.Dataset.from_arrays(ts, ys)
    fit = fit_to(data, field=field, scale=False, recipe="direct", solver=solver, **options)
    assert fit.score(data).nrmse < 1e-3
    same = [a.shape == b.shape and (a == b).all() for a, b in zip(seen.grids[:-1], seen.grids[1:], strict=True)]
    assert any(same), "the grid was rebuilt in every chunk"
