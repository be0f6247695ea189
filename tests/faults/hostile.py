"""A process that loads untrusted model files, and reports the memory, the time and the side effects of each load."""

import json
import sys
import time
from pathlib import Path

import node_fit as nf
from node_fit.storage.model_file import ModelFileError

# Python's audit events for anything beyond reading.
DEEDS = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect", "os.remove")


def watch(deeds: list[str]) -> None:
    def hook(event: str, arguments: tuple) -> None:
        if event in DEEDS or (event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
            deeds.append(f"{event} {arguments[0]!r}")

    sys.addaudithook(hook)


def memory(key: str) -> float:
    """This process's memory on Linux: current (`VmRSS`), or peak since the last reset (`VmHWM`) [MB]."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def reset() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def taken(path: Path) -> str:
    """The error message of a refused file, or an empty string if the file loads."""
    try:
        nf.load(path)
    except ModelFileError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    first, *others = map(Path, sys.argv[1:])
    assert taken(first) == "", "a valid file, which loads everything that any load needs"
    deeds: list[str] = []
    watch(deeds)
    told = {}
    for path in others:
        reset()
        before = memory("VmRSS")
        deeds.clear()
        began = time.process_time()
        sentence = taken(path)
        told[path.name] = {
            "sentence": sentence,
            "seconds": time.process_time() - began,
            "megabytes": memory("VmHWM") - before,
            "deeds": list(deeds),
        }
    print(json.dumps(told))
