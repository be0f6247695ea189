"""Runs of the command that several tests share, and helpers to read their files."""

import functools
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from helpers.commands import DIRECT, ENVIRONMENT, Ran, begun, node_fit, read_table, spirals, until, write_table
from safetensors import safe_open

from node_fit.storage.checkpoint import steps_in

# With minibatches and a schedule, a resumed run must restore its PRNG keys and its step. Chunks of one step leave time
# for a signal.
LONG = (
    *DIRECT,
    "optimizer=adam",
    "training.batch_size=2",
    "training.steps=16",
    "training.chunk_steps=1",
    "training.patience=999",
)


@functools.cache
def folder_in(parent: Path) -> Path:
    """Creates a folder with a table."""
    folder = parent / "faults"
    folder.mkdir()
    write_table(folder / "mine.csv", spirals())
    return folder


@functools.cache
def killed(parent: Path) -> tuple[Path, Ran]:
    """A run that SIGKILL has ended, and the result of a second process that started while it was running."""
    folder = folder_in(parent)
    process = begun(folder, *LONG, "hydra.run.dir=killed")
    until(lambda: chunks(folder / "killed") > 5, process)
    # Paused, so that it still runs when the second process starts.
    process.send_signal(signal.SIGSTOP)
    second = node_fit(folder, "resume=killed")
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    return folder / "killed", second


def unheard(folder: Path, *arguments: str, **environment: str) -> Ran:
    """Runs the command with a closed standard output."""
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
    """Number of rows in the metrics so far."""
    metrics = run / "metrics.csv"
    return max(len(metrics.read_text().splitlines()) - 1, 0) if metrics.is_file() else 0


def last_step(run: Path) -> int:
    """The step of the newest committed checkpoint."""
    return steps_in(run / "checkpoints")[-1]


def model_of(run: Path) -> tuple[dict, dict]:
    """The model file's header and arrays; their order in the file is unspecified."""
    with safe_open(run / "model.safetensors", framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def metrics_of(run: Path) -> list[dict[str, str]]:
    """The rows of the metrics without the seconds, which differ between runs."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_table(run / "metrics.csv")]


def mounted(directory: Path, *options: str) -> bool:
    """Mounts a separate file system on the directory, and returns whether that has worked."""
    directory.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(directory)], capture_output=True, check=False)
    return done.returncode == 0


def unmount(directory: Path) -> None:
    subprocess.run(["umount", str(directory)], capture_output=True, check=True)
