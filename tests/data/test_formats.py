"""One table in every format: the same dataset to the last bit, and a sentence for what is no table."""

import datetime
import gzip
import json
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
import xarray as xr
from scipy.io import netcdf_file, savemat

import node_fit as nf
from node_fit.data.tables.feather import size_of_feather
from node_fit.data.tables.hdf5 import size_of_hdf5

ROWS = 200
RNG = np.random.default_rng(0)
TABLE = {
    "t": np.cumsum(RNG.exponential(size=ROWS)) * 1e-3,
    "x": RNG.normal(size=ROWS) * 10.0 ** RNG.integers(-300, 300, size=ROWS),
    "y": np.where(RNG.random(ROWS) < 0.1, np.nan, RNG.normal(size=ROWS) / 3),
    "u": RNG.integers(-5, 5, size=ROWS).astype(float),
}


def matlab_73(file: h5py.File, name: str, column: np.ndarray) -> None:
    file.create_dataset(name, data=column[None]).attrs["MATLAB_class"] = np.bytes_("double")


def write_table(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Writes columns as the ending of a file says; `.73.mat` is MATLAB's version 7.3."""
    frame = pd.DataFrame(columns)
    name = path.name
    if name.endswith((".csv", ".txt")):
        frame.to_csv(path, index=False, sep="\t" if name.endswith(".txt") else ",")
    elif name.endswith(".xlsx"):
        # Excel writes 17 digits; openpyxl would write 16, which are not all of a float.
        with mock.patch("openpyxl.cell._writer.safe_string", lambda value: str(value)):
            frame.to_excel(path, index=False)
    elif name.endswith(".parquet"):
        frame.to_parquet(path)
    elif name.endswith((".feather", ".arrow")):
        pyarrow.feather.write_feather(pa.Table.from_pandas(frame), path, compression="zstd")
    elif name.endswith(".jsonl"):
        path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")))
    elif name.endswith(".npz"):
        np.savez(path, **columns)
    elif name.endswith((".h5", ".73.mat")):
        with h5py.File(path, "w", userblock_size=512 if name.endswith(".mat") else 0) as file:
            for each, column in columns.items():
                if name.endswith(".mat"):
                    matlab_73(file, each, column)
                else:
                    file.create_dataset(each, data=column, compression="gzip")
    elif name.endswith(".mat"):
        savemat(path, columns)
    elif name.endswith(".classic.nc"):
        with netcdf_file(path, "w") as file:
            file.createDimension("t", ROWS)
            for each, column in columns.items():
                file.createVariable(each, "f8", ("t",))[:] = column
    else:
        xr.Dataset({each: ("t", column) for each, column in columns.items()}).to_netcdf(path, engine="h5netcdf")


TEXTS, TYPED = ("csv", "txt", "jsonl", "xlsx"), ("parquet", "feather", "arrow", "npz", "h5", "nc", "classic.nc", "mat")


@pytest.mark.parametrize("ending", (*TEXTS, *TYPED, "73.mat"))
def test_a_table_is_the_same_in_every_format(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    write_table(path, TABLE)
    data = nf.read_table(path, time="t", states=["x", "y"], inputs=["u"])
    for found, names in ((data.ts[0], "t"), (data.ys[0].T, "xy"), (data.us[0].T, "u")):
        expected = np.array([TABLE[name] for name in names]).reshape(found.shape)
        assert found.tobytes() == expected.tobytes(), "to the last bit, and NaN where nothing was measured"
    made = nf.Table(str(path), "t", ["x", "y"], ["u"]).load().train
    assert made.states == ("x", "y")
    with pytest.raises(ValueError, match=r"has no column 'X'; its columns are .* Did you mean 'x'\?"):
        nf.read_table(path, time="t", states=["X"])


def test_a_sheet_is_chosen_by_its_name(tmp_path):
    book = openpyxl.Workbook()
    book.active.title = "Notes"
    book.active.append(["written by hand"])
    sheet = book.create_sheet("Run 1")
    sheet.append(["Reactor 3", None, datetime.datetime(2024, 3, 1)])
    sheet.append([])
    sheet.append(["time", "temp", "remark"])
    sheet.append(["h", "degC", None])
    for row in range(6):
        sheet.append([datetime.time(10, 10 * row), 20 + row / 3 if row != 2 else "n/a", "ok" if row else None])
    path = tmp_path / "a.xlsx"
    book.save(path)
    data = nf.read_table(path, time="time", states=["temp"], sheet="Run 1")
    np.testing.assert_allclose(data.ts[0], 600 + 10.0 * np.arange(6))
    assert data.units == {"time": "min", "temp": "degC"} and np.isnan(data.ys[0, 2, 0]) and data.ys[0, 3, 0] == 21
    assert [note.partition(" (data.")[0] for note in data.notes][:2] == [
        "the columns are named in line 3, after text",
        "a row below the names with units or the like left out",
    ]
    again = nf.read_table(path, time="time", states=["temp"], sheet="Run 1", header=3, first_row=5)
    np.testing.assert_array_equal(again.ys, data.ys)
    with pytest.raises(ValueError, match=r"no column 'Run 2'; its columns are 'Notes', 'Run 1'\. Did you mean 'Run 1'"):
        nf.read_table(path, time="time", states=["temp"], sheet="Run 2")
    with pytest.raises(ValueError, match="no column 'time'"):
        nf.read_table(path, time="time", states=["temp"])


def test_a_sheet_with_dates_is_read_and_others_are_named(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["when", "x"])
    for row in range(4):
        book.active.append([datetime.datetime(2024, 1, 1, row), row * 0.1])
    book.active.append([None, None])
    book.create_sheet("More")
    book.save(tmp_path / "a.xlsx")
    data = nf.read_table(tmp_path / "a.xlsx", time="when", states=["x"])
    assert data.ts.tolist() == [[0, 1, 2, 3]] and data.dates.zero[0] == np.datetime64("2024-01-01")
    assert data.notes == ("sheet 'Sheet' is read, the first of 2 (data.sheet='More')",)


def test_groups_and_records_of_hdf5(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for run in ("one", "two"):
            for name, column in TABLE.items():
                file[f"{run}/{name}"] = column * (1 if name == "t" or run == "one" else 2)
    data = nf.read_table(path, time="t", states=["x"], sheet="two")
    np.testing.assert_array_equal(data.ys[0, :, 0], 2 * TABLE["x"])
    with pytest.raises(ValueError, match=r"holds the groups 'one', 'two'; name one of them, data\.sheet=one"):
        nf.read_table(path, time="t", states=["x"])
    with pytest.raises(ValueError, match="has no group 'three'; it holds 'one', 'two'"):
        nf.read_table(path, time="t", states=["x"], sheet="three")
    records = np.rec.fromarrays([TABLE["t"], TABLE["x"]], names="t,x")
    with h5py.File(path, "w") as file:
        file["run/table"] = records
    data = nf.read_table(path, time="t", states=["x"])
    np.testing.assert_array_equal(data.ys[0, :, 0], TABLE["x"])
    assert data.notes == ("the group '/run' is read (data.sheet)",)
    assert nf.read_table(path, time="t", states=["x"], sheet="run/table").states == ("x",)


def test_stacks_and_texts_of_hdf5_and_matlab(tmp_path):
    stack, times = RNG.normal(size=(3, 5)), np.arange(5.0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"], file["x"] = times, stack
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=512) as file:
        matlab_73(file, "t", times)
        file.create_dataset("x", data=stack.T).attrs["MATLAB_class"] = np.bytes_("double")
    for name in ("a.h5", "a.mat"):
        np.testing.assert_array_equal(nf.read_table(tmp_path / name, time="t", states=["x"]).ys[..., 0], stack)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["t"], file["x"] = np.tile(times, 2), np.arange(10.0)
        file.create_dataset("id", data=["é"] * 5 + ["b"] * 5, dtype=h5py.string_dtype())
    assert nf.read_table(tmp_path / "b.h5", time="t", states=["x"], trajectory="id").trajectories == ("é", "b")


def test_structs_of_matlab(tmp_path):
    savemat(tmp_path / "a.mat", {"run": {"t": TABLE["t"], "x": TABLE["x"]}, "other": 1.0})
    savemat(tmp_path / "b.mat", {"run": {"t": TABLE["t"], "x": TABLE["x"]}})
    with h5py.File(tmp_path / "c.mat", "w", userblock_size=512) as file:
        run = file.create_group("run")
        for name in ("t", "x"):
            matlab_73(run, name, TABLE[name])
    for name, options in (("a.mat", {"sheet": "run"}), ("b.mat", {}), ("c.mat", {}), ("c.mat", {"sheet": "run"})):
        data = nf.read_table(tmp_path / name, time="t", states=["x"], **options)
        np.testing.assert_array_equal(data.ys[0, :, 0], TABLE["x"])
        assert bool(data.notes) != bool(options)
    with pytest.raises(ValueError, match="has no struct 'walk'; its structs are 'run'"):
        nf.read_table(tmp_path / "a.mat", time="t", states=["x"], sheet="walk")


def xarray_runs() -> xr.Dataset:
    times = pd.date_range("2024-01-01", periods=4, freq="h")
    return xr.Dataset(
        {
            "x": (("time", "site"), np.arange(8.0).reshape(4, 2), {"units": "m"}),
            "u": ("time", [1.0, 2, 3, 4]),
            "depth": ("site", [10.0, 20.0]),
        },
        {"time": times, "site": ["north", "south"]},
    )


def test_dimensions_of_xarray_are_trajectories(tmp_path):
    runs = xarray_runs()
    runs.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    words = {"time": "time", "states": ["x"], "inputs": ["u"], "covariates": ["depth"]}
    for data in (nf.from_xarray(runs, **words), nf.read_table(tmp_path / "a.nc", **words)):
        assert data.trajectories == ("north", "south") and data.units == {"time": "h", "x": "m"}
        assert data.ys[..., 0].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]] and data.ts.tolist() == 2 * [[0, 1, 2, 3]]
        assert data.us[..., 0].tolist() == 2 * [[1, 2, 3, 4]] and data.us[:, 0, 1].tolist() == [10, 20]
    named = nf.from_xarray(runs, time="time", states=["x"], trajectory="site")
    assert named.trajectories == ("north", "south")
    with pytest.raises(ValueError, match="has variables over 'layer', 'site' beside the time"):
        nf.from_xarray(runs.expand_dims(layer=2), time="time", states=["x"])
    with pytest.raises(ValueError, match=r"dataset must be an xarray\.Dataset, got a DataFrame"):
        nf.from_xarray(runs.to_dataframe(), time="time", states=["x"])
    with pytest.raises(ValueError, match="has no column 'z'"):
        nf.from_xarray(runs, time="time", states=["z"])


def test_json_lines_may_lack_keys_and_be_packed(tmp_path):
    text = '{"t": 0, "x": 1.5, "id": "a"}\n\n{"t": 1, "id": "a"}\n{"t": 2, "x": null, "id": "a"}\n{"t": 3, "x": NaN}\n'
    (tmp_path / "a.jsonl").write_text(text)
    data = nf.read_table(tmp_path / "a.jsonl", time="t", states=["x"])
    assert data.ys[0, 0, 0] == 1.5 and np.isnan(data.ys[0, 1:, 0]).all()
    (tmp_path / "a.ndjson").write_bytes(gzip.compress(text.encode()))
    assert nf.read_table(tmp_path / "a.ndjson", time="t", states=["x"]).ys.shape == (1, 4, 1)
    with pytest.raises(ValueError, match="line 5, column 'id': the row names no trajectory"):
        nf.read_table(tmp_path / "a.jsonl", time="t", states=["x"], trajectory="id")


def test_sizes_are_those_of_what_is_unpacked(tmp_path):
    columns = {name: np.zeros(100_000) for name in ("t", "x")}
    for ending, size_of in (("feather", size_of_feather), ("h5", size_of_hdf5)):
        path = tmp_path / f"a.{ending}"
        write_table(path, columns)
        assert path.stat().st_size < 20_000
        assert 1.6e6 <= size_of(path, 1e9) < 1.8e6
        with pytest.raises(ValueError, match=r"more than the limit of .* data\.max_bytes="):
            nf.read_table(path, time="t", states=["x"], max_bytes=1e6)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    for ending, package, extra in (("xlsx", "openpyxl", "excel"), ("h5", "h5py", "hdf5"), ("nc", "xarray", "netcdf")):
        path = tmp_path / f"a.{ending}"
        write_table(path, TABLE)
        monkeypatch.setitem(__import__("sys").modules, package, None)
        with pytest.raises(ValueError, match=rf"needs {package}: pip install 'node_fit\[{extra}\]'\."):
            nf.read_table(path, time="t", states=["x"])
        monkeypatch.undo()
