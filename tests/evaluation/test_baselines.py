import numpy as np
import pytest
from scipy.linalg import expm

from node_fit.data.dataset import Dataset
from node_fit.evaluation.baselines import (
    MAX_DIFFERENT_STEPS,
    MAX_IN_TURN,
    baselines,
    find_different_steps,
    fit_linear_ode,
    march_baseline,
    march_in_turn,
    mean,
    persistence,
)
from node_fit.evaluation.metrics import score_predictions

A = np.array([[-0.1, 1.0], [-1.5, -0.2]])


def flow(starts: np.ndarray, grids: list[np.ndarray]) -> list[np.ndarray]:
    return [np.stack([expm(A * t) @ start for t in grid]) for start, grid in zip(starts, grids, strict=True)]


def oscillations(step: float, trajectories: int = 4) -> Dataset:
    starts = np.random.default_rng(0).normal(size=(trajectories, 2))
    grid = np.arange(0, 6, step)
    return Dataset.from_arrays(grid, flow(starts, [grid] * trajectories))


def test_mean_scores_one_on_what_it_was_fitted_to():
    data = oscillations(0.1)
    result = score_predictions(data, mean(data, data))
    assert result.nrmse == pytest.approx(1)
    assert result.r2 == pytest.approx(0)


def test_mean_looks_at_rows_that_count_only():
    data = Dataset.from_arrays(np.arange(6.0), np.array([9.0, 9, 9, 1, np.nan, 3])[:, None]).score_after(2.0)
    assert (mean(data, data) == 2).all()


def test_persistence_holds_the_first_value_where_all_rows_count():
    ys = np.array([[[np.nan, 5], [2, 6], [3, 7]], [[4, 8], [5, np.nan], [np.nan, np.nan]]], dtype=float)
    data = Dataset.from_arrays(np.arange(3.0), ys)
    predicted = persistence(data, data)
    assert predicted.shape == ys.shape
    assert (predicted[0] == [2, 5]).all()
    assert (predicted[1] == [4, 8]).all()


def test_persistence_forecasts_the_last_value_before_the_scored_rows():
    ys = np.array([[1, 10], [2, np.nan], [np.nan, np.nan], [4, 40], [5, 50]], dtype=float)[None]
    data = Dataset.from_arrays(np.arange(5.0), ys)
    forecast = data.score_after(2.0)
    assert (persistence(data.until(2.0), forecast)[0, 3:] == [2, 10]).all()
    changed = Dataset.from_arrays(np.arange(5.0), np.where(np.arange(5)[:, None] > 2, -1.0, ys[0])).score_after(2.0)
    assert (persistence(data.until(2.0), changed) == persistence(data.until(2.0), forecast)).all(), "it saw the future"


def test_a_state_never_measured_falls_back_to_the_training_mean():
    train = Dataset.from_arrays(np.arange(3.0), np.array([[1.0, 1], [2, 2], [3, 6]]))
    target = Dataset.from_arrays(np.arange(2.0), np.array([[1.0, np.nan], [2, np.nan]]))
    assert (persistence(train, target)[..., 1] == 3).all()
    assert np.isfinite(fit_linear_ode(train, target)).all()


def test_linear_recovers_a_linear_system_with_order_two():
    errors = []
    for step in (0.2, 0.1, 0.05):
        data = oscillations(step)
        errors.append(score_predictions(data, fit_linear_ode(data, data)).nrmse)
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert orders == pytest.approx([2, 2], abs=0.2)
    assert errors[-1] < 1e-2


def test_linear_cannot_fit_another_system():
    grid = np.linspace(0, 20, 200)
    pendulum = np.stack([np.sin(grid) ** 3, np.cos(3 * grid)], axis=1)
    data = Dataset.from_arrays(grid, pendulum)
    assert score_predictions(data, fit_linear_ode(data, data)).nrmse > 0.3


def test_linear_extrapolates_to_other_starts_and_irregular_grids():
    rng = np.random.default_rng(1)
    grids = [np.sort(rng.uniform(0, 8, n)) for n in (30, 17)]
    target = Dataset.from_arrays(grids, [flow_from_first(grid) for grid in grids])
    train = oscillations(0.02)
    assert score_predictions(target, fit_linear_ode(train, target)).nrmse < 0.01


def flow_from_first(grid: np.ndarray) -> np.ndarray:
    return np.stack([expm(A * (t - grid[0])) @ [1.0, -0.5] for t in grid])


