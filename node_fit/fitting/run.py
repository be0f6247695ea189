"""One or more fits to the same data: their clock, programs and results."""

import functools
import logging
import math
import time
from collections.abc import Sequence

import numpy as np

from ..data.dataset import Dataset
from ..data.quality import check_trainable, find_oddities
from ..model import parameters
from ..model.ensemble import Ensemble
from ..model.initial_state.rule import First
from ..model.neural_ode import NeuralODE
from ..objectives.losses import Penalty
from ..options.options import Options
from ..training.callback import Callback, Record, RunState, Status
from ..training.decisions import Outcome
from ..training.loop import Loop
from ..training.members import Member, Members
from ..training.state import TrainState
from .multistart import Start, Starts, select_iterate
from .result import Fit
from .setup import PreparedFit, prepare_fit, stages_of

RUN_LOG = logging.getLogger(__name__)
# Steps of the main stage in fits that try a weight of the prior.
TRIAL_STEPS = 200


class Run:
    """Fits to the same data, and the programs that they compile.

    **Arguments:** `train`, `validation`: as in `fit`. `callback`: told of trials. `offset`: steps of earlier attempts.
    """

    def __init__(self, train: Dataset, validation: Dataset | None, callback: Callback | None = None, offset: int = 0):
        check_trainable(train)
        self.train = train
        self.validation = validation
        self.callback = callback or Callback()
        self.offset = offset
        self.loops: list[Loop] = []
        self.began = time.perf_counter()
        self.counted = 0
        self.warnings: list[str] = []

    def prepare(self, options: Options, earlier: NeuralODE | None = None) -> PreparedFit:
        """What the fit begins with; see `preparation.prepare`."""
        prepared = prepare_fit(options, self.train, self.validation, earlier, self.predicted)
        from_first = isinstance(prepared.model.start, First)
        for odd in find_oddities(self.train, options.scaling, prepared.options.training.window, from_first=from_first):
            if odd not in self.warnings:
                RUN_LOG.warning("%s", odd)
                self.warnings.append(odd)
        return prepared

    def predicted(self, options: Options, part: Dataset) -> np.ndarray:
        """Predictions of a short fit to `part`, at all of its times."""
        assert isinstance(options.penalty, Penalty)
        self.callback.on_trial(f"penalty.ridge={options.penalty.ridge:g}")
        short = options.shortened(TRIAL_STEPS)
        model = short.model(self.train)  # Other scales would need steps, and programs, of their own.
        loop = make_loop(
            short, [Member(short.place.one(model), stages_of(short, model, part)[0], short.seed)], part, None
        )
        self.loops.append(loop)
        return loop.fitted(loop.run(Callback())[1]).predict(part)

    def loop(self, options: Options, members: Sequence[Member], *, starts_well: bool = False) -> Loop:
        """The training loop of members with these options, or with others that share their programs."""
        loop = make_loop(options, members, self.train, self.validation, starts_well=starts_well, offset=self.offset)
        given, used = len(options.placed(len(members)).devices), len(loop.setup.place.devices)
        if used < given and options.device.count != "auto":
            RUN_LOG.warning("using %d of %d devices, since members or trajectories are spread evenly", used, given)
        self.loops.append(loop)
        return loop

    def result(
        self,
        prepared: PreparedFit,
        loop: Loop,
        model: NeuralODE | Ensemble,
        outcome: Outcome,
        state: RunState,
        members: tuple[Outcome, ...] = (),
        history: list[Record] | None = None,
        best: int | None = 0,
        step_excess: float = 0.0,
        starts: Starts | None = None,
    ) -> Fit:
        """The result of a fit; each compilation is counted in one result only."""
        options, choices = prepared.settled(best)
        new = [programs for each in self.loops[self.counted :] for programs in each.compiled]
        self.counted = len(self.loops)
        compiling = sum(programs.compile_seconds for each in self.loops for programs in each.compiled)
        held = {} if self.validation is None else {"validation": self.validation}
        return Fit(
            model=model,
            status=outcome.status,
            reason=outcome.reason,
            history=loop.history if history is None else history,
            steps=state.step,
            parameters=parameters.count_parameters(loop.setup.parts[0].params),
            compiles=sum(programs.compilations.count for programs in new),
            cached=sum(programs.compilations.cached for programs in new),
            compile_seconds=sum((programs.compile_seconds for programs in new), 0.0),
            train_seconds=time.perf_counter() - self.began - compiling,
            members=members,
            devices=len(loop.setup.place.devices),
            data={"train": self.train, **held},
            options=options,
            choices=tuple(choices),
            warnings=tuple(self.warnings),
            linear=None if prepared.linear is None else prepared.options.place.one(prepared.model),
            step_excess=step_excess,
            starts=starts,
        )


