"""Covariates that are words, such as a strain."""

import functools

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit as run_node_fit

import node_fit
from node_fit.app.launching import complete
from node_fit.data.groups import find_grouping_covariate, groups_of, without_levels

LEVELS = {"strain": ["mutant", "wild type"]}
ROLES = {"time": "t", "states": ["x"], "covariates": ["strain"], "trajectory": "id"}
RATES = {"mutant": 0.4, "wild type": 0.9}


def make_frame(words=("wild type", "mutant", "mutant", "wild type"), rows=4):
    """Decays whose rates differ between strains; the strain stands in the first row of each record alone."""
    ts = np.arange(float(rows))
    records = [
        pd.DataFrame({"id": f"r{index}", "t": ts, "x": np.exp(-RATES.get(word, 1.0) * ts / rows), "strain": ""})
        for index, word in enumerate(words)
    ]
    for record, word in zip(records, words, strict=True):
        record.loc[0, "strain"] = word
    return pd.concat(records, ignore_index=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make_frame().to_csv(tmp_path / "growth.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_become_their_positions(folder):
    for data in (
        node_fit.Dataset.from_file("growth.csv", **ROLES, levels=LEVELS),
        node_fit.Dataset.from_frame(make_frame(), **ROLES, levels=LEVELS),
    ):
        np.testing.assert_array_equal(data.us[:, :, 0], np.array([[1.0], [0], [0], [1]]) * np.ones(4))
        assert data.levels == {"strain": ("mutant", "wild type")}


def test_an_unknown_word_is_named(folder):
    text = (folder / "growth.csv").read_text().replace("r2,0.0,1.0,mutant", "r2,0.0,1.0,mutnat")
    (folder / "growth.csv").write_text(text)
    with pytest.raises(ValueError, match=r"growth.csv, line 10, column 'strain': 'mutnat' is not one of the levels"):
        node_fit.Dataset.from_file("growth.csv", **ROLES, levels=LEVELS)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ({"strian": ["a", "b"]}, "levels names 'strian', which is not a covariate"),
        ({"strain": "mutant"}, "levels.strain must be a list"),
        ({"strain": ["mutant", "mutant"]}, "levels.strain must be a list of different words"),
    ],
)
def test_levels_that_are_wrong_are_refused(folder, levels, words):
    with pytest.raises(ValueError, match=words):
        node_fit.Dataset.from_file("growth.csv", **ROLES, levels=levels)


def test_a_list_of_levels_is_refused(folder):
    ran = run_node_fit(folder, "growth.csv", "data.levels=[mutant]")
    expected = (
        "levels must be the words of each covariate that is text, such as {strain: [wild, mutant]}, got ['mutant']."
    )
    assert ran.sentence == expected


def test_groups_have_the_names_of_words():
    data = node_fit.Dataset.from_frame(make_frame(), **ROLES, levels=LEVELS)
    assert groups_of(data, "strain", "k").labels == ("mutant", "wild type")
    field = functools.partial(
        node_fit.Known, equations={"x": "-k*x"}, constants={"k": [1.0, 0, None]}, local={"k": "strain"}
    )
    fit = node_fit.fit(data, field=field, options=node_fit.Options(precision="x64"))
    for word, rate in RATES.items():
        assert fit.constants[f"k_{word.replace(' ', '_')}"] == pytest.approx(rate / 4, rel=1e-3)


def test_words_are_no_variables_of_equations():
    data = node_fit.Dataset.from_frame(
        make_frame().assign(dose=2.0), **ROLES | {"covariates": ["strain", "dose"]}, levels=LEVELS
    )
    bare = without_levels(data)
    assert bare.inputs == ("dose",) and bare.us.shape == (4, 4, 1) and not bare.levels
    assert without_levels(bare) is bare
    assert find_grouping_covariate(data) == "strain" and find_grouping_covariate(bare) is None
    some = data.select([1, 2])
    assert find_grouping_covariate(some) is None  # A wild type would have no constants.


# Columns of words that the command finds.


def found_in(path, *words):
    return dict(word.partition("=")[::2] for word in complete([path, *words], "node_fit"))


def test_words_that_records_share_are_a_covariate(folder, capsys):
    found = found_in("growth.csv")
    assert found["data.states"] == "[x]" and found["data.covariates"] == "[strain]"
    assert found["data.levels"] == '{strain:[mutant,"wild type"]}'
    assert "'strain' is a covariate, constant in each trajectory" in capsys.readouterr().out


