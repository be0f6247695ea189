"""All steps at once are the steps one after the other: states, derivatives, and where Newton's method does not help."""

import functools
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit as nf
from node_fit.data.events import Jumps
from node_fit.runtime import placement
from node_fit.solver import recurrence
from node_fit.solver.problem import InitialValueProblem
from node_fit.solver.recurrence import solve_recurrence

TRAJECTORIES, ROWS, STATES, INPUTS = 3, 12, 2, 1


def make_field(seed=0, dtype=jnp.float64):
    mlp = eqx.nn.MLP(STATES + INPUTS, STATES, 8, 1, activation=jnp.tanh, key=jax.random.key(seed))
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_array(x) else x, mlp)


def make_problem(mlp, dtype=jnp.float64, **parts):
    rng = np.random.default_rng(0)
    ts = np.cumsum(rng.uniform(0.1, 0.5, (TRAJECTORIES, ROWS)), axis=1)
    us = jnp.asarray(rng.normal(size=(TRAJECTORIES, ROWS, INPUTS)), dtype)
    y0 = jnp.asarray(rng.normal(size=(TRAJECTORIES, STATES)), dtype)
    ts = jnp.asarray(ts - ts[:, :1], dtype)
    rates = lambda t, y, u: mlp(jnp.concatenate([y, u]))  # noqa: E731
    return InitialValueProblem(rates, ts, y0, us, ts[:, 0], jnp.full(STATES, 1e3, dtype), **parts)


def solve(mlp, march, between_rows=False, method="tsit5", dtype=jnp.float64, **parts):
    problem = make_problem(mlp, dtype, **parts)
    solver = nf.Solver(method, rtol=1e-5, atol=1e-6, inputs="hold", march=march)
    # The last steps have no length, as in a grid that is not full.
    nodes = jnp.linspace(0, 1, 3, dtype=dtype)[None]
    grid = nodes if between_rows else jnp.clip(jnp.linspace(0, 1.2, 25, dtype=dtype), 0, 1)[None] * problem.ts[:, -1:]
    return solver.solve_held(problem, grid, between_rows=between_rows)


def jumps():
    value = np.zeros((TRAJECTORIES, ROWS, STATES))
    value[1, 4, 0], value[2, 7, 1] = 2.0, -1.0
    keep = np.where(value == -1.0, 0.0, 1.0)
    return Jumps(jnp.asarray(keep), jnp.asarray(value))


@pytest.mark.parametrize(
    ("kind", "method"), [("grid", "heun"), ("grid", "tsit5"), ("rows", "tsit5"), ("jumps", "bosh3")]
)
def test_a_parallel_march_is_the_sequential_one(kind, method):
    with jax.enable_x64(True):
        parts = {"between_rows": kind != "grid", "method": method, "jumps": jumps() if kind == "jumps" else None}
        mlp = make_field()
        one, other = (solve(mlp, march, **parts) for march in ("sequential", "parallel"))
        np.testing.assert_allclose(other.ys, one.ys, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(other.errors, one.errors, rtol=1e-6, atol=1e-9)
        assert (other.ok == one.ok).all()


def flat_gradients(loss, mlp):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter_grad(loss)(mlp))])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("between_rows", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(jnp.float32, 1e-4), (jnp.float64, 1e-11)])
def test_gradients_are_those_of_the_sequential_march(dtype, close, between_rows):
    with jax.enable_x64(dtype == jnp.float64):

        def loss(mlp, march):
            found = solve(mlp, march, between_rows, dtype=dtype)
            return jnp.mean((found.ys - 1) ** 2)

        mlp = make_field(dtype=dtype)
        one, other = (flat_gradients(functools.partial(loss, march=march), mlp) for march in ("sequential", "parallel"))
        np.testing.assert_allclose(other, one, rtol=close, atol=close * np.abs(one).max())


def logistic(rate, count=40, guess=None):
    """Steps of a logistic map, of two trajectories with one state each."""
    step = lambda y, x: (y + rate * x * y * (1 - y), y.sum())  # noqa: E731
    y0 = jnp.array([[0.1], [0.2]])
    return step, y0, jnp.full(count, 0.2), guess


def in_turn(step, y0, xs, guess=None):
    def body(y, x):
        after, other = step(y, x)
        return after, (after, other)

    return jax.lax.scan(body, y0, xs)[1]


