"""Reading tables into datasets: every supported format, and one clear error for every malformed file."""

import datetime
import gzip
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.io import savemat

from node_fit.data.dataset import Dataset, from_frame, read_table
from node_fit.data.table_source import Table

T = np.array([0.0, 0.5, 2.0])
X = np.array([1.0, np.nan, -3e-5])
U = np.array([0.25, 0.5, 1.0])


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def is_example(data: Dataset) -> None:
    np.testing.assert_array_equal(data.ts, T[None])
    np.testing.assert_array_equal(data.ys, X[None, :, None])
    np.testing.assert_array_equal(data.us, U[None, :, None])
    assert (data.states, data.inputs, data.time) == (("x",), ("u",), "t")


GOOD_TEXTS = {
    "comma.csv": "t,x,u\n0,1,.25\n0.5,,0.5\n2,-3e-5,1\n",
    "no_newline_at_the_end.csv": "t,x,u\n0,1,.25\n0.5,,0.5\n2,-3e-5,1",
    "windows.csv": "t,x,u\r\n0,1,.25\r\n0.5,NA,0.5\r\n2,-3e-5,1\r\n",
    "mark.csv": "\ufefft,x,u\n0,1,.25\n0.5,NaN,0.5\n2,-3e-5,1\n",
    "semicolon.csv": "t;x;u\n0;1;0.25\n0.5;nan;0.5\n2;-3e-5;1\n",
    "decimal_comma.csv": "t;x;u\n0;1;,25\n0,5;;0,5\n2;-3e-5;1\n",
    "decimal_comma_blanks.txt": "t x u\n0 1 0,25\n0,5 NA 0,5\n2 -3e-5 1\n",
    "tab.tsv": "t\tx\tu\n0\t1\t.25\n0.5\t\t0.5\n2\t-3e-5\t1\n",
    "blanks.txt": "  t     x   u\n\n  0     1   0.25\n  0.5   NA  0.5\n  2   -3e-5 1\n",
    "comments.csv": "# where from\n\n# when\nt, x, u\n0, 1, 0.25\n# a pause\n0.5, , 0.5\n   \n2, -3e-5, 1\n",
    "quoted.csv": '"t","x","u"\n"0","1","0.25"\n"0.5","","0.5"\n"2","-3e-5","1"\n',
    "other_columns.csv": "note,u,x,t,note\n,0.25,1,0,\nfar off,0.5,null,0.5,\nb,1,-3e-5,2,c\n",
    "index.csv": ",t,x,u\n0,0,1,0.25\n1,0.5,,0.5\n2,2,-3e-5,1\n",
}


@pytest.mark.parametrize("name", GOOD_TEXTS)
def test_reads_text(tmp_path, name):
    data = read_table(write(tmp_path, name, GOOD_TEXTS[name]), time="t", states=["x"], inputs=["u"])
    is_example(data)
    assert data.trajectories == (Path(name).stem,)


def test_reads_packed_and_other_encodings(tmp_path):
    text = "t,x [µM],u\n0,1,.25\n0.5,,0.5\n2,-3e-5,1\n"
    for name, raw in {
        "packed.csv.gz": gzip.compress(text.encode()),
        "latin.csv": text.encode("latin-1"),
        "wide.txt": text.encode("utf-16"),
    }.items():
        data = read_table(write(tmp_path, name, raw), time="t", states=["x [µM]"])
        assert (data.states, data.trajectories) == (("x [µM]",), (name.split(".")[0],))
        np.testing.assert_array_equal(data.ys, X[None, :, None])


def test_reads_typed_formats(tmp_path):
    columns = {"t": T, "x": X, "u": U}
    pd.DataFrame(columns).set_index("t").to_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", t=T, x=X, u=U, other=np.zeros((4, 4)))
    savemat(tmp_path / "a.mat", columns | {"other": np.zeros((4, 4))})
    records = np.zeros(3, dtype=[("t", ">f8"), ("x", "f8"), ("u", "f4")])
    for name, column in columns.items():
        records[name] = column
    np.save(tmp_path / "a.npy", records)
    for ending in ("parquet", "npz", "mat", "npy"):
        is_example(read_table(tmp_path / f"a.{ending}", time="t", states=["x"], inputs=["u"]))
    np.save(tmp_path / "matrix.npy", np.stack([T, X, U], axis=1))
    matrix = read_table(tmp_path / "matrix.npy", time="c0", states=["c1"], inputs=["c2"])
    np.testing.assert_array_equal(matrix.ys, X[None, :, None])


