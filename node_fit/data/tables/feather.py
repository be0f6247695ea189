"""Reads Feather files of version 2, which is the Arrow file format."""

import json
import struct
from pathlib import Path

from .formats import share_text
from .layout import Roles
from .options import ReadingOptions
from .table import RawTable, read_error

# Marker of a message in the Arrow file format, and field numbers of its tables.
CONTINUATION, IS_DICTIONARY, IS_BATCH = 0xFFFFFFFF, 2, 3
HEADER_TYPE, MESSAGE_HEADER, BODY_LENGTH, BUFFERS, COMPRESSION = 1, 2, 3, 2, 3
FEATHER_MAGIC = b"ARROW1\0\0"


def read_feather(path: Path, roles: Roles, options: ReadingOptions) -> RawTable:
    """Reads the columns of a Feather file of version 2, which is the Arrow file format."""
    import pandas as pd
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            file = pa.ipc.open_file(source)
            names = list(roles.find(file.schema.names, str(path)))
            chosen = pa.ipc.IpcReadOptions(included_fields=[file.schema.get_field_index(name) for name in names])
        with pa.memory_map(str(path)) as source:
            frame = pa.ipc.open_file(source, options=chosen).read_all().to_pandas(ignore_metadata=True)
    except (pa.ArrowMemoryError, MemoryError):
        raise MemoryError(f"out of memory: {path} is too large to read; keep fewer rows in a file.") from None
    except (pa.ArrowException, OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise read_error(path, "Feather", error) from None
    frame = share_text(frame, path)
    return RawTable(str(path), {name: pd.Series(frame[name]) for name in names})


def size_of_feather(path: Path, most: float) -> int:
    """Computes the memory of a Feather file: each packed buffer begins with its unpacked size.

    Messages are FlatBuffers tables, whose fields can be absent (Arrow, Columnar format, "IPC file format").
    """
    size, stored = 0, path.stat().st_size
    with open(path, "rb") as file:
        if file.read(8) != FEATHER_MAGIC:
            return 0  # The reader reports it.
        while len(start := file.read(8)) == 8:
            mark, length = struct.unpack("<Ii", start)
            if mark != CONTINUATION or not 0 < length <= stored:
                return size
            message = file.read(length)
            root = struct.unpack_from("<I", message)[0]
            body, body_length = file.tell(), read_scalar(message, root, BODY_LENGTH, "<q")
            kind = read_scalar(message, root, HEADER_TYPE, "<B")
            if kind in (IS_DICTIONARY, IS_BATCH):
                batch = read_table_at(message, root, MESSAGE_HEADER)
                batch = read_table_at(message, batch, 1) if kind == IS_DICTIONARY else batch
                is_packed = field_of(message, batch, COMPRESSION) is not None
                for offset, packed in read_buffers(message, batch):
                    file.seek(body + offset)
                    unpacked = struct.unpack("<q", file.read(8))[0] if is_packed and packed >= 8 else packed
                    size += max(unpacked, packed)
            file.seek(body + body_length)
    return size


def field_of(message: bytes, table: int, number: int) -> int | None:
    """Returns the position of a field of a FlatBuffers table; None if it is absent."""
    fields = table - struct.unpack_from("<i", message, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", message, fields)[0]:
        return None
    offset = struct.unpack_from("<H", message, fields + 4 + 2 * number)[0]
    return table + offset if offset else None


def read_scalar(message: bytes, table: int, number: int, layout: str) -> int:
    position = field_of(message, table, number)
    return 0 if position is None else struct.unpack_from(layout, message, position)[0]


def read_table_at(message: bytes, table: int, number: int) -> int:
    """Returns the position of the table that a field refers to."""
    position = field_of(message, table, number)
    if position is None:
        raise ValueError("a table of the message is absent")
    return position + struct.unpack_from("<I", message, position)[0]


def read_buffers(message: bytes, batch: int) -> list[tuple[int, int]]:
    """Returns the positions of a batch's buffers in its body, and their lengths."""
    start = read_table_at(message, batch, BUFFERS)
    count = struct.unpack_from("<I", message, start)[0]
    return [
        struct.unpack_from("<qq", message, start + 4 + 16 * position)
        for position in range(min(count, len(message) // 16))
    ]
