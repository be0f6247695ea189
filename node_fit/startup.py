"""Process settings of a command, before the heavy imports. `import node_fit` sets nothing."""

import atexit
import gc
import os
import runpy
import signal
import sys
import time
from importlib.metadata import version

from .runtime.operating_system import limit_of_memory, mapped_memory
from .runtime.serialization import __version__

# Start time of the command [s].
BEGAN = time.perf_counter()
# Memory mapped by the imports, and by a small run after them [bytes]. Each core adds threads, each with a stack and a
# heap of 64 MB.
CORES = os.cpu_count() or 1
IMPORTS = 0.4e9 + 0.1e9 * CORES
RUN = 1.2e9 + 0.3e9 * CORES


def run() -> None:
    """Runs the command `node-fit`, which is `python -m node_fit`."""
    runpy.run_module("node_fit", run_name="__main__", alter_sys=True)


def start_command() -> None:
    """Applies the settings of a command; prints the version and exits if requested."""
    if "--version" in sys.argv[1:]:
        print(__version__)
        raise SystemExit
    if lack := lacking_room(IMPORTS):
        sys.exit(f"error: {lack}")
    # Callbacks that run during imports can swallow a KeyboardInterrupt, and the run would continue. So exit directly.
    # Training installs its own handler. Launchers with worker processes get Python's handler back (`Leaderboard`).
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    # Imports and tracing create many long-lived objects. Collecting garbage at Python's default rate takes an eighth of
    # the time to the first step.
    gc.set_threshold(50_000, 20, 100)
    # Skip Python's garbage collection at exit, which takes more than half a second.
    atexit.register(gc.freeze)
    # Before 0.11, JAX does not cache programs that can call Python, such as the runtime checks of Equinox and Diffrax.
    # node_fit has already made Diffrax's checks of the data. A failed check gives NaN, which a fit survives.
    if tuple(map(int, version("jax").split(".")[:2])) < (0, 11):
        os.environ.setdefault("EQX_ON_ERROR", "nan")


def lacking_room(needed: float) -> str | None:
    """Returns an error text if a memory limit such as `ulimit -v` is too low; `None` if it is sufficient.

    If a mapping fails, libraries abort or, like OpenBLAS during loading, retry forever. This check runs before they
    load.

    **Arguments:** `needed`: additional memory to map [bytes].
    """
    most = limit_of_memory()
    needed += mapped_memory()
    if most is None or most >= needed:
        return None
    return (
        f"out of memory: this process may map {most / 1e9:.2g} GB, and a run needs {needed / 1e9:.2g} GB on this "
        "machine; raise the limit, for example with ulimit -v unlimited."
    )
