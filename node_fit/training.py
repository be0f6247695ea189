"""The training loop: one state, one transition, scanned in chunks of fixed length."""

from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .goal import Goal, Unknowns
from .grid import Shares
from .model import NeuralODE
from .objectives import AbstractSimulation, Problem
from .optimizers import Step
from .stage import Stage
from .stream import count_of

Scan = Literal["lax", "checkpointed"]
# Evaluations in a row that say nothing, after which a chunk ends.
HOPELESS = 10
# From the best iterate again, with steps that are smaller by this factor, so many times.
CAUTION, RESTARTS = 0.1, 3


class Iterate(eqx.Module):
    """Parameters, the loss there, the norm of its gradient, and how many of the solves failed."""

    params: Unknowns
    loss: Float[Any, "*member"]
    gradient_norm: Float[Any, "*member"]
    unsolved: Int[Any, "*member"]


class TrainState(eqx.Module):
    """All that a run needs to go on: every leaf an array, none of which ever changes its shape or dtype.

    A run of several members has one, whose leaves have an axis for the members before all others.

    - `step`: steps taken in this stage.
    - `params`: where the objective is evaluated next.
    - `grid`: the steps that solves hold, as shares of each trajectory's time, or in one row of all trajectories' if
      minibatches are drawn; None if they hold none.
    - `progress`: how far an objective that grows has grown, from 0 to 1.
    - `opt_state`: the optimizer's state.
    - `chosen`: the chunk's iterate to be judged: its lowest loss on the full batch, its last on minibatches.
    - `evaluations`, `failed`: evaluations of the objective, and those of them in which a solve failed.
    - `rejected`: evaluations in a row that say nothing: loss or gradient not finite, or nothing solved.
    - `restarts`: how often the stage has gone back to its best iterate for that.
    - `best`: parameters with the lowest judged loss so far, and that loss.
    - `stale`: chunks since `best` last improved.
    - `mark`, `plateau`: training loss that progress is measured from, and chunks since it last fell clearly below.
    - `done`: whether the optimizer knows of no further step.
    - `over`: whether the stage has ended, which a member may wait for others to do.
    """

    step: Int[Any, "*member"]
    params: Unknowns
    grid: Float[Any, "*member row node"] | None
    progress: Float[Any, "*member"]
    opt_state: PyTree
    chosen: Iterate
    evaluations: Int[Any, "*member"]
    failed: Int[Any, "*member"]
    rejected: Int[Any, "*member"]
    restarts: Int[Any, "*member"]
    best: Iterate
    stale: Int[Any, "*member"]
    mark: Float[Any, "*member"]
    plateau: Int[Any, "*member"]
    done: Bool[Any, "*member"]
    over: Bool[Any, "*member"]


class Fixed(eqx.Module):
    """What a training step reads and never changes, all arrays: the frozen part of the model, the numbers of the
    stage, and the data (of a stage with minibatches, a sample). Of several members some of it is each one's own, and
    the rest is shared."""

    frozen: PyTree
    stage: PyTree
    batch: PyTree


def begin(stage: Stage, params: Unknowns, grid: Shares | None) -> TrainState:
    """The state before a stage's first step. Its leaves still have to pass `precision.carry`."""
    dtype = jax.tree.leaves(params)[0].dtype
    infinite = jnp.full((), jnp.inf, dtype)
    zero = jnp.zeros((), jnp.int32)
    nowhere = Iterate(params, infinite, infinite, zero)
    return TrainState(
        step=zero,
        params=params,
        grid=grid,
        progress=jnp.zeros((), dtype),
        opt_state=stage.optimizer.init(params, stage.steps),
        chosen=nowhere,
        evaluations=zero,
        failed=zero,
        rejected=zero,
        restarts=zero,
        best=nowhere,
        stale=zero,
        mark=infinite,
        plateau=zero,
        done=jnp.zeros((), bool),
        over=jnp.zeros((), bool),
    )


def transition(model_static: PyTree, stage: Stage, fixed: Fixed, state: TrainState, drawn: PyTree = None) -> TrainState:
    """One training step, on the minibatch that was drawn for it, or on all data."""
    batch = fixed.batch if drawn is None else drawn
    problem = Problem(batch, state.grid, state.progress)
    goal = Goal(model_static, fixed.frozen, stage.objective, problem, state.params)
    step = stage.optimizer.step(goal, state.params, state.opt_state, stage.steps, stage.clip)
    chosen = judge(stage, state, step)
    silent = ~jnp.isfinite(step.loss.value + step.gradient_norm)
    if stage.batch_size is None:
        # As long as the loss falls there is hope: gradients tell of what came before a failure.
        silent |= (step.loss.failed >= count_of(fixed.batch)) & (chosen.loss >= state.chosen.loss)
    return replace(
        state,
        step=state.step + 1,
        params=cautious(stage, state, step.params),
        opt_state=step.state,
        chosen=chosen,
        evaluations=state.evaluations + step.evaluations,
        failed=state.failed + (step.loss.failed > 0),
        rejected=jnp.where(silent, state.rejected + 1, 0),
        done=stage.optimizer.stuck(step.state),
    )


