"""Driven records from their columns alone.

    python scripts/accuracy/driven_records.py [--seeds 5] [--only NAME ...] [--data DIR]

It runs the whole command on each record and seed and prints a row for each record: the range of the test scores, those
of simple models, the seconds of the command, and the factor by which a member's training loss rose most from one chunk
to the next (1 or less: it never rose; a second fit begins above the first, so see it with `-- effort=quick`). The
measured records are read from `--data`, each from a folder of its own (docs/recipes.md says where they are published);
those that are absent are left out. The others are in `data/`.
Nothing looks at the test rows before the end. Further words go to the command: `-- penalty.ridge=0`.

`--ablate` runs each record again without one of the parts that the defaults consist of, with the hidden states that
the whole found, and prints a column for each. A run that takes longer than `--limit` seconds is ended there.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SHIPPED = Path(__file__).parents[2] / "data"
PARTS = {
    "all parts": (),
    "no linear stage": ("field.linear=false",),
    "no start from rows before": ("start=first",),
    "no windows": ("training.window=null",),
    "no prior": ("penalty.ridge=0",),
    "one start": ("restarts=1",),
}


@dataclass(frozen=True)
class Record:
    """A record, and the words of the command that fits it."""

    path: Path
    words: tuple[str, ...]


def records(data: Path) -> dict[str, Record]:
    def columns(inputs: str, states: str, *more: str) -> tuple[str, ...]:
        return ("data=table", f"data.inputs=[{inputs}]", f"data.states=[{states}]", *more)

    exchanger = data / "heat_exchanger" / "exchanger.csv"
    arm, tanks = data / "robot_arm" / "robot_arm.csv", data / "cascaded_tanks" / "estimation.csv"
    of_1024 = ("data.split.test=0.3164", "data.split.validation=0.1367")
    return {
        "heat exchanger": Record(
            exchanger, columns("q", "th", "data.time=ts", "data.split.test=0.25", "data.split.validation=0.15")
        ),
        "robot arm": Record(arm, columns("u", "y", "data.step=1", *of_1024)),
        "cascaded tanks": Record(tanks, columns("u_V", "y_V", "data.time=t_s", *of_1024)),
        "tanks, known physics": Record(tanks, ("experiment=cascaded_tanks",)),
        "Duffing": Record(
            SHIPPED / "duffing.csv", columns("force", "position", "data.step=1", "data.split.test_from=50000")
        ),
        "motor": Record(
            SHIPPED / "motor.csv",
            columns("voltage", "speed", "data.time=ms", "data.trajectory=record"),
        ),
        "house": Record(SHIPPED / "house.csv", columns("heater", "room", "data.time=minutes")),
    }


def run(record: Record, words: list[str], seed: int, limit: float | None = None) -> tuple[dict, float]:
    """The summary of a run, and the seconds of its command.

    **Raises:** `subprocess.TimeoutExpired` after so many seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "node_fit", *record.words, f"data.path={record.path}", f"seed={seed}"]
        began = time.perf_counter()
        words = [*words, f"hydra.run.dir={folder}/run"]
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, timeout=limit)
        seconds = time.perf_counter() - began
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        return summary | {"rise": largest_rise(Path(folder, "run", "metrics.csv"))}, seconds


def largest_rise(metrics: Path) -> float:
    """The largest ratio of a training loss to that of the chunk before, of any member in any stage."""
    worst, last = 0.0, {}
    with open(metrics, newline="") as file:
        for row in csv.DictReader(file):
            key, loss = (row["stage"], row["member"]), float(row["train_loss"])
            worst, last[key] = max(worst, loss / last.get(key, np.inf)), loss
    return worst


def ablate(given: dict[str, Record], words: list[str], seeds: int, limit: float) -> None:
    """Prints the median test NRMSE of each record, whole and without one part."""
    print("| record | " + " | ".join(PARTS) + " |")
    print("|---|" + "---|" * len(PARTS), flush=True)
    for name, record in given.items():
        fixed: list[str] = []
        cells = []
        for part in PARTS.values():
            try:
                found = [run(record, [*fixed, *part, *words], seed, limit)[0] for seed in range(seeds)]
            except subprocess.TimeoutExpired:
                cells.append(f"none in {limit:g} s")
                continue
            cells.append(f"{np.median([s['metrics']['test']['nrmse'] or np.inf for s in found]):.3g}")
            if "hidden" in found[0]["choices"]:
                fixed = [f"hidden={found[0]['choices']['hidden']['value']}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits driven records from their columns alone.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="names of records")
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the measured records")
    parser.add_argument("--ablate", action="store_true", help="what each part is worth")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a run, in an ablation")
    parser.add_argument("words", nargs="*", help="further words of the command, for an ablation")
    options = parser.parse_args()
    known = records(options.data)
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"there is no record {unknown.pop()!r}; choose from {', '.join(known)}")
    given = {name: known[name] for name in options.only or known if known[name].path.is_file()}
    if options.ablate:
        return ablate(given, options.words, options.seeds, options.limit)
    print("| record | test NRMSE: median (range) | test RMSE | state-space | linear ODE | seconds | rise | verdicts |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, record in given.items():
        found = [run(record, options.words, seed) for seed in range(options.seeds)]
        scores = [summary["metrics"]["test"] for summary, _ in found]
        nrmse, rmse = (np.array([score[key] for score in scores], float) for key in ("nrmse", "rmse"))
        simple = found[0][0]["baselines"]
        others = [simple[kind]["test"]["nrmse"] if kind in simple else None for kind in ("state-space", "linear")]
        shown = ["-" if other is None else f"{other:.3g}" for other in others]
        seconds = [each for _, each in found]
        verdicts = sorted({summary["diagnosis"]["kind"] for summary, _ in found})
        print(
            f"| {name} | {np.median(nrmse):.3g} ({nrmse.min():.3g}-{nrmse.max():.3g}) | {np.median(rmse):.3g} | "
            f"{shown[0]} | {shown[1]} | {np.median(seconds):.0f} ({max(seconds):.0f}) | "
            f"{max(summary['rise'] for summary, _ in found):.2g} | {', '.join(verdicts)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
