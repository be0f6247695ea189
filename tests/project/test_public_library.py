"""The public library: arguments of `fit` and their errors, the methods of a `Fit` and a model, and the public names."""

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from helpers.problems import SMALL, rotation

import node_fit as nf
from node_fit.fitting.resolve import Choice
from node_fit.objectives.objective import CustomLoss
from node_fit.runtime.placement import dtype_of, scope

ROOT = Path(__file__).parents[2]
DIRECT = nf.Options(recipe="direct", penalty=nf.Penalty())
SHORT = {"field": nf.Linear, "options": DIRECT}


def losses(fit: nf.Fit) -> list[float]:
    return [record.train_loss for record in fit.history]


@pytest.mark.slow
def test_a_bare_optax_transformation_is_an_optimizer():
    adam = optax.adam(1e-2)
    training = nf.Training(steps=30, chunk_steps=10)
    bare, wrapped = (
        nf.fit(rotation(), optimizer=given, training=training, **SHORT) for given in (adam, nf.Optax(adam))
    )
    assert losses(bare)[-1] < 0.9 * losses(bare)[0]
    assert losses(bare) == losses(wrapped)
    assert wrapped.compiles == 0
    plan = nf.Recipe({"first": nf.Plan(optimizer=adam, steps=10)})
    planned = nf.fit(rotation(), training=training, field=nf.Linear, options=replace(DIRECT, recipe=plan))
    alone = nf.fit(rotation(), optimizer=adam, training=nf.Training(steps=10, chunk_steps=10), **SHORT)
    assert losses(planned) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.slow
def test_a_diffrax_solver_with_a_name_here_is_the_solver_of_that_name():
    assert nf.Options(solver=diffrax.Tsit5()).solver == nf.Options(solver="tsit5").solver == nf.Solver()
    training = nf.Training(steps=4, chunk_steps=2)
    named, given = (
        nf.fit(rotation(), solver=solver, training=training, **SHORT) for solver in ("tsit5", diffrax.Tsit5())
    )
    assert losses(named) == losses(given)
    assert given.compiles == 0


@pytest.mark.slow
@pytest.mark.parametrize("stepping", ["adaptive", "even"])
def test_any_other_diffrax_solver_trains_with_its_own_steps(stepping, tmp_path):
    given = diffrax.Ralston() if stepping == "adaptive" else nf.Solver(diffrax.Ralston(), stepping=stepping)
    assert nf.Options(solver=given).solver.stepping == stepping
    fit = nf.fit(rotation(), solver=given, training=nf.Training(steps=20, chunk_steps=5), **SHORT)
    assert losses(fit)[-1] < 0.5 * losses(fit)[0]
    assert fit.model.solver.method == diffrax.Ralston()
    assert np.isfinite(fit.predict(rotation())).all()
    fit.save(tmp_path / "ralston.node")
    again = nf.load(tmp_path / "ralston.node", extensions=["diffrax"])
    np.testing.assert_array_equal(again.predict(rotation()), fit.predict(rotation()))


def test_a_diffrax_solver_holds_no_steps():
    sentence = (
        r"stepping=held needs a method that node_fit steps itself \(euler, .*\), and Ralston is stepped by Diffrax; "
    )
    with pytest.raises(ValueError, match=sentence + r"use stepping=adaptive\.$"):
        nf.Solver(diffrax.Ralston(), stepping="held")
    with pytest.raises(ValueError, match="horizon needs given steps"):
        nf.TrajectoryMatching(solver=nf.Solver(diffrax.Ralston(), stepping="even"), horizon=0.5)


def absolute_error(model, batch):
    off = jnp.abs(model.simulate(batch).ys - batch.ys)
    return jnp.where(batch.mask, off, 0).sum() / batch.mask.sum()


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_plain_function_is_an_objective(batch_size):
    stage = nf.Stage(absolute_error, optax.adam(3e-2), 60, batch_size=batch_size)
    assert isinstance(stage.objective, CustomLoss)
    data = rotation()
    fit = nf.fit(data, field=nf.Linear, training=nf.Training(chunk_steps=20), options=nf.Options(recipe=[stage]))
    assert losses(fit)[-1] < 0.8 * losses(fit)[0]
    if batch_size is None:
        scaled = fit.model.scaler.scale_states
        error = np.abs(scaled(fit.predict(data)) - scaled(data.ys)).mean()
        assert error == pytest.approx(min(losses(fit)), rel=1e-3)


