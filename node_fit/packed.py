"""Named arrays, and what is said of them, in one file that is whole or is not read.

The file is in the safetensors format, whose header holds JSON; a digest of everything is part of what is said.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .disk import write

# None of ours comes near it [bytes]; reading one that is larger takes many times its size.
LARGEST_HEADER = 16 << 20


class BadFile(ValueError):
    """A file that does not hold what was once packed, for a reason that the message gives."""


def pack(path: Path, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file; an older one at `path` is replaced only once the new one is complete.

    **Arguments:**

    - `path`: where.
    - `content`: what is said of the arrays, which JSON can hold.
    - `arrays`: by their names.

    **Raises:** `OSError` if it can't be written.
    """
    from safetensors.numpy import save

    # One key of metadata, since the format does not order several, and equal contents shall give equal files.
    header = json.dumps({"sha256": digest(content, arrays), **content})
    write(path, save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"node_fit": header}))


def unpack(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What was packed: what is said of the arrays, and the arrays.

    **Raises:** `BadFile` unless all is as it was.
    """
    from safetensors import SafetensorError, safe_open

    said, content = header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadFile(f"it is truncated, or of another format ({error})") from None
    if said != digest(content, arrays):
        raise BadFile("its content does not match its digest")
    return content, arrays


def peek(path: Path) -> dict[str, Any]:
    """What is said of the arrays, without reading them; nothing tells whether it is still true of them.

    **Raises:** `BadFile` if there is nothing to be read.
    """
    return header(path)[1]


def header(path: Path) -> tuple[str, dict[str, Any]]:
    """The digest, and what is said of the arrays."""
    from safetensors import SafetensorError, safe_open

    try:
        check_length(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise BadFile(f"it is truncated, or of another format ({error})") from None
    if "node_fit" not in metadata:
        raise BadFile("it holds arrays, but nothing that node_fit wrote")
    try:
        content = json.loads(metadata["node_fit"])
        return content.pop("sha256"), content
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadFile(f"its header can't be read ({error!r})") from None


def check_length(path: Path) -> None:
    """Refuses a file whose first eight bytes, the length of its header, can't be true."""
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
