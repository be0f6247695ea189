"""Measures node_fit and its peers side by side, on the CPU of this machine.

    python scripts/speed/compare_with_peers.py [--quick] [--only gradients compile target spiral] [--rounds 3]

prints tables in Markdown. It needs node_fit (`pip install -e .`); `torchdiffeq` and `torchode` are measured if they are
installed. Every measurement runs in a process of its own. The contenders take turns. A figure is the median over the
rounds with the extremes in brackets; a ratio is the median of the ratios within the rounds. Measure on an idle
machine: a wide range means that something else was running.

- `gradients`: seconds per training step of Adam on 32 and 256 trajectories of `data/oscillator.csv`, with the same
  weights and data for all (see `peers.py`); the lowest losses show that all solved the same problem. Compile time is
  tracing, lowering and XLA; for the loop, its first step minus a later one.
- `compile`: compile time of a training chunk of node_fit, by optimizer.
- `target`: seconds from the start of the process to a validation NRMSE of 5 % on the oscillator, solved at tight
  tolerances, with the defaults of `node_fit.fit` and with the tutorial's recipe. One seed per round.
- `spiral`: seconds after compiling to a training loss of 1e-5 on `data/spiral.csv` (MLP 2-32-32-2, float64,
  rtol 1e-6), and for Adam the loss that it reaches in 30 s. One seed per round.

PyTorch gets one thread unless you set `--torch-threads`, because more of them wait for each other on shared cores.
`--quick` runs one round with 32 trajectories and 10 s on the spiral, to check that everything runs.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peers import NEEDS

MEASUREMENTS = Path(__file__).with_name("measurements.py")
TARGET_NRMSE, TARGET_LIMIT = 0.05, 300.0
TARGET_LOSS, LOSS_LIMIT = 1e-5, 30.0
SPIRAL = ("LBFGS, default", "LBFGS, direct", "Adam, default", "Adam, direct")
HEADINGS = {
    "gradients": "Seconds per gradient",
    "compile": "Seconds to compile a training chunk of node_fit",
    "target": f"Seconds from the start of the process to a validation NRMSE of {TARGET_NRMSE:.0%} on the oscillator",
    "spiral": f"Seconds after compiling to a training loss of {TARGET_LOSS:g} on the spiral, at most {{limit:g}}",
}
Row = dict[str, Any]


def requests(task: str, options: argparse.Namespace, seed: int) -> Iterator[Row]:
    """The measurements of one round of a task, with contenders in turn."""
    if task == "gradients":
        for size in (32,) if options.quick else (32, 256):
            for contender in ("node_fit", *NEEDS):
                yield {"contender": contender, "trajectories": size, "threads": options.torch_threads}
    elif task == "compile":
        yield from ({"contender": optimizer} for optimizer in ("Adam", "LBFGS", "Optax(lbfgs)"))
    elif task == "target":
        for contender in ("node_fit", "loop"):
            yield {"contender": contender, "nrmse": TARGET_NRMSE, "seed": seed, "limit": TARGET_LIMIT}
    else:
        limit = LOSS_LIMIT / 3 if options.quick else LOSS_LIMIT
        yield from ({"contender": c, "loss": TARGET_LOSS, "seed": seed, "limit": limit} for c in SPIRAL)


def measure(task: str, request: Row) -> Row:
    """Runs one measurement in a new process."""
    missing = [p for p in NEEDS.get(request["contender"], ()) if importlib.util.find_spec(p) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} not installed"}
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    timed = {"started": time.time()} if task in ("gradients", "target") else {}
    argument = json.dumps({"task": task, **request, **timed})
    ran = subprocess.run([sys.executable, MEASUREMENTS, argument], capture_output=True, text=True, env=environment)
    if ran.returncode:
        return {"failed": (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]}
    return json.loads(ran.stdout.splitlines()[-1])


def run(tasks: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """One row per measurement."""
    rows = []
    for task in tasks:
        for number in range(options.rounds):
            for request in requests(task, options, number):
                row = {"task": task, "round": number, **request, **measure(task, request)}
                print(", ".join(f"{key} {show(value)}" for key, value in row.items()), file=sys.stderr, flush=True)
                rows.append(row)
    return rows


def show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def spread(values: Sequence[float]) -> str:
    """Median, with the extremes in brackets."""
    if len(values) < 2:
        return f"{values[0]:.3g}" if values else "-"
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def ratio(rows: Sequence[Row], reference: Sequence[Row], key: str) -> str:
    """Median over the rounds of the ratio of `rows` to `reference`."""
    by_round = {row["round"]: row[key] for row in reference if key in row}
    ratios = [row[key] / by_round[row["round"]] for row in rows if key in row and row["round"] in by_round]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *lines))


def by_contender(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by contender, in the order of their first turn."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["contender"], []).append(row)
    return groups


def column(rows: Sequence[Row], key: str) -> str:
    """The figures of a column, or the reason why there are none."""
    excuse = next((row[why] for row in rows for why in ("skipped", "failed") if why in row), "")
    return excuse or spread([row[key] for row in rows if key in row])


def gradients_table(rows: Sequence[Row]) -> str:
    header = ["", "trajectories", "s per gradient", "times node_fit's", "compile [s]", "import [s]", "lowest loss"]
    lines = []
    for size in sorted({row["trajectories"] for row in rows}):
        groups = by_contender([row for row in rows if row["trajectories"] == size])
        for contender, group in groups.items():
            figures = [column(group, "step_seconds"), ratio(group, groups["node_fit"], "step_seconds")]
            figures += [
                spread([row[key] for row in group if key in row]) for key in ("compile_seconds", "import_seconds")
            ]
            losses = sorted({f"{row['loss']:.4g}" for row in group if "loss" in row})
            lines.append([contender, str(size), *figures, ", ".join(losses) or "-"])
    return table(header, lines)


def compile_table(rows: Sequence[Row]) -> str:
    groups = by_contender(rows)
    key = "compile_seconds"
    lines = [[name, column(group, key), ratio(group, groups["Adam"], key)] for name, group in groups.items()]
    return table(["optimizer", "compile [s]", "times Adam's"], lines)


def reached(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.get("reached")]


def runs_table(rows: Sequence[Row], first: str, error: str) -> str:
    """Runs to a target; times are over runs that reached it, ratios over rounds in which both did."""
    groups = by_contender(rows)
    reference = reached(next(iter(groups.values())))
    lines = []
    for name, group in groups.items():
        done = reached(group)
        seconds = column(group if any("failed" in row for row in group) else done, "seconds")
        figures = [seconds, ratio(done, reference, "seconds"), f"{len(done)} of {len(group)}"]
        lines.append([name, *figures, spread([row["steps"] for row in group if "steps" in row]), column(group, error)])
    return table(["", "seconds", f"times {first}", "reached", "steps", f"last {error}"], lines)


def report(rows: Sequence[Row]) -> str:
    """All tables, each with its heading."""
    parts = []
    for task, heading in HEADINGS.items():
        mine = [row for row in rows if row["task"] == task]
        if not mine:
            continue
        if task == "gradients":
            body = gradients_table(mine)
        elif task == "compile":
            body = compile_table(mine)
        elif task == "target":
            body = runs_table(mine, "node_fit's", "nrmse")
        else:
            body = runs_table(mine, f"{SPIRAL[0]}'s", "loss")
        parts.append(f"### {heading.format(limit=mine[0].get('limit', 0))}\n\n{body}")
    return "\n\n".join(parts)


def machine(options: argparse.Namespace) -> Row:
    """What the figures depend on besides the code."""
    versions = {}
    for package in sorted({"node_fit", *(package for needs in NEEDS.values() for package in needs)}):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": versions,
        "rounds": options.rounds,
        "torch_threads": options.torch_threads,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures node_fit and its peers side by side on the CPU.")
    parser.add_argument("--only", nargs="+", choices=HEADINGS, default=list(HEADINGS), help="what to measure (all)")
    parser.add_argument("--quick", action="store_true", help="one small round, to check that everything runs")
    parser.add_argument("--rounds", type=int, help="rounds, in which each contender has one turn (3; 1 with --quick)")
    parser.add_argument("--torch-threads", type=int, default=1, help="number of PyTorch threads (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all measurements")
    options = parser.parse_args()
    options.rounds = (1 if options.quick else 3) if options.rounds is None else options.rounds
    for name in ("rounds", "torch_threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}.")
    if importlib.util.find_spec("node_fit") is None:
        parser.error("node_fit is not installed for this Python; run `pip install -e .` in the repository.")
    about = machine(options)
    rows = run(options.only, options)
    if options.json is not None:
        options.json.write_text(json.dumps({**about, "results": rows}, indent=2) + "\n")
    versions = ", ".join(f"{name} {version}" for name, version in about.pop("versions").items())
    print("; ".join(f"{key} {show(value)}" for key, value in about.items()) + f"; {versions}\n")
    print(report(rows))


if __name__ == "__main__":
    main()
