"""Files that are complete or not read at all: any content, and named arrays with a description of them.

Arrays are in the safetensors format, whose header holds JSON. The description includes a digest of the whole content.
Files of earlier schemas are upgraded to the present one, step by step.
"""

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.operating_system import lock_file
from ..runtime.serialization import Json, is_json, is_list
from ..runtime.validation import MAX_NAME_BYTES

DISK_LOG = logging.getLogger(__name__)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ACCESS = (errno.EROFS, errno.EACCES, errno.EPERM)
OCCUPIED = (errno.ENOTDIR, errno.EEXIST)
PROBE_BYTES = ".room."
# The names of files that a process has open; they can't be replaced.
OPEN_FILE = re.compile(r"/dev/(fd/\d+|stdout|stderr)|/proc/[^/]+/fd/\d+")
# Writing a larger probe would make the user wait [bytes].
MOST_WRITTEN = 64 << 20
# What a command that writes a few files asks for before it computes them [bytes].
LEAST_ROOM = 1 << 16
# No header of ours comes near this [bytes]; reading one takes many times its size.
LARGEST_HEADER = 16 << 20


def write_file(path: Path, content: bytes) -> None:
    """Writes to a temporary name, flushes, and renames: a kill leaves the old file or the new one.

    A new file has the permissions that the user's umask gives; another keeps its own.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with errors_of(path):
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


@contextmanager
def errors_of(path: Path) -> Generator[None]:
    """Makes the errors of a block that writes a file name that file, and no other that it writes on the way."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_output(path: Path, content: bytes) -> None:
    """Writes a file that the user has named: through a symbolic link to its target, and straight into a device."""
    if is_stream(path):
        with errors_of(path), open(path, "wb") as file:
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
def lock(path: Path, *, wait: bool = False) -> Generator[bool]:
    """Holds a lock while a block of code runs; the system releases it when the process ends, however it ends.

    **Arguments:**

    - `path`: the lock file; created if absent.
    - `wait`: whether to wait until another process releases the lock.

    **Returns:** whether the disk supports locks.

    **Raises:** `BlockingIOError` if another process holds the lock.
    """
    with open(path, "a") as file:
        try:
            lock_file(file, wait=wait)
            held = True
        except BlockingIOError:
            raise
        except OSError as error:  # a network disk without locks
            DISK_LOG.warning(
                "%s can't be locked (%s); make sure that no second process writes there", path.parent, error
            )
            held = False
        yield held


# What says where a run writes, and where a multirun does.
RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"


