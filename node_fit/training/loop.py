"""The training loop on the host: stages, chunks, and the decisions at the end of each chunk."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..data.dataset import Dataset
from ..model import parameters
from ..model.neural_ode import NeuralODE
from ..runtime.compilation import PROGRAMS
from ..runtime.placement import Placement, any_process, broadcast_from_first, is_first
from ..solver.held_steps import SLACK
from .callback import Callback, Record, RunState, Template
from .decisions import (
    ADVICE,
    NOTHING_SOLVED,
    Outcome,
    excess,
    forget_failures,
    hold_back,
    judge_chunk,
    keeps_shape,
    outcome_of,
    renew,
    restart_line_search,
    return_to_best,
    too_few_steps,
)
from .host_programs import make_programs
from .programs import Advanced, Setup, StagePrograms
from .step import Iterate, Params, TrainState, with_flag
from .task import Member, check_alike

LOOP_LOG = logging.getLogger(__name__)

# Maximum number of validation trajectories that are solved at the end of a chunk.
MOST_VALIDATED = 4096
# Maximum number of rows that are solved in sequence in validation.
LOOP_PIECE = 1000


class Loop:
    """A run of one or more members.

    **Arguments:**

    - `members`: the members, which differ only in arrays and numbers.
    - `train`, `validation`: the training data, and the data that judge iterates, if any.
    - `place`: placement of arrays.
    - `freeze`, `chunk_steps`, `patience`: see `fit`.
    - `starts_well`: whether the initial model is worth keeping if nothing validates better.
    - `offset`: number of steps of earlier loops of the same fit; step counts begin there.

    **Raises:** `ValueError` if the members can't share their programs.
    """

    def __init__(
        self,
        members: Sequence[Member],
        train: Dataset,
        validation: Dataset | None,
        place: Placement,
        *,
        freeze: Sequence[str],
        chunk_steps: int,
        patience: int,
        starts_well: bool = False,
        offset: int = 0,
    ):
        check_alike(members)
        place = place.among(spreadable(members, train))
        parts = [parameters.partition(member.model, freeze) for member in members]
        batch = None
        if validation is not None:
            model = members[0].model
            batch = place.replicate(model.batch(in_pieces(validation, model.start.past).sample(MOST_VALIDATED)))
        self.setup = Setup(members, parts, train, batch, place, chunk_steps)
        self.stages = members[0].stages
        self.starts_well = starts_well
        self.offset = offset
        self.patience = None if validation is None else patience
        self.history: list[Record] = []
        # The state at the end of the last chunk.
        self.latest: RunState | None = None
        self._warned: set[int] = set()
        self.began = time.perf_counter()
        self._programs: dict[int, StagePrograms] = {}

    @property
    def compiled_programs(self) -> list[StagePrograms]:
        """The programs of the stages so far, with their compilation counts and compile times."""
        return list(self._programs.values())

    def run(self, callback: Callback) -> tuple[list[Outcome], RunState]:
        """Runs all stages, from the start or a state that `callback` restores; returns outcomes and the state."""
        initial = [part.params for part in self.setup.parts]
        callback.on_training_start(self.model_of)

        def template(index: int, nodes: int) -> tuple[TrainState, ...]:
            if nodes:  # Only compiled programs hold steps.
                self._programs[index] = StagePrograms(index, self.setup)
            return tuple(with_nodes(state, nodes) for state in self.programs(index).init(initial))

        run = share_arrays(callback.restore(template), template)
        if run is None:
            programs = self.programs(0)
            states = programs.with_refined_steps(programs.init(initial))
            run = RunState(0, self.offset, programs.judge_first(states) if self.starts_well else states)
        while True:
            outcomes, run = self.run_stage(run, callback)
            statuses = {outcome.status for outcome in outcomes}
            if run.stage == len(self.stages) - 1 or "interrupted" in statuses or statuses == {"failed"}:
                self.warn_of_unvalidated(run, statuses)
                return outcomes, run
            run = self.next_stage(run, outcomes)

    def fitted_model(self, run: RunState, member: int = 0, iterate: Iterate | None = None) -> NeuralODE:
        """Returns a member's model with its best parameters, or those of another iterate."""
        return self.model_of(iterate or run.members[member].best, member)

    def model_of(self, iterate: Iterate, member: int) -> NeuralODE:
        """Returns a member's model with the parameters of an iterate."""
        part = self.setup.parts[member]
        return self.setup.place.one(eqx.combine(iterate.params.model, part.frozen, part.static))

    def programs(self, index: int) -> StagePrograms:
        """Returns the programs of a stage, which are made once."""
        if index not in self._programs:
            self._programs[index] = make_programs(index, self.setup)
        return self._programs[index]

    def next_stage(self, run: RunState, outcomes: Sequence[Outcome]) -> RunState:
        """Returns the initial state of the next stage, at the best parameters so far or the last ones."""
        best, programs = [state.best for state in run.members], self.programs(run.stage + 1)
        ended, blocks = self.stages[run.stage], self.programs(run.stage).blocks
        begins = [
            state.chosen if ended.next_from == "last" and state.chosen.is_usable(blocks) else state.best
            for state in run.members
        ]
        states = programs.init([iterate.params.model for iterate in begins])
        states = [with_flag(state, outcome.status == "failed") for state, outcome in zip(states, outcomes, strict=True)]
        states = programs.with_refined_steps(states)
        if self.setup.validation is not None:
            # Validation losses compare across stages; training losses of different objectives do not.
            states = tuple(
                replace(state, best=replace(old, params=Params(old.params.model, state.params.auxiliary)))
                for state, old in zip(states, best, strict=True)
            )
        return RunState(run.stage + 1, run.step, states)

    def run_stage(self, run: RunState, callback: Callback) -> tuple[list[Outcome], RunState]:
        """Runs chunks until the stage has ended for every member, or a callback stops it."""
        programs = self.programs(run.stage)
        if any(end is None for end in self.outcomes(run)):  # A resumed stage can have ended.
            if programs.is_compiled:
                callback.on_stage_compile(programs.stage.name, programs.stage.steps)
            programs.compile(run.members, PROGRAMS.begin)
            programs.compile(run.members)
            callback.on_stage_start(programs.stage.name)
        is_first_chunk = True
        while True:
            outcomes = self.outcomes(run)
            ended = [outcome for outcome in outcomes if outcome is not None]
            if len(ended) == len(outcomes):
                return ended, run
            before = [with_flag(state, end is not None) for state, end in zip(run.members, outcomes, strict=True)]
            watch = Watch(callback, run)
            advanced = programs.advance(before, watch)
            if advanced is None:
                self.latest = run
                return [raise_interrupted(end, watch.stop or "by a callback") for end in outcomes], run
            records = self.records(run, before, advanced)
            run = replace(run, members=self.end_chunk(programs, before, advanced))
            self.history.extend(records)
            self.latest = run
            stop = callback.on_chunk_end(records, run)
            if any_process(stop is not None):
                stop = stop or "by another process of the run"
            outcomes = self.outcomes(run)
            if not any(state.step for state in before):
                self.warn_of_nothing(programs, run, outcomes)
            if stop is not None and any(end is None or end.status != "failed" for end in outcomes):
                return [raise_interrupted(end, stop) for end in outcomes], run
            if is_first_chunk:  # The user has seen progress by now.
                self.begin_next(run)
                is_first_chunk = False

    def begin_next(self, run: RunState) -> None:
        """Starts compiling the next stage in the background."""
        if run.stage + 1 == len(self.stages):
            return
        programs = self.programs(run.stage + 1)
        states = programs.init([state.params.model for state in run.members])
        if keeps_shape(programs, states[0].grid):
            programs.compile(states, PROGRAMS.begin)

    def end_chunk(
        self, programs: StagePrograms, before: Sequence[TrainState], advanced: Advanced
    ) -> tuple[TrainState, ...]:
        """Returns each member's state for the next chunk."""
        stage, validated = programs.stage, self.setup.validation is not None
        states = [
            judge_chunk(old, new, loss)
            for old, new, loss in zip(before, advanced.states, advanced.validation_losses, strict=True)
        ]
        judged = [
            forget_failures(state) if back else restart_line_search(stage, state, programs.blocks)
            for state, back in zip(states, hold_back(programs, states), strict=True)
        ]
        held = programs.refine([return_to_best(state, validated=validated) for state in judged])
        judged = [
            renew(stage, state, grid, limit, refined=held.changed, length=programs.length, validated=validated)
            for state, grid, limit in zip(judged, held.grids, held.limits, strict=True)
        ]
        self.warn_of_steps(programs, judged)
        host = self.setup.place.host
        return tuple(new if new is old else host(new) for old, new in zip(states, judged, strict=True))

    def step_excess(self, run: RunState) -> list[float]:
        """Returns each member's error of held steps over the tolerance if `solver.max_steps` keeps it high; else 0."""
        return excess(self.programs(run.stage), run.members)

    def warn_of_steps(self, programs: StagePrograms, states: Sequence[TrainState]) -> None:
        """Warns once per stage if its solves take all allowed steps and still exceed the tolerance."""
        if programs.index in self._warned:
            return
        worst, solver = max(excess(programs, states)), programs.stage.objective.held_solver
        if solver is not None and worst > SLACK:
            self._warned.add(programs.index)
            LOOP_LOG.warning("stage %s: %s", programs.stage.name, too_few_steps(solver.max_steps, worst))

    def records(self, run: RunState, before: Sequence[TrainState], advanced: Advanced) -> list[Record]:
        """Makes a row of the log for each member that participated in a chunk."""
        seconds, stage = time.perf_counter() - self.began, self.stages[run.stage].name
        rows = zip(before, advanced.states, advanced.rates, advanced.validation_losses, strict=True)
        return [
            Record(
                step=run.offset + int(new.step),
                stage=stage,
                train_loss=float(new.chosen.loss),
                validation_loss=loss,
                gradient_norm=float(new.chosen.gradient_norm),
                learning_rate=rate,
                evaluations=int(new.evaluations) - int(old.evaluations),
                failed_solves=int(new.failed) - int(old.failed),
                seconds=seconds,
                member=member,
            )
            for member, (old, new, rate, loss) in enumerate(rows)
            if not old.finished
        ]

    def outcomes(self, run: RunState) -> list[Outcome | None]:
        """Returns how the stage ended for each member; None for members that are still training."""
        stage, blocks = self.stages[run.stage], self.programs(run.stage).blocks
        return [outcome_of(stage, state, blocks, self.patience) for state in run.members]

    def warn_of_unvalidated(self, run: RunState, statuses: set[str]) -> None:
        """Warns if a run ends with a member that was never judged on the validation data."""
        if self.setup.validation is None or statuses == {"failed"}:
            return
        if any(state.best.is_evaluated and not np.isfinite(state.best.loss) for state in run.members):
            LOOP_LOG.warning(
                "no validation loss was finite, so the best is the one with the lowest training loss; look at where "
                "the validation trajectories run away"
            )

    def warn_of_nothing(self, programs: StagePrograms, run: RunState, outcomes: Sequence[Outcome | None]) -> None:
        """Warns if a stage continues although no trajectory could be solved so far."""
        iterates = [iterate for state in run.members for iterate in (state.best, state.chosen)]
        if not any(iterate.is_usable(programs.blocks) for iterate in iterates) and None in outcomes:
            evaluations = max(int(state.evaluations) for state in run.members)
            LOOP_LOG.warning("%s in the first %d evaluations; %s", NOTHING_SOLVED, evaluations, ADVICE)


