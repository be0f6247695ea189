"""Plans of stages, without a fit: what they inherit, which windows they have, and which recipe is the default."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.objectives.matching import DerivativeMatching, TrajectoryMatching
from node_fit.optimizers.gradient import LBFGS
from node_fit.options.recipes import (
    DEFAULT_RECIPE,
    DIRECT_RECIPE,
    LONGEST_WINDOW,
    Plan,
    Recipe,
    growing_windows,
    has_own_window,
    is_default,
    make_objective,
    windows_first,
    without_derivatives,
)
from node_fit.training.task import Stage

MAIN = TrajectoryMatching(window=8, stride=4)


def data_of(rows: int) -> nf.Dataset:
    return nf.Dataset.from_arrays(np.arange(float(rows)), np.ones((rows, 1)), states=("x",))


def sizes_of(recipe: Recipe) -> list[int]:
    return [plan.objective.keywords["window"] for plan in recipe.stages.values() if has_own_window(plan)]


def test_windows_grow_and_stay_below_half_of_the_longest_trajectory():
    assert sizes_of(growing_windows(data_of(200), derivatives=False)) == [10, 25, 62]
    assert sizes_of(growing_windows(data_of(100), derivatives=False)) == [10, 25]
    assert sizes_of(growing_windows(data_of(15), derivatives=False)) == []


@pytest.mark.parametrize("derivatives", [True, False])
def test_windows_that_grow_begin_with_derivatives_if_asked_and_end_with_whole_trajectories_unless_long(derivatives):
    names = list(growing_windows(data_of(200), derivatives=derivatives).stages)
    assert (names[0] == "derivative") == derivatives and names[-1] == "main"
    assert "main" not in growing_windows(data_of(LONGEST_WINDOW + 1), derivatives=derivatives).stages


def test_an_objective_of_a_plan_has_the_windows_of_the_main_stage_unless_it_says_otherwise():
    assert make_objective(Plan(), MAIN).window == 8
    assert make_objective(Plan(functools.partial(TrajectoryMatching, window=20)), MAIN).window == 20
    growing = make_objective(Plan(functools.partial(TrajectoryMatching, horizon=0.5)), MAIN)
    assert growing.window is None and growing.stride is None
    assert make_objective(Plan(MAIN), TrajectoryMatching()) is MAIN


def facts(**given) -> Facts:
    return Facts(trajectories=1, rows=100, longest=given.pop("longest", 100), values=100, **given)


def test_windows_come_before_whole_trajectories_unless_these_are_driven_or_long():
    stage = Stage(MAIN, nf.Adam(), 10, "main", batch_size=2)
    stages, notes = windows_first(stage, facts())
    assert [each.name for each in stages] == ["windows", "main"] and not notes
    assert stages[0].batch_size == 2 and stages[1].batch_size is None and stages[1].objective.window is None
    assert [each.name for each in windows_first(stage, facts(driven=True))[0]] == ["windows"]
    stages, notes = windows_first(stage, facts(longest=LONGEST_WINDOW + 1))
    assert [each.name for each in stages] == ["windows"] and "over 3000" in notes[0]
    assert windows_first(replace(stage, objective=TrajectoryMatching()), facts())[0][0].name == "main"


def test_the_default_recipe_is_known_though_it_is_written_out():
    written = Recipe({"derivative": Plan(DerivativeMatching, LBFGS(), 300), "main": Plan()})
    assert is_default(written) and without_derivatives(written) is DIRECT_RECIPE
    for other in (
        Recipe({"derivative": Plan(DerivativeMatching, LBFGS(), 299), "main": Plan()}),
        Recipe({"derivative": Plan(DerivativeMatching, LBFGS(memory=3), 300), "main": Plan()}),
        Recipe({"derivative": Plan(TrajectoryMatching, LBFGS(), 300), "main": Plan()}),
        Recipe({"slopes": DEFAULT_RECIPE.stages["derivative"], "main": Plan()}),
    ):
        assert not is_default(other) and without_derivatives(other) is other
