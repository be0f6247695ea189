"""Runs of the command that several tests look at, and what they left."""

import functools
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from commands import DIRECT, ENVIRONMENT, Ran, begun, node_fit, read_table, spirals, until, write_table
from safetensors import safe_open

from node_fit.checkpoint import steps_in

# Minibatches and a schedule: what goes on must know its keys and its step. A chunk a step leaves time for a signal.
LONG = (*DIRECT, "optimizer=adam", "train.batch_size=2", "train.steps=16", "train.chunk_steps=1", "train.patience=999")


@functools.cache
def folder_in(parent: Path) -> Path:
    """A folder with a table."""
    folder = parent / "faults"
    folder.mkdir()
    write_table(folder / "mine.csv", spirals())
    return folder


@functools.cache
def killed(parent: Path) -> tuple[Path, Ran]:
    """A run that met SIGKILL, as it was then, and what a second process that came meanwhile was told."""
    folder = folder_in(parent)
    process = begun(folder, *LONG, "hydra.run.dir=killed")
    until(lambda: chunks(folder / "killed") > 5, process)
    # Held, so that it is still at work when the second has started.
    process.send_signal(signal.SIGSTOP)
    second = node_fit(folder, "resume=killed")
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    return folder / "killed", second


def unheard(folder: Path, *arguments: str, **environment: str) -> Ran:
    """Runs the command with nobody left to read what it prints."""
    command = [sys.executable, "-m", "node_fit", *arguments]
    environment = {**ENVIRONMENT, **environment}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    return Ran(process.returncode, "", err)


def copy_of(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.parent / name))


def chunks(run: Path) -> int:
    """Rows of the metrics so far."""
    metrics = run / "metrics.csv"
    return max(len(metrics.read_text().splitlines()) - 1, 0) if metrics.is_file() else 0


def last_step(run: Path) -> int:
    """The newest checkpoint that is committed."""
    return steps_in(run / "checkpoints")[-1]


def model_of(run: Path) -> tuple[dict, dict]:
    """The model file's header and arrays; their order in the file is not said."""
    with safe_open(run / "model.safetensors", framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def metrics_of(run: Path) -> list[dict[str, str]]:
    """The rows of the metrics, without the seconds, which no two runs share."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_table(run / "metrics.csv")]


def mounted(directory: Path, *options: str) -> bool:
    """Whether a file system of its own could be mounted there."""
    directory.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(directory)], capture_output=True, check=False)
    return done.returncode == 0


def unmount(directory: Path) -> None:
    subprocess.run(["umount", str(directory)], capture_output=True, check=True)
