"""Makes hostile files, reads each as a user would, and prints what that costs and how it ends.

python scripts/faults/hostile_files.py              # all, about two minutes
python scripts/faults/hostile_files.py YAML MATLAB  # those whose names contain one of these

Each is read in a process of its own, which a signal ends after a while. The seconds are of its processor; the megabytes
are what it takes beyond a process that reads nothing. The exit code is 1 if one ends otherwise than in a sentence, or
takes more than 2 s or 500 MB.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.hostile_files import HOSTILE_FILES, HostileFile  # noqa: E402
from helpers.hostile_tables import HOSTILE_TABLES  # noqa: E402

MAX_SECONDS, MAX_MEGABYTES, MAX_CHARACTERS = 2.0, 500.0, 500
# Of the processor, after which the system ends a process, and of memory that it may ask for beyond that at its start.
LIMIT_SECONDS, LIMIT_BYTES = 20, 4 << 30


class Cost(NamedTuple):
    """How a reading ended, and what it took."""

    sentence: str
    seconds: float
    megabytes: float


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="parts of the names of the files to try; all if absent")
    wanted = options.parse_args().names
    every = {**HOSTILE_FILES, **HOSTILE_TABLES}
    chosen = {name: each for name, each in every.items() if not wanted or any(part in name for part in wanted)}
    width, wrong = max(map(len, chosen), default=0), 0
    # Loads what the first use of each reader loads, and takes memory for the base line.
    with tempfile.TemporaryDirectory(prefix="node_fit-hostile-") as folder:
        base = measure(HostileFile(lambda path: path, warm_up, ""), Path(folder)).megabytes
    print(f"{'file':<{width}}  {'s':>5}  {'MB':>5}  end")
    for name, hostile in chosen.items():
        with tempfile.TemporaryDirectory(prefix="node_fit-hostile-") as folder:
            cost = measure(hostile, Path(folder))
        is_right = (
            hostile.reason in cost.sentence
            and "\n" not in cost.sentence
            and len(cost.sentence) < MAX_CHARACTERS
            and cost.seconds < MAX_SECONDS
            and cost.megabytes - base < MAX_MEGABYTES
        )
        wrong += not is_right
        mark = "" if is_right else "WRONG: "
        shown = cost.sentence.replace(str(folder), "FOLDER").replace("\n", " ")[:110]
        print(f"{name:<{width}}  {cost.seconds:5.2f}  {max(cost.megabytes - base, 0):5.0f}  {mark}{shown}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} end in a sentence within {MAX_SECONDS:g} s and {MAX_MEGABYTES:g} MB")
    return 1 if wrong else 0


def warm_up(folder: Path) -> None:
    """Reads a problem and a table that are right."""
    from helpers.petab import write_problem

    import node_fit

    node_fit.read_petab(write_problem(folder / "right"))
    (folder / "t.csv").write_text("t,x\n0,1\n1,2\n")
    node_fit.read_table(folder / "t.csv", time="t", states=["x"])


def measure(hostile: HostileFile, folder: Path) -> Cost:
    """Writes a file, and reads it in a child of this process."""
    path = hostile.write(folder)
    warm = folder / "warm"
    warm.mkdir()
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        warm_up(warm)
        began = time.process_time()
        limit = int(began) + LIMIT_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        asked = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (asked + LIMIT_BYTES, asked + LIMIT_BYTES))
        try:
            hostile.read(path)
            text = "it was read"
        except (ValueError, OSError) as error:
            text = str(error)
        except BaseException:
            text = traceback.format_exc()
        os.write(question, f"{time.process_time() - began}\n{text[:20_000]}".encode())
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as file:
        told = file.read().decode()
    _, status, usage = os.wait4(child, 0)
    seconds, _, sentence = told.partition("\n")
    megabytes = usage.ru_maxrss / 1024
    if not told:
        return Cost(f"the process was ended (status {status})", usage.ru_utime + usage.ru_stime, megabytes)
    return Cost(sentence, float(seconds), megabytes)


if __name__ == "__main__":
    sys.exit(main())
