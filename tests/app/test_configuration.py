import functools
import inspect
import re
import string
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
import pytest
from diffrax import Tsit5
from hydra import compose, initialize_config_dir
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

import node_fit as nf
from node_fit.app import run_directory
from node_fit.app.config.build import build, build_parts, check_top, check_value, without_words
from node_fit.app.config.composition import (
    RENAMED,
    ConfigError,
    constructor_hints,
    constructors,
    explain,
    locate,
    parameters_of,
    rename_keys,
)
from node_fit.options.recipes import RECIPES, make_stage

# A user package. `built` records constructor calls; `os` is a module that the package only imports.
HOUSE = """
import abc
import os
import shutil
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal
from jaxtyping import Array, Float
from node_fit import MLP
from node_fit.storage.files import write_file

if TYPE_CHECKING:
    from nowhere import Unknown

built = []

class Thing:
    def __init__(
        self, rate: float = 1.0, *, steps: int = 1, kind: Literal["tanh", "relu"] | None = "tanh",
        names: Sequence[str] = (), pair: tuple[int, float] = (1, 1.0), flag: bool = False, limit: float | None = None,
        start: Float[Array, " state"] | float = 0.0, free=None, inner: "Thing | None" = None,
        parts: list[Any] = (), label: str = "", text: float | str = "", order: Literal[1, 2] = 1,
        old: typing.Dict[str, int] | None = None, of: Callable | None = None,
    ):
        if not rate > 0:
            raise ValueError(f"rate must be positive, got {rate}.")
        if steps == 13:
            raise ValueError("thirteen is unlucky")
        self.__dict__.update(locals())
        built.append(self)

class Sized:
    def __init__(self, states: int, width: int = 8):
        if width < 1:
            raise ValueError(f"`width` must be at least 1, got {width}.")
        self.size = (states, width)

class Owner:
    def __init__(self, part: Callable):
        self.part = part(states=2)

class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...

def anything(a: "Unknown", **rest): return a, rest
def _hidden(): ...
number = 3
"""


@pytest.fixture(autouse=True)
def house(tmp_path, monkeypatch):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text(HOUSE)
    (tmp_path / "house" / "room.py").write_text("class Chair: ...\n")
    (tmp_path / "house" / "broken.py").write_text("import nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "house"]:
        del sys.modules[name]


def thing(**arguments):
    return build({"_target_": "house.Thing", **arguments}, "thing", extensions=["house"])


def refusal(node, key="thing", extensions=("house",)):
    with pytest.raises(ConfigError) as caught:
        build(node, key, extensions=extensions)
    text = str(caught.value)
    assert "\n" not in text and text[-1] in ".?"
    return text


def test_values_and_nested_targets_become_plain_python():
    config = OmegaConf.create(
        {
            "rate": 2,
            "optimizer": {
                "_target_": "house.Thing",
                "rate": "${rate}",
                "names": ["x", "y"],
                "pair": [2, 3],
                "start": [0.5, 1],
                "inner": {"_target_": "house.Thing", "rate": 5},
                "parts": [{"_target_": "house.room.Chair"}, {"a": [1]}],
                "of": {"_target_": "house.Thing", "_partial_": True, "steps": 4},
            },
        }
    )
    made = build(config.optimizer, "optimizer", extensions=OmegaConf.create(["house"]))
    assert made.rate == 2.0 and type(made.rate) is float
    assert made.names == ("x", "y") and type(made.names) is tuple
    assert made.pair == (2, 3.0) and type(made.pair[1]) is float
    assert type(made.start) is list and made.start == [0.5, 1]
    assert made.inner.rate == 5.0
    assert type(made.parts[0]).__name__ == "Chair" and type(made.parts[1]) is dict and type(made.parts[1]["a"]) is list
    assert isinstance(made.of, functools.partial) and made.of(rate=3.0).steps == 4


def test_targets_of_the_libraries():
    adam = build(
        {"_target_": "optax.adam", "learning_rate": {"_target_": "optax.constant_schedule", "value": 0.1}}, "o"
    )
    assert isinstance(adam, optax.GradientTransformation)
    steps = {"_target_": "optax.piecewise_constant_schedule", "init_value": 1.0, "boundaries_and_scales": {10: 0.5}}
    assert jnp.allclose(build(steps, "schedule")(11), 0.5)
    assert isinstance(build({"_target_": "diffrax.Tsit5"}, "solver"), Tsit5)
    assert build({"_target_": "diffrax.PIDController", "rtol": 1e-3, "atol": "1e-6"}, "c").atol == 1e-6
    assert build([1, {"a": "b"}], "list") == [1, {"a": "b"}]


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.call",
        "builtins.eval",
        "house.os.system",
        "house.os.makedirs",
        "house.shutil.rmtree",
        "house.write",
        "house.os",
        "node_fit.storage.files.shutil.rmtree",
        "optax.jnp.zeros",
        "diffrax.eqx.Module",
        "node_fit.load",
        "node_fit.fit",
        "node_fit.read_table",
        "node_fit.AbstractVectorField",
        "node_fit.disk.write",
        "node_fit.storage.files.write_file",
        "node_fit.storage.files.shutil.rmtree",
        "node_fit.runtime.compilation.prune",
        "node_fit.app.leaderboard.Leaderboard",
        "optax.contrib.optax.adam",
        "optax.tree_utils.functools.partial",
        "diffrax.citation",
        "node_fit.app.config.build.importlib.import_module",
        "node_fit.app.config.build.functools.partial",
        "node_fit.app.config.build.build.__globals__",
        "node_fit.app.config.build.locate",
        "node_fit.app.config.build.Call",
        "house._hidden",
        "house.Thing.__init__",
        "house.Base",
        "house.number",
        "house.built.append",
        "house",
        "house.",
        "house..Thing",
        "houses.Thing",
        "optax_evil.f",
        "",
        7,
        None,
    ],
)
def test_targets_outside_the_allowed_packages_are_refused(target):
    assert "thing._target_" in refusal({"_target_": target})


