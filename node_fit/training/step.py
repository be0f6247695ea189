"""A training step, and the compiled chunk of steps: pure functions of the state.

A step sees its stage's objective as a function of the parameters alone.
"""

import math
from dataclasses import replace
from typing import Literal

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from ..data.batch import Batch
from ..model.neural_ode import NeuralODE
from ..objectives.objective import AbstractObjective, Loss, Target, masked_mean
from ..optimizers.optimizer import Linearised, Step
from ..runtime.placement import AnyArray
from ..solver.held_steps import Shares
from .stage import Stage, count_of
from .state import Iterate, Params, TrainState

Vector = Float[Array, " parameter"]


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

    def __call__(self, params: Params) -> Loss:
        return self.objective.loss(self.model(params), params.auxiliary, self.target)

    def residuals(self, x: Vector) -> tuple[Float[Array, " row"], Int[Array, ""]]:
        found = self.objective.residuals(*self.build(x), self.target)
        values = self.target.limited(found.values, found.excess)
        return values.reshape(-1) / jnp.sqrt(found.count), found.failed

    def linearised(self, x: Vector) -> Linearised:
        found, jacobian = self.objective.linearised(self.build, x, self.target)
        root = jnp.sqrt(found.count)
        return Linearised(found.values.reshape(-1) / root, found.failed, jacobian / root, self.prior(x))

    def pushed(self, x: Vector, direction: Vector) -> Float[Array, " row"]:
        count = self.objective.residuals(*self.build(x), self.target).count
        return self.objective.pushed(self.build, x, direction, self.target).reshape(-1) / jnp.sqrt(count)

    def prior(self, x: Vector) -> Vector:
        params: Params = self.unravel(x)
        blank = jax.tree.map(jnp.zeros_like, params)
        parts = (params.model.field, params.model.start)
        weights = eqx.tree_at(lambda p: (p.model.field, p.model.start), blank, self.objective.prior(parts))
        count = self.objective.residuals(*self.build(x), self.target).count
        return ravel_pytree(weights)[0] / count

    def build(self, x: Vector) -> tuple[NeuralODE, PyTree]:
        params: Params = self.unravel(x)
        return self.model(params), params.auxiliary

    def model(self, params: Params) -> NeuralODE:
        return eqx.combine(params.model, self.frozen, self.static)


Scan = Literal["lax", "checkpointed"]
# Consecutive useless evaluations after which a chunk ends.
HOPELESS_STEPS = 10
# A restart goes back to the best iterate and shortens steps by this factor; maximum number of restarts.
CAUTION, RESTARTS = 0.1, 3


class StageData(eqx.Module):
    """Arrays that a training step reads and never changes.

    With several members, some leaves belong to each member, and the others are shared.

    - `frozen`: the part of the model that is not trained.
    - `stage`: numbers of the stage.
    - `batch`: the data; a sample of them if the stage draws minibatches.
    - `rows`: how many rows minibatches are drawn from; None if every step sees all data.
    """

    frozen: PyTree
    stage: PyTree
    batch: PyTree
    rows: Float[AnyArray, ""] | None = None

    def share(self, batch: PyTree) -> Float[AnyArray, ""] | float:
        """What part of the data some rows of them are."""
        return 1.0 if self.rows is None else count_of(batch) / self.rows


def transition(
    model_static: PyTree, stage: Stage, data: StageData, state: TrainState, drawn: PyTree = None
) -> TrainState:
    """One training step, on its minibatch or on all data."""
    batch = data.batch if drawn is None else drawn
    # Only a line search can back off from an infinite loss.
    limit = state.error_limit if stage.optimizer.full_batch else math.inf
    target = Target(batch, state.grid, state.progress, limit, data.share(batch))
    loss = StageLoss(model_static, data.frozen, stage.objective, target, state.params)
    step = stage.optimizer.step(loss, state.params, state.opt_state, stage.steps)
    chosen = judge(stage, state, step)
    silent = ~jnp.isfinite(step.loss.value + step.gradient_norm)
    if stage.batch_size is None:
        # While the loss falls there is hope: gradients see the time before a failure.
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
    """The next parameters, nearer than the optimizer asks after evaluations that were not finite.

    A line search or a damping chooses its own step length.
    """
    if stage.optimizer.full_batch:
        return params

    def shortened(new: Array, old: Array) -> Array:
        return jnp.where(state.restarts == 0, new, old + caution(stage, state).astype(old.dtype) * (new - old))

    return jax.tree.map(shortened, params, state.params)


