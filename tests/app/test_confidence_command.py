"""A run prints the intervals of its constants, and keeps them in its summary and on its page."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit, read_summary
from helpers.reports import by_trajectory, spirals, write_run

from node_fit.report.pages import make_run_page

pytestmark = pytest.mark.slow

TIMES = np.linspace(0.0, 3.0, 15)
DATA = ("data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "data.split.by=time")
SPLIT = ("data.split.validation=0", "data.split.test=0")
RUN = (
    *DATA,
    *SPLIT,
    "field=known",
    'field.equations={x: "-a*x"}',
    "+field.constants={a: [0.8, 0, null]}",
    "report=false",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    ys = np.exp(-TIMES) + 0.02 * np.random.default_rng(0).standard_normal(15)
    pd.DataFrame({"t": TIMES, "x": ys, "sd": 0.02}).to_csv(path / "mine.csv", index=False)
    return path


def run(folder, *words):
    name = f"run{len(list(folder.iterdir()))}"
    done = node_fit(folder, *RUN, "precision=x64", "recipe=direct", *words, f"hydra.run.dir={name}")
    assert done.code == 0, done.err
    return done.out, read_summary(folder / name)


def test_the_line_of_constants_has_their_intervals(folder):
    out, summary = run(folder, "start=first")
    a = summary["confidence"]["constants"]["a"]
    assert a["lower"] < 1.0 < a["upper"] and summary["constants"]["a"] == a["estimate"]
    assert f"constants: a = {a['estimate']:.3g} [{a['lower']:.3g}, {a['upper']:.3g}] (intervals at 95%)" in out
    assert "start=fitted start.given=all lets its noise" in out
    assert summary["likelihood"]["values"] == 14 and summary["likelihood"]["noise"] == "estimated"


def test_profiles_and_a_column_of_sigma(folder):
    _, summary = run(folder, "confidence=profile", "data.sigma={x: sd}", "start=fitted", "start.given=null")
    assert summary["confidence"]["method"] == "profile"
    assert summary["confidence"]["noise"] == "given" and summary["confidence"]["degrees_of_freedom"] is None
    assert 0.2 < summary["likelihood"]["chi2_per_dof"] < 3
    # New data need no such column.
    pd.read_csv(folder / "mine.csv").drop(columns="sd").to_csv(folder / "new.csv", index=False)
    newest = max(folder.glob("run*"), key=lambda path: path.stat().st_mtime)
    done = node_fit(
        folder, newest.name, "--data", "new.csv", "--out", "out.csv", "--overwrite", module="node_fit.predict"
    )  # fmt: skip
    assert done.code == 0, done.err


def test_confidence_none_costs_nothing_and_says_so(folder):
    out, summary = run(folder, "confidence=none", "training.steps=2")
    assert "constants: a = " in out and "[" not in out.split("constants:")[1].splitlines()[0]
    assert summary["confidence"] == summary["likelihood"] == {"left_out": "confidence=none."}


def test_a_wrong_word_gets_a_sentence(folder):
    done = node_fit(folder, *RUN, "confidence=bayes", "hydra.run.dir=wrong")
    assert done.sentence == "confidence must be one of fisher, profile, none, got 'bayes'."
    done = node_fit(folder, *RUN, "data.sigma={y: 1}", "hydra.run.dir=wrong")
    assert "data.sigma names 'y', which is not a state" in done.sentence


def test_the_page_shows_intervals(tmp_path):
    interval = {"estimate": 0.5, "standard_error": None, "lower": 0.0, "upper": None}
    confidence = {"level": 0.95, "constants": {"a": interval}, "undetermined": ["a is not determined."], "notes": []}
    likelihood = {"nll": 12.5, "aic": 29.0, "bic": 30.25, "chi2_per_dof": 1.5, "noise": "given"}
    sure = {"confidence": confidence, "likelihood": likelihood}
    folder = write_run(tmp_path / "run", by_trajectory(spirals()), **json.loads(json.dumps(sure)))
    page = make_run_page(folder).read_text()
    for text in ("95 % interval", "<span>0</span> to <span>∞</span>", "a is not determined.", "AIC 29", "freedom 1.5"):
        assert text in page
