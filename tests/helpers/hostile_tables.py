"""Broken and hostile files of the formats that packages read: Excel, HDF5, MATLAB 7.3, NetCDF, Feather, JSON lines."""

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import openpyxl
import pyarrow as pa
import xarray as xr

from .hostile_files import LAUGHS, HostileFile, file, read_table

SHEET = "xl/worksheets/sheet1.xml"
NAMESPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
ONCE_UNPACKED = "once unpacked"


def workbook(parts: dict[str, str | bytes] | None = None) -> bytes:
    """A workbook with a column `t` and a column `x`, some of whose parts are others; None takes a part away."""
    book, content = openpyxl.Workbook(), io.BytesIO()
    for row in (["t", "x"], [0, 1.5], [1, 2.5]):
        book.active.append(row)
    book.save(content)
    changed = io.BytesIO()
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in dict.fromkeys([*old.namelist(), *(parts or {})]):
            new.writestr(name, (parts or {}).get(name, old.read(name) if name in old.namelist() else b""))
    return changed.getvalue()


def sheet(rows: str, before: str = "") -> dict[str, str | bytes]:
    return {SHEET: f'<?xml version="1.0"?><worksheet {NAMESPACE}>{before}<sheetData>{rows}</sheetData></worksheet>'}


def cell(place: str, value: str, kind: str = "str") -> str:
    return f'<c r="{place}" t="{kind}"><v>{value}</v></c>'


NAMES = f'<row r="1">{cell("A1", "t")}{cell("B1", "x")}</row>'


def book_of_zeros(megabytes: int) -> bytes:
    content = io.BytesIO()
    archive = zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open(SHEET, "w", force_zip64=True) as part:
        for _ in range(megabytes):
            part.write(bytes(1 << 20))
    return content.getvalue()


def hdf5(write: Callable[[h5py.File], object], name: str = "t.h5") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with h5py.File(folder / name, "w") as opened:
            write(opened)
        return folder / name

    return make


def with_times(write: Callable[[h5py.File], object]) -> Callable[[Path], Path]:
    """A file with a good column `t`, and what else is written."""

    def both(opened: h5py.File) -> None:
        opened["t"] = np.arange(4.0)
        write(opened)

    return hdf5(both)


def cut(make: Callable[[Path], Path], share: float = 0.5) -> Callable[[Path], Path]:
    """The first part of a file."""

    def write(folder: Path) -> Path:
        path = make(folder)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        return path

    return write


def columns(opened: h5py.File) -> None:
    opened["t"], opened["x"] = np.arange(1e4), np.arange(1e4)


def in_circle(opened: h5py.File) -> None:
    opened["a"] = opened["/"]


def virtual(opened: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    opened.create_virtual_dataset("x", layout)


def of_class(kind: str) -> Callable[[Path], Path]:
    def write(opened: h5py.File) -> None:
        for name in ("t", "x"):
            opened.create_dataset(name, data=np.arange(4.0)[None]).attrs["MATLAB_class"] = np.bytes_(kind)

    return hdf5(write, "t.mat")


def netcdf(dataset: xr.Dataset) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        dataset.to_netcdf(folder / "t.nc", engine="h5netcdf")
        return folder / "t.nc"

    return write


def times_in(units: str, calendar: str = "standard") -> xr.Dataset:
    times = ("t", np.arange(4.0), {"units": units, "calendar": calendar})
    return xr.Dataset({"t": times, "x": ("t", np.arange(4.0))})


def classic(rows: int) -> bytes:
    """A file of the third version with a column of so many rows, of which it has four."""

    def name(text: str) -> bytes:
        return struct.pack(">I", len(text)) + text.encode().ljust(4, b"\0")

    def variable(text: str, begin: int) -> bytes:
        size = min(8 * rows, 2**31 - 4)
        return name(text) + struct.pack(">IIIIIII", 1, 0, 0, 0, 6, size, begin)

    head = b"CDF\x01" + struct.pack(">I", 0) + struct.pack(">II", 10, 1) + name("t") + struct.pack(">I", rows)
    head += struct.pack(">II", 0, 0) + struct.pack(">II", 11, 2)
    return head + variable("t", 200) + variable("x", 232) + bytes(200)


def feather(write: Callable[[pa.ipc.RecordBatchFileWriter], object], schema: pa.Schema, codec: str = "zstd") -> bytes:
    content = io.BytesIO()
    with pa.ipc.new_file(content, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        write(writer)
    return content.getvalue()


NUMBERS = pa.schema([("t", pa.float64()), ("x", pa.float64())])


def zeros(count: int, times: int) -> bytes:
    batch = pa.record_batch([pa.array(np.zeros(count))] * 2, schema=NUMBERS)
    return feather(lambda writer: [writer.write_batch(batch) for _ in range(times)], NUMBERS)


def long_texts() -> bytes:
    schema = pa.schema([("t", pa.float64()), ("x", pa.dictionary(pa.int32(), pa.string()))])
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0], pa.int32()), pa.array(["1" * 100_000]))
    batch = pa.record_batch([pa.array([0.0, 1, 2]), texts], schema=schema)
    return feather(lambda writer: writer.write_batch(batch), schema)


