"""Inputs between measurements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.runtime.placement import scope
from node_fit.solver.problem import InitialValueProblem, between_rows, interpolate, polynomials

TS = np.array([0.0, 1.0, 1.5, 4.0])
US = np.array([[0.0, 5.0], [2.0, 4.0], [-1.0, 4.0], [3.0, 0.0]])


@pytest.fixture(autouse=True)
def double():
    with scope("x64"):
        yield


def at(times, kind: str, ts=TS, us=US) -> np.ndarray:
    program = jax.jit(jax.vmap(lambda t: interpolate(t, jnp.asarray(ts), jnp.asarray(us), kind)))
    return np.asarray(program(jnp.asarray(times)))


@pytest.mark.parametrize("kind", ["linear", "hold"])
def test_at_the_measured_times_it_is_what_was_measured(kind):
    assert np.array_equal(at(TS, kind), US)


def test_linear_is_the_straight_line_and_hold_the_last_value():
    times = np.linspace(0.0, 4.0, 41) + 0.013
    times = times[times < 4]
    lines = np.stack([np.interp(times, TS, US[:, channel]) for channel in range(2)], axis=1)
    assert np.allclose(at(times, "linear"), lines, atol=1e-14)
    assert np.array_equal(at(times, "hold"), US[np.searchsorted(TS, times) - 1])


@pytest.mark.parametrize("kind", ["linear", "hold"])
def test_outside_it_is_the_nearest_measurement(kind):
    assert np.array_equal(at([-7.0, -1e-9, 4.1, 99.0], kind), US[[0, 0, 3, 3]])


@pytest.mark.parametrize("kind", ["linear", "hold"])
def test_padding_changes_nothing(kind):
    padded_ts = np.concatenate([TS, np.repeat(TS[-1:], 3)])
    padded_us = np.concatenate([US, np.repeat(US[-1:], 3, axis=0)])
    times = np.concatenate([TS, np.linspace(-1.0, 6.0, 29)])
    assert np.array_equal(at(times, kind, padded_ts, padded_us), at(times, kind))


@pytest.mark.parametrize("kind", ["linear", "hold"])
def test_one_measurement_holds_for_ever_and_no_input_stays_empty(kind):
    assert np.array_equal(at([-1.0, 0.0, 5.0], kind, TS[:1], US[:1]), US[[0, 0, 0]])
    assert at([0.5], kind, TS, np.zeros((4, 0))).shape == (1, 0)


def test_values_may_have_more_axes():
    many = US[:, :, None] * np.arange(1.0, 4.0)
    assert np.allclose(at([0.25, 2.0], "linear", TS, many)[..., 1], 2 * at([0.25, 2.0], "linear"))


@pytest.mark.parametrize("kind", ["linear", "hold"])
def test_its_gradient_is_finite_on_padding_too(kind):
    ts = jnp.asarray(np.concatenate([TS, TS[-1:]]))

    def total(us):
        return jax.vmap(lambda t: interpolate(t, ts, us, kind))(jnp.asarray([-1.0, 0.25, 4.0, 5.0])).sum()

    gradient = jax.grad(total)(jnp.asarray(np.concatenate([US, US[-1:]])))
    assert np.isfinite(gradient).all()
    assert np.isclose(gradient.sum(), 8), "each of four times and two channels is a mean of measurements"


@pytest.mark.slow
def test_cubic_is_exact_on_a_parabola_and_smooth_at_the_samples():
    ts = jnp.array([0.0, 0.3, 1.0, 1.2, 2.0])
    parabola = lambda t: 1.0 - 2.0 * t + 3.0 * t**2  # noqa: E731
    us = parabola(ts)[:, None]
    at = jnp.linspace(0.31, 1.19, 9)  # Between samples with neighbours on both sides.
    found = jax.vmap(lambda t: interpolate(t, ts, us, "cubic"))(at)
    np.testing.assert_allclose(found[:, 0], parabola(at), rtol=1e-4)
    wild = jnp.array([0.0, 1.0, -1.0, 2.0, 0.0])[:, None]
    slope = jax.grad(lambda t: interpolate(t, ts, wild, "cubic")[0])
    for knot in ts[1:-1]:
        np.testing.assert_allclose(slope(knot - 1e-4), slope(knot + 1e-4), rtol=0.02, atol=0.02)
        np.testing.assert_allclose(interpolate(knot, ts, wild, "cubic"), wild[ts == knot][0], atol=1e-6)


def test_cubic_holds_the_ends_and_ignores_padding():
    ts, us = jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 4.0, 2.0])[:, None]
    padded_ts, padded_us = jnp.array([0.0, 1.0, 2.0, 2.0, 2.0]), jnp.array([1.0, 4.0, 2.0, 2.0, 2.0])[:, None]
    for t in (-1.0, 0.4, 1.7, 2.0, 3.0):
        one = interpolate(jnp.asarray(t), ts, us, "cubic")
        np.testing.assert_allclose(interpolate(jnp.asarray(t), padded_ts, padded_us, "cubic"), one, rtol=1e-6)
    assert float(interpolate(jnp.asarray(-1.0), ts, us, "cubic")[0]) == 1.0
    assert float(interpolate(jnp.asarray(9.0), ts, us, "cubic")[0]) == 2.0


@pytest.mark.parametrize("kinds", [("hold", "linear"), ("linear", "hold"), ("cubic", "hold"), ("cubic", "linear")])
def test_each_input_has_its_own_kind(kinds):
    """At any time, and as polynomials between rows."""
    times = np.linspace(-1.0, 5.0, 61)
    expected = np.stack([at(times, kind)[:, place] for place, kind in enumerate(kinds)], axis=1)
    np.testing.assert_allclose(at(times, kinds), expected, atol=1e-14)
    parts = polynomials(TS[None], US[None], kinds)
    share, row = (times - TS[1]) / (TS[2] - TS[1]), 1
    inside = (share > 0) & (share < 1)
    found = sum(np.asarray(part)[0, row] * share[inside, None] ** power for power, part in enumerate(parts))
    np.testing.assert_allclose(found, expected[inside], atol=1e-12)


def test_steps_of_a_held_input_are_not_smooth_beside_another():
    still = InitialValueProblem(lambda t, y, u: y, TS[None], jnp.ones((1, 1)), US[None], np.zeros(1))
    assert between_rows(still, "linear").are_smooth
    assert not between_rows(still, ("linear", "hold")).are_smooth and not between_rows(still, "hold").are_smooth


def test_another_number_of_kinds_is_refused():
    with pytest.raises(ValueError, match=r"solver\.inputs names 3 interpolations, but there are 2 inputs"):
        at([0.5], ("hold", "linear", "hold"))
