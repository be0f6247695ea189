"""Whether a command is what loads this package, and what has to be settled before anything heavy is loaded if so."""

import gc
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

# While `python -m` looks for a module, it calls the program so.
IS_COMMAND = sys.argv[:1] == ["-m"] or Path(sys.argv[0] if sys.argv else "").stem == "node-fit"

if IS_COMMAND:
    # A KeyboardInterrupt that Ctrl-C raises while modules are loaded may be swallowed there, and the run goes on.
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    # Imports and traces make many objects that stay: looking through them for garbage as often as Python does by itself
    # takes an eighth of the time to the first step.
    gc.set_threshold(50_000, 20, 100)
    # Before 0.11, JAX keeps no program that could call Python, as the checks of Equinox and Diffrax do to raise errors.
    # Diffrax checks of a solve what has been checked of the data; a check that fails gives NaN, which a fit survives.
    if tuple(map(int, version("jax").split(".")[:2])) < (0, 11):
        os.environ.setdefault("EQX_ON_ERROR", "nan")
