"""Wide, tidy and stacked tables, times without a column, covariates, and their error messages."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

import node_fit as nf
from node_fit.data.dataset import Dataset, from_frame, read_table
from node_fit.data.tables.layout import condition_in

WIDE: Mapping[str, Any] = MappingProxyType({"time": "t", "states": ["x"], "series": ["A*"]})
TIDY: Mapping[str, Any] = MappingProxyType(
    {"time": "t", "states": ["x", "y"], "trajectory": "id", "observable": "what", "value": "is"}
)

DATASETS = Path(__file__).parents[3] / "shared" / "datasets"  # The download folder, next to the repository.


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    return path


def assert_same(data: Dataset, other: Dataset) -> None:
    assert (data.states, data.inputs, data.trajectories) == (other.states, other.inputs, other.trajectories)
    for name in ("lengths", "ts", "ys", "us"):
        np.testing.assert_array_equal(getattr(data, name), getattr(other, name))


def rows_of(data: Dataset) -> pd.DataFrame:
    """A data frame with one row per time of each trajectory."""
    frames = []
    for i, name in enumerate(data.trajectories):
        n = data.lengths[i]
        columns = {"id": name, "t": data.ts[i, :n]}
        columns |= {state: data.ys[i, :n, k] for k, state in enumerate(data.states)}
        columns |= {each: data.us[i, :n, k] for k, each in enumerate(data.inputs)}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


@st.composite
def records(draw, states: int, inputs: int) -> dict[str, Any]:
    """Arguments of `Dataset.from_arrays`: uneven trajectories, values missing except in first and last rows."""
    ts, ys, us = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        times = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=6)))
        values = st.one_of(st.just(float("nan")), st.integers(-9, 9).map(float))
        y = np.array([[draw(values) for _ in range(states)] for _ in times])
        y[0], y[-1] = 1.0, 2.0
        ts.append(np.array(times, dtype=float))
        ys.append(y)
        us.append(
            np.array([[draw(st.integers(-9, 9)) / 4 for _ in range(inputs)] for _ in times]).reshape(len(times), inputs)
        )
    names = {"states": [f"x{i}" for i in range(states)], "inputs": [f"u{i}" for i in range(inputs)]}
    return {"ts": ts, "ys": ys, "us": us, "trajectories": [f"A{i}" for i in range(len(ts))], **names}


@settings(max_examples=25, deadline=None)
@given(drawn=records(states=2, inputs=1), seed=st.integers(0, 9), melted=st.booleans())
def test_a_melted_table_is_the_table(tmp_path_factory, drawn, seed, melted):
    data = Dataset.from_arrays(**drawn)
    frame = rows_of(data)
    whole = from_frame(frame, time="t", states=data.states, inputs=data.inputs, trajectory="id")
    assert_same(whole, data)
    keys = ["id", "t"] if melted else ["id", "t", "u0"]
    tidy = frame.melt(id_vars=keys, var_name="what", value_name="is")
    # Measurements may be in any order, as long as the trajectories first appear in the same order.
    order = np.random.default_rng(seed).permutation(len(tidy))
    tidy = tidy.iloc[order].sort_values("id", kind="stable")
    tidy = pd.concat([tidy, pd.DataFrame([{"id": "A0", "t": 99.0, "what": "z", "is": 1.0}])])
    path = tmp_path_factory.mktemp("tidy") / "tidy.tsv"
    tidy.to_csv(path, sep="\t", index=False)
    options = dict(TIDY) | {"states": data.states, "inputs": data.inputs}
    assert_same(read_table(path, **options), data)
    assert_same(from_frame(tidy, **options), data)


@settings(max_examples=25, deadline=None)
@given(drawn=records(states=1, inputs=0))
def test_a_wide_table_is_the_table(tmp_path_factory, drawn):
    """One column per trajectory over all times; a trajectory spans the rows from its first to its last value."""
    data = Dataset.from_arrays(**drawn)
    wide = rows_of(data).pivot(index="t", columns="id", values="x0").sort_index()
    wide["u"] = wide.index.to_numpy() / 2
    path = tmp_path_factory.mktemp("wide") / "wide.csv"
    wide.reset_index().to_csv(path, index=False)
    read = read_table(path, time="t", states=["x0"], inputs=["u"], series=["A?"])
    assert read.trajectories == data.trajectories
    for i, n in enumerate(data.lengths):
        first, last = data.ts[i, 0], data.ts[i, n - 1]
        rows = read.valid[i]
        assert read.ts[i, rows].tolist() == [t for t in wide.index if first <= t <= last]
        np.testing.assert_array_equal(read.us[i, rows, 0], read.ts[i, rows] / 2)
        seen, known = np.isfinite(read.ys[i, :, 0]), np.isfinite(data.ys[i, :, 0])
        np.testing.assert_array_equal(read.ts[i, seen], data.ts[i, known])
        np.testing.assert_array_equal(read.ys[i, seen], data.ys[i, known])


def test_rows_at_the_end_of_a_wide_table_that_are_empty_in_all_series_are_times_to_predict():
    frame = pd.DataFrame({"t": [0.0, 1, 2, 3], "A": [1.0, 2, np.nan, np.nan], "B": [3.0, np.nan, np.nan, np.nan]})
    asked = from_frame(frame, time="t", states=["x"], series=["*"])
    assert asked.lengths.tolist() == [4, 4]
    ended = from_frame(frame.iloc[:2], time="t", states=["x"], series=["*"])
    assert ended.lengths.tolist() == [2, 1]


def test_series_are_chosen_by_patterns_in_the_order_of_the_file(tmp_path):
    path = write(tmp_path, "wide.csv", "B 1,note,t,A2,A1,u\n1,,0,2,3,7\n4,,1,5,6,8\n")
    assert read_table(path, time="t", states=["x"], series=["A1", "B*"]).trajectories == ("B 1", "A1")
    some = read_table(path, time="t", states=["x"], series=["A*"], inputs=["u"])
    np.testing.assert_array_equal(some.ys[..., 0], [[2, 5], [3, 6]])
    np.testing.assert_array_equal(some.us[..., 0], [[7, 8], [7, 8]])
    write(tmp_path, "wide2.csv", "t,A2\n0,1\n")
    both = read_table(str(tmp_path / "*.csv"), time="t", states=["x"], series=["A*"])
    assert both.trajectories == ("wide/A2", "wide/A1", "wide2/A2")
    brackets = write(tmp_path, "c.txt", "t,x [V]\n0,1\n")
    assert read_table(brackets, time="t", states=["x"], series=["x [V]"]).trajectories == ("x [V]",)


def test_a_petab_table(tmp_path):
    """PEtab's measurement layout: unused columns may be empty, and observables may have different times."""
    header = "observableId\tpreequilibrationConditionId\tsimulationConditionId\tmeasurement\ttime\tdatasetId"
    rows = [
        "b\t\tc1\t3.5\t5\tc1_b",
        "b\t\tc1\t3.25\t15\tc1_b",
        "b\t\tc2\t1\t10\t",
        "a\t\tc2\t0.5\t5\t",
        "z\t\tc2\t9\t1\t",
    ]
    path = write(tmp_path, "measurementData.tsv", "\n".join([header, *rows]))
    data = read_table(
        path,
        time="time",
        states=["a", "b"],
        trajectory="simulationConditionId",
        observable="observableId",
        value="measurement",
        covariates={"dose": {"c1": 2.0, "default": 1.0}},
        units={"a": "mM", "dose": "mg", "z": "s"},
    )
    assert data.trajectories == ("c1", "c2")
    np.testing.assert_array_equal(data.ts, [[5, 15], [5, 10]])
    nan = np.nan
    np.testing.assert_array_equal(data.ys, [[[nan, 3.5], [nan, 3.25]], [[0.5, nan], [nan, 1]]])
    np.testing.assert_array_equal(data.us[..., 0], [[2, 2], [1, 1]])
    assert data.units == {"a": "mM", "dose": "mg"}


