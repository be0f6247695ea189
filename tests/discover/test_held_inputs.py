"""Discovery in records whose inputs jump and are held between rows, against exact solutions."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.discover.search import FoundSystem, Vocabulary
from node_fit.discover.smoothing import find_held_inputs, smooth_record
from node_fit.discover.views import weak_view

ROWS, STEP = 90, 0.5
TS = STEP * np.arange(ROWS)
ON_AND_OFF = np.where(np.arange(ROWS) // 10 % 2 == 0, 1.0, 0.0)
QUICK = {"symbolic": False, "effort": "quick", "resamples": 0}


def heat(u, noise=0.0, after=None):
    """The temperature of `T' = 2.2 - 0.12 T + 9 u`, for an input that is held or linear between its values."""
    temperatures, fall = [20.0], np.exp(-0.12 * STEP)
    for at, now in enumerate(u[:-1]):
        slope = 0.0 if after is None else (after[at] - now) / STEP
        # The particular solution is linear in time: level + rate t.
        rate = 9 * slope / 0.12
        level = (2.2 + 9 * now - rate) / 0.12
        temperatures.append(level + rate * STEP + (temperatures[-1] - level) * fall)
    return np.array(temperatures) + noise * np.random.default_rng(0).standard_normal(len(u))


def record(u, ys):
    return nf.Dataset.from_arrays(TS, ys[:, None], u[:, None], states=("T",), inputs=("u",))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_rates_jump_as_a_held_input_does(noise):
    ys = heat(ON_AND_OFF, noise)
    exact = (2.2 - 0.12 * heat(ON_AND_OFF) + 9 * ON_AND_OFF)[3:-3]
    jumping = smooth_record(TS, ys[:, None], ON_AND_OFF[:, None], held=[True])
    smooth = smooth_record(TS, ys[:, None], ON_AND_OFF[:, None])
    error, without = (np.sqrt(np.mean((one.rates[3:-3, 0] - exact) ** 2)) for one in (jumping, smooth))
    assert error < without / 4
    between = TS[30] + np.array([-1e-9, 0.0, 0.1])
    slope = jumping.splines[0].derivative()(between)
    assert abs(slope[1] - slope[0]) == pytest.approx(9, rel=0.2) and abs(slope[2] - slope[1]) < 0.5


def test_a_jump_in_proportion_to_a_state_is_followed():
    """The rate of `x' = -0.2 x u` jumps by less the smaller the state is."""
    u = np.where(np.arange(ROWS) // 8 % 2 == 0, 1.0, 0.2)
    x = np.concatenate([[5.0], 5 * np.exp(-0.2 * STEP * np.cumsum(u[:-1]))])
    rates = smooth_record(TS, x[:, None], u[:, None], held=[True]).rates[:, 0]
    np.testing.assert_allclose(rates[3:-3], (-0.2 * x * u)[3:-3], atol=0.004)


def test_a_state_that_ignores_the_input_has_a_plain_spline():
    x = np.sin(0.3 * TS) + 0.02 * np.random.default_rng(1).standard_normal(ROWS)
    given, plain = (smooth_record(TS, x[:, None], ON_AND_OFF[:, None], held=[held]) for held in (True, False))
    np.testing.assert_array_equal(given.rates, plain.rates)


def test_the_weak_form_integrates_held_inputs():
    """The exact equation holds for each bump, apart from the rule's error for the bent state."""
    ys, errors = heat(ON_AND_OFF), []
    for held in (True, False):
        view = weak_view([smooth_record(TS, ys[:, None], ON_AND_OFF[:, None], held=[held])], 0.1)
        sums = view.weights @ np.column_stack([np.ones(len(view.values)), view.values])
        errors.append(np.abs(sums @ [2.2, -0.12, 9.0] - view.rates[:, 0]).max())
    assert errors[0] < errors[1] / 6


def test_the_response_of_states_tells_held_inputs_from_others():
    u = np.random.default_rng(2).uniform(0, 1, ROWS)
    for noise in (0.0, 0.1):
        assert find_held_inputs(record(u, heat(u, noise))) == (True,)
        assert find_held_inputs(record(u, heat(u, noise, after=u[1:]))) == (False,)
    smooth = 0.5 + 0.3 * np.sin(0.8 * TS) + 0.2 * np.cos(1.7 * TS)
    assert find_held_inputs(record(smooth, heat(smooth, 0.1, after=smooth[1:]))) == (False,)
    assert find_held_inputs(nf.Dataset.from_arrays(TS, heat(u)[:, None])) == ()


def test_terms_are_affine_in_an_input_of_two_levels():
    """Two values of an input determine no other function of it."""
    values = np.column_stack([heat(ON_AND_OFF), 1 + ON_AND_OFF])
    offered = {term.text for library in Vocabulary().make_terms(["T", "u"], values, []).values() for term in library}
    assert {"u", "T*u", "T**2"} <= offered
    assert not [text for text in offered if "u**2" in text or "(u)" in text or "/u" in text]
    values[5, 1] = 1.5
    offered = {term.text for library in Vocabulary().make_terms(["T", "u"], values, []).values() for term in library}
    assert "u**2" in offered


def test_a_pulse_between_long_rests_is_simulated():
    pulse = np.where(np.arange(2000) == 1900, 50.0, 0.0)
    system = FoundSystem({"x": "-x + u"}, {}, {"x": "-x + u"}, 0.0, 3, 0.0, False, held=("u",))
    ts = 0.01 * np.arange(2000)
    found = system.simulate([0.0], ts, {"u": pulse})[:, 0]
    assert found[1900] == 0.0 and found[1901] == pytest.approx(50 * (1 - np.exp(-0.01)), rel=1e-5)


@pytest.mark.parametrize("many_levels", [False, True])
def test_equations_with_a_held_input_are_found(many_levels):
    u = np.random.default_rng(3).uniform(0, 1, ROWS) if many_levels else ON_AND_OFF
    found = nf.discover(record(u, heat(u, 0.3)), libraries=("linear", "quadratic"), **QUICK)
    assert found.explained and found.found.held == ("u",)
    assert ("states respond so" in found.verdict) == many_levels
    assert set(coefficients(found)) == {"T", "u"}
    np.testing.assert_allclose([coefficients(found)["T"], coefficients(found)["u"]], [-0.12, 9.0], rtol=0.05)
    assert found.options.solver.inputs == "hold"
    assert found.best.options.solver.inputs == "hold"


def coefficients(found):
    """The constants that multiply names in the equation found."""
    rate = found.sympy()["T"].expand()
    return {str(name): float(value) for name, value in rate.as_coefficients_dict().items() if str(name) != "1"}
