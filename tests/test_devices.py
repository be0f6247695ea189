"""Runs that are spread over several devices, here eight that are simulated: the same numbers as on one."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from commands import DIRECT, ENVIRONMENT, Ran, begun, node_fit, read_summary, read_table, spirals, write_table
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


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def together(folder: Path, *arguments: str) -> list[Ran]:
    """What two processes that share a run say; the first one writes in `run`."""
    address = f"127.0.0.1:{free_port()}"
    shared = (*arguments, "device=cpu", "device.count=4", "device.processes=2", f"device.coordinator={address}")
    both = [
        begun(folder, *shared, f"device.process={number}", f"hydra.run.dir={name}")
        for number, name in enumerate(("run", "other"))
    ]
    outputs = [process.communicate(timeout=240) for process in both]
    return [Ran(process.returncode, *output) for process, output in zip(both, outputs, strict=True)]


SHARED = (*DIRECT, "precision=x64", "train.steps=4", "train.chunk_steps=2")


@pytest.mark.parametrize("more", [("optimizer=adam",), ("ensemble.size=4",)], ids=["trajectories", "members"])
def test_two_processes_give_the_numbers_of_one(tmp_path, more):
    write_table(tmp_path / "mine.csv", spirals())
    alone = node_fit(tmp_path, *SHARED, *more, "hydra.run.dir=alone")
    assert alone.code == 0, alone
    first, second = together(tmp_path, *SHARED, *more)
    assert first.code == 0 and second.code == 0, (first, second)
    assert "4 devices (cpu)" in first.out and "main" not in second.out
    for name in ("train_loss", "validation_loss"):
        tables = [read_table(tmp_path / run / "metrics.csv") for run in ("run", "alone")]
        mine, theirs = ([float(row[name]) for row in table] for table in tables)
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".hydra"], "only the first one writes"


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
