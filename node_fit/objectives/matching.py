"""Objectives that match a model to data: its field to slopes, or its simulations to trajectories, whole or in parts.

`AbstractSimulation` serves all objectives that compare solved trajectories with data.
"""

import abc
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch, data_from_start
from ..data.dataset import Dataset
from ..data.facts import Facts
from ..data.interpolation import FEWEST_SMOOTHED, smooth
from ..data.noise import likelihood_unit, typical_residuals
from ..data.scaling import characteristic_time, mean_and_deviation
from ..data.trajectories import cut
from ..likelihood.losses import LEAST_SQUARES, AbstractLikelihood, AbstractResidualLoss, Squares
from ..model.neural_ode import NeuralODE
from ..runtime.placement import AnyArray
from ..runtime.validation import check_fields
from ..solver.held_steps import ERROR_SAFETY, Grid, Shares, even, size, stretch
from ..solver.methods import Adjoint, with_defaults
from ..solver.problem import InitialValueProblem, VectorField
from ..solver.solver import Solver, as_solver
from ..solver.switches import has_stops
from ..solver.triggers import has_triggers
from .objective import (
    AbstractLeastSquares,
    Build,
    Jacobian,
    Penalty,
    Residuals,
    Target,
    Vector,
    forward,
    measured_count,
    push_forward,
    sensitive,
    through_states,
)

# With very many rows, the multiple of the used points that is smoothed, and number of rows in a piece.
ENOUGH_ROWS, DERIVATIVE_PIECE = 4, 512
# Residual of a failed solve: far above any real one (states are of order one), and small enough that a line search in
# float32 can compare its square with others.
UNSOLVED = 1e3
# Initial steps at the usual tolerance, per time in which states move by a standard deviation.
DENSITY, USUAL = 2.0, 1e-5


class Slopes(eqx.Module):
    """Points of smoothed trajectories and the derivatives there, in scaled units; one row per time."""

    ts: Float[AnyArray, " point"]
    ys: Float[AnyArray, "point state"]
    us: Float[AnyArray, "point input"]
    rates: Float[AnyArray, "point state"]
    mask: Bool[AnyArray, "point state"]


class DerivativeMatching(AbstractLeastSquares):
    """Mean squared difference of the field and the derivatives of smoothing splines through the data.

    The cheapest initialization of a fit (two-stage regression: Varah, SIAM J. Sci. Stat. Comput. 3, 1982). It is biased
    by noise, so it precedes trajectory matching and does not replace it.

    **Arguments:**

    - `penalty`: penalties on the field and its weights.
    - `most`: maximum number of points, evenly spread over the data.

    It needs a model whose states are all measured, since derivatives of hidden states are unknown; hidden velocities
    of measured positions are the derivatives of these.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    most: int = eqx.field(static=True, default=8192)

    def __check_init__(self):
        check_fields(self)

    def why_not(self, model: NeuralODE, facts: Facts) -> str | None:
        if not (model.is_measured or hides_velocities(model.field)):
            return "no derivative stage, since the derivatives of states that are not measured are unknown"
        if facts.events or has_triggers(model.field):
            return "no derivative stage, since splines do not jump at events"
        if facts.decades:
            return "no derivative stage, since splines resolve little where rows span decades of time"
        if not facts.smoothable:
            return f"no derivative stage, since no trajectory has {FEWEST_SMOOTHED} measurements of every state"
        return None

    def prepare(self, data: Dataset, model: NeuralODE) -> Slopes:
        if not (model.is_measured or hides_velocities(model.field)):
            raise ValueError("derivative matching needs a model whose states are all measured; leave the stage out.")
        data = evenly(data.exact, ENOUGH_ROWS * self.most)
        ts = model.scaler.scale_times(data.ts)
        known = np.where(data.mask, model.scaler.scale_states(data.ys), np.nan)
        ys, rates = smooth_states(model, ts, known)
        usable = np.argwhere(np.isfinite(ys).all(axis=2))
        spread = np.linspace(0, len(usable) - 1, min(self.most, len(usable))).astype(int)
        at = tuple(usable[spread].T)
        return Slopes(
            ts=ts[at],
            ys=ys[at],
            us=model.scaler.scale_inputs(data.us)[at],
            rates=rates[at],
            mask=np.isfinite(rates[at]),
        )

    def residuals(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Residuals:
        batch: Slopes = target.batch
        at: tuple[Array, Array, Array] = jax.tree.map(jnp.asarray, (batch.ts, batch.ys, batch.us))
        rates = jax.vmap(model.field)(*at)
        off = jnp.where(batch.mask, rates - batch.rates, 0)
        points = jax.tree.map(lambda x: x[:, None], at)
        seen = jnp.asarray(batch.mask).any(axis=1)[:, None]
        asked = self.penalty.residuals(model.field, points, seen, jnp.maximum(batch.mask.sum(), 1))
        count = measured_count(batch.mask, off.dtype)
        return Residuals(jnp.concatenate([off, asked], axis=1), count, jnp.zeros((), jnp.int32))


def hides_velocities(field: VectorField) -> bool:
    """Whether a field's hidden states are the velocities of measured positions."""
    return bool(getattr(field, "hides_velocities", False))


