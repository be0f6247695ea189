"""Decisions at the end of a chunk, on states that are made by hand: what counts as progress, and what ends a stage."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from node_fit.training.decisions import PLATEAU, PROGRESS, has_diverged, judge_chunk, outcome_of, return_to_best
from node_fit.training.programs import Refined, StagePrograms
from node_fit.training.step import HOPELESS_STEPS, Iterate, Params, TrainState
from node_fit.training.task import Stage


def iterate(loss: float, number: float = 0.0, failed: int = 0) -> Iterate:
    return Iterate(Params(np.float32(number), None), np.float32(loss), np.float32(1.0), np.int32(failed))


ZERO, NO = np.int32(0), np.array(False)
STATE = TrainState(
    step=np.int32(5), params=Params(np.float32(0), None), grid=None, error_limit=np.float32(1), progress=np.float32(1),
    opt_state=None, chosen=iterate(1.0), evaluations=np.int32(9), failed=ZERO, rejected=ZERO, restarts=ZERO,
    best=iterate(1.0), stale=np.int32(2), reference=np.float32(1.0), plateau=np.int32(2), stuck=NO, finished=NO,
)  # fmt: skip


def stage_of(*, grows: bool = False, full_batch: bool = True) -> Mock:
    optimizer = Mock(why_stuck="no step is left", full_batch=full_batch)
    return Mock(spec=Stage, steps=20, objective=Mock(grows=grows), optimizer=optimizer)


def after(chosen: float, validation: float | None = None, **changed) -> TrainState:
    before = replace(STATE, **changed)
    return judge_chunk(before, replace(before, chosen=iterate(chosen, 7.0)), validation)


def test_a_loss_that_falls_by_a_little_is_better_but_no_progress():
    state = after(1 - PROGRESS / 2)
    assert state.best.params.model == 7 and state.stale == 0
    assert state.plateau == 3 and state.reference == 1


def test_a_loss_that_falls_by_enough_is_progress():
    state = after(1 - 2 * PROGRESS)
    assert state.plateau == 0 and state.reference == state.chosen.loss


def test_the_best_is_judged_by_validation_data_and_progress_by_training_data():
    state = after(0.5, validation=2.0)
    assert state.best.params.model == 0 and state.stale == 3 and state.plateau == 0
    state = after(2.0, validation=0.5)
    assert state.best.params.model == 7 and state.best.loss == 0.5 and state.stale == 0 and state.plateau == 3


def test_until_a_validation_loss_is_finite_the_training_loss_chooses():
    assert after(0.5, validation=np.inf, best=iterate(np.inf)).best.params.model == 7
    assert after(2.0, validation=np.inf, best=iterate(np.inf)).best.params.model == 0
    assert after(0.5, validation=np.inf).best.params.model == 0


def test_a_member_that_has_finished_waits_as_it_is():
    state = after(0.1, finished=np.array(True))
    assert (state.best.params.model, state.stale, state.reference, state.plateau) == (0, 2, 1, 2)


FLAT = np.int32(PLATEAU)
STUCK, LOST = np.array(True), iterate(1, failed=4)
ENDS = {
    "goes on": ({}, {}, None, None),
    "all steps": ({"step": np.int32(20)}, {}, None, "completed"),
    "one step less": ({"step": np.int32(19)}, {}, None, None),
    "stuck": ({"stuck": STUCK}, {}, None, "converged"),
    "stuck while it grows": ({"stuck": STUCK, "progress": np.float32(0.5)}, {"grows": True}, None, None),
    "hopeless": ({"rejected": np.int32(HOPELESS_STEPS)}, {}, None, "stopped"),
    "nearly hopeless": ({"rejected": np.int32(HOPELESS_STEPS - 1)}, {}, None, None),
    "patience": ({"stale": np.int32(3)}, {}, 3, "stopped"),
    "not yet": ({"stale": np.int32(2)}, {}, 3, None),
    "without validation data": ({"stale": np.int32(99)}, {}, None, None),
    "flat": ({"plateau": FLAT}, {}, None, "converged"),
    "flat minibatches": ({"plateau": FLAT}, {"full_batch": False}, None, None),
    "nothing solved": ({"step": np.int32(20), "best": LOST, "chosen": LOST}, {}, None, "failed"),
    "something solved": ({"step": np.int32(20), "best": LOST, "chosen": iterate(1, failed=3)}, {}, None, "completed"),
    "failed before": ({"step": ZERO, "finished": STUCK}, {}, None, "failed"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_stage(name):
    changed, given, patience, status = ENDS[name]
    found = outcome_of(stage_of(**given), replace(STATE, **changed), 4, patience)
    assert (None if found is None else found.status) == status


def test_the_stages_best_iterate_is_chosen_where_the_training_loss_judges_both():
    state = replace(STATE, best=iterate(0.5, 1.0), chosen=iterate(0.9, 2.0))
    assert return_to_best(state, validated=False).chosen.params.model == 1
    assert return_to_best(state, validated=True).chosen.params.model == 2
    worse = replace(STATE, best=iterate(0.9, 1.0), chosen=iterate(0.5, 2.0))
    assert return_to_best(worse, validated=False).chosen.params.model == 2


def test_a_fit_has_diverged_at_ten_times_its_reference():
    assert not has_diverged(replace(STATE, chosen=iterate(9.9)))
    assert has_diverged(replace(STATE, chosen=iterate(10.1)))


def test_held_steps_whose_errors_stay_large_are_refined_again(monkeypatch):
    """The first errors may be those of unstable steps, which say little of the steps that are needed."""
    limits = iter([1e5, 2e3, 100.0, 100.0])

    def refine(self, states, *, fresh):
        return Refined([state.grid + 1 for state in states], [np.float32(next(limits))], True)

    monkeypatch.setattr(StagePrograms, "refine", refine)
    held = replace(STATE, grid=np.zeros((1, 4), np.float32))
    (state,) = StagePrograms.with_refined_steps(object.__new__(StagePrograms), [held])
    assert (state.grid == 3).all() and state.error_limit == 100
