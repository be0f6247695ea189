"""The first event within a step, by a field whose levels fall in closed form."""

import jax
import jax.numpy as jnp
import numpy as np

from node_fit.solver.triggers import Triggers


class Falling:
    """`x` falls by one a unit of time, and with it the levels x and a*x + b of two triggers.

    The first one sets x back and adds one to n; the second one multiplies n by ten. States are x, n, a and b.
    """

    def __call__(self, t, y, u):
        return jnp.array([-1.0, 0.0, 0.0, 0.0])

    def levels(self, t, y, u):
        return jnp.stack([y[0], y[2] * y[0] + y[3]])

    def sizes(self, t, y, u):
        return jnp.abs(self.levels(t, y, u))

    def apply_triggers(self, t, y, u):
        return jnp.stack([y.at[0].set(1.0).at[1].add(1.0), y.at[1].multiply(10.0)])


def test_triggers_at_zero_at_the_same_instant_act_together_and_no_others():
    """The second level is zero where the first one is, falls through zero later, or stays above.

    At the same instant both act, though the jump of the first lifts the level of the second.
    """
    y = jnp.array([[0.5, 0.0, 2.0, 0.0], [0.5, 0.0, 1.0, 0.25], [0.5, 0.0, 1.0, 9.0]])
    begin, end = jnp.zeros(3), jnp.ones(3)

    @jax.jit
    def first_event(y):
        triggers = Triggers(Falling(), begin, lambda t: jnp.zeros((3, 0)), end, (1e-6, 1e-6))
        solve = lambda y, t, h: y + h[:, None] * jnp.array([[-1.0, 0.0, 0.0, 0.0]])  # noqa: E731
        watch = triggers.begin(begin, y)
        crossings = triggers.crossings(solve, begin, end, y, solve(y, begin, end), watch)
        return triggers.first_event(solve, begin, end, y, crossings, watch)

    event = first_event(y)
    np.testing.assert_allclose(event.share, 0.5, atol=1e-5)
    np.testing.assert_allclose(event.y[:, :2], [[1.0, 10.0], [1.0, 1.0], [1.0, 1.0]], atol=1e-5)
    assert not event.lost.any()
