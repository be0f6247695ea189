"""Long driven records, simulated with known noise, from their columns alone.

    python scripts/accuracy/long_records.py [--only NAME ...] [--seeds 1] [--rows N] [-- WORDS]

It runs the whole command on each record and prints a row for each: what was kept, the test error of all outputs and of
the best simple model over the noise, the verdict, and the seconds of the command, by the clock and of processors.
Modes have frequencies between 0.05 and 2.5 and damping ratios between 0.2 and 2 %, drawn anew for each seed; a weak
nonlinearity is a cubic part of the outputs. `--rows` shortens the records. Further words go to the command.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import butter, lfilter


@dataclass(frozen=True)
class LongRecord:
    """A record: its number of rows, and what makes inputs, outputs without noise, and the noise's deviation."""

    rows: int
    make: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    noise: float


def modal(modes: int, cubic: float) -> Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]:
    """A linear system of three inputs and outputs, whose outputs have a cubic part of a share of their spread."""

    def make(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        frequencies = rng.uniform(0.05, 2.5, modes)
        factors = np.exp((1j - rng.uniform(0.002, 0.02, modes)) * frequencies)
        into, out = rng.normal(size=(modes, 3)), rng.normal(size=(3, modes))
        out = out * np.exp(1j * rng.uniform(-0.3, 0.3, (3, modes)))
        us = rng.normal(size=(rows, 3))
        states = [lfilter([0, 1], [1, -f], (us @ b).astype(complex)) for f, b in zip(factors, into, strict=True)]
        ys = np.real(np.stack(states, axis=1) @ out.T)
        ys = ys / ys.std(axis=0)
        return us, ys + cubic * ys**3 / np.std(ys**3)

    return make


def coloured(rng: np.random.Generator, rows: int, band: float) -> np.ndarray:
    us = lfilter(*butter(3, band), rng.normal(size=rows))
    return us / us.std()


def circuit(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A resonant circuit of the second order with a weakly cubic capacitor; inputs are linear between rows."""
    us, x, ys, h = coloured(rng, rows, 0.4), np.zeros(2), np.empty(rows), 0.25

    def rates(x: np.ndarray, u: float) -> np.ndarray:
        return np.array([x[1], -0.5 * x[0] - 0.08 * x[1] - 0.02 * x[0] ** 3 + 0.35 * u])

    for row, (u, after) in enumerate(zip(us, np.append(us[1:], us[-1]), strict=True)):
        ys[row] = x[0]
        for part in range(4):
            begin, middle, end = (u + (after - u) * share / 4 for share in (part, part + 0.5, part + 1))
            first = rates(x, begin)
            second = rates(x + h / 2 * first, middle)
            third = rates(x + h / 2 * second, middle)
            x = x + h / 6 * (first + 2 * second + 2 * third + rates(x + h * third, end))
    return us[:, None], ys[:, None]


def chain(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A Wiener-Hammerstein chain: a saturation between two filters."""
    us = coloured(rng, rows, 0.5)
    between = lfilter(*butter(3, 0.15), us)
    between = between / between.std()
    return us[:, None], lfilter(*butter(3, 0.2), np.tanh(0.7 * between))[:, None]


RECORDS = {
    "20 modes": LongRecord(50_000, modal(20, 0.0), 0.02),
    "20 modes, weakly cubic": LongRecord(50_000, modal(20, 0.01), 0.02),
    "60 modes": LongRecord(50_000, modal(60, 0.0), 0.02),
    "60 modes, weakly cubic": LongRecord(50_000, modal(60, 0.01), 0.02),
    "circuit with a cubic term": LongRecord(100_000, circuit, 0.005),
    "Wiener-Hammerstein chain": LongRecord(50_000, chain, 0.01),
}


def run(record: LongRecord, seed: int, rows: int | None, words: list[str]) -> dict:
    """What the command says of a record."""
    rng = np.random.default_rng(seed)
    us, clean = record.make(rng, rows or record.rows)
    deviation = record.noise * clean.std(axis=0)
    ys = clean + deviation * rng.normal(size=clean.shape)
    inputs = [f"u{index + 1}" for index in range(us.shape[1])]
    outputs = [f"y{index + 1}" for index in range(ys.shape[1])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.csv"
        table = np.concatenate([us, ys], axis=1)
        np.savetxt(path, table, fmt="%.6g", delimiter=",", header=",".join([*inputs, *outputs]), comments="")
        asked = [f"data.inputs=[{','.join(inputs)}]", f"data.states=[{','.join(outputs)}]", "data.step=1"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "node_fit", str(path), *asked, f"hydra.run.dir={folder}/run", *words]
        ended = subprocess.run(command, capture_output=True, text=True)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode:
            raise RuntimeError(f"the command failed: {ended.stderr[-2000:]}")
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    kept = next((each["name"] for each in summary["attempts"] if each["kept"]), "as chosen")
    simple = {kind: over_noise(scores["test"], outputs, deviation) for kind, scores in summary["baselines"].items()}
    return {
        "kept": f"{kept}, {summary['choices'].get('hidden', {}).get('value', '-')} hidden",
        "error": over_noise(summary["metrics"]["test"], outputs, deviation),
        "simple": min(simple.values()),
        "verdict": summary["diagnosis"]["kind"],
        "seconds": seconds,
        "used": used,
    }


def over_noise(scores: dict, outputs: list[str], deviation: np.ndarray) -> float:
    """The root mean square over the outputs of their errors over the noise."""
    rmse = [scores["channels"][name]["rmse"] for name in outputs]
    return float(np.sqrt(np.mean((np.array(rmse, float) / deviation) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(RECORDS), default=list(RECORDS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int)
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    print("| record | kept | error over noise | best simple model | verdict | s | s of processors |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in given.only:
        for seed in range(given.seeds):
            found = run(RECORDS[name], seed, given.rows, given.words)
            print(
                f"| {name} | {found['kept']} | {found['error']:.3g} | {found['simple']:.3g} | {found['verdict']} | "
                f"{found['seconds']:.0f} | {found['used']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
