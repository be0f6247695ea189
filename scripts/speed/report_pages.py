"""What a run's page costs: its size, and the processor time of making it, at the end of a run in the same process.

    python scripts/speed/report_pages.py

Runs are written by hand: predictions of a spiral with noise, as many as the table says.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from node_fit.data.dataset import Dataset
from node_fit.evaluation.simulation import predictions_frame
from node_fit.plots.curves import Curves
from node_fit.plots.figures import phase_points
from node_fit.report.pages import make_run_page

# Trajectories, rows of each, states.
CASES = ((1, 21, 2), (256, 100, 2), (1, 4_000, 1), (1, 100_000, 2), (3_000, 100, 2), (100_000, 20, 2))
PICTURED, DENSE = 300, 300


def write_run(folder: Path, trajectories: int, rows: int, states: int) -> Curves:
    """Writes `predictions.csv` and `metrics.csv`; returns what a run has drawn of them."""
    ts = np.linspace(0.0, 10.0, rows)
    phases = np.linspace(0, 6, trajectories)[:, None, None] + np.arange(states)
    exact = np.cos(ts[:, None] + phases)
    ys = exact + 0.05 * np.random.default_rng(0).normal(size=exact.shape)
    data = Dataset.from_arrays(ts, ys)
    predictions_frame(data, exact, None, "train").assign(scored=1).to_csv(folder / "predictions.csv", index=False)
    losses = {"step": range(100, 2100, 100), "stage": "main", "train_loss": 0.1, "validation_loss": 0.2, "member": 0}
    pd.DataFrame(losses).to_csv(folder / "metrics.csv", index=False)
    some = data.sample(PICTURED)
    dense = np.linspace(0.0, 10.0, DENSE)[None] * np.ones((len(some.ts), 1))
    curve = np.cos(dense[..., None] + np.linspace(0, 6, len(some.ts))[:, None, None] + np.arange(states))
    return Curves({"train": some}, {"train": (dense, curve)})


def main() -> None:
    print("| trajectories | rows of each | states | page | CPU seconds |\n|---|---|---|---|---|")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            curves = write_run(Path(folder), *case)
            # A process of its own, so that what is made once a process counts each time.
            if not (child := os.fork()):
                began = time.process_time()
                page = make_run_page(Path(folder), curves, -phase_points(curves) if case[2] == 2 else None)
                spent = time.process_time() - began
                print(
                    f"| {case[0]:,} | {case[1]:,} | {case[2]} | {page.stat().st_size / 1e6:.1f} MB | {spent:.2f} |",
                    flush=True,
                )
                os._exit(0)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
