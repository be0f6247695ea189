"""Calls of the library as one would write them: parts of a model, names, keywords of groups, and fields of a user's;
datasets as sequences and data frames, and predictions from names and as data frames;
constants, equations and a page of a fit; and models that are saved.
"""

import base64
import dataclasses
import functools
import html
import inspect
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import pytest
from helpers.exported import network
from helpers.problems import SMALL, fit_to, rotation
from omegaconf import OmegaConf
from pandas.testing import assert_frame_equal

import node_fit as nf
from node_fit.app.config.build import build, without_words
from node_fit.fitting.readable import readout_of, sum_of_terms
from node_fit.likelihood.losses import LOSSES
from node_fit.model.make_model import FIELDS, OBSERVATIONS, STARTS
from node_fit.optimizers.gradient import OPTIMIZERS
from node_fit.options.recipes import RECIPES
from node_fit.runtime.placement import scope

CONF = Path(__file__).parents[2] / "conf"
DIRECT = nf.Options(recipe="direct", penalty=nf.Penalty())
QUICK = {"training": nf.Training(steps=4, chunk_steps=2), "options": DIRECT}


@pytest.fixture(autouse=True)
def words_of_the_library(monkeypatch):
    """Disables the tests' type checker, which would refuse wrong arguments before the library does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# Parts of a model.


@pytest.mark.slow
def test_known_equations_are_written_without_a_partial():
    equations, constants = {"x": "-w*y", "y": "w*x"}, {"w": [0.8, 0, None]}
    whole, partial = (
        nf.fit(rotation(), field=field, training=nf.Training(steps=40))
        for field in (
            nf.Known(equations=equations, constants=constants),
            functools.partial(nf.Known, equations=equations, constants=constants),
        )
    )
    assert whole.model.constants() == {"w": pytest.approx(1.0, rel=1e-4)}
    assert eqx.tree_equal(whole.model, partial.model)


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("field", nf.MLP(width=4, depth=1)),
        ("field", nf.Linear()),
        ("field", nf.SecondOrder(width=4)),
        ("field", nf.Hybrid(equations={"x": "-y", "y": "f"}, terms={"f": 1.0})),
        ("field", nf.Physical(field=lambda t, y, u: -y)),
        ("start", nf.Fitted(given=3)),
        ("start", nf.Encoder(rows=3, width=4)),
        ("start", nf.Stated(values={"x": 1.0, "y": "a"}, constants={"a": 0.1})),
        ("observation", nf.NetworkReadout(width=4)),
    ],
)
def test_any_part_may_be_written_without_what_the_data_give(key, part):
    model = nf.make_model(rotation(), **{"field": SMALL, key: part}, key=jax.random.key(0))
    by_partial = functools.partial(part.func, **part.keywords)
    other = nf.make_model(rotation(), **{"field": SMALL, key: by_partial}, key=jax.random.key(0))
    assert isinstance(getattr(model, key), part.func) and eqx.tree_equal(model, other)


def test_a_part_with_all_of_its_arguments_is_made_at_once():
    key = jax.random.key(0)
    assert isinstance(nf.MLP(2, key=key), nf.MLP) and isinstance(nf.Linear(states=2, key=key), nf.Linear)


class Damped(nf.AbstractVectorField):
    """A field of a user's."""

    rate: jax.Array

    def __init__(self, states, inputs, *, rate, key):
        self.rate = jnp.full(states, rate)

    def __call__(self, t, y, u):
        return -self.rate * y


def test_a_users_own_part_may_be_written_so_too():
    model = nf.make_model(rotation(), field=Damped(rate=0.5), key=jax.random.key(0))
    np.testing.assert_allclose(model.field.rate, [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: nf.Known(equation={}, equations={}), r"Known has no argument 'equation'; did you mean 'equations'\?"),
        (lambda: nf.Known(constants={}), r"Known needs equations; write Known\(equations=\.\.\.\)\."),
        (lambda: nf.MLP(widht=8), r"MLP has no argument 'widht'; did you mean 'width'\?"),
        (lambda: Damped(), r"Damped needs rate; write Damped\(rate=\.\.\.\)\."),
        (lambda: nf.MLP(2), r".*missing.*'key'"),
        (nf.AbstractVectorField, r".*abstract.*"),
    ],
)
def test_a_part_that_lacks_an_argument_or_has_a_wrong_one_says_so_at_once(call, sentence):
    with pytest.raises(TypeError, match=rf"^{sentence}$"):
        call()


