"""Steps of linear systems from row to row, beside integrals of their differential equation."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from node_fit.sysid.linear_model import (
    LinearSystem,
    SimulationRecord,
    constant_systems,
    nrmse_on,
    simulate,
    step_matrix,
)
from node_fit.sysid.subspace import STABLE, stabilize, to_continuous_time

A = np.array([[-0.3, 0.8], [-0.8, -0.2]])
B, C = np.array([[0.5], [1.0]]), np.array([0.1, -0.2])


@pytest.mark.parametrize("held", [True, False])
def test_a_step_is_the_integral_over_a_row(held):
    """Under an input of 2 at the beginning of the row and, unless it is held, of 5 at its end."""
    start, first, last = np.array([1.0, -1.0]), 2.0, 2.0 if held else 5.0
    exact = solve_ivp(
        lambda t, z: A @ z + B[:, 0] * (first + t * (last - first)) + C, (0, 1), start, rtol=1e-11, atol=1e-12
    )
    drives = np.array([first, 1.0]) if held else np.array([first, last, 1.0])
    found = step_matrix(A, B, C, held=held) @ np.concatenate([start, drives])
    np.testing.assert_allclose(found, exact.y[:, -1], rtol=1e-9)


def test_a_step_and_its_continuous_system_are_inverse():
    step = step_matrix(A, B, C, held=True)
    found = to_continuous_time(step[:, :2], step[:, 2:3], step[:, 3])
    for value, expected in zip(found, (A, B, C), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-9)


def test_modes_that_grow_are_moved_into_the_unit_circle_and_no_others():
    vectors = np.array([[1.0, 0.3], [0.2, 1.0]])
    a = vectors @ np.diag([1.5, 0.4]) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(sorted(np.linalg.eigvals(stabilize(a))), [0.4, STABLE])
    turning = 2 * expm(np.array([[0.0, 1.0], [-1.0, 0.0]]))
    np.testing.assert_allclose(stabilize(turning), STABLE / 2 * turning, atol=1e-12)


def record(rows: int = 5) -> SimulationRecord:
    """One channel that rises by one a row from 3, without an input; its past holds two rows, oldest first."""
    ys = 4.0 + np.arange(rows)[:, None, None] * np.ones((rows, 2, 1))
    past = np.tile([2.0, 1.0, 0.0, 3.0, 1.0, 0.0], (2, 1))
    return SimulationRecord(np.zeros((rows, 2, 0)), ys, np.ones_like(ys), np.full((2, 1), 3.0), past)


def test_a_system_begins_at_the_channels_and_its_own_features_of_the_past():
    zero = np.zeros((2, 2))
    e = np.zeros((2, 6))
    e[1, 0] = 0.5
    system = LinearSystem(zero, np.zeros((2, 0)), np.zeros(2), e, np.array([0.0, 7.0]))
    np.testing.assert_allclose(simulate(system, record())[0], [[3.0, 8.0]] * 2)


def test_a_system_that_rises_by_one_has_no_error_and_others_have_theirs():
    own = record()
    rises = LinearSystem(np.zeros((1, 1)), np.zeros((1, 0)), np.ones(1), np.zeros((1, 6)), np.zeros(1))
    assert nrmse_on(rises, own) == pytest.approx(0, abs=1e-12)
    keeps, forgets = constant_systems(own, 0)
    np.testing.assert_allclose(simulate(keeps, own), 3.0)
    np.testing.assert_allclose(simulate(forgets, own), 0.0, atol=1e-12)
    errors = np.arange(1, 6.0)
    assert nrmse_on(keeps, own) == pytest.approx(np.sqrt((errors**2).mean() / own.ys.var()))
