"""Events that a state triggers: their times, derivatives of them, fits and predictions."""

import functools
import re

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.commands import node_fit, read_summary

import node_fit as nf
from node_fit.evaluation import diagnosis
from node_fit.model import rollout
from node_fit.runtime.placement import carry, dtype_of, scope

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
BALL = {"height": "speed", "speed": "-g"}
BOUNCE = [{"when": "height", "set": {"height": "0", "speed": "-e*speed"}}]


def ball(e: float = 0.8, g: float = 9.81, start: float = 2.0, rows: int = 41, end: float = 2.2) -> nf.Dataset:
    """A ball that falls and bounces, in closed form."""
    ts = np.linspace(0, end, rows)
    heights, speeds = np.empty(rows), np.empty(rows)
    for row, t in enumerate(ts):
        fall = np.sqrt(2 * start / g)
        if t <= fall:
            heights[row], speeds[row] = start - g * t**2 / 2, -g * t
            continue
        t, speed = t - fall, e * g * fall
        while t > 2 * speed / g:
            t, speed = t - 2 * speed / g, e * speed
        heights[row], speeds[row] = speed * t - g * t**2 / 2, speed - g * t
    return nf.Dataset.from_arrays(ts, np.stack([heights, speeds], axis=1), states=["height", "speed"])


def field_of(e: float, g: float):
    return functools.partial(
        nf.Known, equations=BALL, constants={"e": [e, 0.0, 1.0], "g": [g, 0.0, None]}, triggers=BOUNCE
    )


def test_predictions_bounce_where_the_ball_does():
    data = ball()
    with scope("x64"):
        model = nf.make_model(data, field=field_of(0.8, 9.81), key=KEY)
    np.testing.assert_allclose(model.predict(data), data.ys, atol=1e-6)
    alone = model.predict(y0=data.ys[0, 0], ts=data.ts[0])
    np.testing.assert_allclose(alone, data.ys[0], atol=1e-6)


def derivatives(states, x, backward=True):
    """The states at parameters, and their derivatives in forward mode, by differences, and as a gradient.

    All are of one program, since most of the time is that of compiling. The gradient, in backward mode, is that of a
    sum of the states with random weights.

    **Returns:** states, derivatives in forward mode and by differences, of shape `(*states, parameter)`; the gradient,
    and what it is by forward mode.
    """
    states = jax.jit(states)
    weights = np.random.default_rng(0).normal(size=jax.eval_shape(states, x).shape)

    @jax.jit
    def at(x):
        forward, ys = jax.jacfwd(lambda x: (states(x),) * 2, has_aux=True)(x)
        return ys, forward, jax.grad(lambda x: (weights * states(x)).sum())(x) if backward else x

    ys, forward, gradient = map(np.asarray, at(x))
    differences = [(np.asarray(at(x + step)[0]) - np.asarray(at(x - step)[0])) / 2e-5 for step in 1e-5 * np.eye(len(x))]
    return ys, forward, np.stack(differences, axis=-1), gradient, np.tensordot(weights, forward, weights.ndim)


