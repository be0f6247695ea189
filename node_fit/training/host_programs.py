"""The programs of a stage of known equations in NumPy: compiling them takes longer than all steps of a small fit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..likelihood.losses import Squares
from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize
from ..model.host_rollout import MAX_ADAPTIVE_STEPS, Unsolved, is_soon_solved, simulate_members
from ..model.neural_ode import NeuralODE
from ..model.parameters import count_parameters
from ..objectives.matching import TrajectoryMatching
from ..optimizers.levenberg_marquardt import STALLED, STALLED_CG, LevenbergMarquardt, size_of
from .decisions import like
from .programs import PATIENCE, PROGRAMS, Advanced, LinearisedStage, Setup, StagePrograms, SumOfSquares, Use
from .step import Iterate, TrainState
from .task import Stage

# Relative step of finite differences.
PARAMETER_DIFFERENCE = 1e-6
# Maximum number of steps at the initial parameters; a fit with more is worth compiling.
MAX_FIRST_STEPS = 200


def make_programs(index: int, setup: Setup, *, trains: bool = True) -> StagePrograms:
    """Makes the programs of a stage: those in NumPy if they can solve it at the initial parameters, else compiled ones.

    **Arguments:** `index`, `setup`: as in `StagePrograms`. `trains`: whether they take training steps.
    """
    stage = setup.members[0].stages[index]
    if is_small(stage, setup) and (type(stage.optimizer) is LevenbergMarquardt or not trains):
        programs = HostPrograms(index, setup)
        first = LinearisedStage(programs, programs.init([setup.parts[0].params])[0])
        if not programs.linearise(first, first.x, MAX_FIRST_STEPS).failed:
            return programs
    return StagePrograms(index, setup)


def is_small(stage: Stage, setup: Setup) -> bool:
    """Whether a stage is a least-squares fit of known equations that NumPy solves sooner than it is compiled."""
    objective, model, data = stage.objective, setup.members[0].model, setup.train
    if type(objective) is not TrajectoryMatching:
        return False
    whole = objective.window is None and objective.horizon is None and stage.batch_size is None
    penalty = objective.penalty
    penalised = (penalty.smoothness, penalty.kinetic_energy, penalty.physics) != (None, None, None)
    plain = type(objective.residual_loss) is Squares and model.noise is None and data.censored is None
    alone = len(setup.members) == 1 and setup.members[0].resample is None and jax.process_count() == 1
    if not (whole and plain and alone and not penalised and setup.validation is None):
        return False
    points = 1 + count_parameters(setup.parts[0].params)
    return is_soon_solved(model, points * len(data.ts), int(data.ts.shape[1]))


class HostPrograms(StagePrograms):
    """The programs of a stage with one member, without held steps: those of the solver are adaptive.

    The sum of squares is differentiated by finite differences of one solution for all parameters.
    """

    is_compiled = False

    def __init__(self, index: int, setup: Setup):
        super().__init__(index, setup)
        self.grids = [None]

    def compile(self, states: Sequence[TrainState], use: Use = PROGRAMS.get) -> None:
        pass

    def advance(
        self, states: Sequence[TrainState], goes_on: Callable[[int], bool] = lambda taken: True
    ) -> Advanced | None:
        (state,) = states
        stage, seen = LinearisedStage(self, state), time.perf_counter()
        rule = self.make_rule(state)

        def evaluate(x: np.ndarray) -> LinearisedPoint:
            nonlocal seen
            if time.perf_counter() - seen > PATIENCE:
                seen = time.perf_counter()
                if not goes_on(rule.evaluations):
                    raise Stopped
            return stage.at(x).with_prior(x)

        try:
            first = evaluate(stage.x)
            rule.next_damping = rule.next_damping or self.first_damping(first)
            best = minimize(first, rule, evaluate)
        except Stopped:
            return None
        params = self.setup.place.host(stage.params(best.x))
        count, dtype = max(int(self.rows[0].mask.sum()), 1), state.chosen.loss.dtype
        slope = 2 * float(np.linalg.norm(best.jacobian.T @ best.residuals)) / count
        loss, slope = (np.asarray(number, dtype) for number in (best.value / count, slope))
        after = replace(
            state,
            step=like(state.step, state.step + rule.evaluations),
            params=params,
            opt_state=state.opt_state._replace(
                damping=like(state.opt_state.damping, rule.next_damping),
                growth=like(state.opt_state.growth, rule.increase),
                stalled=like(state.opt_state.stalled, rule.still),
            ),
            chosen=Iterate(params, loss, slope, np.zeros((), np.int32)),
            evaluations=like(state.evaluations, state.evaluations + 1 + rule.evaluations),
            stuck=np.asarray(rule.still >= STALLED),
        )
        return Advanced([after], [rule.next_damping], [None])

    def make_rule(self, state: TrainState) -> DampedSteps[LinearisedPoint, np.ndarray]:
        """Returns the damped steps of a chunk, which go on where the last chunk ended."""
        rule = DampedSteps[LinearisedPoint, np.ndarray](
            take_damped_step,
            Damping(float(state.opt_state.damping), increase=2.0),
            max_evaluations=min(self.length, self.stage.steps - int(state.step)),
            is_still=is_small_step,
            patience=STALLED,
            predict=LinearisedPoint.predict_decrease,
        )
        rule.increase, rule.still = float(state.opt_state.growth), int(state.opt_state.stalled)
        return rule

    def first_damping(self, point: LinearisedPoint) -> float:
        """Returns the damping of the first step, relative to the largest squared column norm of the Jacobian."""
        optimizer = self.stage.optimizer
        assert isinstance(optimizer, LevenbergMarquardt)
        return float(optimizer.damping * ((point.jacobian * size_of(point.x)) ** 2).sum(axis=0).max())

    def linearise(
        self, stage: LinearisedStage, x: Float[np.ndarray, " parameter"], max_steps: int = MAX_ADAPTIVE_STEPS
    ) -> SumOfSquares:
        batch, part = self.rows[0], self.setup.parts[0]
        nudges = PARAMETER_DIFFERENCE * np.maximum(np.abs(x), 1.0)
        points = np.vstack([x, x + np.diag(nudges)])
        params = [stage.params(np.asarray(point, np.float64), np.float64).model for point in points]
        models: list[NeuralODE] = [eqx.combine(numbers, part.frozen, part.static) for numbers in params]
        prior = np.zeros(x.size)
        try:
            ys = simulate_members(models, batch, max_steps)
        except Unsolved:
            unknown = np.full((len(batch.ys), batch.ys[0].size), np.inf)
            return SumOfSquares(unknown, np.zeros((unknown.size, x.size)), prior, len(batch.ys))
        off = batch.weigh_residuals(ys[..., : batch.ys.shape[2]] - batch.ys)
        residuals = np.where(batch.mask, off, 0.0).reshape(len(points), len(batch.ys), -1)
        slopes = (residuals[1:] - residuals[:1]).reshape(x.size, -1) / nudges[:, None]
        return SumOfSquares(residuals[0], slopes.T, prior, 0)


class Stopped(Exception):
    """Raised to end a chunk that a callback stops."""


def is_small_step(here: LinearisedPoint, there: LinearisedPoint) -> bool:
    """Whether a step lowers the sum of squares by little, or promises little; errors of the solver can refuse it."""
    small = STALLED_CG * here.value
    return 0 <= here.value - there.value <= small or here.predict_decrease(there) <= small


def take_damped_step(here: LinearisedPoint, damping: float) -> Float[np.ndarray, " parameter"]:
    """Returns the point after a damped step. Damping does not depend on the column of a parameter: one that the
    residuals hardly depend on would otherwise run away."""
    size = size_of(here.x)
    return LinearisedPoint(here.x / size, here.residuals, here.jacobian * size).step(damping, scaled=False) * size