def test_every_target_of_the_shipped_configs_is_a_public_constructor():
    text = "\n".join(path.read_text() for path in CONF.rglob("*.yaml"))
    named = set(re.findall(r"_target_: (node_fit\.\w+)\s", text))
    assert len(named) > 20 and named <= set(constructors())
    assert all(inspect.isclass(each) for name, each in constructors().items() if name.startswith("node_fit."))


def test_an_extension_may_pass_on_a_public_constructor():
    assert locate("house.MLP", "key", ["house"]) is nf.MLP


def test_a_target_needs_its_extension():
    assert "extensions=[...]" in refusal({"_target_": "house.Thing"}, extensions=())
    assert "write [house]" in refusal({"_target_": "house.Thing"}, extensions="house")
    assert "nowhere_at_all" in refusal({"_target_": "nowhere_at_all.f"}, extensions=["nowhere_at_all"])
    assert "No module named 'nowhere'" in refusal({"_target_": "house.broken.f"})
    assert "did you mean house.Thing?" in refusal({"_target_": "house.Thin"})


def test_refusals_come_before_any_constructor():
    first = {"_target_": "house.Thing"}
    for second in (
        {"_target_": "os.system"},
        {"_target_": "house.Thing", "rat": 1},
        {"_target_": "house.Thing", "rate": []},
    ):
        refusal([first, second])
        refusal({"_target_": "house.Thing", "inner": first, "free": second})
    import house  # pyright: ignore[reportMissingImports]

    assert house.built == []


