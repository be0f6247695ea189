"""Files that every later version reads: models, checkpoints and run directories of each schema.

`run` has schema 4, `angles` schema 5, the models in `starts` schema 6, and the one in `march` schema 7.
They are never made again. Predictions may differ by what rounding on another processor, or another version of JAX, does
to a solve at a tolerance of 1e-6: by a thousandth.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import in_process, node_fit, read_summary, read_table

import node_fit as nf
from node_fit.predict import main as predict

GOLDEN = Path(__file__).parents[1] / "golden"
each_run = pytest.mark.parametrize("run", ["run", "angles"])


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "golden")
    for record in (tmp_path / "golden").glob("*/.run.json"):
        told = json.loads(record.read_text())
        record.write_text(json.dumps({**told, "cwd": str(tmp_path / "golden")}))
    return tmp_path / "golden"


def measured() -> nf.Dataset:
    return nf.read_table(GOLDEN / "data.csv", time="t", states=["x", "y"], inputs=["u"])


@each_run
def test_a_model_predicts_what_it_predicted(run):
    model = nf.load(GOLDEN / run / "model.safetensors")
    rows = read_table(GOLDEN / run / "predictions.csv")
    for name, part in nf.Split()(measured()).named().items():
        told = [[row["x_predicted"], row["y_predicted"]] for row in rows if row["split"] == name]
        before = np.array([[float(x) if x else np.nan for x in row] for row in told])
        np.testing.assert_allclose(model.predict(part)[part.valid & part.scored], before, rtol=1e-3, atol=1e-3)
        assert np.isfinite(before[2:]).all()


@each_run
def test_a_run_directory_predicts_new_data(folder, run):
    ran = in_process(predict, folder, run, "--data", "data.csv", "--out", "out.csv")
    assert ran.code == 0, ran
    rows = read_table(folder / run / "predictions.csv")
    before = {row["t"]: row["x_predicted"] for row in rows if row["split"] == "train"}
    compared = 0
    for row in read_table(folder / "out.csv"):
        if before.get(row["t"]):  # The first rows had no prediction then.
            assert row["x_predicted"]
            assert float(row["x_predicted"]) == pytest.approx(float(before[row["t"]]), rel=1e-3, abs=1e-3)
            compared += 1
    assert compared > 15


@pytest.mark.slow
@each_run
def test_a_run_that_had_ended_says_so(folder, run):
    ran = node_fit(folder, f"resume={run}")
    assert ran.code == 0 and "it had ended before, and took no further step" in ran.out, ran
    assert "compiling" not in ran.out and ran.out.startswith("run: ")


@pytest.mark.slow
@each_run
def test_a_run_goes_on_from_its_checkpoint(folder, run):
    ran = node_fit(folder, f"resume={run}", "training.steps=30")
    assert ran.code == 0, ran
    assert "resuming from step 20" in ran.out
    assert read_summary(folder / run)["steps"] == 30
    losses = [float(row["train_loss"]) for row in read_table(folder / run / "metrics.csv")]
    assert len(losses) == 3 and losses[2] < losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["first", "fitted"])
def test_a_start_that_was_given_for_states_that_are_absent_is_still_theirs(rule):
    """Version 6 of the files gave it to measured states alone; a hidden one was trained."""
    model = nf.load(GOLDEN / "starts" / f"{rule}.safetensors")
    assert (model.latent, model.start.guess.is_stated) == (("x", "y", "h"), (True, True, False))
    ts = np.linspace(0, 3, 12)
    angle = ts[None] + np.arange(3)[:, None]
    ys = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    ys[1, :, 0] = np.nan
    predicted = model.predict(nf.Dataset.from_arrays(ts, ys, states=["x", "y"]))
    expected = np.loadtxt(GOLDEN / "starts" / f"{rule}.csv", delimiter=",")
    # A fitted start solves a least-squares problem in single precision before; expected is what it is in double.
    np.testing.assert_allclose(predicted.reshape(-1, 2), expected, rtol=1e-3, atol=1e-3)


def test_a_solver_without_a_march_chooses_it():
    """Version 7 of the files had one march."""
    model = nf.load(GOLDEN / "march" / "decay.safetensors")
    assert model.solver.march == "auto"
    ts = np.linspace(0, 4, 12)
    data = nf.Dataset.from_arrays(ts, np.exp(-0.5 * ts)[:, None], states=["c"])
    np.testing.assert_allclose(model.predict(data)[0, :, 0], np.exp(-0.5 * ts), rtol=1e-4)