def test_header_with_blanks_below_comments(tmp_path):
    path = write(
        tmp_path, "lynx_hare.csv", "# source\n# date, time\nYear, Lynx, Hare\n1900, 4.0, 30.0\n1901, 6.1, 47.2"
    )
    data = read_table(str(path), time="Year", states=["Lynx", "Hare"], units={"Lynx": "thousands", "Bear": "none"})
    np.testing.assert_array_equal(data.ys, [[[4.0, 30.0], [6.1, 47.2]]])
    assert data.units == {"Lynx": "thousands"}


def test_uneven_mixed_trajectories(tmp_path):
    path = write(tmp_path, "runs.csv", "id,t,x\nb,0,1\na,5,2\nb,1,3\na,7,4\na,9,5\n")
    data = read_table(path, time="t", states=["x"], trajectory="id")
    assert data.trajectories == ("b", "a")
    assert data.lengths.tolist() == [2, 3]
    np.testing.assert_array_equal(data.ts[1], [5, 7, 9])
    np.testing.assert_array_equal(data.ys[0, :2, 0], [1, 3])
    assert not data.valid[0, 2]


def test_several_files(tmp_path):
    for name, start in {"one": 0, "two": 3}.items():
        write(tmp_path, f"{name}.csv", f"id,t,x\nA,{start},{start}\nA,{start + 1},9\n")
    each = read_table(str(tmp_path / "*.csv"), time="t", states=["x"])
    assert each.trajectories == ("one", "two")
    together = read_table([tmp_path / "one.csv", tmp_path / "two.csv"], time="t", states=["x"], trajectory="id")
    np.testing.assert_array_equal(together.ts, [[0, 1, 3, 4]])
    with pytest.raises(ValueError, match=r"one\.csv, line 2, column 't': .* in line 3 of .*two\.csv; "):
        read_table([tmp_path / "two.csv", tmp_path / "one.csv"], time="t", states=["x"], trajectory="id")
    with pytest.raises(ValueError, match="named twice"):
        read_table([tmp_path / "*.csv", tmp_path / "two.csv"], time="t", states=["x"])
    (tmp_path / "more").mkdir()
    write(tmp_path / "more", "one.csv", "t,x\n0,1\n")
    names = read_table(str(tmp_path / "**" / "one.csv"), time="t", states=["x"]).trajectories
    assert len(set(names)) == 2


@pytest.mark.parametrize(("unit", "seconds"), [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0)])
def test_timestamps_count_from_the_first(tmp_path, unit, seconds):
    text = "date;x\n2020-02-28;1\n2020-02-29 12:00:00;2,5\n2020-03-01T00:00:00.500;3\n"
    data = read_table(write(tmp_path, "a.csv", text), time="date", states=["x"], time_unit=unit)
    np.testing.assert_allclose(data.ts[0] * seconds, [0, 1.5 * 86400, 2 * 86400 + 0.5], rtol=1e-14)
    assert data.units == {"date": unit}


def test_timestamps_of_files_and_of_shared_trajectories(tmp_path):
    one = write(tmp_path, "one.csv", "date,x,id\n2020-01-01,1,a\n2020-01-03,1,a\n")
    two = write(tmp_path, "two.csv", "date,x,id\n2020-01-11,1,a\n2020-01-12,1,b\n")
    each = read_table([one, two], time="date", states=["x"], time_unit="d")
    np.testing.assert_array_equal(each.ts, [[0, 2], [0, 1]])
    shared = read_table([one, two], time="date", states=["x"], time_unit="d", trajectory="id")
    np.testing.assert_array_equal(shared.ts[0], [0, 2, 10])
    assert shared.ts[1, 0] == 11
    zoned = write(tmp_path, "zoned.csv", "date,x,id\n2020-02-01T00:00Z,1,a\n")
    with pytest.raises(ValueError, match=r"zoned\.csv, line 2, column 'date': the time zone is Z, .* it is not given"):
        read_table([one, zoned], time="date", states=["x"], time_unit="d", trajectory="id")


@pytest.mark.parametrize(
    ("step", "unit"), [("200ms", "s"), ("10s", "s"), ("60s", "min"), ("10min", "min"), ("1h", "h"), ("7D", "d")]
)
def test_the_unit_of_timestamps_is_chosen_by_their_spacing(step, unit):
    stamps = pd.date_range("2024-03-01", periods=5, freq=step)
    data = from_frame(pd.DataFrame({"day": stamps, "x": 1.0}), time="day", states=["x"])
    assert data.units == {"day": unit}
    steps = np.diff(data.ts[0]) * pd.Timedelta(1, {"d": "D"}.get(unit, unit)).total_seconds()
    np.testing.assert_allclose(steps, pd.Timedelta(step).total_seconds(), rtol=1e-12)


