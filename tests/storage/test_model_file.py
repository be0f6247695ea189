"""Model files: exact round trips, and no code execution from a hostile file."""

import functools
import json
import struct
import subprocess
import sys
import types
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import SMALL, rotation
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from node_fit.runtime.placement import carry, dtype_of, scope
from node_fit.runtime.serialization import CLASSES, stored_as
from node_fit.storage.files import MODEL_STEPS, digest, unpack
from node_fit.storage.model_file import MODEL_SCHEMA, ModelFileError, allowed_class, check_floats, load, save


def build(field=None, precision="x32", data=None, log=()) -> nf.NeuralODE:
    """An untrained model, as `fit` makes it."""
    data = data or rotation()
    with scope(precision):
        solver = nf.Solver("bosh3", rtol=1e-4)
        scaling = nf.Scaling(log=log)
        model = nf.make_model(data, field=field or SMALL, solver=solver, scaling=scaling, key=jax.random.key(3))
        return carry(model, dtype_of(precision))


def assert_same(model, other):
    assert jax.tree.structure(model) == jax.tree.structure(other)
    for mine, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True):
        assert np.asarray(mine).dtype == np.asarray(theirs).dtype
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save(build(), path)
    return path


@pytest.mark.parametrize("make", [SMALL, nf.Linear, functools.partial(nf.MLP, width=3, activation="silu", time=True)])
def test_a_model_comes_back_with_the_same_predictions(tmp_path, make, precision):
    data = rotation(2, times=6)
    model = build(make, precision)
    save(model, tmp_path / "model")
    back = nf.load(tmp_path / "model")
    assert_same(back, model)
    predicted = back.predict(data)
    assert np.isfinite(predicted).all()
    np.testing.assert_array_equal(predicted, model.predict(data))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(0, 3), st.sampled_from(["x32", "x64"]))
def test_any_shape_comes_back(tmp_path_factory, states, inputs, width, depth, precision):
    rng = np.random.default_rng(0)
    data = nf.Dataset.from_arrays(
        np.arange(7.0),
        rng.uniform(1, 2, size=(2, 7, states)),
        rng.normal(size=(2, 7, inputs)),
        time="Zeit [h]",
        units={"y0": "µg/L"},
    )
    model = build(functools.partial(nf.MLP, width=width, depth=depth), precision, data, log=["y0"])
    file = tmp_path_factory.mktemp("models") / "ä b.safetensors"
    save(model, file)
    assert_same(load(file), model)


