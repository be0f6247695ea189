"""Tables as people and loggers write them: what is recognised is said, and a key says otherwise."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.app.recognition import keys_of_option
from node_fit.data.tables.clocks import pass_midnight
from node_fit.data.tables.guess import find_deviations, find_no_states, find_time, find_time_of_day
from node_fit.data.tables.header import find_header
from node_fit.data.tables.marks import with_plain_numbers
from node_fit.data.tables.table import RawTable
from node_fit.data.tables.times import unix_unit

N = 12
TS = np.arange(N, dtype=float)
XS = np.round(1000 * np.exp(-0.2 * TS) + 300, 1)


def read(folder: Path, text: str, name: str = "a.csv", **options) -> nf.Dataset:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return nf.read_table(path, **{"time": "t", "states": ["x"], **options})


def rows(form: str = "{t:g},{x}\n", times=TS, values=XS) -> str:
    return "".join(form.format(t=t, x=x) for t, x in zip(times, values, strict=True))


BEFORE = {
    "nothing": ("t,x\n", 0),
    "text": ("Logger 7\nSerial,12345\n\nt,x\n", 1),
    "a line of numbers": ("12345,67\nt,x\n", 1),
    "the separator of Excel": ("sep=,\nt,x\n", 1),
    "more columns than the table": ('"TOA5","Barn","CR1000X","4711"\n"t","x"\n"TS","Deg C"\n"","Avg"\n', 2),
    "as many columns as the table": ("Interval,half an hour\nt,x\ns,degC\n", 2),
    "units": ("t,x\n[s],[degC]\n", 1),
    "a comment": ("# 3 rows\nt,x\n# more\n\n", 0),
    "many lines": ("about\n" * 200 + "t,x\n", 1),
}


@pytest.mark.parametrize("case", BEFORE)
def test_lines_before_the_table_are_left_out_and_named(tmp_path, case):
    above, notes = BEFORE[case]
    data = read(tmp_path, above + rows())
    np.testing.assert_array_equal(data.ys[0, :, 0], XS)
    assert len(data.notes) == notes
    lines = above.count("\n")
    said = read(tmp_path, above + rows(), header=1 + lines - above.split("t,x")[-1].split('"x"')[-1].count("\n"))
    np.testing.assert_array_equal(said.ys, data.ys)


def test_the_rows_below_the_names_give_units(tmp_path):
    data = read(tmp_path, "t\tx\nh\tmg/L\n" + rows("{t:g}\t{x}\n"), "a.tsv")
    assert data.units == {"t": "h", "x": "mg/L"}
    assert read(tmp_path, "t,x\nh,mg/L\n" + rows(), units={"x": "g/L"}).units == {"t": "h", "x": "g/L"}


def test_keys_say_where_the_table_begins(tmp_path):
    text = "a,b\n1,2\nt,x\n7,7\n" + rows()
    data = read(tmp_path, text, header=3, first_row=5)
    np.testing.assert_array_equal(data.ts[0], TS)
    with pytest.raises(ValueError, match="header=30 is no line with names; it has 16 lines"):
        read(tmp_path, text, header=30)
    with pytest.raises(ValueError, match="first_row=2 must come after the line of names, header=3"):
        read(tmp_path, text, header=3, first_row=2)
    with pytest.raises(ValueError, match="header must be the number of a line, counted from 1, got 0"):
        read(tmp_path, text, header=0)


def test_a_wrong_cell_is_no_line_before_the_table(tmp_path):
    """A row that holds numbers beside a word is wrong, and not left out."""
    with pytest.raises(ValueError, match="line 2, column 'x': 'low' is not a number"):
        read(tmp_path, "t,x\n0,low\n" + rows(times=TS + 1))


def test_text_below_the_last_row_is_left_out(tmp_path):
    data = read(tmp_path, "t,x\n" + rows() + "\nEnd of data\n")
    assert len(data.ts[0]) == N and data.notes == ("text after the last row left out, from line 15",)
    with pytest.raises(ValueError, match="line 14: the row ends before column 'x'"):
        read(tmp_path, "t,x\n" + rows() + "12\n")


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_of_a_logger_is_read_by_its_name_alone(tmp_path, packed):
    text = '"TOA5","Barn","CR1000X","4711"\n"TIMESTAMP","RECORD","T_Avg"\n"TS","RN","Deg C"\n"","","Avg"\n'
    stamps = pd.date_range("2026-02-03 08:00", periods=N, freq="15min")
    text += "".join(f'"{at}",{row},{"--" if row == 3 else XS[row]}\n' for row, at in enumerate(stamps))
    path = tmp_path / ("a.dat.gz" if packed else "a.dat")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    made, said = keys_of_option([str(path)], {})
    assert made[2:] == ["data.time=TIMESTAMP", "data.states=[T_Avg]"] and "'RECORD' counts rows" in said
    splits, notes = nf.Table(str(path), "TIMESTAMP", ["T_Avg"]).load_with_notes()
    assert splits.train.units == {"TIMESTAMP": "min", "T_Avg": "Deg C"}
    assert [note.split(":")[0].split("(")[0] for note in notes[:3]] == [
        "the columns are named in line 2, after text ",
        "2 rows below the names with units or the like left out ",
        "missing values",
    ]


NUMBERS = {
    "commas": ('t,x\n{t:g},"{x:,.1f}"\n', lambda text: text, "commas group thousands, the decimal mark is a point"),
    "points": (
        "t;x\n{t:g};{x:,.1f}\n",
        lambda text: text.translate(str.maketrans(",.", ".,")),
        "points group thousands",
    ),
    "apostrophes": ("t;x\n{t:g};{x:,.1f}\n", lambda text: text.replace(",", "'"), "apostrophes group thousands"),
    "blanks": ("t;x\n{t:g};{x:,.1f}\n", lambda text: text.replace(",", "\u202f").replace(".", ","), "blanks group"),
    "decimal commas": ("t;x\n{t:g};{x}\n", lambda text: text.replace(".", ","), "the decimal mark is a comma"),
    "quoted decimal commas": ('t,x\n{t:g},"{x}"\n', lambda text: text.replace(".", ","), "the decimal mark is a comma"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_marks_of_numbers_are_recognised(tmp_path, case):
    form, change, said = NUMBERS[case]
    names, row = form.splitlines()
    data = read(tmp_path, f"{names}\n" + change(rows(row + "\n", values=XS * 1000)))
    np.testing.assert_array_equal(data.ys[0, :, 0], XS * 1000)
    (note,) = data.notes
    assert note.startswith("numbers: ") and said in note and "data.decimal=" in note


def test_a_lone_comma_may_be_either_mark(tmp_path):
    text = 't,x\n0,"1,234"\n1,"2,345"\n'
    with pytest.raises(ValueError, match=r"line 2, column 'x': '1,234' .* data.decimal='\.' if it groups thousands"):
        read(tmp_path, text)
    assert read(tmp_path, text, decimal=".").ys[0, :, 0].tolist() == [1234, 2345]
    assert read(tmp_path, text, decimal=",").ys[0, :, 0].tolist() == [1.234, 2.345]
    assert read(tmp_path, "t;x\n0;1,234\n1;2,345\n").ys[0, :, 0].tolist() == [1.234, 2.345]
    frame = pd.DataFrame({"t": [0, 1], "x": ["1,234.5", "2,000.0"]})
    assert nf.from_frame(frame, time="t", states=["x"]).ys[0, :, 0].tolist() == [1234.5, 2000.0]


WORDS = (
    "NAN",
    "N/A",
    "n/a",
    "NULL",
    "None",
    "-",
    "--",
    ".",
    "?",
    "*",
    "#N/A",
    "#VALUE!",
    "#DIV/0!",
    "-1.#IND",
    "missing",
)


@pytest.mark.parametrize("word", WORDS)
def test_words_for_missing_values_are_counted(tmp_path, word):
    data = read(tmp_path, f"t,x\n0,1\n1,{word}\n2,3\n")
    assert np.isnan(data.ys[0, 1, 0]) and data.ys[0, ::2, 0].tolist() == [1, 3]
    note = f"missing values: 1 are written as {word!r} (data.missing=[] keeps only empty cells)"
    assert data.notes == (() if word in ("NAN", "NULL") else (note,))
    with pytest.raises(ValueError, match="is not a number"):
        read(tmp_path, f"t,x\n0,1\n1,{word}\n2,3\n", missing=["NA"])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_numbers_may_stand_for_missing_values(tmp_path, ending):
    frame = pd.DataFrame({"t": [0, 1, 2], "x": [1.0, -999, 3]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    data = nf.read_table(tmp_path / f"a.{ending}", time="t", states=["x"], missing=[-999])
    assert np.isnan(data.ys[0, :, 0]).tolist() == [False, True, False]


CLOCKS = {
    "hours": (["00:00:00", "00:10:00", "00:20:30"], [0, 10, 20.5], "min", "hh:mm:ss"),
    "hours and minutes": (["14:00", "15:30", "17:00"], [14, 15.5, 17], "h", "hh:mm"),
    "minutes": (["00:01.5", "00:02.0", "00:02.5"], [1.5, 2.0, 2.5], "s", "mm:ss"),
    "to twelve": (["11:00:00 AM", "12:00:00 PM", "1:00:00 pm"], [11, 12, 13], "h", "hh:mm:ss"),
    "days": (["0 days 12:00:00", "1 days 12:00:00", "2 days 12:00:00"], [0.5, 1.5, 2.5], "d", "hh:mm:ss"),
    "past midnight": (["23:30", "00:00", "00:30"], [1410, 1440, 1470], "min", "hh:mm"),
    "more than a day": (["23:30:00", "47:30:00", "71:30:00"], [23.5 / 24, 47.5 / 24, 71.5 / 24], "d", "hh:mm:ss"),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_times_of_day_and_durations_are_counted(tmp_path, case):
    texts, times, unit, layout = CLOCKS[case]
    data = read(tmp_path, "t,x\n" + "".join(f"{text},1\n" for text in texts))
    np.testing.assert_allclose(data.ts[0], times, rtol=1e-14)
    assert data.units == {"t": unit} and layout in data.notes[0] and data.dates is None
    assert ("passes midnight once" in data.notes[0]) == (case == "past midnight")


def test_a_key_says_what_two_numbers_are(tmp_path):
    text = "t,x\n01:00,1\n02:00,2\n"
    assert read(tmp_path, text, time_format="mm:ss", time_unit="s").ts.tolist() == [[60, 120]]
    assert read(tmp_path, text, time_unit="s").ts.tolist() == [[3600, 7200]]
    with pytest.raises(ValueError, match="line 3, column 't': '1:75:00' is not a time such as hh:mm:ss"):
        read(tmp_path, "t,x\n01:00:00,1\n1:75:00,2\n")
    with pytest.raises(ValueError, match=r"time_format .*'hours'"):
        read(tmp_path, text, time_format="hours")


def test_each_trajectory_passes_midnight_by_itself():
    seconds, passes = pass_midnight(np.array([86000.0, 0, 100, 10, 86399, 5]), np.array([0, 1, 0, 1, 1, 1]))
    assert seconds.tolist() == [86000, 0, 86500, 10, 86399, 86405] and passes == 2


def test_offsets_that_change_are_instants(tmp_path):
    """Clocks are set back at 01:00 UTC: half an hour passes between each two rows."""
    stamps = ["02:00:00+02:00", "02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00"]
    data = read(tmp_path, "t,x\n" + "".join(f"2024-10-27T{each},1\n" for each in stamps))
    assert data.ts.tolist() == [[0, 30, 60, 90]]
    assert "its offsets change (+02:00, +01:00), so dates are in UTC" in data.dates.describe_unit("t", chosen=True)


@pytest.mark.parametrize(("form", "factor"), [("unix_ms", 1e3), ("unix_us", 1e6), ("unix_ns", 1e9)])
def test_times_since_1970_in_small_units_are_dates(tmp_path, form, factor):
    numbers = [(4 * 1_730_000_000 + row) * int(factor) // 4 for row in range(4)]
    text = "t,x\n" + "".join(f"{each},1\n" for each in numbers)
    data = read(tmp_path, text)
    assert data.ts.tolist() == [[0, 0.25, 0.5, 0.75]] and data.units == {"t": "s"}
    assert data.dates.zero[0] == np.datetime64("2024-10-27T03:33:20")
    assert "since 1970 (data.time_format=number)" in data.dates.describe_unit("t", chosen=True)
    np.testing.assert_array_equal(read(tmp_path, text, time_format=form).ts, data.ts)
    kept = read(tmp_path, text, time_format="number")
    assert kept.ts[0].tolist() == [float(number) for number in numbers] and kept.dates is None


def test_one_time_is_no_date(tmp_path):
    """No unit matters to a record of one row, and 1e15 may be a number like any other; several files may tell it."""
    assert read(tmp_path, "t,x\n1000000000000000,1\n").ts.tolist() == [[1e15]]
    assert unix_unit(np.array([1.73e12])) is None and unix_unit(np.array([1.73e12, 1.74e12])) == "millisecond"


DATES = {
    "day first": (["13.03.2024 12:00", "14.03.2024 12:00"], "2024-03-13T12:00", "dates begin with the day"),
    "month first": (["3/13/2024 1:00:00 PM", "3/14/2024 1:00:00 PM"], "2024-03-13T13:00", "dates begin with the month"),
    "years of two digits": (["13/12/69 00:00", "14/12/69 00:00"], "2069-12-13T00:00", "dates begin with the day"),
    "months by name": (["01-Mar-2024 12:00:00", "02-Mar-2024 12:00:00"], "2024-03-01T12:00", ""),
}


@pytest.mark.parametrize("case", DATES)
def test_dates_that_can_be_read_in_one_way_need_no_key(tmp_path, case):
    texts, first, said = DATES[case]
    data = read(tmp_path, "t,x\n" + "".join(f"{text},1\n" for text in texts))
    assert data.dates.zero[0] == np.datetime64(first) and data.ts.tolist() == [[0, 1]]
    assert said in data.dates.describe_unit("t", chosen=True)


def test_a_date_and_a_time_of_day_in_two_columns_are_one_time(tmp_path):
    text = "Date;Time;P\n" + "".join(f"16/12/2006;23:{20 + 15 * row}:00;{row}\n" for row in range(3))
    path = tmp_path / "a.csv"
    path.write_text(text)
    made, said = keys_of_option([str(path)], {})
    assert made[2:] == ["data.time=Date", "data.time_of_day=Time", "data.states=[P]"] and "times of day" in said
    data = nf.read_table(path, time="Date", time_of_day="Time", states=["P"])
    assert data.ts.tolist() == [[0, 15, 30]] and data.dates.zero[0] == np.datetime64("2006-12-16T23:20")
    assert find_time_of_day(path, "P", ["Time"]) is None
    with pytest.raises(ValueError, match="time_of_day needs time"):
        nf.read_table(path, step=1.0, time_of_day="Time", states=["P"])


GAPS = "t,x,u\n0,1,0\n1,2,\n2,3,4\n3,4,\n"


@pytest.mark.parametrize(
    ("gap", "values"),
    [("linear", [0, 2, 4, 4]), ("hold", [0, 0, 4, 4]), ("auto", [0, 0, 4, 4]), ({"u": "linear"}, [0, 2, 4, 4])],
)
def test_inputs_are_bridged_where_they_are_not_known(tmp_path, gap, values):
    data = read(tmp_path, GAPS, inputs=["u"], input_gaps=gap)
    assert data.us[0, :, 0].tolist() == values
    (note,) = data.notes
    assert note.startswith("input 'u' is known in 2 of 4 rows; the others ") and "over 2 at most" in note


def test_an_input_that_moves_on_is_linear_between_its_rows(tmp_path):
    """Hourly values of many levels beside states every ten minutes."""
    known = np.sin(np.arange(20.0))
    text = "t,x,u\n" + "".join(f"{row},1,{known[row // 6] if row % 6 == 0 else ''}\n" for row in range(115))
    data = read(tmp_path, text, inputs=["u"])
    np.testing.assert_allclose(data.us[0, :, 0], np.interp(np.arange(115) / 6, np.arange(20), known), atol=1e-12)


@pytest.mark.parametrize("interval", ["before", {"u": "before"}])
def test_an_input_can_hold_before_its_row(tmp_path, interval):
    """In order of time, within each trajectory, and after gaps are filled."""
    text = "id,t,x,u,v\na,1,1,5,8\na,0,1,4,7\nb,0,1,1,7\na,2,1,6,9\nb,1,1,,8\nb,2,1,3,9\n"
    options = {"inputs": ["u", "v"], "trajectory": "id", "row_order": "sorted", "input_gaps": "linear"}
    data = read(tmp_path, text, input_interval=interval, **options)
    assert data.us[..., 0].tolist() == [[5, 6, 6], [2, 3, 3]]
    assert data.us[0, :, 1].tolist() == ([8, 9, 9] if interval == "before" else [7, 8, 9])


@pytest.mark.parametrize("option", ["input_gaps", "input_interval"])
def test_an_option_of_an_input_names_one(tmp_path, option):
    choice = {"input_gaps": "hold", "input_interval": "before"}[option]
    with pytest.raises(ValueError, match=f"a name in {option} must be one of u, got 'w'"):
        read(tmp_path, GAPS, inputs=["u"], **{option: {"w": choice}})


def test_an_input_must_be_known_somewhere_in_a_trajectory(tmp_path):
    text = "id,t,x,u\na,0,1,1\na,1,1,\nb,0,1,\nb,1,1,\n"
    with pytest.raises(
        ValueError, match=r"line 4, column 'u': 'u' has no value in its trajectory; inputs must be known"
    ):
        read(tmp_path, text, inputs=["u"], trajectory="id")
    with pytest.raises(ValueError, match=r"input_gaps\.u must be one of auto, linear, hold, none"):
        read(tmp_path, text, inputs=["u"], input_gaps={"u": "spline"})
    with pytest.raises(ValueError, match="input_interval must be one of after, before, got 'past'"):
        read(tmp_path, text, inputs=["u"], input_interval="past")


def test_standard_deviations_of_a_wide_table_go_with_its_series(tmp_path):
    text = "t,sd2,sd1,G1,G2\n0,0.2,0.1,1,2\n1,0.4,0.3,3,4\n"
    options = {"states": ["G"], "series": ["G*"]}
    data = read(tmp_path, text, sigma={"G": "sd*"}, **options)
    assert data.trajectories == ("G1", "G2") and data.states == ("G",)
    assert data.ys[..., 0].tolist() == [[1, 3], [2, 4]] and data.sigma[..., 0].tolist() == [[0.1, 0.3], [0.2, 0.4]]
    path = tmp_path / "a.csv"
    assert nf.Table(str(path), "t", ["G"], series=["G*"], sigma={"G": "sd*"}).read(str(path)).sigma.shape == (2, 2, 1)
    with pytest.raises(ValueError, match=r"has 2 columns for series and 1 for their standard deviations, sigma 'sd1'"):
        read(tmp_path, text, sigma={"G": "sd1"}, **options)


def test_repeated_measurements_are_averaged_and_weigh_more(tmp_path):
    text = "t,x,e\n0,1,3\n0,3,4\n1,5,1\n1,,1\n2,4,1\n2,6,1\n"
    data = read(tmp_path, text, sigma=0.1)
    assert data.ys[0, :, 0].tolist() == [2, 5, 5]
    np.testing.assert_allclose(data.sigma[0, :, 0], [0.1 / 2**0.5, 0.1, 0.1 / 2**0.5])
    assert data.notes[0].startswith("repeats: up to 2 rows at one time of a trajectory are averaged, at 2 times")
    named = read(tmp_path, text, sigma={"x": "e"}, repeats="mean")
    np.testing.assert_allclose(named.sigma[0, [0, 2], 0], [2.5, 0.5**0.5])  # Of the mean of independent values.
    with pytest.raises(ValueError, match=r"line 3, column 't': the time repeats, 0 .* \(data\.repeats=mean\)"):
        read(tmp_path, text, repeats="none")


def test_replicates_in_blocks_are_averaged_if_a_key_says_so(tmp_path):
    text = "t,x\n0,1\n1,2\n0,3\n1,4\n"
    with pytest.raises(ValueError, match="the time goes back"):
        read(tmp_path, text)
    assert read(tmp_path, text, repeats="mean").ys[0, :, 0].tolist() == [2, 3]
    tidy = pd.DataFrame({"t": [0, 0, 1, 1], "what": "x", "is": [1.0, 3, 2, 4]})
    data = nf.from_frame(tidy, time="t", states=["x"], observable="what", value="is")
    assert data.ys[0, :, 0].tolist() == [2, 3]


def test_rows_may_come_in_another_order(tmp_path):
    turned = read(tmp_path, "t,x\n2,3\n1,2\n0,1\n")
    assert turned.ys[0, :, 0].tolist() == [1, 2, 3] and turned.notes[0].startswith("rows: the last one comes first")
    with pytest.raises(ValueError, match=r"the time goes back, .* \(data\.row_order=sorted\)"):
        read(tmp_path, "t,x\n1,2\n0,1\n2,3\n")
    assert read(tmp_path, "t,x\n1,2\n0,1\n2,3\n", row_order="sorted").ys[0, :, 0].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="goes back"):
        read(tmp_path, "t,x\n2,3\n1,2\n0,1\n", row_order="written")


def test_a_time_that_begins_again_begins_a_trajectory(tmp_path):
    parts = [[0, 0.1, 0.2, 0.3, 0.4], [0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.001, 0.1, 0.2, 0.3, 0.4]]
    lines = [f"{t},{10 * number + row}" for number, part in enumerate(parts) for row, t in enumerate(part)]
    text = "\n".join(["t,x", *lines]) + "\n"
    data = read(tmp_path, text)
    assert [ts[:length].tolist() for ts, length in zip(data.ts, data.lengths, strict=True)] == parts
    assert [name.partition("/")[2] for name in data.trajectories] == ["1", "2", "3"]
    assert data.ys[1, :, 0].tolist() == [10, 11, 12, 13, 14, 15]
    assert "begins again in line 7 and later, so there are 3 trajectories" in data.notes[0]
    with pytest.raises(ValueError, match="line 7, column 't': the time goes back"):
        read(tmp_path, text, row_order="written")
    with pytest.raises(ValueError, match="the time goes back"):
        read(tmp_path, text.replace("0,10\n", "0,10\n0,10\n"))  # A row too many is a fault in the table.


@pytest.mark.parametrize("back", ["0.2", "0.05"])
def test_a_time_that_goes_back_elsewhere_is_an_error(tmp_path, back):
    rows = ["0,1", "0.1,1", "0.2,1", "0.3,1", "0.4,1", f"{back},1", "0.5,1", "0.6,1", "0.7,1", "0.8,1"]
    with pytest.raises(ValueError, match="the time goes back"):
        read(tmp_path, "\n".join(["t,x", *rows]) + "\n")


def test_columns_that_hold_no_measurements_are_no_states(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,#,x,note,x_sd,none,\n" + "".join(f"{t},{t},{t * t},ok,0.1,,\n" for t in range(5)))
    assert find_no_states(path, ["#", "x", "note", "x_sd", "none", ""]) == {
        "": "has no name",
        "#": "counts rows",
        "note": "holds text",
        "none": "is empty",
    }
    made, said = keys_of_option([str(path)], {})
    assert made[2:] == ["data.time=t", "data.states=[x]", "data.sigma={x:x_sd}"]
    assert "'x_sd' hold standard deviations" in said and "'note' holds text, and is left out" in said
    path.write_text("t,note\n0,a\n1,b\n")
    with pytest.raises(ValueError, match="has no column of a state: 'note' holds text"):
        keys_of_option([str(path)], {})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["x", "x_sd", "y", "std y"], {"x": "x_sd", "y": "std y"}),
        (["A (mV)", "sigma"], {}),
        (["Conc", "Conc_err"], {"Conc": "Conc_err"}),
        (["sd", "x"], {}),
    ],
)
def test_standard_deviations_are_named_after_what_they_are_of(names, found):
    assert find_deviations(names) == found


@pytest.mark.parametrize(
    ("names", "time"),
    [
        (["h", "T", "out"], "h"),
        (["T", "x"], "T"),
        (["#", "Date Time, GMT+01:00", "x"], "Date Time, GMT+01:00"),
        (["timer", "x"], None),
        (["s", "t"], "t"),
    ],
)
def test_times_are_found_by_their_names(names, time):
    assert find_time(names) == time


def test_a_line_with_the_wanted_names_is_that_of_the_names():
    lines = ["one,two\n", "p,q\n", "0,1\n", "1,2\n", "2,3\n"]
    assert find_header(lines, ["one"]).line == 0 and find_header(lines, ["q", "p"]).line == 1
    assert find_header(["t,1,2\n", "0,1,2\n"], ["t"]) is None  # Names that are numbers are found as before.


def test_numbers_of_two_decimal_marks_are_refused():
    table = RawTable("a.csv", {"x": pd.Series(["1.5", "2,75"])})
    with pytest.raises(ValueError, match=r"'1.5' has a decimal point, but '2,75' in .*; use one decimal mark"):
        with_plain_numbers(table, ["x"], None, is_comma_free=True)


def test_a_grouped_number_with_the_other_decimal_mark_stays_a_text():
    table = RawTable("a.csv", {"x": pd.Series(["1'234,5", "1'234.5", "7,5"])})
    plain = with_plain_numbers(table, ["x"], ",", is_comma_free=True)
    assert list(plain.columns["x"]) == ["1234.5", "1'234.5", "7.5"]