@pytest.mark.long
@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd, pytest.param(jax.hessian, marks=pytest.mark.slow)])
def test_derivatives_of_all_modes_and_orders_exist(derivative):
    with jax.enable_x64(True):

        def total(rate, solver):
            ys, others = solver(*logistic(rate))
            return jnp.sum(ys**2) + jnp.sum(others)

        one, other = (derivative(lambda rate, s=s: total(rate, s))(1.3) for s in (in_turn, solve_recurrence))
        np.testing.assert_allclose(other, one, rtol=1e-12)


def test_blocks_that_bound_the_memory_change_nothing(monkeypatch):
    with jax.enable_x64(True):

        def total(rate):
            ys, others = solve_recurrence(*logistic(rate))
            return jnp.sum(ys**2) + jnp.sum(others)

        whole = jax.value_and_grad(total)(1.3)
        monkeypatch.setattr(recurrence, "MOST_AT_ONCE", 2 * 7)  # 40 steps are no multiple of 7.
        np.testing.assert_allclose(jax.value_and_grad(total)(1.3), whole, rtol=1e-13)
        assert "scan" in str(jax.make_jaxpr(total)(1.3))


def test_steps_that_newton_has_not_settled_are_taken_in_turn(monkeypatch):
    monkeypatch.setattr(recurrence, "FEWEST_ITERATIONS", 2)
    monkeypatch.setattr(recurrence, "MOST_ITERATIONS", 2)
    with jax.enable_x64(True):
        step, y0, xs, _ = logistic(8.0)
        ys, _ = solve_recurrence(step, y0, xs, jnp.full((40, 2, 1), 50.0))
        np.testing.assert_allclose(ys, in_turn(step, y0, xs)[0], rtol=1e-12)


def test_members_that_need_different_iterations_are_each_right():
    with jax.enable_x64(True):
        rates = jnp.array([0.0, 1.3, 14.0])  # The last is chaotic: its steps are taken in turn.
        one, other = (jax.vmap(lambda rate, s=s: s(*logistic(rate))[0])(rates) for s in (in_turn, solve_recurrence))
        np.testing.assert_allclose(other[:2], one[:2], rtol=1e-12)
        assert residual_of(rates[2], other[2]) < 1e-13


def residual_of(rate, ys):
    step, y0, xs, _ = logistic(rate)
    after, _ = jax.vmap(step)(recurrence.before_steps(y0, ys), xs)
    return jnp.abs(after - ys).max()


def lorenz(count, dtype):
    """Steps of 0.02 time units by the classical Runge-Kutta method; the largest Lyapunov exponent is 0.9."""

    def rates(y):
        x, y, z = y[:, 0], y[:, 1], y[:, 2]
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=1)

    def step(y, h):
        a = rates(y)
        b = rates(y + h / 2 * a)
        c = rates(y + h / 2 * b)
        return y + h / 6 * (a + 2 * b + 2 * c + rates(y + h * c)), None

    return step, jnp.ones((1, 3), dtype), jnp.full(count, 0.02, dtype)


def test_chaos_is_marched_to_rounding():
    with jax.enable_x64(True):
        step, y0, xs = lorenz(1100, jnp.float64)  # 20 Lyapunov times.
        ys, _ = solve_recurrence(step, y0, xs)
        after, _ = jax.vmap(step)(recurrence.before_steps(y0, ys), xs)
        # Rounding of a step, whatever it grows to later.
        assert jnp.abs(after - ys).max() < 1e-11
        np.testing.assert_allclose(ys[:200], in_turn(step, y0, xs)[0][:200], rtol=1e-8, atol=1e-8)


def test_what_runs_away_is_found_to_run_away():
    with jax.enable_x64(True):

        def run(march):
            ts = jnp.broadcast_to(jnp.linspace(0, 4, 9), (2, 9))
            field = lambda t, y, u: y**2  # noqa: E731
            start = jnp.array([[1.0], [-1.0]])  # The first is infinite at time 1.
            problem = InitialValueProblem(field, ts, start, jnp.zeros((2, 9, 0)), ts[:, 0], jnp.full(1, 100.0))
            return nf.Solver(rtol=1e-5, atol=1e-6, march=march).solve_held(
                problem, jnp.tile(jnp.linspace(0, 4, 41), (2, 1))
            )

        one, other = run("sequential"), run("parallel")
        assert one.ok.tolist() == other.ok.tolist() == [False, True]
        np.testing.assert_allclose(other.ys[1], one.ys[1], rtol=1e-11)


