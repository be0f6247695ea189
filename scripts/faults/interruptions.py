"""Interrupts one run many times, and compares its result with that of an uninterrupted run.

python scripts/faults/interruptions.py --interruptions 200    # about 6 s per interruption on two cores

Signals are drawn from SIGTERM, SIGINT and SIGKILL. Half of them come at any time after a process has started, imports
and compilation included, and half while it trains. After each one the run continues with `resume=`, as a user would do.
The exit code is 0 if model and metrics are bit for bit those of the uninterrupted run.
"""

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from safetensors import safe_open

ROOT = Path(__file__).parents[2]
# One step per chunk, so that there is always something to lose; minibatches, so that random keys matter.
RUN = (
    "data=spiral", "field.width=8", "field.depth=1", "recipe=direct", "optimizer=adam", "training.batch_size=2",
    "training.chunk_steps=1", "training.patience=1000000",
)  # fmt: skip
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
# Longer than a process takes until its first chunk, and how long it may then train [s].
TO_FIRST_CHUNK, TRAINING = 4.0, 0.5


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--interruptions", type=int, default=200)
    options.add_argument("--steps-each", type=int, default=60, help="steps of the run per interruption")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    arguments = (*RUN, f"training.steps={given.interruptions * given.steps_each}")
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole", Path(folder) / "parts"
        began = time.monotonic()
        check_end(begin(arguments, whole), whole)
        print(f"uninterrupted: {count_rows(whole)} chunks in {time.monotonic() - began:.0f} s", flush=True)
        counts = interrupt(arguments, parts, given.interruptions, random.Random(given.seed))
        check_end(begin(arguments, parts), parts)
        for (name, when, code), count in sorted(counts.items()):
            print(f"{name:<8} {when:<9} exit {code:>4}  {count:>4}")
        done = sum(counts.values())
        same_model, same_metrics = model_of(whole) == model_of(parts), metrics_of(whole).equals(metrics_of(parts))
        print(f"interruptions: {done}; same model: {same_model}; same metrics: {same_metrics}")
        return int(not (same_model and same_metrics and done == given.interruptions))


def begin(arguments: tuple[str, ...], run: Path) -> subprocess.Popen:
    """Starts the run, or resumes it if it has saved a checkpoint."""
    saved = any((run / "checkpoints").glob("*.safetensors"))
    words = [f"resume={run}"] if saved else [*arguments, f"hydra.run.dir={run}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-m", "node_fit", *words],
        cwd=run.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def interrupt(arguments: tuple[str, ...], run: Path, times: int, draw: random.Random) -> collections.Counter:
    """Interrupts the run `times` times, or until it ends; counts by signal, phase and exit code."""
    counts: collections.Counter = collections.Counter()
    while sum(counts.values()) < times:
        process = begin(arguments, run)
        if draw.random() < 0.5:
            when = "any time"
            time.sleep(draw.uniform(0.0, TO_FIRST_CHUNK))
        else:
            when = "training"
            await_chunk(process, run)
            time.sleep(draw.uniform(0.0, TRAINING))
        if process.poll() is not None:
            print("the run ended before all interruptions; raise --steps-each", process.communicate()[0])
            return counts
        kind = draw.choice(SIGNALS)
        process.send_signal(kind)
        process.communicate()
        counts[kind.name, when, process.returncode] += 1
        if sum(counts.values()) % 20 == 0:
            print(f"{sum(counts.values())} interruptions, {count_rows(run)} chunks", flush=True)
    return counts


def await_chunk(process: subprocess.Popen, run: Path) -> None:
    """Waits until the process has taken a step."""
    before = (run / "metrics.csv").stat().st_mtime_ns if (run / "metrics.csv").exists() else 0
    rows = count_rows(run)
    while process.poll() is None:
        # It first drops the rows after its checkpoint.
        if (run / "metrics.csv").exists() and (run / "metrics.csv").stat().st_mtime_ns > before:
            if count_rows(run) > rows:
                return
            rows = min(rows, count_rows(run))
        time.sleep(0.02)


def check_end(process: subprocess.Popen, run: Path) -> None:
    output = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"{run} failed:\n{output}")


def count_rows(run: Path) -> int:
    metrics = run / "metrics.csv"
    return metrics.read_text().count("\n") - 1 if metrics.exists() else 0


def model_of(run: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """The model's header and arrays; the order of arrays in the file does not matter."""
    with safe_open(run / "model.safetensors", framework="numpy") as file:
        return file.metadata() or {}, {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def metrics_of(run: Path) -> pd.DataFrame:
    """The metrics without the seconds, which differ between runs."""
    return pd.read_csv(run / "metrics.csv", dtype=str).drop(columns="seconds")


if __name__ == "__main__":
    sys.exit(main())
