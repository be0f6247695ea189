"""Named arrays and a description of them in one file, which is complete or not read at all.

The file is in the safetensors format, whose header holds JSON. The description includes a digest of the whole content.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .disk import write

# No header of ours comes near this [bytes]; reading one takes many times its size.
LARGEST_HEADER = 16 << 20


class BadFile(ValueError):
    """A file that does not hold what was packed; the message gives the reason."""


def pack(path: Path, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
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
    write(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"node_fit": header}))


def unpack(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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


def peek(path: Path) -> dict[str, Any]:
    """Reads the description only; without the arrays, the digest is not verified.

    **Raises:** `BadFile` if it can't be read.
    """
    return header(path)[1]


def header(path: Path) -> tuple[str, dict[str, Any]]:
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


def digest(content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(json.dumps(content).encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name}{array.dtype}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()
