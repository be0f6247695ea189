"""SIGKILL at any moment, most of them within a save: what was committed restores."""

import multiprocessing
import os
import random
import time
from pathlib import Path

from faults.moments import content, moved, on_host, restore, save_without_end, state_at
from node_fit.observer import Moment

KILLS = 25


def test_what_was_committed_restores_after_any_kill(tmp_path, monkeypatch, record_property):
    """One directory is written and killed again and again, so that what a kill leaves behind is there for the next."""
    record_property("faults", KILLS)
    # Fork a server that has loaded everything, for a process of its own would take seconds to start.
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
        # A kill between the commit and its announcement may have saved one more.
        assert back is not None and back.step in (committed, committed + 1)
        assert content(back) == content(Moment(0, 0, moved(state, back.step)))
        assert not [path for path in directory.iterdir() if path.name.startswith(".")], "its own leftovers are swept"
        last = back.step
    assert within > 0, "no kill met a save that was under way"
    assert len(list(directory.iterdir())) <= 5, "old checkpoints are deleted all the same"


def killed_after(context, arguments: tuple, seconds: float) -> int:
    """Starts to save, and kills so long after the first commit; the last step announced."""
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
