"""Minibatches of a stage, drawn on the host, so that a device holds those of one chunk and never all data."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import PyTree


@dataclass(frozen=True)
class Minibatches:
    """The minibatches of a stage; those of a step depend only on the seed and the step's number.

    **Arguments:**

    - `rows`: arrays with a leading axis to draw from, on the host.
    - `size`: rows in a minibatch; all of them if there are fewer.
    - `seed`: integers that identify this sequence.
    - `pool`: indices of the rows to draw from, which may repeat; all rows if None.
    """

    rows: PyTree
    size: int
    seed: tuple[int, ...]
    pool: np.ndarray | None = None

    def chunk(self, first: int, length: int) -> PyTree:
        """The minibatches of `length` steps from step `first` on, with a leading axis for the steps."""
        index = np.stack([self.draw(step) for step in range(first, first + length)])
        return jax.tree.map(lambda x: np.asarray(x)[index], self.rows)

    def draw(self, step: int) -> np.ndarray:
        """Indices of the rows of a step; none repeats unless it does in the pool."""
        count = count_of(self.rows) if self.pool is None else len(self.pool)
        drawn = np.random.default_rng((*self.seed, step)).choice(count, min(self.size, count), replace=False)
        return drawn if self.pool is None else self.pool[drawn]


def count_of(rows: PyTree) -> int:
    """Number of rows in a tree of arrays."""
    return jax.tree.leaves(rows)[0].shape[0]


def taken(tree: PyTree, pool: np.ndarray | None) -> PyTree:
    """These rows of a tree's arrays; the tree itself if there is no pool."""
    return tree if pool is None else jax.tree.map(lambda x: x[pool], tree)


def sample(rows: PyTree, most: int) -> PyTree:
    """At most this many rows, evenly spread over all."""
    count = count_of(rows)
    if count <= most:
        return rows
    return jax.tree.map(lambda x: x[np.linspace(0, count - 1, most).astype(int)], rows)