def test_a_tidy_trajectory_may_lie_in_several_files(tmp_path):
    one = write(tmp_path, "one.csv", "id,t,what,is\na,0,x,1\na,1,x,2\n")
    two = write(tmp_path, "two.csv", "id,t,what,is\na,0,y,3\na,0.5,y,4\n")
    data = read_table([one, two], **TIDY)
    np.testing.assert_array_equal(data.ts, [[0, 0.5, 1]])
    np.testing.assert_array_equal(data.ys[0], [[1, 3], [np.nan, 4], [2, np.nan]])
    with pytest.raises(ValueError, match=r"two\.csv, line 2, column 'is': 'x' .* in line 2 of .*one\.csv; "):
        two.write_text("id,t,what,is\na,0.0,x,1\na,1,y,2\n")
        read_table([one, two], **TIDY)


def test_tidy_times_may_be_timestamps(tmp_path):
    path = write(tmp_path, "a.csv", "id,t,what,is\na,2020-01-02,x,1\na,2020-01-01,y,2\na,2020-01-02T00:00,y,3\n")
    data = read_table(path, time_unit="d", **TIDY)
    np.testing.assert_array_equal(data.ts, [[0, 1]])
    np.testing.assert_array_equal(data.ys[0], [[np.nan, 2], [1, 3]])


