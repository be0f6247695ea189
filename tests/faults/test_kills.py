"""SIGKILL at any moment, mostly during a save: committed checkpoints can be restored."""

import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest

from faults.moments import content, moved, on_host, restore, save_without_end, state_at
from node_fit.training.callback import RunState

pytestmark = pytest.mark.slow

KILLS = 25


def test_what_was_committed_restores_after_any_kill(tmp_path, monkeypatch, record_property):
    """All kills use one directory, so each process meets what earlier kills have left behind."""
    record_property("faults", KILLS)
    # Fork a server that has imported everything, since a new process would take seconds to start.
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tests, tests.parent))))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faults.moments"])
    draw = random.Random(0)
    directory = tmp_path / "checkpoints"
    state = on_host(state_at(0))
    last, within = -1, 0
    for _ in range(KILLS):
        committed = killed_after(context, (directory, state, last + 1), draw.uniform(0.0, 0.25))
        within += any(path.name.startswith(".") for path in directory.iterdir())
        back = restore(directory)
        # A kill between a commit and its report may leave one more checkpoint.
        assert back is not None and back.step in (committed, committed + 1)
        assert content(back) == content(RunState(0, 0, (moved(state, back.step),)))
        assert not [path for path in directory.iterdir() if path.name.startswith(".")], "it removes its leftovers"
        last = back.step
    assert within > 0, "no kill hit a save in progress"
    assert len(list(directory.iterdir())) <= 5, "old checkpoints must still be deleted"


def killed_after(context, arguments: tuple, seconds: float) -> int:
    """Starts a saving process and kills it `seconds` after its first commit; returns the last reported step."""
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=save_without_end, args=(*arguments, its))
    process.start()
    its.close()
    committed = ours.recv()
    time.sleep(seconds)
    process.kill()
    process.join()
    while ours.poll():
        try:
            committed = ours.recv()
        except (EOFError, OSError):
            break
    return committed