def test_pauses_between_trajectories_say_nothing_of_the_unit(tmp_path):
    text = "date,x,id\n2020-01-01T00:00,1,a\n2020-01-01T00:10,1,a\n2020-06-01T00:00,1,b\n2020-06-01T00:10,1,b\n"
    data = read_table(write(tmp_path, "a.csv", text), time="date", states=["x"], trajectory="id")
    assert data.units == {"date": "min"}


def test_dates_whose_year_comes_last_need_a_word(tmp_path):
    path = write(tmp_path, "a.csv", "date;x\n01/03/2024 12:00;1\n1/3/2024 13:00;2,5\n")
    options = {"time": "date", "states": ["x"]}
    with pytest.raises(
        ValueError, match=r"'01/03/2024 12:00' begins with a day or .*, day_first=true or day_first=false"
    ):
        read_table(path, **options)
    for day_first, first in ((True, "2024-03-01T12:00"), (False, "2024-01-03T12:00")):
        data = read_table(path, **options, day_first=day_first)
        assert data.dates.zero[0] == np.datetime64(first) and data.ts.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        pytest.param(["1.6.2024", "2.6.2024", "4.6.2024"], "2024-06-01", id="dots"),
        pytest.param(["06.01.2024", "06.13.2024"], "2024-06-01", id="dots, but no month 13"),
        pytest.param(["01/06/2024 23:00", "02/06/2024 00:00"], "2024-06-01T23:00", id="an hour, not a month"),
        pytest.param(["06/01/24 23:00", "06/02/24 00:00"], "2024-06-01T23:00", id="an hour, the month first"),
        pytest.param(["30/06/24 23:00", "01/07/24 00:00"], "2024-06-30T23:00", id="no month 30"),
        pytest.param(["02-10-2023", "02-12-2023", "03-05-2023"], "2023-02-10", id="closer by the month first"),
        pytest.param(["01/06/2024", "02/06/2024", "03/06/2024"], None, id="days or months"),
        pytest.param(["01/02/2024", "06/05/2024", "11/09/2024"], None, id="months apart either way"),
    ],
)
def test_rows_show_whether_dates_begin_with_the_day(tmp_path, texts, first):
    path = write(tmp_path, "a.csv", "date,x\n" + "".join(f"{text},1\n" for text in texts))
    if first is None:
        with pytest.raises(ValueError, match="begins with a day or with a month"):
            read_table(path, time="date", states=["x"])
    else:
        assert read_table(path, time="date", states=["x"]).dates.zero[0] == np.datetime64(first)


@pytest.mark.parametrize("zone", ["", "Z", "+02:00", "+0530", "-03"])
def test_times_lead_back_to_their_dates(tmp_path, zone):
    texts = [f"2024-03-0{day}T1{day}:20:30.25{zone}" for day in (1, 2, 5)]
    path = write(tmp_path, "a.csv", "date,x\n" + "".join(f"{each},1\n" for each in texts))
    data = read_table(path, time="date", states=["x"])
    later = data.windows(2, 1).select([1])
    assert list(later.dates.stamps(np.zeros(2, int), later.ts[0])) == list(pd.to_datetime(texts[1:]))


def test_timestamps_and_numbers_do_not_go_together(tmp_path):
    one, two = write(tmp_path, "one.csv", "t,x\n0,1\n"), write(tmp_path, "two.csv", "t,x\n2020-01-01,1\n")
    with pytest.raises(ValueError, match=r"two\.csv, column 't' holds timestamps, but other files hold numbers"):
        read_table([one, two], time="t", states=["x"])


def test_timestamps_of_frames():
    days = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 4)]
    index = pd.to_datetime(days)
    for stamps in (days, index, index.tz_localize("UTC"), [f"{day}T00:00+02:00" for day in days]):
        data = from_frame(pd.DataFrame({"day": stamps, "x": 1.0}), time="day", states=["x"], time_unit="d")
        np.testing.assert_array_equal(data.ts, [[0, 3]])