def test_levels_follow_a_renamed_column(folder):
    make_frame().rename(columns={"strain": "strain (lab)"}).to_csv("growth.csv", index=False)
    found = found_in("growth.csv")
    assert found["data.covariates"] == "[strain]" and found["data.levels"].startswith("{strain:")


@pytest.mark.parametrize(
    "words",
    [("a", "b", "c", "d"), ("a", "a", "a", "a"), ("a", "b", "c", "a")],
    ids=["names", "one word", "few share it"],
)
def test_other_words_are_left_out(folder, words):
    make_frame(words).to_csv("growth.csv", index=False)
    assert not {"data.covariates", "data.levels"} & set(found_in("growth.csv"))


def test_words_that_change_are_left_out(folder):
    frame = make_frame()
    frame.loc[2, "strain"] = "mutant"
    frame.to_csv("growth.csv", index=False)
    assert "data.covariates" not in found_in("growth.csv")


EQUATIONS = ["field=known", "field.equations={x: -k*x}"]


def test_equations_take_the_words_that_local_constants_name(folder):
    assert "data.covariates" not in found_in("growth.csv", *EQUATIONS)
    found = found_in("growth.csv", *EQUATIONS, "+field.local={k: strain}")
    assert found["data.covariates"] == "[strain]" and "data.levels" in found


def test_equations_take_the_numbers_that_local_constants_name(folder):
    frame = make_frame()
    frame["strain"] = frame["strain"].map({"mutant": 1, "wild type": 2}).ffill()
    frame.to_csv("growth.csv", index=False)
    found = found_in("growth.csv", *EQUATIONS, "+field.local={k: strain}")
    assert found["data.covariates"] == "[strain]" and "data.levels" not in found


def test_covariates_that_the_command_names_get_levels(folder):
    found = found_in("growth.csv", *EQUATIONS, "data.covariates=[strain]")
    assert found["data.levels"] == '{strain:[mutant,"wild type"]}'


def test_frames_have_words():
    data = node_fit.Dataset.from_frame(make_frame(), **ROLES, levels=LEVELS)
    assert data.to_frame()["strain"].tolist() == ["wild type"] * 4 + ["mutant"] * 8 + ["wild type"] * 4


def test_formulas_refuse_constants_by_words(tmp_path):
    data = node_fit.Dataset.from_frame(make_frame(), **ROLES, levels=LEVELS)
    field = functools.partial(node_fit.Known, equations={"x": "-k*x"}, constants={"k": 1.0}, local={"k": "strain"})
    model = node_fit.make_model(data, field=field, key=jax.random.key(0))
    with pytest.raises(ValueError, match="sympy can't carry this model: constants that differ by strain"):
        node_fit.export(model, "sympy", tmp_path / "out", data=data)


@pytest.mark.slow
def test_equations_get_constants_by_words():
    """Growth rates and limits of three strains, from the columns alone."""
    rng, ts, frames = np.random.default_rng(4), np.arange(0, 20, 1.25), []
    truth = {"a": (0.6, 1.5), "b": (0.4, 1.4), "c": (0.65, 0.9)}
    for word, (rate, limit) in truth.items():
        for copy in range(3):
            first = 0.03 * np.exp(0.2 * rng.standard_normal())
            x = limit / (1 + (limit / first - 1) * np.exp(-rate * ts))
            x = x * (1 + 0.02 * rng.standard_normal(len(ts)))
            frames.append(pd.DataFrame({"id": f"{word}{copy}", "t": ts, "x": x, "strain": word}))
    data = node_fit.Dataset.from_frame(pd.concat(frames), **ROLES, levels={"strain": list(truth)})
    fit = node_fit.fit(data)
    assert fit.attempts[-1].kept and fit.score(data).nrmse < 0.05
    for word, (rate, limit) in truth.items():
        assert fit.constants[f"c1_{word}"] == pytest.approx(rate, rel=0.08)
        assert fit.constants[f"c2_{word}"] == pytest.approx(rate / limit, rel=0.08)


@pytest.mark.slow
def test_the_search_of_equations_reads_no_words():
    data = node_fit.Dataset.from_frame(make_frame(["mutant"] * 2 + ["wild type"] * 2, rows=30), **ROLES, levels=LEVELS)
    found = node_fit.discover(data, effort="quick")
    assert "strain" not in str(found)