def make_loop(
    options: Options,
    members: Sequence[Member],
    train: Dataset,
    validation: Dataset | None,
    *,
    starts_well: bool = False,
    offset: int = 0,
) -> Loop:
    training = options.training
    return Loop(
        members,
        train,
        validation,
        options.placed(len(members)),
        freeze=training.freeze,
        chunk_steps=training.budget.chunk_steps,
        patience=training.patience,
        starts_well=starts_well,
        offset=offset,
    )


def merge_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """How a run of several members ended: like the first that was interrupted, else the first that did not fail."""
    if len(outcomes) == 1:
        return outcomes[0]
    order: list[Status] = ["interrupted", "completed", "converged", "stopped", "failed"]
    first = min(outcomes, key=lambda outcome: order.index(outcome.status))
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in order}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return Outcome(first.status, f"{len(outcomes)} members: {said}; the first of these {first.reason}")


def keep_members(
    loop: Loop, outcomes: Sequence[Outcome], state: RunState, ensemble: Members, run: Run
) -> tuple[NeuralODE | Ensemble, Outcome, int]:
    """The best member, or all that have not failed; how the run ended; and which member is the best."""
    best = select_member(state, validated=run.validation is not None)
    model = functools.partial(select_iterate, loop, state, train=run.train, validation=run.validation)
    alive = [index for index, outcome in enumerate(outcomes) if outcome.status != "failed"]
    if ensemble.size == 1:
        return model(best), outcomes[best], best
    if ensemble.keep == "best" or not alive:
        return model(best), merge_outcomes(outcomes), best
    members = [model(index) for index in alive]
    return Ensemble.of(members, run.train, run.validation), merge_outcomes(outcomes), best


def starts_of(loop: Loop, state: RunState, among: range, prepared: PreparedFit, run: Run) -> Starts | None:
    """What came of each of several starts; None for one.

    **Arguments:** `among`: the fit's members, one for each start and each weight of the prior.
    """
    if prepared.options.starts == 1:
        return None
    validated, outcomes, fits = run.validation is not None, loop.outcomes(state), []
    weights = len(prepared.ridges)
    for first in among[::weights]:
        best = select_member(state, range(first, first + weights), validated=validated)
        unjudged, loss = rank_outcome(state.members[best], validated)
        outcome, model = outcomes[best], select_iterate(loop, state, best, run.train, run.validation)
        status = "interrupted" if outcome is None else outcome.status
        fits.append(Start(status, math.inf if unjudged else loss, model.constants()))
    return Starts(tuple(fits))


def select_member(state: RunState, among: Sequence[int] | None = None, *, validated: bool = False) -> int:
    """The member that is best, of all or of some."""
    among = range(len(state.members)) if among is None else among
    return min(among, key=lambda member: rank_outcome(state.members[member], validated))


def rank_outcome(state: TrainState, validated: bool) -> tuple[bool, float]:
    """What members are ordered by: those without a finite validation loss come last, by their training loss.

    Where held steps were refined in the last chunk, the chosen iterate is the best.
    """
    best, chosen = float(state.best.loss), float(state.chosen.loss)
    if np.isfinite(best):
        return False, best
    return validated, chosen if np.isfinite(chosen) else np.inf