def test_frame_of_nullable_and_object_columns():
    frame = pd.DataFrame(
        {
            "t": pd.array([0, 1, 2], dtype="Int64"),
            "x": pd.array([1, None, 3], dtype="Int64"),
            "y": np.array(["1.5", None, " NA "], dtype=object),
            "run": [7.0, 7.0, 7.0],
            3: [1, 2, 3],
        },
        index=[5, 5, 5],
    )
    data = from_frame(frame, time="t", states=["x", "y"], inputs=["3"], trajectory="run")
    np.testing.assert_array_equal(data.ys[0], [[1, 1.5], [np.nan, np.nan], [3, np.nan]])
    assert data.trajectories == ("7",)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(FINITE, min_size=1, max_size=8, unique=True).map(sorted),
    drawn=st.data(),
    delimiter=st.sampled_from([",", ";", "\t"]),
    decimal=st.sampled_from([".", ","]),
)
def test_round_trip(tmp_path_factory, times, drawn, delimiter, decimal):
    values = drawn.draw(arrays(np.float64, (len(times), 2), elements=st.one_of(FINITE, st.just(np.nan))))
    decimal = "." if delimiter == "," else decimal
    path = tmp_path_factory.mktemp("round") / "trip.csv"
    frame = pd.DataFrame({"t": times, "x": values[:, 0], "y": values[:, 1]})
    frame.to_csv(path, index=False, sep=delimiter, decimal=decimal)
    data = read_table(path, time="t", states=["x", "y"])
    np.testing.assert_array_equal(data.ts[0], times)
    np.testing.assert_array_equal(data.ys[0], values)
    again = from_frame(frame, time="t", states=["x", "y"])
    np.testing.assert_array_equal(again.ys, data.ys)


class Bad(NamedTuple):
    """A malformed file, and what the error must say besides the file's name."""

    text: str | bytes
    says: tuple[str, ...]
    options: Mapping[str, Any] = MappingProxyType({})


