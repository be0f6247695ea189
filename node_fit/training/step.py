"""The training state, a step, and the compiled chunk of steps: pure functions of the state.

Every leaf of the state is an array that never changes its shape, dtype or weak type. A step sees its stage's objective
as a function of the parameters alone.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch
from ..model.neural_ode import NeuralODE
from ..objectives.objective import AbstractObjective, Loss, Residuals, Target, masked_mean
from ..optimizers.optimizer import Linearised, Step
from ..runtime.placement import AnyArray
from ..solver.held_steps import Shares
from .task import Stage, count_of

Vector = Float[Array, " parameter"]
# The key of a compiled program: the static parts of a model and of its stage.
Static = tuple[PyTree, PyTree]


class Params(eqx.Module):
    """The trained variables: the `model`'s parameters, and the objective's `auxiliary` variables, if any."""

    model: PyTree
    auxiliary: PyTree


class Iterate(eqx.Module):
    """Parameters, their loss, the norm of its gradient, and the number of failed solves."""

    params: Params
    loss: Float[AnyArray, "*member"]
    gradient_norm: Float[AnyArray, "*member"]
    failed_solves: Int[AnyArray, "*member"]

    def is_usable(self, blocks: int) -> bool:
        """Whether it was evaluated and at least one of its solves succeeded; on the host, for one member."""
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
      drawn; None without held steps.
    - `error_limit`: see `objectives.Target`.
    - `progress`: how far an objective that grows has grown, from 0 to 1.
    - `opt_state`: the optimizer's state.
    - `chosen`: the chunk's iterate to be judged. On the full batch, it has the lowest loss. On minibatches it is the
      last, and its loss is evaluated at the end of the chunk on a sample of the data that all chunks share.
    - `evaluations`, `failed`: numbers of evaluations of the objective, and of evaluations with a failed solve.
    - `rejected`: number of consecutive useless evaluations: loss or gradient not finite, or every solve failed.
    - `restarts`: number of returns to the best iterate because of them.
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
        """Number of nodes of the grid; 0 without one."""
        return 0 if self.grid is None else self.grid.shape[-1]


def initial_state(stage: Stage, params: Params, grid: Shares | None) -> TrainState:
    """Makes the state before a stage's first step; its leaves still have to pass `precision.carry`."""
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
    """Rejects a training step that changes the structure of its state.

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
    """Sets or clears the state's `finished` flag."""
    return replace(state, finished=np.asarray(finished))


class StageLoss:
    """The loss as a function of the parameters and, for sums of squares, residuals as a function of one flat vector.

    **Arguments:**

    - `static`, `frozen`: parts of the model that are not trained.
    - `objective`, `target`: the objective, and its data.
    - `params`: parameters of the structure that it is called with.
    """

    def __init__(self, static: PyTree, frozen: PyTree, objective: AbstractObjective, target: Target, params: Params):
        self.unravel = ravel_pytree(params)[1]
        self.static = static
        self.frozen = frozen
        self.objective = objective
        self.target = target
        # All uses within a program share a trace.
        self.evaluate: Callable[[Vector], Residuals] = jax.jit(self._evaluate)

    def __call__(self, params: Params) -> Loss:
        return self.objective.loss(self.model(params), params.auxiliary, self.target)

    def _evaluate(self, x: Vector) -> Residuals:
        return self.objective.residuals(*self.build(x), self.target)

    def residuals(self, x: Vector) -> tuple[Float[Array, " row"], Int[Array, ""]]:
        result = self.evaluate(x)
        values = self.target.limit(result.values, result.excess)
        return values.reshape(-1) / jnp.sqrt(result.count), result.failed

    def linearise(self, x: Vector) -> Linearised:
        result, jacobian = self.objective.linearise(self.build, x, self.target)
        root = jnp.sqrt(result.count)
        return Linearised(
            result.values.reshape(-1) / root, result.failed, jacobian / root, self.weights(x) / result.count
        )

    def push_tangent(self, x: Vector, direction: Vector) -> Float[Array, " row"]:
        pushed = self.objective.push_tangent(self.build, x, direction, self.target)
        return pushed.reshape(-1) / jnp.sqrt(self.evaluate(x).count)

    def prior(self, x: Vector) -> Vector:
        return self.weights(x) / self.evaluate(x).count

    def weights(self, x: Vector) -> Vector:
        """Computes the weights of the squared parameters relative to the sum of squared residuals."""
        params: Params = self.unravel(x)
        blank = jax.tree.map(jnp.zeros_like, params)
        parts = (params.model.field, params.model.start)
        weights = eqx.tree_at(lambda p: (p.model.field, p.model.start), blank, self.objective.prior(parts))
        return ravel_pytree(weights)[0]

    def build(self, x: Vector) -> tuple[NeuralODE, PyTree]:
        params: Params = self.unravel(x)
        return self.model(params), params.auxiliary

    def model(self, params: Params) -> NeuralODE:
        return eqx.combine(params.model, self.frozen, self.static)


