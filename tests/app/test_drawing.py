"""Plots that background processes draw."""

import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor
from multiprocessing import queues

import numpy as np
import pytest
from helpers.commands import ENVIRONMENT
from helpers.pictures import ROWS, pictures, pixels

from node_fit.app.background import PROCESSES, Drawing, Pictures

pytestmark = pytest.mark.slow

NAMES = {"loss.png", "fit.png", "phase.png"}


def test_what_is_drawn_beside_is_what_is_drawn_here(tmp_path):
    drawing, folders = Drawing(), [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        drawing.draw(pictures(folder))
    drawing.finish()
    pictures(tmp_path / "here").draw()
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == NAMES
        for name in NAMES:
            np.testing.assert_array_equal(pixels(folder / name), pixels(tmp_path / "here" / name))


def test_a_process_that_was_begun_before_draws(tmp_path):
    drawing = Drawing()
    drawing.begin()
    assert drawing.pool is not None
    (begun,) = drawing.pool._processes
    drawing.submit(int).result()
    drawing.draw(pictures(tmp_path / "plots"))
    assert set(drawing.pool._processes) == {begun}
    drawing.finish()
    assert {path.name for path in (tmp_path / "plots").iterdir()} == NAMES


class Signed(Pictures):
    """Writes which process draws it."""

    def draw(self) -> None:
        time.sleep(0.2)
        self.folder.write_text(str(os.getpid()))


def test_what_no_process_has_begun_is_drawn_here_at_the_end(tmp_path):
    drawing, files = Drawing(), [tmp_path / str(number) for number in range(PROCESSES + 8)]
    for file in files:
        drawing.draw(Signed(file, ROWS, pictures(tmp_path).curves, None))
    drawing.finish()
    here = [int(file.read_text()) == os.getpid() for file in files]
    assert here == sorted(here) and {*here} == {False, True}  # Processes draw the first ones, and this one the last.


def test_what_cannot_be_drawn_is_said_and_holds_nothing_up(tmp_path, caplog):
    drawing = Drawing()
    (tmp_path / "in the way").write_text("")
    with caplog.at_level(logging.WARNING):
        drawing.draw(pictures(tmp_path / "in the way"))
        drawing.draw(pictures(tmp_path / "good"))
        drawing.finish()
    place = tmp_path / "in the way"
    assert f"{place} were not drawn: {place} can't be created, since a file is in the way" in caplog.text
    assert {path.name for path in (tmp_path / "good").iterdir()} == NAMES
    drawing.draw(pictures(tmp_path / "later"))  # It can be used again.
    drawing.finish()
    assert (tmp_path / "later" / "phase.png").exists()


@pytest.mark.long
def test_a_process_that_is_killed_takes_no_later_picture_with_it(tmp_path, caplog):
    drawing = Drawing()
    drawing.draw(pictures(tmp_path / "first"))
    drawing.under_way[0][1].result()
    assert drawing.pool is not None
    for pid in list(drawing.pool._processes):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrokenExecutor):
        for _ in range(200):  # Until the executor notices.
            drawing.pool.submit(int).result(timeout=5)
    drawing.draw(pictures(tmp_path / "later"))
    drawing.finish()
    assert {path.name for path in (tmp_path / "later").iterdir()} == NAMES and not caplog.text


def test_ctrl_c_on_the_terminal_is_for_the_parent_alone(tmp_path, caplog):
    drawing, mask = Drawing(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    drawing.draw(pictures(tmp_path / "first"))
    assert drawing.pool is not None
    (worker,) = drawing.pool._processes
    for _ in range(20):  # From its start.
        os.kill(worker, signal.SIGINT)
        time.sleep(0.1)
    drawing.finish()
    assert (tmp_path / "first" / "phase.png").exists() and not caplog.text
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_stays_behind_a_process_that_is_killed(tmp_path):
    program = """
import pathlib, sys, time
from node_fit.app.background import Drawing
from helpers.pictures import pictures
if __name__ == "__main__":
    drawing = Drawing()
    drawing.draw(pictures(pathlib.Path(sys.argv[1])))
    drawing.under_way[0][1].result()
    print(*[process.pid for process in drawing.pool._processes.values()], flush=True)
    time.sleep(60)
"""
    (tmp_path / "program.py").write_text(program)
    here = os.path.dirname(os.path.dirname(__file__))
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{here}:{os.path.dirname(here)}"}
    words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "plots")]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = [int(word) for word in process.stdout.readline().split()]
        assert workers and all(alive(worker) for worker in workers)
        process.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 20
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < limit
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_can_not_start_holds_nothing_up(tmp_path, caplog, monkeypatch):
    """Without memory for it, the thread that hands out the work ends, and none of its futures ever would."""

    def fails(_):
        raise RuntimeError("can't start new thread")

    drawing = Drawing()
    monkeypatch.setattr(queues.Queue, "_start_thread", fails)
    with caplog.at_level(logging.WARNING):
        drawing.draw(pictures(tmp_path / "plots"))
        drawing.finish()
    assert "were not drawn: BrokenExecutor: a thread could not be started" in caplog.text