INPUT = {"inputs": ["u"]}
NO_GAPS = {"input_gaps": "none"}
RUN = {"trajectory": "id"}
DAYS = {"time_unit": "d"}
BAD_TEXTS = {
    "text": Bad("t,x\n# note\n\n0,1\n1,2\n2,3\n3,abc\n", ("line 7", "column 'x'", "'abc'", "not a number")),
    "text_time": Bad("t,x\n0,1\nlater,2\n", ("line 3", "column 't'", "'later'")),
    "other_word_for_missing": Bad(
        "t,x\n0,1\n1,N/A\n", ("line 3", "column 'x'", "'N/A'", "leave it empty"), {"missing": ["NA"]}
    ),
    "upper_case_nan": Bad("t,x\n0,NAN\n", ("line 2", "column 'x'", "'NAN'"), {"missing": []}),
    "underscore": Bad("t,x\n0,1_000\n", ("line 2", "column 'x'", "'1_000'")),
    "truth_values": Bad("t,x\n0,True\n", ("line 2", "column 'x'", "'True'")),
    "date_as_state": Bad("t,x\n0,2020-01-01\n", ("line 2", "column 'x'", "'2020-01-01'")),
    "thousands": Bad('t,x\n0,"1,234"\n', ("line 2", "column 'x'", "'1,234'")),
    "infinite": Bad("t,x\n0,1\n1,-inf\n", ("line 3", "column 'x'", "infinite")),
    "overflow": Bad("t,x\n0,1e999\n", ("line 2", "column 'x'", "infinite")),
    "empty": Bad("", ("is empty", "column names")),
    "blank": Bad("\n  \n# nothing\n", ("only blank lines or comments",)),
    "header_only": Bad("t,x\n", ("no rows",)),
    "no_header": Bad("0,1\n1,2\n", ("line 1", "holds numbers", "put a line of names above")),
    "no_header_below_comment": Bad("# t x\n0 1\n1 2\n", ("line 2", "holds numbers", "without #")),
    "unknown_column": Bad("time,x\n0,1\n", ("no column 't'", "'time', 'x'")),
    "near_column": Bad("T,x\n0,1\n", ("no column 't'", "Did you mean 'T'")),
    "duplicate_columns": Bad("t,x,x\n0,1,2\n", ("2 columns", "'x'", "columns 2 and 3")),
    "too_many_fields": Bad("t,x\n0,1\n1,2,3\n", ("line 3", "after the last column 'x'", "3 fields", "line 1")),
    "too_few_fields": Bad("t,x,y\n0,1,2\n1,2\n", ("line 3", "before column 'y'", "2 fields", "3 columns")),
    "decimal_comma_in_comma_table": Bad("t,x\n0,5,1,2\n", ("line 2", "4 fields", "Decimal commas", "semicolon")),
    "mixed_decimals": Bad(
        "t;x\n0;1,5\n1;2\n2;2.5\n", ("line 4", "column 'x'", "'2.5'", "'1,5' in line 2", "one decimal mark")
    ),
    "both_marks": Bad("t;x\n0;1.234,5\n", ("line 2", "column 'x'", "'1.234,5'"), {"decimal": "."}),
    "wrong_delimiter": Bad("t|x\n0|1\n", ("line 1", "single column 't|x'", "commas, semicolons, tabs or blanks")),
    "one_column": Bad("x\n0\n", ("line 1", "single column 'x'")),
    "repeated_time": Bad("t,x\n0,1\n# again\n0,2\n", ("line 4", "column 't'", "repeats", "line 2", "average")),
    "time_goes_back": Bad("t,x\n0,1\n2,1\n1,2\n", ("line 4", "column 't'", "goes back", "1 after 2 in line 3", "sort")),
    "restarting_time": Bad("t,x\n0,1\n1,1\n0,2\n", ("line 4", "name the column that identifies them")),
    "repeat_in_mixed_rows": Bad("id,t,x\na,0,1\nb,0,1\na,0,2\n", ("line 4", "line 2", "trajectory 'a'"), RUN),
    "missing_time": Bad("t,x\n0,1\n,2\n", ("line 3", "column 't'", "missing", "every row needs a time")),
    "infinite_time": Bad("t,x\n0,1\ninf,2\n", ("line 3", "column 't'", "infinite")),
    "missing_trajectory": Bad("id,t,x\na,0,1\n,1,2\n", ("line 3", "column 'id'", "names no trajectory"), RUN),
    "missing_input": Bad("t,x,u\n0,1,1\n1,2,\n", ("line 3", "column 'u'", "missing", "every time"), INPUT | NO_GAPS),
    "text_input": Bad("t,x,u\n0,1,on\n", ("line 2", "column 'u'", "'on'"), INPUT),
    "infinite_input": Bad("t,x,u\n0,1,inf\n", ("line 2", "column 'u'", "infinite"), INPUT),
    "nul": Bad(b"t,x\n0,1\n1,\x002\n", ("line 3", "NUL")),
    "binary": Bad(bytes(range(256)), ("line 1", "NUL", "UTF-8", ".parquet")),
    "control": Bad(b"t,x\n0,\x071\n", ("line 2", "control character 0x07")),
    "other_encoding": Bad("t,x,“y”\n0,1,2\n".encode("cp1252"), ("line 1", "control character 0x93", "UTF-8")),
    "broken_gzip": Bad(gzip.compress(b"t,x\n0,1\n")[:-9], ("gzip", "damaged")),
    "early_quote": Bad('t,x\n0,1\n1,"2"3\n', ("line 3", "quotation mark")),
    "endless_field": Bad("t,x\n0," + "1" * 200_000, ("line 2", "field limit")),
    "year_and_month_repeat": Bad("t,x\n2020-01,1\n2020-01,1\n", ("line 3", "column 't'", "repeats"), DAYS),
    "open_quote": Bad('t,x\n0,1\n1,"2\n3,4\n', ("line 3", "quotation mark")),
    "unit_without_stamps": Bad("t,x\n0,1\n", ("column 't'", "numbers", "time_unit='d'"), DAYS),
    "wrong_stamp": Bad("t,x\n2020-01-01,1\n2020-13-01,1\n", ("line 3", "column 't'", "'2020-13-01'"), DAYS),
    "missing_stamp": Bad("t,x\n2020-01-01,1\n ,1\n", ("line 3", "column 't'", "missing"), DAYS),
    "ambiguous_stamp": Bad("t,x\n03/04/2020,1\n", ("line 2", "column 't'", "'03/04/2020'", "2020-12-31"), DAYS),
    "repeated_stamp": Bad("t,x\n2020-01-01,1\n2020-01-01,1\n", ("line 3", "column 't'", "repeats"), DAYS),
    "mixed_zones": Bad(
        "t,x\n2020-01-01T00:00,1\n2020-01-02T00:00+02:00,1\n", ("line 3", "column 't'", "+02:00", "UTC"), DAYS
    ),
    "zone_once": Bad("t,x\n2020-01-01T00:00Z,1\n2020-01-02T00:00,1\n", ("line 3", "column 't'", "one zone"), DAYS),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_malformed_text(tmp_path, case):
    bad = BAD_TEXTS[case]
    path = write(tmp_path, f"{case}.csv", bad.text)
    with pytest.raises(ValueError) as caught:
        read_table(path, time="t", states=["x"], **bad.options)
    sentence = str(caught.value)
    for words in (str(path), *bad.says):
        assert words in sentence
    assert "\n" not in sentence and sentence[-1] in ".?"


def test_malformed_typed_files(tmp_path):
    np.savez(tmp_path / "lengths.npz", t=T, x=X[:2])
    np.savez(tmp_path / "shape.npz", t=T, x=np.zeros((3, 2)))
    np.savez(tmp_path / "pickle.npz", t=T, x=np.array([1, None, 2], dtype=object))
    np.savez(tmp_path / "infinite.npz", t=T, x=np.array([1, np.inf, 2]))
    np.savez(tmp_path / "complex.npz", t=T, x=1j * T)
    np.savez(tmp_path / "cut.npz", t=T, x=X)
    write(tmp_path, "cut.npz", (tmp_path / "cut.npz").read_bytes()[:-30])
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object))
    np.save(tmp_path / "axes.npy", np.zeros((2, 3, 4, 5)))
    np.save(tmp_path / "text.npy", np.array([(0, "one"), (1, "two")], dtype=[("t", "f8"), ("x", "U3")]))
    pd.DataFrame({"t": T, "x": ["1", "2", "three"]}).to_parquet(tmp_path / "text.parquet")
    pd.DataFrame({"t": T, "x": T > 1}).to_parquet(tmp_path / "bool.parquet")
    pd.DataFrame({"t": T, "y": T}).to_parquet(tmp_path / "unknown.parquet")
    write(tmp_path, "cut.parquet", (tmp_path / "bool.parquet").read_bytes()[:-20])
    savemat(tmp_path / "cell.mat", {"t": T, "x": np.array([T, "a"], dtype=object)})
    for name in ("junk.parquet", "junk.npz", "junk.npy", "junk.mat", "junk.xlsx"):
        write(tmp_path, name, b"no such format" * 20)
    says = {
        "lengths.npz": "column 'x' has 2 rows, but 't' has 3",
        "shape.npz": "column 'x' has shape (3, 2)",
        "pickle.npz": "pickles are not read",
        "infinite.npz": "row 1 (counted from 0), column 'x': the value is infinite",
        "complex.npz": "column 'x' holds complex numbers",
        "cut.npz": "cannot be read as a npz file",
        "pickle.npy": "pickles are not read",
        "axes.npy": "shape (2, 3, 4, 5)",
        "text.npy": "row 0 (counted from 0), column 'x': 'one'",
        "text.parquet": "row 2 (counted from 0), column 'x': 'three'",
        "bool.parquet": "column 'x' holds booleans",
        "unknown.parquet": "no column 'x'; its columns are 't', 'y'",
        "cut.parquet": "cannot be read as a Parquet file",
        "cell.mat": "column 'x' holds objects",
        "junk.parquet": "cannot be read as a Parquet file",
        "junk.npz": "damaged",
        "junk.npy": "damaged",
        "junk.mat": "cannot be read as a MATLAB file",
        "junk.xlsx": "save the sheet as CSV",
    }
    for name, words in says.items():
        with pytest.raises(ValueError) as caught:
            read_table(tmp_path / name, time="t", states=["x"])
        sentence = str(caught.value)
        assert str(tmp_path / name) in sentence and words in sentence and "\n" not in sentence, sentence


