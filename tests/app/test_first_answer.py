"""What a run says and draws before its first step, and how soon it can."""

import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.commands import DIRECT, node_fit, spirals, write_table

import node_fit as nf
from node_fit.app import first_answer
from node_fit.app.first_answer import FirstAnswer, FirstAnswerThread, curves_at_rows, equation_curves, has_first_answer
from node_fit.data.events import Events
from node_fit.evaluation.baselines import baselines
from node_fit.fitting.uncompiled import FirstFit

HEAVY = ("sklearn", "pandas", "scipy.stats", "scipy.optimize", "matplotlib", "plotly", "jinja2")


def decays(*lengths, rate=0.5):
    """Noiseless first-order decays, for which the linear equation is exact."""
    ts = [np.linspace(0, 4, length) for length in lengths]
    ys = [(1 + i) * np.exp(-rate * t)[:, None] for i, t in enumerate(ts)]
    return nf.Dataset.from_arrays(ts, ys, states=["x"])


def test_the_answer_has_the_scores_of_the_simple_models_on_what_is_held_out():
    splits = {"train": decays(9, 9), "validation": decays(12), "test": decays(7)}
    answer = FirstAnswer.of(splits)
    scores = baselines(splits["train"], splits["validation"])
    assert answer.role == "validation" and answer.best == "linear"
    assert answer.nrmse == {name: scores[name].nrmse for name in ("linear", "persistence", "mean")}
    assert answer.nrmse["linear"] < 0.02 < answer.nrmse["mean"]
    assert str(answer).startswith("first answer: a linear model has an NRMSE of 0.0")
    assert " on validation data, the last known value " in str(answer)
    assert FirstAnswer.of({"train": splits["train"], "test": splits["test"]}).role == "test"
    assert FirstAnswer.of({"train": splits["train"]}).role == "train"


def test_nothing_that_varies_has_no_answer():
    still = nf.Dataset.from_arrays(np.arange(5.0), np.full((1, 5, 1), 0.1), states=["x"])
    assert FirstAnswer.of({"train": still, "validation": replace(still, ys=still.ys + 1)}) is None


@pytest.mark.parametrize(("new", "words"), [(0.02, "better than"), (0.4, "no better than")])
def test_the_end_compares_the_fit_with_the_best_simple_model(new, words):
    answer = FirstAnswer("test", {"linear": 0.5, "persistence": 0.25, "mean": 1.0})
    summary = {
        "metrics": {"train": None, "validation": None, "test": {"nrmse": new}},
        "baselines": {"linear": {"test": {"nrmse": 0.5}}, "persistence": {"test": {"nrmse": 0.3}}},
    }
    expected = (
        f"{words} the first answer: NRMSE {new} on test data, where the last known value has 0.3 on the same rows"
    )
    assert answer.describe_change(summary) == expected
    assert answer.describe_change(summary | {"metrics": {"test": {"nrmse": None}}}) is None, "a fit that has failed"
    assert answer.describe_change(summary | {"baselines": {}}) is None


def known(**given):
    return partial(nf.Known, equations={"x": "-k*x"}, constants={"k": 1.0}, **given)


def doses():
    """A decay of which as much is given again after each second row, as doses of 1."""
    shift = np.zeros((1, 9, 1))
    shift[0, ::2] = 1.0
    ys = [0.0]
    for dose in shift[0, :-1, 0]:
        ys.append((ys[-1] + dose) * np.exp(-0.25))
    data = nf.Dataset.from_arrays(np.linspace(0, 4, 9), np.array(ys)[None, :, None], states=["x"])
    return replace(data, events=Events(("x",), np.ones((1, 9, 1)), shift))


def test_angles_have_no_answer_and_events_only_by_equations():
    """A linear equation knows nothing of jumps, nor that 359 degrees is near 1."""
    data = decays(9)
    assert has_first_answer({"train": data}, ())
    assert not has_first_answer({"train": data}, ("x",)), "an angle that the data do not name yet"
    assert not has_first_answer({"train": replace(data, angles={"x": 360.0})}, ())
    assert FirstAnswer.of({"train": doses()}) is None
    answer = FirstAnswer.of({"train": doses()}, known())
    assert answer.error < 1e-4 and answer.equations.constants["k"] == pytest.approx(0.5, rel=1e-4)


def test_known_equations_come_first():
    splits = {"train": decays(9, 9), "test": decays(7)}
    answer = FirstAnswer.of(splits, known())
    assert answer.role == "test" and answer.error < 1e-3
    assert str(answer).startswith("first answer: the equations have an NRMSE of ")
    assert " on test data (k = 0.5), a linear model 0.0" in str(answer)
    assert FirstAnswer.of(splits, known(triggers=[{"when": "x-0.1", "set": {"x": "1"}}])).equations is None


@pytest.mark.parametrize(
    ("new", "words"), [(0.1005, "as good as"), (0.05, "better than"), (0.2, "no better than"), (None, None)]
)
def test_the_end_compares_the_fit_with_the_first_constants(new, words):
    fit = FirstFit({"k": 1.0}, {}, {}, 4)
    answer = FirstAnswer("train", {"mean": 1.0}, fit, 0.1)
    summary = {"metrics": {"train": {"nrmse": new}}, "baselines": {}}
    sentence = words and f"{words} the first answer: NRMSE {new:.3g} on train data, where it had 0.1"
    assert answer.describe_change(summary) == sentence


