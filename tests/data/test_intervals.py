"""Values between two limits: in tables, from arrays, and through what is made of a dataset."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.app.run_directory import fingerprint_data
from node_fit.data.scaling import Scaler
from node_fit.data.table_source import add_noise, with_times
from node_fit.data.trajectories import Trajectories
from node_fit.evaluation.residuals import standardize
from node_fit.evaluation.simulation import concatenate_splits

CELLS = ["1", "0.2..0.5", "<0.4", ">9", "-3 .. -1", "NA"]
YS = [1, 0.5, 0.4, 9, -1, np.nan]
MARKS = [0, -1, -1, 1, -1, 0]
ENDS = [np.nan, 0.2, np.nan, np.nan, -3, np.nan]


def write(path, cells=CELLS):
    frame = pd.DataFrame({"t": np.arange(len(cells)), "x": cells})
    {".csv": frame.to_csv, ".parquet": frame.to_parquet, ".xlsx": frame.to_excel}[path.suffix](path, index=False)
    return path


def with_interval():
    ys, ends = [[1.0, 0.5, 0.4, 7.0], [2.0, 1.0, 0.6, 0.3]], [[np.nan, 0.2, -np.inf, 9.0], [np.nan] * 4]
    marks = [[0, -1, -1, 1], [0] * 4]
    return nf.Dataset.from_arrays(np.tile(np.arange(4.0), (2, 1)), ys, states=["x"], censored=marks, other_end=ends)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".xlsx"])
def test_cells_of_tables(tmp_path, suffix):
    path = write(tmp_path / f"d{suffix}")
    for data in (
        nf.read_table(path, time="t", states=["x"], censored=True),
        nf.from_frame(pd.DataFrame({"t": np.arange(6), "x": CELLS}), time="t", states=["x"], censored=True),
    ):
        np.testing.assert_array_equal(data.ys[0, :, 0], YS)
        np.testing.assert_array_equal(data.censored[0, :, 0], MARKS)
        np.testing.assert_array_equal(data.other_end[0, :, 0], ENDS)
    with pytest.raises(ValueError, match=r"'x': '0.2..0.5' is not a number; set data.censored=true .*an interval"):
        nf.read_table(path, time="t", states=["x"])


def test_wide_and_tidy_tables_and_columns_of_deviations(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("t,A1,A2\n0,1,2\n1,0.1..0.5,3\n2,0.4,>9\n")
    data = nf.read_table(path, time="t", states=["x"], series=["A*"], censored=True)
    np.testing.assert_array_equal(data.other_end[..., 0], [[np.nan, 0.1, np.nan], [np.nan] * 3])
    path.write_text("t,what,value\n0,x,1\n0,y,1..2\n1,x,<0.5\n1,y,3\n")
    data = nf.read_table(path, time="t", states=["x", "y"], observable="what", value="value", censored=True)
    np.testing.assert_array_equal(data.other_end[0], [[np.nan, 1], [np.nan, np.nan]])
    path.write_text("t,x,sd\n0,1,0.1\n1,0..0.5,0.2\n")
    data = nf.read_table(path, time="t", states=["x"], sigma={"x": "sd"}, censored=True)
    assert data.other_end.shape == data.sigma.shape == (1, 2, 1)


def test_ends_are_numbers_as_people_write_them(tmp_path):
    """And numbers that stand for missing values are none of them."""
    path = tmp_path / "d.csv"
    path.write_text("t;x;y\n1;1.000,5..2.000,25;1\n2;-1;2\n3;0..1,25;3\n")
    data = nf.read_table(path, time="t", states=["x", "y"], censored=True, missing=[-1, 0])
    np.testing.assert_array_equal(data.ys[0, :, 0], [2000.25, np.nan, 1.25])
    np.testing.assert_array_equal(data.other_end[0, :, 0], [1000.5, np.nan, 0])


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("0.5..0.2", r"line 3, column 'x': the lower end of '0.5..0.2' must be below the upper one; exchange them"),
        ("1..1", "write a value that is known as one number"),
        ("low..2", r"line 3, column 'x': 'low..2' is no interval; write its two ends as numbers"),
    ],
)
def test_faults_name_the_cell(tmp_path, cell, said):
    path = write(tmp_path / "d.csv", ["1", cell, "2"])
    with pytest.raises(ValueError, match=said):
        nf.read_table(path, time="t", states=["x"], censored=True)


def test_intervals_have_no_mean(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("t,x\n0,1\n0,2\n1,3\n1,0.2..0.5\n2,1\n")
    with pytest.raises(ValueError, match="'x' has a limit among repeated measurements"):
        nf.read_table(path, time="t", states=["x"], censored=True)


@pytest.mark.parametrize(
    ("marks", "ends", "said"),
    [
        ([0, -1, 1], [np.nan, 0.6, np.nan], "is 0.6 at row 1, and the value 0.5 with the mark -1"),
        ([0, -1, 1], [0.5, np.nan, np.nan], "NaN elsewhere"),
        ([0, -1, 1], [np.nan, np.nan, 6.0], "more where it is 1"),
        (None, [np.nan, 0.2, np.nan], "needs censored beside it"),
        ([0, -1, 1], [0.2, 0.2], "must have the form of ys"),
    ],
)
def test_ends_are_checked(marks, ends, said):
    with pytest.raises(ValueError, match=said):
        nf.Dataset.from_arrays([0, 1, 2], [1.0, 0.5, 7.0], states=["x"], censored=marks, other_end=ends)


def test_without_another_end_a_dataset_is_as_before():
    plain = nf.Dataset.from_arrays([0, 1], [1.0, 0.5], censored=[0, -1], other_end=[np.nan, -np.inf])
    assert plain.other_end is None
    assert fingerprint_data(plain) == fingerprint_data(replace(plain))


def test_parts_of_a_dataset_keep_their_ends():
    data = with_interval()
    wanted = data.other_end
    np.testing.assert_array_equal(wanted[..., 0], [[np.nan, 0.2, np.nan, 9], [np.nan] * 4])
    np.testing.assert_array_equal(data.select([1, 0]).other_end, wanted[[1, 0]])
    np.testing.assert_array_equal(data.after(0.5).other_end, wanted[:, 1:])
    np.testing.assert_array_equal(data.windows(2, 2)[1].other_end, wanted[:1, 2:])
    np.testing.assert_array_equal(
        concatenate_splits({"train": data, "test": data}).other_end, np.concatenate([wanted, wanted])
    )
    wide = with_times(data, [np.array([0.5]), np.array([1.5])]).other_end
    np.testing.assert_array_equal(wide[0, :, 0], [np.nan, np.nan, 0.2, np.nan, 9])
    moved = add_noise(data, 0.1, 0)
    np.testing.assert_allclose(moved.other_end - moved.ys, wanted - data.ys)
    assert fingerprint_data(data) != fingerprint_data(replace(data, other_end=None))


def test_angles_turn_with_their_ends():
    turned = Trajectories.from_arrays(
        [0, 1], [3.1, -3.1], states=["x"], angles={"x": 2 * np.pi}, censored=[0, -1], other_end=[np.nan, -3.3]
    )
    np.testing.assert_allclose(turned.other_end[0, 1] - turned.ys[0, 1], -0.2)


def test_within_an_interval_the_prediction_is_right_and_else_the_nearer_end_the_value():
    data = with_interval()
    for second, last, wanted in ((0.3, 8.0, (0.3, 8.0)), (0.1, 10.0, (0.2, 9.0)), (0.6, 6.0, (0.5, 7.0))):
        predicted = np.broadcast_to([[1.0], [second], [0.1], [last]], data.ys.shape)
        found = data.near(predicted)[0, :, 0]
        np.testing.assert_array_equal(found, [1.0, wanted[0], 0.1, wanted[1]])
    np.testing.assert_allclose(data.middles[0, :, 0], [1, 0.35, np.nan, 8])


def test_residuals_are_draws_from_intervals():
    """Uniform in their probability, far from an interval at its nearer end, and below it on the other side alike."""
    count = 4000
    marks, ys = np.full((1, count, 1), -1), np.ones((1, count, 1))
    data = nf.Dataset.from_arrays(np.arange(count), ys, censored=marks, other_end=ys - 2, sigma=1.0)
    scaler = Scaler.from_dataset(data, identity=True)
    draws = standardize(data, np.zeros_like(ys), scaler)
    assert np.abs(draws).max() <= 1 and draws.mean() == pytest.approx(0, abs=0.03)
    assert draws.var() == pytest.approx(0.291, abs=0.02)
    for predicted, wanted in ((60.0, -59.0), (-60.0, 59.0)):
        draws = standardize(data, np.full_like(ys, predicted), scaler)
        assert draws.mean() == pytest.approx(wanted, abs=0.1)
