"""Whether a command is what loads this package, and what has to be settled before anything heavy is loaded if so."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

# While `python -m` looks for a module, it calls the program so.
IS_COMMAND = sys.argv[:1] == ["-m"] or Path(sys.argv[0] if sys.argv else "").stem == "node-fit"

# Before 0.11, JAX keeps no program that could call Python, and the checks of Equinox and Diffrax raise errors from there.
# What they check of a solve is checked of the data; a check that fails makes the numbers NaN, which a fit survives.
if IS_COMMAND and tuple(map(int, version("jax").split(".")[:2])) < (0, 11):
    os.environ.setdefault("EQX_ON_ERROR", "nan")
