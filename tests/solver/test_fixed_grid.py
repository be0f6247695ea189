"""The march over held steps: loops over the steps in use, equal to a scan over all of them in values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.runtime.placement import scope
from node_fit.solver import held_steps
from node_fit.solver.held_steps import march, steps_in_use

STARTS = jnp.array([[1.0, 0.0], [0.3, -0.8], [-0.5, 0.2]])
METHODS = ("euler", "heun", "bosh3", "tsit5", "dopri5")


def grids(steps: int, room: int | None = None) -> np.ndarray:
    """Uneven grids of three trajectories, the last of which needs fewer steps."""
    even = np.linspace(0, 1, steps + 1)
    whole = np.stack([even, even**2, np.minimum(even * 2, 1)])
    return whole if room is None else held_steps.pad_grid(whole, room)


def states(weight, y0, grid, method="tsit5", adjoint="checkpointed"):
    """The states at the nodes, and the scaled stages, of a field that depends on a matrix."""
    field = lambda t, y: jnp.tanh(y @ weight) * (1 + t)[:, None] - 0.1 * y**2  # noqa: E731
    found = march(method, field, jnp.asarray(grid), y0, jnp.full(2, 1e3), adjoint)
    return found.before, found.after, found.stages


def value(weight, y0, grid, method="tsit5", adjoint="checkpointed"):
    before, after, stages = states(weight, y0, grid, method, adjoint)
    lengths = jnp.diff(jnp.asarray(grid)).T
    return (lengths * (before[..., 0] * after[..., 1] + after[..., 0] ** 2)).sum() + (stages**3).sum()


@pytest.fixture
def weight():
    with scope("x64"):
        yield jnp.array([[0.2, 1.0], [-1.3, 0.4]])


@pytest.mark.parametrize("method", METHODS)
def test_a_loop_and_a_scan_have_the_same_values_and_gradients(weight, method):
    y0 = jnp.asarray(STARTS, float)

    @functools.partial(jax.jit, static_argnums=0)
    def of(adjoint):
        return jax.value_and_grad(value, argnums=(0, 1))(weight, y0, grids(9), method, adjoint)

    loop, scan = of("checkpointed"), of("direct")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), loop, scan)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_steps_of_zero_length_change_nothing(weight, method):
    y0 = jnp.asarray(STARTS, float)

    def of(room):
        return jax.value_and_grad(value, argnums=(0, 1))(weight, y0, grids(9, room), method)

    jax.tree.map(np.testing.assert_array_equal, of(None), of(64))
    assert not np.asarray(states(weight, y0, grids(9, 64), method)[2])[9:].any()


def test_the_forward_derivative_is_that_of_the_scan(weight):
    y0, along = jnp.asarray(STARTS, float), jnp.array([[1.0, -2.0], [0.5, 3.0]])

    def of(kind):
        adjoint = {"loop": "forward", "scan": "direct"}[kind]
        before, after, stages = jax.jvp(lambda w: states(w, y0, grids(9, 32), adjoint=adjoint), (weight,), (along,))[1]
        return before[:9], after[:9], stages[:9]

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), of("loop"), of("scan"))


@pytest.mark.slow
def test_a_scan_is_differentiated_again(weight):
    y0, along = jnp.asarray(STARTS, float), jnp.ones((2, 2))
    slope = lambda h: jax.grad(value)(weight + h * along, y0, grids(6), adjoint="direct")  # noqa: E731
    second = jax.jvp(slope, (0.0,), (1.0,))[1]
    np.testing.assert_allclose(second, (slope(1e-5) - slope(-1e-5)) / 2e-5, rtol=1e-6)


@pytest.mark.slow
def test_members_loop_as_often_as_the_longest_and_copy_nothing(weight):
    y0, weights = jnp.asarray(STARTS, float), jnp.stack([weight, -weight])
    several = jnp.stack([jnp.asarray(grids(9, 32)), jnp.asarray(grids(20, 32))])
    assert steps_in_use(several[1].T) == 20

    def of(weight, grid):
        return jax.value_and_grad(value)(weight, y0, grid)

    both = jax.vmap(of)(weights, several)
    for member in range(2):
        alone = of(weights[member], several[member])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[member], b, rtol=1e-12), both, alone)  # noqa: B023
    # With a count for each member, every pass would select between whole arrays: `select_n` on the states at all nodes.
    text = str(jax.make_jaxpr(jax.vmap(of))(weights, several))
    assert "while" in text
    assert not [line for line in text.splitlines() if "select_n" in line and "f64[2,33,3,2]" in line]


def test_the_count_is_that_of_the_last_step_that_moves():
    times = jnp.array([[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    assert steps_in_use(times) == 3
    assert steps_in_use(times[:1].repeat(4, axis=0)) == 1  # A step of no length is one step.


@pytest.mark.usefixtures("without_cache")
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["x32", "x64"])
def test_steps_are_refined_without_a_new_program(precision):
    """A tight tolerance takes more steps than the data let expect, and more while the model learns to turn."""
    seen = []

    class Nodes(nf.Callback):
        def on_chunk_end(self, records, state):
            seen.append(state.nodes)

    fit = fit_to(
        rotation(rate=6.0), recipe="direct", field=SMALL, precision=precision, callbacks=[Nodes()],
        solver=nf.Solver(rtol=1e-6), steps=120, chunk_steps=20, patience=10,
    )  # fmt: skip
    assert len(set(seen)) > 1 and max(seen) < 130, seen
    assert fit.compiles == 1