@pytest.mark.parametrize("held", [False, True])
def test_linear_uses_the_inputs(held):
    grid = np.linspace(0, 20, 401)
    u = np.where(np.floor(grid / 2) % 2 == 0, 1.0, -0.5)
    y = [0.0]
    for k in range(400):
        level = u[k] if held else (u[k] + u[k + 1]) / 2
        y.append(level + (y[-1] - level) * np.exp(-0.05))
    data = Dataset.from_arrays(grid, np.array(y)[:, None], u[:, None])
    blind = Dataset.from_arrays(grid, np.array(y)[:, None])
    assert score_predictions(data, fit_linear_ode(data, data)).nrmse < 1e-3
    assert score_predictions(blind, fit_linear_ode(blind, blind)).nrmse > 0.5


def test_linear_holds_one_input_and_not_another():
    grid = np.linspace(0, 20, 201)
    heater, room = np.where(np.floor(grid / 2) % 2 == 0, 1.0, -0.5), np.random.default_rng(0).normal(size=201)
    y = [0.0]
    for k in range(200):
        level = heater[k] + (room[k] + room[k + 1]) / 2
        y.append(level + (y[-1] - level) * np.exp(-0.1))
    data = Dataset.from_arrays(grid, np.array(y)[:, None], np.stack([room, heater], axis=1))
    assert score_predictions(data, fit_linear_ode(data, data)).nrmse < 1e-3


def test_linear_skips_rows_with_missing_states():
    data = oscillations(0.05)
    gaps = data.ys.copy()
    gaps[:, 5::7, 0] = np.nan
    holes = Dataset.from_arrays(data.ts, gaps)
    assert score_predictions(data, fit_linear_ode(holes, data)).nrmse < 0.02


@pytest.mark.parametrize("rows", [1, 2])
def test_linear_with_next_to_no_data_is_finite(rows):
    data = Dataset.from_arrays(np.arange(float(rows)), np.arange(2.0 * rows).reshape(rows, 2))
    predicted = fit_linear_ode(data, data)
    assert predicted.shape == data.ys.shape
    assert np.isfinite(predicted).all()


@pytest.mark.parametrize("trajectories", [1, 3])
def test_a_long_record_is_solved_in_blocks_as_from_interval_to_interval(trajectories):
    rng = np.random.default_rng(3)
    transitions = np.concatenate([[expm(A * h) for h in (0.04, 0.1)], rng.normal(size=(2, 2, 2))], axis=2)
    which = rng.integers(0, 2, (trajectories, MAX_IN_TURN + 7))
    forcing, z = rng.normal(size=(*which.shape, 2)), rng.normal(size=(trajectories, 2))
    together = march_baseline(transitions, which, forcing, z)
    assert together == pytest.approx(march_in_turn(transitions, which, forcing, z), abs=1e-10)
    growing = march_baseline(1.2 * transitions, which, forcing, z)
    assert np.isfinite(growing).all() and np.abs(growing[:, -1]).max() > 1e5


def test_equal_steps_are_one_and_very_many_different_ones_are_rounded():
    grid = np.arange(0, 50, 0.1)
    different, which = find_different_steps(np.diff(grid)[None] / 0.1)
    assert different == pytest.approx([1.0]) and which.shape == (1, 499)
    steps = np.random.default_rng(0).uniform(0.5, 1.5, (2, MAX_DIFFERENT_STEPS))
    different, which = find_different_steps(steps)
    assert 500 < different.size <= MAX_DIFFERENT_STEPS
    assert different[which] == pytest.approx(steps, abs=1e-3)


def test_the_linear_equation_of_a_thousand_states_is_left_out():
    data = Dataset.from_arrays(np.arange(3.0), np.random.default_rng(0).normal(size=(3, 1000)))
    assert list(baselines(data, data)) == ["mean", "persistence"]


def test_growth_is_cut_without_a_warning():
    grid = np.linspace(0, 1, 50)
    train = Dataset.from_arrays(grid, np.exp(30 * grid)[:, None])
    target = Dataset.from_arrays(np.array([0.0, 1.0, 100.0, 1e5]), np.ones((4, 1)))
    fit_linear_ode(train, target)


def test_baselines_are_the_three_scores():
    data = oscillations(0.1)
    train, target = data.until(4.0), data.score_after(4.0)
    scores = baselines(train, target)
    assert list(scores) == ["mean", "persistence", "linear"]
    assert scores["linear"].nrmse < scores["persistence"].nrmse
    assert all(result.points == target.mask.sum() for result in scores.values())


def test_other_states_are_refused():
    data = oscillations(0.5)
    other = Dataset.from_arrays(data.ts, data.ys, states=["y1", "y0"])
    with pytest.raises(ValueError, match="same states"):
        baselines(data, other)
