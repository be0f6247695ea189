"""Gradients through a whole training run with the checkpointed scan."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import SMALL, Quadratic, problem

import node_fit as nf
from node_fit.objectives.objective import Target
from node_fit.runtime.placement import scope
from node_fit.training.step import unroll

pytestmark = pytest.mark.slow


def numbers(fixed):
    """The learning rate and the initial conditions."""
    return fixed.stage.optimizer.learning_rate, fixed.batch.first


def test_hypergradient_against_finite_differences():
    """The objective after four Adam steps through a solver, in float64."""
    steps = 4
    with scope("x64"):
        # Fixed steps, since adaptive steps make finite differences noisy.
        objective = nf.TrajectoryMatching(solver=nf.Solver("euler", max_steps=16, adjoint="direct"))
        field = SMALL(2, 0, key=jax.random.key(0))
        parts, static, fixed, state = problem(nf.Adam(0.05, schedule="constant"), "x64", field, objective)

        @jax.jit
        @jax.value_and_grad
        def trained(at):
            changed = eqx.tree_at(numbers, fixed, at)
            stage = eqx.combine(changed.stage, static)
            after = unroll(parts.static, stage, changed, state, steps, "checkpointed")
            model = eqx.combine(after.params.model, parts.frozen, parts.static)
            return stage.objective.loss(model, None, Target(changed.batch, state.grid, state.progress)).value

        rate, start = numbers(fixed)
        _, (by_rate, by_start) = trained((rate, start))
        direction = jnp.asarray(np.random.default_rng(0).normal(size=start.shape))
        h = 1e-5
        difference = lambda up, down: float(trained(up)[0] - trained(down)[0]) / (2 * h)  # noqa: E731
        assert abs(float(by_rate)) > 1e-3
        along_rate = difference((rate + h, start), (rate - h, start))
        np.testing.assert_allclose(float(by_rate), along_rate, rtol=1e-5)
        along_start = difference((rate, start + h * direction), (rate, start - h * direction))
        np.testing.assert_allclose(float((by_start * direction).sum()), along_start, rtol=1e-5)


@pytest.mark.long
def test_checkpointed_scan_needs_less_memory():
    """Compares the temporary memory of the compiled hypergradient over 200 steps."""
    parts, static, fixed, state = problem(nf.Adam(1e-2), objective=Quadratic(), steps=200)
    rate, start = numbers(fixed)

    def temporary(scan):
        def trained(rate):
            changed = eqx.tree_at(numbers, fixed, (rate, start))
            stage = eqx.combine(changed.stage, static)
            after = unroll(parts.static, stage, changed, state, 200, scan)
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(after.params))

        compiled = jax.jit(jax.grad(trained)).lower(rate).compile()
        return compiled.memory_analysis().temp_size_in_bytes, float(compiled(rate))

    (lax, first), (checkpointed, second) = temporary("lax"), temporary("checkpointed")
    assert checkpointed < lax / 3
    np.testing.assert_allclose(first, second, rtol=1e-3)
