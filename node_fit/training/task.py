"""Training tasks: stages with their minibatches, and members that share a program."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..model.neural_ode import NeuralODE
from ..objectives.objective import AbstractObjective, as_objective
from ..optimizers.gradient import as_optimizer
from ..optimizers.optimizer import AbstractOptimizer
from ..runtime.compilation import fingerprint_program
from ..runtime.placement import AnyArray, is_key
from ..runtime.validation import check_argument, check_fields

VARY = ("seeds", "data", "both", "laplace")


@dataclass(frozen=True)
class Minibatches:
    """The minibatches of a stage; a step's minibatch depends only on the seed and the step's number.

    **Arguments:**

    - `rows`: arrays with a leading axis to draw from, on the host.
    - `size`: number of rows in a minibatch; all of them if fewer exist.
    - `seed`: integers that identify this sequence.
    - `pool`: indices of the rows to draw from, which may repeat; all rows if None.
    """

    rows: PyTree
    size: int
    seed: tuple[int, ...]
    pool: np.ndarray | None = None

    def chunk(self, first: int, length: int) -> PyTree:
        """Samples the minibatches of `length` steps from step `first` on, with a leading axis for the steps."""
        index = np.stack([self.draw(step) for step in range(first, first + length)])
        return jax.tree.map(lambda x: np.asarray(x)[index], self.rows)

    def draw(self, step: int) -> np.ndarray:
        """Samples the row indices of a step; none repeats unless it does in the pool."""
        count = count_of(self.rows) if self.pool is None else len(self.pool)
        drawn = np.random.default_rng((*self.seed, step)).choice(count, min(self.size, count), replace=False)
        return drawn if self.pool is None else self.pool[drawn]


def count_of(rows: PyTree) -> int:
    """Returns the number of rows in a tree of arrays."""
    return jax.tree.leaves(rows)[0].shape[0]


def take_rows(tree: PyTree, pool: np.ndarray | None) -> PyTree:
    """Selects the rows of a pool from a tree's arrays; returns the tree itself without a pool."""
    return tree if pool is None else jax.tree.map(lambda x: x[pool], tree)


def thin_rows(rows: PyTree, most: int) -> PyTree:
    """Selects at most this many rows, evenly spread over all."""
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


@dataclass(frozen=True)
class Members:
    """The number of simultaneous fits, and how they differ.

    **Arguments:**

    - `size`: number of fits; if None, one. If that one describes few noisy rows, members are sampled as with `laplace`,
      unless `effort` is `quick`.
    - `vary`: with `seeds`, each fit has different initial parameters and minibatches, from consecutive seeds; with
      `data`, each fit sees trajectories (or windows, if any) sampled with replacement (bootstrap: Efron, Ann. Statist.
      7, 1979); or `both`. With `laplace`, a single fit is made, and the members are sampled from the Laplace
      approximation of its posterior (`Fit.laplace`).
    - `keep`: `all` for an `Ensemble` of the fits that did not fail, or `best` for the one with the lowest loss.

    **Raises:** `ValueError` if an argument has the wrong type or is out of range.
    """

    size: int | None = None
    vary: str = "seeds"
    keep: str = "all"

    def __post_init__(self):
        check_fields(self, {"size": "an integer of at least 1 or None", **dict.fromkeys(("vary", "keep"), "a string")})
        if self.count < 1:
            raise ValueError(f"size of an ensemble must be an integer of at least 1, got {self.size!r}.")
        if self.vary not in VARY:
            raise ValueError(f"vary must be {', '.join(VARY[:-1])} or {VARY[-1]}, got {self.vary!r}.")
        if self.keep not in ("all", "best"):
            raise ValueError(f"keep must be all or best, got {self.keep!r}.")

    @property
    def count(self) -> int:
        """Number of members; 1 if not specified."""
        return 1 if self.size is None else self.size

    @property
    def trained_members(self) -> "Members":
        """The trained members, from which the others are sampled."""
        return replace(self, size=1 if self.vary == "laplace" else self.count)

    def check(self, trajectories: int, window: int | None) -> None:
        """Rejects resampling of a single training trajectory, unless it is cut into windows.

        **Raises:** `ValueError` with a remedy.
        """
        if self.count > 1 and self.vary == "data" and window is None and trajectories == 1:
            raise ValueError(
                "ensemble.vary=data draws trajectories, and there is one; set training.window, or ensemble.vary=seeds."
            )

    def seed(self, seed: int, member: int) -> int:
        """Returns the seed of a member's initial parameters and minibatches."""
        return seed if self.vary == "data" else seed + member

    def resample(self, seed: int, member: int) -> int | None:
        """Returns the seed for resampling a member's data; None if they are not resampled."""
        return None if self.count == 1 or self.vary == "seeds" else seed + member


def as_members(given: object) -> Members:
    """Converts a number of members, or `auto`, to `Members`.

    **Raises:** `ValueError` with the accepted values.
    """
    known = Members | int | Literal["auto"]
    check_argument("ensemble", given, known, "a number of members, 'auto' or a node_fit.Members")
    return given if isinstance(given, Members) else Members(None if given == "auto" else cast(int, given))


@dataclass(frozen=True)
class Member:
    """The initial configuration of one of several fits.

    - `model`: the model with its initial parameters, placed.
    - `stages`: its stages, in order.
    - `seed`: the seed of minibatches.
    - `resample`: the seed for sampling blocks of the data with replacement; None to use each block once.
    """

    model: NeuralODE
    stages: Sequence[Stage]
    seed: int
    resample: int | None = None


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Stacks all members' trees along a leading axis for the members; a single member has no such axis."""
    return trees[0] if len(trees) == 1 else jax.tree.map(stack_members, *trees)


def unstack(tree: PyTree, members: int) -> list[PyTree]:
    """Splits a stacked tree into one per member."""
    if members == 1:
        return [tree]
    return [jax.tree.map(lambda x, m=member: x[m], tree) for member in range(members)]


def share(trees: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
    """Splits all members' trees into two of the same structure: the differing leaves, stacked, and the shared ones."""
    first = trees[0]
    if len(trees) == 1:
        return jax.tree.map(lambda _: None, first), first
    same = jax.tree.map(lambda *xs: all(equal(xs[0], x) for x in xs[1:]), *trees)
    own = [eqx.filter(tree, same, inverse=True) for tree in trees]
    return stack(own), eqx.filter(first, same)


def mapped_axes(members: int, *mapped: bool) -> tuple[int | None, ...] | None:
    """Returns the mapped axes of a program's arguments for `Programs.get`; None for a single member."""
    return None if members == 1 else tuple(0 if is_mapped else None for is_mapped in mapped)


def check_alike(members: Sequence[Member]) -> None:
    """Rejects members that can't share one program.

    **Raises:** `ValueError` if they differ in more than arrays and numbers.
    """
    if len({kind_of(member) for member in members}) != 1:
        raise ValueError("members of one run must have the same model and stages, except for arrays and numbers.")


def kind_of(member: Member) -> Hashable:
    """Returns the parts that the members of one program must share: everything except arrays and numbers."""
    static = eqx.partition((member.model, tuple(member.stages)), eqx.is_array_like)[1]
    return fingerprint_program(static), tuple(
        jnp.shape(x) for x in jax.tree.leaves(eqx.filter(member.model, eqx.is_array))
    )


def stack_members(*leaves: AnyArray) -> AnyArray:
    if is_key(leaves[0]):
        return jnp.stack(leaves)
    return np.stack([np.asarray(leaf) for leaf in leaves])


def equal(one: object, other: object) -> bool:
    return one is other or np.array_equal(np.asarray(one), np.asarray(other))