def test_unknown_and_required_arguments():
    assert "did you mean thing.rate?" in refusal({"_target_": "house.Thing", "rat": 1})
    assert "thing.inner.qqq is not an argument of Thing; choose from " in refusal(
        {"_target_": "house.Thing", "inner": {"_target_": "house.Thing", "qqq": 1}}
    )
    assert "thing._args_ is not an argument" in refusal({"_target_": "house.Thing", "_args_": [1]})
    assert "thing.states is required" in refusal({"_target_": "house.Sized"})
    required = {"_target_": "house.Sized", "states": "???"}
    assert "thing.states has no value; set it with thing.states=VALUE" in refusal(required)
    assert "name the file alone, python -m node_fit mine.csv" in refusal(required, "data")
    assert "thing._partial_ must be true or false" in refusal({"_target_": "house.Sized", "_partial_": "yes"})
    assert build({"_target_": "house.anything", "a": 1, "b": 2}, "k", extensions=["house"]) == (1, {"b": 2})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"rate": "fast"}, "thing.rate must be a number, got 'fast'."),
        ({"rate": True}, "thing.rate must be a number, got True."),
        ({"rate": None}, "thing.rate must be a number, got None."),
        ({"rate": 10**400}, "thing.rate must be a number"),
        ({"rate": {"a": 1}}, "thing.rate must be a number"),
        ({"steps": True}, "thing.steps must be an integer, got True."),
        ({"steps": 1e4}, "thing.steps must be an integer, got 10000.0; write 10000."),
        ({"steps": 1.5}, "thing.steps must be an integer, got 1.5."),
        ({"kind": "tanhh"}, "thing.kind must be one of tanh, relu or null, got 'tanhh'; did you mean tanh?"),
        ({"kind": "qqq"}, "thing.kind must be one of tanh, relu or null, got 'qqq'."),
        ({"names": "x"}, "thing.names must be a list (each a string), got 'x'; write [x]."),
        ({"names": ["x", "y", 3]}, "thing.names must be a list (each a string), got ['x', 'y', 3]."),
        ({"pair": [1, 2, 3]}, "thing.pair must be a list"),
        ({"flag": 1}, "thing.flag must be true or false, got 1."),
        ({"limit": "none"}, "thing.limit must be a number or null, got 'none'."),
        ({"start": "origin"}, "thing.start must be an array or a number, got 'origin'."),
        ({"old": {"a": "b"}}, "thing.old must be a dict (each value an integer) or null, got {'a': 'b'}."),
        ({"order": True}, "thing.order must be one of 1, 2, got True."),
        ({"label": 3}, "thing.label must be a string, got 3."),
        ({"of": "relu"}, "thing.of must be a function or null, got 'relu'."),
        ({"inner": {"_target_": "house.room.Chair"}}, "thing.inner must be a Thing or null"),
    ],
)
def test_wrong_types_are_refused(arguments, sentence):
    assert refusal({"_target_": "house.Thing", **arguments}).startswith(sentence)


def test_the_word_that_stands_for_none_is_offered():
    said = refusal({"_target_": "node_fit.Members", "size": "autoo"}, "ensemble")
    assert said == "ensemble.size must be an integer or auto, got 'autoo'; did you mean auto?"


def test_right_types_are_accepted():
    made = thing(rate="1e-3", kind=None, limit="2.5e1", text="1e-3", label="1e-3", free=object, start=3, parts=[])
    assert (made.rate, made.kind, made.limit, made.text, made.label) == (1e-3, None, 25.0, "1e-3", "1e-3")


def test_every_item_of_a_long_list_is_checked():
    for wrong in range(0, 100, 7):
        refusal({"_target_": "house.Thing", "names": ["x"] * wrong + [1] + ["x"] * (99 - wrong)})


def test_errors_of_constructors_name_the_key():
    assert refusal({"_target_": "house.Thing", "rate": -1}, "optimizer") == "optimizer.rate must be positive, got -1.0."
    assert refusal({"_target_": "house.Thing", "steps": 13}) == "thing: thirteen is unlucky."
    nested = {"_target_": "house.Thing", "inner": {"_target_": "house.Thing", "rate": 0}}
    assert refusal(nested).startswith("thing.inner.rate must be positive")
    sized = build({"_target_": "house.Sized", "_partial_": True, "width": 0}, "field", extensions=["house"])
    with pytest.raises(ConfigError, match=r"^field\.width must be at least 1, got 0\.$"):
        sized(2)
    owner = {"_target_": "house.Owner", "part": {"_target_": "house.Sized", "_partial_": True, "width": 0}}
    assert refusal(owner) == "thing.part.width must be at least 1, got 0."


