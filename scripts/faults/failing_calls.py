"""Lets the N-th call of the operating system fail, for every N of a small run.

    python scripts/faults/failing_calls.py [--kinds write fsync ...] [--commands run resume predict sweep] [--every 1]

A C library, compiled here with gcc and preloaded, counts the calls on files under the run's directory, and lets one of
them fail with an input/output error. The kind `malloc` counts requests for a mebibyte or more of memory, wherever they
come from, one of which is denied. For each N the script runs the command anew and asks:

- did it end by itself, with exit code 0 or 1, without a traceback, and with a sentence where the code is 1 (libraries
  that are denied memory may also end the process, which is counted as killed);
- can every JSON file, table, checkpoint and model that is there be read, and is none half written;
- does the same run then reach the model of a run without a fault, bit for bit: with `resume=` where there is a
  checkpoint, from its beginning elsewhere.

It prints a row for each command and kind, and each failure; the exit code is 1 if anything was lost.
"""

import argparse
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from interruptions import model_of

ROOT = Path(__file__).parents[2]
SMALL = (
    "data=spiral", "field.width=4", "field.depth=1", "recipe=direct", "optimizer=adam", "training.steps=3",
    "training.chunk_steps=1", "report=false",
)  # fmt: skip
KINDS = ("write", "fsync", "rename", "mkdir", "malloc")
SECONDS, TIMEOUT = 300, 124


@dataclass(frozen=True)
class Command:
    """A command, what must be there before it, and the run directories that it leaves."""

    words: tuple[str, ...]
    needs: tuple[str, ...]
    runs: tuple[str, ...]


COMMANDS = {
    "run": Command(("node_fit", *SMALL, "hydra.run.dir={at}/run"), (), ("run",)),
    "resume": Command(("node_fit", "resume={at}/run", "training.steps=5"), ("run",), ("run",)),
    "predict": Command(("node_fit.predict", "{at}/run", "--data", "{data}", "--out", "{at}/out.csv"), ("run",), ()),
    "sweep": Command(("node_fit", "-m", *SMALL, "seed=0,1", "hydra.sweep.dir={at}/sweep"), (), ("sweep/0", "sweep/1")),
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options.add_argument("--every", type=int, default=1, help="only each so many-th call")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = options.parse_args()
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        library = build(base)
        prepare(base)
        print("| command | call | points | exit 0 | exit 1 | killed | lost |", flush=True)
        print("|---|---|---|---|---|---|---|", flush=True)
        for name in given.commands:
            for kind in given.kinds:
                lost += report(base, library, name, kind, given)
    return int(lost > 0)


def build(base: Path) -> Path:
    """Compiles the library."""
    library = base / "failing_calls.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def prepare(base: Path) -> None:
    """Runs each command without a fault in `whole-NAME`, which also fills the compile cache."""
    for name, command in COMMANDS.items():
        at = base / f"whole-{name}"
        supply(base, command, at)
        done = execute(base, command, at)
        if done.returncode != 0:
            raise SystemExit(f"{name} failed without a fault:\n{done.stdout}{done.stderr}")
        if name == "run":
            shutil.copytree(at / "run", base / "before" / "run")


def supply(base: Path, command: Command, at: Path) -> None:
    """Makes a folder with what must be there before the command."""
    at.mkdir()
    for run in command.needs:
        shutil.copytree(base / "before" / run, at / run)


def execute(base: Path, command: Command, at: Path, **faults: object) -> subprocess.CompletedProcess:
    """Runs a command in a folder of its own."""
    words = [word.format(at=at, data=ROOT / "data" / "spiral.csv") for word in command.words]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(base / "cache"),
        **{key: str(value) for key, value in faults.items()},
    }
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=base, env=environment, capture_output=True, text=True, timeout=SECONDS
    )


