"""Measures the time to the first training step, with an empty compile cache and with the cache of an earlier process.

    python scripts/speed/cold_and_warm_start.py --rounds 5

The time runs from the start of the process to the first row of its log, after one training step. It includes imports,
data, validation and all compilation. Each round takes every case in turn, with an empty cache. The script also reports
CPU time, because wall-clock time depends on the other load of the machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "lynx and hare": (),
    "lynx and hare, direct": ("recipe=direct",),
    "oscillator": ("data=oscillator",),
    "oscillator, direct": ("data=oscillator", "recipe=direct"),
    "oscillator, direct, Adam, x64": ("data=oscillator", "recipe=direct", "optimizer=adam", "precision=x64"),
    "pendulum, hidden, encoder": ("data=pendulum", "data.states=[angle]", "hidden=1", "start=encoder"),
}
ROOT = Path(__file__).parents[2]


def first_step(arguments: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Wall-clock and CPU seconds until a process has taken its first step; the process is then killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    with tempfile.TemporaryDirectory(dir=folder) as run, open(Path(run) / "output", "w+") as output:
        command = [sys.executable, "-m", "node_fit", *arguments, "training.chunk_steps=1", f"hydra.run.dir={run}/run"]
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        while rows(Path(run) / "run" / "metrics.csv") < 2:
            if process.poll() is not None:
                raise SystemExit(Path(output.name).read_text())
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        process.kill()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return seconds, usage.ru_utime + usage.ru_stime


def rows(log: Path) -> int:
    return log.read_text().count("\n") if log.is_file() else 0


def spread(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to the first training step, of a first and a second process.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parsed = parser.parse_args()
    taken = {name: ([], []) for name in parsed.only}
    loads = [os.getloadavg()[0]]
    for _ in range(parsed.rounds):
        for name in parsed.only:
            with tempfile.TemporaryDirectory() as folder:
                for process in taken[name]:
                    process.append(first_step(CASES[name], Path(folder)))
            loads.append(os.getloadavg()[0])
    print(f"Load {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores, {parsed.rounds} rounds.\n")
    print("| run | second over first | CPU time | first [s] | CPU time | second [s] | CPU time |")
    print("|---|---|---|---|---|---|---|")
    for name, (first, second) in taken.items():
        ratios = [[b[i] / a[i] for a, b in zip(first, second, strict=True)] for i in (0, 1)]
        figures = [*ratios, *([each[i] for each in process] for process in (first, second) for i in (0, 1))]
        print(f"| {name} | {' | '.join(spread(each) for each in figures)} |")


if __name__ == "__main__":
    main()