def test_interpolations_that_fail_are_named():
    config = OmegaConf.create({"seed": 1, "field": {"_target_": "house.Thing", "rate": "${sed}"}})
    sentence = "field.rate refers to ${sed}, which is not a config key; did you mean seed?"
    assert refusal(config.field, "field") == sentence


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    root = tmp_path_factory.mktemp("conf")
    (root / "optimizer").mkdir()
    (root / "data").mkdir()
    (root / "config.yaml").write_text(
        "defaults:\n  - data: table\n  - optimizer: adam\n  - _self_\nseed: 0\nshown: ${seeed}\nempty: null\n"
    )
    (root / "optimizer" / "adam.yaml").write_text("_target_: optax.adam\nlearning_rate: 1e-3\nb1: 0.9\n")
    (root / "optimizer" / "lbfgs.yaml").write_text("_target_: optax.lbfgs\nmemory_size: 10\n")
    (root / "optimizer" / "broken.yaml").write_text("a: [1,\n")
    (root / "data" / "table.yaml").write_text("path: ???\nstates: [x, y]\ndelays: {}\n")
    return composing(root)


def composing(folder: Path) -> Callable:
    """Returns `compose` for the configs in a folder."""

    def composed(*arguments: Any) -> DictConfig:
        with initialize_config_dir(str(folder), version_base="1.3"):
            return compose(*arguments)

    return composed


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seeed=1", "seeed is not a config key; did you mean seed?"),
        ("optimiser=adam", "optimiser is not a config key; did you mean optimizer?"),
        ("optimizer.learning_rat=1", "did you mean optimizer.learning_rate?"),
        ("learning_rate=1", "did you mean optimizer.learning_rate?"),
        ("optimizer.qqqqqq=1", "optimizer.qqqqqq is not a config key; choose from b1, b2, "),
        ("seed.x=1", "seed.x is not a config key; seed holds a value"),
        ("optimizer=lbfgz", "optimizer=lbfgz does not exist; did you mean optimizer=lbfgs?"),
        ("optimizer=qq", "optimizer=qq does not exist; choose from adam, broken, lbfgs."),
        ("optimizer=1", "name of an option"),
        ("optimizer=broken", "broken.yaml, line 2, column 1: not valid YAML"),
        ("+optimizer=lbfgs", "optimizer already has an option; write optimizer=OPTION"),
        ("a=[1,", "The override a=[1, can't be read; write key=value"),
        ("seed", "The override seed can't be read; write key=value"),
        ("reord.cvs", "reord.cvs does not exist; there is no similar name in "),
        ("nowhere/record.cvs", "nowhere/record.cvs does not exist, nor does the folder nowhere; check the path."),
        ("data.states={x:1}", "data.states has values by name, {NAME: VALUE}, where the config has a list, [a,b], or "),
        ("data.delays=[1]", "data.delays has values by name, {NAME: VALUE}, where the config has a list, [a,b], or "),
        ("seed=1,2", "seed=1,2 gives several values; add --multirun"),
        ("hydra.job.num=abc", "hydra.job.num can't be used: Value 'abc'"),
    ],
)
def test_faults_of_composition_are_explained(conf, override, sentence):
    with pytest.raises(Exception) as caught:
        conf("config", [override])
    text = explain(caught.value)
    assert text is not None and sentence in text
    assert "\n" not in text and text[-1] in ".?"


def test_faults_of_reading_a_composed_config_are_explained(conf):
    config = conf("config")
    for read, sentence in (
        (lambda: config.data.path, "data.path has no value; set it with data.path=VALUE."),
        (lambda: config.shown, "shown refers to ${seeed}, which is not a config key; did you mean seed?"),
        (lambda: config.optimizer.learning_rat, "did you mean optimizer.learning_rate?"),
        (lambda: conf("confg"), "--config-name=confg does not exist."),
    ):
        with pytest.raises(Exception) as caught:
            read()
        assert sentence in (explain(caught.value) or "")


