"""Formulas of the noise as they are written, and limits of detection in tables."""

import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.data.noise_formula import is_formula, read_formula

STATES = ("x", "y")


def test_names_and_texts_are_formulas_and_columns_are_not():
    for given in ("additive", "lognormal", "s0 + s1*y", "0.1*sqrt(y)", {"formula": "s0/y"}):
        assert is_formula(given), given
    for given in ("sd", "x (sd)", "x sd", "sd-x", "V/s", 0.1, {"relative": 0.1}):
        assert not is_formula(given), given


def test_a_wide_table_names_columns_by_a_pattern(tmp_path):
    """There `sd*` and `sd_*_nM` are columns, and what has the state's name is a formula."""
    for given in ("0.1*y", "s0 + s1*y", "s*prediction", "combined"):
        assert is_formula(given, "y"), given
    for given in ("sd*", "sd_*_nM", "*y2"):
        assert not is_formula(given, "y"), given
    path = tmp_path / "wide.csv"
    path.write_text("t,G_1_nM,G_2_nM,sd_1_nM,sd_2_nM\n0,1,<2,0.1,0.2\n1,3,4,0.3,0.4\n")
    options = {"time": "t", "states": ["G"], "series": ["G_*"], "censored": True}
    data = nf.read_table(path, sigma={"G": "sd_*_nM"}, **options)
    assert data.sigma[..., 0].tolist() == [[0.1, 0.3], [0.2, 0.4]] and not data.noise
    assert data.censored[..., 0].tolist() == [[0, 0], [-1, 0]]
    path.write_text("t,G_1_nM,G_2_nM\n0,1,<2\n1,3,4\n")
    assert nf.read_table(path, sigma={"G": "s0*G"}, **options).noise["G"].text == "s0*G"


def test_named_formulas_have_constants_of_their_own():
    assert read_formula("combined", "x", STATES).text == "sqrt(sigma_x**2 + (sigma_rel_x*prediction)**2)"
    assert read_formula("combined", "x", ("x",)).text == "sqrt(sigma**2 + (sigma_rel*prediction)**2)"
    assert read_formula("lognormal", "x", STATES).is_log
    assert read_formula({"relative": 0.1, "absolute": 2.0}, "x", STATES).text == "sqrt((2.0)**2 + (0.1*prediction)**2)"
    given = read_formula({"formula": "a + b*x", "constants": {"a": [0.1, 0, None]}}, "x", STATES)
    assert given.text == "a + b*x" and given.constants == {"a": [0.1, 0, None]}


