"""Two processes share a run over the loopback address: they give the numbers of one process and end together."""

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGTERM

import numpy as np
import pytest
from helpers.commands import DIRECT, Ran, begun, node_fit, read_table, spirals, until, write_table

from node_fit.runtime.placement import join_processes_of

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


NEW = ("hydra.run.dir=run", "hydra.run.dir=other")


def two(folder: Path, *arguments: str, own: Sequence[str] = NEW) -> list[subprocess.Popen]:
    """Starts two processes that share a run; the first one writes files."""
    address = f"127.0.0.1:{free_port()}"
    shared = (*arguments, "device=cpu", "device.count=4", "device.processes=2", f"device.coordinator={address}")
    return [begun(folder, *shared, f"device.process={number}", word) for number, word in enumerate(own)]


def ended(both: Sequence[subprocess.Popen]) -> list[Ran]:
    try:
        outputs = [process.communicate(timeout=240) for process in both]
        return [Ran(process.returncode, *output) for process, output in zip(both, outputs, strict=True)]
    finally:
        for process in both:
            process.kill()


def assert_same_losses(one: Path, other: Path) -> None:
    for name in ("step", "train_loss", "validation_loss"):
        mine, theirs = ([float(row[name]) for row in read_table(run / "metrics.csv")] for run in (one, other))
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


SHARED = (*DIRECT, "precision=x64", "training.steps=4", "training.chunk_steps=2")


@pytest.mark.long
@pytest.mark.parametrize("more", [("optimizer=adam",), ("ensemble.size=4",)], ids=["trajectories", "members"])
def test_two_processes_give_the_numbers_of_one(tmp_path, more):
    write_table(tmp_path / "mine.csv", spirals())
    alone = node_fit(tmp_path, *SHARED, *more, "hydra.run.dir=alone")
    assert alone.code == 0, alone
    first, second = ended(two(tmp_path, *SHARED, *more))
    assert first.code == 0 and second.code == 0, (first, second)
    assert "4 devices (cpu)" in first.out and "main" not in second.out
    assert_same_losses(tmp_path / "run", tmp_path / "alone")
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".hydra"], "only the first process writes"


LONGER = (*SHARED, "optimizer=adam", "training.steps=200")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    write_table(folder / "mine.csv", spirals())
    assert node_fit(folder, *LONGER, "hydra.run.dir=run").code == 0
    return folder / "run"


@pytest.mark.long
@pytest.mark.parametrize("which, kind", [(1, SIGTERM), (1, SIGKILL), (0, SIGKILL)], ids=["end", "kill", "kill first"])
def test_a_signal_to_one_of_two_processes_ends_both_and_they_go_on(tmp_path, alone, which, kind):
    write_table(tmp_path / "mine.csv", spirals())
    both = two(tmp_path, *LONGER)
    metrics = tmp_path / "run" / "metrics.csv"
    until(lambda: metrics.exists() and len(read_table(metrics)) > 3, both[0])
    both[which].send_signal(kind)
    stopped = ended(both)
    assert len(read_table(metrics)) < 100
    if kind == SIGTERM:
        assert [ran.code for ran in stopped] == [143, 143]
        assert "interrupted: by another process of the run" in stopped[0].out
    else:  # The other process does not wait for it.
        other = stopped[1 - which]
        assert stopped[which].code == -SIGKILL
        # Without the first process, JAX may abort the others before their next collective fails.
        assert other.code == 1 or (which == 0 and other.code == -SIGABRT)
        assert other.code < 0 or "another process of this run seems to have ended" in other.sentence
    assert [ran.code for ran in ended(two(tmp_path, own=("resume=run", "resume=run")))] == [0, 0]
    assert_same_losses(tmp_path / "run", alone)


@pytest.mark.parametrize("numbers", [(2, 7), (2, None), (None, 0), (2, -1)])
def test_processes_without_numbers_are_refused(numbers):
    with pytest.raises(ValueError, match=r"needs device\.processes, the number of processes, and device\.process"):
        join_processes_of("127.0.0.1:1", *numbers)