def check_room(directory: Path, needed: int, key: str = f"{RUN_FOLDER}=FOLDER") -> None:
    """Checks that a directory has room for what a run will write.

    The free space that the system reports ignores quotas and other limits, so a part of it is actually written.

    **Arguments:**

    - `directory`: where the run will write.
    - `needed`: how much [bytes].
    - `key`: what says that it shall write there.

    **Raises:** `OSError` with a sentence that says how much is missing where, or that nothing can be written.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            f"{directory} has room for {megabytes(free)}, but this run needs about {megabytes(needed)} there; free "
            f"some space, or write elsewhere with {key}."
        )
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=PROBE_BYTES) as file:
            file.write(bytes(min(needed, MOST_WRITTEN)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = None  # the probe, which means nothing to the user
        raise OSError(explain_disk(error, directory, key.partition("=")[0])) from None


FOLDERS = f"{RUN_FOLDER} ({SWEEP_FOLDER} with -m)"


def explain_disk(error: OSError, place: str | Path, key: str = FOLDERS) -> str:
    """Explains a failed write, or a directory that can't be created, in one sentence.

    **Arguments:**

    - `error`: the error of the operating system.
    - `place`: where the run writes; a file that `error` names takes precedence.
    - `key`: what says that it shall write there.
    """
    if error.errno == errno.ENOENT and error.filename and not (folder := Path(error.filename).parent).is_dir():
        return f"{folder} is gone ({error.strerror}); {advice(error, key)}."
    place = error.filename or place
    reason = f"({error.strerror})"
    if error.errno in NO_SPACE:
        return f"{place} can't be written: the disk or a quota is full {reason}; {advice(error, key)}."
    if error.errno in NO_ACCESS:
        return f"{place} can't be opened {reason}; {advice(error, key)}."
    if error.errno in OCCUPIED:
        return f"{place} can't be created, since a file is in the way {reason}; {advice(error, key)}."
    if error.errno == errno.EISDIR:
        return f"{error.filename2 or place} can't be written, since it is a folder {reason}; remove or rename it."
    if error.errno == errno.ENOENT and error.filename:
        return f"{place} can't be created {reason}; choose another {key}."
    if error.errno == errno.EIO:
        return f"{place} can't be read or written {reason}; {advice(error, key)}."
    if error.errno == errno.ENAMETOOLONG:
        return f"{str(place)[:80]}... can't be a path {reason}; {advice(error, key)}."
    return str(error)


def advice(error: OSError, key: str = FOLDERS) -> str:
    """What to do about a failed write."""
    if error.errno in NO_SPACE:
        return "free some space there"
    if error.errno in NO_ACCESS:
        return f"fix its permissions, or write to another {key}"
    if error.errno in OCCUPIED:
        return f"choose another {key}"
    if error.errno == errno.ENOENT:
        return "it was removed or renamed while the run wrote there, so put it back, or start the run again"
    if error.errno == errno.ENAMETOOLONG:
        return f"a file or folder may have a name of at most {MAX_NAME_BYTES} bytes"
    return f"check the disk and its connection, or write to another {key}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


class BadFile(ValueError):
    """A file that does not hold what was packed; the message gives the reason."""


def pack(path: Path, content: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file; replaces an older one at `path` only once the new one is complete.

    **Arguments:**

    - `path`: where to write it.
    - `content`: description of the arrays, which JSON can hold.
    - `arrays`: the arrays, by name.

    **Raises:** `OSError` if it can't be written.
    """
    from safetensors.numpy import save

    # One metadata key, since the format does not order several and equal contents must give equal files.
    header = json.dumps({"sha256": digest(content, arrays), **content})
    write_file(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"node_fit": header}))


def unpack(path: Path) -> tuple[Json, dict[str, np.ndarray]]:
    """Reads the description and the arrays of a file.

    **Raises:** `BadFile` unless everything is as it was packed.
    """
    from safetensors import SafetensorError, safe_open

    expected, content = header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadFile(f"it is truncated, or has another format ({error})") from None
    if expected != digest(content, arrays):
        raise BadFile("its content does not match its digest")
    return content, arrays


def peek(path: Path) -> Json:
    """Reads the description only; without the arrays, the digest is not verified.

    **Raises:** `BadFile` if it can't be read.
    """
    return header(path)[1]


