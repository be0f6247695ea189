"""A whole solve in one kernel takes the steps of `march`; interpreted, since there is no GPU here."""

import importlib.util
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit as nf
from node_fit.solver.held_steps import march


def load_script():
    spec = importlib.util.spec_from_file_location(
        "kernel", Path(__file__).parents[2] / "scripts" / "speed" / "solve_in_one_kernel.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


march_in_kernel = load_script().march_in_kernel


def lorenz(t, y):
    x, y, z = jnp.moveaxis(y, -1, 0)
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=-1)


def network(t, y):
    field = nf.MLP(3, width=8, depth=2, key=jax.random.key(0))
    return jax.vmap(lambda t, y: field(t, y, jnp.zeros(0)))(t, y)


def driven(t, y):
    return -y + jnp.sin(3 * t)[:, None]


@pytest.mark.parametrize("method", ["tsit5", "bosh3", "euler"])
@pytest.mark.parametrize("derivative", [lorenz, network, driven])
def test_it_takes_the_steps_of_the_march(method, derivative):
    rng = np.random.default_rng(0)
    y0 = jnp.asarray(1 + rng.random((11, 3)), jnp.float32)
    # Steps that suit the Lorenz system: where a solve diverges, two programs round to different numbers.
    grid = jnp.asarray(0.2 * np.sort(rng.random((11, 17)), axis=1), jnp.float32)
    expected = eqx.filter_jit(march)(method, derivative, grid, y0, None)
    found = jax.jit(lambda grid, y0: march_in_kernel(method, derivative, grid, y0, block=4, interpret=True))(grid, y0)
    np.testing.assert_allclose(found.states[1:], expected.after, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found.states[0], y0)
    steps = np.diff(grid, axis=1).T[:, None, :, None]
    np.testing.assert_allclose(steps * found.stages, expected.stages, rtol=2e-4, atol=1e-5)
