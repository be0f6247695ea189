"""Absurd config values: each is accepted, or refused in one sentence."""

import functools
import math
import random
import warnings
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import node_fit as nf
from node_fit.app.config.build import build
from node_fit.app.config.composition import explain
from node_fit.storage.files import explain_disk

with warnings.catch_warnings():  # beartype warns about a deprecated base class of OmegaConf's type.
    warnings.simplefilter("ignore")
    from node_fit.app.config.build import CONFIG_PARTS, check_top, hidden_states, without_words

CONF = Path(nf.__file__).parent.parent / "conf"
VALUES = (
    "-1", "0", "1", "1e400", "-1e400", "nan", "inf", "1e-320", "99999999999999999999", "null", "true", "''", "abc",
    "[]", "[1,-2]", "[null]", "[[1,2],[3]]", "{}", "{a:1}", "{_target_:os.system}", "{_target_:node_fit.MLP,width:-3}",
    "/dev/null", "'${nothing}'", "'${training.steps}'", "'é\u202e'",
)  # fmt: skip
TRIES = 100


@pytest.fixture(scope="module", autouse=True)
def hydra():
    OmegaConf.register_new_resolver("shipped", lambda name: name, replace=True)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def keys_of(node, prefix="") -> list[str]:
    """All keys of a config, including inner ones."""
    found = []
    for key in node:
        name = f"{prefix}{key}"
        found.append(name)
        child = None if OmegaConf.is_missing(node, key) else node._get_node(key)
        if OmegaConf.is_dict(child):
            found += keys_of(child, f"{name}.")
    return found


@functools.cache
def keys_with(*groups: str) -> list[str]:
    return keys_of(compose("config", list(groups)))


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def outcome(overrides: list[str]) -> str:
    """Returns `built` or the error message; raises any unexplained error."""
    try:
        config = compose("config", overrides)
    except Exception as error:
        sentence = explain(error) or (explain_disk(error, ".") if isinstance(error, OSError) else None)
        if sentence is None:
            raise
        return sentence
    try:
        check_top(config)
        hidden_states(config)
        for part in (*CONFIG_PARTS, "evaluation"):
            build(without_words(config[part], part), part)
    except (ValueError, OSError) as error:
        return explain(error) or str(error)
    return "built"


@pytest.mark.slow
def test_random_overrides_are_taken_or_refused_in_a_sentence(record_property):
    random_choice = random.Random(0).choice
    record_property("faults", TRIES)
    refused = 0
    for _ in range(TRIES):
        groups = [f"{group}={random_choice(choices(group))}" for group in ("field", "optimizer", "solver", "data")]
        hostile = [f"{random_choice(keys_with(*groups))}={random_choice(VALUES)}"]
        said = outcome(groups + hostile)
        assert said == "built" or ("\n" not in said.strip() and len(said) < 1000), (groups + hostile, said)
        refused += said != "built"
    assert TRIES / 4 < refused < TRIES


@pytest.mark.parametrize(
    "overrides",
    [
        ["field=[mlp,linear]"],
        ["nowhere.key=1"],
        ["+field.deep.deeper.deepest=1"],
        ["+optimizer.nested={a:{b:{c:[1,{d:nan}]}}}"],
        ["~field.width"],
        ["field=../../etc/passwd"],
        ["training.steps="],
        ["training.steps=[1"],
        ["=1"],
        ["field.width=${oc.env:NOWHERE}"],
        ["++data._target_=subprocess.run"],
        ["+" + "a." * 200 + "b=1"],
    ],
    ids=str,
)
def test_overrides_that_do_not_fit_at_all(overrides):
    said = outcome(overrides)
    assert said == "built" or "\n" not in said.strip()


def test_the_fuzz_can_fail():
    with pytest.raises(AssertionError):
        assert outcome(["optimizer=adam", "optimizer.learning_rate=-1"]) == "built"
    assert not math.isfinite(float("1e400"))
