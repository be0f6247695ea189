"""Callbacks that stop a fit or look at it, and what to compare of two fits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from helpers.problems import Quadratic
from node_fit.objectives.objective import Loss, Target
from node_fit.storage.checkpoint import Checkpoints
from node_fit.training.callback import Callback


class Stop(Callback):
    """Interrupts after a number of chunks, and saves each run state to disk."""

    def __init__(self, directory, after):
        self.directory = directory
        self.after = after
        self.seen = 0

    def on_chunk_end(self, records, state):
        self.seen += 1
        Checkpoints(self.directory).save(state)
        return "enough" if self.seen == self.after else None


class GoOn(Callback):
    """Resumes from the state on disk."""

    def __init__(self, directory):
        self.directory = directory

    def restore(self, template):
        state = Checkpoints(self.directory).restore(template)
        assert state is not None
        return state


class Rows(Callback):
    """Records the last state."""

    def on_chunk_end(self, records, state):
        self.state = state


def leaves(tree):
    plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return [np.asarray(plain(x)) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def assert_equal(tree, other):
    for mine, theirs in zip(leaves(tree), leaves(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def rows(history):
    return [(r.step, r.stage, r.train_loss, r.gradient_norm, r.learning_rate, r.evaluations) for r in history]


def alone(batch) -> Target:
    """The target of a batch without held steps."""
    return Target(batch, None, jnp.zeros(()))


class Nowhere(Quadratic):
    """An objective that is never finite."""

    def loss(self, model, auxiliary, target):
        value = super().loss(model, auxiliary, target).value
        return Loss(value * jnp.nan, jnp.ones((), jnp.int32))
