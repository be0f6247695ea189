"""How much memory a table takes once it is unpacked, looked up before it is read."""

import gzip
import struct
import zipfile
import zlib
from pathlib import Path

# What a table may take by default [bytes].
MOST = 1e9
# Text is held as a string for each value, which takes several times its size.
TEXT = 4
PIECE = 1 << 20
# The type of a packed variable in a MATLAB file.
COMPRESSED = 15
# What a number or a reference to a text takes [bytes].
POINTER = 8


def check_size(path: Path, most: float) -> None:
    """Refuses a file that takes too much memory; a small file may unpack to a large one.

    **Arguments:** `path`: an existing file; `most`: what it may take [bytes].

    **Raises:** `ValueError` that names the key that raises the limit.
    """
    try:
        size = SIZES.get(path.suffix.lower(), size_of_text)(path, most)
    except (PermissionError, MemoryError):
        raise
    except Exception:  # The parsers of damaged files may raise anything; the reader reports it.
        return
    if size > most:
        raise ValueError(
            f"{path} takes at least {size / 1e9:.2g} GB once unpacked, more than the limit of {most / 1e9:.2g} GB; "
            f"raise it with data.max_bytes={2 * size:.1e} (max_bytes in read_table) if that is meant."
        )


def size_of_text(path: Path, most: float) -> int:
    """The memory of a text file; of a compressed one at least, since unpacking ends beyond the limit."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        size = 0
        try:
            with gzip.open(path) as file:
                while TEXT * size <= most and (piece := file.read(PIECE)):
                    size += len(piece)
        except (OSError, EOFError, zlib.error):
            pass  # The reader says that it is damaged, once it has unpacked as much.
    return TEXT * size


def size_of_npz(path: Path, most: float) -> int:
    with zipfile.ZipFile(path) as file:
        return sum(each.file_size for each in file.infolist())


def size_of_npy(path: Path, most: float) -> int:
    return path.stat().st_size


def size_of_mat(path: Path, most: float) -> int:
    """The size of the variables of a MATLAB file of level 5; SciPy unpacks a whole variable to say its shape."""
    size, stored = 0, path.stat().st_size
    with open(path, "rb") as file:
        order = "<" if file.read(128).endswith(b"IM") else ">"
        while size <= most and len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", tag)
            if length > stored:
                return 0  # Damaged, which the reader says.
            if kind != COMPRESSED:
                size += length
                file.seek(length, 1)
                continue
            end, unpacker = file.tell() + length, zlib.decompressobj()
            packed = file.read(PIECE)
            while packed and not unpacker.eof and size <= most:
                size += len(unpacker.decompress(packed, PIECE))
                packed = unpacker.unconsumed_tail or file.read(PIECE)
            file.seek(end)
    return size


def size_of_parquet(path: Path, most: float) -> int:
    """The memory of a Parquet file: of text as it is stored, since the reader shares it among rows."""
    import pyarrow.parquet as pq

    content = pq.read_metadata(path)
    size = 0
    for index in range(content.num_row_groups):
        group = content.row_group(index)
        for place in range(group.num_columns):
            chunk, column = group.column(place), content.schema.column(place)
            # A value of a fixed length may be stored once and be meant many times.
            width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else POINTER
            size += max(chunk.total_uncompressed_size, chunk.num_values * max(width, POINTER))
    return size


SIZES = {
    ".npz": size_of_npz,
    ".npy": size_of_npy,
    ".mat": size_of_mat,
    ".parquet": size_of_parquet,
    ".pq": size_of_parquet,
}