def header(path: Path) -> tuple[str, Json]:
    """The digest and the description."""
    from safetensors import SafetensorError, safe_open

    try:
        check_length(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadFile(f"it is truncated, or has another format ({error})") from None
    if "node_fit" not in metadata:
        raise BadFile("it holds arrays, but nothing that node_fit wrote")
    try:
        content = json.loads(metadata["node_fit"])
        return content.pop("sha256"), content
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadFile(f"its header can't be read ({error!r})") from None


def check_length(path: Path) -> None:
    """Rejects a file whose first eight bytes, the length of its header, are implausible."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    size = path.stat().st_size
    if length > size - 8:
        raise ValueError(f"it has {size} bytes")
    if length > LARGEST_HEADER:
        raise ValueError(f"its header would have {length} bytes")


def digest(content: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(json.dumps(content).encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name}{array.dtype}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


Content = tuple[Json, dict[str, np.ndarray]]
Step = Callable[[Json, dict[str, np.ndarray]], Content]

# By the schema that a step upgrades from; the step returns the next one. Version 0.2 wrote schema 4 of models and
# schema 1 of checkpoints: the first that every later version reads.
CHECKPOINT_STEPS: dict[int, Step] = {}


# What parts lacked in a schema. In 4: angles, bounds of inputs, rows between a start and the first that counts. In 5:
# the time up to which there are bands, and triggers. In 7: how held steps are taken. In 8: counts between rows,
# constants of groups of trajectories, and the noise of measurements.
LACKED: dict[int, dict[str, Json]] = {
    4: {"Scaler": {"input_bounds": {"tuple": []}, "turns": {"tuple": []}}, "Encoder": {"washed": 0}},
    5: {"Ensemble": {"horizon": None, "gain": 1.0}, "Known": {"triggers": {"tuple": []}}},
    7: {"Solver": {"march": "auto"}},
    8: {
        "Scaler": {"counted": {"tuple": []}, "trajectories": {"tuple": []}},
        "Constants": {"local": {"tuple": []}},
        "NeuralODE": {"noise": None},
    },
}


def changing(change: Callable[[str, Json], Json]) -> Step:
    """A step that changes the fields of each part, given the name of its class."""

    def upgraded(node: Any) -> Any:
        if is_list(node):
            return [upgraded(each) for each in node]
        if not is_json(node):
            return node
        found = {key: upgraded(value) for key, value in node.items()}
        return found | {"fields": change(found["class"], found["fields"])} if "class" in found else found

    return lambda content, arrays: ({**content, "model": upgraded(content["model"])}, arrays)


def adding(lacked: Mapping[str, Json]) -> Step:
    """A step that gives parts, by the names of their classes, fields that they lack."""
    return changing(lambda name, fields: fields | lacked.get(name, {}))


def known_starts(name: str, fields: Json) -> Json:
    """Schema 6 knew one start for all measured states, and none of a hidden one."""
    if name == "Fitted":
        return {key: value for key, value in fields.items() if key != "holds_absent"}
    if name != "Guess":
        return fields
    count, told = fields["measured"], fields["told"]
    absent = [value if told and at < count else None for at, value in enumerate(fields["absent"]["tuple"])]
    return {"measured": count, "absent": {"tuple": absent}}


MODEL_STEPS: dict[int, Step] = {schema: adding(lacked) for schema, lacked in LACKED.items()} | {
    6: changing(known_starts)
}


class OtherSchema(ValueError):
    """A file of a schema that this version can't read."""


def migrate(content: Json, arrays: dict[str, np.ndarray], steps: Mapping[int, Step], schema: int) -> Content:
    """The description and arrays of a file in the present schema.

    **Arguments:**

    - `content`, `arrays`: as read, with the file's schema and the version of node_fit that wrote it.
    - `steps`: upgrades, by the schema that each one starts from.
    - `schema`: the present schema.

    **Raises:** `OtherSchema` that names the version to install.
    """
    found = content.get("schema")
    if not isinstance(found, int) or isinstance(found, bool):
        raise OtherSchema("it was written before version 0.2 of node_fit; read it with that version, or fit again.")
    found = max(-1, min(found, 2**31))  # an untrusted file may have a number of any length
    if found > schema:
        raise OtherSchema(
            f"it has schema {found}, and this node_fit reads up to {schema}; {how_to_read(content.get('node_fit'))}."
        )
    while found < schema:
        if found not in steps:
            raise OtherSchema(
                f"it has schema {found}, of a node_fit before version 0.2; read it with that version, or fit again."
            )
        content, arrays = steps[found](content, arrays)
        found += 1
    return {**content, "schema": schema}, arrays


def how_to_read(version: object) -> str:
    """The command that installs the version that wrote a file.

    Only a version number is repeated, since an untrusted file must not tell the user what to type.
    """
    if isinstance(version, str) and re.fullmatch(r"[0-9][0-9a-zA-Z.+!-]{0,30}", version):
        return f"pip install 'node_fit>={version}'"
    return "pip install --upgrade node_fit"
