"""Tables with absurd values give an error message or a fit that ends; and tables survive a round trip."""

import gzip
import resource
import tempfile
import time
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from helpers.commands import spirals, write_table
from helpers.problems import fit_to
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from node_fit.data.tables.reading import size_of_mat
from node_fit.objectives.objective import masked_mean


def at(row: int, value):
    return lambda rows: [each | {"x": value} if index == row else each for index, each in enumerate(rows)]


def times(factor: float, column: str = "x"):
    return lambda rows: [each | {column: each[column] * factor} for each in rows]


def everywhere(value, column: str = "x"):
    return lambda rows: [each | {column: value} for each in rows]


REFUSED = {
    "1e300": (times(1e300), "state 'x' has magnitudes of 6e+299"),
    "one value of 1e300": (at(3, 1e300), "state 'x' has magnitudes of 1e+300"),
    "all but infinite": (everywhere(1.7e308), "state 'x' has magnitudes of 1.7e+308"),
    "denormals": (times(5e-320), "state 'x' has magnitudes of"),
    "times of 1e300": (times(1e300, "t"), "the time 't'"),
    "times of 1e-320": (times(1e-320, "t"), "the time 't'"),
    "times that floats can't tell apart": (lambda rows: [r | {"t": r["t"] + 1e17} for r in rows], "the time repeats"),
    "one time": (everywhere(0.0, "t"), "the time repeats"),
    "infinity": (at(3, "inf"), "line 5, column 'x': the value is infinite"),
    "beyond float64": (at(3, "1e400"), "line 5, column 'x': the value is infinite"),
    "a word": (at(3, "many"), "line 5, column 'x': 'many' is not a number"),
}
FITTED = {
    "a constant": everywhere(3.0),
    "zeros": everywhere(0.0),
    "an offset that leaves few digits": lambda rows: [r | {"x": r["x"] + 1e12} for r in rows],
    "a column without a value": everywhere(""),
    "one measured value": lambda rows: at(3, 0.5)(everywhere("")(rows)),
    "trajectories of one row": lambda rows: rows[:9],
}


def data_of(folder, change) -> nf.Dataset:
    write_table(folder / "mine.csv", change(spirals(times=8, trajectories=("A", "B"))))
    return nf.read_table(folder / "mine.csv", time="t", states=["x", "y"], trajectory="id")


def fitted(data: nf.Dataset) -> nf.Fit:
    return fit_to(data, field=nf.Linear, steps=20, chunk_steps=10, recipe="direct", ridge=0.0)


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_no_one_can_compute_with_are_refused_in_a_sentence(name, tmp_path):
    change, said = REFUSED[name]
    with pytest.raises(ValueError) as caught:
        fitted(data_of(tmp_path, change))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTED)
def test_odd_tables_are_fitted(name, tmp_path):
    data = data_of(tmp_path, FITTED[name])
    fit = fitted(data)
    assert fit.status in ("converged", "stopped", "completed")
    assert np.isfinite(fit.predict(data)[data.valid]).all()
    assert fit.history[-1].train_loss <= fit.history[0].train_loss
    assert fit.diagnose(data).sentence


def test_a_model_refuses_data_that_floats_cannot_hold():
    data = nf.Dataset.from_arrays([0.0, 1.0], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="has magnitudes of"):
        fit_to(data, validation=nf.Dataset.from_arrays([0.0, 1.0], [[1.0], [1e200]]), field=nf.Linear)