def test_a_wrong_value_on_the_command_line(conf):
    config = conf("config", ["optimizer.learning_rate=fast"])
    assert refusal(config.optimizer, "optimizer").startswith("optimizer.learning_rate must be a number or an array")


def test_what_others_raise_is_not_explained():
    assert explain(ValueError("mine")) is None
    with pytest.raises(ZeroDivisionError) as caught:
        int(1 / 0)
    assert explain(caught.value) is None
    assert explain(ConfigError("optimizer is odd")) == "optimizer is odd."


def test_the_config_folder_of_the_command_line(conf):
    # Only the command has --config-dir; this tests the function that it calls.
    from hydra.errors import SearchPathException

    error = SearchPathException("Additional config directory '/nowhere' not found")
    assert explain(error) == "--config-dir: there is no folder '/nowhere'."


words = st.sampled_from(
    ["seed", "optimizer", "data", "b1", "states", "adam", "lbfgs", "empty", "shown", "_target_", "1", "null"]
)
marks = st.sampled_from([*"=.+~@/:,[]{}$\\'\"()|! ", "${", "=", "="])
overrides = st.lists(words | marks, max_size=8).map("".join) | st.text(string.printable, max_size=12)


@settings(max_examples=60, deadline=None)
@example(["+="])
@given(st.lists(overrides.filter(lambda text: "hydra" not in text), min_size=1, max_size=2))
def test_any_override_gives_a_result_or_a_sentence(conf, lines):
    try:
        config = conf("config", lines)
        built = build(config.get("optimizer"), "optimizer")
    except Exception as error:
        text = explain(error)
        assert text and "\n" not in text and text[-1] in ".?", (lines, error)
    else:
        assert not isinstance(built, types.ModuleType)


# Keys of earlier versions.

CONF = Path(__file__).parents[2] / "conf"
TABLE = ("data=table", "data.path=any.csv", "data.time=t", "data.states=[x]")


@pytest.fixture
def shipped():
    """Composes the shipped config with a table as its data."""
    return lambda *words: composing(CONF)("config", [*TABLE, *words])


@pytest.mark.parametrize("key", RENAMED)
def test_a_key_of_an_earlier_version_names_the_new_one(shipped, key):
    with pytest.raises(Exception) as caught:
        shipped(f"{key}=1")
    sentence = explain(caught.value)
    assert sentence == f"{key} is no longer a config key; {RENAMED[key]}."
    with pytest.raises(ConfigError) as caught:  # As in a file.
        check_top(config := shipped("optimizer=adam", f"+{key}=1"))
        build_parts(config)
    assert str(caught.value) == sentence
    for word in re.findall(r"(\S+)=VALUE", sentence.replace("KEY", "steps")):  # The suggested key exists.
        assert OmegaConf.select(shipped("optimizer=adam", f"{word}=1"), word.strip("+")) == 1


def test_the_keys_of_the_earlier_version_are_known():
    assert set(RENAMED) >= {
        "training.ridge", "training.smoothness", "training.kinetic_energy", "training.physics", "training.clip",
        "training.scale", "training.scan", "solver.steps", "train", "starts", "evaluation.rtol", "evaluation.atol",
    }  # fmt: skip


def test_a_constructor_of_ones_own_may_have_such_an_argument():
    assert build({"_target_": "house.Thing", "steps": 3}, "solver", extensions=["house"]).steps == 3


# The files in conf/ agree with the code.