def test_times_by_a_step(tmp_path):
    rows = write(tmp_path, "rows.csv", "id,x\nb,1\na,2\nb,3\nb,\n")
    data = read_table(rows, step=0.25, states=["x"], trajectory="id", units={"t": "s"})
    assert (data.time, data.units, data.lengths.tolist()) == ("t", {"t": "s"}, [3, 1])
    np.testing.assert_array_equal(data.ts[0], [0, 0.25, 0.5])
    column = write(tmp_path, "column.csv", '# one column\nx\n1\n"2"\n# a pause\nNA\n4\n\n')
    np.testing.assert_array_equal(read_table(column, step=1.0, states=["x"]).ys[0, :, 0], [1, 2, np.nan, 4])
    wide = write(tmp_path, "wide.csv", "A1,A2\n1,\n2,3\n,4\n")
    series = read_table(wide, step=2.0, states=["x"], series=["A*"])
    np.testing.assert_array_equal(series.ts, [[0, 2], [0, 2]])
    np.testing.assert_array_equal(series.ys[..., 0], [[1, 2], [3, 4]])


def test_stacks(tmp_path):
    whole = np.random.default_rng(0).normal(size=(3, 5, 2))
    np.save(tmp_path / "a.npy", whole)
    np.savez(
        tmp_path / "a.npz", t=np.arange(5.0), z=whole, p=whole[..., 0], q=whole[..., 1], other=np.zeros((4, 4, 4, 4))
    )
    savemat(tmp_path / "a.mat", {"t": np.arange(5.0), "z": whole, "p": whole[..., 0], "q": whole[..., 1]})
    expected = Dataset.from_arrays(np.arange(5.0), whole[..., :1], whole[..., 1:], states=["c0"], inputs=["c1"])
    assert_same(read_table(tmp_path / "a.npy", step=1.0, states=["c0"], inputs=["c1"]), expected)
    for ending in ("npz", "mat"):
        for names in ("pq", ("z0", "z1"), ("p", "z1")):
            read = read_table(tmp_path / f"a.{ending}", time="t", states=[names[0]], inputs=[names[1]])
            np.testing.assert_array_equal(read.ys, expected.ys)
            np.testing.assert_array_equal(read.us, expected.us)
            np.testing.assert_array_equal(read.ts, expected.ts)
    np.savez(tmp_path / "own.npz", t=np.cumsum(np.ones((3, 5)), axis=1) * [[1], [2], [3]], p=whole[..., 0])
    own = read_table(tmp_path / "own.npz", time="t", states=["p"])
    np.testing.assert_array_equal(own.ts[:, 1], [2, 4, 6])
    np.save(tmp_path / "b.npy", whole[:1])
    several = read_table(str(tmp_path / "*.npy"), step=1.0, states=["c0", "c1"])
    assert several.trajectories == ("a/0", "a/1", "a/2", "b/0")
    np.save(tmp_path / "rows.npy", whole[:, :1])
    assert read_table(tmp_path / "rows.npy", step=1.0, states=["c0"]).lengths.tolist() == [1, 1, 1]