def cautious(stage: Stage, state: TrainState, params: Unknowns) -> Unknowns:
    """The next parameters, not as far away as the optimizer asks once it has gone where nothing is finite.

    A line search, or a damping, finds its own length of a step.
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
    """The state that begins again from an iterate, with smaller steps."""
    return replace(
        state,
        params=iterate.params,
        opt_state=stage.optimizer.init(iterate.params, stage.steps),
        chosen=replace(iterate, loss=state.chosen.loss),
        rejected=jnp.zeros((), jnp.int32),
        restarts=state.restarts + 1,
        done=jnp.zeros((), bool),
    )


def step_errors(
    static: tuple, params: Unknowns, grid: Shares, progress: Float[Array, ""], own: Fixed, shared: Fixed
) -> Array:
    """The estimated error of each held step over its tolerance; `static` is `(model, stage)`."""
    model_static, stage_static = static
    fixed: Fixed = eqx.combine(own, shared)
    stage = eqx.combine(fixed.stage, stage_static)
    model: NeuralODE = eqx.combine(params.model, fixed.frozen, model_static)
    assert isinstance(stage.objective, AbstractSimulation)
    return stage.objective.step_errors(model, params.own, Problem(fixed.batch, grid, progress))


def judge(stage: Stage, state: TrainState, step: Step) -> Iterate:
    """The better of the chunk's chosen iterate and the one just evaluated; a NaN is never better."""
    here = Iterate(state.params, step.loss.value, step.gradient_norm, step.loss.failed)
    better = here.loss < state.chosen.loss if stage.batch_size is None else jnp.isfinite(here.loss)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), here, state.chosen)


def unroll(
    model_static: PyTree,
    stage: Stage,
    fixed: Fixed,
    state: TrainState,
    length: int,
    scan: Scan = "lax",
    drawn: PyTree = None,
) -> TrainState:
    """`length` training steps, of which those after the stage's last, or after a stop, change nothing.

    Differentiable in every number of `stage`, `fixed` and `state`, if the objective's solver has an adjoint that may
    be differentiated again (`direct`); `checkpointed` then needs memory for about the square root of the steps.

    **Arguments:**

    - `model_static`: the part of the model that is no array.
    - `stage`: with its numbers as arrays.
    - `fixed`, `state`: data and frozen parameters, and where the training is.
    - `length`: number of steps; compiled in.
    - `scan`: `lax` or `checkpointed`.
    - `drawn`: a minibatch for each step, along an axis before all others; None for all data in every step.

    **Raises:** `ValueError` if `scan` is neither.
    """
    check_scan(scan)

    def body(carry: TrainState, drawn: PyTree) -> tuple[TrainState, None]:
        over = carry.over | carry.done | (carry.step >= stage.steps) | (carry.rejected >= HOPELESS)
        return jax.lax.cond(over, lambda s: s, lambda s: transition(model_static, stage, fixed, s, drawn), carry), None

    return eqxi.scan(body, state, drawn, length, kind=scan)[0]


def check_scan(scan: str) -> None:
    # Equinox takes any unknown word for "checkpointed".
    if scan not in ("lax", "checkpointed"):
        raise ValueError(f"scan must be lax or checkpointed, got {scan!r}.")


def chunk(
    static: tuple, state: TrainState, own: Fixed, shared: Fixed, drawn: PyTree = None
) -> tuple[TrainState, Float[Array, ""]]:
    """A chunk of training from a fresh choice of iterate, and the learning rate after it.

    The one program that is compiled for a stage; `static` is `(model, stage, length, scan)`. What a member has of its
    own is in `own`, what it shares with others in `shared`; the minibatches of its steps are in `drawn`.
    """
    model_static, stage_static, length, scan = static
    fixed: Fixed = eqx.combine(own, shared)
    stage = eqx.combine(fixed.stage, stage_static)
    infinite = jnp.full_like(state.chosen.loss, jnp.inf)
    fresh = Iterate(state.params, infinite, infinite, jnp.zeros_like(state.failed))
    chosen = jax.tree.map(lambda old, new: jnp.where(state.over, old, new), state.chosen, fresh)
    state = unroll(model_static, stage, fixed, replace(state, chosen=chosen), length, scan, drawn)
    return state, stage.optimizer.rate(state.opt_state, stage.steps) * caution(stage, state)


def check_carry(state: TrainState, after: TrainState) -> None:
    """Refuses a training step that would not give back the kind of state that it was given.

    **Arguments:**

    - `state`: arrays. `after`: the shapes and dtypes that come out.

    **Raises:** `TypeError` that names each leaf whose shape, dtype or weakness of type changes.
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


def kind(x: Any) -> str:
    weak = ", weak" if getattr(x, "weak_type", False) else ""
    return f"{x.dtype}{list(x.shape)}{weak}"