# Config files with a constructor's defaults, key by key: all files of these groups, and these nodes of config.yaml.
GROUPS = ("field", "start", "observation", "solver", "optimizer", "recipe", "loss")
NODES = ("training", "penalty", "ensemble")
NAMES_A_CLASS = "_target_: node_fit."
FILES = [
    f"{path.parent.name}/{path.stem}"
    for group in GROUPS
    for path in sorted((CONF / group).glob("*.yaml"))
    if NAMES_A_CLASS in path.read_text()
]
# The options of a fit once `fit` has chosen what is open.
CLOSED = nf.Options(penalty=nf.Penalty(), training=nf.Training(steps=10, window=None))
# Keys whose values differ from the constructor's defaults on purpose.
DIFFERENT = {
    "solver/heun": {"method", "stepping", "max_steps"},
    "solver/kvaerno5": {"method", "stepping"},
    "solver/exponential": {"method", "stepping"},
    "optimizer/adamw": {"weight_decay"},
    # The code defines these in its recipes.
    "recipe/default": {"stages.derivative.objective", "stages.derivative.optimizer", "stages.derivative.steps"},
    # The meaning of penalty="auto" in `fit`.
    "config/penalty": {"ridge"},
}


def read(name: str) -> dict[str, Any]:
    group, _, option = name.partition("/")
    path = CONF / ("config.yaml" if group == "config" else f"{name}.yaml")
    node = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(node, dict)
    return without_words(node[option], option) if group == "config" else without_words(node, group)


