"""Full or read-only disks: detected before the run where possible, and never at the cost of saved checkpoints."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import ENVIRONMENT, begun, node_fit, until

from faults.moments import content, fill, moment_at, restore, state_at
from faults.runs import LONG, chunks, folder_in, last_step, mounted, unmount
from node_fit.app.run_directory import RunDirectory, RunExists
from node_fit.storage import checkpoint
from node_fit.storage.checkpoint import CheckpointError, Checkpoints
from node_fit.storage.files import check_room, explain_disk, unpack

pytestmark = pytest.mark.slow


def disk(folder: Path, *options: str):
    """A small separate disk; the tests are skipped where mounting is not allowed."""
    if not mounted(folder, "-t", "tmpfs", *options, "tmpfs"):
        pytest.skip("a small disk can't be mounted here: that takes the rights of root")
    yield folder
    unmount(folder)


@pytest.fixture
def small(tmp_path):
    """A disk of 2 MB."""
    yield from disk(tmp_path / "small", "-o", "size=2m")


@pytest.fixture
def ample(tmp_path):
    """A disk with enough space for a run."""
    yield from disk(tmp_path / "ample", "-o", "size=16m")


@pytest.fixture
def shut(tmp_path):
    """A read-only disk."""
    yield from disk(tmp_path / "shut", "-o", "ro,size=2m")


@pytest.fixture
def folder(tmp_path_factory):
    return folder_in(tmp_path_factory.getbasetemp())


def fill_up(directory: Path) -> Path:
    """Fills the remaining space of a disk."""
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
    return filler


def test_a_full_disk_costs_no_checkpoint(small):
    directory = small / "checkpoints"
    saved = [moment_at(step) for step in (5, 10)]
    fill(directory, *saved)
    filler = fill_up(small)
    checkpoints = Checkpoints(directory)
    with pytest.raises(CheckpointError, match=r"step 15 can't be saved in .*checkpoints .*free some space") as caught:
        checkpoints.save(moment_at(15))
    assert "\n" not in str(caught.value)
    assert content(restore(directory)) == content(saved[1])
    filler.unlink()
    later = moment_at(20)
    fill(directory, later)
    assert content(restore(directory)) == content(later)
    assert {path.name for path in directory.iterdir()} == {"5.safetensors", "10.safetensors", "20.safetensors"}


def test_room_is_asked_for_before_it_is_needed(small):
    checkpoints = Checkpoints(small / "checkpoints")
    checkpoints.check_room([state_at(0)])
    with pytest.raises(OSError, match=r"has room for \d\.\d MB, but this run needs about \d+\.\d MB"):
        checkpoints.check_room([state_at(0, width=100_000)])
    assert list((small / "checkpoints").iterdir()) == []


def test_what_fits_the_disk_may_exceed_a_limit(tmp_path):
    """Free space is not a guarantee: only a real write detects a limit of the process or a quota."""
    code = "import sys; from node_fit.storage.files import check_room; check_room(sys.argv[1], 1 << 20)"
    shell = ["bash", "-c", 'ulimit -f 64 && exec "$@"', "bash"]
    command = [*shell, sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"OSError: {tmp_path} can't be written: the disk or a quota is full" in done.stderr
    assert list(tmp_path.iterdir()) == []
    check_room(tmp_path, 1 << 20)


def test_a_disk_without_room_is_known_before_the_compilation(small, folder):
    fill_up(small).write_bytes(bytes(1 << 20))
    ran = node_fit(folder, *LONG, f"hydra.run.dir={small}/run")
    assert ran.code == 1 and ran.err == f"error: {ran.sentence}\n"
    assert "has room for" in ran.sentence and "hydra.run.dir" in ran.sentence
    assert not (small / "run" / "metrics.csv").exists()


def test_a_disk_that_fills_up_during_a_run_costs_a_chunk(ample, folder):
    run = ample / "run"
    process = begun(folder, *LONG, f"hydra.run.dir={run}")
    until(lambda: chunks(run) > 3, process)
    process.send_signal(signal.SIGSTOP)
    filler = fill_up(ample)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in err
    (said,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "can't be" in said and "free some space" in said
    filler.unlink()
    assert last_step(run) >= chunks(run) - 1 >= 3
    unpack(run / "checkpoints" / f"{last_step(run)}.safetensors")


def test_a_place_where_nothing_can_be_written_is_known_at_once(shut, folder):
    taken = folder / "a file in the way"
    taken.write_text("a file")
    for place, words in ((shut, "Read-only"), (taken, "Not a directory")):
        ran = node_fit(folder, *LONG, f"hydra.run.dir={place}/run")
        assert ran.code == 1 and ran.err == f"error: {ran.sentence}\n"
        assert words in ran.sentence and str(place) in ran.sentence and "hydra.run.dir" in ran.sentence


def test_a_run_on_a_disk_that_was_shut_is_refused_as_it_is(ample, folder):
    directory = ample / "checkpoints"
    saved = moment_at(5)
    fill(directory, saved)
    subprocess.run(["mount", "-o", "remount,ro", str(ample)], check=True)
    with pytest.raises(OSError, match="Read-only"):
        Checkpoints(directory).check_room([state_at(0)])
    assert content(restore(directory)) == content(saved)


@pytest.mark.usefixtures("no_fault")
@pytest.mark.parametrize(
    "code, folder, said",
    [
        (errno.ENOSPC, "there", "free some space"),
        (errno.EDQUOT, "there", "free some space"),
        (errno.EIO, "there", "check the disk and its connection"),
        (errno.EACCES, "there", "fix its permissions"),
        (errno.ENOENT, "removed", "is gone (No such file or directory); it was removed or renamed"),
    ],
)
def test_advice_fits_the_fault(tmp_path, monkeypatch, code, folder, said):
    (tmp_path / "there").mkdir()
    error = OSError(code, os.strerror(code), str(tmp_path / folder / "summary.json"))
    assert said in explain_disk(error, tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints")

    def fails(*_):
        raise error

    monkeypatch.setattr(checkpoint, "pack", fails)
    with pytest.raises(CheckpointError, match=r"step 5 can't be saved in ") as caught:
        checkpoints.save(moment_at(5))
    assert ("free some space" in str(caught.value)) == ("space" in said)
    assert said.rpartition("; ")[2] in str(caught.value)


@pytest.mark.usefixtures("no_fault")
@pytest.mark.parametrize("text", ["time,value\n1,2\n", "step,seconds\n1,many\n", "step,seconds,mine\n1,2,3\n"])
def test_a_log_of_something_else_is_named(tmp_path, text):
    run = RunDirectory(tmp_path)
    run.metrics.write_text(text)
    with pytest.raises(RunExists, match=r"metrics\.csv is not the log of a run.* move it elsewhere"):
        run.begin_metrics(-1)
    assert run.metrics.read_text() == text