def understated() -> bytes:
    """Packed zeros of which the file says that there are fewer."""
    content = zeros(100_000, 1)
    return content.replace(struct.pack("<q", 800_000), struct.pack("<q", 80))


HOSTILE_TABLES = {
    # Excel
    "a workbook that is no zip": HostileFile(file("t.xlsx", b"no zip" * 99), read_table, "cannot be read as an Excel"),
    "a workbook that is encrypted": HostileFile(
        file("t.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000)), read_table, "cannot be read as an Excel"
    ),
    "half a workbook": HostileFile(cut(file("t.xlsx", workbook)), read_table, "cannot be read as an Excel"),
    "a zip without a workbook": HostileFile(
        file("t.xlsx", lambda: book_of_zeros(0)), read_table, "cannot be read as an Excel"
    ),
    "a workbook of 800 MB": HostileFile(file("t.xlsx", lambda: book_of_zeros(800)), read_table, ONCE_UNPACKED, False),
    "entities of a sheet": HostileFile(
        file("t.xlsx", lambda: workbook({SHEET: LAUGHS + "<worksheet>&a9;</worksheet>"})), read_table, "document type"
    ),
    "entities of shared texts": HostileFile(
        file("t.xlsx", lambda: workbook({"xl/sharedStrings.xml": LAUGHS + "<sst>&a9;</sst>"})),
        read_table,
        "document type",
    ),
    "entities in UTF-16": HostileFile(
        file("t.xlsx", lambda: workbook({SHEET: (LAUGHS + "<worksheet>&a9;</worksheet>").encode("utf-16")})),
        read_table,
        "document type",
    ),
    "rows of 16,384 cells": HostileFile(
        file(
            "t.xlsx",
            lambda: workbook(
                sheet(NAMES + "".join(f'<row r="{row}">{cell(f"XFD{row}", "1")}</row>' for row in range(2, 50_000)))
            ),
        ),
        read_table,
        "empty cells beside",
    ),
    "a row far below": HostileFile(
        file("t.xlsx", lambda: workbook(sheet(NAMES + f'<row r="900000000">{cell("A900000000", "1")}</row>'))),
        read_table,
        "empty cells beside",
    ),
    "a sheet that says it is large": HostileFile(
        file("t.xlsx", lambda: workbook(sheet(NAMES, '<dimension ref="A1:XFD1048576"/>'))), read_table, "no rows"
    ),
    "a text that is not there": HostileFile(
        file("t.xlsx", lambda: workbook(sheet(NAMES + f'<row r="2">{cell("A2", "7777", "s")}</row>'))),
        read_table,
        "cannot be read as an Excel",
    ),
    "a cell that is no number": HostileFile(
        file("t.xlsx", lambda: workbook(sheet(NAMES + f'<row r="2">{cell("A2", "many", "n")}</row>'))),
        read_table,
        "cannot be read as an Excel",
    ),
    "a sheet of 100,000 levels": HostileFile(
        file("t.xlsx", lambda: workbook(sheet("<a>" * 100_000))), read_table, "cannot be read as an Excel"
    ),
    "a sheet without a value": HostileFile(
        file("t.xlsx", lambda: workbook(sheet('<row r="1"><c r="A1"><f>B1</f></c></row>'))), read_table, "no row with"
    ),
    # HDF5
    "a file with the signature of HDF5": HostileFile(
        file("t.h5", b"\x89HDF\r\n\x1a\n" + bytes(2000)), read_table, "cannot be read as a HDF5"
    ),
    "half an HDF5 file": HostileFile(cut(hdf5(columns)), read_table, "cannot be read as a HDF5"),
    "a dataset of 8 TB": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", (10**12,), "f8", chunks=(1000,))),
        read_table,
        ONCE_UNPACKED,
    ),
    "a chunk of 2 GB": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", (4,), "f8", maxshape=(None,), chunks=(2**28,))),
        read_table,
        ONCE_UNPACKED,
    ),
    "a link to another file": HostileFile(
        with_times(lambda opened: opened.__setitem__("x", h5py.ExternalLink("/etc/passwd", "x"))),
        read_table,
        "links to another file",
    ),
    "values in another file": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", (4,), "u1", external=[("/etc/passwd", 0, 4)])),
        read_table,
        "has its values in other files",
    ),
    "a virtual dataset": HostileFile(with_times(virtual), read_table, "has its values in other files"),
    "a text of 2 MB": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", data=["1" * 2_000_000], dtype=h5py.string_dtype())),
        read_table,
        "a text has 2000000 characters",
    ),
    "references in place of numbers": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", (4,), h5py.ref_dtype)), read_table, "holds references"
    ),
    "groups in a circle": HostileFile(hdf5(in_circle), read_table, "nested over 10 deep; name one"),
    "20,000 groups": HostileFile(
        hdf5(lambda opened: [opened.create_group(f"g{at}") for at in range(20_000)]), read_table, "holds the groups"
    ),
    "complex numbers of HDF5": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", data=1j * np.ones(4))), read_table, "complex numbers"
    ),
    "a dataset of five axes": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", data=np.ones((2, 2, 2, 2, 2)))), read_table, "has shape"
    ),
    "a link to nothing": HostileFile(
        with_times(lambda opened: opened.__setitem__("x", h5py.SoftLink("/nowhere"))), read_table, "is no dataset"
    ),
    "a dataset without a shape": HostileFile(
        with_times(lambda opened: opened.create_dataset("x", data=h5py.Empty("f8"))), read_table, "is empty"
    ),
    # MATLAB 7.3
    "half a MATLAB 7.3 file": HostileFile(cut(hdf5(columns, "t.mat")), read_table, "cannot be read as a MATLAB 7.3"),
    "a cell of MATLAB": HostileFile(of_class("cell"), read_table, "is a cell of MATLAB"),
    "a timetable of MATLAB": HostileFile(of_class("timetable"), read_table, "timetable2table"),
    "a class with a long name": HostileFile(of_class("c" * 5000), read_table, "of MATLAB, not numbers"),
    "a variable of 8 TB": HostileFile(
        hdf5(lambda opened: opened.create_dataset("t", (10**12,), "f8", chunks=(1000,)), "t.mat"),
        read_table,
        ONCE_UNPACKED,
    ),
    # NetCDF
    "a classic file that is cut": HostileFile(file("t.nc", b"CDF\x01" + bytes(6)), read_table, "as a NetCDF file"),
    "a classic file that overstates": HostileFile(file("t.nc", classic(2**28)), read_table, "as a NetCDF file"),
    "half a NetCDF file": HostileFile(
        cut(netcdf(xr.Dataset({name: ("t", np.arange(1e4)) for name in ("t", "x")}))), read_table, "as a NetCDF file"
    ),
    "times in furlongs": HostileFile(netcdf(times_in("furlongs since yesterday")), read_table, "as a NetCDF file"),
    "times before the universe": HostileFile(netcdf(times_in("days since -999999-01-01")), read_table, "t.nc"),
    "a NetCDF file that links to another": HostileFile(
        hdf5(lambda opened: opened.__setitem__("x", h5py.ExternalLink("/etc/passwd", "x")), "t.nc"),
        read_table,
        "links to",
    ),
    "a NetCDF variable of 8 TB": HostileFile(
        hdf5(lambda opened: opened.create_dataset("x", (10**12,), "f8", chunks=(1000,)), "t.nc"),
        read_table,
        ONCE_UNPACKED,
    ),
    # Feather
    "a Feather file that is none": HostileFile(
        file("t.feather", b"ARROW1\0\0" + bytes(99)), read_table, "cannot be read as a Feather"
    ),
    "a Feather file of version 1": HostileFile(
        file("t.feather", b"FEA1" + bytes(99) + b"FEA1"), read_table, "cannot be read as a Feather"
    ),
    "half a Feather file": HostileFile(
        cut(file("t.feather", lambda: zeros(1000, 3))), read_table, "cannot be read as a Feather"
    ),
    "a Feather file of 2.5 GB": HostileFile(
        file("t.feather", lambda: zeros(1 << 22, 40)), read_table, ONCE_UNPACKED, False
    ),
    "a Feather file that understates": HostileFile(
        file("t.feather", understated), read_table, "cannot be read as a Feather"
    ),
    "a text of Feather of 100 kB": HostileFile(file("t.feather", long_texts), read_table, "a text has 100000"),
    # JSON lines
    "an object of 100,000 levels": HostileFile(
        file("t.jsonl", '{"t": ' + "[" * 100_000), read_table, "is nested too deep"
    ),
    "a whole number of 100,000 digits": HostileFile(
        file("t.jsonl", '{"t": 0, "x": ' + "9" * 100_000 + "}\n"), read_table, "is infinite"
    ),
    "a list in place of a number": HostileFile(
        file("t.jsonl", '{"t": 0, "x": [1, 2]}\n'), read_table, "is no single value"
    ),
    "lists in place of objects": HostileFile(file("t.jsonl", "[0, 1]\n[1, 2]\n"), read_table, "not an object"),
    "an object that is not closed": HostileFile(file("t.jsonl", '{"t": 0,\n'), read_table, "line 1 is no JSON"),
    "packed JSON of 300 MB": HostileFile(
        file("t.jsonl", lambda: gzip.compress(b'{"t": 0}\n' + b" " * (300 << 20), 1)), read_table, ONCE_UNPACKED, False
    ),
}