def smooth_states(
    model: NeuralODE,
    ts: Float[np.ndarray, "trajectory time"],
    ys: Float[np.ndarray, "trajectory time channel"],
) -> tuple[Float[np.ndarray, "trajectory time state"], Float[np.ndarray, "trajectory time state"]]:
    """Computes smoothed states and their time derivatives in scaled units; velocities are derivatives of positions."""
    ys, rates = smooth(ts, ys)
    if not hides_velocities(model.field):
        return ys, rates
    velocities, accelerations = smooth(ts, rates)
    return np.concatenate([ys, velocities], axis=2), np.concatenate([rates, accelerations], axis=2)


def evenly(data: Dataset, most: int) -> Dataset:
    """Selects evenly spread pieces of trajectories with about `most` rows in total; all data if they have fewer."""
    if data.lengths.sum() <= most:
        return data
    pieces = data.pieces(DERIVATIVE_PIECE, DERIVATIVE_PIECE)
    share = most / sum(end - begin for _, begin, end in pieces)
    chosen = np.linspace(0, len(pieces) - 1, max(int(share * len(pieces)), 1)).astype(int)
    return cut(data, [pieces[index] for index in map(int, chosen)], [str(index) for index in chosen])


# Maximum number of parameters for forward sensitivities of steps that are solved simultaneously; with more, the
# sensitivities are too many states for that.
MOST_PUSHED = 64