def test_held_steps_bounce_and_are_differentiated_through_the_times():
    data = ball()
    with scope("x64"):
        model = nf.make_model(data, field=field_of(0.8, 9.81), key=KEY)
        batch = carry(model.batch(data), np.float64)
        assert batch.driven  # No step crosses a row.
        grid = np.linspace(0, 1, 3)[None]

        def solved(raw: jax.Array) -> jax.Array:
            moved = eqx.tree_at(lambda m: m.field.constants.raw, model, raw)
            problem = moved.problem(batch, moved.first_states(batch))
            return moved.solver.solve_held(problem, grid, between_rows=True).ys

        ys, forward, slopes, gradient, expected = derivatives(solved, model.field.constants.raw)
    np.testing.assert_allclose(model.scaler.unscale_states(ys), data.ys, atol=1e-7)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(forward, slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("measured", ["height", pytest.param("both", marks=pytest.mark.long)])
def test_constants_of_a_bounce_are_recovered(measured):
    """By Levenberg and Marquardt's method from the height alone, which is continuous; the speed is a hidden state."""
    data, later = ball(), ball(rows=61, end=3.0)
    words = {"optimizer": nf.LBFGS()}
    if measured == "height":
        data, later = (nf.Dataset.from_arrays(d.ts[0], d.ys[0, :, :1], states=["height"]) for d in (data, later))
        words = {"optimizer": nf.LevenbergMarquardt(), "hidden": ["speed"]}
    fit = nf.fit(data, field=field_of(0.75, 9.5), options=nf.Options(precision="x64"), **words)
    assert fit.model.constants() == pytest.approx({"e": 0.8, "g": 9.81}, rel=1e-3)
    np.testing.assert_allclose(fit.model.predict(later)[..., 0], later.ys[..., 0], atol=0.02)


def test_a_switch_goes_on_and_off():
    """A thermostat, whose heater is a state that does not move by itself."""
    data = nf.Dataset.from_arrays(np.linspace(0, 30, 121), np.ones((121, 2)) * [20.0, 1.0], states=["T", "on"])
    field = functools.partial(
        nf.Known,
        equations={"T": "0.2*(5 - T) + 5*on", "on": "0"},
        constants={"low": 18.0, "high": 22.0},
        triggers=[{"when": "T - low", "set": {"on": "1"}}, {"when": "high - T", "set": {"on": "0"}}],
    )
    with scope("x64"):
        model = nf.make_model(data, field=field, key=KEY, scaling=nf.Scaling(affine=False))
    temperature, on = model.predict(data)[0].T
    assert 17.99 < temperature.min() < 18.6 and 21.4 < temperature.max() < 22.01
    assert set(on.round(9)) == {0.0, 1.0} and 4 <= (np.diff(on) != 0).sum() <= 20
    assert (np.diff(temperature)[on[1:] * on[:-1] == 1] > 0).all()


STILL = {"x": "0", "n": "0"}
COUNT = {"n": "n + 1"}
# How solves march through rows: with adaptive steps, or with so many held ones in every interval.
MARCHES = ["adaptive", 2]
PRECISIONS = ["x32", "x64"]


def posed(equations, triggers, ts, starts, precision="x64", *, u=None, doses=(), constants=None, inputs="hold"):
    """A model in the user's units, and data with a trajectory for each of the starts.

    `ts` are the times of all trajectories, or a list with those of each.
    """
    starts = np.atleast_2d(np.asarray(starts, float))
    ts = ts if np.ndim(ts[0]) else [np.asarray(ts, float)] * len(starts)
    ys = [np.tile(start, (len(t), 1)) for t, start in zip(ts, starts, strict=True)]
    given = {"states": tuple(equations), "trajectories": tuple(f"{row}" for row in range(len(starts)))}
    if u is not None:
        given |= {"us": [np.asarray(u, float)[:, None]] * len(starts), "inputs": ("u",)}
    data = nf.Dataset.from_arrays(ts, ys, **given)
    data = nf.with_events(data, list(doses)) if doses else data
    if constants is None:
        first, *_ = equations
        constants, equations = {"idle": 1.0}, equations | {first: equations[first] + " + 0*idle"}
    field = functools.partial(nf.Known, equations=equations, constants=constants, triggers=triggers)
    solver = nf.Solver(inputs=inputs)
    with scope(precision):
        return nf.make_model(data, field=field, key=KEY, scaling=nf.Scaling(affine=False), solver=solver), data


def solve(model, batch, march, raw=None):
    """The states at all rows by predictions, or over held steps with their errors; `raw` are other constants."""
    model = model if raw is None else eqx.tree_at(lambda m: m.field.constants.raw, model, raw)
    problem = model.problem(batch, batch.ys[:, 0])
    if march == "adaptive":
        return model.solver.forecast(problem).ys, None
    found = model.solver.solve_held(problem, np.linspace(0, 1, march + 1)[None], between_rows=True)
    return found.ys, found.errors


def solved(*given, march="adaptive", precision="x64", **options):
    """The states of all trajectories at all rows, and the errors of held steps."""
    model, data = posed(*given, precision, **options)
    with scope(precision):
        batch = carry(model.batch(data), dtype_of(precision))
        ys, errors = eqx.filter_jit(solve)(model, batch, march)
    return np.asarray(ys), None if errors is None else np.asarray(errors)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("march", "rows"), [("adaptive", [2, 14, 200]), (2, [50])], ids=["adaptive", "held"])
