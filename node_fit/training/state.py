"""The training state: every leaf is an array that never changes its shape, dtype or weak type."""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from ..runtime.placement import AnyArray
from ..solver.held_steps import Shares
from .stage import Stage


class Params(eqx.Module):
    """What is trained: the `model`'s parameters, and the objective's `auxiliary` variables if it has any."""

    model: PyTree
    auxiliary: PyTree


class Iterate(eqx.Module):
    """Parameters, their loss, the norm of its gradient, and the number of failed solves."""

    params: Params
    loss: Float[AnyArray, "*member"]
    gradient_norm: Float[AnyArray, "*member"]
    failed_solves: Int[AnyArray, "*member"]

    def is_usable(self, blocks: int) -> bool:
        """Whether it was evaluated, and at least one of so many solves succeeded; on the host, of one member."""
        return self.is_evaluated and int(self.failed_solves) < blocks

    @property
    def is_evaluated(self) -> bool:
        """Whether it has a finite loss, or had one in training that no finite validation loss has replaced."""
        return bool(np.isfinite([self.loss, self.gradient_norm]).any())


class TrainState(eqx.Module):
    """Everything that a stage needs to continue.

    On the host, each member of a run has one. A program for several members has a single one, whose leaves have a
    leading axis for the members.

    - `step`: steps taken in this stage.
    - `params`: the parameters at which the objective is evaluated next.
    - `grid`: held steps as fractions of each trajectory's time, or in one row for all trajectories if minibatches are
      drawn; None if there are none.
    - `error_limit`: see `objectives.Target`.
    - `progress`: how far an objective that grows has grown, from 0 to 1.
    - `opt_state`: the optimizer's state.
    - `chosen`: the chunk's iterate to be judged: its lowest loss on the full batch; on minibatches its last, whose loss
      at the chunk's end is that on a sample of the data, the same for all chunks.
    - `evaluations`, `failed`: evaluations of the objective, and those of them in which a solve failed.
    - `rejected`: evaluations in a row without use: loss or gradient not finite, or every solve failed.
    - `restarts`: how often the stage has gone back to its best iterate for that.
    - `best`: the iterate with the lowest judged loss so far, and that loss; infinite until one is finite.
    - `stale`: chunks since `best` last improved.
    - `reference`, `plateau`: training loss against which progress is measured, and chunks since the last progress.
    - `stuck`: whether the optimizer has no further step.
    - `finished`: whether the stage has ended for this member, which then waits for the others.
    """

    step: Int[AnyArray, "*member"]
    params: Params
    grid: Float[AnyArray, "*member row node"] | None
    error_limit: Float[AnyArray, "*member"]
    progress: Float[AnyArray, "*member"]
    opt_state: PyTree
    chosen: Iterate
    evaluations: Int[AnyArray, "*member"]
    failed: Int[AnyArray, "*member"]
    rejected: Int[AnyArray, "*member"]
    restarts: Int[AnyArray, "*member"]
    best: Iterate
    stale: Int[AnyArray, "*member"]
    reference: Float[AnyArray, "*member"]
    plateau: Int[AnyArray, "*member"]
    stuck: Bool[AnyArray, "*member"]
    finished: Bool[AnyArray, "*member"]

    @property
    def nodes(self) -> int:
        """Nodes of the grid; 0 if there is none."""
        return 0 if self.grid is None else self.grid.shape[-1]


def initial_state(stage: Stage, params: Params, grid: Shares | None) -> TrainState:
    """The state before a stage's first step; its leaves still have to pass `precision.carry`."""
    dtype = jax.tree.leaves(params)[0].dtype
    infinite, zero = np.full((), np.inf, dtype), np.zeros((), np.int32)
    nowhere = Iterate(params, infinite, infinite, zero)
    return TrainState(
        step=zero,
        params=params,
        grid=grid,
        error_limit=infinite,
        progress=np.zeros((), dtype),
        opt_state=stage.optimizer.init(params, stage.steps),
        chosen=nowhere,
        evaluations=zero,
        failed=zero,
        rejected=zero,
        restarts=zero,
        best=nowhere,
        stale=zero,
        reference=infinite,
        plateau=zero,
        stuck=np.zeros((), bool),
        finished=np.zeros((), bool),
    )


def check_carry(state: TrainState, after: TrainState) -> None:
    """Refuses a training step that changes the structure of its state.

    **Arguments:**

    - `state`, `after`: the arrays before the step, and the shapes and dtypes after it.

    **Raises:** `TypeError` that names each leaf whose shape, dtype or weak type changes.
    """
    old, new = jax.tree.structure(state), jax.tree.structure(after)
    if old != new:
        raise TypeError(f"a training step changes the structure of its state from {old} to {new}.")
    pairs = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    changes = [
        f"{jax.tree_util.keystr(path)} from {kind(x)} to {kind(y)}" for (path, x), y in pairs if kind(x) != kind(y)
    ]
    if changes:
        raise TypeError("a training step changes its state: " + "; ".join(changes) + ".")


def kind(x: AnyArray | jax.ShapeDtypeStruct) -> str:
    weak = ", weak" if getattr(x, "weak_type", False) else ""
    return f"{x.dtype}{list(x.shape)}{weak}"


def with_flag(state: TrainState, finished: bool) -> TrainState:
    """The state with its `finished` flag set or cleared."""
    return replace(state, finished=np.asarray(finished))
