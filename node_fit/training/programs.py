"""The compiled programs of a stage and their data, chunk lengths, and the linearised stage after training."""

import functools
import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..minimize.host import LinearisedPoint
from ..model.parameters import Partition
from ..objectives.objective import Target
from ..runtime.compilation import PROGRAMS, Compilations, Executable, count_calls, count_numbers, options_for
from ..runtime.placement import AnyArray, Placement, numbers_as_arrays, to_host
from ..solver.held_steps import Shares, finest, settle, settle_between_rows
from .decisions import LIMIT, StepErrors, even_nodes, pad_to_room
from .step import (
    Params,
    StageData,
    StageLoss,
    Static,
    TrainState,
    check_carry,
    chunk,
    errors_of_steps,
    initial_state,
    sample_loss,
    validation_loss,
)
from .task import Member, Minibatches, Stage, count_of, mapped_axes, share, stack, take_rows, thin_rows, unstack


def for_any_steps(stage: Stage) -> Stage:
    """Returns the stage to compile for; it keeps its number of steps only if a schedule depends on it."""
    return stage if stage.optimizer.is_scheduled else replace(stage, steps=1)


# Seconds between two progress reports.
PATIENCE = 2.0


class Pace:
    """Chooses numbers of steps that take about two seconds, from the time of the last ones; the first step runs alone.

    The results do not depend on it. Several processes do not measure, since all must take the same steps.
    """

    def __init__(self):
        self.seconds: float | None = None

    def steps(self, left: int) -> int:
        """Returns the number of remaining steps to take at once."""
        if jax.process_count() > 1:
            return left
        if self.seconds is None:
            return 1
        return min(left, max(int(PATIENCE / self.seconds), 1))

    @contextmanager
    def record_time(self, steps: int) -> Generator[None]:
        """Records the time of these steps."""
        began = time.perf_counter()
        yield
        self.seconds = max(time.perf_counter() - began, 1e-9) / steps


# Number of gradient steps that takes much longer than compiling.
STEPS_OF_A_FIT = 100
# Maximum number of refinements of held steps at the same parameters.
REFINEMENTS = 3
# Number of sampled rows used to refine shared held steps.
SAMPLED = 256


@dataclass(frozen=True)
class Setup:
    """The data and settings that the stages of a run share.

    - `members`, `parts`: the members, and their models in parts.
    - `train`, `validation`: the training data, and the placed data that judge iterates, if any.
    - `place`: placement of arrays.
    - `chunk_steps`: see `fitting.options.Training`.
    """

    members: Sequence[Member]
    parts: Sequence[Partition]
    train: Dataset
    validation: Batch | None
    place: Placement
    chunk_steps: int


class Advanced(NamedTuple):
    """The result of a chunk: each member's state, learning rate and, with validation data, validation loss."""

    states: list[TrainState]
    rates: list[float]
    validation_losses: Sequence[float | None]


# `PROGRAMS.get` or `PROGRAMS.begin`: maps the parts of a program to its executable, or to a future of it.
Use = Callable[..., PyTree]


class Refined(NamedTuple):
    """Each member's held steps and the error above which its loss counts as infinite, and whether steps changed."""

    grids: list[Shares | None]
    limits: Sequence[AnyArray]
    changed: bool


