"""Predictions of known equations in NumPy: a command ends before a compiled program of few rows would pay.

Steps are those of the model's explicit method, with its tolerances and from row to row, but all members and
trajectories share them. What they can't solve is left to the compiled programs, which report failures by trajectory.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from ..data.batch import Batch, first_rows
from ..data.domains import Bounds
from ..data.scaling import UNBOUNDED, Scaler
from ..expressions.evaluation import Tape
from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize_together
from ..runtime import compilation
from ..runtime.placement import AnyArray, scope
from ..solver.methods import (
    EXPLICIT,
    Tableau,
    Tolerance,
    combine,
    error_order,
    runge_kutta_step,
    tableau,
    with_defaults,
)
from ..solver.problem import Intervals, evaluate_inputs
from ..solver.solver import Solver
from ..solver.switches import has_stops
from .fields.equations import normalize
from .fields.known import Known
from .initial_state.rule import AbstractStart, First
from .initial_state.trained import Fitted
from .observation import MeasuredStates
from .rollout import Model, Wanted, intervals_to
from .system import convert_to_scaled_rates, convert_to_users_units

# Maximum number of intervals, of states in all of them, and of searched initial states; more are worth compiling.
MAX_INTERVALS, MAX_SOLVED, MAX_SEARCHED_STARTS = 1_000, 500_000, 1_000
# Maximum number of steps, including rejected ones; stiff equations need more.
MAX_ADAPTIVE_STEPS = 4_000
# Smallest step, relative to the longest interval; a solution that goes to infinity needs ever smaller ones.
MIN_STEP = 1e-9
# Safety factor of a step's length, and its smallest and largest change.
STEP_MARGIN, MIN_CHANGE, MAX_CHANGE = 0.9, 0.2, 5.0
# Search for initial states: relative step of finite differences, maximum number of evaluations, and predicted relative
# decreases below which it ends: after any step, and after one that is refused.
START_DIFFERENCE, MAX_START_EVALUATIONS, MIN_DECREASE, HIDDEN_DECREASE = 1e-6, 40, 1e-12, 1e-8

States = Float[np.ndarray, "lane state"]
Rates = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Noise of the rows and of the first values that each member adds, given the rows that initial states need.
Vary = Callable[[Batch], tuple[np.ndarray, np.ndarray] | None]


class Unsolved(Exception):
    """Raised if a solution needs too many steps, or is not finite."""


@dataclass(frozen=True)
class Lanes:
    """The member and the trajectory of each solution of a batch that are solved together."""

    member: Int[np.ndarray, " lane"]
    trajectory: Int[np.ndarray, " lane"]

    @staticmethod
    def every(members: int, trajectories: int) -> "Lanes":
        member, trajectory = np.divmod(np.arange(members * trajectories), trajectories)
        return Lanes(member, trajectory)

    def repeat(self, lanes: Sequence[int], times: int) -> "Lanes":
        """Returns some of the lanes, each several times."""
        chosen = np.repeat(np.array(lanes, int), times)
        return Lanes(self.member[chosen], self.trajectory[chosen])


def predict_without_compiling(
    members: Sequence[Model], batch: Batch, wanted: Wanted, vary: Vary = lambda needed: None
) -> Float[np.ndarray, "member trajectory saved output"] | None:
    """Predicts outputs at the requested times since the batch's origin, in scaled units.

    **Arguments:** `members`: models of one structure. `vary`: see `Ensemble.vary_rows`.

    **Returns:** the outputs; None if the process does not end soon, a model has parts without NumPy code, or the
    problem is too large, stiff, or diverges.
    """
    if not is_soon_predicted(members, batch, wanted):
        return None
    equations, lanes = MemberEquations.of(members), Lanes.every(len(members), len(wanted))
    try:
        with np.errstate(all="ignore"), scope("x64"):  # Cubic inputs are interpolated by JAX.
            intervals, index = intervals_to(batch, wanted, members[0].solver.interpolation)
            starts = equations.estimate_starts(lanes, batch, vary)
            ys = equations.solve(lanes, starts, batch.origin, intervals)
    except Unsolved:
        return None
    ys = ys.reshape(len(members), len(wanted), *ys.shape[1:])
    columns = np.maximum(index + 1, 0)[None, ..., None]
    chosen = np.take_along_axis(ys, np.broadcast_to(columns, (len(ys), *columns.shape[1:3], 1)), axis=2)
    return np.where((index < -1)[None, ..., None], np.nan, chosen)


def simulate_members(
    members: Sequence[Model], batch: Batch, max_steps: int = MAX_ADAPTIVE_STEPS
) -> Float[np.ndarray, "member trajectory time state"]:
    """Simulates training trajectories from the starts of the members, in scaled units.

    **Raises:** `Unsolved`.
    """
    equations = MemberEquations.of(members)
    starts = np.concatenate([first_states(as_host(member.start), batch) for member in members])
    with np.errstate(all="ignore"), scope("x64"):
        intervals, _ = intervals_to(batch, np.asarray(batch.ts, np.float64), members[0].solver.interpolation)
        ys = equations.solve(Lanes.every(len(members), len(batch.ts)), starts, batch.origin, intervals, max_steps)
    return ys.reshape(len(members), len(batch.ts), *ys.shape[1:])[:, :, : batch.ts.shape[1]]


def is_soon_predicted(members: Sequence[Model], batch: Batch, wanted: Wanted) -> bool:
    """Whether `predict_without_compiling` can predict at these times, if no solution fails."""
    intervals = batch.ts.shape[1] + wanted.shape[1]
    if not is_soon_solved(members[0], len(members) * len(wanted), intervals):
        return False
    searched = len(members) * len(wanted) * len(equations_in(members[0]).system.states)
    return not isinstance(members[0].start, Fitted) or searched <= MAX_SEARCHED_STARTS


def is_soon_solved(model: Model, solutions: int, intervals: int) -> bool:
    """Whether the process ends soon, and NumPy solves a problem faster than a program is compiled."""
    if not (compilation.ENDS_SOON.is_set() and is_solvable(model)):
        return False
    states = len(equations_in(model).system.states)
    return intervals <= MAX_INTERVALS and solutions * intervals * states <= MAX_SOLVED


def is_solvable(model: Model) -> bool:
    """Whether this module has NumPy code for all parts of a model."""
    solver, field = model.solver, model.field
    adapts = isinstance(solver.method, str) and solver.method in EXPLICIT and solver.stepping != "even"
    if not (adapts and isinstance(field, Known) and type(field) is Known and type(model.start) in (First, Fitted)):
        return False
    plain = not (has_stops(field) or field.constants.local or any(field.system.scaler.turns))
    return plain and isinstance(model.observation, MeasuredStates) and not model.counts


def equations_in(model: Model) -> Known:
    """Returns the field of a model for which `is_solvable` holds."""
    assert isinstance(model.field, Known)
    return model.field


@dataclass(frozen=True)
class HostScales:
    """The numbers of a `Scaler` in NumPy; an `eqx.Module` takes longer to read them than to compute with them."""

    state_shift: Float[np.ndarray, " state"]
    state_scale: Float[np.ndarray, " state"]
    input_shift: Float[np.ndarray, " input"]
    input_scale: Float[np.ndarray, " input"]
    time_shift: Float[np.ndarray, ""]
    time_scale: Float[np.ndarray, ""]
    bounds: tuple[Bounds, ...]
    input_bounds: tuple[Bounds, ...]

    @staticmethod
    def of(scaler: Scaler) -> "HostScales":
        numbers = (scaler.state_shift, scaler.state_scale, scaler.input_shift, scaler.input_scale)
        times = (scaler.time_shift, scaler.time_scale)
        arrays = [np.asarray(number, np.float64) for number in (*numbers, *times)]
        # Columns without bounds, which most have, need no look at each of them.
        bounds, input_bounds = (
            pairs if set(pairs) - {UNBOUNDED} else () for pairs in (scaler.bounds, scaler.input_bounds)
        )
        return HostScales(*arrays, bounds=bounds, input_bounds=input_bounds)


@dataclass(frozen=True)
class MemberEquations:
    """Known equations of several members as NumPy operations.

    - `members`: the models. `scales`: their units.
    - `rates`: the rate of each state, from states, inputs, time and constants, in this order.
    - `constants`: value of each constant, by member.
    """

    members: Sequence[Model]
    scales: HostScales
    rates: Tape
    constants: Sequence[Float[np.ndarray, " member"]]

    @staticmethod
    def of(members: Sequence[Model]) -> "MemberEquations":
        first = equations_in(members[0])
        system, trees = first.system, first.equations.trees
        names = [normalize(name) for name in (*system.states, *system.inputs, system.time, *first.constants.names)]
        values = [equations_in(member).constants.as_dict() for member in members]
        return MemberEquations(
            members,
            HostScales.of(system.scaler),
            Tape([trees[name] for name in system.states], names),
            [np.array([named[name] for named in values]) for name in first.constants.names],
        )

    def solve(
        self,
        lanes: Lanes,
        y: States,
        origin: Float[AnyArray, " trajectory"],
        intervals: Intervals,
        max_steps: int = MAX_ADAPTIVE_STEPS,
    ) -> Float[np.ndarray, "lane node state"]:
        """Solves from the beginning of the first interval on; returns the states there and at the ends of intervals.

        **Raises:** `Unsolved`.
        """
        begins, ends = (np.asarray(part, np.float64)[lanes.trajectory] for part in (intervals.begin, intervals.end))
        lengths = ends - begins
        steps = AdaptiveSteps.of(self.members[0].solver, float(lengths.max()), max_steps)
        ys = [y]
        for number in range(lengths.shape[1]):
            if intervals.jumps is not None:
                jumps = intervals.jumps.at((lanes.trajectory, number))
                y = np.where(lengths[:, number, None] > 0, jumps.after(y), y)
            rates = self.rates_in(lanes, origin, intervals, number)
            y = steps.pass_through(begins[:, number], lengths[:, number], rates, y)
            ys.append(y)
        return np.stack(ys, axis=1)

    def rates_in(
        self, lanes: Lanes, origin: Float[AnyArray, " trajectory"], intervals: Intervals, number: int
    ) -> Rates:
        """Returns the derivatives within an interval in scaled units, as a function of the time since the origin."""
        scales, tape, begin = self.scales, self.rates, np.asarray(origin)[lanes.trajectory]
        row, length = (np.asarray(part)[lanes.trajectory, number] for part in (intervals.row, intervals.length))
        coefficients = [np.asarray(part)[lanes.trajectory, number] for part in intervals.coefficients]
        constants = [values[lanes.member] for values in self.constants]

        def rates(t: np.ndarray, y: States) -> States:
            inputs = evaluate_inputs(coefficients, row, length, t)
            time, states, inputs = convert_to_users_units(scales, begin + t, y, inputs)
            computed = np.empty_like(states)
            for state, rate in enumerate(tape([*states.T, *inputs.T, time, *constants])):
                computed[:, state] = rate
            return convert_to_scaled_rates(scales, states, computed)

        return rates

    def estimate_starts(self, lanes: Lanes, batch: Batch, vary: Vary) -> States:
        """Estimates the initial states of all lanes with the rule of their members, in scaled units.

        **Raises:** `Unsolved`.
        """
        starts = [as_host(member.start) for member in self.members]
        needed = self.members[0].start.needed_rows(batch)
        seen = [needed] * len(starts)
        if (added := vary(needed)) is not None:
            seen = [replace(needed, ys=needed.ys + ys, first=needed.first + y) for ys, y in zip(*added, strict=True)]
        if isinstance(starts[0], Fitted):
            return StartSearch.of(self, starts, seen).run(lanes)
        return np.concatenate([first_states(start, rows) for start, rows in zip(starts, seen, strict=True)])


def as_host(start: AbstractStart) -> AbstractStart:
    """Returns a rule for starts with its numbers in NumPy."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), start)


