"""Which iterate and which member a fit keeps."""

from unittest.mock import Mock

import numpy as np
import pytest

from node_fit.fitting import selection
from node_fit.fitting.problem import FitProblem
from node_fit.fitting.selection import rank_outcome, select_iterate, select_member
from node_fit.model.neural_ode import NeuralODE
from node_fit.training.callback import RunState
from node_fit.training.decisions import Outcome
from node_fit.training.loop import Loop
from node_fit.training.step import TrainState


def state_of(best: float, chosen: float) -> Mock:
    return Mock(spec=TrainState, best=Mock(loss=best), chosen=Mock(loss=chosen))


@pytest.mark.parametrize(
    ("best", "chosen", "validated", "rank"),
    [
        (2.0, 1.0, True, (False, 2.0)),
        (np.inf, 1.0, True, (True, 1.0)),
        (np.inf, 1.0, False, (False, 1.0)),
        (np.nan, np.nan, True, (True, np.inf)),
        (np.inf, np.inf, False, (False, np.inf)),
    ],
)
def test_members_without_a_finite_validation_loss_come_last_by_their_training_loss(best, chosen, validated, rank):
    assert rank_outcome(state_of(best, chosen), validated) == rank


def test_the_best_member_has_not_failed():
    losses = [(np.inf, 0.1), (3.0, 9.0), (1.0, 9.0), (2.0, 9.0)]
    state = Mock(spec=RunState, members=[state_of(*each) for each in losses])
    outcomes = [None, None, Outcome("failed", "it ran away"), Outcome("completed", "")]
    assert select_member(state, range(4), outcomes, validated=True) == 3
    assert select_member(state, range(3), outcomes, validated=True) == 1
    assert select_member(state, range(4), outcomes, validated=False) == 0


@pytest.mark.parametrize(
    ("step", "stale", "steps"), [(260, 10, 60), (100, 0, 100), (95, 2, 55), (40, 5, 20), (0, 0, 20)]
)
def test_steps_to_the_best_iterate_are_counted_from_the_state(step, stale, steps):
    """A chunk has 20 steps; the best of an earlier stage counts as of the first chunk."""
    loop = Mock(spec=Loop)
    loop.programs.return_value = Mock(length=20)
    state = Mock(spec=RunState, stage=1, members=[Mock(spec=TrainState, step=step, stale=stale)])
    assert selection.steps_to_best(loop, state, 0) == steps


# Errors of the best iterate, of an earlier stage, and of the last stage's: each on training and validation data.
@pytest.mark.parametrize(
    ("best", "last", "kept"),
    [
        ((9.0, 1.0), (1.0, 2.0), "last"),  # Few validation data favour what loses the training data.
        ((2.0, 1.0), (1.0, 0.5), "best"),  # They don't.
        ((9.0, 1.0), (1.0, 4.0), "best"),
        ((9.0, 1.0), (12.0, 2.0), "best"),  # The last stage loses them, too.
    ],
)
def test_an_earlier_iterate_is_kept_unless_few_validation_data_flatter_it(best, last, kept, monkeypatch):
    models = {"best": Mock(spec=NeuralODE), "last": Mock(spec=NeuralODE)}
    problem = Mock(spec=FitProblem, selection_data=object())
    problem.errors = lambda model: best if model is models["best"] else last
    loop = Mock(spec=Loop)
    loop.fitted_model = lambda state, member, iterate=None: models["best" if iterate is None else "last"]
    state = Mock(spec=RunState, members=[state_of(1.0, 1.0)])
    monkeypatch.setattr(selection, "is_earlier", lambda *_: True)
    assert select_iterate(problem, loop, state, 0) is models[kept]
    assert select_iterate(Mock(spec=FitProblem, selection_data=None), loop, state, 0) is models["best"]
    endless = Mock(spec=RunState, members=[state_of(1.0, np.inf)])
    assert select_iterate(problem, loop, endless, 0) is models["best"]
    monkeypatch.setattr(selection, "is_earlier", lambda *_: False)
    assert select_iterate(problem, loop, state, 0) is models["best"]
