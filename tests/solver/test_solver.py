"""Solves against exact solutions of linear systems, their gradients, and failed solves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import rotation
from jax.flatten_util import ravel_pytree
from scipy.linalg import expm

import node_fit as nf
from node_fit.objectives.objective import Target
from node_fit.runtime.placement import carry, scope
from node_fit.solver.methods import ADJOINTS
from node_fit.solver.problem import InitialValueProblem

A = np.array([[-0.5, 2.0], [-2.0, -0.1]])
B = np.array([[1.0], [0.3]])
STARTS = np.array([[1.0, 0.0], [-0.5, 2.0], [0.0, 0.7]])


@pytest.fixture(autouse=True)
def double():
    with scope("x64"):
        yield


class Linear(eqx.Module):
    """`dy/dt = A y + B u`."""

    a: jax.Array
    b: jax.Array

    def __call__(self, t, y, u):
        return self.a @ y + self.b @ u


def linear(inputs: int = 0) -> Linear:
    return Linear(jnp.asarray(A), jnp.asarray(B[:, :inputs]))


@eqx.filter_jit
def program(solver, field, ts, y0, us, joint):
    return solver.solve(InitialValueProblem(field, ts, y0, us, jnp.zeros(len(ts))), joint=joint)


def solve(solver, ts, *, field=None, y0=STARTS, us=None, joint=False):
    """Solutions as NumPy arrays; tolerances are arguments of the compiled program, so they may vary."""
    solver = solver.for_data()
    solver = eqx.tree_at(lambda s: (s.rtol, s.atol), solver, (jnp.asarray(solver.rtol), jnp.asarray(solver.atol)))
    ts = np.broadcast_to(ts, (len(y0), np.shape(ts)[-1]))
    us = np.zeros((*ts.shape, 0)) if us is None else us
    field = linear(us.shape[2]) if field is None else field
    solution = program(solver, field, jnp.asarray(ts), jnp.asarray(y0), jnp.asarray(us), joint)
    return np.asarray(solution.ys), np.asarray(solution.ok)


def exact(ts, y0=STARTS) -> np.ndarray:
    return np.einsum("nij,kj->kni", expm(A * (ts - ts[0])[:, None, None]), y0)


TIMES = np.linspace(0.5, 2.5, 9)
# The accuracy that some methods reach in a few thousand steps.
TOLERANCES = {"heun": 1e-6, "tsit5": 1e-7, "implicit_euler": 1e-5}


@pytest.mark.parametrize("method", TOLERANCES)
def test_the_error_falls_with_the_tolerance(method):
    tolerances = (1e-3, TOLERANCES[method])
    solutions = [solve(nf.Solver(method, rtol=rtol, atol=rtol), TIMES, joint=True) for rtol in tolerances]
    errors = [np.abs(ys - exact(TIMES)).max() for ys, _ in solutions]
    assert all(ok.all() for _, ok in solutions)
    assert errors[0] < 0.2
    # The error of a step falls in proportion to the tolerance. The sum over a growing number of steps falls at least
    # with its square root.
    assert errors[1] < 3 * errors[0] * np.sqrt(tolerances[1] / tolerances[0])
    assert errors[1] > 1e-13, "the tolerance must reach the solver"


def padded(grids: list[np.ndarray], length: int) -> np.ndarray:
    return np.stack([np.concatenate([ts, np.repeat(ts[-1:], length - len(ts))]) for ts in grids])


EULER = nf.Solver("euler")


def by_hand(ts: np.ndarray, y0: np.ndarray) -> np.ndarray:
    """Euler's method with steps between the given times."""
    ys = [y0]
    for h in np.diff(ts):
        ys.append(ys[-1] + h * A @ ys[-1])
    return np.array(ys)


def test_euler_takes_the_measured_times_as_its_steps():
    ys, ok = solve(EULER, TIMES)
    assert ok.all()
    for trajectory, start in enumerate(STARTS):
        assert np.allclose(ys[trajectory], by_hand(TIMES, start), atol=1e-8)


def test_euler_is_of_order_one_in_the_spacing_of_the_measured_times():
    grids = [np.linspace(0.0, 0.2, rows) for rows in (3, 5, 9)]
    start = np.array([1.0, 0.5])
    ys, _ = solve(EULER, padded(grids, 9), y0=np.stack([start] * 3))
    errors = np.abs(ys[:, -1] - expm(A * 0.2) @ start).max(axis=1)
    orders = np.log2(errors[:-1] / errors[1:])
    assert (orders > 0.8).all() and (orders < 1.2).all()