def first_states(start: AbstractStart, rows: Batch) -> Float[np.ndarray, "trajectory state"]:
    """Returns the initial states of training trajectories, or those of any with the rule `First`, in scaled units."""
    if not isinstance(start, First):
        return np.asarray(start(rows), np.float64)
    known = np.array(start.guess(rows), np.float64)
    if start.hidden is not None:
        known[:, np.array(start.guess.unknown, int)] = start.hidden
    return known


@dataclass
class AdaptiveSteps:
    """The adaptive steps of an explicit method, which all lanes share.

    - `table`, `order`: of the method. `rtol`, `atol`: its tolerances.
    - `length`: length of the next step, where lanes take the longest, and `shortest` that it may have. `left`: number
      of steps that may follow.
    """

    table: Tableau
    order: int
    rtol: Tolerance
    atol: Tolerance
    length: float
    shortest: float
    left: int

    @staticmethod
    def of(solver: Solver, length: float, max_steps: int) -> "AdaptiveSteps":
        assert isinstance(solver.method, str)
        rtol, atol = (np.asarray(tolerance, np.float64) for tolerance in with_defaults(solver.rtol, solver.atol))
        return AdaptiveSteps(
            tableau(solver.method), error_order(solver.method), rtol, atol, length, MIN_STEP * length, max_steps
        )

    def pass_through(
        self, begin: Float[np.ndarray, " lane"], lengths: Float[np.ndarray, " lane"], rates: Rates, y: States
    ) -> States:
        """Returns the states at the end of an interval, given its beginning and its length.

        **Raises:** `Unsolved`.
        """
        passed, longest, slope = 0.0, float(lengths.max()), None
        while longest > 0 and passed < 1:
            share = min(self.length / longest, 1 - passed)
            h = share * lengths
            new, stages = runge_kutta_step(self.table, rates, begin + passed * lengths, h, y, slope)
            error = h[:, None] * combine(self.table.error, stages)
            size = float(np.abs(error / (self.atol + self.rtol * np.maximum(np.abs(y), np.abs(new)))).max())
            self.adapt(share * longest, size)
            slope = stages[0]
            if size <= 1:
                slope = stages[-1] if self.table.fsal else None
                y, passed = new, 1.0 if share == 1 - passed else passed + share
        return y

    def adapt(self, length: float, size: float) -> None:
        """Chooses the length of the next step from that of the last one, and its error relative to the tolerance.

        A step that the end of its interval cut short can only lengthen the next one.
        """
        factor = STEP_MARGIN * max(size, 1e-12) ** (-1 / self.order) if np.isfinite(size) else MIN_CHANGE
        proposed = length * min(max(factor, MIN_CHANGE), MAX_CHANGE)
        was_cut = size <= 1 and length < self.length
        self.length = max(self.length, proposed) if was_cut else proposed
        self.left -= 1
        if self.left < 0 or self.length < self.shortest:
            raise Unsolved


