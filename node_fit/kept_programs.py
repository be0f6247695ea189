"""Compiled programs, kept from one process for the next in a folder of the user's.

JAX finds a program by a hash of its code, of the versions of JAX and XLA, of their flags, and of the device: for a CPU,
of its kind and of all instructions that it has, so that machines may share a folder.
"""

import logging
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Literal

import jax

LOG = logging.getLogger(__name__)

# Some ten thousand programs [bytes].
MOST = 2 << 30
TROUBLE = re.compile(r"Error (reading|writing) persistent compilation cache entry for '(.*?)': (.*)", re.DOTALL)


def keep_programs(setting: str | Literal[False]) -> None:
    """Tells JAX where to keep what this process compiles, and to look there first; to be called before it compiles.

    JAX's own settings in the environment go first. A folder that is of no use costs a warning, never the run.

    **Arguments:**

    - `setting`: `auto` for `JAX_COMPILATION_CACHE_DIR` or, if that is not set, the user's cache folder; a folder; or
      False for none.
    """
    if not isinstance(setting, str):
        return jax.config.update("jax_enable_compilation_cache", False)
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A small program takes fifteen times as long to compile as to load, and there are many.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if setting == "auto" and jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    try:
        folder = user_folder() if setting == "auto" else Path(setting).expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room")
        prune(folder, MOST)
    except (OSError, RuntimeError) as error:
        LOG.warning("compiled programs are not kept (%s); choose where by compile_cache=FOLDER, or false", error)
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    mend(folder)


def user_folder() -> Path:
    """Where the user's programs keep what they can make again, by the XDG Base Directory Specification."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "node_fit" / "programs"


def prune(folder: Path, most: int) -> None:
    """Removes the programs that were not used for longest.

    **Arguments:**

    - `most`: what may stay [bytes].
    """
    with os.scandir(folder) as entries:
        files = [(entry.stat(), entry.path) for entry in entries if entry.is_file()]
    excess = sum(stat.st_size for stat, _ in files) - most
    for stat, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
        if excess <= 0:
            return
        Path(path).unlink(missing_ok=True)  # another process may have been quicker
        excess -= stat.st_size


def mend(folder: Path) -> None:
    """Removes what JAX can't read or could not write to its end, both of which it would leave for ever."""
    show = warnings.showwarning

    def shown(message, category, filename, lineno, file=None, line=None) -> None:
        trouble = TROUBLE.match(str(message))
        if trouble is None:
            return show(message, category, filename, lineno, file, line)
        doing, program, reason = trouble.groups()
        for path in folder.glob(f"{program}-*-cache"):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                LOG.debug("%s can't be removed", path)
        if doing == "writing":
            jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))
            LOG.warning("compiled programs are no longer kept in %s (%s)", folder, reason)
        return None

    warnings.filterwarnings("always", message="Error (reading|writing) persistent compilation cache")
    warnings.showwarning = shown
