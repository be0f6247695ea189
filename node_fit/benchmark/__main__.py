"""The command `python -m node_fit.benchmark`: published protocols, ours beside other figures."""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..runtime.serialization import __version__
from .discovering import run_discovery
from .protocols import HEAD, PROTOCOLS, Protocol, Summary, odebench_lines, table_rows

NUMBERED = [name for name in PROTOCOLS if name.startswith("odebench_")]
CHOICES = (
    f"all, {', '.join(name for name in PROTOCOLS if name not in NUMBERED)}, odebench (its {len(NUMBERED)} equations), "
    f"or one of {NUMBERED[0]} to {NUMBERED[-1]}"
)


def main() -> None:
    """Parses the command line, runs the protocols and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.benchmark",
        description="Run published protocols, and print the results beside other figures and their sources.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME", help=CHOICES)
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the measured records (datasets)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further words of each command")
    parser.add_argument(
        "--method", choices=("fit", "discover"), default="fit", help="of ODEBench: find equations (fit)"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="with --method discover: rows times 1 + noise (0)")
    parser.add_argument("--rows", choices=("all", "half"), default="all", help="with --method discover (all)")
    parser.add_argument(
        "--effort", choices=("quick", "normal", "thorough"), default="normal", help="of discover (normal)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the noise and the rows of --method discover (0)")
    given = parser.parse_args()
    try:
        if given.method == "discover":
            numbers = [int(name.removeprefix("odebench_")) for name in choose_problems(given.names) if name in NUMBERED]
            run_discovery(numbers, given.noise, given.rows, given.effort, given.seed)
            return
        failed = run_all(choose_problems(given.names), given.data, given.set)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(1 if failed else 0)


def choose_problems(names: Sequence[str]) -> dict[str, Protocol]:
    """The protocols of these names.

    **Raises:** `ValueError` if there is no such protocol.
    """
    found = {name: [each for each in PROTOCOLS if is_one(each, name)] for name in names}
    for name, protocols in found.items():
        if not protocols:
            raise ValueError(f"there is no protocol {name!r}; choose {CHOICES}.")
    return {each: PROTOCOLS[each] for protocols in found.values() for each in protocols}


def is_one(protocol: str, name: str) -> bool:
    """Whether a protocol has this name, or is one of a family of this name."""
    return name == "all" or f"{protocol}_".startswith(f"{name}_")


def run_all(protocols: dict[str, Protocol], data: Path, words: Sequence[str]) -> list[str]:
    """Runs protocols and prints a line for each figure; those whose data are absent are left out, and named.

    **Returns:** the names of those whose command failed.
    """
    print(HEAD, flush=True)
    absent, odebench, failed = [], [], []
    for name, protocol in protocols.items():
        if protocol.file and not (data / protocol.file).is_file():
            absent.append(f"{name}: left out, since {data / protocol.file} is absent; the data: {protocol.source}")
            continue
        began = time.perf_counter()
        try:
            summary = run_problem(protocol, data, words)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        print(*table_rows(name, protocol, summary), sep="\n", flush=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if name.startswith("odebench"):
            odebench.append(summary)
    if len(odebench) > 1:
        print(*odebench_lines(odebench), sep="\n")
    for line in absent:
        print(line, file=sys.stderr)
    return failed


def run_problem(protocol: Protocol, data: Path, words: Sequence[str]) -> Summary:
    """Runs the command of a protocol in a process and a folder of its own; returns its `summary.json`.

    **Raises:** `ValueError` with what the command said if it fails.
    """
    with TemporaryDirectory() as folder:
        path = (data / protocol.file).absolute() if protocol.file else Path(folder) / "table.csv"
        if protocol.make:
            protocol.make(path)
        command = [sys.executable, "-m", "node_fit", *protocol.words, f"data.path={path}", "hydra.run.dir=run", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        summary = Path(folder) / "run" / "summary.json"
        if done.returncode or not summary.is_file():
            said = "\n".join([*done.stdout.splitlines()[-10:], done.stderr.strip()])
            raise ValueError(f"the command ended with exit code {done.returncode}: {shlex.join(command[1:])}\n{said}")
        found = json.loads(summary.read_text())
        return found if protocol.judge is None else found | {"judged": protocol.judge(summary.parent)}


if __name__ == "__main__":
    main()