@dataclass(frozen=True)
class StartSearch:
    """Least-squares searches for initial states, one for each lane; see `Fitted.estimate`.

    - `begin`, `typical`: initial points, `(member, trajectory, state)`. `free`: whether each state is searched.
    - `rows`: the rows that the starts are fitted to. `values`, `mask`: their measurements by member, and where they are
      used.
    """

    equations: MemberEquations
    begin: Float[np.ndarray, "member trajectory state"]
    typical: Float[np.ndarray, "member trajectory state"]
    free: Bool[np.ndarray, "trajectory state"]
    rows: Batch
    values: Float[np.ndarray, "member trajectory time channel"]
    mask: Bool[np.ndarray, "trajectory time channel"]

    @staticmethod
    def of(equations: MemberEquations, starts: Sequence[AbstractStart], seen: Sequence[Batch]) -> "StartSearch":
        fitted = [start for start in starts if isinstance(start, Fitted)]
        mask = np.asarray(fitted[0].given_mask(seen[0]))
        used = np.flatnonzero(mask.any(axis=(0, 2)))
        count = int(used[-1]) + 1 if used.size else 1
        begin = np.stack([start.initial(rows) for start, rows in zip(fitted, seen, strict=True)])
        free = np.asarray(fitted[0].free(seen[0]))
        means = [np.mean(start.values, axis=0) for start in fitted]
        typical = np.where(free, np.stack(means)[:, None], begin)
        values = np.stack([rows.middles[:, :count] for rows in seen])
        return StartSearch(equations, begin, typical, free, first_rows(seen[0], count), values, mask[:, :count])

    def run(self, lanes: Lanes) -> States:
        """Returns the best point of each search.

        **Raises:** `Unsolved`.
        """
        begin, typical = (part[lanes.member, lanes.trajectory] for part in (self.begin, self.typical))
        numbers = range(len(begin))
        at_begin, at_typical = (self.linearise(lanes, dict(enumerate(points))) for points in (begin, typical))
        points = [
            other if other.value < first.value else first for first, other in zip(at_begin, at_typical, strict=True)
        ]
        rules = [
            DampedSteps[LinearisedPoint, np.ndarray](
                functools.partial(take_step, free=self.free[lanes.trajectory[number]]),
                Damping(1e-6, maximum=1e10),
                max_evaluations=MAX_START_EVALUATIONS,
                is_still=hardly_moves,
            )
            for number in numbers
        ]
        best = minimize_together(points, rules, lambda trials: self.linearise(lanes, trials))
        return np.stack([point.x for point in best])

    def linearise(self, lanes: Lanes, points: Mapping[int, np.ndarray]) -> list[LinearisedPoint]:
        """Linearises the residuals of some lanes at their points, from one solution of all.

        **Raises:** `Unsolved`.
        """
        x = np.stack([*points.values()])
        count, states = x.shape
        nudges = START_DIFFERENCE * np.maximum(np.abs(x), 1.0)
        moved = np.concatenate([np.zeros((count, 1, states)), nudges[:, :, None] * np.eye(states)], axis=1)
        nudged = lanes.repeat([*points], 1 + states)
        kind = self.equations.members[0].solver.interpolation
        intervals, _ = intervals_to(self.rows, np.asarray(self.rows.ts, np.float64), kind)
        ys = self.equations.solve(nudged, (x[:, None] + moved).reshape(-1, states), self.rows.origin, intervals)
        measured = self.values[nudged.member, nudged.trajectory]
        off = ys[:, : measured.shape[1], : measured.shape[2]] - measured
        weight = 1.0 if self.rows.weight is None else self.rows.weight[nudged.trajectory]
        residuals = np.where(self.mask[nudged.trajectory], off * weight, 0.0).reshape(count, 1 + states, -1)
        slopes = (residuals[:, 1:] - residuals[:, :1]) / nudges[..., None]
        return [LinearisedPoint(at, left, slope.T) for at, left, slope in zip(x, residuals[:, 0], slopes, strict=True)]


def hardly_moves(here: LinearisedPoint, there: LinearisedPoint) -> bool:
    """Whether a step promised hardly any decrease, or only one that the errors of the solver hide."""
    share = MIN_DECREASE if there.value < here.value else HIDDEN_DECREASE
    return here.predict_decrease(there) <= share * here.value


def take_step(here: LinearisedPoint, damping: float, free: Bool[np.ndarray, " state"]) -> np.ndarray:
    """Returns the point after a damped step of the states that are free."""
    return here.step(damping, free)