@pytest.mark.slow
def test_a_loss_is_the_same_function_whichever_guess_it_begins_at():
    """As a line search sees it at the limit of rounding: differences between guesses are differences of rounding."""
    mlp = make_field(dtype=jnp.float32)
    truth = solve(mlp, "sequential", dtype=jnp.float32).ys

    def loss(mlp, guess):
        return jnp.mean((solve(mlp, "parallel", dtype=jnp.float32, guess=guess).ys - 1) ** 2)

    noise = 0.1 * jax.random.normal(jax.random.key(1), truth.shape)
    with placement.scope("x32", jax.devices()[0]):
        guesses = (None, truth, truth + noise, truth + 0.01 * noise, jnp.zeros_like(truth))
        losses = [float(loss(mlp, guess)) for guess in guesses]
    assert np.ptp(losses) <= 8 * np.finfo(np.float32).eps * losses[0]


def test_few_iterations_are_enough_near_the_data():
    with jax.enable_x64(True):
        step, y0, xs, _ = logistic(2.0)
        truth, _ = in_turn(step, y0, xs)

        def distance(guess):
            return jnp.abs(solve_recurrence(step, y0, xs, guess)[0] - truth).max()

        def count(guess):
            residuals = lambda ys: ys - jax.vmap(step)(recurrence.before_steps(y0, ys), xs)[0]  # noqa: E731
            return int(recurrence.iterate(residuals, guess).number)

        noise = 0.02 * jax.random.normal(jax.random.key(0), truth.shape)
        assert count(truth) == 1
        assert distance(truth + 1e-3) < 1e-14, "one correction is no proof that it was the last"
        assert count(truth + noise) <= 4
        assert count(jnp.broadcast_to(y0, truth.shape)) <= 8


def pretend(monkeypatch, platform):
    monkeypatch.setattr(placement, "default_device", lambda: SimpleNamespace(platform=platform))
    monkeypatch.setattr("node_fit.solver.solver.default_device", placement.default_device)


@pytest.mark.parametrize(
    ("march", "trajectories", "states", "on_cpu", "on_gpu"),
    [
        ("auto", 100, 2, False, True),
        ("auto", 10_000, 2, False, False),
        ("auto", 1, 17, False, False),
        ("sequential", 100, 2, False, False),
        ("parallel", 10_000, 40, True, True),
    ],
)
def test_a_march_is_chosen_by_device_and_size(monkeypatch, march, trajectories, states, on_cpu, on_gpu):
    solver = nf.Solver(march=march)
    rates = lambda t, y, u: y  # noqa: E731
    pretend(monkeypatch, "cpu")
    assert solver.marches_together(rates, trajectories, states) is on_cpu
    pretend(monkeypatch, "gpu")
    assert solver.marches_together(rates, trajectories, states) is on_gpu


def test_products_are_not_rounded_to_ten_bits_on_a_gpu(monkeypatch):
    for platform, products in (("cpu", None), ("gpu", "highest")):
        pretend(monkeypatch, platform)
        with placement.scope("x32", placement.default_device()):
            assert jax.config.jax_default_matmul_precision == products


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lm", "lbfgs"])
def test_a_fit_by_parallel_marches_is_the_same_fit(optimizer):
    ts = np.linspace(0, 4, 20)
    ys = np.stack([np.exp(-0.5 * ts), 2 * np.exp(-0.5 * ts)])[..., None]
    data = nf.Dataset.from_arrays(ts, ys, states=("c",))
    field = functools.partial(nf.Known, equations={"c": "-k*c"}, constants={"k": 1.0})

    def rate(march):
        solver = nf.Solver(march=march)
        training = nf.Training(steps=20)
        options = nf.Options(precision="x64", start="first", solver=solver, optimizer=optimizer, training=training)
        return nf.fit(data, field=field, progress=False, options=options).constants["k"]

    assert rate("parallel") == pytest.approx(rate("sequential"), rel=1e-9)
    assert rate("parallel") == pytest.approx(0.5, rel=1e-5)