Scan = Literal["lax", "checkpointed"]
# Number of consecutive useless evaluations after which a chunk ends.
HOPELESS_STEPS = 10
# Factor by which a restart from the best iterate shortens steps, and maximum number of restarts.
CAUTION, RESTARTS = 0.1, 3


class StageData(eqx.Module):
    """Arrays that a training step reads and never changes.

    With several members, some leaves belong to each member, and the others are shared.

    - `frozen`: the part of the model that is not trained.
    - `stage`: numbers of the stage.
    - `batch`: the data; a sample of them if the stage draws minibatches.
    - `rows`: number of rows that minibatches are drawn from; None if every step sees all data.
    - `steps`: number of steps of the stage; None if the program is compiled for that number.
    """

    frozen: PyTree
    stage: PyTree
    batch: PyTree
    rows: Float[AnyArray, ""] | None = None
    steps: Int[AnyArray, ""] | None = None

    def share(self, batch: PyTree) -> Float[AnyArray, ""] | float:
        """Returns the fraction of the data in a batch."""
        return 1.0 if self.rows is None else count_of(batch) / self.rows


def transition(
    model_static: PyTree, stage: Stage, data: StageData, state: TrainState, drawn: PyTree = None
) -> TrainState:
    """Takes one training step, on its minibatch or on all data."""
    batch = data.batch if drawn is None else drawn
    # Only a line search can back off from an infinite loss.
    limit = state.error_limit if stage.optimizer.full_batch else math.inf
    target = Target(batch, state.grid, state.progress, limit, data.share(batch))
    loss = StageLoss(model_static, data.frozen, stage.objective, target, state.params)
    step = stage.optimizer.step(loss, state.params, state.opt_state, stage.steps)
    chosen = judge(stage, state, step)
    silent = ~jnp.isfinite(step.loss.value + step.gradient_norm)
    if stage.batch_size is None:
        # A falling loss is progress: gradients see the time before a failure.
        silent |= (step.loss.failed >= count_of(data.batch)) & (chosen.loss >= state.chosen.loss)
    return replace(
        state,
        step=state.step + 1,
        params=cautious(stage, state, step.params),
        opt_state=step.state,
        chosen=chosen,
        evaluations=state.evaluations + step.evaluations,
        failed=state.failed + (step.loss.failed > 0),
        rejected=jnp.where(silent, state.rejected + 1, 0),
        stuck=stage.optimizer.stuck(step.state),
    )


def cautious(stage: Stage, state: TrainState, params: Params) -> Params:
    """Shortens the optimizer's step after evaluations that were not finite.

    A line search or damping chooses its own step length.
    """
    if stage.optimizer.full_batch:
        return params

    def shorten(new: Array, old: Array) -> Array:
        return jnp.where(state.restarts == 0, new, old + caution(stage, state).astype(old.dtype) * (new - old))

    return jax.tree.map(shorten, params, state.params)


def caution(stage: Stage, state: TrainState) -> Float[Array, ""]:
    """Returns the factor by which steps are shortened."""
    exponent = 0 if stage.optimizer.full_batch else state.restarts
    return jnp.asarray(CAUTION, state.best.loss.dtype) ** exponent


def restart(stage: Stage, state: TrainState, iterate: Iterate) -> TrainState:
    """Restarts from an iterate, with smaller steps."""
    return replace(
        state,
        params=iterate.params,
        opt_state=stage.optimizer.restart(iterate.params, state.opt_state, stage.steps),
        chosen=replace(iterate, loss=state.chosen.loss),
        rejected=jnp.zeros((), jnp.int32),
        restarts=state.restarts + 1,
        stuck=jnp.zeros((), bool),
    )


def errors_of_steps(
    static: Static, params: Params, grid: Shares, progress: Float[Array, ""], own: StageData, shared: StageData
) -> Array:
    """Estimates the error of each held step, relative to its tolerance; `static` is `(model, stage)`."""
    model_static, stage_static = static
    data: StageData = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    model: NeuralODE = eqx.combine(params.model, data.frozen, model_static)
    return stage.objective.step_errors(model, params.auxiliary, Target(data.batch, grid, progress))


