"""`sweep=vectorized`: the directories and the leaderboard of a plain multirun, from one program."""

import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.commands import DIRECT, ENVIRONMENT, node_fit, read_summary, read_table, spirals, write_table
from omegaconf import OmegaConf

from node_fit.app import vectorized
from node_fit.app.run_directory import check_same_config
from node_fit.app.vectorized import fit_in_memory, runs_at_once

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


@pytest.mark.parametrize(
    ("config", "at_once"),
    [
        ({}, True),
        ({"device": {"kind": "cpu"}}, False),
        ({"device": {"kind": "auto"}}, False),
        ({"ensemble": {"size": 8}}, False),
        ({"random": ["k"]}, False),
        ({"launcher": "JoblibLauncher"}, False),
        ({"sweep": "serial"}, False),
        ({"sweep": "vectorized", "device": {"kind": "cpu"}}, True),
    ],
    ids=str,
)
def test_jobs_become_members_on_a_gpu_by_default(config, at_once, monkeypatch):
    given = {"sweep": "auto", "ensemble": {"size": 1}, "device": {"kind": "gpu"}, "random": None} | config
    launcher = SimpleNamespace(_target_=given.pop("launcher", "BasicLauncher"))
    monkeypatch.setattr(vectorized.HydraConfig, "get", lambda: SimpleNamespace(launcher=launcher))
    assert runs_at_once(OmegaConf.create(given)) == at_once


def test_a_group_that_memory_does_not_hold_is_halved(monkeypatch):
    """Here it holds two jobs."""
    tried, said = [], []

    def fit_group(group, interruption):
        tried.append(len(group))
        if len(group) > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 40000000000 bytes.")
        return [f"fit {options}" for _, options in group]

    monkeypatch.setattr(vectorized, "fit_group", fit_group)
    job = SimpleNamespace(console=SimpleNamespace(print=lambda text, **_: said.append(text)))
    assert fit_in_memory([(job, number) for number in range(5)], None) == [f"fit {number}" for number in range(5)]
    assert tried == [5, 2, 3, 1, 2] and said[0] == "memory does not hold 5 jobs at once; 2 come first"


def test_a_run_of_an_earlier_default_goes_on(tmp_path):
    check_same_config(OmegaConf.create({"sweep": "serial"}), OmegaConf.create({"sweep": "auto"}), tmp_path)


@pytest.mark.parametrize("error", [ValueError("other"), MemoryError()])
def test_other_errors_and_a_job_without_room_are_reported(error, monkeypatch):
    def fit_group(group, interruption):
        raise error

    monkeypatch.setattr(vectorized, "fit_group", fit_group)
    with pytest.raises(type(error)):
        fit_in_memory([(None, 0)] if isinstance(error, MemoryError) else [(None, 0), (None, 1)], None)


@pytest.mark.slow
def test_a_sweep_goes_on_where_memory_holds_half_of_it(tmp_path):
    """Jobs that were begun together are begun again, with the logs of one run."""
    write_table(tmp_path / "mine.csv", spirals())
    code = """
import runpy, sys
import jax
from node_fit.app import vectorized
whole, tried = vectorized.fit_several, []
def fit_several(train, options, *, callbacks, **given):
    found = whole(train, options, callbacks=callbacks, **given)
    tried.append(len(options))
    if len(options) > 2:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 40000000000 bytes.")
    return found
vectorized.fit_several = fit_several
sys.argv[0] = "node_fit"
runpy.run_module("node_fit", run_name="__main__", alter_sys=True)
"""
    words = [*SWEEP, "sweep=vectorized", "hydra.sweep.dir=runs", "report=false"]
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran
    assert "memory does not hold 4 jobs at once; 2 come first" in ran.stdout
    for job in range(4):
        assert [int(row["step"]) for row in read_table(tmp_path / "runs" / str(job) / "metrics.csv")] == [10, 20]
        assert read_summary(tmp_path / "runs" / str(job))["status"] == "completed"


@pytest.mark.slow
def test_there_is_one_program(sweeps):
    folder, _ = sweeps
    summaries = [read_summary(folder / "vectorized" / str(job)) for job in range(4)]
    assert [summary["compiles"] + summary["cached"] for summary in summaries] == [1, 0, 0, 0]


@pytest.mark.slow
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


@pytest.mark.slow
def test_so_does_the_leaderboard(sweeps):
    folder, ran = sweeps
    boards = [read_table(folder / kind / "leaderboard.csv") for kind in ("serial", "vectorized")]
    assert [row["job"] for row in boards[0]] == [row["job"] for row in boards[1]]
    assert "4 jobs at once" in ran["vectorized"].out and "leaderboard" in ran["vectorized"].out


@pytest.mark.slow
def test_a_job_goes_on_alone(sweeps):
    folder, _ = sweeps
    ran = node_fit(folder, "resume=vectorized/2", "training.steps=30")
    assert ran.code == 0, ran
    assert [int(row["step"]) for row in read_table(folder / "vectorized" / "2" / "metrics.csv")] == [10, 20, 30]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("words, message", [(("ensemble.size=2",), "ensemble.size"), (("sweep=parallel",), "serial")])
def test_what_it_can_not_do_is_refused(words, message, tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(tmp_path, "-m", *DIRECT, "sweep=vectorized", "seed=0", *words)
    assert ran.code == 1 and message in ran.err and "Traceback" not in ran.err