def test_paths_that_are_no_files(tmp_path):
    write(tmp_path, "measured.csv", "t,x\n0,1\n")
    (tmp_path / "pictures" / "raw.csv").mkdir(parents=True)
    (tmp_path / "pictures" / "a.png").touch()
    (tmp_path / "mixed").mkdir()
    for name in ("a.csv", "b.xlsx", ".c.parquet"):
        (tmp_path / "mixed" / name).touch()
    for path, kind, words in (
        (tmp_path / "mesured.csv", FileNotFoundError, "did you mean"),
        (tmp_path / "none" / "a.csv", FileNotFoundError, "nor does the folder"),
        (tmp_path / "*.tsv", FileNotFoundError, "no file matches"),
        (tmp_path / "pictures", ValueError, "is a folder without tables"),
        (
            tmp_path / "mixed",
            ValueError,
            "tables of several kinds, .csv, .xlsx; name a file in it, or use a glob",
        ),
    ):
        with pytest.raises(kind) as caught:
            read_table(path, time="t", states=["x"])
        assert str(path) in str(caught.value) and words in str(caught.value)
    with pytest.raises(ValueError, match="empty list"):
        read_table([], time="t", states=["x"])


def test_the_tables_of_a_folder_are_its_trajectories(tmp_path):
    (tmp_path / "runs").mkdir()
    for name, value in (("b.csv", 2), ("a.CSV", 1), (".hidden.csv", 3), ("notes.md", 4)):
        (tmp_path / "runs" / name).write_text(f"t,x\n0,{value}\n1,{value}\n")
    data = read_table(tmp_path / "runs", time="t", states=["x"])
    assert data.ys[:, 0, 0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"states": []}, "states is empty"),
        ({"states": "x"}, r"states=\['x'\]"),
        ({"states": ["x"], "inputs": "u"}, r"inputs=\['u'\]"),
        ({"states": ["t"]}, "'t' is named twice"),
        ({"states": ["x", "x"]}, "'x' is named twice"),
        ({"states": ["x"], "trajectory": "x"}, "'x' is named twice"),
        ({"states": ["x"], "time_unit": "days"}, "time_unit must be one of s, min, h, d, got 'days'"),
    ],
)
def test_roles_that_contradict(tmp_path, roles, words):
    path = write(tmp_path, "a.csv", "t,x\n0,1\n")
    with pytest.raises(ValueError, match=words):
        read_table(path, time="t", **roles)
    with pytest.raises(ValueError, match=words):
        from_frame(pd.DataFrame({"t": T, "x": X}), time="t", **roles)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"t": T, "x": [True, False, None]}, "row 0 .*column 'x': True is not a number"),
        ({"t": T, "x": pd.to_datetime(["2020-01-01"] * 3)}, "column 'x' holds timestamps"),
        ({"t": [0.0, 1.0, 1.0], "x": X}, "row 2 .*column 't': the time repeats"),
        ({"t": [0.0, None, 1.0], "x": X}, "row 1 .*column 't': the value is missing"),
        ({"t": [], "x": []}, "has columns but no rows"),
    ],
)
def test_malformed_frames(columns, words):
    with pytest.raises(ValueError, match=f"(?s)my frame.*{words}"):
        from_frame(pd.DataFrame(columns), time="t", states=["x"], origin="my frame")