def test_other_tools_can_read_it(path):
    """The header describes the model to tools without this package."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["node_fit"])
        names = list(file.keys())
    assert header["states"] == ["x", "y"]
    assert header["precision"] == "x32"
    assert set(header["versions"]) >= {"jax", "equinox", "diffrax"}
    assert "model.field.network.layers.0.weight" in names


def test_an_older_file_stays_if_the_new_model_cannot_be_saved(path):
    before = path.read_bytes()
    with pytest.raises(ValueError, match="can't hold"):
        save(build(WithLambda()), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_a_truncated_file(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelFileError, match=r"truncated|not a model file"):
        load(path)


@pytest.mark.parametrize("at", ["header", "arrays"])
def test_a_flipped_bit(path, at):
    content = bytearray(path.read_bytes())
    place = content.index(b"bosh3") if at == "header" else len(content) - 3
    content[place] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ModelFileError, match="damaged"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"PK\x03\x04" + b"\0" * 60, b"t,x\n0,1\n" * 20])
def test_a_file_of_another_kind(tmp_path, content):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ModelFileError):
        load(tmp_path / "other")


def test_arrays_of_somebody_else(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(ModelFileError, match="nothing that node_fit wrote"):
        load(tmp_path / "other")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]},
        {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]},
        {"dtype": "EVIL", "shape": [4], "data_offsets": [0, 16]},
    ],
    ids=["huge", "overflowing", "backwards", "unknown dtype"],
)
def test_a_container_that_lies_about_its_arrays(tmp_path, entry):
    header = json.dumps({"__metadata__": {"node_fit": "{}"}, "x": entry}).encode()
    (tmp_path / "evil").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 16)
    with pytest.raises(ModelFileError, match="not a model file"):
        load(tmp_path / "evil")


def test_a_container_with_a_huge_header(tmp_path):
    (tmp_path / "evil").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(ModelFileError, match="not a model file"):
        load(tmp_path / "evil")


def forge(path: Path, change) -> None:
    """Rewrites a model file with a modified header or modified arrays, and a valid digest."""
    from safetensors import safe_open
    from safetensors.numpy import save as to_bytes

    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["node_fit"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del header["sha256"]
    changed = change(header, tensors)
    text = changed if isinstance(changed, str) else json.dumps({"sha256": digest(header, tensors), **header})
    path.write_bytes(to_bytes(tensors, {"node_fit": text}))


def set_field(header, key, value):
    header["model"]["fields"][key] = value


def as_field_class(name):
    return lambda header, tensors: header["model"]["fields"]["field"].update({"class": name})


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "node_fit_evil:Field",
        "equinox:Module",
        "equinox.nn._linear:os",
        "node_fit.fitting.fit:fit",
        "node_fit.storage.model_file:write",
        "node_fit.storage.model_file:os.system",
        "node_fit.storage.model_file:importlib",
        "node_fit.model.fields.network:jax",
        "node_fit.model.fields.network:eqx.Module",
        "node_fit.model.fields:MLP",
        "node_fit:Dataset",
        "node_fit.data.dataset:Dataset",
        "node_fit.nowhere:MLP",
        "node_fit.model.fields.network:Nowhere",
        "node_fit.model.fields.network:",
        ":",
        "",
        "node_fit..fields:MLP",
        "node_fit.model.fields.network:MLP",
        "mlp",
        "MLP.__init__.__globals__",
        "Dataset",
        "Penalty",
        "equinox.nn:jax",
        "equinox.nn:Linear.__init__",
        "equinox.nn._linear:Linear",
        "equinox.nn:make_with_state",
    ],
)
def test_classes_that_are_not_of_models_are_refused(path, name, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr("os.system", forbidden)
    forge(path, as_field_class(name))
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["equinox.nn:_linear", "equinox.nn:make_with_state", "equinox.nn._linear:Linear"])
def test_what_is_no_model_class_is_no_class_of_a_file(name):
    """Modules, functions, and classes under another name than their own, of a package that is allowed."""
    with pytest.raises(ModelFileError, match="is not a model class"):
        allowed_class(name, ())


def forbidden(*_, **__):
    pytest.fail("the file ran something")


def test_no_module_is_imported_because_a_file_says_so(tmp_path, path, monkeypatch):
    """Not even a module of an allowed package, such as its command, which would run on import."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    forge(path, as_field_class("trap:Field"))
    with pytest.raises(ModelFileError, match="only classes of"):
        load(path)


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "jax.numpy:save", "node_fit.storage.model_file:write"])
def test_functions_that_are_not_on_the_list_are_refused(path, name, monkeypatch):
    monkeypatch.setattr("os.system", forbidden)
    forge(path, lambda header, _: set_field(header, "field", {"function": name}))
    with pytest.raises(ModelFileError, match="not allowed"):
        load(path)


def deep(header, _):
    header["model"] = "DEEP"
    return json.dumps(header).replace('"DEEP"', '{"tuple": [' * 50_000 + "]}" * 50_000)


WEIGHT = "model.field.network.layers.0.weight"


def network_of(header):
    return header["model"]["fields"]["field"]["fields"]["network"]["fields"]