def sample_loss(
    static: Static, chosen: Iterate, grid: Shares | None, progress: Float[Array, ""], own: StageData, shared: StageData
) -> Float[Array, ""]:
    """Evaluates an iterate from minibatches on a sample of the data; infinite if not finite."""
    model_static, stage_static = static
    data: StageData = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    target = Target(data.batch, grid, progress, share=data.share(data.batch))
    loss = StageLoss(model_static, data.frozen, stage.objective, target, chosen.params)(chosen.params).value
    return jnp.where(jnp.isfinite(chosen.loss) & jnp.isfinite(loss), loss, jnp.inf)


def validation_loss(static: PyTree, params: PyTree, own: PyTree, shared: PyTree, batch: Batch) -> Float[Array, ""]:
    """Computes the mean squared residual of simulated trajectories in scaled units; infinite if a solve fails."""
    model: NeuralODE = eqx.combine(params, own, shared, static)
    solution = model.forecast(batch)
    off = batch.weigh_errors(solution.ys - model.scaler.near(batch.ys, solution.ys))
    loss = masked_mean(off**2, batch.mask)
    return jnp.where(jnp.isfinite(loss), loss, jnp.inf)


def judge(stage: Stage, state: TrainState, step: Step) -> Iterate:
    """Returns the better of the chunk's chosen iterate and the one just evaluated; a NaN is never better."""
    here = Iterate(state.params, step.loss.value, step.gradient_norm, step.loss.failed)
    better = here.loss < state.chosen.loss if stage.batch_size is None else jnp.isfinite(here.loss)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), here, state.chosen)


def unroll(
    model_static: PyTree,
    stage: Stage,
    data: StageData,
    state: TrainState,
    length: int,
    scan: Scan = "lax",
    drawn: PyTree = None,
) -> TrainState:
    """Takes `length` training steps; steps after the stage's last one, or after a stop, change nothing.

    The result is differentiable with respect to every number in `stage`, `data` and `state`, if the adjoint of the
    objective's solver can be differentiated again (`direct`). With `scan=checkpointed`, that needs memory for about
    the square root of the steps.

    **Arguments:**

    - `model_static`: the part of the model that is not arrays.
    - `stage`: the stage, with its numbers as arrays.
    - `data`, `state`: the data, and the training state.
    - `length`: number of steps, a compile-time constant.
    - `scan`: `lax` or `checkpointed`.
    - `drawn`: minibatches with a leading axis for the steps; None to use all data in every step.

    **Raises:** `ValueError` if `scan` is neither.
    """
    check_scan(scan)

    def body(carry: TrainState, drawn: PyTree) -> tuple[TrainState, None]:
        return unless_idle(model_static, stage, data, carry, drawn), None

    return eqxi.scan(body, state, drawn, length, kind=scan)[0]


def unless_idle(model_static: PyTree, stage: Stage, data: StageData, state: TrainState, drawn: PyTree) -> TrainState:
    """Takes a step, or returns the state unchanged if the stage has ended."""
    steps = stage.steps if data.steps is None else data.steps
    idle = state.finished | state.stuck | (state.step >= steps) | (state.rejected >= HOPELESS_STEPS)
    return jax.lax.cond(idle, lambda s: s, lambda s: transition(model_static, stage, data, s, drawn), state)


def check_scan(scan: str) -> None:
    # Equinox would take any unknown word as "checkpointed".
    if scan not in ("lax", "checkpointed"):
        raise ValueError(f"scan must be lax or checkpointed, got {scan!r}.")


def chunk(
    static: Static, state: TrainState, own: StageData, shared: StageData, drawn: PyTree, span: Int[AnyArray, "2"]
) -> tuple[TrainState, Float[Array, ""]]:
    """Runs part of a chunk; returns the state and the learning rate. A chunk's first step resets `chosen`.

    This is the only program that is compiled for a stage, regardless of the number of steps.

    **Arguments:**

    - `static`: `(model, stage)`.
    - `state`: a member's state. `own`, `shared`: its own data, and those that all members share.
    - `drawn`: the minibatches of the whole chunk; None if every step uses all data.
    - `span`: the first step, counted within the chunk, and the step after the last.
    """
    model_static, stage_static = static
    data: StageData = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    infinite = jnp.full_like(state.chosen.loss, jnp.inf)
    fresh = Iterate(state.params, infinite, infinite, jnp.zeros_like(state.failed))
    kept = state.finished | (span[0] > 0)
    chosen = jax.tree.map(lambda old, new: jnp.where(kept, old, new), state.chosen, fresh)

    def step(index: Array, state: TrainState) -> TrainState:
        return unless_idle(model_static, stage, data, state, jax.tree.map(lambda x: x[index], drawn))

    state = jax.lax.fori_loop(span[0], span[1], step, replace(state, chosen=chosen))
    return state, stage.optimizer.rate(state.opt_state, stage.steps) * caution(stage, state)