def test_time_in_the_index_of_a_frame():
    with pytest.raises(ValueError, match="reset_index"):
        from_frame(pd.DataFrame({"t": T, "x": X}).set_index("t"), time="t", states=["x"])


def times_of(texts, name="t", **options):
    return from_frame(pd.DataFrame({name: texts, "x": 1.0}), time=name, states=["x"], **options)


@pytest.mark.parametrize(
    ("texts", "steps", "unit"),
    [
        (["20240130", "20240131", "20240201"], [1, 1], "d"),
        ([20231231, 20240101, 20240229, 20240301], [1, 59, 1], "d"),
        ([20240130.0, 20240131.0, 20240202.0], [1, 2], "d"),
        (["2024013122", "2024013123", "2024020100"], [1, 1], "h"),
        (["202401312358", "202401312359", "202402010000"], [1, 1], "min"),
        (["20240131120000", "20240131120001", "20240131120003"], [1, 2], "s"),
        ([20240131115950, 20240131120000, 20240131120010], [10, 10], "s"),
    ],
)
def test_dates_may_be_written_as_numbers(texts, steps, unit):
    data = times_of(texts)
    assert data.units == {"t": unit} and np.diff(data.ts[0]).tolist() == steps and data.ts[0, 0] == 0
    assert str(texts[0]).removesuffix(".0") in data.dates.describe_unit("t", chosen=True)


@pytest.mark.parametrize(
    "numbers",
    [
        [20240129, 20240130, 20240131],  # Steps of a count are the same.
        [20240131, 20240132, 20240133],
        [20240229, 20240331, 20240431],
        [18991231, 19000101, 19000301],
        [19700101, 1, 2],
        [20240131, 20240201.5, 20240202],
        [1704067200, 1704067260, 1704067380],
        [2024, 2025, 2026],
        [0, 1, 2],
    ],
)
def test_numbers_that_are_no_dates_stay_numbers(numbers):
    for texts in (sorted(numbers), [str(each) for each in sorted(numbers)]):
        data = times_of(texts)
        assert data.dates is None and data.ts[0].tolist() == sorted(numbers)


def test_days_that_may_be_a_count_are_dates_if_they_are_said_to_be():
    days = [20240129, 20240130, 20240131]
    for data in (times_of(days, time_unit="d"), times_of(days, name="Datum"), times_of(days, name="sampling_date")):
        assert data.dates is not None and data.ts[0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="holds numbers, but time_unit='h' is for timestamps"):
        times_of([20240131, 20240132], time_unit="h")


def test_files_with_dates_as_numbers_are_read_in_one_way(tmp_path):
    one = write(tmp_path, "one.csv", "t,x\n20240129,1\n20240130,1\n")
    two = write(tmp_path, "two.csv", "t,x\n20240131,1\n20240201,1\n")
    data = read_table([one, two], time="t", states=["x"])
    assert data.ts.tolist() == [[0, 1], [0, 1]] and data.dates.zero[0] == np.datetime64("2024-01-29")
    other = write(tmp_path, "other.csv", "t,x\n0,1\n1,1\n")
    assert read_table([two, other], time="t", states=["x"]).dates is None


