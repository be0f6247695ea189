"""`sweep=vectorized`: the directories and the leaderboard of a plain multirun, from one program."""

import json

import numpy as np
import pytest
from helpers.commands import DIRECT, node_fit, read_summary, read_table, spirals, write_table

pytestmark = pytest.mark.slow

SWEEP = ("-m", *DIRECT, "optimizer=adam", "optimizer.learning_rate=0.01,0.001", "seed=0,1")


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectorized")
    write_table(folder / "mine.csv", spirals())
    ran = {}
    for kind in ("serial", "vectorized"):
        ran[kind] = node_fit(folder, *SWEEP, f"sweep={kind}", f"hydra.sweep.dir={kind}", "precision=x64")
        assert ran[kind].code == 0, ran[kind]
    return folder, ran


def test_there_is_one_program(sweeps):
    folder, _ = sweeps
    summaries = [read_summary(folder / "vectorized" / str(job)) for job in range(4)]
    assert [summary["compiles"] + summary["cached"] for summary in summaries] == [1, 0, 0, 0]


def test_the_jobs_come_to_the_same(sweeps):
    folder, _ = sweeps
    for job in map(str, range(4)):
        serial, vectorized = (folder / kind / job for kind in ("serial", "vectorized"))
        names = {path.name for path in serial.iterdir()}
        assert names == {path.name for path in vectorized.iterdir()}
        one, other = (read_summary(run) for run in (serial, vectorized))
        assert list(one) == list(other)
        assert [one[key] for key in ("status", "reason", "steps")] == [
            other[key] for key in ("status", "reason", "steps")
        ]
        for mine, theirs in zip(
            read_table(serial / "metrics.csv"), read_table(vectorized / "metrics.csv"), strict=True
        ):
            assert (mine["step"], mine["stage"], mine["member"]) == (theirs["step"], theirs["stage"], theirs["member"])
            np.testing.assert_allclose(float(mine["train_loss"]), float(theirs["train_loss"]), rtol=1e-6)
        for mine, theirs in zip(
            read_table(serial / "predictions.csv"), read_table(vectorized / "predictions.csv"), strict=True
        ):
            np.testing.assert_allclose(float(mine["x_predicted"]), float(theirs["x_predicted"]), rtol=1e-4, atol=1e-6)


def test_so_does_the_leaderboard(sweeps):
    folder, ran = sweeps
    boards = [read_table(folder / kind / "leaderboard.csv") for kind in ("serial", "vectorized")]
    assert [row["job"] for row in boards[0]] == [row["job"] for row in boards[1]]
    assert "4 jobs at once" in ran["vectorized"].out and "leaderboard" in ran["vectorized"].out


def test_a_job_goes_on_alone(sweeps):
    folder, _ = sweeps
    ran = node_fit(folder, "resume=vectorized/2", "training.steps=30")
    assert ran.code == 0, ran
    assert [int(row["step"]) for row in read_table(folder / "vectorized" / "2" / "metrics.csv")] == [10, 20, 30]


def test_what_fails_holds_no_other_up(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(
        tmp_path,
        "-m",
        *DIRECT,
        "optimizer=adam",
        "sweep=vectorized",
        "hydra.sweep.dir=runs",
        "field.width=8,0",
        "seed=0,1",
    )
    assert ran.code == 1
    statuses = [json.loads((tmp_path / "runs" / str(job) / "summary.json").read_text())["status"] for job in range(4)]
    assert statuses == ["completed", "completed", "failed", "failed"]
    assert "Traceback" not in ran.err and len(read_table(tmp_path / "runs" / "leaderboard.csv")) == 4


@pytest.mark.parametrize("words, message", [(("ensemble.size=2",), "ensemble.size"), (("sweep=parallel",), "serial")])
def test_what_it_can_not_do_is_refused(words, message, tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(tmp_path, "-m", *DIRECT, "sweep=vectorized", "seed=0", *words)
    assert ran.code == 1 and message in ran.err and "Traceback" not in ran.err
