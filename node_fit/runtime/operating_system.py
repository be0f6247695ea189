"""Functions that differ between operating systems: file locks, and limits of a process's memory."""

import contextlib
import os
import time
from pathlib import Path
from typing import IO

# Seconds between two attempts to lock a file, if the system can't wait by itself.
RETRY_SECONDS = 0.05


def lock_file(file: IO[str], *, wait: bool) -> None:
    """Locks an open file until it is closed, or its process ends.

    **Arguments:** `wait`: whether to wait until another process releases it.

    **Raises:** `BlockingIOError` if another process holds it; `OSError` if the disk has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return lock_first_byte(file, wait=wait)
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def lock_first_byte(file: IO[str], *, wait: bool) -> None:
    """Locks a file on Windows, which locks bytes of a file; see `lock_file`.

    **Raises:** `OSError` if the system has no such locks either.
    """
    try:
        import msvcrt
    except ImportError:
        raise OSError("this system has no locks of files") from None
    while True:
        file.seek(0)
        try:
            return msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        except PermissionError:
            if not wait:
                raise BlockingIOError("another process holds the lock") from None
            time.sleep(RETRY_SECONDS)


def limit_of_memory() -> float | None:
    """Returns a process's limit of mapped memory, as from `ulimit -v` [bytes]; None if unlimited or unknown."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else float(most)


def mapped_memory() -> float:
    """Returns the memory that this process maps [bytes]; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return float(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0.0
