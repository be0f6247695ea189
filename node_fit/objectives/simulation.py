"""The base class of objectives that compare solved trajectories with data."""

import abc
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..data.batch import Batch, data_from_start
from ..data.dataset import Dataset
from ..data.noise import typical_residuals
from ..data.scaling import characteristic_time, mean_and_deviation
from ..model.neural_ode import NeuralODE, bound_of
from ..solver.adjoints import Adjoint
from ..solver.held_steps import SAFETY, Grid, Shares, even, size, stretched
from ..solver.solver import Solver
from ..solver.tolerances import with_defaults
from ..solver.triggers import has_triggers
from .jacobian import forward, pushed, sensitive, through_states
from .objective import AbstractLeastSquares, Build, Target, measured_count
from .residuals import Jacobian, Residuals, Vector
from .robust import LEAST_SQUARES, AbstractResidualLoss

# A residual that stands for "not solved": far above any real one (states are of order one), and small enough that a
# line search in float32 can compare its square with others.
UNSOLVED = 1e3
# Initial steps at the usual tolerance, per time in which states move by a standard deviation.
DENSITY, USUAL = 2.0, 1e-5


class AbstractSimulation(AbstractLeastSquares):
    """An objective with residuals of trajectories that are solved from `starts`, on the data that are `seen`."""

    solver: eqx.AbstractVar[Solver]

    @abc.abstractmethod
    def seen(self, target: Target) -> tuple[Batch, Grid | None]:
        """The part of the trajectories that counts at this point of the stage, and the held steps, if any."""

    @abc.abstractmethod
    def starts(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "block state"]:
        """Where the blocks (trajectories, or parts of them) start, in scaled units."""

    @abc.abstractmethod
    def assemble(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, states: Float[Array, "block time state"]
    ) -> Float[Array, "block row"]:
        """The residuals of solved states."""

    def residuals(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Residuals:
        return self.solved(model, auxiliary, target)

    def solved(self, model: NeuralODE, auxiliary: PyTree, target: Target, adjoint: Adjoint | None = None) -> Residuals:
        """The residuals; `adjoint` in place of the solver's own."""
        batch, grid = self.seen(target)
        problem = model.problem(batch, self.starts(model, auxiliary, target))
        if grid is None:
            solution, excess = self.solver.solve(problem, joint=batch.joint, adjoint=adjoint), 0.0
        else:
            solution = self.solver.solve_held(problem, grid, between_rows=batch.driven, adjoint=adjoint)
            # A failed solve is counted; it does not lower the weight of the others.
            errors = jnp.where(solution.ok[:, None], solution.errors, 0)
            excess = errors.max() if self.solver.stepping == "held" else 0.0
        values = self.assemble(model, auxiliary, target, solution.ys)
        failed = (~solution.ok).sum(dtype=jnp.int32)
        return Residuals(values, measured_count(batch.mask, values.dtype), failed, jax.lax.stop_gradient(excess))

    def linearised(self, build: Build, x: Vector, target: Target) -> tuple[Residuals, Jacobian]:
        batch, grid = self.seen(target)
        if grid is None or has_triggers(build(x)[0].field):
            # A loop that chooses its steps only has a forward-mode derivative, and so do the times of events.
            return forward(lambda x: self.solved(*build(x), target, "forward"), x)

        def starts(x: Array) -> Array:
            return self.starts(*build(x), target)

        y0 = starts(x)
        count = y0.shape[1]
        s0 = jax.jacfwd(starts)(x).reshape(y0.shape[0], -1)
        jumps = batch.jumps and batch.jumps.with_sensitivities(x.size)
        bound = jnp.concatenate([bound_of(batch, y0), jnp.full(s0.shape[1], jnp.inf, y0.dtype)])
        problem = replace(
            build(x)[0].problem(batch, y0),
            field=sensitive(lambda x: build(x)[0].field, x, count),
            y0=jnp.concatenate([y0, s0], axis=1),
            bound=bound,
            jumps=jumps,
        )
        ys = self.solver.solve_held(problem, grid, between_rows=batch.driven).ys
        states, moved = ys[..., :count], ys[..., count:].reshape(*ys.shape[:2], count, x.size)
        failed = (~jnp.isfinite(states).all(axis=(1, 2))).sum(dtype=jnp.int32)
        # Where nothing was solved, the residual is constant.
        moved = jnp.where(jnp.isfinite(states)[..., None] & jnp.isfinite(moved), moved, 0)

        def assemble(x: Array, states: Array) -> Array:
            return self.assemble(*build(x), target, states)

        values, jacobian = through_states(assemble, x, states, moved)
        return Residuals(values, measured_count(batch.mask, values.dtype), failed), jacobian

    def pushed(self, build: Build, x: Vector, direction: Vector, target: Target) -> Float[Array, "block row"]:
        return pushed(lambda x: self.solved(*build(x), target, "forward"), x, direction)

    def step_errors(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "block step"]:
        batch, grid = self.seen(target)
        assert target.grid is not None and grid is not None
        problem = model.problem(batch, self.starts(model, auxiliary, target))
        errors = self.solver.step_errors(problem, grid, between_rows=batch.driven)
        if batch.driven:
            return errors
        # Steps that are not in use yet have no error estimate, and stay as they are.
        whole = stretched(target.grid, batch.ts)
        beyond = jnp.diff(grid, axis=1) < jnp.diff(whole, axis=1)
        return jnp.where(beyond, SAFETY**self.solver.error_order, errors)

    @property
    def held_solver(self) -> Solver | None:
        return self.solver if self.solver.stepping == "held" else None

    def steps_for(self, batch: Batch) -> Shares | None:
        """Equal steps, in a number that the data alone determine, so that every seed runs the same compiled program."""
        ts = np.asarray(batch.ts)
        if not self.solver.takes_given_steps:
            return None
        if batch.driven:
            return np.array([[0.0, 1.0]])
        if self.solver.stepping == "even":
            return even(ts)
        known = np.where(batch.known, batch.ys, np.nan)
        shift, scale = mean_and_deviation(known.reshape(-1, known.shape[2]))
        spans = (ts[:, -1] - ts[:, 0]).max() / characteristic_time(ts, (known - shift) / scale)
        tolerance = float(np.min(np.asarray(with_defaults(self.solver.rtol, None)[0])))
        wanted = DENSITY * spans * (USUAL / tolerance) ** (1 / self.solver.error_order)
        return even(ts, size(min(float(wanted), ts.shape[1])))


def nodes(target: Target, batch: Batch) -> Grid | None:
    """The held steps, in the batch's times or, between rows, as fractions."""
    return target.grid if target.grid is None or batch.driven else stretched(target.grid, batch.ts)


def misfit(
    model: NeuralODE,
    batch: Batch,
    states: Float[Array, "block time state"],
    loss: AbstractResidualLoss = LEAST_SQUARES,
) -> Float[Array, "block time channel"]:
    """Observed states less measured ones, weighted by what is known of the noise; angles the shorter way around.

    Large ones are as much smaller as the loss says. A state that was not solved for counts as far off.
    """
    solved = jnp.isfinite(states)
    # Keep values that are not finite away from the observation and its gradient.
    channels = model.observe(jnp.where(solved, states, 0))
    whole = solved.all(axis=2, keepdims=True)
    difference = jnp.where(whole, channels - model.scaler.near(batch.ys, channels), UNSOLVED)
    found = jnp.where(batch.mask, batch.weighted(difference), 0)
    if batch.deviation is None:
        return found
    return jnp.where(whole, found * loss.factor(found / batch.deviation), found)


def with_deviation(batch: Batch, data: Dataset, model: NeuralODE, loss: AbstractResidualLoss) -> Batch:
    """The batch with the standard deviations of its residuals, if the loss needs them.

    **Raises:** `ValueError` if the noise of a state is not known and can't be estimated.
    """
    if not loss.robust:
        return batch
    past = model.start.past
    counted = data_from_start(data, past, model.start.washout) if past else data
    found = typical_residuals(model.scaler.marked(counted), model.scaler)
    shape = (len(batch.ys), 1, len(found))
    return replace(batch, deviation=np.broadcast_to(found, shape).astype(np.float64))


def rows(values: Float[Array, "block ..."]) -> Float[Array, "block row"]:
    return values.reshape(values.shape[0], -1)
