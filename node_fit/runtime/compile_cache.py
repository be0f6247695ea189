"""A folder of compiled programs, kept from one process to the next.

JAX finds a program by a hash of its code, of the versions of JAX and XLA, of their flags, and of the device. For a CPU,
that includes its kind and its whole instruction set, so machines may share a folder.
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

# Room for about ten thousand programs [bytes].
LARGEST = 2 << 30
# The folder of our own inside a folder that the user names: files are removed there and nowhere else.
OURS = "node_fit-programs"
# How JAX ends the names of its files.
ENTRIES = ("-cache", "-atime")
CACHE_WARNING = re.compile(r"Error (reading|writing) persistent compilation cache entry for '(.*?)': (.*)", re.DOTALL)


def keep_programs(setting: str | Literal[False]) -> None:
    """Tells JAX to keep compiled programs in a folder and to look there first; call it before anything is compiled.

    JAX's own settings in the environment take precedence. A folder that can't be used causes a warning and never fails
    the run.

    **Arguments:**

    - `setting`: `auto` for `JAX_COMPILATION_CACHE_DIR` or, if that is not set, the user's cache folder; a folder, in
      which a folder of our own is made; or False for none.
    """
    if not isinstance(setting, str):
        return jax.config.update("jax_enable_compilation_cache", False)
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A small program takes fifteen times as long to compile as to load, and there are many of them.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if setting == "auto" and jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    try:
        folder = user_folder() if setting == "auto" else Path(setting).expanduser().absolute() / OURS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room")
        prune(folder, LARGEST)
    except (OSError, RuntimeError) as error:
        LOG.warning("compiled programs are not kept (%s); set compile_cache to another folder, or to false", error)
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    drop_broken_entries(folder)


def user_folder() -> Path:
    """The user's cache folder for programs, by the XDG Base Directory Specification."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "node_fit" / "programs"


def prune(folder: Path, most: int) -> None:
    """Removes the least recently used programs, and no other file.

    **Arguments:**

    - `folder`: a folder of our own.
    - `most`: size that may stay [bytes].
    """
    with os.scandir(folder) as entries:
        files = [(entry.stat(), entry.path) for entry in entries if is_program(entry)]
    excess = sum(stat.st_size for stat, _ in files) - most
    for stat, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
        if excess <= 0:
            return
        Path(path).unlink(missing_ok=True)  # another process may have removed it first
        excess -= stat.st_size


def is_program(entry: os.DirEntry) -> bool:
    return entry.name.endswith(ENTRIES) and entry.is_file(follow_symlinks=False)


def drop_broken_entries(folder: Path) -> None:
    """Removes entries that JAX can't read or could not write completely, and would otherwise leave forever."""
    show = warnings.showwarning

    def shown(message, category, filename, lineno, file=None, line=None) -> None:
        trouble = CACHE_WARNING.match(str(message))
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
