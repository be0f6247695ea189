"""Multiruns with launchers of other packages, which run jobs in other processes; and jobs that resume."""

import os
import signal
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from helpers.commands import DIRECT, begun, in_process, node_fit, read_summary, read_table, spirals, until, write_table

from node_fit.__main__ import main
from node_fit.app.leaderboard import Leaderboard

pytestmark = pytest.mark.slow

LONG = (*DIRECT, "optimizer=adam", "training.steps=40", "training.chunk_steps=1", "training.patience=999")


def is_installed(extra):
    try:
        return bool(version(f"hydra-{extra}-launcher"))
    except PackageNotFoundError:
        return False


def needs(extra):
    return pytest.mark.skipif(not is_installed(extra), reason=f"the extra {extra} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launchers")
    write_table(folder / "mine.csv", spirals())
    return folder


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(("joblib", "hydra.launcher.n_jobs=2"), marks=needs("joblib")),
        pytest.param(("submitit_local",), marks=needs("submitit")),
        pytest.param(
            ("ray", "+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"),
            marks=needs("ray"),
        ),
    ],
    ids=lambda words: words[0],
)
def test_jobs_in_other_processes_are_told_of(folder, launcher):
    """The jobs use shipped data, and one of them fails."""
    name, *words = launcher
    ran = node_fit(
        folder, "-m", "data=lynx_hare", "recipe=direct", "field.width=4", "training.steps=20,-1",
        "training.chunk_steps=10",
        f"hydra.sweep.dir={name}", f"hydra/launcher={name}", *words,
    )  # fmt: skip
    assert ran.code == 1 and "Traceback" not in ran.err, ran
    rows = read_table(folder / name / "leaderboard.csv")
    assert [(row["job"], row["status"]) for row in rows] == [("0", "completed"), ("1", "failed")]
    assert (folder / name / "0" / "model.safetensors").is_file()
    assert "training.steps must be at least 1" in read_summary(folder / name / "1")["reason"]


@needs("submitit")
def test_a_job_that_is_preempted_goes_on_when_it_is_queued_again(folder):
    """The job's process gets the signal that submitit requests from Slurm."""
    run = folder / "preempted" / "0"
    process = begun(
        folder, "-m", *LONG, "resume=auto", "hydra.sweep.dir=preempted", "hydra/launcher=submitit_local"
    )  # fmt: skip
    metrics = run / "metrics.csv"
    until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) > 5, process)
    (task,) = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_task(pid, folder / "preempted")]
    os.kill(task, signal.SIGUSR2)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, (out, err)
    logs = "".join(path.read_text() for path in (folder / "preempted").glob(".submitit/*/*_log.*"))
    assert "Requeued job" in logs and "resuming from step" in logs
    assert [int(row["step"]) for row in read_table(metrics)] == list(range(1, 41))
    assert [row["status"] for row in read_table(folder / "preempted" / "leaderboard.csv")] == ["completed"]


def is_task(pid, sweep):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return "submitit.core._submit" in words and any(word.startswith(str(sweep)) for word in words)


@needs("joblib")
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_ends_the_jobs_that_other_processes_run(folder):
    process = begun(
        folder, "-m", *LONG, "training.steps=1000000", "seed=0,1", "hydra.sweep.dir=stopped",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
    )  # fmt: skip
    until(lambda: all((folder / "stopped" / job / "metrics.csv").is_file() for job in "01"), process)
    workers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == process.pid]
    assert len(workers) >= 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    limit = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < limit, "a worker is still running"
        time.sleep(0.1)


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@pytest.mark.parametrize(("launcher", "extra"), [("joblib", "joblib"), ("slurm", "submitit"), ("ray", "ray")])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(folder, launcher, extra):
    if is_installed(extra):
        pytest.skip(f"{extra} is installed")
    ran = node_fit(folder, "-m", *DIRECT, f"hydra/launcher={launcher}")
    assert ran.code == 1 and f"pip install 'node_fit[{extra}]'" in ran.sentence


@pytest.fixture(scope="module")
def repeated(folder):
    """A multirun with `resume=auto`, followed by the same command with more steps."""
    words = ("-m", *DIRECT, "seed=0,1", "resume=auto", "hydra.sweep.dir=repeated")
    first = in_process(main, folder, *words)
    return first, in_process(main, folder, *words, "training.steps=30")


def test_auto_begins_where_there_is_nothing_and_goes_on_where_there_is(repeated, folder):
    first, second = repeated
    assert (first.code, first.err, second.code, second.err) == (0, "", 0, "")
    assert "resuming" not in first.out and second.out.count("resuming from step 20") == 2
    for job in "01":
        assert [int(row["step"]) for row in read_table(folder / "repeated" / job / "metrics.csv")] == [10, 20, 30]


def test_auto_does_not_go_on_with_another_run(repeated, folder):
    before = read_summary(folder / "repeated" / "0")
    words = ("-m", *DIRECT, "seed=7", "resume=auto", "hydra.sweep.dir=repeated")
    ran = in_process(main, folder, *words)
    assert ran.code == 1 and "seed=0" in ran.sentence and "7" in ran.sentence
    assert read_summary(folder / "repeated" / "0") == before


def test_a_job_that_left_no_summary_is_lost_and_counts_as_a_failure(tmp_path, monkeypatch, capsys):
    from omegaconf import OmegaConf

    monkeypatch.setattr(Leaderboard, "failures", 0)
    leaderboard = Leaderboard()
    launcher = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
    leaderboard.on_multirun_start(OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}, "launcher": launcher}}))
    for job in ("0", "1"):
        (tmp_path / job / ".hydra").mkdir(parents=True)
        (tmp_path / job / ".hydra" / "overrides.yaml").write_text(f"- seed={job}\n")
    (tmp_path / "1" / "summary.json").write_text('{"status": "completed", "overrides": ["seed=1"]}')
    Leaderboard.write_unfinished()
    rows = read_table(tmp_path / "leaderboard.csv")
    assert [(row["overrides"], row["status"]) for row in rows] == [("seed=1", "completed"), ("seed=0", "lost")]
    assert Leaderboard.failures == 1 and "lost" in capsys.readouterr().out