def caution(stage: Stage, state: TrainState) -> Float[Array, ""]:
    """The factor by which steps are shortened."""
    exponent = 0 if stage.optimizer.full_batch else state.restarts
    return jnp.asarray(CAUTION, state.best.loss.dtype) ** exponent


def restart(stage: Stage, state: TrainState, iterate: Iterate) -> TrainState:
    """The state restarted from an iterate, with smaller steps."""
    return replace(
        state,
        params=iterate.params,
        opt_state=stage.optimizer.restarted(iterate.params, state.opt_state, stage.steps),
        chosen=replace(iterate, loss=state.chosen.loss),
        rejected=jnp.zeros((), jnp.int32),
        restarts=state.restarts + 1,
        stuck=jnp.zeros((), bool),
    )


def errors_of_steps(
    static: tuple, params: Params, grid: Shares, progress: Float[Array, ""], own: StageData, shared: StageData
) -> Array:
    """The estimated error of each held step, relative to its tolerance; `static` is `(model, stage)`."""
    model_static, stage_static = static
    data: StageData = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    model: NeuralODE = eqx.combine(params.model, data.frozen, model_static)
    return stage.objective.step_errors(model, params.auxiliary, Target(data.batch, grid, progress))


def sample_loss(
    static: tuple, chosen: Iterate, grid: Shares | None, progress: Float[Array, ""], own: StageData, shared: StageData
) -> Float[Array, ""]:
    """The objective on a sample of the data, of an iterate that was found on minibatches; infinite if not finite."""
    model_static, stage_static = static
    data: StageData = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    target = Target(data.batch, grid, progress, share=data.share(data.batch))
    loss = StageLoss(model_static, data.frozen, stage.objective, target, chosen.params)(chosen.params).value
    return jnp.where(jnp.isfinite(chosen.loss) & jnp.isfinite(loss), loss, jnp.inf)


def validation_loss(static: PyTree, params: PyTree, own: PyTree, shared: PyTree, batch: Batch) -> Float[Array, ""]:
    """Mean squared residual of simulated trajectories in scaled units; infinite if a solve fails."""
    model: NeuralODE = eqx.combine(params, own, shared, static)
    solution = model.forecast(batch)
    off = batch.weighted(solution.ys - model.scaler.near(batch.ys, solution.ys))
    loss = masked_mean(off**2, batch.mask)
    return jnp.where(jnp.isfinite(loss), loss, jnp.inf)


def judge(stage: Stage, state: TrainState, step: Step) -> Iterate:
    """The better of the chunk's chosen iterate and the one just evaluated; a NaN is never better."""
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
    """`length` training steps; those after the stage's last step, or after a stop, change nothing.

    The result is differentiable with respect to every number in `stage`, `data` and `state`, if the objective's solver
    has an adjoint that may be differentiated again (`direct`). With `scan=checkpointed`, that needs memory for about
    the square root of the steps.

    **Arguments:**

    - `model_static`: the part of the model that is not arrays.
    - `stage`: the stage, with its numbers as arrays.
    - `data`, `state`: the data, and the training state.
    - `length`: number of steps, which is compiled in.
    - `scan`: `lax` or `checkpointed`.
    - `drawn`: minibatches with a leading axis for the steps; None to use all data in every step.

    **Raises:** `ValueError` if `scan` is neither.
    """
    check_scan(scan)

    def body(carry: TrainState, drawn: PyTree) -> tuple[TrainState, None]:
        return unless_idle(model_static, stage, data, carry, drawn), None

    return eqxi.scan(body, state, drawn, length, kind=scan)[0]


def unless_idle(model_static: PyTree, stage: Stage, data: StageData, state: TrainState, drawn: PyTree) -> TrainState:
    """The state after a step, or unchanged if the stage has ended."""
    idle = state.finished | state.stuck | (state.step >= stage.steps) | (state.rejected >= HOPELESS_STEPS)
    return jax.lax.cond(idle, lambda s: s, lambda s: transition(model_static, stage, data, s, drawn), state)


def check_scan(scan: str) -> None:
    # Equinox would take any unknown word as "checkpointed".
    if scan not in ("lax", "checkpointed"):
        raise ValueError(f"scan must be lax or checkpointed, got {scan!r}.")


def chunk(
    static: tuple, state: TrainState, own: StageData, shared: StageData, drawn: PyTree, span: Int[AnyArray, "2"]
) -> tuple[TrainState, Float[Array, ""]]:
    """Runs some steps of a chunk; returns the state and the learning rate. A chunk's first step resets `chosen`.

    This is the only program that is compiled for a stage, whatever the number of steps.

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
