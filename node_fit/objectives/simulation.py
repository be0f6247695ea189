"""What objectives have in common that compare solved trajectories with data."""

import abc
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..batch import Batch
from ..grid import SAFETY, Grid, Shares, even, size, stretched
from ..model import NeuralODE, bound_of
from ..scaling import characteristic_time, mean_and_deviation
from ..solver import Solver
from .jacobian import forward, sensitive, through_states
from .objective import AbstractLeastSquares, Build, Jacobian, Problem, Residuals, Vector, measured_count

# A residual that stands for "not solved": far beyond any honest one (states are of order one), and small enough that
# a line search in float32 can compare its square with others.
UNSOLVED = 1e3
# Steps in the time in which states move by a standard deviation, to begin with, at the usual tolerance.
DENSITY, USUAL = 2.0, 1e-5


class View(NamedTuple):
    """What is looked at now: trajectories, and the steps that their solves hold, if they hold some."""

    batch: Batch
    grid: Grid | None


class AbstractSimulation(AbstractLeastSquares):
    """Residuals of trajectories that are solved from `starts`, at what `view` shows of the data."""

    solver: eqx.AbstractVar[Solver]

    @abc.abstractmethod
    def view(self, problem: Problem) -> View:
        """The problem as far as it is looked at now."""

    @abc.abstractmethod
    def starts(self, model: NeuralODE, own: PyTree, problem: Problem) -> Float[Array, "block state"]:
        """Where the blocks (trajectories, or parts of them) start, in scaled units."""

    @abc.abstractmethod
    def assemble(
        self, model: NeuralODE, own: PyTree, problem: Problem, states: Float[Array, "block time state"]
    ) -> Float[Array, "block row"]:
        """The residuals of solved states."""

    def residuals(self, model: NeuralODE, own: PyTree, problem: Problem) -> Residuals:
        seen = self.view(problem)
        solution = model.solve(seen.batch, self.solver, self.starts(model, own, problem), seen.grid)
        values = self.assemble(model, own, problem, solution.ys)
        return Residuals(values, measured_count(seen.batch.mask, values.dtype), (~solution.ok).sum(dtype=jnp.int32))

    def linearised(self, build: Build, x: Vector, problem: Problem) -> tuple[Residuals, Jacobian]:
        if problem.grid is None:
            # Steps that are chosen in a loop have no other derivative but the forward one.
            unheld = replace(self, solver=replace(self.solver, adjoint="forward"))
            return forward(lambda x: unheld.residuals(*build(x), problem), x)
        seen = self.view(problem)

        def starts(x: Array) -> Array:
            return self.starts(*build(x), problem)

        y0 = starts(x)
        count = y0.shape[1]
        s0 = jax.jacfwd(starts)(x).reshape(y0.shape[0], -1)
        field = sensitive(lambda x: build(x)[0].field, x, count)
        bound = jnp.concatenate([bound_of(seen.batch, y0), jnp.full(s0.shape[1], jnp.inf, y0.dtype)])
        both = jnp.concatenate([y0, s0], axis=1)
        ys = self.solver.follow(field, seen.batch.ts, both, seen.batch.us, seen.batch.origin, seen.grid, bound).ys
        states, moved = ys[..., :count], ys[..., count:].reshape(*ys.shape[:2], count, x.size)
        failed = (~jnp.isfinite(states).all(axis=(1, 2))).sum(dtype=jnp.int32)
        # Where nothing was solved for, the residual is constant.
        moved = jnp.where(jnp.isfinite(states)[..., None] & jnp.isfinite(moved), moved, 0)

        def assemble(x: Array, states: Array) -> Array:
            return self.assemble(*build(x), problem, states)

        values, jacobian = through_states(assemble, x, states, moved)
        return Residuals(values, measured_count(seen.batch.mask, values.dtype), failed), jacobian

    def step_errors(self, model: NeuralODE, own: PyTree, problem: Problem) -> Float[Array, "block step"]:
        """The estimated error of each held step over its tolerance."""
        seen = self.view(problem)
        assert problem.grid is not None and seen.grid is not None
        errors = model.step_errors(seen.batch, self.solver, self.starts(model, own, problem), seen.grid)
        # Of steps that are not looked at yet nothing is known: they stay as they are.
        whole = stretched(problem.grid, seen.batch.ts)
        beyond = jnp.diff(seen.grid, axis=1) < jnp.diff(whole, axis=1)
        return jnp.where(beyond, SAFETY**self.solver.error_order, errors)

    @property
    @abc.abstractmethod
    def grows(self) -> bool:
        """Whether it changes as the stage goes on."""

    @abc.abstractmethod
    def first_grid(self, batch: PyTree) -> Shares | None:
        """Steps to begin with, if its solves are given their steps."""

    @property
    def error_order(self) -> int | None:
        """The power of a step with which its estimated error falls; None if steps are not held to a tolerance."""
        return self.solver.error_order if self.solver.steps == "held" else None

    def steps_for(self, batch: Batch) -> Shares | None:
        """Even steps, as many as the data suggest: what is compiled is then the same for every seed."""
        ts = np.asarray(batch.ts)
        if self.solver.steps == "adaptive":
            return None
        if self.solver.steps == "even":
            return even(ts)
        known = np.where(batch.known, batch.ys, np.nan)
        shift, scale = mean_and_deviation(known.reshape(-1, known.shape[2]))
        spans = (ts[:, -1] - ts[:, 0]).max() / characteristic_time(ts, (known - shift) / scale)
        tolerance = float(np.min(np.asarray(self.solver.rtol)))
        wanted = DENSITY * spans * (USUAL / tolerance) ** (1 / self.solver.error_order)
        return even(ts, size(min(float(wanted), ts.shape[1])))


def nodes(problem: Problem, batch: Batch) -> Grid | None:
    """The steps that are held, on the batch's times."""
    return None if problem.grid is None else stretched(problem.grid, batch.ts)


def misfit(
    model: NeuralODE, batch: Batch, states: Float[Array, "block time state"]
) -> Float[Array, "block time channel"]:
    """Observed states less measured ones; a state that was not solved for counts as far off."""
    solved = jnp.isfinite(states)
    # Neither value nor gradient of the observation may see what is not finite.
    channels = model.observe(jnp.where(solved, states, 0))
    difference = jnp.where(solved.all(axis=2, keepdims=True), channels - batch.ys, UNSOLVED)
    return jnp.where(batch.mask, difference, 0)


def rows(values: Float[Array, "block ..."]) -> Float[Array, "block row"]:
    return values.reshape(values.shape[0], -1)