def report(base: Path, library: Path, name: str, kind: str, given: argparse.Namespace) -> int:
    """Lets each call of a kind fail in turn, and prints a row; returns how many of these lost something."""
    told = base / "counts"
    told.unlink(missing_ok=True)
    attempt(base, library, name, kind, 0, told)
    most = max(map(int, told.read_text().split()), default=0)
    points = range(1, most + 1, given.every)
    with ThreadPoolExecutor(given.jobs) as pool:
        found = list(pool.map(lambda at: attempt(base, library, name, kind, at), points))
    bad = [(at, fault) for at, (_, fault) in zip(points, found, strict=True) if fault]
    codes = [code for code, _ in found]
    counts = (len(points), codes.count(0), codes.count(1), sum(code < 0 for code in codes), len(bad))
    print(f"| {name} | {kind} | {' | '.join(map(str, counts))} |", flush=True)
    for at, fault in bad:
        print(f"  {name}, {kind} {at}: {fault}", flush=True)
    return len(bad)


def attempt(
    base: Path, library: Path, name: str, kind: str, call: int, counts: Path | None = None
) -> tuple[int, str | None]:
    """Runs a command of which one call fails: its exit code, and what was lost, if anything."""
    command, at = COMMANDS[name], base / f"{name}-{kind}-{call}"
    supply(base, command, at)
    faults = {"LD_PRELOAD": library, "FAULT_FOLDER": at, "FAULT_KIND": kind, "FAULT_AT": call}
    more = {} if counts is None else {"FAULT_COUNTS": counts}
    try:
        done = execute(base, command, at, **faults, FAULT_ERRNO=errno.EIO, **more)
    except subprocess.TimeoutExpired:
        return TIMEOUT, f"did not end in {SECONDS} s"
    killed = kind == "malloc" and done.returncode < 0
    fault = (
        (None if killed else fault_of(done))
        or unreadable(at)
        or (None if call == 0 else not_reached(base, name, command, at))
    )
    shutil.rmtree(at)
    return done.returncode, fault


def fault_of(done: subprocess.CompletedProcess) -> str | None:
    """What is wrong with how a command ended."""
    said = (done.stdout + done.stderr).strip()
    if done.returncode not in (0, 1):
        return f"exit code {done.returncode}: {said[-300:]}"
    if "Traceback" in said:
        return f"a traceback: {said[-300:]}"
    sentence = any(line.startswith(("error: ", "failed: ")) for line in said.splitlines())
    return None if done.returncode == 0 or sentence else f"exit code 1 without a sentence: {said[-300:]}"


def unreadable(at: Path) -> str | None:
    """A file that can't be read, among those that a user or a later run would read."""
    import pandas as pd

    import node_fit

    for path in sorted(at.rglob("*")):
        if path.name.startswith(".") and path.name != ".run.json":
            continue
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.name in ("predictions.csv", "out.csv", "leaderboard.csv"):
                assert not pd.read_csv(path).empty
            elif path.name == "model.safetensors":
                node_fit.load(path)
        except Exception as error:
            return f"{path.relative_to(at)} can't be read: {error}"
    return None


def not_reached(base: Path, name: str, command: Command, at: Path) -> str | None:
    """Where the command, given again, does not reach what it reaches without a fault."""
    if name == "predict":
        (at / "out.csv").unlink(missing_ok=True)
        done = execute(base, command, at)
        whole = (base / "whole-predict" / "out.csv").read_bytes()
        same = done.returncode == 0 and (at / "out.csv").read_bytes() == whole
        return None if same else f"not predicted again: {done.stderr[-300:]}"
    for run in command.runs:
        fault = again(base, name, command, at, run)
        if fault:
            return f"{run}: {fault}"
    return None


def again(base: Path, name: str, command: Command, at: Path, run: str) -> str | None:
    """Resumes a run, or begins it anew where it has no checkpoint yet, and compares its model."""
    whole = base / f"whole-{name}" / run
    if (at / run / "model.safetensors").exists() and model_of(at / run) == model_of(whole):
        return None
    if any((at / run / "checkpoints").glob("*.safetensors")):
        words: Sequence[str] = ("node_fit", f"resume={at / run}", *(["training.steps=5"] if name == "resume" else []))
    else:
        shutil.rmtree(at / run, ignore_errors=True)
        seed = f"seed={run[-1]}" if name == "sweep" else "seed=0"
        words = ("node_fit", *SMALL, seed, f"hydra.run.dir={at / run}")
    done = execute(base, Command(tuple(words), (), ()), at)
    if done.returncode != 0:
        return f"can't go on: {(done.stdout + done.stderr)[-300:]}"
    return None if model_of(at / run) == model_of(whole) else "goes on to another model"


if __name__ == "__main__":
    sys.exit(main())
