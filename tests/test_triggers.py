"""Events that a state triggers: their times, derivatives of them, fits and predictions."""

import functools
import re

import equinox as eqx
import jax
import numpy as np
import pytest
from commands import node_fit, read_summary

import node_fit as nf
from node_fit.runtime.precision import carry, scope

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


@pytest.mark.parametrize("substeps", [2, 4])
def test_held_steps_bounce_and_are_differentiated_through_the_times(substeps):
    data, names = ball(), ("e", "g")
    with scope("x64"):
        model = nf.make_model(data, field=field_of(0.8, 9.81), key=KEY)
        batch = carry(model.batch(data), np.float64)
        assert batch.driven  # No step crosses a row.
        grid = np.linspace(0, 1, substeps + 1)[None]

        def solved(raw: jax.Array) -> jax.Array:
            moved = eqx.tree_at(lambda m: m.field.constants.raw, model, raw)
            problem = moved.problem(batch, moved.first_states(batch))
            return moved.solver.solve_held(problem, grid, between_rows=True).ys

        raw = model.field.constants.raw
        found = model.scaler.unscale_states(np.asarray(solved(raw)))
        np.testing.assert_allclose(found, data.ys, atol=1e-7)
        forward = np.asarray(jax.jacfwd(solved)(raw))
        np.testing.assert_allclose(jax.jacrev(solved)(raw), forward, rtol=1e-8, atol=1e-8)
        for which, _ in enumerate(names):
            step = np.eye(2)[which] * 1e-5
            slope = (np.asarray(solved(raw + step)) - np.asarray(solved(raw - step))) / 2e-5
            np.testing.assert_allclose(forward[..., which], slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("measured", ["height", "both"])
def test_constants_of_a_bounce_are_recovered(measured):
    """By Levenberg and Marquardt's method from the height alone, which is continuous; the speed is a hidden state."""
    data, later = ball(), ball(rows=61, end=3.0)
    options = {"optimizer": nf.LBFGS()}
    if measured == "height":
        data, later = (nf.Dataset.from_arrays(d.ts[0], d.ys[0, :, :1], states=["height"]) for d in (data, later))
        options = {"optimizer": nf.LevenbergMarquardt(), "hidden": ["speed"]}
    fit = nf.fit(data, field=field_of(0.75, 9.5), precision="x64", **options)
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
def test_other_solvers_are_refused(solver):
    with pytest.raises(ValueError, match="triggers of a field need an explicit method with held steps"):
        nf.fit(ball(), field=field_of(0.8, 9.81), solver=solver, precision="x64")


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
