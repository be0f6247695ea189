"""The line search with one evaluation per step, in a bare loop on functions with known minima."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from helpers.problems import Marked, fit_to, problem, rotation

import node_fit as nf
from node_fit.optimizers.gradient import (
    CURVATURE,
    DECREASE,
    HOPELESS_SEARCHES,
    downhill,
    lbfgs_by_evaluation,
    restart_search,
)
from node_fit.runtime.placement import dtype_of, scope
from node_fit.training.step import transition

pytestmark = pytest.mark.slow


def run(function, start, evaluations, memory=10, tries=20):
    """Runs the search; returns trial points, their values, and the state after each evaluation."""
    search = lbfgs_by_evaluation(memory, tries)

    def body(carry, _):
        x, state = carry
        value, gradient = jax.value_and_grad(function)(x)
        updates, new = search.update(gradient, state, x, value=value)
        return (x + updates, new), (x, value, new)

    return jax.lax.scan(body, (start, search.init(start)), None, evaluations)[1]


def minimise(function, start, evaluations=200, **options):
    xs, values, states = jax.jit(functools.partial(run, function, evaluations=evaluations, **options))(start)
    return np.asarray(xs), np.asarray(values), jax.device_get(states)


def accepted(states) -> np.ndarray:
    """The start points of the lines, in order; a point that starts several lines counts once."""
    points = states.line.point[(states.line.tries == 0) & np.isfinite(states.line.start.value)]
    different = np.r_[True, (points[1:] != points[:-1]).any(axis=1)]
    return points[different]


def needed(function, start, tolerance, evaluations=400, **options) -> int:
    """Number of evaluations until the gradient norm is at most `tolerance` times the first."""
    xs, _, _ = minimise(function, start, evaluations, **options)
    norms = np.linalg.norm(jax.vmap(jax.grad(function))(xs), axis=1)
    reached = np.flatnonzero(norms <= tolerance * norms[0])
    assert reached.size, f"the gradient only fell to {norms.min() / norms[0]:.1e} of the first"
    return int(reached[0]) + 1


def needed_by_scipy(function, start, tolerance, memory) -> int:
    norms = []
    evaluate = jax.jit(jax.value_and_grad(function))

    def traced(x):
        value, gradient = jax.device_get(evaluate(x))
        norms.append(np.linalg.norm(gradient))
        return float(value), gradient

    options = {"maxcor": memory, "ftol": 0.0, "gtol": 0.0, "maxiter": 1000}
    scipy.optimize.minimize(traced, np.asarray(start), jac=True, method="L-BFGS-B", options=options)
    return int(np.flatnonzero(np.array(norms) <= tolerance * norms[0])[0]) + 1


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def double_well(x):
    return jnp.sum((x**2 - 1) ** 2) / 4 + x[0] / 10


def barrier(x, slope=(-100.0, 30.0)):
    """Undefined outside the unit circle, with a minimum close to it."""
    return jnp.array(slope, x.dtype) @ x - jnp.log(1 - x @ x)


gentle_barrier = functools.partial(barrier, slope=(-3.0, 1.0))


def quadratic(size, condition, seed=0):
    values = np.geomspace(1, condition, size)
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return lambda x: 0.5 * x @ (jnp.asarray(axes * values @ axes.T, x.dtype) @ x)


@pytest.mark.parametrize("size", [2, 5, 10])
def test_a_convex_quadratic_takes_about_as_many_evaluations_as_dimensions(size):
    with scope("x64"):
        start = jnp.asarray(np.random.default_rng(1).normal(size=size))
        # Exact searches need `size` lines. Inexact ones need a few more, and the first line finds the scale.
        assert needed(quadratic(size, 30.0), start, 1e-6, memory=20) <= 3 * size + 10


@pytest.mark.parametrize("size", [2, 10])
def test_rosenbrock_takes_about_as_many_evaluations_as_with_scipy(size):
    with scope("x64"):
        start = jnp.asarray(np.tile([-1.2, 1.0], size // 2))
        xs, values, _ = minimise(rosenbrock, start, 400, memory=20)
        np.testing.assert_allclose(xs[np.argmin(values)], 1.0, atol=1e-6)
        assert needed(rosenbrock, start, 1e-7, memory=20) <= 1.5 * needed_by_scipy(rosenbrock, start, 1e-7, 20)


@pytest.mark.parametrize(
    ("function", "start"),
    [(rosenbrock, [-1.2, 1.0, -1.2, 1.0]), (double_well, [0.01, -0.02, 0.5]), (gentle_barrier, [0.0, 0.0])],
    ids=["rosenbrock", "double well", "barrier"],
)
def test_accepted_steps_satisfy_the_strong_wolfe_conditions(function, start, precision):
    with scope(precision):
        start = jnp.asarray(start, dtype_of(precision))
        points = accepted(minimise(function, start, 100)[2])
        values, gradients = jax.device_get(jax.vmap(jax.value_and_grad(function))(points))
    # Near the minimum, differences are rounding errors, and only the approximate conditions can hold.
    clear = values[:-1] - values[1:] > 1e4 * np.finfo(values.dtype).eps * np.abs(values[:-1])
    assert clear.sum() >= 2
    way = np.diff(points, axis=0)
    slope, slope_after = (gradients[:-1] * way).sum(axis=1), (gradients[1:] * way).sum(axis=1)
    assert (slope < 0)[clear].all()
    slack = 1e2 * np.finfo(values.dtype).eps * np.abs(values[:-1])
    assert (values[1:] <= values[:-1] + DECREASE * slope + slack)[clear].all()
    assert (np.abs(slope_after) <= CURVATURE * np.abs(slope) * (1 + 1e-3))[clear].all()


@pytest.mark.parametrize("function", [rosenbrock, double_well])
def test_the_accepted_loss_never_rises(function):
    with scope("x64"):
        states = minimise(function, jnp.array([-1.2, 1.0, 0.3]), 150)[2]
    values = states.line.start.value[np.isfinite(states.line.start.value)]
    # Decreasing up to the rounding that the approximate conditions allow.
    assert (np.diff(values) <= 10 * np.finfo(np.float64).eps * np.abs(values[:-1])).all()
    assert values[-1] < values[0]


def test_regions_that_are_not_finite_are_backed_off_from(precision):
    with scope(precision):
        xs, values, states = minimise(barrier, jnp.zeros(2, dtype_of(precision)), 80)
        assert not np.isfinite(values).all(), "no trial left the domain, so the test is void"
        assert np.isfinite(xs).all()
        assert np.isfinite(np.asarray(jax.vmap(barrier)(accepted(states)))).all()
        # The minimum of c.x - log(1 - x.x) lies along -c where |c| (1 - r^2) = 2 r.
        c = np.array([-100.0, 30.0])
        r = (np.sqrt(1 + c @ c) - 1) / np.linalg.norm(c)
        expected = -r * c / np.linalg.norm(c)
        tolerance = 1e-3 if precision == "x32" else 1e-7
        np.testing.assert_allclose(xs[np.nanargmin(values)], expected, atol=tolerance)


@pytest.mark.parametrize("outside", [np.nan, np.inf, -np.inf])
def test_a_wide_region_without_values(outside):
    """Most of the line has no finite value; minus infinity does not count as a low loss."""

    def function(x):
        return jnp.where(jnp.abs(x[0] - 1e-3) < 2e-3, 1e4 * (x[0] - 1.5e-3) ** 2, outside)

    xs, values, _ = minimise(function, jnp.zeros(1), 60)
    assert not np.isfinite(values).all()
    best = np.nanargmin(np.where(np.isfinite(values), values, np.nan))
    np.testing.assert_allclose(xs[best], 1.5e-3, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_no_point_to_stay_at():
    function = lambda x: jnp.sum(jnp.sqrt(jnp.abs(x - 1)))  # noqa: E731
    xs, _, states = minimise(function, jnp.array([3.0, 0.0]), 60)
    assert np.isfinite(xs).all()
    assert np.isfinite(states.line.direction).all()


def test_nan_at_the_start_leaves_the_parameters(precision):
    with scope(precision):
        start = jnp.array([1.0, 2.0], dtype_of(precision))
        xs, values, states = minimise(lambda x: jnp.sum(x) * jnp.nan, start, 30)
        assert np.isnan(values).all()
        np.testing.assert_array_equal(xs, np.tile([1.0, 2.0], (30, 1)))
        assert all(np.isfinite(leaf).all() for leaf in (states.line.point, states.line.direction, states.line.step))


def test_both_precisions_keep_their_dtype(precision):
    with scope(precision):
        dtype = dtype_of(precision)
        xs, _, states = minimise(rosenbrock, jnp.zeros(4, dtype), 100)
        assert xs.dtype == dtype
        assert {leaf.dtype for leaf in jax.tree.leaves(states) if leaf.dtype.kind == "f"} == {dtype}
        np.testing.assert_allclose(xs[-1], 1.0, atol=1e-3 if precision == "x32" else 1e-8)


def test_float32_parameters_stay_float32_in_a_process_in_x64():
    with scope("x64"):
        xs, _, states = minimise(rosenbrock, jnp.zeros(2, jnp.float32), 20)
    assert xs.dtype == np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(states) if leaf.dtype.kind == "f"} == {np.dtype(np.float32)}


def test_a_saddle_is_left():
    """At the start, the function curves down in one direction and up in the other."""
    with scope("x64"):
        xs, values, _ = minimise(double_well, jnp.array([0.02, 0.01]), 100)
    best = xs[np.argmin(values)]
    # The minima are the roots of x^3 - x + 1/10 and x^3 - x on the near sides of the saddle.
    assert abs(best[0] ** 3 - best[0] + 0.1) < 1e-6
    assert best[0] < 0
    assert abs(best[1]) == pytest.approx(1, abs=1e-6)


def test_memory_holds_no_pair_of_negative_curvature():
    """With two trials per line, a line in a concave region ends at a point with a steeper slope than before."""

    def hill(x):
        return 25 * jnp.sum(jnp.cos(x / 5))

    with scope("x64"):
        states = minimise(hill, jnp.array([0.1, 0.2]), 100, tries=2)[2]
        points = accepted(states)
        gradients = np.asarray(jax.vmap(jax.grad(hill))(points))
    curvature = (np.diff(points, axis=0) * np.diff(gradients, axis=0)).sum(axis=1)
    assert (curvature < 0).any(), "no step had negative curvature, so the test is void"
    pairs = (states.pairs.steps * states.pairs.changes).sum(axis=2)
    assert (pairs >= 0).all()
    assert (pairs > 0).any()
    # The direction is still a descent direction.
    assert (states.line.start.slope[np.isfinite(states.line.start.value)] <= 0).all()
    assert np.linalg.norm(gradients[-1]) < 1e-3 * np.linalg.norm(gradients, axis=1).max()


def test_an_ascent_direction_gives_way_to_the_gradient():
    """Rounding in the curvature pairs can make their direction one of ascent; so can a pair that is not finite."""
    gradient = jnp.array([1.0, -2.0])
    np.testing.assert_array_equal(downhill(jnp.array([2.0, -1.0]), gradient), [-2.0, 1.0])
    for ascent in ([-1.0, 2.0], [2.0, 1.0], [np.nan, 1.0], [np.inf, -1.0]):
        np.testing.assert_array_equal(downhill(jnp.array(ascent), gradient), -gradient)


def test_every_line_goes_downhill(monkeypatch):
    """With a memory whose direction always points uphill, the search still descends, along the gradient."""
    monkeypatch.setattr("node_fit.optimizers.gradient.newton_direction", lambda pairs, gradient: -gradient)
    with scope("x64"):
        _, values, states = minimise(quadratic(3, 5.0), jnp.array([1.0, -1.0, 0.5]), 60)
    started = np.isfinite(states.line.start.value)
    assert (states.line.start.slope[started] <= 0).all()
    assert values.min() < 1e-2 * values[0]


def test_the_curvature_is_forgotten_where_the_objective_changes():
    """The next point is accepted as it is; at the start of a line, the pairs of the last objective are dropped."""
    with scope("x64"):
        start = jnp.array([-1.2, 1.0])
        _, _, states = minimise(rosenbrock, start, 30)
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), states)
        assert float(state.pairs.scale) > 0 and np.asarray(state.pairs.inverse).any()
        x = state.line.point
        value, gradient = jax.value_and_grad(rosenbrock)(x)
        _, after = lbfgs_by_evaluation(10, 20).update(gradient, restart_search(state), x, value=1.01 * value)
    assert float(after.pairs.scale) == 0 and not np.asarray(after.pairs.inverse).any()
    direction, slope = np.asarray(after.line.direction), np.asarray(gradient)
    np.testing.assert_allclose(direction / np.linalg.norm(direction), -slope / np.linalg.norm(slope), rtol=1e-9)


def noisy_plateau(x):
    """A bowl in float32 whose values carry noise of 1e-4, while its gradient is exact."""
    noise = 1e-4 * jnp.sin(1e5 * jnp.sum(x))
    return 1.0 + 0.5 * jnp.sum((x - 0.3) ** 2) + jax.lax.stop_gradient(noise)


def test_failures_rise_on_a_noisy_plateau_and_only_there():
    _, _, states = minimise(noisy_plateau, jnp.array([2.0, -1.0, 0.5], jnp.float32), 200)
    assert states.line.failures.max() >= HOPELESS_SEARCHES
    _, _, states = minimise(rosenbrock, jnp.array([-1.2, 1.0], jnp.float32), 25)
    assert states.line.failures.max() == 0


def test_nothing_lower_at_an_exact_minimum():
    _, _, states = minimise(lambda x: jnp.sum(x**2), jnp.zeros(3), 10)
    assert states.line.failures.max() >= HOPELESS_SEARCHES
    assert (np.asarray(states.line.point) == 0).all()


def test_stuck_ends_the_stage():
    optimizer = nf.LBFGS(memory=5)
    state = optimizer.init(jnp.zeros(3), 10)
    assert not bool(optimizer.stuck(state))
    assert bool(optimizer.stuck(state._replace(line=state.line._replace(failures=jnp.int32(HOPELESS_SEARCHES)))))
    exact = fit_to(
        rotation(),
        field=nf.Linear,
        optimizer=optimizer,
        recipe=[nf.Stage(nf.DerivativeMatching(), optimizer, 5000)],
        chunk_steps=50,
    )
    assert exact.status == "converged"
    assert exact.steps < 1000


@pytest.mark.parametrize("function", [rosenbrock, double_well, barrier])
def test_members_of_a_batch_search_as_if_alone(function):
    """Exactly equal, also next to a member without any finite value."""
    starts = jnp.array([[0.3, -0.4], [-0.7, 0.2], [0.01, 0.02], [jnp.nan, 0.0]])
    search = jax.jit(jax.vmap(functools.partial(run, function, evaluations=40)))
    together = search(starts)[0]
    # Batches of copies, so that both programs round in the same way.
    for member, start in enumerate(starts):
        alone = search(jnp.tile(start, (len(starts), 1)))[0]
        np.testing.assert_array_equal(np.asarray(together[member]), np.asarray(alone[member]))


def sites(optimizer) -> tuple[int, int]:
    """How often the program of a step contains the objective, and its gradient."""
    parts, stage, fixed, state = problem(optimizer, objective=Marked(), field=nf.Linear(2, key=jax.random.key(0)))
    stage = nf.Stage(Marked(), stage.optimizer, 20)
    text = str(jax.make_jaxpr(lambda s: transition(parts.static, stage, fixed, s))(state))
    return text.count("= lgamma "), text.count("= digamma ")


def test_a_step_holds_the_objective_once():
    assert sites(nf.LBFGS(memory=5)) == sites(nf.Optax(optax.sgd(1e-3))) == (1, 1)
    objectives, gradients = sites(nf.Optax(optax.lbfgs(memory_size=5)))
    assert objectives > 2
    assert gradients > 1
