"""Linear systems of many states: recovery of known transfer functions, and mathematics of their parts."""

import numpy as np
import pytest
from scipy.linalg import expm

from node_fit.sysid import realization
from node_fit.sysid.linear_model import step_matrix
from node_fit.sysid.realization import (
    ModalLayout,
    ModalSystem,
    Modes,
    Signals,
    as_matrices,
    count_taps,
    estimate_response,
    expand_error,
    extend_response,
    fit_inputs,
    identify_modes,
    input_weights,
    map_past,
    realize,
    refine,
    simulation_error,
    stable_rates,
)


def make_system(kind="hold", direct=False, seed=0):
    """Two modes that swing and one that does not, of two inputs and two outputs."""
    rng = np.random.default_rng(seed)
    swings = np.array([1, 0, 1])
    rates = np.array([-0.05 + 0.4j, -0.3, -0.02 + 1.1j])
    b = rng.normal(size=(3, 2)) + 1j * swings[:, None] * rng.normal(size=(3, 2))
    c = rng.normal(size=(2, 3)) + 1j * swings * rng.normal(size=(2, 3))
    through = direct * rng.normal(size=(2, 2))
    return ModalSystem(rates, b, c, through, rng.normal(size=2), kind)


def record_of(system, rows=3000, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    us = rng.normal(size=(rows, system.b.shape[1]))
    ys = system.simulate(us)
    return Signals(us, ys + noise * rng.normal(size=ys.shape), np.ones(rows, bool))


def response_of(system, taps):
    """The outputs at each row after an impulse of each input."""
    inputs = system.b.shape[1]
    return np.stack([system.simulate(np.eye(1, inputs, j) * np.eye(taps, 1)) - system.shift for j in range(inputs)], 2)


@pytest.mark.parametrize("kind", ["hold", "linear"])
@pytest.mark.parametrize("direct", [False, True])
def test_simulation_by_modes_is_that_by_matrices(kind, direct):
    system = make_system(kind, direct)
    record = record_of(system, rows=60)
    matrices = as_matrices(system, [record])
    states = len(matrices.a)
    step = step_matrix(matrices.a, matrices.b, np.zeros(states), held=kind == "hold")
    end = step[:, states + 2 : -1] if kind == "linear" else np.zeros((states, 2))
    z, found = end @ record.us[0], []  # What is linear rises from zero in the row before the first.
    for row in range(60):
        found.append(matrices.c @ z + matrices.direct @ record.us[row] + matrices.shift)
        if row < 59:
            z = step[:, :states] @ z + step[:, states : states + 2] @ record.us[row] + end @ record.us[row + 1]
    np.testing.assert_allclose(found, record.ys, atol=1e-10)


@pytest.mark.parametrize("kind", ["hold", "linear"])
def test_weights_of_inputs_are_exact_integrals_with_their_derivatives(kind):
    rates, nudge = np.array([-1e-4, -0.3 + 0.2j, -2.0 + 1j]), 1e-6
    weights, up, down = (input_weights(rates + move, kind) for move in (0, nudge, -nudge))
    for at, rate in enumerate(rates):
        # The augmented system of the state, the input and its slope.
        block = expm(np.array([[rate, 1, 0], [0, 0, 1 if kind == "linear" else 0], [0, 0, 0]]))
        begin, rise = block[0, 1], block[0, 2]
        np.testing.assert_allclose(weights.begin[at], begin - rise, rtol=1e-10)
        np.testing.assert_allclose(weights.end[at], rise, atol=1e-12)
    np.testing.assert_allclose(weights.begin_slope, (up.begin - down.begin) / (2 * nudge), rtol=1e-6)
    np.testing.assert_allclose(weights.end_slope, (up.end - down.end) / (2 * nudge), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kind", ["hold", "linear"])
@pytest.mark.parametrize("direct", [False, True])
def test_gradient_of_all_parameters_is_that_of_differences(kind, direct):
    system = make_system(kind, direct)
    other = record_of(make_system(kind, direct, seed=5), rows=120)
    layout, nudge = ModalLayout(system), 1e-6
    x = layout.as_vector(system)
    slope, curvature = expand_error(system, [other])
    moved = [
        [simulation_error(layout.from_vector(x + s * nudge * d), [other]) for s in (1, -1)] for d in np.eye(len(x))
    ]
    np.testing.assert_allclose(slope, [(up - down) / (4 * nudge) for up, down in moved], rtol=1e-5, atol=1e-5)
    assert np.linalg.eigvalsh(curvature).min() > -1e-9 * np.linalg.eigvalsh(curvature).max()


def test_a_record_in_parts_has_the_derivatives_of_the_whole(monkeypatch):
    system = make_system("linear", True)
    other = record_of(make_system("linear", True, seed=5), rows=120)
    whole = expand_error(system, [other])
    monkeypatch.setattr(realization, "FILTERED_ROWS", 32)
    for part, expected in zip(expand_error(system, [other]), whole, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("factor", "is_told"), [(0.9, True), (1.03, False)])
def test_a_response_that_grows_is_none(factor, is_told):
    us, ys = np.random.default_rng(0).normal(size=(250, 1)), np.zeros((250, 1))
    for row in range(249):
        ys[row + 1] = factor * ys[row] + us[row]
    found = extend_response([Signals(us, ys, np.ones(250, bool))], 60)
    assert (found is not None) == is_told
    if found is not None:
        np.testing.assert_allclose(found[1:40, 0, 0], factor ** np.arange(39.0), atol=1e-3)


def test_a_ridge_is_chosen_by_what_it_predicts():
    """Of more columns than rows tell apart, that of the least error in the fitted rows would follow the noise."""
    rng = np.random.default_rng(0)
    table, true = rng.normal(size=(60, 50)), np.concatenate([np.ones(3), np.zeros(47)])
    ys = table @ true + 3 * rng.normal(size=60)
    found = realization.solve_validated(table.T @ table, table.T @ ys[:, None], float(ys @ ys), 60)[:, 0]
    least = np.linalg.lstsq(table, ys, rcond=None)[0]
    assert np.linalg.norm(found - true) < 0.5 * np.linalg.norm(least - true)


@pytest.mark.parametrize("direct", [False, True])
def test_responses_and_modes_of_a_known_system_are_recovered(direct):
    system = make_system(direct=direct)
    record = record_of(system, rows=4000)
    true = response_of(system, 60)
    for find in (estimate_response, extend_response):
        found = find([record], 150)
        np.testing.assert_allclose(found[:60], true, atol=0.05 * np.abs(true).max())
    modes = next(realize(extend_response([record], 150), [5]))
    np.testing.assert_allclose(np.sort_complex(modes.rates), np.sort_complex(system.rates), atol=1e-4)
    refitted = fit_inputs(Modes(system.rates, system.c), [record], [("hold", True)])[0]
    np.testing.assert_allclose(refitted.b, system.b, atol=1e-6)
    np.testing.assert_allclose(refitted.direct, system.direct, atol=1e-6)


def test_what_would_grow_or_alternate_is_drawn_to_where_it_decays():
    rates = stable_rates(np.array([1.3 + 0.2j, 1.0 + 0j, -0.8 + 0j, 0j]))
    assert (rates.real < 0).all()
    np.testing.assert_allclose(rates.imag[:2], [np.angle(1.3 + 0.2j), 0])
    assert 3 < rates.imag[2] < np.pi  # The neighbour of a pole that has no logarithm.


def test_search_over_all_parameters_ends_at_the_noise():
    system = make_system()
    record = record_of(system, noise=0.1)
    rng = np.random.default_rng(3)
    layout = ModalLayout(system)
    x = layout.as_vector(system)
    off = layout.from_vector(x + 0.05 * rng.normal(size=len(x)))
    found = refine(off, [record])
    assert simulation_error(off, [record]) > 0.02
    assert simulation_error(found, [record]) < 1.02 * 0.01


@pytest.mark.parametrize(("kind", "direct"), [("hold", False), ("linear", False), ("hold", True)])
def test_identification_finds_how_many_states_and_how_inputs_go_on(kind, direct):
    system = make_system(kind, direct)
    record = record_of(system, rows=6000, noise=0.05)
    fitted, held = (Signals(*(part[rows] for part in record)) for rows in (slice(4000), slice(4000, 6000)))
    found = identify_modes([fitted], [held])
    assert found.system.states == 5
    assert (found.system.kind, found.system.has_direct) == (kind, direct)
    assert (found.mean / 2) ** 0.5 < 1.05 * 0.05
    true = response_of(system, 60)
    np.testing.assert_allclose(response_of(found.system, 60), true, atol=0.02 * np.abs(true).max())


def test_short_records_are_left_to_others():
    record = record_of(make_system(), rows=300)
    assert count_taps([record]) is None
    assert identify_modes([record], [record]) is None


def test_start_is_read_from_past_rows_with_the_error_that_is_said():
    system = make_system("linear", True)
    record = record_of(system, rows=4000, noise=0.1)
    matrices = as_matrices(system, [record])
    past = map_past(matrices, np.full(2, 0.01), 20, "linear")
    states = len(matrices.a)
    step = step_matrix(matrices.a, matrices.b, np.zeros(states), held=False)
    z, errors = step[:, states + 2 : -1] @ record.us[0], []
    for row in range(2000):
        if row >= 100:
            rows = slice(row - 19, row + 1)
            features = [record.ys[rows], np.ones((20, 2)), record.us[rows], np.zeros((20, 1))]
            errors.append(past.matrix @ np.concatenate(features, axis=1).ravel() + past.constant - z)
        z = (
            step[:, :states] @ z
            + step[:, states : states + 2] @ record.us[row]
            + step[:, states + 2 : -1] @ record.us[row + 1]
        )
    share = (matrices.c**2 @ np.mean(np.square(errors), axis=0)) / 0.01
    assert share.max() == pytest.approx(past.share, rel=0.3)
    assert map_past(matrices, np.full(2, 0.01), 60, "linear").share < past.share
