"""What differs between systems: the package works where Unix's modules are absent."""

import errno
import subprocess
import sys
import types

import pytest
from helpers.commands import ENVIRONMENT, spirals, write_table

from node_fit.runtime.operating_system import limit_of_memory, lock_file, mapped_memory
from node_fit.startup import lacking_room
from node_fit.storage.files import lock

# A process as on a system that is not Unix: no modules of Unix, no signal of terminals, no links.
ELSEWHERE = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGUSR1", "SIGXCPU"):
    delattr(signal, name)
def refuse(*arguments, **keywords):
    raise OSError("a required privilege is not held by the client")
os.symlink = refuse
import runpy
sys.argv = ["node_fit", *sys.argv[1:]]
runpy.run_module("node_fit", run_name="__main__", alter_sys=True)
"""


def test_a_lock_is_held_by_one(tmp_path):
    with open(tmp_path / "a", "a") as one, open(tmp_path / "a", "a") as other:
        lock_file(one, wait=False)
        with pytest.raises(BlockingIOError):
            lock_file(other, wait=False)
        one.close()
        lock_file(other, wait=True)


def windows(monkeypatch, answers):
    """Makes the system one that locks bytes of files, and answers so."""
    taken = []

    def locking(descriptor: int, mode: int, count: int) -> None:
        taken.append((mode, count))
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    return taken


def test_windows_locks_the_first_byte(tmp_path, monkeypatch):
    taken = windows(
        monkeypatch, [None, PermissionError(errno.EACCES, "taken"), PermissionError(errno.EACCES, "taken"), None]
    )
    with open(tmp_path / "a", "a") as file:
        lock_file(file, wait=False)
        assert taken == [(2, 1)]
        with pytest.raises(BlockingIOError):
            lock_file(file, wait=False)
        lock_file(file, wait=True)
        assert len(taken) == 4, "it tries until the other has released it"


def test_a_system_without_locks_is_a_disk_without_locks(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    with lock(tmp_path / "a") as held:
        assert not held
    assert "can't be locked (this system has no locks of files)" in caplog.text


def test_where_nobody_can_tell_there_is_room(monkeypatch):
    assert mapped_memory() > 1e7
    monkeypatch.setattr("node_fit.startup.limit_of_memory", lambda: 1e6)
    assert "out of memory: this process may map 0.001 GB" in lacking_room(1e9)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "resource", None)
    assert limit_of_memory() is None and lacking_room(1e30) is None


@pytest.mark.long
@pytest.mark.slow
def test_a_run_needs_no_module_of_unix(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    words = ["mine.csv", "data.inputs=[u]", "field=linear", "effort=quick", "training.steps=5", "hydra.run.dir=run"]
    command = [sys.executable, "-c", ELSEWHERE, *words]
    ran = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert {"model.safetensors", "summary.json", "report.html"} <= {path.name for path in (tmp_path / "run").iterdir()}
    again = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "predict", "run", "--data", "mine.csv", "--out", "out.csv"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out.csv").read_text().count("\n") > 10
