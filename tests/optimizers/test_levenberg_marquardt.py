"""Levenberg-Marquardt: its Jacobians, its steps against SciPy, its two forms, and recovery of known systems."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to, problem, rotation
from jax.flatten_util import ravel_pytree

import node_fit as nf
from node_fit.model.parameters import network_weights, partition
from node_fit.objectives.objective import Loss, Target
from node_fit.optimizers.levenberg_marquardt import dense, matrix_free
from node_fit.optimizers.optimizer import Linearised
from node_fit.runtime.placement import scope
from node_fit.training.step import Params, StageLoss

pytestmark = pytest.mark.slow

TINY = functools.partial(nf.MLP, width=4, depth=1)
KINDS = {
    "trajectory": nf.TrajectoryMatching(),
    "penalties": nf.TrajectoryMatching(nf.Penalty(ridge=0.3, smoothness=0.1, kinetic_energy=0.2)),
    "horizon": nf.TrajectoryMatching(horizon=0.5),
    "shooting": nf.MultipleShooting(rows=4),
    "derivative": nf.DerivativeMatching(nf.Penalty(ridge=0.3)),
    "implicit": nf.TrajectoryMatching(solver=nf.Solver("kvaerno3", rtol=1e-8, atol=1e-10)),
}


def loss_of(objective, field=TINY):
    """The objective on three rotations, and a parameter vector."""
    data = rotation()
    model = nf.make_model(data, field=field, key=jax.random.key(0))
    batch = jax.tree.map(jnp.asarray, objective.prepare(data, model))
    grid = jax.tree.map(jnp.asarray, objective.first_grid(batch))
    parts = partition(model)
    params = Params(parts.params, jax.tree.map(jnp.asarray, objective.initial_auxiliary(model, batch)))
    target = Target(batch, grid, jnp.asarray(0.4))
    return StageLoss(parts.static, parts.frozen, objective, target, params), params


@pytest.mark.parametrize("kind", KINDS)
def test_the_jacobian_against_finite_differences(kind):
    with scope("x64"):
        loss, params = loss_of(KINDS[kind])
        x, _ = ravel_pytree(params)
        at = jax.jit(loss.linearise)(x)
        residuals = jax.jit(lambda x: loss.residuals(x)[0])
        np.testing.assert_allclose(at.residuals, residuals(x), rtol=1e-9, atol=1e-12)
        rng = np.random.default_rng(0)
        h = 1e-4 if kind == "implicit" else 1e-6
        for _ in range(3):
            v = jnp.asarray(rng.normal(size=x.size))
            difference = (residuals(x + h * v) - residuals(x - h * v)) / (2 * h)
            np.testing.assert_allclose(at.jacobian @ v, difference, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["trajectory", "penalties", "shooting", "derivative"])
def test_the_sum_of_squares_is_the_loss(kind):
    """Regularisation in the residuals equals regularisation in the loss."""
    with scope("x64"):
        loss, params = loss_of(KINDS[kind])
        x, _ = ravel_pytree(params)
        at = jax.jit(loss.linearise)(x)
        value, gradient = jax.jit(jax.value_and_grad(lambda p: loss(p).value))(params)
        np.testing.assert_allclose(at.residuals @ at.residuals + x @ (at.prior * x), value, rtol=1e-12)
        slope = at.jacobian.T @ at.residuals + at.prior * x
        np.testing.assert_allclose(2 * slope, ravel_pytree(gradient)[0], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("rows", "columns"), [(6, 15), (15, 6)], ids=["residuals x residuals", "parameters x parameters"]
)
def test_both_forms_solve_the_damped_equations(rows, columns):
    with scope("x64"):
        rng = np.random.default_rng(1)
        j, r, x = (jnp.asarray(rng.normal(size=s)) for s in ((rows, columns), rows, columns))
        x = 10 * x
        prior = jnp.asarray(rng.uniform(size=columns) * (rng.uniform(size=columns) > 0.5))
        linear = dense(Linearised(r, jnp.int32(0), j, prior), x)
        step = linear.solve(jnp.asarray(0.1), linear.slope)
        matrix = j.T @ j + jnp.diag(prior + 0.1 / jnp.maximum(1, jnp.abs(x) / 10) ** 2)
        np.testing.assert_allclose(matrix @ step, -(j.T @ r + prior * x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("rows", "columns"), [(4, 9), (20, 5)], ids=["residuals", "parameters"])
def test_a_step_does_not_depend_on_the_unit_of_a_large_parameter(rows, columns):
    """Such as the start of a hidden state that counts thousands; in single precision, too."""
    rng = np.random.default_rng(2)
    j, r, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((rows, columns), rows, columns))
    x, unit = x.at[1].set(10.0), jnp.ones(columns).at[1].set(4096.0)

    def step(j, x):
        linear = dense(Linearised(r, jnp.int32(0), j, jnp.zeros(columns)), x)
        return linear.solve(1e-2 * linear.largest, linear.slope), linear.largest

    (one, largest), (other, same) = step(j, x), step(j / unit[None], x * unit)
    np.testing.assert_allclose(other / unit, one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(same, largest, rtol=1e-6)


def test_without_a_matrix_the_step_is_nearly_the_same():
    with scope("x64"):
        loss, params = loss_of(KINDS["penalties"])
        x, _ = ravel_pytree(params)

        @jax.jit
        def steps(x):
            linears = dense(loss.linearise(x), x), matrix_free(loss, x)
            return [linear.solve(jnp.asarray(0.01), linear.slope) for linear in linears]

        full, free = steps(x)
        assert jnp.linalg.norm(full - free) < 0.03 * jnp.linalg.norm(full)


def test_a_linear_problem_is_solved_in_few_steps():
    """Derivative matching of a linear field has linear residuals, so the result is the least-squares solution."""
    data = rotation()
    optimizer = nf.LevenbergMarquardt(damping=1e-9)
    stage = nf.Stage(nf.DerivativeMatching(), optimizer, 10)
    fit = fit_to(data, field=nf.Linear, recipe=[stage], precision="x64")
    slopes = stage.objective.prepare(data, fit.model)
    design = np.concatenate([slopes.ys, np.ones((len(slopes.ys), 1))], axis=1)
    expected, *_ = np.linalg.lstsq(design, slopes.rates, rcond=None)
    layer = fit.model.field.layer
    np.testing.assert_allclose(np.concatenate([layer.weight.T, layer.bias[None]]), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", ["dense", "cg"])
@pytest.mark.parametrize("geodesic", [True, False])
def test_a_known_system_is_recovered_to_the_last_digits(form, geodesic):
    data = rotation()
    optimizer = nf.LevenbergMarquardt(form=form, geodesic=geodesic)
    solver = nf.Solver(rtol=1e-9, atol=1e-11)
    fit = fit_to(data, field=nf.Linear, recipe="direct", optimizer=optimizer, solver=solver, steps=60, precision="x64")
    assert fit.score(data).nrmse < 1e-7
    assert fit.steps < 60, "it did not detect convergence"


def test_it_needs_fewer_evaluations_than_lbfgs():
    """For a network, to the same loss."""
    data = rotation()
    options = {"field": functools.partial(nf.MLP, width=8, depth=1), "recipe": "direct", "precision": "x64"}
    lm = fit_to(data, optimizer=nf.LevenbergMarquardt(), steps=40, **options)
    lbfgs = fit_to(data, optimizer=nf.LBFGS(), steps=sum(r.evaluations for r in lm.history), **options)
    assert min(r.train_loss for r in lm.history) < 0.1 * min(r.train_loss for r in lbfgs.history)


def test_a_prior_holds_the_weights():
    data = rotation()
    options = {"field": TINY, "recipe": "direct", "optimizer": nf.LevenbergMarquardt(), "steps": 20, "precision": "x64"}
    free, held = (fit_to(data, ridge=ridge, **options) for ridge in (0.0, 10.0))
    size = lambda fit: sum((np.asarray(leaf) ** 2).sum() for leaf in network_weights(fit.model.field))  # noqa: E731
    assert size(held) < 0.5 * size(free)


def test_a_field_that_blows_up_on_the_way_is_survived():
    """With low damping, the first steps lead to fields whose solutions diverge."""
    data = rotation()
    optimizer = nf.LevenbergMarquardt(damping=1e-12)
    fit = fit_to(data, field=nf.Linear, recipe="direct", optimizer=optimizer, steps=60, precision="x64", seed=3)
    assert np.isfinite([r.train_loss for r in fit.history]).all()
    assert fit.score(data).nrmse < 1e-3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"damping": 0.0}, "damping must be positive and finite, got 0.0"),
        ({"tries": 0}, "tries must be at least 1, got 0"),
        ({"max_bytes": -1.0}, "max_bytes must be positive and finite"),
    ],
)
def test_numbers_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        nf.LevenbergMarquardt(**options)


class Squares:
    """A sum of squares of a function of a vector."""

    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return Loss((self.function(x) ** 2).sum(), jnp.int32(0))

    def residuals(self, x):
        return self.function(x), jnp.int32(0)

    def linearise(self, x):
        return Linearised(self.function(x), jnp.int32(0), jax.jacfwd(self.function)(x), jnp.zeros_like(x))

    def push_tangent(self, x, direction):
        return jax.jvp(self.function, (x,), (direction,))[1]

    def prior(self, x):
        return jnp.zeros_like(x)


@pytest.mark.parametrize("form", ["dense", "cg"])
@pytest.mark.parametrize("geodesic", [False, True], ids=["plain", "geodesic"])
def test_no_step_goes_uphill(form, geodesic):
    """From 3, a Gauss-Newton step on the arctangent leads to -9.5, and from there ever further away."""
    with scope("x64"):
        loss, x = Squares(jnp.arctan), jnp.array([3.0])
        optimizer = nf.LevenbergMarquardt(damping=1e-12, geodesic=geodesic, form=form, tries=4)
        state, values, rejected = optimizer.init(x, 40), [], 0
        step = jax.jit(lambda x, state: optimizer.step(loss, x, state, 40))
        for _ in range(40):
            found = step(x, state)
            values.append(float(found.loss.value))
            rejected += int(found.evaluations) > (3 if geodesic else 2)
            x, state = found.params, found.state
    assert rejected > 0, "no step was rejected, so the test is void"
    assert (np.diff(values) <= 0).all()
    assert values[-1] < 1e-12


def test_an_objective_that_is_no_sum_of_squares_is_refused():
    from helpers.problems import Marked

    parts, _, fixed, state = problem(nf.Adam(), objective=Marked(), field=nf.Linear(2, key=jax.random.key(0)))
    loss = StageLoss(parts.static, fixed.frozen, Marked(), Target(fixed.batch, None, jnp.zeros(())), state.params)
    with pytest.raises(ValueError, match="Marked is not a sum of squares"):
        loss.residuals(jnp.zeros(6))


@pytest.mark.parametrize("form", ["dense", "cg"])
def test_a_step_traces_its_residuals_once(form, monkeypatch):
    """Beside their derivatives: a trace of the solver takes seconds."""
    calls = []
    residuals = nf.TrajectoryMatching.residuals

    def counted(*arguments):
        calls.append(1)
        return residuals(*arguments)

    monkeypatch.setattr(nf.TrajectoryMatching, "residuals", counted)
    loss, params = loss_of(KINDS["trajectory"])
    optimizer = nf.LevenbergMarquardt(form=form)
    jax.make_jaxpr(lambda params, state: optimizer.step(loss, params, state, 10).params)(
        params, optimizer.init(params, 10)
    )
    assert len(calls) == 1