class StagePrograms:
    """The programs of a stage: `init`, `advance` and `refine`, each for all members at once.

    - `stage`: that of the first member; the others differ only in numbers.
    - `blocks`, `length`: number of solves in an evaluation, and of steps in a chunk.
    - `compilations`, `compile_seconds`: number and time of its chunks' compilations.
    - `numbers`: how many numbers its programs read in training.
    - `is_compiled`: whether they are compiled before the first chunk.
    """

    is_compiled: ClassVar[bool] = True

    def __init__(self, index: int, setup: Setup):
        self.index = index
        self.setup = setup
        self.stage = setup.members[0].stages[index]
        # A chunk has fewer steps if each is expensive.
        self.length = max(setup.chunk_steps // self.stage.optimizer.pace, 1)
        self.compilations = Compilations()
        self.compile_seconds = 0.0
        self.pace = Pace()
        self.static = (setup.parts[0].static, eqx.partition(for_any_steps(self.stage), eqx.is_array_like)[1])
        self._prepare()

    def _prepare(self) -> None:
        """Makes the data that the programs read."""
        members, place, stage = self.setup.members, self.setup.place, self.stage
        rows = stage.objective.prepare(self.setup.train, members[0].model)
        # All members have the same number of held steps, from the whole data.
        grid, count = stage.objective.first_grid(rows), count_of(rows)
        pools = [stage.objective.resample(count, member.resample) for member in members]
        if stage.batch_size is None:
            self.minibatches, self.blocks = None, count
            seen, self.grids = zip(*(take_rows((rows, grid), pool) for pool in pools), strict=True)
        else:
            self.minibatches = [
                Minibatches(rows, stage.batch_size, (member.seed, self.index), pool)
                for member, pool in zip(members, pools, strict=True)
            ]
            self.blocks = min(stage.batch_size, count)
            seen = [thin_rows(rows, SAMPLED)] * len(members)
            self.grids = [None if grid is None else finest(grid)] * len(members)
        self.rows = seen if self.minibatches is None else [rows] * len(members)
        # Counting validation data would compile fits of the same rows twice.
        self.numbers = count_numbers(self.rows)
        numbers = [
            eqx.partition(numbers_as_arrays(for_any_steps(member.stages[self.index])), eqx.is_array_like)[0]
            for member in members
        ]
        drawn_from = None if self.minibatches is None else np.asarray(count, np.float64)
        steps = None if stage.optimizer.is_scheduled else np.asarray(stage.steps, np.int32)
        data = [
            StageData(part.frozen, number, batch, drawn_from, steps)
            for part, number, batch in zip(self.setup.parts, numbers, seen, strict=True)
        ]
        own, shared = share(data)
        # Data are spread over devices unless members are.
        batch = place.replicate(shared.batch) if len(members) > 1 else place.shard(shared.batch)
        self.own = place.shard(own)
        self.shared = replace(place.replicate(replace(shared, batch=None)), batch=batch)

    def init(self, params: Sequence[PyTree]) -> tuple[TrainState, ...]:
        """Makes the states before the first step, on the host, with held steps that are not refined yet."""
        states: list[TrainState] = []
        for member, given, part, rows, grid in zip(
            self.setup.members, params, self.setup.parts, self.rows, self.grids, strict=True
        ):
            stage, model = member.stages[self.index], eqx.combine(given, part.frozen, part.static)
            auxiliary = self.setup.place.replicate(stage.objective.initial_auxiliary(model, rows))
            states.append(self.setup.place.host(initial_state(stage, Params(given, auxiliary), grid)))
        return tuple(states)

    def compile(self, states: Sequence[TrainState], use: Use = PROGRAMS.get) -> None:
        """Compiles the programs of `advance` ahead of its first call; `PROGRAMS.begin` compiles in the background."""
        began = time.perf_counter()
        placed = self._place(states)
        self._chunk_program(placed, self._draw(states), use)
        self._validation_program(placed.params.model, use)
        self._sample_program(placed, use)
        self.compile_seconds += time.perf_counter() - began

    def advance(
        self, states: Sequence[TrainState], goes_on: Callable[[int], bool] = lambda taken: True
    ) -> Advanced | None:
        """Runs a chunk of training steps, and validates the iterates that it chose.

        **Arguments:**

        - `states`: the state of each member.
        - `goes_on`: called every few seconds with the number of steps so far; returns whether to continue. If not, the
          chunk is discarded and None is returned.
        """
        placed, drawn, members = self._place(states), self._draw(states), len(states)
        began = time.perf_counter()
        run = self._chunk_program(placed, drawn)
        validate, sampled = self._validation_program(placed.params.model), self._sample_program(placed)
        self.compile_seconds += time.perf_counter() - began
        new, rate, taken = placed, None, 0
        with count_calls(self.compilations):
            while taken < self.length:
                count = self.pace.steps(self.length - taken)
                with self.pace.record_time(count):
                    new, rate = run(new, self.own, self.shared, drawn, self._span(taken, taken + count))
                    jax.block_until_ready(rate)
                taken += count
                if taken < self.length and not goes_on(taken):
                    return None
        new = self._to_the_last(new, run, drawn)
        if sampled is not None:  # losses of two minibatches do not compare
            new = replace(new, chosen=replace(new.chosen, loss=sampled(*self._sample(new))))
        loss = None if validate is None else validate(new.chosen.params.model, *self._validation_inputs)
        new, rate, loss = to_host((new, rate, loss))
        rates = np.reshape(rate, members).tolist()
        losses = [None] * members if loss is None else np.reshape(loss, members).tolist()
        members_after = [
            replace(state, grid=old.grid) for state, old in zip(unstack(new, members), states, strict=True)
        ]
        return Advanced(members_after, rates, losses)

    def _to_the_last(self, new: TrainState, run: Executable, drawn: PyTree) -> TrainState:
        """Judges the result of a stage's last step, with the evaluation of one more step."""
        step, finished = to_host((new.step, new.finished))
        ended = (step >= self.stage.steps) & ~finished
        if not ended.any():
            return new
        members, before = len(self.setup.members), to_host(new)
        again = replace(before, step=np.asarray(step - ended, step.dtype), finished=~ended)
        # A span that does not begin a chunk keeps the chunk's chosen iterate.
        after = to_host(run(self._place(unstack(again, members)), self.own, self.shared, drawn, self._span(1, 2))[0])
        judged = replace(before, chosen=after.chosen, evaluations=after.evaluations, failed=after.failed)
        return self._place(unstack(judged, members))

    def refine(self, states: Sequence[TrainState], *, fresh: bool = False) -> Refined:
        """Refines held steps until they meet the tolerance.

        **Arguments:**

        - `states`: the state of each member, on the host.
        - `fresh`: whether to use the current parameters instead of the chosen ones.
        """
        solver, objective = self.stage.objective.held_solver, self.stage.objective
        grids, limits = [state.grid for state in states], [state.error_limit for state in states]
        if solver is None or grids[0] is None:
            return Refined(grids, limits, False)
        before, members, order = stack(grids), len(states), solver.error_order
        errors = StepErrors.at_states(self, states, fresh=fresh)
        if objective.steps_between_rows(self.rows[0]):
            old = before.shape[-1] - 1
            steps = settle_between_rows(lambda m: errors.of(even_nodes(before, m)), old, order, solver.max_steps)
            after, changed = even_nodes(before, steps), steps != old
            judged = functools.partial(errors.of, after)
        else:
            rows = before.reshape(-1, before.shape[-1])
            settled = settle(lambda nodes: errors.of_padded(nodes, before), rows, order, solver.max_steps)
            after, changed = settled.reshape(*before.shape[:-1], -1), settled is not rows
            judged = functools.partial(errors.of_padded, settled, before)
        if not (changed or fresh):
            return Refined(grids, limits, False)
        judged()  # On the new held steps.
        limits = [np.asarray(limit, before.dtype) for limit in errors.limits()]
        return Refined(unstack(after.astype(before.dtype), members), limits, changed)

    def with_refined_steps(self, states: Sequence[TrainState]) -> tuple[TrainState, ...]:
        """Refines states before the first step until held steps meet the tolerance at their parameters."""
        refinements: list[tuple[TrainState, ...]] = []
        for _ in range(REFINEMENTS):
            refinement = self.refine(states, fresh=True)
            states = tuple(
                replace(state, grid=grid, error_limit=limit)
                for state, grid, limit in zip(states, refinement.grids, refinement.limits, strict=True)
            )
            if max(map(float, map(np.max, refinement.limits))) <= LIMIT:
                return states
            refinements.append(states)
            # Errors of unstable steps hardly indicate the number of steps needed.
            if not refinement.changed:
                break
        # Steps that never become small enough would only hide that the trajectory can't be solved.
        return refinements[0]

    def judge_first(self, states: Sequence[TrainState]) -> tuple[TrainState, ...]:
        """Makes the current iterate the best before the first step, judged on validation data if any."""
        params = self._place(states).params.model
        validate = self._validation_program(params)
        if validate is None:
            return tuple(states)
        losses = np.reshape(to_host(validate(params, *self._validation_inputs)), len(states))
        return tuple(
            replace(state, best=replace(state.best, loss=np.asarray(loss, state.best.loss.dtype)))
            for state, loss in zip(states, losses, strict=True)
        )

    def step_errors(self, params: PyTree, grid: np.ndarray, progress: AnyArray) -> np.ndarray:
        """Computes the relative error of each held step of all members, on the host; arguments are stacked."""
        place = self.setup.place
        arguments = (params, place.shard(grid), progress, self.own, self.shared)
        axes = mapped_axes(len(self.setup.members), True, True, True, True, False)
        program = self._use(PROGRAMS.get, errors_of_steps, self.static, arguments, Compilations(), axes=axes)
        return to_host(program(*arguments))

    def linearise(self, stage: "LinearisedStage", x: Float[np.ndarray, " parameter"]) -> "SumOfSquares":
        """Computes the sum of squares of a stage at other parameters, over its held steps."""
        state, place = stage.state, self.setup.place
        params = place.replicate(stage.params(np.asarray(x, stage.kind)))
        grid, progress = place.shard(pad_to_room(self, state.grid)), place.replicate(state.progress)
        arguments, options = (params, grid, progress, self.own, self.shared), options_for(self.numbers)
        run = PROGRAMS.get(linearize_stage, self.static, arguments, Compilations(), options=options)
        *numbers, failed = to_host(run(*arguments))
        return SumOfSquares(*(np.asarray(number, np.float64) for number in numbers), failed=int(failed))

    def _chunk_program(self, state: TrainState, drawn: PyTree, use: Use = PROGRAMS.get) -> Any:
        arguments = (state, self.own, self.shared, drawn, self._span(0, self.length))
        axes = mapped_axes(len(self.setup.members), True, True, False, True, False)

        def keeps(out: tuple[TrainState, PyTree]) -> None:
            check_carry(state, out[0])

        repeats = max(STEPS_OF_A_FIT // self.stage.optimizer.pace, 1)
        return self._use(use, chunk, self.static, arguments, self.compilations, keeps, axes, repeats=repeats)

    def _validation_program(self, params: PyTree, use: Use = PROGRAMS.get) -> Any:
        if self.setup.validation is None:
            return None
        axes = mapped_axes(len(self.setup.members), True, True, False, False)
        arguments = (params, *self._validation_inputs)
        return self._use(use, validation_loss, self.static[0], arguments, Compilations(), axes=axes)

    def _sample_program(self, state: TrainState, use: Use = PROGRAMS.get) -> Any:
        if self.minibatches is None:
            return None
        axes = mapped_axes(len(self.setup.members), True, True, True, True, False)
        return self._use(use, sample_loss, self.static, self._sample(state), Compilations(), axes=axes)

    def _use(self, use: Use, *program: Any, repeats: int = 1, **keywords: Any) -> Any:
        """Compiles a program for data spread over devices, unless the members are."""
        options = options_for(self.numbers, repeats)
        with nullcontext() if len(self.setup.members) > 1 else self.setup.place.trace_programs():
            return use(*program, **keywords, options=options)

    def _sample(self, state: TrainState) -> tuple[PyTree, ...]:
        return state.chosen, state.grid, state.progress, self.own, self.shared

    def _span(self, begin: int, end: int) -> jax.Array:
        return self.setup.place.replicate(np.array([begin, end], np.int32))

    @property
    def _validation_inputs(self) -> tuple[PyTree, PyTree, Batch | None]:
        return self.own.frozen, self.shared.frozen, self.setup.validation

    def _place(self, states: Sequence[TrainState]) -> TrainState:
        """Places the members' states on devices, spread by members or by trajectories."""
        place, state = self.setup.place, stack([replace(state, grid=pad_to_room(self, state.grid)) for state in states])
        if len(states) > 1:
            return place.shard(state)
        return replace(place.replicate(replace(state, grid=None)), grid=place.shard(state.grid))

    def _draw(self, states: Sequence[TrainState]) -> PyTree:
        """Samples the minibatches of the next chunk; None if every step uses all data."""
        if self.minibatches is None:
            return None
        chunks = [
            source.chunk(int(state.step), self.length) for source, state in zip(self.minibatches, states, strict=True)
        ]
        return self.setup.place.shard(stack(chunks), 0 if len(states) > 1 else 1)


class SumOfSquares(NamedTuple):
    """A sum of squares at some parameters; NumPy arrays in float64.

    - `residuals`: of each block; `jacobian`: their derivatives, one row for each.
    - `prior`: the weight of each parameter's square.
    - `failed`: number of failed solves.
    """

    residuals: Float[np.ndarray, "block row"]
    jacobian: Float[np.ndarray, "residual parameter"]
    prior: Float[np.ndarray, " parameter"]
    failed: int

    def with_prior(self, x: Float[np.ndarray, " parameter"]) -> LinearisedPoint:
        """Adds a residual for each prior to those of the data, which are infinite if a solve fails."""
        roots = np.sqrt(self.prior)
        residuals = np.concatenate([self.residuals.reshape(-1), roots * x])
        lost = self.failed or not np.isfinite(self.jacobian).all()
        residuals = np.full_like(residuals, np.inf) if lost else residuals
        return LinearisedPoint(x, residuals, np.concatenate([self.jacobian, np.diag(roots)]))


class LinearisedStage:
    """The sum of squares of a stage of one member, as a function of a flat vector of its parameters.

    **Arguments:** `programs`: those of the stage. `state`: the fit's state, with held steps that meet the tolerance.
    """

    def __init__(self, programs: StagePrograms, state: TrainState):
        self.programs = programs
        self.state = state
        leaves, self._structure = jax.tree.flatten(to_host(state.params))
        self._shapes = [np.shape(leaf) for leaf in leaves]
        self.kind = np.result_type(*leaves)
        self.x = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)

    def at(self, x: Float[np.ndarray, " parameter"]) -> SumOfSquares:
        """Computes the sum of squares at other parameters, over the same held steps."""
        return self.programs.linearise(self, x)

    def params(self, x: Float[AnyArray, " parameter"], kind: DTypeLike | None = None) -> Params:
        """Unravels a flat vector to parameters; a NumPy vector gives NumPy arrays.

        **Arguments:** `kind`: their type; by default that of the fit.
        """
        ends = np.cumsum([math.prod(shape) for shape in self._shapes])
        parts = [x[end - math.prod(shape) : end].reshape(shape) for shape, end in zip(self._shapes, ends, strict=True)]
        return jax.tree.unflatten(self._structure, [part.astype(kind or self.kind) for part in parts])

    def parameter_places(self) -> Params:
        """The indices of the parameters in the flat vector, in their structure."""
        return self.params(np.arange(self.x.size).astype(self.kind))

    def compile(self) -> "LinearisedStage":
        """Returns the stage with compiled programs, whose held steps meet the tolerance."""
        if self.programs.is_compiled:
            return self
        programs = StagePrograms(self.programs.index, self.programs.setup)
        (state,) = programs.with_refined_steps(programs.init([self.state.params.model]))
        return LinearisedStage(programs, state)

    def refine_at(self, points: list[Float[np.ndarray, " parameter"]]) -> "LinearisedStage":
        """Refines the held steps until they meet the tolerance at further points, too."""
        state = self.state
        for x in points:
            there = eqx.tree_at(lambda s: s.params, state, self.programs.setup.place.host(self.params(x)))
            (there,) = self.programs.with_refined_steps([there])
            state = eqx.tree_at(lambda s: s.grid, state, there.grid, is_leaf=lambda leaf: leaf is None)
        return LinearisedStage(self.programs, state)


def linearize_stage(
    static: Static, params: Params, grid: Shares | None, progress: Float[Array, ""], own: StageData, shared: StageData
) -> tuple[PyTree, Array, Array, Int[Array, ""]]:
    """Computes each block's residuals, their Jacobian, the prior and failed solves; `static` is `(model, stage)`."""
    model_static, stage_static = static
    data: object = eqx.combine(own, shared)
    stage = eqx.combine(data.stage, stage_static)
    loss = StageLoss(model_static, data.frozen, stage.objective, Target(data.batch, grid, progress), params)
    x = ravel_pytree(params)[0]
    residuals, jacobian = stage.objective.linearise(loss.build, x, loss.target)
    return residuals.values, jacobian, loss.weights(x), residuals.failed
