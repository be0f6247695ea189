"""Measures how memory and time of a whole run, from the table to the report, grow with the size of the data.

python scripts/speed/large_data.py                          # both kinds, all sizes; 5 minutes on two cores
python scripts/speed/large_data.py --kinds trajectories --sizes 1000 10000

`trajectories` are swings of a damped pendulum, 20 rows each. `record` is one pendulum under random pushes, with one row
per time; it is fitted, validated and scored in windows of 20 rows. Both are fitted on minibatches of 256, with the same
command and number of steps. The script prints a table and draws docs/large.png.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
ROWS, STEP = 20, 0.2
SIZES = {"trajectories": (1_000, 10_000, 100_000), "record": (10_000, 100_000, 1_000_000)}
COMMON = (
    "data=table", "data.time=t", "data.states=[angle,speed]", "field.width=32", "recipe=direct",
    "optimizer=adam", "training.batch_size=256", "training.steps=1000", "training.patience=1000", "compile_cache=false",
)  # fmt: skip
KINDS = {
    "trajectories": ("data.trajectory=id",),
    "record": ("data.inputs=[push]", f"training.window={ROWS}", f"evaluation.window={ROWS}"),
}
NOISE = 0.02


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kinds", nargs="+", choices=SIZES, default=list(SIZES))
    options.add_argument("--sizes", nargs="+", type=int, help="instead of the default ones")
    options.add_argument("--picture", type=Path, default=ROOT / "docs" / "large.png")
    given = options.parse_args()
    found = []
    print("| data | rows | table [MB] | seconds | of which training | peak memory [MB] | test NRMSE |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        for size in given.sizes or SIZES[kind]:
            found.append(measure(kind, size))
            row = found[-1]
            print(
                f"| {size:,} {'trajectories' if kind == 'trajectories' else 'rows in one record'} | {row['rows']:,} "
                f"| {row['table']:.1f} | {row['seconds']:.0f} | {row['training']:.0f} | {row['memory']:.0f} "
                f"| {row['nrmse']:.3f} |",
                flush=True,
            )
    draw(pd.DataFrame(found), given.picture)


def measure(kind: str, size: int) -> dict[str, Any]:
    """One run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.parquet"
        frame = trajectories(size) if kind == "trajectories" else record(size)
        frame.to_parquet(table, index=False)
        began = time.monotonic()
        command = [sys.executable, "-m", "node_fit", *COMMON, *KINDS[kind], f"data.path={table}", "hydra.run.dir=run"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        memory = peak(command, folder, environment)
        seconds = time.monotonic() - began
        summary = pd.read_json(Path(folder) / "run" / "summary.json", typ="series")
        return {
            "kind": kind,
            "rows": len(frame),
            "table": len(frame) * len(frame.columns) * 8 / 1e6,
            "seconds": seconds,
            "training": summary["seconds"]["train"],
            "memory": memory,
            "nrmse": summary["metrics"]["test"]["nrmse"],
        }


def peak(command: list[str], folder: str, environment: dict[str, str]) -> float:
    """Runs a process to its end; returns its largest resident memory [MB]."""
    # A child of a child, because the system reports the maximum over all children so far.
    watch = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True
    )
    return int(done.stdout) * resource.getpagesize() / 4096 * 1024 / 1e6


def rates(state: np.ndarray, push: np.ndarray | float) -> np.ndarray:
    return np.stack([state[..., 1], -np.sin(state[..., 0]) - 0.3 * state[..., 1] + push], axis=-1)


def step(state: np.ndarray, push: np.ndarray | float = 0.0) -> np.ndarray:
    """One step of the classical Runge-Kutta method."""
    k1 = rates(state, push)
    k2 = rates(state + STEP / 2 * k1, push)
    k3 = rates(state + STEP / 2 * k2, push)
    k4 = rates(state + STEP * k3, push)
    return state + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def trajectories(count: int) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    states = [draw.uniform(-2, 2, (count, 2))]
    for _ in range(ROWS - 1):
        states.append(step(states[-1]))
    noisy = np.stack(states, axis=1) + NOISE * draw.standard_normal((count, ROWS, 2))
    return pd.DataFrame(
        {
            "id": np.repeat(np.arange(count), ROWS),
            "t": np.tile(STEP * np.arange(ROWS), count),
            "angle": noisy[..., 0].ravel(),
            "speed": noisy[..., 1].ravel(),
        }
    )


def record(rows: int) -> pd.DataFrame:
    """A record in which each push is held for whole steps, so that the truth is known exactly."""
    draw = np.random.default_rng(0)
    push = np.repeat(draw.uniform(-0.4, 0.4, rows // 10 + 1), 10)[:rows]
    state, states = np.zeros(2), np.empty((rows, 2))
    for row in range(rows):
        states[row] = state
        state = step(state, push[row])
    noisy = states + NOISE * draw.standard_normal(states.shape)
    return pd.DataFrame({"t": STEP * np.arange(rows), "angle": noisy[:, 0], "speed": noisy[:, 1], "push": push})


def draw(found: pd.DataFrame, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for axes, key, label in zip(
        panels, ("memory", "seconds"), ("peak memory [MB]", "time of the run [s]"), strict=True
    ):
        for kind, rows in found.groupby("kind"):
            axes.plot(rows["rows"], rows[key], "o-", label=kind)
        axes.set(xscale="log", xlabel="rows of the table", ylabel=label, ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