# Names.


def options_of(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def of_command(group: str, name: str):
    """What a name stands for on the command line."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    given = {key: ({} if value == "???" else value) for key, value in node.items()}
    return build(without_words(given, group), group)


@pytest.mark.parametrize(
    ("group", "known"), [("field", FIELDS), ("start", {"auto": None, **STARTS}), ("observation", OBSERVATIONS)]
)
def test_names_of_parts_are_those_of_the_command_line(group, known):
    assert sorted(known) == options_of(group)
    for name in set(known) - {"auto"}:
        command = of_command(group, name)
        assert command.func is known[name]
        defaults = {key: each.default for key, each in inspect.signature(known[name]).parameters.items()}
        settings = {key: value for key, value in command.keywords.items() if value != defaults[key]}
        assert not {key for key, value in settings.items() if value not in ({}, [])}, "other settings than the default"


@pytest.mark.parametrize(("group", "known"), [("optimizer", OPTIMIZERS), ("loss", LOSSES)])
def test_names_of_optimizers_and_losses_are_those_of_the_command_line(group, known):
    assert sorted(known) == options_of(group)
    for name, own in known.items():
        assert own == of_command(group, name)
        assert getattr(nf.Options(**{group: name}), group) == own


def test_names_of_solvers_are_those_of_the_command_line():
    """Except that `solver=heun` also takes even steps there, which is an option of its own here."""
    assert "heun" in options_of("solver")
    for name in options_of("solver"):
        own, command = nf.Options(solver=name).solver, of_command("solver", name)
        assert own == command if name != "heun" else nf.Solver("heun", stepping="even", max_steps=16384) == command


def test_a_name_fits_as_its_object_does():
    names = {"field": "linear", "start": "fitted", "observation": "linear", "loss": "huber", "optimizer": "adamw"}
    objects = {
        "field": nf.Linear,
        "start": nf.Fitted,
        "observation": nf.LinearReadout,
        "loss": nf.Huber(),
        "optimizer": nf.Adam(weight_decay=1e-3),
    }
    short = {"solver": "bosh3", "recipe": "direct", "ridge": 0.0, "steps": 4, "chunk_steps": 2}
    named, made = (fit_to(rotation(1), **each, **short) for each in (names, objects))
    assert eqx.tree_equal(named.model, made.model) and named.options == made.options
    parts = {key: names[key] for key in ("field", "start", "observation")}
    model = nf.make_model(rotation(1), **parts, key=jax.random.key(0))
    assert isinstance(model.field, nf.Linear) and isinstance(model.start, nf.Fitted)
    assert nf.Plan(optimizer="adam").optimizer == nf.Adam()
    assert nf.Stage(nf.TrajectoryMatching(), "adam", 5).optimizer == nf.Adam()


def test_the_documentation_of_a_fit_lists_the_names():
    listed = set(re.findall("`([a-z_]+)`", nf.Options.__doc__.split("as on the command line:")[1].split("**")[0]))
    known = {*FIELDS, *STARTS, *OBSERVATIONS, *OPTIMIZERS, *LOSSES, *RECIPES}
    assert listed == known - {"known", "hybrid", "stated"}  # These need equations.


# Keywords of groups.


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"steps": 20}, r"it is an argument of Training: pass training=node_fit\.Training\(steps=\.\.\.\)\."),
        ({"penalty": nf.Penalty()}, r"it is an option: pass options=node_fit\.Options\(penalty=\.\.\.\)\."),
        ({"ridge": 0.1}, r".* Penalty: pass options=node_fit\.Options\(penalty=node_fit\.Penalty\(ridge=\.\.\.\)\)\."),
        ({"log": ["x"]}, r".* pass options=node_fit\.Options\(scaling=node_fit\.Scaling\(log=\.\.\.\)\)\."),
        ({"starts": 3}, r"it is now called restarts: pass options=node_fit\.Options\(restarts=\.\.\.\)\."),
        ({"rtol": 1e-3}, r".* pass solver=node_fit\.Solver\(rtol=\.\.\.\)\."),
        ({"learning_rate": 1e-2}, r".* pass optimizer=node_fit\.Adam\(learning_rate=\.\.\.\)\."),
        ({"width": 8}, r".* pass field=node_fit\.MLP\(width=\.\.\.\)\."),
        ({"equations": {}}, r".* pass field=node_fit\.Known\(equations=\.\.\.\)\."),
        ({"given": 3}, r".* pass start=node_fit\.Fitted\(given=\.\.\.\)\."),
        ({"size": 3}, r".* pass options=node_fit\.Options\(ensemble=node_fit\.Members\(size=\.\.\.\)\)\."),
        ({"optimiser": "adam"}, r"did you mean 'optimizer'\?"),
        ({"system": 1}, ""),
    ],
)
def test_an_argument_of_a_group_is_told_where_it_belongs(given, sentence):
    rest = f"; {sentence}" if sentence else r"\."
    with pytest.raises(TypeError, match=rf"^fit has no argument '{next(iter(given))}'{rest}$"):
        nf.fit(rotation(), **given)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: nf.Options(steps=20),
            r"Options has .* pass training=node_fit\.Training\(steps=\.\.\.\)\.",
        ),
        (lambda: nf.Options(evaluation="tsit5"), r"Options has .* 'evaluation'; it is now called prediction_solver\."),
        (lambda: nf.Options(sede=1), r"Options has no argument 'sede'; did you mean 'seed'\?"),
        (
            lambda: nf.discover(rotation(), field="mlp"),
            r"discover has .* pass options=node_fit\.Options\(field=\.\.\.\)\.",
        ),
        (lambda: nf.LevenbergMarquardt(memory=1e6), r"LevenbergMarquardt has .* it is now called max_bytes\."),
        (lambda: nf.fit_petab(None, starts=3), r"fit_petab has no argument 'starts'; it is now called restarts\."),
    ],
)
def test_an_argument_of_another_name_or_place_is_refused_with_it(call, sentence):
    with pytest.raises(TypeError, match=f"^{sentence}$"):
        call()


def test_the_words_of_a_fit_replace_those_of_its_options():
    assert len(inspect.signature(nf.fit).parameters) <= 12
    options = dataclasses.replace(DIRECT, field="linear", training=nf.Training(steps=2), seed=3)
    fit = nf.fit(rotation(1), training=nf.Training(steps=1), options=options)
    assert (fit.options.training.steps, fit.options.seed, fit.steps) == (1, 3, 1)
    assert isinstance(fit.model.field, nf.Linear)


# Fields that do not fit.


def own_field(call):
    return type("Own", (eqx.Module,), {"__annotations__": {"a": jax.Array}, "__call__": call})(jnp.ones((3, 3)))


CALLED = r"\(t, y, u\), of shapes \(\), \(2,\) and \(0,\)"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda self, t, y: -y, rf"must be called with {CALLED}, but its __call__ has other arguments: .*\."),
        (lambda self, t, y, u, args: -y, r"must be called with .*, but its __call__ has other arguments: .*'args'.*\."),
        (lambda self, t, y, u: self.a @ y, rf"fails when it is called with {CALLED}; the states are x, y: .*\."),
        (
            lambda self, t, y, u: y[jnp.zeros(3, int)],
            r"must return .* of x, y, .* of shape \(2,\), but it returns shape \(3,\) .*",
        ),
        (lambda self, t, y, u: y.sum(), r"must return .* but it returns shape \(\) of float32\."),
        (lambda self, t, y, u: jnp.zeros(2, int), r"must return .* but it returns shape \(2,\) of int.*"),
        (lambda self, t, y, u: [y[0], y[1]], r"must return .* but it returns a list\."),
    ],
)
def test_a_field_that_does_not_fit_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=rf"^field Own {sentence}"):
        nf.fit(rotation(), field=own_field(call), **QUICK)


def test_a_field_that_fits_is_taken():
    fit = nf.fit(rotation(), field=own_field(lambda self, t, y, u: (self.a[:2, :2] - 1) @ y), **QUICK)
    assert fit.status == "completed"


# Datasets.


def records() -> nf.Dataset:
    """Three trajectories of different lengths, with an input and a gap."""
    ts = [np.linspace(0, 3, n) for n in (12, 7, 12)]
    ys = [np.stack([np.cos(t + i), np.sin(t + i)], axis=-1) for i, t in enumerate(ts)]
    ys[0][4, 1] = np.nan
    return nf.Dataset.from_arrays(
        ts, ys, [0.1 * t[:, None] for t in ts], states=["x", "v"], inputs=["f"], trajectories=["A", "B", "C"], time="s"
    )


def test_a_dataset_is_a_sequence_of_trajectories():
    data = records()
    assert len(data) == 3 and [each.trajectories for each in data] == [("A",), ("B",), ("C",)]
    np.testing.assert_array_equal(data[1].ys, data.ys[1:2, :7])
    assert data[-1].trajectories == data["C"].trajectories == ("C",)
    assert data[1:].trajectories == data[[1, 2]].trajectories == data[np.array([False, True, True])].trajectories
    for which, error, sentence in (
        (3, IndexError, "3"),
        (slice(3, None), IndexError, "takes none of the 3 trajectories"),
        ("Z", KeyError, "no trajectory is named 'Z'; they are A, B, C"),
    ):
        with pytest.raises(error, match=sentence):
            data[which]


def test_a_dataset_becomes_a_data_frame_and_back():
    data = records()
    frame = data.to_frame()
    assert list(frame.columns) == ["trajectory", "s", "x", "v", "f"] and len(frame) == 12 + 7 + 12
    assert frame["v"].isna().sum() == 1 and np.isnan(frame["v"][4])
    again = nf.from_frame(frame, time="s", states=["x", "v"], inputs=["f"], trajectory="trajectory")
    for name in ("ts", "ys", "us", "lengths"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))
    assert again.trajectories == data.trajectories


def test_a_dataset_is_read_and_split_by_its_own_methods(tmp_path):
    data, path = records(), tmp_path / "records.csv"
    data.to_frame().to_csv(path, index=False)
    columns = {"time": "s", "states": ["x", "v"], "inputs": ["f"], "trajectory": "trajectory"}
    for read in (nf.Dataset.from_file(path, **columns), nf.Dataset.from_frame(data.to_frame(), **columns)):
        assert type(read) is type(read[0]) is nf.Dataset and read.trajectories == data.trajectories
        np.testing.assert_allclose(read.ys, data.ys, rtol=1e-12)
    assert (nf.read_table, nf.from_frame) == (nf.Dataset.from_file, nf.Dataset.from_frame)
    words = {"by": "trajectory", "test_trajectories": ["B"], "validation": 0.3}
    train, validation, test = data.split(**words)
    for part, same in zip((train, validation, test), nf.Split(**words)(data), strict=True):
        assert type(part) is nf.Dataset and part.trajectories == same.trajectories
    assert test.trajectories == ("B",) and len(train) == len(validation) == 1
    with pytest.raises(TypeError, match=r"^Split has no argument 'tets'; did you mean 'test'\?$"):
        data.split(tets=0.3)


def test_a_data_frame_has_the_dates_of_the_data():
    days = pd.date_range("2024-03-01", periods=6, freq="D", tz="UTC")
    frame = pd.DataFrame({"trajectory": "A", "day": days, "x": np.arange(6.0)})
    data = nf.from_frame(frame, time="day", states=["x"], trajectory="trajectory")
    found = data.to_frame()
    assert list(found["day"]) == list(days)
    assert list(nf.make_model(data, key=jax.random.key(0)).predict_frame(data)["day"]) == list(days)


def test_columns_with_the_same_name_are_refused():
    data = nf.Dataset.from_arrays(np.arange(3.0), np.ones(3), states=["trajectory"])
    with pytest.raises(
        ValueError, match=r"^a data frame can't have two columns 'trajectory'; rename that of the data\.$"
    ):
        data.to_frame()


T = np.linspace(0, 3, 8)


@pytest.mark.parametrize(
    ("plain", "whole"),
    [
        ((T, np.cos(T), np.sin(T)), (T, np.cos(T)[:, None], np.sin(T)[:, None])),
        ((list(T), list(np.cos(T)), None), (T, np.cos(T)[:, None], None)),
        (([T, T[:5]], [T, 2 * T[:5]], None), ([T, T[:5]], [T[:, None], 2 * T[:5, None]], None)),
        (
            (np.stack([T, T + 1]), np.stack([T, 2 * T]), None),
            (np.stack([T, T + 1]), np.stack([T, 2 * T])[..., None], None),
        ),
        ((T[:2], np.eye(2), None), (T[:2], np.eye(2)[None], None)),
        ((T[None], np.stack([T, 2 * T], axis=-1), None), (T, np.stack([T, 2 * T], axis=-1), None)),
    ],
)
def test_arrays_of_one_state_or_input_need_no_axis_for_it(plain, whole):
    plain, whole = nf.Dataset.from_arrays(*plain), nf.Dataset.from_arrays(*whole)
    for name in ("ts", "ys", "us", "lengths"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(whole, name))


def test_deviations_have_the_form_of_the_states():
    one = nf.Dataset.from_arrays(T, T, sigma=0.1 + T)
    np.testing.assert_array_equal(one.sigma[0, :, 0], 0.1 + T)
    square = nf.Dataset.from_arrays(T, np.ones((8, 8)), sigma=0.1 + T)
    np.testing.assert_array_equal(square.sigma[0, 3], 0.1 + T)  # One for each state.


# Predictions.


@pytest.fixture(scope="module")
def model() -> nf.NeuralODE:
    return nf.make_model(records(), field="linear", key=jax.random.key(0))


@pytest.mark.parametrize("u", [0.1 * T, {"f": 0.1 * T}])
def test_first_states_and_inputs_are_given_by_name(model, u):
    expected = model.predict(y0=[1.0, 0.5], ts=T, u=0.1 * T[:, None])
    assert expected.shape == (8, 2)
    np.testing.assert_array_equal(model.predict(y0={"v": 0.5, "x": 1.0}, ts=T, u=u), expected)


def test_first_states_of_several_trajectories_are_given_by_name(model):
    whole = model.predict(y0=[[1.0, 0.5], [2.0, 0.5]], ts=T, u=np.ones((8, 1)))
    np.testing.assert_array_equal(model.predict(y0={"x": [1.0, 2.0], "v": 0.5}, ts=T, u={"f": 1.0}), whole)
    grids = np.stack([T, T + 1])
    whole = model.predict(y0=[[1.0, 0.5], [2.0, 0.5]], ts=grids, u=grids[..., None])
    np.testing.assert_array_equal(model.predict(y0={"x": [1.0, 2.0], "v": 0.5}, ts=grids, u={"f": grids}), whole)
    ensemble = nf.Ensemble.of([model, model], records(), None)
    assert ensemble.predict(y0={"x": 1.0, "v": 0.5}, ts=T, u={"f": 1.0}).shape == (8, 2)


def test_the_first_value_of_a_single_state_is_a_number():
    model = nf.make_model(nf.Dataset.from_arrays(T, np.cos(T)), field="linear", key=jax.random.key(0))
    np.testing.assert_array_equal(model.predict(y0=1.0, ts=T), model.predict(y0=[1.0], ts=T))
    with pytest.raises(
        ValueError, match=r"y0 must have 1 number \(y0\), got 3; for 3 trajectories pass shape \(3, 1\)\.$"
    ):
        model.predict(y0=[1.0, 2.0, 3.0], ts=T)


@pytest.mark.parametrize(
    ("y0", "u", "sentence"),
    [
        ({"x": 1.0}, {"f": 1.0}, r"y0 lacks 'v'; give a value for each of x, v\."),
        ({"x": 1.0, "v": 0.0, "vv": 0.0}, {"f": 1.0}, r"y0 has 'vv'; its names are x, v; did you mean 'v'\?"),
        ({"x": 1.0, "v": 0.0}, {"g": 1.0}, r"u has 'g'; its names are f\."),
    ],
)
def test_a_wrong_name_in_first_states_or_inputs_is_told(model, y0, u, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        model.predict(y0=y0, ts=T, u=u)


def test_predictions_as_a_data_frame(model):
    data = records()
    frame, ys = model.predict_frame(data), model.predict(data)
    assert list(frame.columns) == ["trajectory", "s", "x", "v"] and len(frame) == 12 + 7 + 12
    np.testing.assert_array_equal(frame[frame.trajectory == "B"][["x", "v"]], ys[1, :7])
    assert_frame_equal(frame[["trajectory", "s"]], data.to_frame()[["trajectory", "s"]])
    given = {"y0": {"x": 1.0, "v": 0.5}, "ts": T, "u": {"f": 1.0}}
    np.testing.assert_array_equal(model.predict_frame(**given)[["x", "v"]], model.predict(**given))
    later = np.array([[0.5, 3.5]] * 3)
    frame = model.predict_frame(data, later)
    np.testing.assert_array_equal(frame[["x", "v"]], model.predict(data, later).reshape(6, 2))
    assert list(frame["s"]) == [0.5, 3.5] * 3
    assert_frame_equal(model.predict_frame(data, later.tolist()), frame)


def test_predictions_of_an_ensemble_have_bands():
    members = [nf.make_model(records(), field="linear", key=jax.random.key(seed)) for seed in (0, 1)]
    ensemble = nf.Ensemble.of(members, records(), records())
    frame, bands = ensemble.predict_frame(records(), level=0.5), ensemble.bands(records(), level=0.5)
    assert list(frame.columns)[2:] == ["x", "x_lower", "x_upper", "v", "v_lower", "v_upper"]
    np.testing.assert_array_equal(frame["v_upper"][:12], bands.upper[0, :, 1])
    assert (frame["x_lower"] < frame["x"]).all()


# What a fit shows.


def driven(n: int = 40) -> nf.Dataset:
    """A spring with friction and a force, away from zero, in units of its own."""
    t = np.linspace(0, 20, n)
    y = np.stack([50 + 3 * np.exp(-0.1 * t) * np.cos(t), -3 * np.exp(-0.1 * t) * (np.sin(t) + 0.1 * np.cos(t))], -1)
    return nf.Dataset.from_arrays(t, y, np.sin(0.7 * t), states=["x", "v"], inputs=["f"])


@pytest.fixture(scope="module")
def fitted() -> nf.Fit:
    field = nf.Known(
        equations={"x": "v", "v": "-k*(x - c)  - d*v"}, constants={"k": 0.8, "c": 40.0, "d": [0.05, 0, None]}
    )
    data = nf.Dataset.from_arrays(driven().ts, driven().ys, states=["x", "v"])
    return nf.fit(data, field=field, training=nf.Training(steps=60), options=DIRECT)


@pytest.mark.long
@pytest.mark.slow
def test_constants_and_equations_are_those_of_the_user(fitted):
    assert fitted.constants == fitted.model.constants() and fitted.constants["c"] == pytest.approx(50, rel=1e-3)
    assert fitted.equations == {"x": "v", "v": "-k*(x - c) - d*v"}
    equations = {"x": "v", "v": "f - k*x"}
    for given, expected in (
        ({"terms": {"f": 1.0}}, equations),
        ({"terms": {"f": 1.0}, "rest": ["v"], "sees": ["x"]}, {"x": "v", "v": "f - k*x + network(x)"}),
    ):
        field = nf.Hybrid(equations=equations, constants={"k": 1.0}, width=4, **given)
        fit = nf.fit(fitted.data["train"], field=field, **QUICK)
        assert fit.equations == expected and set(fit.constants) == {"k"}
    assert nf.fit(fitted.data["train"], field=SMALL, **QUICK).equations == {}


@pytest.mark.slow
def test_equations_of_a_linear_field_are_its_vector_field(precision):
    data = driven()
    fit = nf.fit(
        data, field="linear", training=QUICK["training"], options=dataclasses.replace(DIRECT, precision=precision)
    )
    equations = fit.equations
    x, v, f = 51.3, -0.7, 0.4
    rates = [eval(text, {"x": x, "v": v, "f": f}) for text in equations.values()]
    at = (0.0, np.array([x, v]), np.array([f]))
    with scope(precision):
        expected = jax.jit(fit.model.vector_field)(*at)
        known = nf.make_model(data, field=nf.Known(equations=equations), key=jax.random.key(0))
        again = known.vector_field(*at)
    tolerance = 1e-3 if precision == "x32" else 1e-4
    np.testing.assert_allclose(rates, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(again, expected, rtol=tolerance, atol=tolerance)
    logarithmic = nf.Scaling(log=["x"])
    scaled = nf.fit(
        data, field="linear", training=QUICK["training"], options=dataclasses.replace(DIRECT, scaling=logarithmic)
    )
    assert scaled.equations == {}


@pytest.mark.parametrize("observation", ["linear", "direct", "measured", "network"])
def test_channels_that_are_linear_in_states_and_inputs_are_told_with_numbers(observation):
    model, _ = network(observation=observation, hidden=1)
    texts = readout_of(model)
    if observation in ("measured", "network"):
        assert texts == {}
        return
    x, u = np.array([0.3, -0.7, 0.2], np.float32), np.array([0.4], np.float32)
    t, z, v = model.system.in_solver_units(jnp.zeros(()), jnp.asarray(x), jnp.asarray(u))
    channels = model.scaler.unscale_states(np.asarray(model.channels(t, z, v)))
    names = dict(zip((*model.latent, *model.inputs), np.append(x, u), strict=True))
    np.testing.assert_allclose([eval(text, names) for text in texts.values()], channels, rtol=1e-4, atol=1e-4)
    assert list(texts) == ["x", "v"] and ("*f" in texts["x"]) is (observation == "direct")


def test_a_sum_of_terms_reads_as_one_writes_it():
    assert sum_of_terms(zip([-2.0, 0.5, -1.0], ["*x", "*u", ""], strict=True)) == "-2*x + 0.5*u - 1"
    assert sum_of_terms(zip([2.0, -0.5, 1e-9], ["*x", "*x^2", ""], strict=True)) == "2*x - 0.5*x^2 + 1e-09"


@pytest.mark.slow
def test_a_notebook_shows_verdict_constants_and_picture(fitted):
    page = fitted._repr_html_()
    assert fitted.diagnose().sentence in html.unescape(page)
    assert "k = " in page and "dv/dt = -k*(x - c) - d*v" in page and repr(fitted) in html.unescape(page)
    picture = base64.b64decode(re.search('base64,([^"]*)"', page)[1])
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert fitted._repr_html_() is page, "a page is made once"


@pytest.mark.slow
def test_names_in_a_notebook_are_text():
    name = "<img src=x onerror=alert(1)>"
    data = nf.Dataset.from_arrays(T, np.cos(T), states=[name])
    page = nf.fit(data, field="linear", **QUICK)._repr_html_()
    assert name not in page and html.escape(name) in page


@pytest.mark.slow
def test_a_failed_fit_has_a_page():
    class Fails(nf.AbstractVectorField):
        a: jax.Array

        def __call__(self, t, y, u):
            return jnp.log(-1 - self.a**2) * y

    fit = nf.fit(rotation(1), field=Fails(jnp.ones(2)), **QUICK)
    assert fit.status == "failed" and "failed" in fit._repr_html_()


@pytest.mark.slow
def test_a_fit_without_its_data_has_a_page(fitted):
    page = dataclasses.replace(fitted, data={})._repr_html_()
    assert "k = " in page and "<img" not in page


@pytest.mark.slow
def test_any_model_is_saved(fitted, tmp_path):
    model = eqx.tree_at(lambda m: m.field.constants.raw, fitted.model, replace_fn=lambda raw: 2 * raw)
    path = tmp_path / "model.safetensors"
    nf.save(model, path)
    again = nf.load(path)
    assert eqx.tree_equal(again, model) and again.constants() != fitted.constants
    nf.save(again, str(path))
    nf.save(nf.Ensemble.of([model, again], fitted.data["train"], None), path)
    assert len(nf.load(path).members) == 2
    with pytest.raises(ValueError, match=r"^model must be a NeuralODE or an Ensemble, such as fit\.model, got Fit of"):
        nf.save(fitted, path)


def test_a_model_is_saved_to_a_file(model, tmp_path):
    nf.save(model, str(tmp_path / "model.safetensors"))
    assert eqx.tree_equal(nf.load(tmp_path / "model.safetensors"), model)
    with pytest.raises(ValueError, match=r"^model must be a NeuralODE or an Ensemble, such as fit\.model, got 'model'"):
        nf.save("model", tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"^path must be the name of a file, got 5\.$"):
        nf.save(model, 5)
