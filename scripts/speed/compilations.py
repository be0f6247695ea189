"""Counts the training chunks that are compiled: `python scripts/speed/compilations.py [--only NAME ...]`.

One per stage is the aim, whatever the number of held steps, the seed and the learning rate (a run that is resumed in
the same process compiles none: `tests/training/test_training.py`). Each row is a process of its own, with an empty
compile cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SWEEP = ("seed=0,1,2,3,4", "optimizer=adam", "optimizer.learning_rate=1e-3,3e-3", "training.steps=300")


@dataclass(frozen=True)
class Run:
    """Words of the command, and the number of its stages."""

    words: tuple[str, ...]
    stages: int


RUNS = {
    "spiral, direct, x32": Run(("data=spiral", "recipe=direct", "precision=x32"), 1),
    "spiral, direct, x64": Run(("data=spiral", "recipe=direct", "precision=x64"), 1),
    "spiral, by Levenberg-Marquardt": Run(("data=spiral", "optimizer=lm"), 2),
    "spiral, 5 seeds x 2 rates": Run(("-m", "data=spiral", *SWEEP), 2),
    "oscillator, 5 seeds x 2 rates": Run(("-m", "data=oscillator", *SWEEP), 2),
    "lynx and hare, 5 seeds x 2 rates": Run(("-m", "data=lynx_hare", *SWEEP), 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    given = parser.parse_args()
    print("| run | jobs | stages | chunks compiled | seconds |")
    print("|---|---|---|---|---|", flush=True)
    for name in given.only:
        report(name, RUNS[name])


def report(name: str, run: Run) -> None:
    """Runs the command in an empty folder, and prints a row."""
    with tempfile.TemporaryDirectory() as folder:
        swept = "-m" in run.words
        place = "hydra.sweep.dir=runs" if swept else "hydra.run.dir=runs/0"
        words = [*run.words, place, "compile_cache=false", "report=false"]
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "node_fit", *words], cwd=folder, env=environment, check=True, capture_output=True
        )
        seconds = time.perf_counter() - began
        found = [json.loads(path.read_text()) for path in Path(folder, "runs").rglob("summary.json")]
    compiled = sum(summary["compiles"] for summary in found)
    print(f"| {name} | {len(found)} | {run.stages} | {compiled} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