def test_a_function_that_returns_no_scalar_is_refused():
    stage = nf.Stage(lambda model, batch: batch.ys, optax.adam(1e-2), 5)
    with pytest.raises(ValueError, match=r"a loss must return a scalar, but .* returns shape \(3, 12, 2\)\."):
        nf.fit(rotation(), field=nf.Linear, options=nf.Options(recipe=[stage]))


# Runs in a process without the tests' type checker, which would raise first.
WRONG = """
import json, jax, numpy as np, pandas as pd, node_fit as nf

data = nf.Dataset.from_arrays(np.arange(4.0), np.random.default_rng(0).normal(size=(4, 2)))
frame = pd.DataFrame({"t": [0.0, 1.0], "x": [1.0, 2.0]})

def field(t, y, u):
    return -y

calls = {
    "optimizer": lambda: nf.fit(data, optimizer="adma"),
    "optimizer type": lambda: nf.fit(data, optimizer=5),
    "field name": lambda: nf.fit(data, field="mpl"),
    "known name": lambda: nf.fit(data, field="known"),
    "solver name": lambda: nf.fit(data, solver="kvaerno"),
    "loss": lambda: nf.fit(data, options=nf.Options(loss="hubr")),
    "loss type": lambda: nf.fit(data, options=nf.Options(loss=2)),
    "start type": lambda: nf.fit(data, start=3),
    "train": lambda: nf.fit(frame),
    "validation": lambda: nf.fit(data, validation=frame),
    "field": lambda: nf.fit(data, field=field),
    "callbacks": lambda: nf.fit(data, callbacks=print),
    "penalty": lambda: nf.fit(data, options=nf.Options(penalty=0.1)),
    "recipe": lambda: nf.fit(data, options=nf.Options(recipe="defalt")),
    "solver": lambda: nf.fit(data, solver=5),
    "objective": lambda: nf.Stage("mse", nf.Adam(), 5),
    "model": lambda: nf.fit(data, model="model.safetensors"),
    "scaling": lambda: nf.fit(data, options=nf.Options(scaling=5)),
    "training": lambda: nf.fit(data, training=5),
    "ensemble": lambda: nf.fit(data, options=nf.Options(ensemble="3")),
    "start": lambda: nf.fit(data, start="furst"),
    "observation": lambda: nf.fit(data, options=nf.Options(observation="lnear")),
    "hidden": lambda: nf.fit(data, hidden="h"),
    "device": lambda: nf.fit(data, options=nf.Options(device=5)),
    "prediction_solver": lambda: nf.fit(data, options=nf.Options(prediction_solver=5)),
    "seed": lambda: nf.fit(data, options=nf.Options(seed=-1)),
    "progress": lambda: nf.fit(data, progress="bar"),
    "options": lambda: nf.fit(data, options={"seed": 1}),
    "options of several": lambda: nf.fit_several(data, nf.Options()),
    "ensembles": lambda: nf.fit_several(data, [nf.Options(ensemble=3)]),
    "overview": lambda: nf.fit_several(data, [nf.Options()], overview=print),
    "key": lambda: nf.make_model(data, key=0),
    "load": lambda: nf.load(5),
    "path": lambda: nf.read_table(5, time="t", states=["x"]),
    "frame": lambda: nf.from_frame("data.csv", time="t", states=["x"]),
    "states": lambda: nf.Dataset.from_arrays(np.arange(4.0), np.zeros((4, 2)), states="xy"),
    "Split": lambda: nf.Split(validation="half"),
    "data": lambda: nf.make_model(data, key=jax.random.key(0)).predict(frame),
    "Training": lambda: nf.Training(batch_size=1.5),
    "Training range": lambda: nf.Training(stride=0),
    "Devices": lambda: nf.Devices(count="many"),
    "Scaling": lambda: nf.Scaling(log="x"),
    "Penalty": lambda: nf.Penalty(smoothness="weak"),
    "Solver": lambda: nf.Solver(rtol="tight"),
    "Solver method": lambda: nf.Solver(5),
    "Adam": lambda: nf.Adam("fast"),
    "LBFGS": lambda: nf.LBFGS(memory=None),
    "LevenbergMarquardt": lambda: nf.LevenbergMarquardt(tries=2.5),
    "Optax": lambda: nf.Optax("adam"),
    "Stage": lambda: nf.Stage(nf.TrajectoryMatching(), nf.Adam(), "many"),
    "TrajectoryMatching": lambda: nf.TrajectoryMatching(penalty=5),
    "MultipleShooting": lambda: nf.MultipleShooting(rows="ten"),
    "Plan": lambda: nf.Plan(steps="many"),
    "Recipe": lambda: nf.Recipe([nf.Plan()]),
    "MLP": lambda: nf.MLP(2, width="wide", key=jax.random.key(0)),
}
said = {}
for name, call in calls.items():
    try:
        call()
        said[name] = "nothing"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""
SENTENCES = {
    "optimizer": r"optimizer must be one of lbfgs, adam, adamw, lm, got 'adma'; did you mean 'adam'\?",
    "optimizer type": r"optimizer must be lbfgs, .*, one of node_fit's such as Adam\(1e-2\), or an Optax .*, got 5\.",
    "train": r"train must be a node_fit\.Dataset, got a DataFrame; make one with node_fit\.from_frame\(frame, .*\.",
    "validation": r"validation must be a node_fit\.Dataset, got a DataFrame; make one with .*\.",
    "field": r"field must be an equinox\.Module that is called with \(t, y, u\), or a function that makes one when it "
    r"is called with \(states, inputs, key=\.\.\.\), but <function field at .*> takes no key; .*\.",
    "callbacks": r"callbacks must be a list of node_fit\.Callback objects, got <built-in function print>; "
    r"subclass node_fit\.Callback and override on_chunk_end\(records, state\)\.",
    "penalty": r"penalty must be auto or a node_fit\.Penalty such as Penalty\(ridge=0\.1\), got 0\.1\.",
    "recipe": r"recipe must be default, direct, a node_fit\.Recipe or a list of node_fit\.Stage, got 'defalt'\.",
    "solver": r"solver must be a node_fit\.Solver or a diffrax\.AbstractSolver, got 5\.",
    "objective": r"objective must be an objective such as .*, or a function loss\(model, batch\) .*, got 'mse'\.",
    "model": r"model must be a NeuralODE to continue from, such as fit\.model or .*, got a str; .*\.",
    "scaling": r"scaling must be a node_fit\.Scaling such as Scaling\(log=\['x'\]\), got 5\.",
    "training": r"training must be a node_fit\.Training such as Training\(steps=500\), got 5\.",
    "ensemble": r"ensemble must be a number of members, 'auto' or a node_fit\.Members, got '3'\.",
    "start": r"start must be one of auto, first, fitted, encoder, .*, got 'furst'; did you mean 'first'\?",
    "start type": r"start must be auto, first, .*, or one of node_fit's such as Fitted\(given=5\), got 3\.",
    "observation": r"observation must be one of measured, linear, direct, .*, got 'lnear'; did you mean 'linear'\?",
    "field name": r"field must be one of mlp, linear, .*, got 'mpl'; did you mean 'mlp'\?",
    "known name": r"field='known' is not enough: Known needs equations; write Known\(equations=\.\.\.\)\.",
    "solver name": r"solver must be one of euler, heun, .*, got 'kvaerno'; did you mean 'kvaerno5'\?",
    "loss": r"loss must be one of squares, huber, student, laplace, poisson, .*, got 'hubr'; did you mean 'huber'\?",
    "loss type": r"loss must be squares, huber, .*, or one of node_fit's such as Huber\(.*\), got 2\.",
    "hidden": r"hidden must be auto, a number of states or a list of their names, got 'h'\.",
    "device": r"device must be auto, cpu, gpu or a node_fit\.Devices, got 5\.",
    "prediction_solver": r"prediction_solver must be a node_fit\.Solver or a diffrax\.AbstractSolver, got 5\.",
    "seed": r"seed must be an integer from 0 to 4294967295, got -1\.",
    "progress": r"progress must be True or False or None, got 'bar'\.",
    "options": r"options must be a node_fit\.Options such as Options\(seed=1\), got \{'seed': 1\}\.",
    "ensembles": r"fit_several makes one fit for each of the options; pass ensemble=1, or use fit\.",
    "options of several": r"options must be a list of node_fit\.Options, got Options\(.*\.",
    "overview": r"overview must be a node_fit\.Callback or None, got <built-in function print>\.",
    "key": r"key must be a JAX random key such as jax\.random\.key\(0\), got 0\.",
    "load": r"path must be the name of a file that a model was saved to, got 5\.",
    "path": r"path must be a file, a list of files or a glob, got 5\.",
    "frame": r"frame must be a pandas\.DataFrame, got a str; read files with node_fit\.read_table, and .*\.",
    "states": r"states must be a list of names, got 'xy'\.",
    "Split": r"validation must be a number or auto, got 'half'\.",
    "data": r"data must be a node_fit\.Dataset, got a DataFrame; make one with .*\.",
    "Training": r"batch_size must be an integer or None, got 1\.5\.",
    "Training range": r"stride must be at least 1, got 0\.",
    "Devices": r"count must be an integer or auto or None, got 'many'\.",
    "Scaling": r"log must be a list \(each a string\), got 'x'\.",
    "Penalty": r"smoothness must be a number or an array or None, got 'weak'\.",
    "Solver": r"rtol must be a number or a list \(each a number\) or None, got 'tight'\.",
    "Solver method": r"method must be a string or a diffrax\.AbstractSolver, got 5\.",
    "Adam": r"learning_rate must be a number or an array, got 'fast'\.",
    "LBFGS": r"memory must be an integer, got None\.",
    "LevenbergMarquardt": r"tries must be an integer, got 2\.5\.",
    "Optax": r"transformation must be an Optax transformation such as optax\.adam\(1e-3\), got 'adam'\.",
    "Stage": r"steps must be an integer, got 'many'\.",
    "TrajectoryMatching": r"penalty must be a node_fit\.Penalty, got 5\.",
    "MultipleShooting": r"rows must be an integer, got 'ten'\.",
    "Plan": r"steps must be an integer or None, got 'many'\.",
    "Recipe": r"stages must be a dict of names and node_fit\.Plan objects, got \[Plan\(.*\.",
    "MLP": r"width must be an integer or None, got 'wide'\.",
}


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", WRONG], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", SENTENCES)
def test_what_is_wrong_is_said_in_a_sentence(name, said):
    assert re.fullmatch("ValueError: " + SENTENCES[name], said[name]), said[name]


@pytest.fixture(scope="module")
def fitted() -> nf.Fit:
    """A fit of a few steps, which leaves something to learn."""
    return nf.fit(rotation(1), training=nf.Training(steps=6, chunk_steps=1), **SHORT)


@pytest.mark.slow
def test_a_fit_goes_on_from_an_earlier_model(fitted):
    still = nf.Adam(1e-9)
    training = nf.Training(steps=1, chunk_steps=1)
    later = nf.fit(
        rotation(1), model=fitted.model, optimizer=still, training=training, options=nf.Options(recipe="direct")
    )
    best = min(losses(fitted))
    assert best < 0.5 * losses(fitted)[0], "the earlier fit did not improve, so the test is void"
    assert losses(later) == pytest.approx([best], rel=1e-2)
    # In the units of the earlier model, regardless of the new data's units.
    data = rotation(1)
    other = nf.Dataset.from_arrays(data.ts, 3 * data.ys + 1, states=data.states)
    assert not eqx.tree_equal(nf.make_model(other, key=jax.random.key(0)).scaler, fitted.model.scaler)
    later = nf.fit(other, model=fitted.model, optimizer=still, training=training, options=nf.Options(recipe="direct"))
    assert eqx.tree_equal(later.model.scaler, fitted.model.scaler)
    with pytest.raises(
        ValueError, match=r"field is part of the earlier model, so it can't be given with model=; leave it"
    ):
        nf.fit(data, model=fitted.model, field=nf.Linear)
    with pytest.raises(ValueError, match=r"fitted to the states \['x', 'y'\], but the data have \['a', 'b'\]"):
        nf.fit(nf.Dataset.from_arrays(data.ts, data.ys, states=("a", "b")), model=fitted.model)


def test_a_fit_shows_itself_and_its_choices(fitted):
    head, reason, counts, seconds, methods = repr(fitted).splitlines()
    assert head == "Fit of x, y: completed"
    assert reason.strip() == fitted.reason == "took all 6 steps of stage main"
    assert counts == f"  6 steps, 6 parameters; training loss {losses(fitted)[-1]:.3g}"
    assert re.fullmatch(r"  [\d.]+ s of training, [\d.]+ s of compiling", seconds)
    for name in re.findall(r"\.(\w+)\(", methods):
        assert callable(getattr(fitted, name))
    chosen = replace(fitted, choices=(Choice("hidden", 1, "it validates best"),))
    assert "  chosen: hidden=1: it validates best" in repr(chosen).splitlines()


def test_a_fit_is_drawn_with_an_axis_for_each_state(fitted):
    figure = fitted.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["x", "y"]
    assert all(len(axis.lines) >= 2 for axis in figure.axes)  # Measurements and a curve.
    # One column per trajectory; test data add columns.
    assert len(fitted.plot(test=rotation(2)).axes) == 2 * 3


def driven(trajectories: int = 3) -> nf.Dataset:
    """States of very different scales, one of them positive, an input, and times that do not start at 0."""
    ts = np.linspace(5.0, 8.0, 12)
    phases = np.arange(trajectories)[:, None]
    angle = ts[None] + phases
    ys = np.stack([100 * np.cos(angle), 0.01 * np.exp(np.sin(angle))], axis=-1)
    us = np.broadcast_to(0.3 * ts, (trajectories, 12))[..., None]
    return nf.Dataset.from_arrays(ts, ys, us, states=("x", "y"), inputs=("force",))


def untrained(precision: str = "x32", seed: int = 0, **options) -> nf.NeuralODE:
    with scope(precision):
        return nf.make_model(driven(), field=SMALL, key=jax.random.key(seed), **options)


@pytest.mark.parametrize("precision", ["x32", "x64"])
def test_a_new_model_has_one_precision_and_predicts(precision):
    model = untrained(precision, start=nf.Encoder)
    assert {x.dtype for x in jax.tree.leaves(model) if eqx.is_inexact_array(x)} == {dtype_of(precision)}
    assert np.isfinite(model.predict(driven())).all()


def test_numbers_of_numpy_and_jax_are_numbers(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # The tests' type checker is stricter.
    assert nf.Training(steps=np.int64(5), patience=np.int32(3)).steps == 5
    assert nf.Adam(np.float32(0.5)).learning_rate == nf.Adam(jnp.float32(0.5)).learning_rate == 0.5
    assert nf.Solver(rtol=np.float32(0.5)).rtol == nf.Solver(rtol=np.array(0.5)).rtol == 0.5


@pytest.mark.parametrize("log", [(), ("y",)])
def test_predictions_from_plain_arrays_are_those_from_a_dataset(log):
    model, data = untrained(scaling=nf.Scaling(log=log)), driven()
    expected = model.predict(data)
    found = model.predict(y0=data.ys[:, 0], ts=data.ts, u=data.us)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.predict(y0=data.ys[:, 0], ts=data.ts[0], u=data.us[0]), expected)
    alone = model.predict(y0=list(data.ys[1, 0]), ts=data.ts[1], u=data.us[1].tolist())
    assert alone.shape == (12, 2)
    np.testing.assert_array_equal(alone, model.predict(data.select([1]))[0])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "predict needs data, or y0 and ts"),
        ({"y0": [1.0, 2.0]}, "predict needs data, or y0 and ts"),
        (
            {"y0": [1.0, 2.0], "ts": np.arange(2.0)},
            r"has the inputs \['force'\]; give u, with a row for each of ts",
        ),
        ({"y0": [1.0], "ts": np.arange(2.0), "u": np.zeros((2, 1))}, r"y0 must have 2 numbers \(x, y\), got 1"),
    ],
)
def test_what_a_prediction_lacks_is_said(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        untrained().predict(**given)


@pytest.fixture(scope="module")
def exact() -> nf.NeuralODE:
    """A model in x64 with three states, of which the second is positive and the third hidden."""
    return untrained("x64", hidden=1, scaling=nf.Scaling(log=("y",)))


START, TIGHT = [70.0, 0.02, 0.4], diffrax.PIDController(rtol=1e-11, atol=1e-11)


def test_the_vector_field_is_the_derivative_of_solutions(exact):
    h = 1e-3
    ts = np.array([5.2, 6.0 - h, 6.0, 6.0 + h])
    with scope("x64"):
        us = 0.3 * ts[:, None]
        ys = np.asarray(exact.solve(START, ts, us, stepsize_controller=TIGHT).ys)
        rates = np.asarray(jax.jit(exact.vector_field)(ts[2], ys[2], us[2]))
    assert exact.latent == ("x", "y", "hidden0")
    np.testing.assert_allclose(rates, (ys[3] - ys[1]) / (2 * h), rtol=1e-5)
    assert (np.abs(ys[2] / np.array(START) - 1) > 1e-3).all(), "nothing moves, so the test is void"


def test_the_vector_field_of_a_positive_state_is_in_the_users_units(exact):
    """Since `y = exp(scale z + shift)`, `dy/dt = y scale dz/ds / (time scale)`."""
    s, t, y, u = exact.system.scaler, 6.0, np.array(START), np.array([1.2])
    line = np.array([y[0], np.log(y[1]), y[2]])
    with scope("x64"):
        rates = np.asarray(jax.jit(exact.vector_field)(t, y, u))
        scaled = (line - s.state_shift) / s.state_scale
        inner = exact.field((t - s.time_shift) / s.time_scale, scaled, (u - s.input_shift) / s.input_scale)
    by_line = np.asarray(inner * s.state_scale / s.time_scale)
    np.testing.assert_allclose(rates, by_line * np.array([1, y[1], 1]), rtol=1e-12)
    with scope("x64"):
        slope = jax.jit(jax.jacfwd(exact.vector_field, argnums=1))(t, y, u)
    assert slope.shape == (3, 3) and np.isfinite(slope).all()


@pytest.mark.slow
def test_a_model_is_solved_by_diffrax(exact):
    ts = np.linspace(5.0, 8.0, 7)
    with scope("x64"):
        solution = exact.solve(START, ts, 0.3 * ts[:, None])
        assert isinstance(solution, diffrax.Solution)
        assert solution.ys.shape == (7, 3)
        np.testing.assert_array_equal(solution.ys[0], START)
        whole = exact.solve(START, ts, 0.3 * ts[:, None], saveat=diffrax.SaveAt(dense=True), stepsize_controller=TIGHT)
        np.testing.assert_allclose(whole.evaluate(6.5), solution.ys[3], rtol=1e-3)
        # Equal to `predict` if all states are measured.
        model = untrained("x64", scaling=nf.Scaling(log=("y",)))
        solved = model.solve(START[:2], ts, 0.3 * ts[:, None]).ys
    np.testing.assert_allclose(model.predict(y0=START[:2], ts=ts, u=0.3 * ts[:, None]), solved, rtol=1e-3)


@pytest.mark.slow
def test_an_ensemble_predicts_and_solves_from_plain_arrays():
    data = driven()
    members = [untrained("x64", seed) for seed in (0, 1)]
    ensemble = nf.Ensemble.of(members, data, None)
    found = ensemble.predict(y0=data.ys[:, 0], ts=data.ts, u=data.us)
    np.testing.assert_array_equal(found, ensemble.predict(data))
    np.testing.assert_allclose(ensemble.predict(y0=data.ys[1, 0], ts=data.ts[1], u=data.us[1]), found[1], rtol=1e-6)
    starts = data.ys[[0, 1], 0]
    with scope("x64"):
        both = ensemble.solve(starts[0], data.ts[0], data.us[0])
        assert isinstance(both, diffrax.Solution)
        each = ensemble.solve(starts, data.ts[0], data.us[0]).ys
        for index, member in enumerate(members):
            alone = [member.solve(start, data.ts[0], data.us[0]).ys for start in (starts[0], starts[index])]
            np.testing.assert_allclose(both.ys[index], alone[0], rtol=1e-9)
            np.testing.assert_allclose(each[index], alone[1], rtol=1e-9)
    assert both.ys.shape == each.shape == (2, 12, 2)
    assert np.abs(both.ys[0] - both.ys[1]).max() > 1e-3, "the members agree, so the test is void"


class Chunks(nf.Callback):
    """Calls `end` at the end of the third chunk."""

    def __init__(self, end):
        self.end = end
        self.seen = 0

    def on_chunk_end(self, records, state):
        self.seen += 1
        return self.end() if self.seen == 3 else None


def interrupt():
    raise KeyboardInterrupt


def test_an_interrupt_returns_the_fit_so_far():
    stopped, interrupted = (
        nf.fit(rotation(1), callbacks=[Chunks(end)], training=nf.Training(steps=100, chunk_steps=2), **SHORT)
        for end in (lambda: "enough", interrupt)
    )
    assert (interrupted.status, interrupted.reason) == ("interrupted", "by Ctrl-C")
    assert len(interrupted.history) == 3 and interrupted.steps == 6
    assert losses(interrupted) == losses(stopped)
    assert eqx.tree_equal(interrupted.model, stopped.model)
    assert np.isfinite(interrupted.predict(rotation(1))).all()


def test_an_interrupt_before_anything_was_learnt_is_one():
    class AtOnce(nf.Callback):
        def on_stage_start(self, stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nf.fit(rotation(1), callbacks=[AtOnce()], training=nf.Training(steps=6, chunk_steps=1), **SHORT)


def own_docstring(value: object) -> str:
    """The own docstring of a class or function, neither inherited nor generated by `dataclass`."""
    doc = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    return "" if doc is None or doc.startswith(f"{getattr(value, '__name__', '')}(") else doc


def test_the_public_names():
    assert not [name for name in nf.__all__ if name.startswith("_")]
    assert not [name for name in nf.__all__ if isinstance(getattr(nf, name), ModuleType)]
    assert len(set(nf.__all__)) == len(nf.__all__)
    assert [name for name in nf.__all__ if not own_docstring(getattr(nf, name))] == []
    assert set(dir(nf)) == {*nf.__all__, "__version__"}
    assert {"fit", "fit_several", "load", "Fit", "NeuralODE", "Dataset", "Callback"} <= set(nf.__all__)


SHORTENED = {"field": SMALL, "training": nf.Training(steps=2, chunk_steps=1)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Callback", "AbstractObjective", "AbstractOptimizer", "Batch", "CustomLoss"])
def test_examples_in_docstrings_run(name):
    example = re.search(r"```python\n(.*?)```", own_docstring(getattr(nf, name)), re.DOTALL)
    fits = []

    def quick(train, options=nf.Options(), **words):  # noqa: B008
        fits.append(nf.fit(train, **{**SHORTENED, **words}, options=replace(options, penalty=nf.Penalty())))

    library = SimpleNamespace(**{public: getattr(nf, public) for public in nf.__all__} | {"fit": quick})
    code = re.sub(r"steps=\d+", "steps=2", textwrap.dedent(example[1]))
    exec(code, {"node_fit": library, "train": rotation(), "jax": jax, "jnp": jnp, "optax": optax})
    assert len(fits) == 1 and np.isfinite(losses(fits[0])).all()


def test_the_version_is_that_of_the_metadata():
    # The metadata that a build writes ...
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    source = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text()
    assert re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)[1] == nf.__version__
    # ... and the metadata of the installation; an editable installation keeps those of its creation.
    installed = distribution("node_fit")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    assert installed.version == nf.__version__ or origin.get("dir_info", {}).get("editable")


@pytest.mark.parametrize("seed", [2**32, 2**63, 10**20])
def test_a_seed_that_would_repeat_a_smaller_one_or_overflow_is_refused(seed):
    with pytest.raises(ValueError, match=rf"seed must be an integer from 0 to 4294967295, got {seed}"):
        nf.Options(seed=seed)
    nf.Options(seed=2**32 - 1)
