"""The search of populations: the Hessian of an objective, and bins of a predictive check."""

from types import SimpleNamespace

import numpy as np
import pytest

from node_fit.app.population_run import Evaluations
from node_fit.population.likelihood import watch_nothing
from node_fit.population.prediction import bin_times
from node_fit.population.search import FAR, Descent, Optimum, find_hessian, leave_saddles, minimize_objective


class Quadratic:
    """A population whose objective is a quadratic function, and infinite beyond 1e3."""

    still, structure, watch = np.zeros((2, 1)), SimpleNamespace(weights=()), staticmethod(watch_nothing)
    hessian = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, -0.5], [0.0, -0.5, 2.0]])

    def objective_by_subject(self, x, z, method, expansion=None):
        gradient = self.hessian @ x
        return (0.5 * x @ gradient if np.abs(x).max() < 1e3 else np.inf), np.stack([0.25 * gradient, 0.75 * gradient])


def test_the_hessian_is_that_of_the_objective():
    x = np.array([0.3, -0.2, 1.0])
    optimum = Optimum(Quadratic(), x, Quadratic.still, 0.0, Quadratic.hessian @ x, 0)
    assert find_hessian(optimum, "fo") == pytest.approx(Quadratic.hessian, rel=1e-6, abs=1e-8)


def test_weights_have_no_part_in_the_hessian():
    class WithWeight(Quadratic):
        structure = SimpleNamespace(weights=(1,))

    x = np.array([0.3, -0.2, 1.0])
    slopes = (Quadratic.hessian @ x)[None]
    optimum = Optimum(WithWeight(), x, Quadratic.still, float(x @ slopes[0]) / 2, slopes, 0)
    wanted = Quadratic.hessian.copy()
    wanted[1], wanted[:, 1] = 0, 0
    assert find_hessian(optimum, "fo") == pytest.approx(wanted, rel=1e-6, abs=1e-8)
    end, _ = leave_saddles(optimum, "fo")
    assert end.x[1] == x[1] and end.x[[0, 2]] == pytest.approx(
        np.linalg.solve(Quadratic.hessian[np.ix_([0, 2], [0, 2])], -Quadratic.hessian[[0, 2], 1] * x[1]), abs=1e-6
    )


class Saddle:
    """A population whose objective is `x^2 + (y^2 - 2)^2`: a saddle at the origin, minima where `y^2` is 2."""

    still, subjects = np.zeros((2, 1)), SimpleNamespace(counts=np.ones(1))
    structure, watch = SimpleNamespace(weights=()), staticmethod(watch_nothing)

    def refine_steps(self, x, z):
        return self

    def objective_by_subject(self, x, z, method, expansion=None):
        gradient = np.array([2 * x[0], 4 * x[1] * (x[1] ** 2 - 2)])
        return x[0] ** 2 + (x[1] ** 2 - 2) ** 2, np.stack([0.25 * gradient, 0.75 * gradient])


def test_a_search_that_has_ended_at_a_saddle_goes_on_to_a_minimum():
    saddle = Optimum(Saddle(), np.zeros(2), Saddle.still, 4.0, np.zeros((2, 2)), 0)
    optimum, hessian = leave_saddles(saddle, "fo")
    assert np.abs(optimum.x) == pytest.approx([0, np.sqrt(2)], abs=1e-4) and optimum.value < 1e-8
    assert hessian == pytest.approx(np.diag([2.0, 16.0]), abs=1e-2)


def test_an_objective_that_can_t_be_computed_turns_a_search_back():
    descent = Descent(Quadratic(), "fo")
    assert descent(np.full(3, 1e4))[0] == FAR and descent(np.ones(3))[0] < 10 and descent.evaluations == 2


def test_each_evaluation_is_told_in_words():
    said: list[str] = []
    population = Quadratic()
    population.watch = Evaluations(said.append)
    minimize_objective(population, np.ones(3), "pooled")
    population.watch("focei", 1.5)
    population.watch("saem", np.nan)
    assert said[0] == "fitting the population without effects: objective 5.00 after 1 evaluation" and len(said) > 5
    assert said[-2:] == [
        f"fitting the population by focei: objective 1.50 after {len(said) - 1} evaluations",
        "fitting the population by saem",
    ]


@pytest.mark.parametrize("times", [np.arange(40.0), np.repeat([0.0, 1.0, 2.0], [30, 2, 8]), np.zeros(3)])
def test_each_measurement_is_in_one_bin(times):
    bins = np.stack(bin_times(times))
    assert (bins.sum(axis=0) == 1).all() and (bins.sum(axis=1) > 0).all()
    for time in np.unique(times):
        assert len({int(bins[:, at].argmax()) for at in np.flatnonzero(times == time)}) == 1


def test_times_that_many_measurements_share_have_bins_of_their_own():
    """The last of them, too; the largest of many times has none."""
    times = np.repeat([0.5, 1.0, 2.0, 4.0, 8.0], 60)
    assert [set(times[chosen]) for chosen in bin_times(times)] == [{0.5}, {1.0}, {2.0}, {4.0}, {8.0}]
    spread = np.linspace(0, 1, 100)
    assert min(chosen.sum() for chosen in bin_times(spread)) >= 5