@pytest.mark.parametrize(
    ("new", "points", "words"),
    [(0.612, 5, "as good as"), (0.5, 5, "as good as"), (0.3, 5, "better than"), (0.612, 500, "no better than")],
)
def test_a_difference_that_chance_explains_is_none(new, points, words):
    answer = FirstAnswer("validation", {"linear": 0.6, "mean": 1.0})
    score = {"nrmse": new, "channels": {"x": {"points": points}}}
    summary = {"metrics": {"validation": score}, "baselines": {"linear": {"validation": {"nrmse": 0.555}}}}
    sentence = (
        f"{words} the first answer: NRMSE {new:.3g} on validation data, where a linear model has 0.555 on the same rows"
    )
    assert answer.describe_change(summary) == sentence


def test_the_equations_are_drawn_at_the_steps_of_their_solve(tmp_path):
    answer = FirstAnswer.of({"train": doses()}, known())
    curves = equation_curves({"train": doses()}, answer.equations)
    ts, ys = curves.dense["train"]
    assert ts.shape == ys.shape[:2] == (1, 33) and curves.at_rows["train"].shape == (1, 9, 1)
    np.testing.assert_allclose(ts[0, ::4], doses().ts[0])
    np.testing.assert_allclose(ys[0, 1, 0], np.exp(-0.0625), rtol=1e-3)
    answering = FirstAnswerThread({"train": doses()}, tmp_path / "plots" / "fit.png", str, ["0"], known())
    answering.begin()
    answering.end()
    assert (tmp_path / "plots" / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_curves_have_few_points_and_end_where_their_trajectory_does(monkeypatch):
    data = decays(30, 5)
    monkeypatch.setattr(first_answer, "MAX_CURVE_POINTS", 10)
    ts, ys = curves_at_rows(data, data.ys)
    assert ts.shape == (2, 10) and ys.shape == (2, 10, 1)
    np.testing.assert_allclose(ts[:, [0, -1]], [[0, 4], [0, 4]])
    np.testing.assert_allclose(ys[1, -1], 2 * np.exp(-2))
    assert np.isfinite(ys).all(), "rows of padding are no part of a curve"


def test_the_linear_model_is_drawn_beside_the_run(tmp_path):
    said = []
    answering = FirstAnswerThread(
        {"train": decays(9, 9), "test": decays(12)}, tmp_path / "plots" / "fit.png", said.append, ["0"]
    )
    answering.begin()
    assert said == [str(answering.answer)], "it is said before the run goes on"
    answering.end()
    assert (tmp_path / "plots" / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["fit.png"]


def test_a_run_does_not_wait_for_a_slow_answer(tmp_path, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(first_answer, "MAX_ANSWER_WAIT", 0.05)
    monkeypatch.setattr(first_answer, "baselines", lambda *_: done.wait(20) and {})
    answering = FirstAnswerThread({"train": decays(9)}, tmp_path / "fit.png", str, ["0"])
    before = time.perf_counter()
    answering.begin()
    assert time.perf_counter() - before < 5 and answering.answer is None
    done.set()
    answering.end()
    assert not answering.thread.is_alive()


@pytest.mark.parametrize("name", ["baselines", "png_of_fit"])
def test_an_answer_that_fails_is_passed_over(tmp_path, monkeypatch, name):
    def fail(*_):
        raise ValueError("such data")

    monkeypatch.setattr(first_answer, name, fail)
    answering = FirstAnswerThread({"train": decays(9)}, tmp_path / "fit.png", str, ["0"])
    answering.begin()
    answering.end()
    assert (answering.answer is None) == (name == "baselines") and not (tmp_path / "fit.png").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_begins_with_an_answer_and_ends_with_what_changed(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(tmp_path, *DIRECT, "report=false", "hydra.run.dir=run")
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    (answer,) = [place for place, line in enumerate(lines) if line.startswith("first answer: a linear model has an ")]
    assert answer < next(place for place, line in enumerate(lines) if line.startswith("compiling"))
    assert lines[-3].startswith(("better than the first answer: ", "no better than the first answer: ")), ran.out
    ran = node_fit(tmp_path, "resume=run", "report=false")
    assert ran.code == 0 and "first answer" not in ran.out
    ran = node_fit(tmp_path, "-m", *DIRECT, "report=false", "seed=0", "training.steps=2")
    assert ran.code == 0 and "first answer" not in ran.out


@pytest.mark.slow
def test_a_command_imports_nothing_that_it_may_not_need():
    """Each takes a fifth of a second or more, before the first line."""
    code = f"""
import sys
import node_fit.__main__, node_fit.app.application
from node_fit.app.config.composition import ALLOWED, locate
locate("node_fit.MLP", "field._target_", ALLOWED)
locate("optax.losses.squared_error", "loss._target_", ALLOWED)
assert not [name for name in {HEAVY} if name in sys.modules], [name for name in {HEAVY} if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


ENDS_EARLY = """
import pathlib, sys
import numpy as np
import node_fit as nf
from node_fit.app.first_answer import FirstAnswerThread

ts = np.linspace(0, 5, 40)
data = {name: nf.Dataset.from_arrays(ts, np.exp(-ts)[:, None], states=["x"]) for name in ("train", "validation")}
FirstAnswerThread(data, pathlib.Path("plots/fit.png"), print, ["0"]).begin()
sys.exit(1)
"""


def test_a_process_that_ends_early_waits_for_the_picture(tmp_path):
    """Python can't end beside a thread that computes: XLA aborts the process, whose exit code then is no error's."""
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "terminate" not in done.stderr, done.stderr
    assert (tmp_path / "plots" / "fit.png").exists()
