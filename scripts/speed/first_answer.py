"""Measures when a run gives its first answer, takes its first step, and ends, with an empty cache and a filled one.

    python scripts/speed/first_answer.py --rounds 3 --before ../earlier

Seconds count from the start of the process: to the line `first answer:`, the picture, the first row of the log and its
end. A cold run finds no compiled programs, a warm one those of the cold run before it. A population writes no log.
`--before` names another checkout, which is measured in turns with this one; an earlier one has no answer.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
FIGURES = ("answer", "picture", "step", "end")
STATES = ("cold", "warm")


# Of a subject's gut and blood.
ABSORPTION = "{gut: -ka*gut, blood: ka*gut - ke*blood}"


def known(equations: str) -> tuple[str, ...]:
    """The words of a command that give equations."""
    return ("field=known", f"field.equations={equations}")


def decay(ts: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {"t": ts, "x": 2 * np.exp(-0.5 * ts) + 0.02 * random.normal(size=ts.size)}


def driven(ts: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    """A tank with a square root in its outflow, pumped in steps."""
    pump = np.repeat(random.uniform(0.5, 1.5, -(-ts.size // 40)), 40)[: ts.size]
    level = [1.0]
    for step, inflow in zip(np.diff(ts), pump, strict=False):
        level.append(level[-1] + step * (inflow - np.sqrt(level[-1])))
    return {"t": ts, "pump": pump, "level": np.array(level) + 0.01 * random.normal(size=ts.size)}


def oscillator(ts: np.ndarray, random: np.random.Generator, noise: float) -> dict[str, np.ndarray]:
    """Van der Pol's oscillator from a random start, by small steps of Euler's method."""
    x, v = random.uniform(-2, 2, 2)
    rows, substeps = [(x, v)], 200
    for step in np.diff(ts) / substeps:
        for _ in range(substeps):
            x, v = x + step * v, v + step * ((1 - x * x) * v - x)
        rows.append((x, v))
    xs, vs = np.array(rows).T + noise * random.normal(size=(2, ts.size))
    return {"t": ts, "x": xs, "v": vs}


def absorption(ts: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    """A substance that a subject absorbs and eliminates, at rates of its own."""
    absorbed, eliminated = np.array([1.2, 0.3]) * np.exp(0.3 * random.normal(size=2))
    left, share = np.exp(-absorbed * ts), absorbed / (absorbed - eliminated)
    blood = share * (np.exp(-eliminated * ts) - left) + 0.02 * random.normal(size=ts.size)
    return {"t": ts, "gut": left + 0.02 * random.normal(size=ts.size), "blood": blood}


def write_tables(folder: Path) -> dict[str, tuple[str, ...]]:
    """Writes the tables; returns the words of each case's command."""
    random = np.random.default_rng(0)
    tables = {
        "decay": [decay(np.linspace(0, 8, 31), random)],
        "driven": [driven(np.linspace(0, 200, 2_000), random)],
        "noisy": [oscillator(np.linspace(0, 15, 50), random, 0.2)],
        "many": [oscillator(np.linspace(0, 20, 300), random, 0.02) for _ in range(16)],
        "subjects": [absorption(np.linspace(0, 12, 13), random) for _ in range(12)],
    }
    for name, records in tables.items():
        with open(folder / f"{name}.csv", "w") as file:
            file.write(",".join(["id", *records[0]]) + "\n")
            for number, record in enumerate(records):
                rows = np.stack(list(record.values()), axis=1)
                file.writelines(f"r{number}," + ",".join(f"{value:.6g}" for value in row) + "\n" for row in rows)
    return {
        "pendulum": ("data=pendulum",),
        "decay of 31 rows": (f"{folder}/decay.csv",),
        "driven, 2,000 rows": (f"{folder}/driven.csv", "data.inputs=[pump]", "data.states=[level]"),
        "50 noisy rows": (f"{folder}/noisy.csv",),
        "16 trajectories of 300 rows": (f"{folder}/many.csv",),
        "decay of 31 rows, its equation": (f"{folder}/decay.csv", *known("{x: -k*x}"), "+field.constants.k=1"),
        "12 subjects, their equations": (f"{folder}/subjects.csv", *known(ABSORPTION), "random=[ka,ke]"),
    }


def measure_run(root: Path, words: Sequence[str], cache: str) -> dict[str, float]:
    """Seconds to each of `FIGURES` that the run comes to."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": cache, "PYTHONUNBUFFERED": "1"}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "node_fit", *words, f"hydra.run.dir={run}"]
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=sys.stderr)

        def note(figure: str) -> None:
            seconds.setdefault(figure, time.perf_counter() - began)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(b"first answer:"):
                    note("answer")

        reader = threading.Thread(target=read)
        reader.start()
        while process.poll() is None:
            if (run / "plots" / "fit.png").is_file():
                note("picture")
            if (log := run / "metrics.csv").is_file() and log.read_bytes().count(b"\n") > 1:
                note("step")
            time.sleep(0.01)
        note("end")
        reader.join()
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} has failed.")
    return seconds


def spread(numbers: Sequence[float]) -> str:
    return f"{statistics.median(numbers):.1f} ({min(numbers):.1f} to {max(numbers):.1f})" if numbers else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to the first answer, the first step and the end of a run.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="another checkout to measure in turns")
    parser.add_argument("--only", nargs="+", help="words in the names of the cases to measure")
    parsed = parser.parse_args()
    roots = {"now": ROOT} | ({"before": parsed.before.resolve()} if parsed.before else {})
    with tempfile.TemporaryDirectory() as folder:
        cases = write_tables(Path(folder))
        names = [name for name in cases if not parsed.only or any(word in name for word in parsed.only)]
        found = {
            (name, f"{when}, {state}"): list[dict[str, float]]() for name in names for when in roots for state in STATES
        }
        for _, name, (when, root) in itertools.product(range(parsed.rounds), names, roots.items()):
            with tempfile.TemporaryDirectory() as cache:
                for state in STATES:
                    found[name, f"{when}, {state}"].append(measure_run(root, cases[name], cache))
    print(f"Load {os.getloadavg()[0]:.1f} at the end on {os.cpu_count()} cores, {parsed.rounds} rounds.\n")
    print("| run | when | first answer [s] | picture [s] | first step [s] | end [s] |")
    print("|---|---|---|---|---|---|")
    for (name, when), measured in found.items():
        cells = [spread([each[figure] for each in measured if figure in each]) for figure in FIGURES]
        print(f"| {name} | {when} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
