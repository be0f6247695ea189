"""Runs that are spread over several devices, here eight that are simulated: the same numbers as on one."""

import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM

import numpy as np
import pytest
from commands import DIRECT, ENVIRONMENT, Ran, begun, node_fit, read_summary, read_table, spirals, until, write_table
from conftest import SMALL, rotation

import node_fit as nf
from node_fit.placement import Placement
from node_fit.processes import join

# What is compared with one device to 1e-6, in float64: the losses of all chunks.
PROGRAM = """
import numpy as np
import node_fit as nf
from conftest import SMALL, rotation
from test_training import GoOn, Stop

options = {"field": SMALL, "steps": 20, "chunk_steps": 10, "ridge": 0.0, "precision": "x64", "recipe": "direct"}


def losses(**more):
    fit = nf.fit(rotation(8), validation=rotation(3), **options, **more)
    return fit.compiles, np.array([(r.train_loss, r.validation_loss) for r in fit.history])

"""
SPREAD = {
    "trajectories": "",
    "trajectories, Levenberg-Marquardt": "optimizer=nf.LevenbergMarquardt()",
    "members with data of their own": "ensemble=nf.Members(8, 'both')",
}


def run(body: str) -> None:
    tests = Path(__file__).parent
    environment = {**ENVIRONMENT, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": f"{tests}:{tests.parent}"}
    code = PROGRAM + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", SPREAD)
def test_eight_devices_give_the_losses_of_one(name):
    run(f"""
    one, alone = losses({SPREAD[name]})
    eight, spread = losses(devices=8, {SPREAD[name]})
    assert one == eight, (one, eight)
    np.testing.assert_allclose(spread, alone, rtol=1e-6)
    """)


def test_a_run_goes_on_with_another_count():
    run("""
    import tempfile
    folder = tempfile.mkdtemp()
    more = {"optimizer": nf.Adam()}
    _, whole = losses(**more)
    losses(devices=8, observer=Stop(folder, 1), **more)
    rest = losses(devices=2, observer=GoOn(folder), **more)[1]
    np.testing.assert_allclose(rest, whole[1:], rtol=1e-6)
    """)


def test_devices_that_stay_idle_are_told_of():
    run("""
    import logging
    said = []
    logging.getLogger("node_fit").addHandler(type("Hear", (logging.Handler,), {"emit": lambda _, r: said.append(r)})())
    options |= {"field": SMALL, "steps": 1, "recipe": "direct", "ridge": 0.0}
    assert nf.fit(rotation(8), devices=8, **options).devices == 8 and not said
    assert nf.fit(rotation(5), devices=8, **options).devices == 5
    (record,) = said
    assert "5 of 8 devices are in use" in record.getMessage()
    """)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


NEW = ("hydra.run.dir=run", "hydra.run.dir=other")


def two(folder: Path, *arguments: str, own: Sequence[str] = NEW) -> list[subprocess.Popen]:
    """Two processes that share a run; the first one writes."""
    address = f"127.0.0.1:{free_port()}"
    shared = (*arguments, "device=cpu", "device.count=4", "device.processes=2", f"device.coordinator={address}")
    return [begun(folder, *shared, f"device.process={number}", word) for number, word in enumerate(own)]


def ended(both: Sequence[subprocess.Popen]) -> list[Ran]:
    outputs = [process.communicate(timeout=60) for process in both]
    return [Ran(process.returncode, *output) for process, output in zip(both, outputs, strict=True)]


def assert_same_losses(one: Path, other: Path) -> None:
    for name in ("step", "train_loss", "validation_loss"):
        mine, theirs = ([float(row[name]) for row in read_table(run / "metrics.csv")] for run in (one, other))
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


SHARED = (*DIRECT, "precision=x64", "train.steps=4", "train.chunk_steps=2")


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
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".hydra"], "only the first one writes"


LONGER = (*SHARED, "optimizer=adam", "train.steps=200")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    write_table(folder / "mine.csv", spirals())
    assert node_fit(folder, *LONGER, "hydra.run.dir=run").code == 0
    return folder / "run"


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
        assert "interrupted: by a signal to another process" in stopped[0].out
    else:  # the other does not wait for it
        assert (stopped[which].code, stopped[1 - which].code) == (-SIGKILL, 1)
        assert "another process of this run seems to have ended" in stopped[1 - which].sentence
    assert [ran.code for ran in ended(two(tmp_path, own=("resume=run", "resume=run")))] == [0, 0]
    assert_same_losses(tmp_path / "run", alone)


@pytest.mark.parametrize("numbers", [(2, 7), (2, None), (None, 0), (2, -1)])
def test_processes_without_numbers_are_refused(numbers):
    with pytest.raises(ValueError, match=r"needs device\.processes, how many there are, and device\.process"):
        join("127.0.0.1:1", *numbers)


def test_the_command_makes_its_devices(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(tmp_path, *DIRECT, "device=cpu", "device.count=2", "ensemble.size=2", "hydra.run.dir=run")
    assert ran.code == 0, ran
    assert "2 devices (cpu)" in ran.out
    summary = read_summary(tmp_path / "run")
    assert summary["devices"] == 2 and len(summary["ensemble"]["members"]) == 2


@pytest.mark.parametrize("count", [0, 99])
def test_devices_that_are_not_there_are_refused(count):
    with pytest.raises(ValueError, match=r"device\.count must be from 1 to"):
        nf.fit(rotation(), field=SMALL, devices=count)


def test_a_length_decides_over_how_many_devices_it_is_spread():
    class Eight(Placement):
        devices = property(lambda self: list(range(self.count)))

    place = Eight("x32", "cpu", 8)
    assert [place.among(length).count for length in (1, 6, 8, 12, 20, 97, 200)] == [1, 6, 8, 6, 5, 1, 8]
