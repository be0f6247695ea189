"""Whether a command is what loads this package, and what has to be settled before anything heavy is loaded if so."""

import gc
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path


def is_command() -> bool:
    """Whether `node-fit` or `python -m node_fit` was called, or one of its modules."""
    if sys.argv[:1] != ["-m"]:  # as Python calls a program while it looks for its module
        return Path(sys.argv[0] if sys.argv else "").stem == "node-fit"
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else ""
    return module.partition(".")[0] == "node_fit"


IS_COMMAND = is_command()

if IS_COMMAND:
    # A KeyboardInterrupt may be swallowed where it is raised, as in callbacks while modules load; the run would go on.
    # Training has a handler of its own, and launchers with processes of their own have Python's (`Leaderboard`).
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    # Imports and traces make many objects that stay: looking through them for garbage as often as Python does by itself
    # takes an eighth of the time to the first step.
    gc.set_threshold(50_000, 20, 100)
    # Before 0.11, JAX keeps no program that could call Python, as the checks of Equinox and Diffrax do to raise errors.
    # Diffrax checks of a solve what has been checked of the data; a check that fails gives NaN, which a fit survives.
    if tuple(map(int, version("jax").split(".")[:2])) < (0, 11):
        os.environ.setdefault("EQX_ON_ERROR", "nan")
