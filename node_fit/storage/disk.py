"""Writes files completely or not at all, and checks early what a disk may refuse later."""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_LOG = logging.getLogger(__name__)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ACCESS = (errno.EROFS, errno.EACCES, errno.EPERM)
OCCUPIED = (errno.ENOTDIR, errno.EEXIST)
PROBE_BYTES = ".room."
# The names of files that a process has open; they can't be replaced.
OPEN_FILE = re.compile(r"/dev/(fd/\d+|stdout|stderr)|/proc/[^/]+/fd/\d+")
# Writing a larger probe would make the user wait [bytes].
MOST_WRITTEN = 64 << 20


def write_file(path: Path, content: bytes) -> None:
    """Writes to a temporary name, flushes, and renames: a kill leaves the old file or the new one.

    A new file has the permissions that the user's umask gives; another keeps its own.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):  # no such file yet
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_output(path: Path, content: bytes) -> None:
    """Writes a file that the user has named: through a symbolic link to its target, and straight into a device."""
    if is_stream(path):
        with open(path, "wb") as file:
            file.write(content)
    else:
        write_file(Path(os.path.realpath(path)), content)


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or an open file, such as `/dev/stdout`, rather than a file of its own."""
    if OPEN_FILE.fullmatch(str(path.absolute())):
        return True
    return path.exists() and not path.is_dir() and not path.is_file()


def sweep(directory: Path, name: str) -> None:
    """Removes unfinished files of this name, or pattern of names, that killed processes left behind."""
    for path in directory.glob(f".{name}.????????"):
        path.unlink(missing_ok=True)


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Holds a lock while a block of code runs; the system releases it when the process ends, however it ends.

    **Arguments:**

    - `path`: the lock file; created if absent.
    - `wait`: whether to wait until another process releases the lock.

    **Returns:** whether the disk supports locks.

    **Raises:** `BlockingIOError` if another process holds the lock.
    """
    import fcntl

    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            raise
        except OSError as error:  # a network disk without locks
            DISK_LOG.warning(
                "%s can't be locked (%s); make sure that no second process writes there", path.parent, error
            )
            held = False
        yield held


def check_room(directory: Path, needed: int) -> None:
    """Checks that a directory has room for what a run will write.

    The free space that the system reports ignores quotas and other limits, so a part of it is actually written.

    **Arguments:**

    - `directory`: where the run will write.
    - `needed`: how much [bytes].

    **Raises:** `OSError` with a sentence that says how much is missing where, or that nothing can be written.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"{directory} has room for {megabytes(free)}, but this run needs about {megabytes(needed)} there; free "
            "some space, or write elsewhere with hydra.run.dir=FOLDER."
        )
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=PROBE_BYTES) as file:
            file.write(bytes(min(needed, MOST_WRITTEN)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = None  # the probe, which means nothing to the user
        raise OSError(explain_disk(error, directory)) from None


FOLDERS = "hydra.run.dir (hydra.sweep.dir with -m)"


def explain_disk(error: OSError, place: str | Path) -> str:
    """Explains a failed write, or a directory that can't be created, in one sentence.

    **Arguments:**

    - `error`: the error of the operating system.
    - `place`: where the run writes; a file that `error` names takes precedence.
    """
    if error.errno == errno.ENOENT and error.filename and not (folder := Path(error.filename).parent).is_dir():
        return f"{folder} is gone ({error.strerror}); {advice(error)}."
    place = error.filename or place
    reason = f"({error.strerror})"
    if error.errno in NO_SPACE:
        return f"{place} can't be written: the disk or a quota is full {reason}; {advice(error)}."
    if error.errno in NO_ACCESS:
        return f"{place} can't be opened {reason}; {advice(error)}."
    if error.errno in OCCUPIED:
        return f"{place} can't be created, since a file is in the way {reason}; {advice(error)}."
    if error.errno == errno.ENOENT and error.filename:
        return f"{place} can't be created {reason}; choose another {FOLDERS}."
    if error.errno == errno.EIO:
        return f"{place} can't be read or written {reason}; {advice(error)}."
    return str(error)


def advice(error: OSError) -> str:
    """What to do about a failed write."""
    if error.errno in NO_SPACE:
        return "free some space there"
    if error.errno in NO_ACCESS:
        return f"fix its permissions, or write to another {FOLDERS}"
    if error.errno in OCCUPIED:
        return f"choose another {FOLDERS}"
    if error.errno == errno.ENOENT:
        return "it was removed or renamed while the run wrote there, so put it back, or start the run again"
    return f"check the disk and its connection, or write to another {FOLDERS}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