@pytest.mark.slow
def test_ragged_padded_trajectories_equal_unpadded_ones():
    ts = padded([TIMES[:9], TIMES[:4], TIMES[:1]], 9)
    ys, ok = solve(EULER, ts)
    assert ok.all()
    solver = nf.Solver(rtol=1e-8, atol=1e-10)
    adaptive, ok = solve(solver, ts)
    assert ok.all()
    alone, _ = solve(solver, TIMES[:4], y0=STARTS[1:2])
    assert np.allclose(adaptive[1, :4], alone[0], atol=1e-6)
    for row, length in enumerate((9, 4, 1)):
        assert np.allclose(ys[row, :length], by_hand(TIMES[:length], STARTS[row]), atol=1e-8)
        assert np.allclose(adaptive[row, :length], exact(TIMES[:length])[row], atol=1e-6)
        for solved in (ys, adaptive):
            assert (solved[row, length:] == solved[row, length - 1]).all()


def test_joint_and_separate_solves_agree_within_the_tolerance():
    solver = nf.Solver(rtol=1e-7, atol=1e-7)
    (joint, joint_ok), (separate, separate_ok) = (solve(solver, TIMES, joint=joint) for joint in (True, False))
    assert joint.shape == separate.shape == (3, 9, 2) and joint_ok.shape == separate_ok.shape == (3,)
    assert joint_ok.all() and separate_ok.all()
    assert np.abs(joint - separate).max() < 1e-6
    assert np.abs(joint - separate).max() > 0, "the two modes must take different steps"


INPUT_TIMES = np.array([0.0, 0.3, 1.0, 1.1, 2.0, 3.0])
INPUTS = np.array([0.0, 2.0, -1.0, 3.0, 3.0, -2.0])


def forced(kind: str, inputs: np.ndarray, y0: np.ndarray) -> np.ndarray:
    """The exact solution: for each interval, a matrix exponential for the state, the input and the input's slope."""
    ys = [y0]
    for k, h in enumerate(np.diff(INPUT_TIMES)):
        slope = (inputs[k + 1] - inputs[k]) / h if kind == "linear" else 0.0
        block = np.zeros((4, 4))
        block[:2, :2], block[:2, 2:3], block[2, 3] = A, B, 1.0
        ys.append((expm(block * h) @ np.concatenate([ys[-1], [inputs[k], slope]]))[:2])
    return np.array(ys)


@pytest.mark.parametrize("kind", ["linear", "hold"])
def test_a_forced_system(kind):
    inputs = np.stack([INPUTS, -INPUTS, INPUTS**2])
    solver = nf.Solver(rtol=1e-8, atol=1e-10, inputs=kind)
    ys, ok = solve(solver, INPUT_TIMES, us=inputs[..., None], joint=True)
    assert ok.all()
    for trajectory in range(3):
        expected = forced(kind, inputs[trajectory], STARTS[trajectory])
        assert np.allclose(ys[trajectory], expected, atol=1e-6)
        other = forced("hold" if kind == "linear" else "linear", inputs[trajectory], STARTS[trajectory])
        assert np.abs(other - expected).max() > 0.05


def stiff(t, y, u):
    """A stiff field that relaxes to the cosine within a time of 0.001."""
    return -1e4 * (y - jnp.cos(t)) - jnp.sin(t)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "solved"), [("kvaerno5", True), ("tsit5", False)])
def test_a_stiff_system_wants_an_implicit_method(method, solved):
    ts = np.linspace(0.0, 3.0, 7)
    ys, ok = solve(nf.Solver(method, rtol=1e-6, atol=1e-8, max_steps=200), ts, field=stiff, y0=np.array([[2.0]]))
    assert ok.tolist() == [solved]
    assert np.allclose(ys[0, 1:, 0], np.cos(ts[1:]), atol=2e-3) is solved
    assert np.isfinite(ys).all() == solved


def test_a_solve_that_runs_out_of_steps_is_not_ok_and_those_beside_it_are():
    y0 = np.array([[1.0], [0.0]])
    ts = np.linspace(0.0, 2.0, 5)
    field = lambda t, y, u: y**2  # noqa: E731  # From 1, it reaches infinity at time 1.
    separate, ok = solve(nf.Solver(max_steps=64), ts, field=field, y0=y0)
    assert ok.tolist() == [False, True]
    assert np.isfinite(separate[0, :2]).all() and not np.isfinite(separate[0, -1]).any()
    assert np.allclose(separate[0, 1], 2.0, rtol=1e-3) and (separate[1] == 0).all()


@pytest.mark.slow
def test_a_failed_solve_gives_a_large_finite_loss_and_gradient():
    data = rotation()
    objective = nf.TrajectoryMatching(solver=nf.Solver(max_steps=6, stepping="adaptive"))
    field = nf.Linear(2, 0, key=jax.random.key(0))
    model = nf.make_model(data, field=field, key=jax.random.key(0))
    model = carry(model, np.float64)
    batch = carry(objective.prepare(data, model), np.float64)

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def evaluate(field):
        target = Target(batch, None, jnp.zeros(()))
        loss = objective.loss(eqx.tree_at(lambda m: m.field, model, field), None, target)
        return loss.value, loss.failed

    # A zero field is solved in a few steps, a fast rotation is not.
    for scale, fails in ((0.0, False), (30.0, True)):
        (value, failed), gradient = evaluate(jax.tree.map(lambda x, scale=scale: scale * x, model.field))
        assert int(failed) == (3 if fails else 0)
        assert (float(value) > 1e3) is fails and np.isfinite(float(value))
        assert np.isfinite(np.asarray(ravel_pytree(gradient)[0])).all()


