"""Files that are either complete or rejected: raw content, and named arrays with a description.

Arrays are in the safetensors format, whose header holds JSON. The description includes a digest of the whole content.
Files of earlier schemas are upgraded to the current one, step by step.
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
# Names of files that a process has open; they can't be replaced.
OPEN_FILE = re.compile(r"/dev/(fd/\d+|stdout|stderr)|/proc/[^/]+/fd/\d+")
# Maximum size of a probe; writing a larger one would take noticeable time [bytes].
MOST_WRITTEN = 64 << 20
# Free space required by a command before it computes and writes a few files [bytes].
LEAST_ROOM = 1 << 16
# Maximum size of a header, well above any of ours [bytes]; reading one takes many times its size.
LARGEST_HEADER = 16 << 20


def write_file(path: Path, content: bytes) -> None:
    """Writes to a temporary name, flushes, and renames: a kill leaves the old file or the new one.

    A new file gets the permissions of the user's umask; an existing one keeps its own.
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
    """Sets the file name in errors of a block that writes this file, in place of any temporary name."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_output(path: Path, content: bytes) -> None:
    """Writes a file that the user has named: follows a symbolic link, and writes directly to a device."""
    if is_stream(path):
        with errors_of(path), open(path, "wb") as file:
            file.write(content)
    else:
        write_file(Path(os.path.realpath(path)), content)


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or an open file, such as `/dev/stdout`, rather than a regular file."""
    if OPEN_FILE.fullmatch(str(path.absolute())):
        return True
    return path.exists() and not path.is_dir() and not path.is_file()


def sweep(directory: Path, name: str) -> None:
    """Removes unfinished files of this name or pattern that killed processes left behind."""
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


# Config keys of the output folders of a run and of a multirun.
RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"


def check_room(directory: Path, needed: int, key: str = f"{RUN_FOLDER}=FOLDER") -> None:
    """Checks that a directory has room for the output of a run.

    The free space reported by the system ignores quotas and other limits, so this function actually writes a probe.

    **Arguments:**

    - `directory`: where the run will write.
    - `needed`: required space [bytes].
    - `key`: the setting that selects this directory.

    **Raises:** `OSError` with a sentence that states the free and the required space, or why writing fails.
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
    - `key`: the setting that selects this place.
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
    """Returns advice on a failed write."""
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
    """A file with other content than was packed; the message gives the reason."""


def pack(path: Path, content: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file; replaces an older one at `path` only once the new one is complete.

    **Arguments:**

    - `path`: where to write it.
    - `content`: description of the arrays, serializable as JSON.
    - `arrays`: the arrays, by name.

    **Raises:** `OSError` if it can't be written.
    """
    from safetensors.numpy import save

    # A single metadata key: the format does not order several, and equal contents must give equal files.
    header = json.dumps({"sha256": digest(content, arrays), **content})
    write_file(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"node_fit": header}))


def unpack(path: Path) -> tuple[Json, dict[str, np.ndarray]]:
    """Reads the description and the arrays of a file.

    **Raises:** `BadFile` unless the content is as it was packed.
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
    """Reads the digest and the description."""
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
# schema 1 of checkpoints, the first that all later versions read.
CHECKPOINT_STEPS: dict[int, Step] = {}


# Default values of fields that parts lacked in a schema. In 4: angles, bounds of inputs, rows between a start and the
# first scored row. In 5: the horizon of bands, and triggers. In 7: how held steps are taken. In 8: counts between rows,
# constants of groups of trajectories, and measurement noise.
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
    """Returns a step that changes the fields of each part, based on the name of its class."""

    def upgrade(node: Any) -> Any:
        if is_list(node):
            return [upgrade(item) for item in node]
        if not is_json(node):
            return node
        part = {key: upgrade(value) for key, value in node.items()}
        return part | {"fields": change(part["class"], part["fields"])} if "class" in part else part

    return lambda content, arrays: ({**content, "model": upgrade(content["model"])}, arrays)


def adding(lacked: Mapping[str, Json]) -> Step:
    """Returns a step that adds missing fields to parts, by class name."""
    return changing(lambda name, fields: fields | lacked.get(name, {}))


def known_starts(name: str, fields: Json) -> Json:
    """Upgrades initial states: schema 6 had one flag for all measured states, and none for hidden ones."""
    if name == "Fitted":
        return {key: value for key, value in fields.items() if key != "holds_absent"}
    if name != "Guess":
        return fields
    count, is_known = fields["measured"], fields["told"]
    absent = [value if is_known and index < count else None for index, value in enumerate(fields["absent"]["tuple"])]
    return {"measured": count, "absent": {"tuple": absent}}


MODEL_STEPS: dict[int, Step] = {schema: adding(lacked) for schema, lacked in LACKED.items()} | {
    6: changing(known_starts)
}


class OtherSchema(ValueError):
    """A file with a schema that this version can't read."""


def migrate(content: Json, arrays: dict[str, np.ndarray], steps: Mapping[int, Step], schema: int) -> Content:
    """Upgrades the description and arrays of a file to the current schema.

    **Arguments:**

    - `content`, `arrays`: as read, with the file's schema and the version of node_fit that wrote it.
    - `steps`: upgrades, by the schema that they start from.
    - `schema`: the current schema.

    **Raises:** `OtherSchema` that names the version to install.
    """
    current = content.get("schema")
    if not isinstance(current, int) or isinstance(current, bool):
        raise OtherSchema("it was written before version 0.2 of node_fit; read it with that version, or fit again.")
    current = max(-1, min(current, 2**31))  # an untrusted file can hold a number of any length
    if current > schema:
        raise OtherSchema(
            f"it has schema {current}, and this node_fit reads up to {schema}; {how_to_read(content.get('node_fit'))}."
        )
    while current < schema:
        if current not in steps:
            raise OtherSchema(
                f"it has schema {current}, of a node_fit before version 0.2; read it with that version, or fit again."
            )
        content, arrays = steps[current](content, arrays)
        current += 1
    return {**content, "schema": schema}, arrays


def how_to_read(version: object) -> str:
    """Returns the command that installs the version that wrote a file.

    It repeats only a version number, so that an untrusted file can't suggest other commands.
    """
    if isinstance(version, str) and re.fullmatch(r"[0-9][0-9a-zA-Z.+!-]{0,30}", version):
        return f"pip install 'node_fit>={version}'"
    return "pip install --upgrade node_fit"