def test_a_run_says_that_numbers_are_dates_or_may_be(tmp_path):
    def told(text, **options):
        return Table(str(write(tmp_path, "a.csv", text)), "t", ["x"], **options).load_with_notes()[1][0]

    rows = "".join(f"{20240120 + day},1\n" for day in range(9))
    assert told(f"t,x\n{rows}20240201,1\n") == (
        "time: t counts in d from 2024-01-20, chosen by its rows' spacing (data.time_unit=d); its numbers, such as "
        "20240120, are dates"
    )
    assert told(f"t,x\n{rows}") == "time: t is a number; if 20240120 is a date, set data.time_unit=d"
    assert told("t,x\n" + "".join(f"{row},1\n" for row in range(9))).startswith("split")


def test_new_rows_of_dated_data_are_dates(tmp_path):
    table = Table(str(write(tmp_path, "a.csv", "t,x\n20240120,1\n20240121,2\n")), "t", ["x"])
    assert table.read(table.path).dates is None
    assert table.read(table.path, "h").ts.tolist() == [[0, 24]]


@pytest.mark.parametrize("second", ["a ", "a\t ", "a\u00a0"])
def test_names_that_differ_by_blanks_are_not_merged(tmp_path, second):
    path = write(tmp_path, "a.csv", f"id,t,x\na,0,1\na,1,1\n{second},2,1\n")
    there = rf"a\.csv, line 4, column 'id': {re.escape(repr(second))} differs from 'a' in line 2 of .*a\.csv by blanks"
    with pytest.raises(ValueError, match=there):
        read_table(path, time="t", states=["x"], trajectory="id")
    frame = pd.DataFrame({"id": ["a", " a"], "t": [0, 1], "x": 1.0})
    with pytest.raises(ValueError, match=r"row 1 .*' a' differs from 'a' in row 0"):
        from_frame(frame, time="t", states=["x"], trajectory="id")


def test_names_that_differ_by_blanks_are_not_merged_across_files_or_observables(tmp_path):
    one, two = write(tmp_path, "one.csv", "id,t,x\na,0,1\n"), write(tmp_path, "two.csv", "id,t,x\na ,1,1\n")
    with pytest.raises(ValueError, match="by blanks alone; write both alike if they are one trajectory"):
        read_table([one, two], time="t", states=["x"], trajectory="id")
    tidy = write(tmp_path, "tidy.csv", "t,what,value\n0,x,1\n1,x ,1\n")
    with pytest.raises(ValueError, match="by blanks alone; write both alike if they are one observable"):
        read_table(tidy, time="t", states=["x"], observable="what", value="value")


def test_names_that_are_padded_alike_are_one(tmp_path):
    path = write(tmp_path, "a.csv", "id,t,x\na ,0,1\na ,1,1\nbb,0,1\nbb,1,1\n")
    assert read_table(path, time="t", states=["x"], trajectory="id").trajectories == ("a", "bb")


def test_columns_have_the_names_that_equations_can_have(tmp_path):
    (tmp_path / "lab.csv").write_text("Time (s),Voltage (V),id,Speed (rad/s)\n0,9,a,1\n1,8,a,2\n2,7,a,4\n3,6,a,3\n")
    rename = {"t": "Time (s)", "V": "Voltage (V)", "w": "Speed (rad/s)"}
    table = Table(str(tmp_path / "lab.csv"), "t", ["w"], ["V"], trajectory="id", rename=rename, units={"V": "volt"})
    data = table.read(table.path)
    assert (data.time, data.states, data.inputs, data.units) == ("t", ("w",), ("V",), {"V": "volt"})
    assert data.ys.ravel().tolist() == [1, 2, 4, 3] and data.us.ravel().tolist() == [9, 8, 7, 6]


def test_observables_of_a_long_table_are_renamed(tmp_path):
    rows = "t,what,value\n0,CO2 (ppm),1\n1,CO2 (ppm),3\n0,O2,5\n1,O2,6\n"
    (tmp_path / "long.csv").write_text(rows)
    roles = {"observable": "what", "value": "value", "rename": {"c": "CO2 (ppm)"}}
    table = Table(str(tmp_path / "long.csv"), "t", ["c", "O2"], **roles)
    data = table.read(table.path)
    assert data.states == ("c", "O2") and data.ys[0].tolist() == [[1, 5], [3, 6]]


@pytest.mark.parametrize(
    ("rename", "fault"),
    [
        ({"V": "x (m)"}, "rename: 'V' is the new name of a column, but has no role; name it in states or inputs"),
        ({"x (m)": "x"}, "rename: 'x (m)' is the new name of a column, but has no role; write rename={x: 'x (m)'}"),
        ({"x": "a", "t": "a"}, "rename: the column 'a' gets two names"),
        ({"t": "x"}, "rename: the column 'x' has a role under this name and under 't'"),
    ],
)
def test_a_new_name_is_of_one_column_with_a_role(rename, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        Table("mine.csv", "t", ["x"], rename=rename)