def total(solver, numbers, joint):
    """A scalar from a solve as a function of A, B and the start, with a gradient of order one."""
    a, b, y0 = numbers
    # An input without kinks, since a solve exceeds its tolerance at a kink.
    us = jnp.broadcast_to(jnp.asarray(TIMES)[:, None], (3, 9, 1))
    ts = jnp.broadcast_to(jnp.asarray(TIMES), (3, 9))
    ys = solver.solve(InitialValueProblem(Linear(a, b), ts, y0, us, jnp.zeros(len(ts))), joint=joint).ys
    return (ys**2).mean() + ys[:, -1].sum()


NUMBERS = (A, B, STARTS)
# An adjoint that solves an equation backwards is only as accurate as its tolerance.
ACCURACY = {"checkpointed": 1e-5, "direct": 1e-5, "forward": 1e-5, "backsolve": 1e-4}


def differences(solver) -> np.ndarray:
    """The derivative with respect to each number, by central differences."""
    flat, restore = ravel_pytree(jax.tree.map(jnp.asarray, NUMBERS))
    step = 1e-3
    values = jax.jit(jax.vmap(lambda x: total(solver, restore(x), False)))
    shifts = step * np.eye(flat.size)
    return np.asarray((values(flat[None] + shifts) - values(flat[None] - shifts)) / (2 * step))


@pytest.fixture(scope="module")
def slopes() -> np.ndarray:
    with scope("x64"):
        return differences(nf.Solver(rtol=1e-10, atol=1e-12))


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_gradients_equal_finite_differences(adjoint, slopes):
    solver = nf.Solver(rtol=1e-10, atol=1e-12, adjoint=adjoint)
    flat, restore = ravel_pytree(jax.tree.map(jnp.asarray, NUMBERS))
    function = lambda x: total(solver, restore(x), True)  # noqa: E731
    gradient = jax.jit(jax.jacfwd(function) if adjoint == "forward" else jax.grad(function))(flat)
    assert np.abs(slopes).min() > 1e-3, "every number must affect the result"
    assert np.allclose(gradient, slopes, rtol=ACCURACY[adjoint], atol=ACCURACY[adjoint])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "tsit"}, "method must be one of .*tsit5.*, got 'tsit'; did you mean 'tsit5'?"),
        ({"method": "???"}, "method must be one of .*got '...'\\.$"),
        ({"rtol": 0.0}, "rtol must be positive, got 0.0"),
        ({"atol": -1e-6}, "atol must be positive, got -1e-06"),
        ({"rtol": float("nan")}, "rtol must be positive, got nan"),
        ({"max_steps": 0}, "max_steps must be positive, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        nf.Solver(**options)


def fast_and_slow(t, y, u):
    """Two decays with a different rate for each state."""
    return -jnp.array([1.0, 30.0], y.dtype) * y


@pytest.mark.slow
@pytest.mark.parametrize("joint", [True, False])
def test_tolerances_may_differ_by_state(joint):
    ts = jnp.tile(jnp.linspace(0.0, 2.0, 5), (2, 1))
    y0, us = jnp.array([[1.0, 1e-3], [2.0, 2e-3]]), jnp.zeros((2, 5, 0))
    truth = np.asarray(y0)[:, None] * np.exp(-np.asarray(ts)[..., None] * np.array([1.0, 30.0]))

    problem = InitialValueProblem(fast_and_slow, ts, y0, us, jnp.zeros(len(ts)))

    def error(atol):
        solution = nf.Solver(rtol=1e-3, atol=atol).solve(problem, joint=joint)
        return np.abs(np.asarray(solution.ys) - truth)[..., 1].max()

    assert error((1e-2, 1e-8)) < 0.1 * error((1e-2, 1e-2))
    with pytest.raises(ValueError, match="atol has 3 numbers; it needs one, or one for each of the 2 states"):
        error((1e-2, 1e-2, 1e-2))


@pytest.mark.slow
def test_fixed_steps_have_the_order_of_the_method():
    def error(times):
        ts = jnp.linspace(0.0, 1.0, times)[None]
        us = jnp.zeros((1, times, 0))
        problem = InitialValueProblem(lambda t, y, u: -y, ts, jnp.ones((1, 1)), us, jnp.zeros(1))
        ys = nf.Solver("heun", stepping="even").solve(problem, joint=True).ys
        return abs(float(ys[0, -1, 0]) - np.exp(-1.0))

    assert 3.5 < error(9) / error(17) < 4.6
