"""Measures how long commands are silent, and how long they take to end after Ctrl-C.

    python scripts/faults/waits.py [--moments 5] [--only 'data=pendulum']

runs each command once, noting when it prints, and then again with SIGINT at random moments. It prints a table in
Markdown: seconds of the whole command, its longest silence, and the times from SIGINT to the end. A command should be
silent for at most 10 s, and end within 2 s. It exits with 1 if one is not, or if a command fails.
"""

import argparse
import math
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

COMMANDS = (
    "data=pendulum",
    "",
    "discover data=lynx_hare",
    "data=motor",
    "experiment=lotka_volterra_known",
    "data=oscillator",
    "data=robertson",
    "field=sparse",
    "data=spiral ensemble.size=4",
    "data=spiral effort=thorough",
    "doses.csv field=known 'field.equations={gut: -ka*gut, c: ka*gut/v - ke*c}' 'random=[ke,v]' "
    "'+field.constants={ka: 1.0, ke: 0.1, v: 10.0}' restarts=3",
    "sample decay",
)
# What commands read, made before they are timed: a run, and a table of doses.
DECAY = "decay.csv field=known 'field.equations={x: -k*x}' +field.constants.k=1"
SUBJECTS, TIMES = 12, (0.5, 1.0, 2.0, 4.0, 8.0)
MOST_SILENT, MOST_TO_THE_END = 10.0, 2.0


def prepare(words: str, folder: Path) -> None:
    """Writes what a command reads."""
    rng = random.Random(0)
    if words.startswith("doses.csv"):
        lines = ["ID,TIME,DV,AMT,EVID,CMT"]
        for subject in range(1, SUBJECTS + 1):
            ka, ke, v = 1.2, 0.2 * math.exp(rng.gauss(0, 0.3)), 20 * math.exp(rng.gauss(0, 0.2))
            lines.append(f"{subject},0,.,100,1,1")
            for time_after in TIMES:
                c = 100 * ka / (v * (ka - ke)) * (math.exp(-ke * time_after) - math.exp(-ka * time_after))
                lines.append(f"{subject},{time_after},{c + rng.gauss(0, 0.05):.4f},0,0,2")
        (folder / "doses.csv").write_text("\n".join(lines) + "\n")
    if words.startswith("sample"):
        rows = [f"{0.1 * row},{math.exp(-0.05 * row) + rng.gauss(0, 0.02)}" for row in range(60)]
        (folder / "decay.csv").write_text("\n".join(["t,x", *rows]) + "\n")
        with begin(f"{DECAY} hydra.run.dir=decay", folder) as process:
            process.communicate()


def begin(words: str, folder: Path) -> subprocess.Popen[bytes]:
    first, *rest = shlex.split(words) or [""]
    module = [f"node_fit.{first}", *rest] if first in ("discover", "sample") else ["node_fit", *shlex.split(words)]
    command = [sys.executable, "-u", "-m", *module]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def watch(process: subprocess.Popen[bytes]) -> tuple[float, float, str]:
    """Seconds until the end, the longest silence, and the line before it."""
    assert process.stdout is not None
    began = last = time.monotonic()
    longest, before, line = 0.0, "the beginning", "the beginning"
    for raw in process.stdout:
        now = time.monotonic()
        if now - last > longest:
            longest, before = now - last, line
        last, line = now, raw.decode(errors="replace").strip()
    process.wait()
    now = time.monotonic()
    if now - last > longest:
        longest, before = now - last, line
    return now - began, longest, before


def interrupt(words: str, folder: Path, seconds: float) -> float:
    """Seconds from SIGINT to the end of a command that has run for some."""
    process = begin(words, folder)
    assert process.stdout is not None
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    reader.start()
    try:
        process.wait(seconds)
        return 0.0
    except subprocess.TimeoutExpired:
        pass
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait()
    return time.monotonic() - sent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--moments", type=int, default=5)
    options.add_argument("--only", nargs="+", default=list(COMMANDS))
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    rng, wrong = random.Random(given.seed), False
    print("| command | seconds | longest silence | after | SIGINT to the end |\n|---|---|---|---|---|")
    for words in given.only:
        with tempfile.TemporaryDirectory() as folder:
            prepare(words, Path(folder))
            process = begin(words, Path(folder))
            whole, silent, after = watch(process)
            if process.returncode:
                sys.exit(f"{words!r} failed with {process.returncode}: {after}")
            ends = [interrupt(words, Path(folder), rng.uniform(1.0, whole)) for _ in range(given.moments)]
        shown = ", ".join(f"{seconds:.1f}" for seconds in sorted(ends))
        print(f"| `{words or 'no words'}` | {whole:.0f} | {silent:.1f} | {after[:60]} | {shown} |", flush=True)
        wrong |= silent > MOST_SILENT or max(ends, default=0.0) > MOST_TO_THE_END
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