def test_an_event_is_counted_once(march, rows, precision):
    """Two periods of oscillators that dip below levels, perhaps between two rows; they start beyond the upper ones."""
    equations = {"x": "v", "v": "-x", "level": "0", "n": "0", "m": "0"}
    triggers = [{"when": "x + level", "set": COUNT}, {"when": "level - x", "set": {"m": "m + 1"}}]
    starts = [[1.0, 0.0, level, 0.0, 0.0] for level in (0.999, 0.99, 0.9, 0.5, 0.3)]
    ts = [np.linspace(0, 12, each) for each in rows for _ in starts]
    ys, _ = solved(equations, triggers, ts, starts * len(rows), march=march, precision=precision)
    # By the end, x has risen through the lowest two once more.
    counted = np.array([[2, 1], [2, 1], [2, 1], [2, 2], [2, 2]])
    found = [each[len(t) - 1, 3:] for t, each in zip(ts, ys, strict=True)]
    np.testing.assert_array_equal(found, np.tile(counted, (len(rows), 1)))


DOSES = (
    ([-2.0], 1),  # through zero
    ([-1.0], 1),  # to zero
    ([-0.5], 0),  # towards it
    ([-2.0, 2.0, -2.0], 2),  # back, and through it again
    ([-2.0, -2.0], 1),  # when it is below already
)


