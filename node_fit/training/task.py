"""What is trained: stages, with their minibatches, and members, which share a program."""

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


def thin_rows(rows: PyTree, most: int) -> PyTree:
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


@dataclass(frozen=True)
class Members:
    """The number of fits that are made at once, and how they differ.

    **Arguments:**

    - `size`: number of fits; if None, one, and where it describes few noisy rows, members that are drawn as with
      `laplace`, unless `effort` is `quick`.
    - `vary`: with `seeds`, each fit has its own initial parameters and minibatches, as with the next seeds; with
      `data`, each sees trajectories (or windows, if any) that are drawn with replacement (bootstrap: Efron, Ann.
      Statist. 7, 1979); or `both`. With `laplace`, a single fit is made, and the members are drawn from the Laplace
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
        """Their number, as far as it is given."""
        return 1 if self.size is None else self.size

    @property
    def trained(self) -> "Members":
        """The members that are trained, from which the others are drawn."""
        return replace(self, size=1 if self.vary == "laplace" else self.count)

    def check(self, trajectories: int, window: int | None) -> None:
        """Refuses to draw from a single one of the training trajectories, unless it is cut into windows.

        **Raises:** `ValueError` that says what to do.
        """
        if self.count > 1 and self.vary == "data" and window is None and trajectories == 1:
            raise ValueError(
                "ensemble.vary=data draws trajectories, and there is one; set training.window, or ensemble.vary=seeds."
            )

    def seed(self, seed: int, member: int) -> int:
        """The seed of a member's initial parameters and minibatches."""
        return seed if self.vary == "data" else seed + member

    def resample(self, seed: int, member: int) -> int | None:
        """The seed by which a member's data are drawn; None if they are not."""
        return None if self.count == 1 or self.vary == "seeds" else seed + member


def as_members(given: object) -> Members:
    """Converts a number of members, or `auto`, to `Members`.

    **Raises:** `ValueError` that says what to pass.
    """
    known = Members | int | Literal["auto"]
    check_argument("ensemble", given, known, "a number of members, 'auto' or a node_fit.Members")
    return given if isinstance(given, Members) else Members(None if given == "auto" else cast(int, given))


@dataclass(frozen=True)
class Member:
    """What one of several fits begins with.

    - `model`: the model with its initial parameters, placed.
    - `stages`: its stages, in order.
    - `seed`: the seed of minibatches.
    - `resample`: the seed by which blocks of the data are drawn with replacement; None to see each block once.
    """

    model: NeuralODE
    stages: Sequence[Stage]
    seed: int
    resample: int | None = None


def stack(trees: Sequence[PyTree]) -> PyTree:
    """All members' trees as one, with a leading axis for the members; a single member has no such axis."""
    return trees[0] if len(trees) == 1 else jax.tree.map(stack_members, *trees)


def unstack(tree: PyTree, members: int) -> list[PyTree]:
    """Each member's tree."""
    if members == 1:
        return [tree]
    return [jax.tree.map(lambda x, m=member: x[m], tree) for member in range(members)]


def share(trees: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
    """All members' trees as two of the same structure: the leaves that differ, stacked, and those that all share."""
    first = trees[0]
    if len(trees) == 1:
        return jax.tree.map(lambda _: None, first), first
    same = jax.tree.map(lambda *xs: all(equal(xs[0], x) for x in xs[1:]), *trees)
    own = [eqx.filter(tree, same, inverse=True) for tree in trees]
    return stack(own), eqx.filter(first, same)


def mapped_axes(members: int, *mapped: bool) -> tuple[int | None, ...] | None:
    """The arguments over which a program is mapped, as `Programs.get` takes them; None for a single member."""
    return None if members == 1 else tuple(0 if each else None for each in mapped)


def check_alike(members: Sequence[Member]) -> None:
    """Refuses members that can't share one program.

    **Raises:** `ValueError` if they differ in more than arrays and numbers.
    """
    if len({kind_of(member) for member in members}) != 1:
        raise ValueError("members of one run must have the same model and stages, except for arrays and numbers.")


def kind_of(member: Member) -> Hashable:
    """What the members of one program must share: everything except arrays and numbers."""
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
