"""Loops under `jax.vmap` whose state is batched from the beginning: fewer traces, equal values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.runtime.batching import vary_together


def make_loop(varied):
    """A loop, and a list that grows whenever its body is batched."""
    traces = []

    @jax.custom_batching.custom_vmap
    def halve(x):
        return x / 2

    @halve.def_vmap
    def batched(size, is_batched, x):
        traces.append(size)
        return x / 2, True

    def loop(x):
        start = (jnp.zeros(()), x, jnp.zeros((), jnp.int32), jnp.ones((), bool))
        start = vary_together(start, x) if varied else start

        def step(state):
            total, x, number, goes_on = state
            return total + x, halve(x), number + 1, goes_on & (total < 1.8)

        return jax.lax.while_loop(lambda state: state[3], step, start)

    return loop, traces


def test_a_loop_whose_state_is_batched_at_once_is_traced_less_often():
    xs = jnp.array([1.0, 1.5, 3.0])
    found = {}
    for varied in (False, True):
        loop, traces = make_loop(varied)
        found[varied] = jax.vmap(loop)(xs)
        found[varied, "traces"] = len(traces)
    assert found[True, "traces"] < found[False, "traces"]
    for one, other in zip(found[True], found[False], strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("like", [np.nan, np.inf, 3.0])
def test_values_stay_as_they_are(like):
    state = {"float": jnp.array([1.5, jnp.inf]), "int": jnp.array(3), "bool": jnp.array(True)}
    varied = vary_together(state, jnp.array([like, 1.0]))
    assert jax.tree.structure(varied) == jax.tree.structure(state)
    for name in state:
        np.testing.assert_array_equal(varied[name], state[name])
        assert varied[name].dtype == state[name].dtype


def test_derivatives_stay_as_they_are():
    def through(x):
        return vary_together(x**2, x)

    assert float(jax.grad(through)(3.0)) == 6.0
    assert float(jax.jvp(through, (3.0,), (1.0,))[1]) == 6.0
