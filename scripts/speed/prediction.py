"""Measures how time and memory of a prediction grow with its rows: `python scripts/speed/prediction.py [--rows ...]`.

The record is one pendulum under random pushes (`large_data.record`), of which one state is measured. A model with a
hidden state is fitted to 2,000 rows of it in one step, since its quality is of no matter here, and saved. Each
prediction runs in a process of its own that loads the model: the first call compiles, the median of three more is the
time. The last column is that of `node_fit.predict`, from the start of its process to the written file.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from large_data import record

ROWS = (12_500, 25_000, 50_000, 100_000)
REPEATS = 3
# Those that the start is read from have no prediction.
ROWS_OF_START = 10
COLUMNS = {"time": "t", "states": ["angle"], "inputs": ["push"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the growth of predictions.")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "TABLE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one)))
        return
    with tempfile.TemporaryDirectory() as folder:
        tables = {rows: Path(folder) / f"{rows}.csv" for rows in (2_000, *options.rows)}
        for rows, path in tables.items():
            record(rows).drop(columns="speed").to_csv(path, index=False)
        fitted = Path(folder) / "run"
        words = ["data=table", f"data.path={tables[2_000]}", "data.time=t", "data.states=[angle]", "data.inputs=[push]"]
        call("node_fit", *words, "hidden=1", "training.steps=1", f"hydra.run.dir={fitted}")
        print("| rows | first call [s] | further calls [s] | peak memory [MB] | command [s] |")
        print("|---|---|---|---|---|")
        for rows in options.rows:
            found = json.loads(
                subprocess.run(
                    [sys.executable, __file__, "--one", str(fitted / "model.safetensors"), str(tables[rows])],
                    check=True,
                    stdout=subprocess.PIPE,
                ).stdout
            )
            began = time.perf_counter()
            out = str(Path(folder) / f"predicted{rows}.csv")
            call("node_fit.predict", str(fitted), "--data", str(tables[rows]), "--out", out)
            whole = time.perf_counter() - began
            print(f"| {rows:,} | {found['first']:.2f} | {found['further']:.2f} | {found['memory']:.0f} | {whole:.1f} |")


def one(model: str, table: str) -> dict[str, float]:
    """Seconds of the first and of further predictions of a table, and the peak memory [MB] of this process."""
    import numpy as np

    import node_fit

    fitted, data = node_fit.load(model), node_fit.read_table(table, **COLUMNS)
    seconds = []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        assert np.isfinite(fitted.predict(data)[:, ROWS_OF_START:]).all()
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {"first": seconds[0], "further": statistics.median(seconds[1:]), "memory": peak}


def call(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