class AbstractSimulation(AbstractLeastSquares):
    """An objective with residuals of trajectories solved from `starts`, on the active part of the data."""

    solver: eqx.AbstractVar[Solver]

    @abc.abstractmethod
    def active_part(self, target: Target) -> tuple[Batch, Grid | None]:
        """Returns the part of the trajectories that counts at this point of the stage, and the held steps, if any."""

    @abc.abstractmethod
    def starts(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "block state"]:
        """Returns the initial states of the blocks (trajectories, or parts of them), in scaled units."""

    @abc.abstractmethod
    def assemble(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, states: Float[Array, "block time state"]
    ) -> Float[Array, "block row"]:
        """Computes the residuals of solved states."""

    def problem(self, model: NeuralODE, auxiliary: PyTree, target: Target, batch: Batch) -> InitialValueProblem:
        """Makes the initial value problem, with a guess for steps that are solved simultaneously."""
        problem = model.problem(batch, self.starts(model, auxiliary, target))
        if not self.solver.marches_together(problem.field, *problem.y0.shape):
            return problem
        return replace(problem, guess=model.guess(batch, problem.y0))

    def residuals(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Residuals:
        return self.solve_residuals(model, auxiliary, target)

    def solve_residuals(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, adjoint: Adjoint | None = None
    ) -> Residuals:
        """Computes the residuals; `adjoint` replaces the solver's own."""
        batch, grid = self.active_part(target)
        problem = self.problem(model, auxiliary, target, batch)
        if grid is None:
            solution, excess = self.solver.solve(problem, joint=batch.joint, adjoint=adjoint), 0.0
        else:
            solution = self.solver.solve_held(problem, grid, between_rows=batch.driven, adjoint=adjoint)
            # A failed solve is counted; it does not reduce the weight of the others.
            errors = jnp.where(solution.ok[:, None], solution.errors, 0)
            excess = errors.max() if self.solver.stepping == "held" else 0.0
        values = self.assemble(model, auxiliary, target, solution.ys)
        failed = (~solution.ok).sum(dtype=jnp.int32)
        return Residuals(values, measured_count(batch.mask, values.dtype), failed, jax.lax.stop_gradient(excess))

    def linearise(self, build: Build, x: Vector, target: Target) -> tuple[Residuals, Jacobian]:
        batch, grid = self.active_part(target)

        def starts(x: Array) -> Array:
            return self.starts(*build(x), target)

        y0, field = starts(x), build(x)[0].field
        together = self.solver.marches_together(field, *y0.shape)
        pushed = together and (x.size <= MOST_PUSHED or self.solver.march == "parallel")
        if grid is None or has_stops(field) or pushed or self.solver.is_exponential:
            # An adaptive loop only has a forward-mode derivative, and so do the times of events; steps that are solved
            # simultaneously, or with matrices that depend on the parameters, have one for each parameter.
            return forward(lambda x: self.solve_residuals(*build(x), target, "forward"), x)
        count = y0.shape[1]
        s0 = jax.jacfwd(starts)(x).reshape(y0.shape[0], -1)
        jumps = batch.jumps and batch.jumps.with_sensitivities(x.size)
        bound = jnp.concatenate([build(x)[0].divergence_bound(batch, y0), jnp.full(s0.shape[1], jnp.inf, y0.dtype)])
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
        # The residual of a failed solve is constant.
        moved = jnp.where(jnp.isfinite(states)[..., None] & jnp.isfinite(moved), moved, 0)

        def assemble(x: Array, states: Array) -> Array:
            return self.assemble(*build(x), target, states)

        values, jacobian = through_states(assemble, x, states, moved)
        return Residuals(values, measured_count(batch.mask, values.dtype), failed), jacobian

    def push_tangent(self, build: Build, x: Vector, direction: Vector, target: Target) -> Float[Array, "block row"]:
        return push_forward(lambda x: self.solve_residuals(*build(x), target, "forward"), x, direction)

    def step_errors(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "block step"]:
        batch, grid = self.active_part(target)
        assert target.grid is not None and grid is not None
        problem = self.problem(model, auxiliary, target, batch)
        errors = self.solver.step_errors(problem, grid, between_rows=batch.driven)
        if batch.driven:
            return errors
        # Unused steps have no error estimate and remain unchanged.
        whole = stretch(target.grid, batch.ts)
        beyond = jnp.diff(grid, axis=1) < jnp.diff(whole, axis=1)
        return jnp.where(beyond, ERROR_SAFETY**self.solver.error_order, errors)

    @property
    def held_solver(self) -> Solver | None:
        return self.solver if self.solver.stepping == "held" else None

    def steps_for(self, batch: Batch) -> Shares | None:
        """Makes equal steps; only the data determine their number, so that all seeds share a compiled program."""
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


def simulation_nodes(target: Target, batch: Batch) -> Grid | None:
    """Returns the held steps, in the batch's times or, between rows, as fractions."""
    return target.grid if target.grid is None or batch.driven else stretch(target.grid, batch.ts)


def misfit(
    model: NeuralODE,
    batch: Batch,
    states: Float[Array, "block time state"],
    loss: AbstractResidualLoss = LEAST_SQUARES,
) -> Float[Array, "block time channel"]:
    """Computes residuals: observed minus measured states, weighted by the known noise, with angles wrapped.

    A robust loss shrinks large residuals. A failed state has the unweighted residual `UNSOLVED`.
    """
    solved = jnp.isfinite(states)
    # Keep values that are not finite away from the observation and its gradient.
    channels = model.observe(jnp.where(solved, states, 0), batch)
    is_whole = solved.all(axis=2, keepdims=True)
    difference = jnp.where(is_whole, channels - model.scaler.near(batch.ys, channels), UNSOLVED)
    weighted = jnp.where(batch.mask, batch.weigh_residuals(difference), 0)
    if batch.deviation is None:
        return weighted
    return jnp.where(is_whole, weighted * loss.factor(weighted / batch.deviation), weighted)


def misfit_rows(
    model: NeuralODE, batch: Batch, states: Float[Array, "block time state"], loss: AbstractLikelihood
) -> Float[Array, "block row"]:
    """Computes the residuals of a likelihood, in the unit of the batch's `deviation`; their sum of squares is twice its
    negative logarithm plus a constant. Without a noise model, returns those of `misfit`."""
    if model.noise is None:
        assert isinstance(loss, AbstractResidualLoss)
        return rows_of_batch(misfit(model, batch, states, loss))
    solved = jnp.isfinite(states)
    is_whole = solved.all(axis=2, keepdims=True)
    at = model.predictors(jnp.where(solved, states, 0), batch, counts=loss.is_count)
    rows = loss.all_rows(at, has_scale=model.noise.has_formulas)
    far = [UNSOLVED, *[0.0] * (len(rows) - 1)]
    seen = [jnp.where(batch.mask, jnp.where(is_whole, row, off), 0) for row, off in zip(rows, far, strict=True)]
    unit = jnp.asarray(1.0 if batch.deviation is None else batch.deviation)
    return jnp.concatenate([rows_of_batch(unit * row) for row in seen], axis=1)


def with_deviation(batch: Batch, data: Dataset, model: NeuralODE, loss: AbstractLikelihood) -> Batch:
    """Adds the standard deviations of the residuals to a batch, if the loss needs them; with a noise model, the unit of
    its rows.

    **Raises:** `ValueError` if the noise of a state is unknown and can't be estimated.
    """
    if not loss.robust and model.noise is None:
        return batch
    past = model.start.past
    counted = data_from_start(data, past, model.start.washout) if past else data
    if model.noise is not None:
        unit = likelihood_unit(model.scaler.mark_angles(counted), model.scaler)
        return replace(batch, deviation=np.full((len(batch.ys), 1, len(model.states)), unit))
    deviations = typical_residuals(model.scaler.mark_angles(counted), model.scaler)
    shape = (len(batch.ys), 1, len(deviations))
    return replace(batch, deviation=np.broadcast_to(deviations, shape).astype(np.float64))


def rows_of_batch(values: Float[Array, "block ..."]) -> Float[Array, "block row"]:
    return values.reshape(values.shape[0], -1)


class TrajectoryMatching(AbstractSimulation):
    """Mean squared residual of simulated trajectories, over the measured values, in scaled units.

    A failed simulation has large residuals after its failure, so the loss stays finite.

    **Arguments:**

    - `penalty`: penalties on the field and its weights.
    - `solver`: the solver for training; its tolerances can be looser than the model's own.
    - `window`, `stride`: number of rows in the windows that trajectories are cut into, and between the first rows of
      two windows (half a window if absent). Short solves are cheap and their gradients do not vanish, but they do not
      reveal how errors grow over a long record.
    - `horizon`: the initial fraction of each trajectory's time that counts; it grows to 1, chunk by chunk.
    - `residual_loss`: the likelihood: `Squares`, `Huber`, `StudentT`, `Poisson` or `NegativeBinomial`.
    - `warm_up`: number of rows at the beginning of a window that do not count, over which an error of the initial state
      decays; for starts with the same number of rows of `washout`.

    **Raises:** `ValueError` if a number is out of range, or the start rule can't initialize windows.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    solver: Solver = eqx.field(converter=as_solver, default_factory=Solver)
    window: int | None = eqx.field(static=True, default=None)
    stride: int | None = eqx.field(static=True, default=None)
    horizon: float | None = eqx.field(static=True, default=None)
    residual_loss: AbstractLikelihood = eqx.field(default_factory=Squares)
    warm_up: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_fields(self)
        if self.warm_up < 0 or (self.warm_up and self.window is None):
            raise ValueError(f"warm_up must be at least 0 rows, and needs a window, got {self.warm_up}.")
        if self.window is not None and self.window < 2:
            raise ValueError(f"window must be at least 2 rows, got {self.window}.")
        if self.stride is not None and (self.window is None or self.stride < 1):
            raise ValueError(f"stride must be at least 1 row, and needs a window, got {self.stride}.")
        if self.horizon is not None and not 0 < self.horizon <= 1:
            raise ValueError(f"horizon must be above 0 and at most 1, got {self.horizon}.")
        if self.horizon is not None and not self.solver.takes_given_steps:
            raise ValueError("horizon needs given steps; use solver.stepping=held or even.")

    def prepare(self, data: Dataset, model: NeuralODE) -> Batch:
        if self.window is not None:
            if not model.start.reads_windows:
                raise ValueError(
                    "window needs a start that can be read from any window, start=encoder, or start=first without a "
                    "known start of a hidden state (start.absent); or fit whole trajectories with window=null."
                )
            # The rows that determine an initial state precede a window.
            before = max(model.start.past - 1, 0) + self.warm_up
            data = data.windows(self.window + before, self.stride or max(self.window // 2, 1))
            if self.warm_up:
                data = replace(data, scored=data.scored & (np.arange(int(data.ts.shape[1]))[None] > before))
        return with_deviation(model.batch(data), data, model, self.residual_loss)

    def steps_between_rows(self, batch: Batch) -> bool:
        return batch.driven

    def first_grid(self, batch: Batch) -> Shares | None:
        return self.steps_for(batch)

    @property
    def grows(self) -> bool:
        return self.horizon is not None

    def why_no_likelihood(self) -> str | None:
        return None if self.window is None else "fits windows, in which rows count more than once"

    def on_whole_trajectories(self) -> "TrajectoryMatching | None":
        return None if self.window is None else replace(self, window=None, stride=None, warm_up=0)

    def active_part(self, target: Target) -> tuple[Batch, Grid | None]:
        batch: Batch = target.batch
        grid = simulation_nodes(target, batch)
        if self.horizon is None:
            return batch, grid
        share = self.horizon ** (1 - target.progress)
        end = batch.ts[:, :1] + share * (batch.ts[:, -1:] - batch.ts[:, :1])
        seen = replace(batch, mask=batch.mask & (batch.ts <= end)[..., None])
        # Steps beyond the horizon have zero length, so nothing beyond it is solved.
        if batch.driven:
            return replace(seen, ts=jnp.minimum(batch.ts, end)), grid
        return seen, None if grid is None else jnp.minimum(grid, end)

    def starts(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "trajectory state"]:
        return model.first_states(target.batch)

    def assemble(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, states: Float[Array, "trajectory time state"]
    ) -> Float[Array, "trajectory row"]:
        batch, _ = self.active_part(target)
        return jnp.concatenate(
            [
                misfit_rows(model, batch, states, self.residual_loss),
                self.penalty.along(model.field, batch, states),
            ],
            axis=1,
        )


class Segments(eqx.Module):
    """Trajectories cut into segments, each of which ends where the next begins.

    - `batch`: the segments as trajectories; their `index` is that of the trajectory.
    - `opens`: whether a segment is the first of its trajectory, shape `(segment,)`.
    - `next`, `row`: index of the next segment, and the row at which it begins; the last segment is its own next one.
    - `guess`: states at the segments' first rows, shape `(segment, state)`.
    """

    batch: Batch
    opens: Bool[AnyArray, " segment"]
    next: Int[AnyArray, " segment"]
    row: Int[AnyArray, " segment"]
    guess: Float[AnyArray, "segment state"]


class MultipleShooting(AbstractSimulation):
    """Mean squared residual of short segments, solved in parallel, with a growing penalty on the gaps between them.

    Short solves can't diverge far, their gradients do not vanish, and segments' initial states smooth the data (Bock,
    "Numerical treatment of inverse problems in chemical reaction kinetics", 1981). The result still has gaps, so a
    stage on whole trajectories should follow.

    **Arguments:**

    - `penalty`, `solver`, `residual_loss`: as in `TrajectoryMatching`.
    - `rows`: number of intervals between measured times in a segment.
    - `least`, `most`: weights of the mean squared gap, at the beginning and at the end of the stage.

    **Raises:** `ValueError` if a number is out of range.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    solver: Solver = eqx.field(converter=as_solver, default_factory=Solver)
    rows: int = eqx.field(static=True, default=10)
    least: float | Float[Array, ""] = 0.01
    most: float | Float[Array, ""] = 10.0
    residual_loss: AbstractLikelihood = eqx.field(default_factory=Squares)

    def __check_init__(self):
        check_fields(self)
        if self.rows < 1:
            raise ValueError(f"rows of a segment must be at least 1, got {self.rows}.")
        weights = self.least, self.most
        if all(isinstance(w, float | int) for w in weights) and not 0 < self.least <= self.most:
            raise ValueError(f"least must be positive and at most as large as most, got {self.least} and {self.most}.")

    def why_not(self, model: NeuralODE, facts: Facts) -> str | None:
        if facts.longest - 1 > self.rows:
            return None
        return f"no shooting stage, since no trajectory is longer than a segment of {self.rows} intervals"

    def prepare(self, data: Dataset, model: NeuralODE) -> Segments:
        past = model.batch(data).past
        data = data_from_start(data, model.start.past, model.start.washout) if model.start.past else data
        pieces = data.pieces(self.rows + 1, self.rows)
        parts = cut(data, pieces, [f"{row}[{begin}]" for row, begin, _ in pieces])
        batch = with_deviation(
            Batch.from_dataset(parts, model.scaler, jumps=model.system.jumps), parts, model, self.residual_loss
        )
        row, begin = (np.array(column, dtype=np.int32) for column in list(zip(*pieces, strict=True))[:2])
        numbers = np.arange(len(pieces), dtype=np.int32)
        follows = np.append(row[1:] == row[:-1], False)
        after = np.where(follows, np.minimum(numbers + 1, numbers[-1]), numbers).astype(np.int32)
        return Segments(
            # Preceding rows determine the initial state of a trajectory's first segment; the others are trained.
            batch=eqx.tree_at(lambda b: (b.index, b.past), batch, (row, past[row])),
            opens=np.append(True, row[1:] != row[:-1]),
            next=after,
            row=(begin[after] - begin).astype(np.int32),
            guess=guess(data, model, row, begin, batch),
        )

    def resample(self, count: int, seed: int | None) -> None:
        return None  # Segments belong together.

    @property
    def takes_minibatches(self) -> bool:
        return False

    def initial_auxiliary(self, model: NeuralODE, batch: Segments) -> PyTree:
        return batch.guess

    def steps_between_rows(self, batch: Segments) -> bool:
        return batch.batch.driven

    def first_grid(self, batch: Segments) -> Shares | None:
        return self.steps_for(batch.batch)

    @property
    def grows(self) -> bool:
        return True

    def active_part(self, target: Target) -> tuple[Batch, Grid | None]:
        batch = target.batch.batch
        return batch, simulation_nodes(target, batch)

    def starts(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "segment state"]:
        segments: Segments = target.batch
        return jnp.where(segments.opens[:, None], model.first_states(segments.batch), auxiliary)

    def assemble(
        self, model: NeuralODE, auxiliary: PyTree, target: Target, states: Float[Array, "segment time state"]
    ) -> Float[Array, "segment row"]:
        segments: Segments = target.batch
        batch, numbers = segments.batch, jnp.arange(segments.next.shape[0])
        follows = segments.next != numbers
        ends = states[numbers, segments.row]
        begins = model.system.scaler.near(auxiliary[segments.next], ends)
        gaps = jnp.where(follows[:, None] & jnp.isfinite(ends), ends - begins, 0)
        ratio = batch.mask.sum() / jnp.maximum(follows.sum() * auxiliary.shape[1], 1)
        weight = self.least * (self.most / self.least) ** target.progress
        return jnp.concatenate(
            [
                misfit_rows(model, batch, states, self.residual_loss),
                gaps * jnp.sqrt(weight * ratio).astype(gaps.dtype),
                self.penalty.along(model.field, batch, states),
            ],
            axis=1,
        )


def guess(
    data: Dataset, model: NeuralODE, row: np.ndarray, begin: np.ndarray, batch: Batch
) -> Float[np.ndarray, "segment state"]:
    """Guesses the states at the segments' first rows: smoothed measurements if possible, 0 for hidden states."""
    states = np.zeros((len(row), len(model.latent)))
    count = len(data.states) if model.latent[: len(data.states)] == data.states else 0
    known = np.where(data.mask, model.scaler.scale_states(data.exact.ys), np.nan)
    smoothed, _ = smooth(model.scaler.scale_times(data.ts), known)
    at_begin = smoothed[row, begin]
    states[:, :count] = np.where(np.isfinite(at_begin), at_begin, batch.first)[:, :count]
    return states