def test_formulas_of_arrays_frames_and_tables(tmp_path):
    frame = pd.DataFrame({"t": [0, 1, 2], "x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    sigma = {"x": "s0 + s1*x", "y": 0.1}
    for data in (
        nf.from_frame(frame, time="t", states=STATES, sigma=sigma),
        nf.read_table(tmp_path / "d.csv", time="t", states=STATES, sigma=sigma),
        nf.Dataset.from_arrays([0, 1, 2], frame[["x", "y"]].to_numpy(), states=STATES, sigma=sigma),
        nf.Table(str(tmp_path / "d.csv"), "t", STATES, sigma=sigma).load().train,
    ):
        assert data.sigma is None
        assert [data.noise[name].text for name in STATES] == ["s0 + s1*x", "sqrt((0.1)**2)"]


@pytest.mark.parametrize(
    ("sigma", "says"),
    [
        ({"x": "s0 + s1*x"}, "sigma has no entry for the state 'y'"),
        ({"x": {"formula": 3}, "y": 1.0}, "sigma of 'x' must be {formula: 's0"),
        ({"x": {"formula": "a", "constant": {}}, "y": 1.0}, "sigma of 'x' must be {formula: 's0"),
        ({"x": "s0*x", "y": "t"}, "sigma names the column 't' beside a formula"),
        ("adaptive", "sigma must be estimate, a positive number, or a formula (additive, proportional"),
    ],
)
def test_errors(sigma, says):
    frame = pd.DataFrame({"t": [0, 1, 2], "x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=says.replace("(", r"\(").replace("{", r"\{")):
        nf.from_frame(frame, time="t", states=STATES, sigma=sigma)


TEXT = "t;x;y\n0;1,5;1\n1;<0,5;2\n2;> 7;\n3;;≤2\n"
MARKS = [[0, 0], [-1, 0], [1, 0], [0, -1]]
VALUES = [[1.5, 1.0], [0.5, 2.0], [7.0, np.nan], [np.nan, 2.0]]


def test_limits_in_a_table_with_a_row_for_each_time(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(TEXT)
    data = nf.read_table(path, time="t", states=STATES, censored=True)
    np.testing.assert_array_equal(data.ys[0], VALUES)
    np.testing.assert_array_equal(data.censored[0], MARKS)
    assert data.select([0]).censored.shape == data.ys.shape
    with pytest.raises(ValueError, match=r"line 3, column 'x': '<0.5' is not a number; set data.censored=true"):
        nf.read_table(path, time="t", states=STATES)


def test_limits_in_wide_and_tidy_tables(tmp_path):
    wide = tmp_path / "wide.csv"
    wide.write_text("t,A1,A2\n0,1,2\n1,<0.5,3\n2,0.4,>9\n")
    data = nf.read_table(wide, time="t", states=["x"], series=["A*"], censored=True)
    np.testing.assert_array_equal(data.censored[..., 0], [[0, -1, 0], [0, 0, 1]])
    tidy = tmp_path / "tidy.csv"
    tidy.write_text("t,what,value\n0,x,1\n0,y,<2\n1,x,<0.5\n1,y,3\n")
    data = nf.read_table(tidy, time="t", states=STATES, observable="what", value="value", censored=True)
    np.testing.assert_array_equal(data.censored[0], [[0, -1], [-1, 0]])
    np.testing.assert_array_equal(data.ys[0], [[1.0, 2.0], [0.5, 3.0]])


def test_columns_of_sigma_stay_beside_limits(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("t,x,sd\n0,1,0.1\n1,<0.5,0.2\n")
    data = nf.read_table(path, time="t", states=["x"], sigma={"x": "sd"}, censored=True)
    assert data.censored.shape == data.sigma.shape == (1, 2, 1)


def test_limits_beside_numbers_that_stand_for_missing_values(tmp_path):
    """A value such as -1 or 0 may stand for a missing one, which is no limit, and marks are none of these numbers."""
    path = tmp_path / "d.csv"
    path.write_text("t,x,u,g\n2,0,2,5\n3,<0.5,-1,5\n4,-1,4,-1\n5,absent,3,5\n6,3,3,5\n")
    given = {"missing": [-1, 0, 1, "absent"], "inputs": ["u"], "covariates": ["g"]}
    data = nf.read_table(path, time="t", states=["x"], censored=True, **given)
    np.testing.assert_array_equal(data.ys[0, :, 0], [np.nan, 0.5, np.nan, np.nan, 3])
    np.testing.assert_array_equal(data.censored[0, :, 0], [0, -1, 0, 0, 0])
    np.testing.assert_array_equal(data.us[0], [[2, 5], [2, 5], [4, 5], [3, 5], [3, 5]])


def test_limits_are_numbers_as_people_write_them(tmp_path):
    """Grouped thousands and decimal commas, below lines of text, and a limit in the first row."""
    path = tmp_path / "d.csv"
    path.write_text("Report\nof today\n\nt;x;y\n0;<1.000,5;1\n1;>= 2.500,25;2\n2;1,25;3\n")
    data = nf.read_table(path, time="t", states=STATES, censored=True)
    assert data.ys[0, :, 0].tolist() == [1000.5, 2500.25, 1.25] and data.censored[0, :, 0].tolist() == [-1, 1, 0]


def test_limits_have_no_mean(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("t,x\n0,1\n0,2\n1,3\n1,<0.5\n2,1\n")
    with pytest.raises(ValueError, match=r"'x' has a limit among repeated measurements of trajectory 'd' at t = 1"):
        nf.read_table(path, time="t", states=["x"], censored=True)
    path.write_text("t,x\n0,1\n0,2\n1,3\n1,5\n2,<1\n")
    data = nf.read_table(path, time="t", states=["x"], censored=True, sigma={"x": 0.1})
    assert data.censored[0, :, 0].tolist() == [0, 0, -1] and data.ys[0, :, 0].tolist() == [1.5, 4, 1]


def test_a_limit_is_no_standard_deviation(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("t,x,sd\n0,1,<0.1\n1,<0.5,0.2\n")
    with pytest.raises(ValueError, match=r"line 2, column 'sd': '<0.1' is not a number"):
        nf.read_table(path, time="t", states=["x"], sigma={"x": "sd"}, censored=True)


def test_a_prediction_beyond_a_limit_is_no_error():
    marks = [[[0], [-1], [1]]]
    data = nf.Dataset.from_arrays([0, 1, 2], [[[1.0], [0.5], [7.0]]], states=["x"], censored=marks)
    for predicted, errors in (([1.0, 0.2, 9.0], [0, 0, 0]), ([1.0, 0.7, 6.0], [0, 0.2, -1.0])):
        ys = np.reshape(predicted, (1, 3, 1))
        np.testing.assert_allclose((ys - data.near(ys))[0, :, 0], errors, atol=1e-12)


@pytest.mark.parametrize("marks", [[[[0], [2], [0]]], [[[0], [1]]]])
def test_marks_are_checked(marks):
    with pytest.raises(ValueError, match="censored"):
        nf.Dataset.from_arrays([0, 1, 2], [[[1.0], [0.5], [7.0]]], states=["x"], censored=marks)