class Watch:
    """Reports the steps of a chunk to a callback, and keeps its reason to stop."""

    def __init__(self, callback: Callback, run: RunState):
        self.callback = callback
        self.run = run
        self.stop: str | None = None

    def __call__(self, taken: int) -> bool:
        self.stop = self.callback.on_steps(self.run.step + taken, self.run)
        return self.stop is None


def in_pieces(validation: Dataset, past: int) -> Dataset:
    """Splits long records into parts solved in parallel, if preceding rows determine the initial state of a part."""
    long = past > 0 and validation.lengths.max() > 2 * LOOP_PIECE
    return validation.windows(LOOP_PIECE, LOOP_PIECE) if long else validation


def with_nodes(state: TrainState, nodes: int) -> TrainState:
    """Makes a state of the same structure, with this many nodes of held steps."""
    return state if state.grid is None else replace(state, grid=state.grid[..., :1].repeat(nodes, axis=-1))


def raise_interrupted(outcome: Outcome | None, reason: str) -> Outcome:
    return outcome if outcome and outcome.status == "failed" else Outcome("interrupted", reason)


def share_arrays(run: RunState | None, template: Template) -> RunState | None:
    """Broadcasts the first process's state to resume from to all processes."""
    if jax.process_count() == 1:
        return run
    position = np.array([-1, 0, 0] if run is None else [run.stage, run.offset, run.nodes])
    stage, offset, nodes = broadcast_from_first(position).tolist()
    if stage < 0:
        return None
    members: PyTree = run.members if run is not None and is_first() else template(stage, nodes)
    return RunState(stage, offset, broadcast_from_first(members))


def spreadable(members: Sequence[Member], train: Dataset) -> int:
    """Returns the length of the axis along which arrays are spread over devices."""
    if len(members) > 1:
        return len(members)
    return members[0].stages[-1].batch_size or len(train.trajectories)