def differences(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of a node and its inner nodes whose values differ from the constructor's defaults."""
    target = locate(node["_target_"], "_target_", ["node_fit"])
    parameters, hints = parameters_of(target), constructor_hints(target)
    for name, value in node.items():
        key = f"{prefix}{name}"
        if name == "stages":
            for stage, plan in value.items():
                yield from differences(plan, f"{key}.{stage}.")
        elif isinstance(value, dict) and "_target_" in value:
            yield from differences(value, f"{key}.")
            if locate(value["_target_"], key, ["node_fit"]) is not parameters[name].default:
                yield key
        elif name in ("_target_", "_partial_") or value == "???":
            continue
        elif not same(check_value(value, hints[name], key), parameters[name]):
            yield key


def same(value: Any, parameter: inspect.Parameter) -> bool:
    """Whether a value is a parameter's default; an empty list or dict, which overrides can extend, counts as `None`."""
    if parameter.default is parameter.empty:
        return value == {}
    return value == parameter.default or (value in ((), {}) and parameter.default is None)


@pytest.mark.parametrize("name", [*FILES, *(f"config/{node}" for node in NODES)])
def test_what_conf_says_is_the_default(name):
    assert set(differences(read(name))) == DIFFERENT.get(name, set())


def test_no_file_is_forgotten():
    paths = [path for path in CONF.rglob("*.yaml") if NAMES_A_CLASS in path.read_text()]
    found = {str(path.relative_to(CONF).with_suffix("")) for path in paths}
    assert found == {*FILES, "config", "data/table", "data/nonmem", "data/petab", "data/sbml"}, (
        "other data take what is the same"
    )
    assert set(DIFFERENT) <= {*FILES, *(f"config/{node}" for node in NODES)}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_of_conf_are_those_of_the_code(name):
    given = build(read(f"recipe/{name}"), "recipe")
    main = CLOSED.main_stage()
    made, known = (
        [make_stage(stage, plan, main) for stage, plan in recipe.stages.items()] for recipe in (given, RECIPES[name])
    )
    assert eqx.tree_equal(made, known)


def test_a_run_of_which_nothing_is_said_is_a_fit_of_which_nothing_is_said(shipped):
    """This includes the options that config.yaml selects in its groups, and its keys outside of groups."""
    config = shipped()
    run = build_parts(config).options
    fit = nf.Options()
    same = ("hidden", "solver", "penalty", "loss", "training", "scaling", "device", "ensemble", "seed", "effort")
    for name in (*same, "discover"):
        assert getattr(run, name) == getattr(fit, name), name
    for name in ("field", "observation"):
        assert getattr(run, name).func is getattr(fit, name)
    assert run.start == fit.start == "auto"
    assert run.recipe.stages.keys() == fit.recipe.stages.keys()  # The test above compares them.
    assert run.optimizer == CLOSED.main_stage().optimizer
    assert run.prediction_solver is fit.prediction_solver is None
    assert config.evaluation.level == parameters_of(nf.NeuralODE.bands)["level"].default


# Keys that nothing reads.


@pytest.mark.parametrize(
    "word, near",
    [
        ("+nonsense=3", "choose from"),
        ("+sede=3", "did you mean seed?"),
        ("+evaluation.levle=0.5", "did you mean evaluation.level?"),
        ("+device.cuont=2", "did you mean device.count?"),
        ("+hiden={a: 1}", "did you mean hidden?"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(shipped, word, near):
    with pytest.raises(ConfigError) as caught:
        check_top(shipped(word))
    key = word.strip("+").partition("=")[0]
    assert str(caught.value).startswith(f"{key} is not a config key; ") and near in str(caught.value)


@pytest.mark.parametrize(
    "words", [(), ("experiment=spiral",), ("+wide=3", "field.width=${wide}"), ("+data.scale=false",), ("device=cpu",)]
)
def test_keys_that_something_reads_are_taken(shipped, words):
    check_top(shipped(*words))


def test_an_experiment_that_does_not_exist_names_the_nearest(shipped):
    with pytest.raises(Exception) as caught:
        shipped("experiment=robertsn")
    assert explain(caught.value) == "experiment=robertsn does not exist; did you mean experiment=robertson?"


def test_a_kind_of_device_that_does_not_exist_gets_no_bad_hint(shipped):
    with pytest.raises(Exception) as caught:
        shipped("device=tpu")
    assert explain(caught.value) == "device=tpu does not exist; choose from auto, cpu, gpu."


@pytest.mark.parametrize("word", ["steps=0", "window=1", "stride=0", "batch_size=0", "chunk_steps=0", "patience=0"])
def test_numbers_of_training_that_are_out_of_range_are_refused_before_data_are_read(shipped, word):
    with pytest.raises(ConfigError, match=f"^training.{word.partition('=')[0]} must be at least"):
        build_parts(shipped(f"training.{word}", "data.path=not there.csv"))


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999", "true", "1.5"])
def test_a_seed_that_no_key_can_be_made_of_is_refused(shipped, seed):
    with pytest.raises(ConfigError, match="seed must be an integer from 0 to 4294967295, got"):
        check_top(shipped(f"seed={seed}"))


def test_a_word_stands_for_null_in_its_own_key_alone():
    given = {"steps": "auto", "batch_size": "all", "stride": "all", "window": "auto", "patience": 10}
    assert without_words(given, "training") == {**given, "steps": None, "batch_size": None}
    assert without_words({"given": "all", "absent": None}, "start") == {"given": None, "absent": None}
    assert without_words({"states": "auto"}, "data") == {"states": "auto"}


def test_null_in_the_config_of_an_earlier_run_is_the_word_of_now():
    before = OmegaConf.create({"train": {"stride": None, "batch_size": None}})
    now = OmegaConf.create({"training": {"stride": "auto", "batch_size": "all"}})
    assert run_directory.differences(before, now) == []
    now = OmegaConf.create({"training": {"stride": 4, "batch_size": "all"}})
    assert run_directory.differences(before, now) == [("training.stride", "auto", 4)]


@pytest.mark.parametrize(
    "before, now",
    [
        ({"starts": 3}, {"restarts": 3}),
        (
            {"evaluation": {"rtol": 1e-5, "atol": None, "level": 0.9}},
            {"prediction_solver": {"rtol": 1e-5, "atol": "auto"}, "evaluation": {"level": 0.9}},
        ),
        (
            {"optimizer": {"_target_": "node_fit.LevenbergMarquardt", "memory": 1e6}},
            {"optimizer": {"_target_": "node_fit.LevenbergMarquardt", "max_bytes": 1e6}},
        ),
        (
            {"optimizer": {"_target_": "node_fit.LBFGS", "memory": 20}},
            {"optimizer": {"_target_": "node_fit.LBFGS", "memory": 20}},
        ),
    ],
)
def test_a_key_in_the_config_of_an_earlier_run_has_its_name_of_now(before, now):
    assert run_directory.differences(OmegaConf.create(before), OmegaConf.create(now)) == []
    renamed = OmegaConf.create(before)
    rename_keys(renamed)
    assert renamed.keys() == now.keys()