def test_covariates_in_columns(tmp_path):
    text = "id,t,x,dose,u\na,0,1,,5\nb,0,2,7,5\na,1,3,2.5,5\na,2,4,2.50,5\n"
    path = write(tmp_path, "a.csv", text)
    data = read_table(path, time="t", states=["x"], inputs=["u"], covariates=["dose"], trajectory="id")
    assert data.inputs == ("u", "dose")
    np.testing.assert_array_equal(data.us[0], [[5, 2.5]] * 3)
    np.testing.assert_array_equal(data.us[1, 0], [5, 7])
    tidy = write(tmp_path, "b.csv", "id,t,what,is,dose\na,0,x,1,\na,0,y,1,4\na,1,x,1,\n")
    np.testing.assert_array_equal(read_table(tidy, covariates=["dose"], **TIDY).us, [[[4], [4]]])
    # A trajectory in two files takes its covariate from either file.
    write(tmp_path, "c1.csv", "id,t,x,dose\na,0,1,3\n")
    write(tmp_path, "c2.csv", "id,t,x,dose\na,1,1,\n")
    both = read_table(str(tmp_path / "c?.csv"), time="t", states=["x"], covariates=["dose"], trajectory="id")
    np.testing.assert_array_equal(both.us, [[[3], [3]]])


def test_names_of_series_give_the_numbers_of_a_covariate(tmp_path):
    path = write(tmp_path, "a.csv", "t,S0=0.5 mM,S0 = 2,S0=2 (again),other\n0,1,4,5,9\n1,2,,6,9\n2,3,8,7,9\n")
    options = {"time": "t", "states": ["P"], "series": ["S0*"]}
    data = read_table(path, **options | {"series": ["S0=0.5 mM", "S0 = 2", "S0=2 (again)"]}, covariates=["S0"])
    assert data.trajectories == ("S0=0.5 mM", "S0 = 2", "S0=2 (again)") and data.inputs == ("S0",)
    np.testing.assert_array_equal(data.us[..., 0], [[0.5] * 3, [2] * 3, [2] * 3])
    np.testing.assert_array_equal(data.ys[..., 0], [[1, 2, 3], [4, np.nan, 8], [5, 6, 7]])
    path = write(tmp_path, "b.csv", "t,S0=0.5,S0=high\n0,1,4\n1,2,5\n")
    with pytest.raises(
        ValueError, match=r"b.csv, column 'S0=high': its name gives no number of the covariate 'S0', as"
    ):
        read_table(path, **options | {"series": ["S0=*"]}, covariates=["S0"])
    with pytest.raises(ValueError, match="has no column 'S1'"):
        read_table(path, **options, covariates=["S1"])


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("S0=0.5", ("S0", 0.5)),
        (" pH = 7,4 ", ("pH", 7.4)),
        ("dose=1e-3 mg/l", ("dose", 1e-3)),
        ("T=-4 °C", ("T", -4.0)),
        ("T=25", ("T", 25.0)),
        ("a=b", None),
        ("k=3=2", None),
        ("t=", None),
        ("x", None),
        ("v=1.2.3", None),
    ],
)
def test_conditions_in_names_of_columns(name, condition):
    assert condition_in(name) == condition


def test_covariates_by_name_reach_new_files(tmp_path):
    for name, ids in {"old": "ab", "new": "bc", "strange": "q"}.items():
        rows = "".join(f"{each},{t},1\n" for each in ids for t in range(3))
        write(tmp_path, f"{name}.csv", "id,t,x\n" + rows)
    table = nf.Table(
        str(tmp_path / "old.csv"),
        time="t",
        states=["x"],
        trajectory="id",
        covariates={"dose": {"a": 1, "b": 2, "c": 3}, "age": {"default": 40, "b": 50}},
        test_path=str(tmp_path / "new.csv"),
        split=nf.Split(validation=0.0),
    )
    parts = table.load()
    assert parts.train.inputs == ("dose", "age")
    np.testing.assert_array_equal(parts.train.us[:, 0], [[1, 40], [2, 50]])
    np.testing.assert_array_equal(table.read(str(tmp_path / "new.csv")).us[:, 0], [[2, 50], [3, 40]])
    with pytest.raises(
        ValueError, match=r"covariates\.dose has no number for trajectory 'q', only for 'a', 'b', 'c'; "
    ):
        table.read(str(tmp_path / "strange.csv"))


