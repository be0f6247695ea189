"""Writing files whole or not at all, and what a disk may refuse, found out before it is needed."""

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SHUT = (errno.EROFS, errno.EACCES, errno.EPERM)
TAKEN = (errno.ENOTDIR, errno.EEXIST)
PROBE = ".room."
# A probe that really writes more than this would make the user wait.
MOST_WRITTEN = 64 << 20


def write(path: Path, content: bytes) -> None:
    """Writes to a temporary name, flushes, renames: a kill leaves the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sweep(directory: Path, name: str) -> None:
    """Removes what kills left of files of this name, or of a pattern of names, that were being written."""
    for path in directory.glob(f".{name}.????????"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Holds a lock for a block of code. It is the system's, so it ends with its process, however that ends.

    **Arguments:**

    - `path`: the lock's file; made if absent.
    - `wait`: until another process lets go of it.

    **Returns:** whether the disk has locks.

    **Raises:** `BlockingIOError` if another process holds it.
    """
    import fcntl

    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            raise
        except OSError as error:  # a network disk without locks
            LOG.warning("%s can't be locked (%s); let no second process write there", path.parent, error)
            held = False
        yield held


def check_room(directory: Path, needed: int) -> None:
    """Refuses a directory that can't take what is to come.

    The free space that a system tells is not what a quota or a limit leaves, so part of it is also written.

    **Arguments:**

    - `directory`: where it will be written.
    - `needed`: how much [bytes].

    **Raises:** `OSError` with a sentence that says how much is missing where, or that nothing can be written.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"{directory} has room for {megabytes(free)}, and this run needs about {megabytes(needed)} there; free "
            "some space, or write elsewhere by hydra.run.dir=FOLDER."
        )
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=PROBE) as file:
            file.write(bytes(min(needed, MOST_WRITTEN)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = None  # the probe, which the user does not know
        raise OSError(explain_disk(error, directory)) from None


def explain_disk(error: OSError, place: str | Path) -> str:
    """What a failed write, or a directory that can't be made, means for a run, in one sentence.

    **Arguments:**

    - `error`: what the system said.
    - `place`: where the run writes; what `error` names comes before it.
    """
    place = error.filename or place
    said = f"({error.strerror})"
    if error.errno in FULL:
        return f"{place} can't be written: the disk or a quota is full {said}; free some space there."
    if error.errno in SHUT:
        return f"{place} can't be opened {said}; allow it, or, if it is to be written, choose another hydra.run.dir."
    if error.errno in TAKEN:
        return f"{place} can't be made, since a file is in its way {said}; choose another hydra.run.dir."
    return str(error)


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
