"""Starts of fits: scales, offsets and noise fitted to a point, which begins a fit if it is the best."""

import numpy as np
import pytest
from helpers.petab import write_problem

import node_fit
from node_fit.petab.fitting import Optimizer
from node_fit.petab.objective import Screen
from node_fit.petab.tables import observation_parameters


@pytest.fixture(scope="module")
def objective(tmp_path_factory):
    return node_fit.objective(node_fit.read_petab(write_problem(tmp_path_factory.mktemp("decay"))))


@pytest.mark.slow
def test_scales_and_noise_are_those_of_the_best_fit_with_the_same_dynamics(objective):
    """Also from afar, and where a bound is in the way; the rest of the point stays."""
    assert observation_parameters(objective.problem) == {"sigma", "scale"}
    dynamics = [objective.names.index(name) for name in ("k", "c", "dose")]
    for shift in (-1.5, 1.0):
        x = objective.nominal.copy()
        x[-2:] = np.clip(x[-2:] + shift, *(each[-2:] for each in objective.bounds))
        value, found = Screen(objective).adapt(x)
        best = Optimizer(objective).maximise(objective.nominal, held=dynamics)
        np.testing.assert_array_equal(found[dynamics], x[dynamics])
        assert value == pytest.approx(objective.log_likelihood(found), abs=1e-9)
        assert value == pytest.approx(best.log_likelihood, abs=1e-4)


def test_points_are_judged_by_their_dynamics(objective):
    """The right dynamics at a wrong scale are chosen, not wrong dynamics at the best scale that they can have."""
    wrong, right = objective.nominal.copy(), objective.nominal.copy()
    wrong[objective.names.index("k")] -= 1.0
    screen = Screen(objective)
    _, wrong = screen.adapt(wrong)
    right[objective.names.index("scale")] += 1.2
    assert objective.log_likelihood(wrong) > objective.log_likelihood(right)
    assert screen.choose(np.stack([wrong, right]))[objective.names.index("k")] == right[objective.names.index("k")]
