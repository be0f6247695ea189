"""Helpers that run the commands as a user does, in separate processes and in an empty folder."""

import contextlib
import csv
import functools
import gc
import importlib
import io
import json
import multiprocessing
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

# Runs the commands of this checkout, even if another version is installed.
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key not in ("HYDRA_FULL_ERROR", "COLUMNS")},
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "JAX_PLATFORMS": "cpu",
    # As `conftest.py` says: the commands share compiled programs, and the user's folders stay clean.
    "XDG_CACHE_HOME": os.environ["NODE_FIT_TEST_CACHE"],
}
TABLE = ("data=table", "data.path=mine.csv", "data.time=t", "data.states=[x,y]", "data.trajectory=id")
SMALL = ("field.width=8", "field.depth=1", "training.steps=20", "training.chunk_steps=10")
DIRECT = (*TABLE, *SMALL, "recipe=direct")


@dataclass(frozen=True)
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The text of the only error line."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


# Forks commands from a process that has imported the package, which saves half of the time of a small one.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["node_fit.__main__", "node_fit.app.application", "node_fit.predict"])
FORKED = ("node_fit", "node_fit.predict")


def node_fit(folder: Path, *arguments: str, module: str = "node_fit", **environment: str) -> Ran:
    """Runs `python -m node_fit` in a folder, without a terminal."""
    if module in FORKED and not environment and "--version" not in arguments:  # which is told before imports
        return forked(folder, module, *arguments)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def forked(folder: Path, module: str, *arguments: str) -> Ran:
    """Runs a command in a process of its own, with an environment that is no other than `ENVIRONMENT`."""
    return in_fork(run_command, folder, module, *arguments)


def python(folder: Path, code: str) -> Ran:
    """Runs a program in a folder, with deprecations as errors, in a process that has imported the package."""
    return in_fork(run_program, folder, code)


def in_fork(target: Callable[..., None], folder: Path, *arguments: str) -> Ran:
    """Calls a function in a process of its own, as `become` makes it."""
    serve()
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        process = FORKS.Process(target=become, args=(target, str(folder), arguments, str(out), str(err)))
        process.start()
        process.join(300)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(list(arguments), 300)
        assert process.exitcode is not None
        return Ran(process.exitcode, out.read_text(), err.read_text())


@functools.cache
def serve() -> None:
    """Starts the process from which commands are forked, with what `node_fit.startup` sets for commands."""
    with mock.patch.dict(os.environ, {"EQX_ON_ERROR": "nan"}):
        forkserver.ensure_running()


def become(target: Callable[..., None], folder: str, arguments: Sequence[str], out: str, err: str) -> None:
    """Makes this process one that was started in a folder, and calls a function in it."""
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    os.chdir(folder)
    sys.path.insert(0, folder)
    importlib.import_module("jax").config.update("jax_platforms", ENVIRONMENT["JAX_PLATFORMS"])
    target(*arguments)


def run_command(module: str, *arguments: str) -> None:
    gc.set_threshold(50_000, 20, 100)
    sys.argv = [module, *arguments]
    importlib.import_module("node_fit.predict" if module == "node_fit.predict" else "node_fit.__main__").main()


def run_program(code: str) -> None:
    warnings.simplefilter("error", DeprecationWarning)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})


def in_process(command: Callable[[], Any], folder: Path, *arguments: str) -> Ran:
    """Runs a command's main function in this process, so that all tests share its compiled programs."""
    from hydra.core.global_hydra import GlobalHydra

    out, err, code = io.StringIO(), io.StringIO(), 0
    before = os.getcwd(), sys.argv, dict(os.environ)
    os.chdir(folder)
    sys.argv = ["command", *arguments]
    os.environ.pop("HYDRA_FULL_ERROR", None)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command()
    except SystemExit as end:
        code = end.code
    finally:
        os.chdir(before[0])
        sys.argv = before[1]
        os.environ.clear()
        os.environ.update(before[2])
        GlobalHydra.instance().clear()
    assert isinstance(code, int)
    return Ran(code, out.getvalue(), err.getvalue())


def at_once(folder: Path, commands: dict[str, Sequence[str]]) -> dict[str, Ran]:
    """Runs several commands, two at a time, and returns their results by name."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(commands, pool.map(lambda given: node_fit(folder, *given), commands.values()), strict=True))


def begun(folder: Path, *arguments: str) -> subprocess.Popen:
    """Starts `python -m node_fit` in a folder without waiting for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "node_fit", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def on_terminal(folder: Path, *arguments: str) -> Ran:
    """Runs `python -m node_fit` on a terminal of 80 columns; `out` holds what it shows, without colours."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "node_fit", *arguments]
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "80"}
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # Linux raises this once the other side is closed.
                break
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
    return Ran(process.returncode, text, "")


def until(true: Callable[[], bool], process: subprocess.Popen, seconds: float = 120.0) -> None:
    """Waits until a running command fulfils a condition."""
    limit = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)


def spirals(times: int = 15, trajectories: Sequence[str] = ("A", "B", "C", "D", "E")) -> list[dict[str, Any]]:
    """Table rows of points that spiral towards the origin, with an input."""
    rows = []
    for index, name in enumerate(trajectories):
        for t in np.linspace(0.0, 3.0, times).round(6):
            radius, angle = (0.6 + 0.2 * index) * np.exp(-0.2 * t), t + index
            x, y, u = radius * np.cos(angle), radius * np.sin(angle), np.sin(t)
            rows.append({"id": name, "t": float(t), "x": float(x), "y": float(y), "u": float(u)})
    return rows


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read_summary(run: Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads((run / "summary.json").read_text(), parse_constant=refuse)


@functools.cache
def driven(parent: Path) -> tuple[Path, Ran]:
    """One fit that many tests share: the folder, with the fit in `run`, and the result of its command.

    It has five trajectories with an input, a second file for the test score, and both stages of the default recipe. It
    runs once for all modules.
    """
    folder = parent / "driven"
    folder.mkdir()
    write_table(folder / "mine.csv", spirals())
    write_table(folder / "later.csv", spirals(times=9, trajectories=("F", "G")))
    ran = node_fit(
        folder, *TABLE, *SMALL, "data.inputs=[u]", "+data.units={t: s, x: m}", "data.test_path=later.csv",
        "hydra.run.dir=run", "seed=3",
    )  # fmt: skip
    return folder, ran