@pytest.mark.parametrize("march", MARCHES)
def test_a_dose_lifts_a_level_that_falls_within_the_next_step(march):
    """Whatever the level was at the start: below zero, zero, or leaving it."""
    equations = {"x": "v", "v": "0", "n": "0"}
    doses = [{"time": 1.0, "state": "x", "add": 3.4}, {"time": 1.0, "state": "v", "set": -1.0}]
    doses += [{"trajectory": "3", "time": 0.0, "state": "x", "add": -0.5}]
    starts = [[-0.5, -2.0, 0.0], [-3.0, 0.0, 0.0], [0.0, -3.0, 0.0], [0.0, -2.4, 0.0]]
    ys, _ = solved(equations, [{"when": "x", "set": COUNT}], [0.0, 1.0, 2.0], starts, doses=doses, march=march)
    np.testing.assert_allclose(ys[:, -1, 0], [-0.1, -0.6, -0.6, -0.5], atol=1e-9)
    np.testing.assert_array_equal(ys[:, -1, 2], [1, 1, 1, 1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("march", MARCHES)
def test_a_dose_carries_a_level_through_zero(march, precision):
    """Also at the first row, where the sign at the start counts. What is measured at a dose's time comes before."""
    cases = [(first, *each) for first in (0.0, 1.0) for each in DOSES]
    doses = [
        {"trajectory": f"{row}", "time": first + time, "state": "x", "add": dose}
        for row, (first, each, _) in enumerate(cases)
        for time, dose in enumerate(each)
    ]
    given = STILL, [{"when": "x", "set": COUNT}], np.arange(6.0), [[1.0, 0.0]] * len(cases)
    ys, _ = solved(*given, doses=doses, march=march, precision=precision)
    np.testing.assert_array_equal(ys[:, -1], [[1 + sum(each), counted] for _, each, counted in cases])
    for row in (0, len(DOSES)):
        np.testing.assert_array_equal(ys[row, :, 1], np.arange(6) > cases[row][0])


def test_predictions_between_rows_count_an_event_once():
    """At a row's own time and between rows, there are intervals of no length."""
    model, data = posed(STILL, [{"when": "x", "set": COUNT}], np.arange(5.0), [1.0, 0.0], doses=[DOWN])
    between = model.predict(data, np.array([[0.0, 1.5, 2.0, 2.5, 4.0]]))[0, :, 1]
    np.testing.assert_array_equal(between, [0, 0, 0, 1, 1])


DOWN = {"time": 2.0, "state": "x", "add": -2.0}


@pytest.mark.parametrize(  # every pair of values
    ("inputs", "march", "precision"),
    [("hold", "adaptive", "x32"), ("hold", 2, "x64"), ("linear", "adaptive", "x64"), ("linear", 2, "x32")],
)
def test_a_set_point_moves_past_a_thermostat(inputs, march, precision):
    """The level is above zero before a held input steps and below it just after; on a line it falls in between."""
    ts = np.arange(9.0)
    u = np.where((ts >= 2) & (ts < 3) | (ts >= 5) & (ts < 7), 21.0, 15.0)
    given = {"T": "0", "n": "0"}, [{"when": "T - u", "set": COUNT}], ts, [[18.0, 0.0], [14.0, 0.0]]
    ys, _ = solved(*given, u=u, inputs=inputs, march=march, precision=precision)
    np.testing.assert_array_equal(ys[:, -1, 1], [2, 0])


@pytest.mark.parametrize("march", MARCHES)
def test_rows_that_fill_up_a_trajectory_hold_no_event(march):
    """The last input of a short trajectory begins at its last row, and so acts nowhere."""
    ts = [np.arange(4.0), np.arange(8.0)]
    us = [np.array([[0.0], [0.0], [0.0], [9.0]]), np.zeros((8, 1))]
    ys = [np.tile([1.0, 0.0], (len(t), 1)) for t in ts]
    data = nf.Dataset.from_arrays(ts, ys, us, states=["x", "n"], inputs=["u"])
    triggers = [{"when": "c*x - u", "set": COUNT}]
    field = functools.partial(nf.Known, equations=STILL, constants={"c": 1.0}, triggers=triggers)
    options = {"scaling": nf.Scaling(affine=False), "solver": nf.Solver(inputs="hold")}
    with scope("x64"):
        model = nf.make_model(data, field=field, key=KEY, **options)
        found, errors = eqx.filter_jit(solve)(model, carry(model.batch(data), np.float64), march)
    np.testing.assert_array_equal(np.asarray(found)[:, -1, 1], [0, 0])
    assert errors is None or np.asarray(errors).max() < 1


# A level that falls at a rate, or that a dose carries through zero.
RATED = {"x": "-rate", "n": "0", "rate": "0"}
DOSED = [{"trajectory": "1", "time": 0.8, "state": "x", "add": -4.0}]


@pytest.mark.long
@pytest.mark.parametrize("march", MARCHES)
@pytest.mark.parametrize(
    ("triggers", "end"),
    [
        # Both act, each on what the one before left.
        ([{"when": "x", "set": {"n": "n + 1"}}, {"when": "x", "set": {"n": "10*n"}}], 10),
        ([{"when": "x", "set": {"n": "10*n"}}, {"when": "x", "set": {"n": "n + 1"}}], 1),
        ([{"when": "x", "set": {"x": "1", "n": "n + 1"}}, {"when": "2*x", "set": {"n": "10*n"}}], 10),
        # A jump carries the level of another through zero, whether that is written before or after it.
        ([{"when": "x", "set": {"n": "5"}}, {"when": "2 - n", "set": {"n": "n + 2"}}], 7),
        ([{"when": "2 - n", "set": {"n": "n + 2"}}, {"when": "x", "set": {"n": "5"}}], 7),
        # One sets off the other, and that the first once more, whose level had been set back above zero.
        ([{"when": "x", "set": {"x": "1", "n": "n + 1"}}, {"when": "1 - n", "set": {"x": "x - 3"}}], 2),
    ],
)
def test_triggers_of_one_instant_act_in_their_order(triggers, end, march):
    starts = [[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    ys, _ = solved(RATED, triggers, [0.0, 0.4, 0.8, 1.2, 1.4], starts, doses=DOSED, march=march)
    np.testing.assert_array_equal(ys[:, -1, 1], [end, end])


@pytest.mark.parametrize("march", MARCHES)
def test_triggers_that_set_each_other_off_without_end_are_a_failure(march):
    triggers = [{"when": "x", "set": {"x": "1", "n": "-1"}}, {"when": "n", "set": {"x": "-1", "n": "1"}}]
    starts = [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [9.0, 1.0, 1.0]]
    ys, _ = solved(RATED, triggers, [0.0, 0.4, 0.8, 1.2, 1.4], starts, doses=DOSED, march=march)
    np.testing.assert_array_equal(np.isfinite(ys).all(axis=2), [[1, 1, 1, 0, 0]] * 2 + [[1] * 5])


def test_triggers_without_end_are_said():
    _, data = posed(STILL, [{"when": "x", "set": COUNT}], np.arange(3.0), [1.0, 0.0])
    gone = [diagnosis.Divergence("0", 1.0, away=False)]
    assert "or triggers act without end" in diagnosis.describe_divergence(data, gone, triggers=True)
    assert "triggers" not in diagnosis.describe_divergence(data, gone)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("march", MARCHES)
def test_a_level_that_is_zero_at_the_start_acts_when_it_has_been_away(march, precision):
    equations = {"x": "v", "v": "-g", "n": "0", "g": "0"}
    starts = {
        (0.0, -1.0, 0.0): 0,  # falls
        (0.0, 0.0, 0.0): 0,  # stays
        (0.0, -1.0, 10.0): 0,
        (0.0, 0.3, 10.0): 1,  # leaves zero, and is back within the first step
        (0.0, 2.0, 10.0): 1,  # or later
        (-0.2, 4.0, 10.0): 1,  # comes from below
        (-0.2, 1.0, 10.0): 0,  # and does not reach zero
        (-0.2, 0.0, 0.0): 0,
    }
    given = equations, [{"when": "x", "set": COUNT}], np.linspace(0, 1, 5), [[x, v, 0, g] for x, v, g in starts]
    ys, _ = solved(*given, march=march, precision=precision)
    np.testing.assert_array_equal(ys[:, -1, 2], list(starts.values()))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_ball_bounces_many_times_between_two_rows(precision):
    """Eight times; and a time at which bounces accumulate is not passed in silence."""
    equations, after = {"height": "speed", "speed": "-g", "n": "0"}, {"height": "0", "speed": "-0.5*speed", **COUNT}
    fall = np.sqrt(0.2)  # From 1 m; the bounces accumulate at three times this.
    eighth = fall * (1 + 2 * (1 - 0.5**7))
    times = [0.0, eighth + fall * 2**-8, 3.2 * fall]
    given = equations, [{"when": "height", "set": after}], times, [1.0, 0.0, 0.0]
    ys, _ = solved(*given, constants={"g": 10.0}, precision=precision)
    assert ys[0, 1, 2] == 8 and np.isnan(ys[0, 2]).all()


def test_a_second_event_in_a_held_step_asks_for_shorter_ones():
    """And acts at the end of the step until then. The level is zero at 0.5, 0.8, 1.1, 1.4, ..."""
    given = {"x": "-1", "n": "0"}, [{"when": "x", "set": {"x": "0.3", **COUNT}}], [0.0, 1.0, 1.9], [0.5, 0.0]
    ys, errors = solved(*given, march=1)
    assert errors.max() >= 100 and ys[0, -1, 1] >= 3
    ys, errors = solved(*given, march=8)
    np.testing.assert_array_equal(ys[0, :, 1], [0, 2, 5])
    assert errors.max() < 1


SLOPES = {
    "dose": (
        {"x": "-k*x", "n": "0"},
        [{"when": "x - 1", "set": {"x": "k*x + 2", "n": "n + k*x"}}],
        {"start": [2.0, 0.0], "doses": [{"time": 0.25, "state": "x", "add": -0.8}]},
    ),
    "cascade": (
        {"x": "-k", "n": "0"},
        [{"when": "x", "set": {"n": "n + 2*k"}}, {"when": "1 - n", "set": {"x": "1 + k*n"}}],
        {"start": [0.5, 0.0]},
    ),
    "twice": (
        {"x": "-k*x", "n": "x"},
        [{"when": "x - 1", "set": {"n": "n + k"}}, {"when": "2*x - 2", "set": {"x": "k + n*x"}}],
        {"start": [1.5, 1.0]},
    ),
    "set point": (
        {"x": "-k*x", "n": "x"},
        [{"when": "x - u", "set": {"x": "x + k", "n": "n*k"}}],
        {"start": [2.0, 1.0], "u": np.where(np.arange(9) == 3, 1.8, 0.0), "inputs": "hold"},
    ),
    "dip": (
        {"x": "v", "v": "-k*x", "n": "x*v"},
        [{"when": "x + 0.95", "set": {"n": "n + k*v", "v": "2*v"}}],
        {"start": [1.0, 0.0, 0.0]},
    ),
    "thrown": (
        {"x": "v", "v": "-10*k", "n": "x"},
        [{"when": "x", "set": {"x": "0", "v": "-0.9*v"}}],
        {"start": [0.0, 3.0, 0.0]},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("march", ["adaptive", 3])
@pytest.mark.parametrize("case", SLOPES)
def test_derivatives_are_those_of_differences(case, march):
    equations, triggers, options = SLOPES[case]
    ts, rest = np.linspace(0, 4 if case == "dip" else 1, 9), dict(options)
    model, data = posed(equations, triggers, ts, rest.pop("start"), constants={"k": [0.9, 0.0, None]}, **rest)
    with scope("x64"):
        batch, raw = carry(model.batch(data), np.float64), model.field.constants.raw
        states = lambda raw: solve(model, batch, march, raw)[0]  # noqa: E731
        _, forward, slopes, gradient, expected = derivatives(states, raw, backward=march != "adaptive")
    forward, slopes = forward[..., 0], slopes[..., 0]
    if march != "adaptive":
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)
    assert np.abs(forward[..., -1]).max() > 0.1
    # Adaptive steps differ between the two ends of a difference.
    np.testing.assert_allclose(forward, slopes, rtol=2e-4, atol=1e-3 if march == "adaptive" else 2e-5)


def test_what_is_remembered_of_triggers_lasts_from_piece_to_piece(monkeypatch):
    monkeypatch.setattr(rollout, "ROOMS", (4,))
    equations, triggers = {"x": "v", "v": "-x", "n": "0"}, [{"when": "x + 0.99", "set": COUNT}]
    model, data = posed(equations, triggers, np.linspace(0, 12, 90), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(np.unique(model.predict(data)[0, :, 2]), [0, 1, 2])


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [nf.LevenbergMarquardt(), nf.LBFGS()], ids=["lm", "lbfgs"])
def test_a_constant_is_fitted_through_an_event_at_a_dose(optimizer):
    """A dose carries the level through zero; what its trigger adds is measured in a state that is continuous."""
    ts = np.linspace(0, 4, 17)
    exact = np.where(ts <= 2, 0, 0.7 * (ts - 2))
    ys = np.stack([np.where(ts <= 2, 1.0, -1.0), exact], axis=1)
    data = nf.with_events(nf.Dataset.from_arrays(ts, ys, states=["x", "area"]), [DOWN])
    field = functools.partial(
        nf.Known,
        equations={"x": "0", "area": "on", "on": "0"},
        constants={"a": [0.4, 0.0, None]},
        triggers=[{"when": "x", "set": {"on": "a"}}],
    )
    frozen = nf.Training(freeze=("start.hidden",))
    options = nf.Options(precision="x64", start="first")
    fit = nf.fit(data, field=field, hidden=["on"], optimizer=optimizer, training=frozen, options=options)
    assert fit.model.constants() == pytest.approx({"a": 0.7}, rel=1e-4)


@pytest.mark.parametrize(
    ("triggers", "said"),
    [
        ([{"when": "height"}], "a trigger must have the form"),
        ([{"when": "height", "set": {"mass": "1"}}], "'mass', which is not a state; the states are height, speed"),
        ([{"when": "hight", "set": {"speed": "0"}}], "'hight' is not a state"),
        ([{"when": "height >", "set": {"speed": "0"}}], "equation of 'when'"),
    ],
)
def test_a_wrong_trigger_is_refused(triggers, said):
    field = functools.partial(nf.Known, equations=BALL, constants={"g": 9.81}, triggers=triggers)
    with pytest.raises(ValueError, match=re.escape(said)):
        nf.make_model(ball(), field=field, key=KEY)


@pytest.mark.parametrize("solver", [nf.Solver("kvaerno5"), nf.Solver(stepping="adaptive")], ids=str)
def test_other_solvers_bounce_in_training_too(solver):
    data = ball()
    with scope("x64"):
        model = nf.make_model(data, field=field_of(0.8, 9.81), solver=solver, key=KEY)
        solved = model.simulate(model.batch(data))
    assert bool(solved.ok.all())
    np.testing.assert_allclose(model.scaler.unscale_states(np.asarray(solved.ys)), data.ys, atol=1e-3)


@pytest.mark.long
def test_the_command_fits_a_bounce_and_its_model_is_read_back(tmp_path):
    data = ball()
    table = np.column_stack([data.ts[0], data.ys[0]])
    np.savetxt(tmp_path / "ball.csv", table, delimiter=",", header="t,height,speed", comments="")
    ran = node_fit(
        tmp_path, "data=table", "data.path=ball.csv", "data.time=t", "data.states=[height,speed]", "field=known",
        "+field.equations={height: speed, speed: -g}", "+field.constants={e: [0.7, 0, 1], g: [9, 0, null]}",
        "field.triggers=[{when: height, set: {height: 0, speed: -e*speed}}]", "optimizer=lm", "precision=x64",
        "data.split.test=0.3", "data.split.validation=0", "hydra.run.dir=run",
    )  # fmt: skip
    assert ran.code == 0, ran
    summary = read_summary(tmp_path / "run")
    assert summary["constants"] == pytest.approx({"e": 0.8, "g": 9.81}, rel=1e-2)
    assert summary["metrics"]["test"]["nrmse"] < 0.05
    model = nf.load(tmp_path / "run" / "model.safetensors")
    assert model.field.triggers and np.isfinite(model.predict(data)).all()


COUNTED = {"x": "-x/10", "n": "0"}


@pytest.mark.parametrize("march", ["adaptive", 1])
@pytest.mark.parametrize(("begin", "gap"), [(0.3, 0.25), (0.1, 0.1)])
def test_a_level_that_is_zero_at_a_row_acts_there_and_once(begin, gap, march):
    ts = begin + gap * np.arange(13)
    triggers = [{"when": f"{float(ts[row])!r} - t", "set": COUNT} for row in (2, 7, 9)]
    ys, _ = solved(COUNTED, triggers, ts, [1.0, 0.0], march=march)
    assert (np.flatnonzero(np.diff(ys[0, :, 1])) + 1).tolist() == [2, 7, 9]
    assert ys[0, -1, 1] == 3


@pytest.mark.long
def test_the_time_of_a_level_at_a_row_has_the_derivative_of_later_rows():
    """And at that row, where the state jumps, that from before it."""
    ts = 0.3 + 0.25 * np.arange(7)
    triggers = [{"when": "tau - t", "set": {"x": "x + 1"}}]
    model, data = posed({"x": "-x/2"}, triggers, ts, [1.0], constants={"tau": float(ts[3])})
    with scope("x64"):
        batch = carry(model.batch(data), np.float64)
        slopes = jax.jit(jax.jacrev(lambda raw: solve(model, batch, 2, raw)[0][0, :, 0]))(model.field.constants.raw)
    # The constant is a multiple of its first value.
    expected = ts[3] * np.where(ts < ts[3], 0, 0.5 * np.exp(-(ts - ts[3]) / 2))
    np.testing.assert_allclose(slopes[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(("level", "count"), [("cos(25*t) + 0.9", 8), ("sin(40*t + 0.3) - 0.5", 13)])
def test_levels_that_swing_faster_than_the_rows_are_followed_or_said(level, count):
    triggers, ts = [{"when": level, "set": COUNT}], np.linspace(0, 2, 5)
    ys, _ = solved(COUNTED, triggers, ts, [1.0, 0.0])
    assert ys[0, -1, 1] == count
    _, errors = solved(COUNTED, triggers, ts, [1.0, 0.0], march=2)
    assert errors.max() > 100  # Of the tolerance: a fit takes shorter steps, or says that there may be no more.