WRONG = {
    "fields missing": lambda header, _: header["model"]["fields"]["field"]["fields"].pop("network"),
    "fields too many": lambda header, _: set_field(header, "more", 1),
    "no model": lambda header, _: header.update(model=header["model"]["fields"]["field"]),
    "a number as model": lambda header, _: header.update(model=3),
    "nothing as model": lambda header, _: header.pop("model"),
    "an unknown kind": lambda header, _: set_field(header, "field", {"pickle": "gASV"}),
    "an empty node": lambda header, _: set_field(header, "field", {}),
    "a missing array": lambda _, tensors: tensors.pop(WEIGHT),
    "a wrong shape": lambda _, tensors: tensors.update(
        {"model.field.network.layers.0.weight": np.zeros((3, 3), np.float32)}
    ),
    "a wrong rank": lambda _, tensors: tensors.update(
        {"model.field.network.layers.1.bias": np.zeros((2, 2), np.float32)}
    ),
    "other states": lambda header, _: set_field(header, "states", {"tuple": ["x"]}),
    "a scaler of another size": lambda _, tensors: tensors.update({"model.scaler.state_scale": np.ones(5, np.float32)}),
    "a system that is a number": lambda header, _: set_field(header, "system", 3.0),
    "a system whose scaler is of another size": lambda _, tensors: tensors.update(
        {"model.system.scaler.state_scale": np.ones(5, np.float32)}
    ),
    "a field that is a number": lambda header, _: set_field(header, "field", 3.0),
    "a solver that is a string": lambda header, _: set_field(header, "solver", "tsit5"),
    "an unknown method": lambda header, _: header["model"]["fields"]["solver"]["fields"].update(method="warp"),
    "an unknown activation": lambda header, _: header["model"]["fields"]["field"]["fields"]["network"]["fields"].update(
        activation="warp"
    ),
    "an unknown precision": lambda header, _: header.update(precision="x128"),
    "a schema that is no number": lambda header, _: header.update(schema="one"),
    "deep nesting": deep,
    "no JSON": lambda *_: "{",
    "a list": lambda *_: "[]",
    "a number": lambda *_: "3",
    "null": lambda *_: "null",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_header_that_makes_no_sense_is_refused(path, name):
    forge(path, WRONG[name])
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_newer_schema_names_the_version_to_install(path):
    forge(path, lambda header, _: header.update(schema=MODEL_SCHEMA + 1, node_fit="7.1.0"))
    with pytest.raises(ModelFileError) as caught:
        load(path)
    said = f"{path}: it has schema {MODEL_SCHEMA + 1}, and this node_fit reads up to {MODEL_SCHEMA}; "
    assert str(caught.value) == said + "pip install 'node_fit>=7.1.0'."


@pytest.mark.parametrize("version", ["1'; rm -rf ~ #", "1\n2", "1" * 99, "", "newest", 7, None, ["1.0"]], ids=repr)
def test_a_newer_file_that_names_no_version_puts_nothing_into_the_sentence(path, version):
    """The command that an error suggests must not contain text from the file."""
    forge(path, lambda header, _: header.update(schema=MODEL_SCHEMA + 1, node_fit=version))
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert str(caught.value).endswith(f"this node_fit reads up to {MODEL_SCHEMA}; pip install --upgrade node_fit.")


def test_an_older_schema_is_refused(path):
    """A schema from before migrations existed."""
    forge(path, lambda header, _: header.update(schema=1))
    with pytest.raises(ModelFileError, match=r"schema 1, of a node_fit before version 0\.2; .*, or fit again\.$"):
        load(path)


def test_a_file_that_names_no_schema_is_refused(path):
    forge(path, lambda header, _: header.pop("schema"))
    with pytest.raises(ModelFileError, match=r"written before version 0\.2 of node_fit; .*, or fit again\.$"):
        load(path)


def test_older_schemas_are_brought_up_step_by_step(path, monkeypatch):
    """Two migrations: one renames `rate` to `field`, and one splits an array in two."""
    model, weight, bias = load(path), "model.field.network.layers.0.weight", "model.field.network.layers.0.bias"

    def age(header, tensors):
        fields = header["model"]["fields"]
        header.update(schema=MODEL_SCHEMA - 2, node_fit="0.0.1", model={**header["model"], "fields": {**fields}})
        header["model"]["fields"]["rate"] = header["model"]["fields"].pop("field")
        tensors["both"] = np.concatenate([tensors.pop(weight), tensors.pop(bias)[:, None]], axis=1)

    def rename(content, tensors):
        fields = dict(content["model"]["fields"])
        fields["field"] = fields.pop("rate")
        return {**content, "model": {**content["model"], "fields": fields}}, tensors

    def split(content, tensors):
        both = tensors.pop("both")
        assert "field" in content["model"]["fields"], "the migrations run in order"
        return content, {**tensors, weight: both[:, :-1], bias: both[:, -1]}

    forge(path, age)
    monkeypatch.setitem(MODEL_STEPS, MODEL_SCHEMA - 1, split)
    monkeypatch.delitem(MODEL_STEPS, MODEL_SCHEMA - 2)
    with pytest.raises(ModelFileError, match=f"it has schema {MODEL_SCHEMA - 2}, of a node_fit before"):
        load(path)
    monkeypatch.setitem(MODEL_STEPS, MODEL_SCHEMA - 2, rename)
    assert_same(load(path), model)
    save(load(path), path)
    assert unpack(path)[0]["schema"] == MODEL_SCHEMA, "a file that is saved again needs no migration"
    monkeypatch.undo()
    assert_same(load(path), model)


def test_a_step_that_does_not_fit_a_file_is_a_sentence(path, monkeypatch):
    forge(path, lambda header, _: header.update(schema=MODEL_SCHEMA - 1))
    monkeypatch.setitem(MODEL_STEPS, MODEL_SCHEMA - 1, lambda content, tensors: (content["nothing"], tensors))
    with pytest.raises(ModelFileError, match="does not describe a model"):
        load(path)


class Perceptron(nf.MLP):
    """`MLP` after a move to another module under another Python name."""


def test_a_class_that_moved_and_has_another_name_in_python_still_loads(path, monkeypatch):
    model, before = load(path), path.read_bytes()
    assert unpack(path)[0]["model"]["fields"]["field"]["class"] == "MLP", "no module and no package"
    assert Perceptron.__module__ != nf.MLP.__module__
    monkeypatch.delitem(CLASSES, "MLP")
    with pytest.raises(ModelFileError, match="'MLP' is not a class of this node_fit"):
        load(path)
    stored_as("MLP")(Perceptron)
    moved = load(path)
    assert type(moved.field) is Perceptron
    np.testing.assert_array_equal(moved.predict(rotation(2)), model.predict(rotation(2)))
    save(moved, path)
    assert path.read_bytes() == before, "the name in the file does not change"


def test_a_stored_name_belongs_to_one_class():
    with pytest.raises(ValueError, match="'MLP' already belongs to MLP"):
        stored_as("MLP")(Perceptron)


def test_a_class_of_equinox_has_the_name_of_its_public_module(tmp_path):
    """Equinox may move its private modules."""
    model = build(Plain(eqx.nn.Linear(2, 2, key=jax.random.key(0))))
    save(model, tmp_path / "model")
    assert unpack(tmp_path / "model")[0]["model"]["fields"]["field"]["fields"]["layer"]["class"] == "equinox.nn:Linear"
    assert_same(load(tmp_path / "model", extensions=[Plain.__module__]), model)


class Plain(eqx.Module):
    """A custom field with an Equinox layer."""

    layer: eqx.nn.Linear

    def __call__(self, t, y, u):
        return self.layer(y)


class Pull(eqx.Module):
    """A custom field."""

    strength: jax.Array
    power: int
    name: str = eqx.field(static=True)

    def __call__(self, t, y, u):
        return -self.strength * y**self.power


def test_modules_of_the_user_need_their_package_named(tmp_path):
    model = build(Pull(jnp.array([0.5, 0.2]), 3, "pull"))
    save(model, tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"extensions=\[its name\]"):
        load(tmp_path / "model")
    package = Pull.__module__.partition(".")[0]
    back = load(tmp_path / "model", extensions=[package])
    assert_same(back, model)
    assert back.field.name == "pull"
    np.testing.assert_array_equal(back.predict(rotation(2, times=4)), model.predict(rotation(2, times=4)))
    # A package whose name has the same prefix is a different package.
    with pytest.raises(ModelFileError, match="only classes of"):
        load(tmp_path / "model", extensions=[package[:-1]])


def test_a_class_that_was_replaced_by_something_else_is_refused(tmp_path, monkeypatch):
    save(build(Pull(jnp.ones(2), 1, "pull")), tmp_path / "model")
    package = Pull.__module__
    monkeypatch.setattr(sys.modules[package], "Pull", types.SimpleNamespace())
    with pytest.raises(ModelFileError, match="not a model class"):
        load(tmp_path / "model", extensions=[package])


class WithLambda(eqx.Module):
    weight: jax.Array = eqx.field(default_factory=lambda: jnp.eye(2))
    activation: object = eqx.field(default=lambda x: x)

    def __call__(self, t, y, u):
        return self.activation(self.weight @ y)


class WithTanh(WithLambda):
    activation: object = jnp.tanh


def test_a_lambda_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"can't hold model\.field\.activation.*lambda"):
        save(build(WithLambda()), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_well_known_function_is_kept_by_name(tmp_path):
    model = build(WithTanh())
    save(model, tmp_path / "model")
    assert load(tmp_path / "model", extensions=[WithTanh.__module__]).field.activation is jnp.tanh


class Indexed(Pull):
    """A custom field with an array of integers."""

    order: jax.Array = eqx.field(default_factory=lambda: jnp.array([1, 0]))


def test_a_users_class_may_hold_integers(tmp_path):
    save(build(Indexed(jnp.ones(2), 1, "indexed")), tmp_path / "model")
    back = load(tmp_path / "model", extensions=[Indexed.__module__])
    np.testing.assert_array_equal(back.field.order, [1, 0])


def test_a_class_that_no_other_process_can_import_is_refused(tmp_path, monkeypatch):
    class Local(Pull):
        pass

    with pytest.raises(ValueError, match=r"Local, which is defined in a function.*module.*extensions=\['my_fields'\]"):
        save(build(Local(jnp.ones(2), 1, "local")), tmp_path / "model")
    monkeypatch.setattr(Plain, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"model\.field is a Plain, which is defined in the script or notebook"):
        save(build(Plain(eqx.nn.Linear(2, 2, key=jax.random.key(0)))), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_factors_of_bands_may_be_infinite():
    """So they are where too few validation data tell them."""
    bands = nf.Ensemble((), jnp.array([jnp.nan]), jnp.full(99, jnp.inf), calibrated=True)
    check_floats(bands)
    with pytest.raises(ModelFileError, match="its Ensemble has noise of int32; weights are floats"):
        check_floats(eqx.tree_at(lambda each: each.noise, bands, jnp.array([1])))