class Bad(NamedTuple):
    """A malformed file, how it is read, and what the error must say besides the file's name."""

    text: str
    options: Mapping[str, Any]
    says: tuple[str, ...]


ROWS = {"time": "t", "states": ["x"], "trajectory": "id"}
DOSE = ROWS | {"covariates": ["dose"]}
STEP = {"step": 1.0, "states": ["x"]}
NO_GAPS = {"input_gaps": "none"}
WITH_U = dict(TIDY) | {"inputs": ["u"]}
DAYS = dict(TIDY) | {"time_unit": "d"}
BAD_TEXTS = {
    "wide_text": Bad("t,A1,A2\n0,1,2\n1,2,off\n", WIDE, ("line 3", "column 'A2'", "'off'", "not a number")),
    "wide_infinite": Bad("t,A1\n0,1\n1,inf\n", WIDE, ("line 3", "column 'A1'", "infinite")),
    "wide_no_match": Bad(
        "t,B1,AA\n0,1,2\n", WIDE | {"series": ["A?", "B10"]}, ("no column for series 'B10'", "Did you mean 'B1'")
    ),
    "wide_empty_series": Bad("t,A1,A2\n0,1,\n1,2,\n", WIDE, ("column 'A2'", "no value", "narrow series")),
    "wide_twice": Bad("t,A1,A1\n0,1,2\n", WIDE, ("2 columns", "'A1'", "columns 2 and 3")),
    "wide_nameless": Bad("t,,A\n0,1,2\n", WIDE | {"series": ["*"]}, ("column 2", "no name", "narrow")),
    "wide_missing_time": Bad("t,A1\n0,1\n,2\n", WIDE, ("line 3", "column 't'", "missing")),
    "wide_repeated_time": Bad("t,A1,A2\n0,,1\n1,2,1\n1,2,1\n", WIDE, ("line 4", "column 't'", "repeats", "'A1'")),
    "wide_input": Bad("t,A1,u\n0,1,1\n1,2,\n", WIDE | {"inputs": ["u"]} | NO_GAPS, ("line 3", "column 'u'", "missing")),
    "tidy_text": Bad("id,t,what,is\na,0,x,1\na,0,y,low\n", TIDY, ("line 3", "column 'is'", "'low'", "not a number")),
    "tidy_infinite": Bad("id,t,what,is\na,0,y,1\na,0,x,inf\n", TIDY, ("line 3", "column 'is'", "infinite")),
    "tidy_unknown": Bad("id,t,what,is\na,0,x,1\na,0,Y,1\n", TIDY, ("column 'what' never names 'y'", "mean 'Y'")),
    "tidy_twice": Bad("id,t,what,is\na,0,x,1\na,0,y,1\na,0.0,x,1\n", TIDY, ("line 4", "'x'", "line 2", "average")),
    "tidy_nothing": Bad("id,t,what,is\na,0,x,1\na,0,y,1\na,1,,1\n", TIDY, ("line 4", "'what'", "no observable")),
    "tidy_no_time": Bad("id,t,what,is\na,0,x,1\na,,y,1\n", TIDY, ("line 3", "column 't'", "missing")),
    "tidy_no_id": Bad("id,t,what,is\na,0,x,1\n,0,y,1\n", TIDY, ("line 3", "column 'id'", "no trajectory")),
    "tidy_no_value": Bad("id,t,what,IS\na,0,x,1\n", TIDY, ("no column 'is'", "Did you mean 'IS'")),
    "tidy_stamp": Bad("id,t,what,is\na,2020-01-01,x,1\na,later,y,1\n", DAYS, ("line 3", "'later'")),
    "tidy_input": Bad("id,t,what,is,u\na,0,x,1,2\na,0,y,1,3\n", WITH_U, ("line 3", "column 'u'", "line 2")),
    "tidy_input_empty": Bad("id,t,what,is,u\na,0,x,1,2\na,1,y,1,\n", WITH_U | NO_GAPS, ("line 3", "'u'", "every time")),
    "tidy_input_unmeasured": Bad(
        "id,t,what,is\na,0,x,1\na,0,y,1\na,1,u,1\n", WITH_U | NO_GAPS, ("line 2", "'u'", "every time")
    ),
    "tidy_input_unknown": Bad("id,t,what,is,U\na,0,x,1,1\na,0,y,1,1\n", WITH_U, ("never names 'u'",)),
    "covariate_varies": Bad("id,t,x,dose\na,0,1,2\nb,0,1,9\na,1,1,3\n", DOSE, ("line 4", "'dose'", "line 2", "'a'")),
    "covariate_of_several": Bad(
        "id,t,x,dose\na,0,1,2\nb,0,1,9\n",
        {"time": "t", "states": ["x"], "covariates": ["dose"]},
        ("line 3", "'dose'", "line 2", "If these are several trajectories", "trajectory=NAME"),
    ),
    "covariate_absent": Bad("id,t,x,dose\na,0,1,2\nb,0,1,\n", DOSE, ("line 3", "column 'dose'", "'b'")),
    "covariate_text": Bad("id,t,x,dose\na,0,1,much\n", DOSE, ("line 2", "column 'dose'", "'much'")),
    "covariate_tidy": Bad(
        "id,t,what,is,u\na,0,x,1,2\na,0,y,1,3\n", dict(TIDY) | {"covariates": ["u"]}, ("line 3", "column 'u'", "line 2")
    ),
    "step_gap": Bad("x\n1\n\n3\n", STEP, ("line 3", "blank", "write NA")),
    "step_empty_quotes": Bad('x\n1\n""\n3\n', STEP, ("line 3", "blank", "write NA")),
    "step_other_column": Bad("y\n1\n", STEP, ("no column 'x'", "'y'")),
    "step_no_names": Bad("1\n2\n", STEP, ("line 1", "holds numbers", "names above")),
    "step_no_separator": Bad("x|y\n1|2\n", STEP, ("no column 'x'", "'x|y'")),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_malformed_text(tmp_path, case):
    bad = BAD_TEXTS[case]
    path = write(tmp_path, f"{case}.csv", bad.text)
    with pytest.raises(ValueError) as caught:
        read_table(path, **bad.options)
    sentence = str(caught.value)
    for words in (str(path), *bad.says):
        assert words in sentence, sentence
    assert "\n" not in sentence and sentence[-1] in ".?"


A = {"time": "t", "states": ["x"]}
BAD_ROLES = {
    "no time": ({"states": ["x"]}, "time is missing; name the column"),
    "time and step": (A | {"step": 1.0}, "time and step are both given"),
    "step of nothing": (A | {"time": None, "step": 0.0}, "step must be a positive number"),
    "endless step": (A | {"time": None, "step": float("inf")}, "step must be a positive number"),
    "step in days": (A | {"time": None, "step": 1.0, "time_unit": "d"}, "time_unit='d' is for a column of timestamps"),
    "series of two": (A | {"states": ["x", "y"], "series": ["*"]}, "but states names 2"),
    "series twice": (A | {"trajectory": "id", "series": ["*"]}, "leave it out, or leave out trajectory"),
    "bare series": (A | {"series": "x"}, r"series=\['x'\]"),
    "observable alone": (A | {"observable": "u"}, "observable and value go together"),
    "value alone": (A | {"value": "u"}, "observable and value go together"),
    "tidy steps": (A | {"time": None, "step": 1.0, "observable": "u", "value": "v"}, "observable needs time"),
    "value is time": (A | {"observable": "u", "value": "t"}, "'t' is named twice"),
    "measured trajectory": (
        {"time": "t", "states": ["id"], "trajectory": "id", "observable": "u", "value": "v"},
        "'id' is named twice",
    ),
    "covariate and state": (A | {"covariates": ["x"]}, "'x' is named twice"),
    "state called t": (A | {"time": None, "step": 1.0, "states": ["t"]}, "'t' is named twice"),
    "no number": (A | {"covariates": {"u": {"0": float("nan")}}}, r"covariates\.u\.0 must be a finite number, got nan"),
    "near trajectory": (A | {"covariates": {"u": {"run": 1.0, "default": 1.0}}}, r"'run', .* Did you mean 'run1'\?"),
    "no default": (A | {"covariates": {"u": {}}}, "has no number for trajectory 'run1'"),
    "covariate is input": (A | {"inputs": ["u"], "covariates": {"u": {"run1": 1.0}}}, "'u' is used twice"),
}


@pytest.mark.parametrize("case", BAD_ROLES)
def test_roles_that_contradict(tmp_path, case):
    options, says = BAD_ROLES[case]
    with pytest.raises(ValueError, match=says):
        read_table(write(tmp_path, "run1.csv", "t,x,u\n0,1,1\n"), **options)


def test_a_table_keeps_bounds_for_the_fit():
    bounds = {"x": [0.0, None]}
    assert nf.Table("nowhere.csv", time="t", states=["x"], bounds=bounds).bounds == bounds
    assert nf.Table("nowhere.csv", time="t", states=["x"]).bounds == {}


def test_a_table_refuses_roles_before_any_file_is_read():
    with pytest.raises(ValueError, match="time is missing"):
        nf.Table("nowhere.csv", time=None, states=["x"])
    with pytest.raises(ValueError, match="must be a finite number"):
        nf.Table("nowhere.csv", time="t", states=["x"], covariates={"u": {"a": float("inf")}})


def test_malformed_stacks(tmp_path):
    stack = np.zeros((3, 4, 2))
    np.savez(tmp_path / "times.npz", t=np.arange(5.0), x=stack[..., 0])
    np.savez(tmp_path / "turned.npz", t=np.arange(3.0), x=stack[..., 0])
    np.savez(tmp_path / "axes.npz", t=np.arange(4.0), x=np.zeros((2, 3, 4, 5)))
    np.savez(tmp_path / "layer.npz", t=np.arange(4.0), x1=stack)
    np.savez(tmp_path / "late.npz", t=np.arange(4.0), x=np.where(np.arange(12).reshape(3, 4) == 6, np.inf, 0))
    np.savez(tmp_path / "repeat.npz", t=np.array([[0.0, 1, 2, 3]] * 2 + [[0.0, 1, 1, 3]]), x=stack[..., 0])
    says = {
        "times.npz": "column 't' has shape (5,), but column 'x' has shape (3, 4), which is (trajectory, time)",
        "turned.npz": "column 't' has shape (3,), but column 'x' has shape (3, 4), which is (trajectory, time)",
        "axes.npz": "column 'x' has shape (2, 3, 4, 5)",
        "layer.npz": "no column 'x'; its columns are 't', 'x1'. Did you mean 'x1'?",
        "late.npz": "row 2 (counted from 0) of trajectory '1', column 'x': the value is infinite",
        "repeat.npz": "row 2 (counted from 0) of trajectory '2', column 't': the time repeats",
    }
    for name, words in says.items():
        with pytest.raises(ValueError) as caught:
            read_table(tmp_path / name, time="t", states=["x"])
        assert str(tmp_path / name) in str(caught.value) and words in str(caught.value), str(caught.value)
    np.save(tmp_path / "stack.npy", stack)
    with pytest.raises(ValueError, match=r"stack\.npy holds stacks, .*; leave out series, and name its arrays"):
        read_table(tmp_path / "stack.npy", step=1.0, states=["x"], series=["c*"])
    np.savez(tmp_path / "tidy.npz", t=np.arange(4.0), what=np.full((3, 4), "x"), v=stack[..., 0])
    with pytest.raises(ValueError, match=r"tidy\.npz holds stacks, .*; leave out observable and value"):
        read_table(tmp_path / "tidy.npz", time="t", states=["x"], observable="what", value="v")
    with pytest.raises(ValueError, match=r"no column 'c2'; its columns are 'c0', 'c1'\."):
        read_table(tmp_path / "stack.npy", step=1.0, states=["c2"])


@pytest.mark.skipif(not DATASETS.is_dir(), reason="the published data sets are not here")
def test_published_measurements_in_a_tidy_table():
    """Carotenoids in six conditions; the expected numbers are counted in the file itself."""
    path = DATASETS / "carotenoids" / "measurementData_Bruno_JExpBot2016.tsv"
    rows = pd.read_csv(path, sep="\t")
    states = sorted(rows["observableId"].unique())[:-1]
    data = read_table(
        path,
        time="time",
        states=states,
        trajectory="simulationConditionId",
        observable="observableId",
        value="measurement",
    )
    rows = rows[rows["observableId"].isin(states)]
    assert set(data.trajectories) == set(rows["simulationConditionId"])
    assert data.mask.sum() == len(rows)
    for row in rows.itertuples():
        i, k = data.trajectories.index(row.simulationConditionId), states.index(row.observableId)
        (at,) = np.flatnonzero(data.valid[i] & (data.ts[i] == row.time))
        assert data.ys[i, at, k] == row.measurement


@pytest.mark.skipif(not DATASETS.is_dir(), reason="the published data sets are not here")
def test_published_strokes_in_stacks():
    letters = [DATASETS / "handwriting" / f"{letter}.npy" for letter in "dl"]
    data = read_table(letters, step=1 / 60, states=["c0", "c1"])
    assert data.trajectories == tuple(f"{letter}/{i}" for letter in "dl" for i in range(8))
    np.testing.assert_array_equal(data.ys, np.concatenate([np.load(letter) for letter in letters]))
    np.testing.assert_allclose(data.ts[:, -1], 999 / 60, rtol=1e-14)
    assert data.shares_grid


def test_rows_of_wide_and_tidy_frames_are_those_of_the_frame():
    wide = pd.DataFrame({"t": [0, 1, 2], "A": [np.nan, 1, 2], "B": [1.0, 2, 3], "u": [0, 0, np.nan]})
    with pytest.raises(ValueError, match=r"data frame, row 2 \(counted from 0\) of trajectory 'A', column 'u'"):
        from_frame(wide, time="t", states=["x"], series=["A", "B"], inputs=["u"], **NO_GAPS)
    tidy = pd.DataFrame({"id": "a", "t": [0, 1, 2], "what": ["z", "x", "y"], "is": ["?", "1", "?"]}, index=[7, 8, 9])
    with pytest.raises(ValueError, match=r"data frame, row 2 \(counted from 0\), column 'is': '\?' is not a number"):
        from_frame(tidy, **TIDY, missing=[])


VISITS = "plant,visit,t,x\nA,spring,0,1\nA,spring,1,2\nA,autumn,0,3\nA,autumn,1,4\nB,spring,0,5\nB,spring,1,6\n"


def test_occasions_are_records_of_their_subject(tmp_path):
    (tmp_path / "visits.csv").write_text(VISITS)
    words = {"time": "t", "states": ["x"], "occasion": "visit"}
    data = read_table(tmp_path / "visits.csv", trajectory="plant", **words)
    assert data.trajectories == ("A/spring", "A/autumn", "B/spring")
    np.testing.assert_array_equal(data.ys[:, :, 0], [[1, 2], [3, 4], [5, 6]])
    frame = pd.read_csv(tmp_path / "visits.csv")
    assert from_frame(frame, trajectory="plant", **words).trajectories == data.trajectories
    with pytest.raises(ValueError, match=r"no column names the subjects; give trajectory=NAME"):
        read_table(tmp_path / "visits.csv", **words)
    with pytest.raises(ValueError, match="'year'"):
        read_table(tmp_path / "visits.csv", trajectory="plant", **words | {"occasion": "year"})


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_read_in_seconds_in_every_layout(tmp_path):
    count, each = 100, 1000
    ids, t = np.repeat(np.arange(count), each), np.tile(np.arange(each) / 4, count)
    rows = pd.DataFrame({"id": ids, "t": t, "x": np.sin(t), "u": ids / 2})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.melt(["id", "t", "u"], ["x"], "what", "is").to_csv(tmp_path / "tidy.csv", index=False)
    wide = pd.DataFrame({"t": np.arange(count * each) / 4, "A1": 1.0, "A2": 2.0})
    wide.to_csv(tmp_path / "wide.csv", index=False)
    np.save(tmp_path / "stack.npy", np.ones((count, each, 2)))
    layouts = {
        "rows.csv": {"time": "t", "states": ["x"], "covariates": ["u"], "trajectory": "id"},
        "tidy.csv": dict(TIDY) | {"states": ["x"], "inputs": ["u"]},
        "wide.csv": WIDE,
        "stack.npy": {"step": 1.0, "states": ["c0"], "inputs": ["c1"]},
    }
    for name, options in layouts.items():
        began = time.perf_counter()
        assert read_table(tmp_path / name, **options).valid.sum() >= count * each
        assert time.perf_counter() - began < 5, name