@pytest.mark.long
@pytest.mark.slow
def test_a_million_rows_are_read(tmp_path):
    rows, trajectories = 1_000_000, 100
    t = np.tile(np.arange(rows // trajectories) / 8, trajectories)
    frame = pd.DataFrame({"id": np.repeat(np.arange(trajectories), rows // trajectories), "t": t, "x": np.cos(t)})
    frame.to_csv(tmp_path / "long.csv", index=False)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    data = nf.read_table(tmp_path / "long.csv", time="t", states=["x"], trajectory="id")
    seconds, kilobytes = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert data.ys.shape == (trajectories, rows // trajectories, 1) and data.mask.all()
    assert data.ys[7, 5, 0] == np.cos(5 / 8)
    assert seconds < 30 and kilobytes < 2_000_000


NUMBER = st.floats(-1e15, 1e15, allow_nan=False, allow_subnormal=False) | st.just(np.nan)


@st.composite
def tables(draw) -> pd.DataFrame:
    frames = []
    for name in draw(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=3, unique=True)):
        ts = sorted(draw(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5, unique=True)))
        xy = draw(st.lists(st.tuples(NUMBER, NUMBER), min_size=len(ts), max_size=len(ts)))
        x, y = np.array(xy, dtype=float).T
        frames.append(pd.DataFrame({"id": name, "t": np.array(ts) / 7, "x": x, "y": y}))
    return pd.concat(frames, ignore_index=True)


@pytest.mark.usefixtures("no_fault")
@settings(max_examples=50, deadline=None)
@given(tables())
def test_from_a_table_to_a_dataset_and_back(frame):
    if frame[["x", "y"]].isna().all(axis=None):
        return
    options = {"time": "t", "states": ["x", "y"], "trajectory": "id"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.csv"
        frame.to_csv(path, index=False)
        data = nf.read_table(path, **options)
    rows = [
        (name, data.ts[row, index], *data.ys[row, index])
        for row, name in enumerate(data.trajectories)
        for index in range(data.lengths[row])
    ]
    back = pd.DataFrame(rows, columns=list(frame.columns))
    pd.testing.assert_frame_equal(back, frame, check_exact=True, check_dtype=False)
    np.testing.assert_array_equal(data.mask, np.isfinite(data.ys))


loss = jax.jit(masked_mean)


@pytest.mark.usefixtures("no_fault")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=12, max_size=12), st.floats(width=32))
def test_a_masked_value_is_never_seen(mask, value):
    known = np.array(mask).reshape(1, 6, 2)
    residual = np.random.default_rng(0).normal(size=(1, 6, 2)).astype(np.float32)
    changed = np.where(known, residual, np.float32(value))
    assert float(loss(changed, known)) == float(loss(residual, known))


def repeat_text(path: Path, text: str, rows: int) -> None:
    """Writes a Parquet file that holds a text once, and means it in every row."""
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    times = pa.array(np.arange(rows, dtype=float))
    pq.write_table(pa.table({"id": names, "t": times, "x": times}), path, store_schema=False, compression="zstd")


def test_a_text_that_a_file_holds_once_for_many_rows_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.parquet"
    repeat_text(path, "a" * 1_000_000, rows=40_000)  # 40 GB as strings
    before = pa.default_memory_pool().bytes_allocated()
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"bomb\.parquet, column 'id': a text has 1000000 characters"):
        nf.read_table(path, time="t", states=["x"], trajectory="id")
    assert time.monotonic() - began < 20
    assert pa.default_memory_pool().max_memory() - before < 1 << 30
    repeat_text(path, "a" * 900, rows=400)
    assert nf.read_table(path, time="t", states=["x"], trajectory="id").trajectories == ("a" * 900,)


def test_a_lack_of_memory_for_a_table_is_a_sentence_about_memory(tmp_path, monkeypatch):
    repeat_text(tmp_path / "a.parquet", "a", rows=4)

    def lack(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 40000000000 failed")

    monkeypatch.setattr(pq.ParquetFile, "read", lack)
    with pytest.raises(MemoryError, match=r"^out of memory: .*a\.parquet is too large to read; keep fewer rows"):
        nf.read_table(tmp_path / "a.parquet", time="t", states=["x"], trajectory="id")


@pytest.mark.parametrize("kind", ["npz", "csv.gz", "mat", "parquet"])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_is_read(tmp_path, kind):
    """What is asked for on the way is a small part of what would be unpacked."""
    path, rows = tmp_path / f"large.{kind}", 1_000_000
    if kind == "npz":
        np.savez_compressed(path, t=np.zeros(rows), x=np.zeros(rows))
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(b"t,x\n" + b"\n" * 5_000_000, 1))
    elif kind == "mat":
        scipy.io.savemat(path, {"t": np.zeros(rows), "x": np.zeros(rows)}, do_compression=True)
    else:
        pd.DataFrame({"t": np.zeros(rows), "x": np.zeros(rows)}).to_parquet(path)
    assert path.stat().st_size < 1e6
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=r"once unpacked, more than the limit of 0\.01 GB; raise it with data\.max_bytes="
    ):
        nf.read_table(path, time="t", states=["x"], max_bytes=1e7)
    asked = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert asked < 8e6


def test_a_packed_variable_of_matlab_takes_its_size_twice(tmp_path):
    """SciPy holds what it has unpacked, and the array that it makes of it."""
    path = tmp_path / "packed.mat"
    scipy.io.savemat(path, {"t": np.arange(1000.0), "x": np.ones(1000)}, do_compression=True)
    assert 32_000 <= size_of_mat(path, 1e9) < 34_000
    scipy.io.savemat(path, {"t": np.arange(1000.0), "x": np.ones(1000)})
    assert 16_000 <= size_of_mat(path, 1e9) < 17_000
