"""A stage of training, and its minibatches, which are drawn on the host: a device holds those of one chunk."""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..objectives.objective import AbstractObjective, as_objective
from ..optimizers.gradient import as_optimizer
from ..optimizers.optimizer import AbstractOptimizer
from ..runtime.validation import check_fields


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


def take_rows(tree: PyTree, pool: np.ndarray | None) -> PyTree:
    """These rows of a tree's arrays; the tree itself if there is no pool."""
    return tree if pool is None else jax.tree.map(lambda x: x[pool], tree)


def sample(rows: PyTree, most: int) -> PyTree:
    """At most this many rows, evenly spread over all."""
    count = count_of(rows)
    if count <= most:
        return rows
    return jax.tree.map(lambda x: x[np.linspace(0, count - 1, most).astype(int)], rows)


class Stage(eqx.Module):
    """A part of the training: an objective, an optimizer and a budget.

    **Arguments:**

    - `objective`: the objective to minimise; a function `loss(model, batch)` becomes a `CustomLoss`.
    - `optimizer`: the optimizer; an Optax transformation becomes an `Optax`.
    - `steps`: maximum number of steps.
    - `name`: the name in the log.
    - `batch_size`: number of trajectories drawn for each step; all of them if absent.
    - `next_from`: the parameters at which the next stage begins: the `best` on the validation data, or the `last`.

    **Raises:** `ValueError` if an argument has the wrong type or is out of range, or `batch_size` is given although the
    optimizer needs the full batch.
    """

    objective: AbstractObjective = eqx.field(converter=as_objective)
    optimizer: AbstractOptimizer = eqx.field(converter=as_optimizer)
    steps: int = eqx.field(static=True)
    name: str = eqx.field(static=True, default="main")
    batch_size: int | None = eqx.field(static=True, default=None)
    next_from: Literal["best", "last"] = eqx.field(static=True, default="best")

    def __check_init__(self):
        check_fields(self)
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        if self.batch_size is not None and self.optimizer.full_batch:
            kind = type(self.optimizer).__name__
            raise ValueError(
                f"batch_size can't be combined with {kind}: it needs every step on the same data. Set batch_size=all, "
                "or use Adam."
            )
        if self.batch_size is not None and not self.objective.takes_minibatches:
            kind = type(self.objective).__name__
            raise ValueError(f"batch_size can't be combined with {kind}, whose segments belong together.")
