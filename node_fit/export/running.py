"""Runs what has been exported, to check it: compiles C, and imports a written module."""

import csv
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .c import on_one_line, state_names
from .functions import Exported
from .numpy_target import render_numpy
from .tracing import CannotExport
from .trials import CheckRecord

LONGEST_RUN = 300  # [s]
FLAGS = ("-std=c99", "-O2")


def compiler() -> str:
    """The C compiler: that of the variable CC, or the first of cc, gcc and clang.

    **Raises:** `CannotExport` if there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise CannotExport(
        "no C compiler is found, with which the export would be checked; install gcc or clang, or set CC."
    )


def call(words: Sequence[str], folder: Path, given: str | None = None) -> str:
    """The output of a command.

    **Raises:** `RuntimeError` with what it says if it fails.
    """
    done = subprocess.run(words, cwd=folder, input=given, capture_output=True, text=True, timeout=LONGEST_RUN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[:2000] or done.stdout[:2000]}")
    return done.stdout


def run_c(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """What the compiled program predicts of some records."""
    rows = max(len(trial.t) for trial in trials)
    call([compiler(), *FLAGS, f"-DMOST_ROWS={rows}", "main.c", "model.c", "-lm", "-o", "model"], folder)
    try:
        text = call([str(folder / "model")], folder, as_csv(exported, trials))
    finally:
        (folder / "model").unlink()
    table = list(csv.reader(io.StringIO(text)))[1:]
    values = np.array([[float(cell or "nan") for cell in row[2:]] for row in table])
    return np.split(values, np.cumsum([len(trial.t) for trial in trials])[:-1])


def as_csv(exported: Exported, trials: Sequence[CheckRecord]) -> str:
    """Records as the program in C reads them."""
    one, states = exported.one, state_names(exported)
    given, jumps = trials[0].start is not None, trials[0].factor is not None
    head = ["trajectory", one.system.time, *one.states, *one.inputs]
    head += [f"start {name}" for name in states] if given else []
    head += [f"{action} {name}" for action in ("multiply", "add") for name in states] if jumps else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([on_one_line(name) for name in head])
    for number, trial in enumerate(trials):
        for row in range(len(trial.t)):
            cells: list[Any] = [f"r{number}", trial.t[row], *trial.channels[row], *trial.inputs[row]]
            if trial.start is not None:
                cells += list(trial.start) if row == 0 else [np.nan] * len(states)
            if trial.factor is not None and trial.shift is not None:
                cells += [*trial.factor[row], *trial.shift[row]]
            writer.writerow(
                ["" if cell != cell else cell if isinstance(cell, str) else repr(float(cell)) for cell in cells]
            )
    return text.getvalue()


def load_module(path: Path) -> ModuleType:
    """The module of a file that has just been written."""
    spec = importlib.util.spec_from_file_location(f"exported_{abs(hash(str(path)))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def run_numpy(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """What the written module predicts of some records."""
    return simulate_all(load_module(folder / "model.py"), trials)


def simulate_all(module: Any, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    return [
        module.simulate(each.t, each.channels, each.inputs, start=each.start, factor=each.factor, shift=each.shift)
        for each in trials
    ]


def record_starts(exported: Exported, trials: Sequence[CheckRecord]) -> list[tuple[int, np.ndarray]]:
    """The row at which each record starts, and the states of all members there, as the module in NumPy finds them."""
    with tempfile.TemporaryDirectory(prefix="node_fit-export-") as name:
        path = Path(name) / "model.py"
        path.write_text(render_numpy(exported)["model.py"])
        module: Any = load_module(path)
    with np.errstate(all="ignore"):
        return [
            module.start(each.t, each.channels, each.inputs) if each.start is None else (0, each.start)
            for each in trials
        ]
