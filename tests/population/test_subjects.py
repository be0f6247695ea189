"""Predictions of subjects: the closed form of a dosed compartment, and derivatives by its constants."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit
from node_fit.data.events import Jumps
from node_fit.population.fit import build_population
from node_fit.population.subjects import Jets, propagate_jets, with_derivatives
from node_fit.runtime.placement import scope
from node_fit.solver.held_rows import march_rows
from node_fit.solver.problem import InitialValueProblem, between_rows

TIMES = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 8.0])
DOSES = ((0.0, 100.0), (4.0, 50.0))


def closed_form(ka: float, ke: float, v: float) -> np.ndarray:
    """Concentrations after doses into a gut; those at a dose's own time are before it."""
    total = np.zeros(len(TIMES))
    for time, amount in DOSES:
        since = np.maximum(TIMES - time, 0)
        total += amount * ka / (v * (ka - ke)) * (np.exp(-ke * since) - np.exp(-ka * since))
    return total


@pytest.fixture(scope="module")
def subjects():
    data = node_fit.Dataset.from_arrays(TIMES, np.ones((2, len(TIMES), 1)), states=["c"])
    data = node_fit.with_events(data, [{"time": time, "state": "gut", "add": amount} for time, amount in DOSES])
    equations = {"gut": "-ka*gut", "c": "ka*gut/v - ke*c"}
    field = functools.partial(node_fit.Known, equations=equations, constants={"ka": 1.5, "ke": 0.3, "v": 20.0})
    options = node_fit.Options(field=field, solver=node_fit.Solver(rtol=1e-9), precision="x64")
    made = build_population(data, ["ka", "v"], node_fit.MixedEffects(), options).subjects
    return made.refine_steps(np.tile(made.first(), (2, 1, 1)))


def test_predictions_are_the_closed_form(subjects):
    phi = np.log([[1.5, 0.3, 20.0], [0.8, 0.2, 30.0]])
    found = np.asarray(subjects.expand(phi[:, None]).f)[..., 0]
    np.testing.assert_allclose(found, [closed_form(*np.exp(each)) for each in phi], rtol=1e-6, atol=1e-8)


def test_derivatives_are_those_of_the_closed_form(subjects):
    """Of first and second order, through doses: each subject by its own constants."""
    phi, step = np.log([[1.5, 0.3, 20.0], [0.8, 0.2, 30.0]]), 1e-4
    found = subjects.expand(phi[:, None], 2)

    def predicted(phi: np.ndarray) -> np.ndarray:
        return np.stack([closed_form(*np.exp(each)) for each in phi])

    for i, first in enumerate(np.eye(3)):
        slope = (predicted(phi + step * first) - predicted(phi - step * first)) / (2 * step)
        np.testing.assert_allclose(np.asarray(found.first)[..., 0, i], slope, rtol=1e-5, atol=1e-6)
        for j, second in enumerate(np.eye(3)):
            ends = [predicted(phi + step * (one * first + two * second)) for one in (1, -1) for two in (1, -1)]
            bend = (ends[0] - ends[1] - ends[2] + ends[3]) / (4 * step**2)
            if i == j == 1:  # No part of the likelihood or its gradient asks for two coordinates without effects.
                bend = np.zeros_like(bend)
            np.testing.assert_allclose(np.asarray(found.second)[..., 0, i, j], bend, rtol=1e-3, atol=1e-4)


def test_what_a_dose_leaves_of_a_state_it_leaves_of_its_derivatives():
    """Numbers are those of all states, then first derivatives state by state, then those of second order."""
    jumps = Jumps(jnp.array([[0.5, 2.0]]), jnp.array([[3.0, 4.0]]))
    found = with_derivatives(jumps, BOTH, 2)
    wanted = [0.5, 2.0, *[0.5] * 2, *[2.0] * 2, *[0.5] * 3, *[2.0] * 3]
    np.testing.assert_array_equal(found.factor, [wanted])
    np.testing.assert_array_equal(found.shift, [[3.0, 4.0, *[0.0] * 10]])


BOTH = (True, True)  # Both coordinates have an effect.


def test_jets_follow_the_chain_rule():
    """Of third order, of a function of states that are functions of the coordinates themselves."""

    def states(phi):
        return jnp.stack([phi[0] ** 2 * phi[1], jnp.sin(phi[1] + phi[0])])

    def function(states, phi):
        return jnp.stack([states[0] * states[1] * jnp.exp(phi[0]), states[1] ** 3 + phi[1] * states[0]])

    def derivatives_of(function, order):
        return derivatives_of(jax.jacfwd(function), order - 1) if order else function

    with scope("x64"):
        phi = jnp.array([0.7, 0.3])
        inner = propagate_jets(lambda _, phi: states(phi), Jets.of(jnp.zeros(0), 0, BOTH, 3), phi, BOTH)
        found = propagate_jets(function, inner, phi, BOTH)
        assert [part.shape[1] for part in found.parts] == [1, 2, 3, 4]  # Each derivative once.
        for order, part in enumerate(found.whole(BOTH)):
            wanted = derivatives_of(lambda phi: function(states(phi), phi), order)(phi)
            np.testing.assert_allclose(part, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(Jets.of(found.flat(), 2, BOTH, 3).flat(), found.flat())


def test_each_interval_has_the_steps_that_it_needs(subjects):
    """The tolerance is met with more steps where rows lie far apart, and nowhere with the most of them."""
    phi = np.tile(subjects.first(), (2, 1, 1))
    counts, even = subjects.counts, replace(subjects, steps=subjects.most_steps)
    assert counts[np.diff(TIMES).argmax()] > counts[0]
    np.testing.assert_allclose(subjects.expand(phi).f, even.expand(phi).f, rtol=1e-7, atol=1e-9)
    assert np.array_equal(subjects.refine_steps(phi).counts, counts)


def test_traced_number_of_steps_gives_the_same_march():
    with scope("x64"):
        ts, y0 = jnp.array([[0.0, 1.0, 3.0]]), jnp.ones((1, 1))
        problem = InitialValueProblem(lambda t, y, u: -y, ts, y0, jnp.zeros((1, 3, 0)), jnp.zeros(1))
        given = ("tsit5", problem, between_rows(problem, "linear"))
        counts = (5, jnp.asarray(5), jnp.array([5, 10]))
        held, traced, apart = (march_rows(*given, count, (1e-6, 1e-8)) for count in counts)
    np.testing.assert_allclose(traced.ys, held.ys, rtol=1e-14)
    np.testing.assert_allclose(apart.ys[0, 1], held.ys[0, 1], rtol=1e-14)
    assert float(np.asarray(apart.errors)[0, 1]) < 0.1 * float(np.asarray(held.errors)[0, 1])
    np.testing.assert_allclose(traced.errors, held.errors, rtol=1e-9)
    np.testing.assert_allclose(held.ys[0, :, 0], np.exp([0, -1, -3]), rtol=1e-4)
