"""Splits of the data: no row is scored in two parts, and cuts are at the requested times."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from node_fit.data.dataset import count_trajectories, last_before

SMALL = settings(max_examples=60, deadline=None)


def records(shapes: list[tuple[int, float]]) -> nf.Dataset:
    """Trajectories with given numbers of rows and first times, one row per time unit; all values are distinct."""
    ts = [start + np.arange(float(rows)) for rows, start in shapes]
    return nf.Dataset.from_arrays(ts, [1000.0 * i + np.arange(float(n))[:, None] for i, (n, _) in enumerate(shapes)])


def years() -> nf.Dataset:
    """One record of the years 1900 to 1920."""
    return nf.Dataset.from_arrays(np.arange(1900.0, 1921.0), np.arange(21.0)[:, None])


def scored_values(part: nf.Dataset | None) -> list[float]:
    return [] if part is None else sorted(part.ys[part.mask].tolist())


def scored_times(part: nf.Dataset | None) -> list[float]:
    return [] if part is None else part.ts[part.scored].tolist()


shapes = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.5, 4.0])), min_size=1, max_size=7)
fractions = st.sampled_from([0.0, 0.1, 0.25, 0.4])


@SMALL
@given(
    shapes=shapes,
    by=st.sampled_from(["auto", "trajectory", "time"]),
    validation=fractions,
    test=fractions,
    seed=st.integers(0, 3),
)
def test_every_row_is_scored_in_exactly_one_part(shapes, by, validation, test, seed):
    data = records(shapes)
    try:
        parts = nf.Split(by, validation, test, seed=seed)(data)
    except ValueError as error:
        assert "can't be divided" in str(error) or "nothing is left to fit" in str(error)
        return
    together = [value for part in parts for value in scored_values(part)]
    assert sorted(together) == scored_values(data)
    assert scored_values(parts.train)


@SMALL
@given(shapes=shapes, cuts=st.tuples(st.floats(0, 12), st.floats(0, 12)))
def test_by_dates_no_row_is_scored_twice(shapes, cuts):
    data = records(shapes)
    validation_from, test_from = sorted(cuts)
    try:
        parts = nf.Split(validation_from=validation_from, test_from=test_from)(data)
    except ValueError as error:
        assert "nothing is left to fit" in str(error)
        return
    assert sorted(v for part in parts for v in scored_values(part)) == scored_values(data)
    assert all(t < validation_from for t in scored_times(parts.train))
    assert all(validation_from <= t < test_from for t in scored_times(parts.validation))
    assert all(t >= test_from for t in scored_times(parts.test))


def test_dates_in_the_wrong_order_do_not_score_a_row_twice():
    try:
        parts = nf.Split(validation_from=1918.0, test_from=1915.0)(years())
    except ValueError:
        return
    together = [t for part in parts for t in scored_times(part)]
    assert len(together) == len(set(together))


def test_test_from_is_the_first_year_of_the_test():
    parts = nf.Split("time", validation=0.0, test=0.0, test_from=1915.0)(years())
    assert scored_times(parts.train) == list(range(1900, 1915))
    assert parts.validation is None
    assert scored_times(parts.test) == list(range(1915, 1921))
    between = nf.Split("time", validation=0.0, test_from=1914.5)(years())
    assert scored_times(between.test) == scored_times(parts.test)


def test_parts_begin_at_dates():
    when = pd.date_range("2024-03-04", periods=48, freq="6h", tz="Europe/Berlin")
    frame = pd.DataFrame({"when": when.strftime("%Y-%m-%dT%H:%M%z"), "x": np.arange(48.0)})
    data = nf.from_frame(frame, time="when", states=["x"])
    parts = nf.Split(validation_from="2024-03-10", test_from="2024-03-12 06:00")(data)
    assert [int(part.mask.sum()) for part in parts.named().values()] == [24, 9, 15]
    for word in ("sept", "2024-13-01"):
        with pytest.raises(ValueError, match=f"test_from must be a time or a date such as 2020-12-31, got '{word}'"):
            nf.Split(test_from=word)(data)
    with pytest.raises(ValueError, match="test_from=2024-03-12 is a text, but the times 't' are numbers without dates"):
        nf.Split(test_from="2024-03-12")(nf.Dataset.from_arrays(np.arange(9.0), np.ones((9, 1)), states=["x"]))
    apart = data.dates._replace(zero=np.array([0, 1], "datetime64[us]"))
    both = dataclasses.replace(nf.Dataset.from_arrays([np.arange(9.0)] * 2, [np.ones((9, 1))] * 2), dates=apart)
    with pytest.raises(ValueError, match="is a date, but the trajectories count from different ones; give a number"):
        nf.Split(test_from="2024-03-12")(both)


def test_validation_from_is_the_first_year_of_the_validation():
    parts = nf.Split(validation_from=1912.0, test_from=1915.0)(years())
    assert scored_times(parts.train) == list(range(1900, 1912))
    assert scored_times(parts.validation) == [1912, 1913, 1914]
    assert scored_times(parts.test) == list(range(1915, 1921))


def test_a_forecast_is_simulated_from_the_start_of_the_record():
    parts = nf.Split(validation_from=1912.0, test_from=1915.0)(years())
    assert parts.train.ts.max() == 1911, "the training data must hold nothing later"
    assert parts.validation.ts[0].tolist() == list(range(1900, 1915))
    assert parts.test.ts[0].tolist() == list(range(1900, 1921))


def test_fractions_of_the_time_are_of_the_whole_span():
    data = nf.Dataset.from_arrays(np.arange(101.0), np.zeros((101, 1)))
    parts = nf.Split("time", validation=0.2, test=0.2)(data)
    assert scored_times(parts.test) == list(range(80, 101))
    assert scored_times(parts.validation) == list(range(60, 80))
    assert scored_times(parts.train) == list(range(60))


def test_a_fraction_of_nothing_is_no_part():
    for by in ("time", "trajectory"):
        parts = nf.Split(by, validation=0.0, test=0.0)(records([(5, 0.0)] * 6))
        assert parts.validation is None and parts.test is None
        assert list(parts.named()) == ["train"]
        assert scored_values(parts.train) == scored_values(records([(5, 0.0)] * 6))


def test_by_trajectory_whole_trajectories_are_drawn():
    data = records([(4, 0.0)] * 10)
    parts = nf.Split("trajectory", validation=0.2, test=0.3, seed=1)(data)
    assert [len(part.trajectories) for part in parts] == [5, 2, 3]
    assert all(part.scored.all() for part in parts)
    assert sorted(name for part in parts for name in part.trajectories) == sorted(data.trajectories)
    again, other = (nf.Split("trajectory", validation=0.2, test=0.3, seed=seed)(data) for seed in (1, 2))
    assert again.test.trajectories == parts.test.trajectories
    assert other.test.trajectories != parts.test.trajectories


def test_auto_goes_by_trajectory_from_five_on_and_by_time_where_a_date_is_given():
    few, many = records([(10, 0.0)] * 4), records([(10, 0.0)] * 5)
    assert len(nf.Split()(few).train.trajectories) == 4
    assert len(nf.Split()(many).train.trajectories) == 3
    assert len(nf.Split(test_from=8.0)(many).train.trajectories) == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"validation": 1.0}, "validation must be a fraction from 0 to below 1, got 1.0"),
        ({"test": -0.1}, "test must be a fraction from 0 to below 1, got -0.1"),
        ({"test": float("nan")}, "test must be a fraction"),
        ({"validation": 0.5, "test": 0.5}, "leave nothing to fit: 0.5 \\+ 0.5 must be below 1"),
        ({"by": "trajectory", "test_from": 3.0}, "validation_from and test_from are times; they need by=time"),
    ],
)
def test_settings_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        nf.Split(**options)


def test_what_leaves_nothing_to_fit_is_refused():
    with pytest.raises(ValueError, match="2 trajectories can't be divided into 1 for validation, 1 for test"):
        nf.Split("trajectory", validation=0.4, test=0.4)(records([(5, 0.0)] * 2))
    with pytest.raises(ValueError, match="no row is earlier than t = 1900, so nothing is left to fit; cut later"):
        nf.Split(test_from=1900.0)(years())


def test_named_trajectories_are_a_part():
    data = records([(4, 0.0)] * 7)
    parts = nf.Split(test_trajectories=[3, "5"], validation_trajectories=["0"])(data)
    assert [part.trajectories for part in parts] == [("1", "2", "4", "6"), ("0",), ("3", "5")]
    half = nf.Split(test_trajectories=["3"], validation=0.3)(data)
    assert half.test.trajectories == ("3",) and len(half.validation.trajectories) == 2
    assert nf.Split(test_trajectories=[], validation=0.0)(data).named().keys() == {"train"}
    few = nf.Split(test_trajectories=["1"], validation=0.0)(records([(4, 0.0)] * 2))
    assert few.train.trajectories == ("0",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test_trajectories": ["12"]}, r"test_trajectories names '12', which does not exist; .* Did you mean '1'\?"),
        (
            {"validation_trajectories": [9]},
            r"validation_trajectories names '9', which does not exist; .* are '0', '1'\.",
        ),
        (
            {"test_trajectories": [1], "validation_trajectories": ["1"]},
            "'1' is named in validation_trajectories and in",
        ),
        (
            {"test_trajectories": [0, 1]},
            "2 trajectories can't be divided into 0 for validation, 2 for test and at least",
        ),
        ({"test_trajectories": "0"}, r"write test_trajectories=\['0'\]"),
        ({"test_trajectories": ["0"], "by": "time"}, "need by=trajectory"),
        ({"test_trajectories": ["0"], "test_from": 1.0}, "and no times"),
        ({"restart": True, "by": "trajectory"}, "restart is for by=time"),
        ({"restart": True, "test_trajectories": ["0"]}, "restart is for by=time"),
    ],
)
def test_named_trajectories_that_cannot_be_a_part(options, said):
    with pytest.raises(ValueError, match=said):
        nf.Split(**options)(records([(4, 0.0)] * 2))


names = st.lists(st.integers(0, 7), max_size=3)


@SMALL
@given(shapes=shapes, chosen=st.tuples(names, names), validation=fractions, seed=st.integers(0, 3))
def test_named_parts_are_disjoint_and_lose_nothing(shapes, chosen, validation, seed):
    data = records(shapes)
    test, validated = chosen
    try:
        parts = nf.Split(test_trajectories=test, validation_trajectories=validated or None, seed=seed)(data)
    except ValueError as error:
        assert any(words in str(error) for words in ("does not exist", "is named in", "at least one to fit"))
        return
    assert sorted(v for part in parts for v in scored_values(part)) == scored_values(data)
    assert set(parts.test.trajectories if parts.test else ()) == {str(each) for each in test}


@SMALL
@given(shapes=shapes, validation=fractions, test=fractions, gaps=st.integers(0, 3))
def test_restarted_parts_hold_their_own_rows_and_no_others(shapes, validation, test, gaps):
    data = records(shapes)
    data.ys[:, 1 : 1 + gaps] = np.nan
    forecast = nf.Split("time", validation, test)
    restart = nf.Split("time", validation, test, restart=True)
    try:
        later = forecast(data)
    except ValueError:
        with pytest.raises(ValueError, match="nothing is left to fit"):
            restart(data)
        return
    parts = restart(data)
    assert parts.named().keys() == later.named().keys()
    for name, part in parts.named().items():
        assert scored_values(part) == scored_values(later.named()[name])
        np.testing.assert_array_equal(part.scored, part.valid, "every row counts, so no earlier one is there")
    assert sum(int(part.valid.sum()) for part in parts.named().values()) == int(data.valid.sum())


def test_a_restarted_part_begins_at_its_own_first_row():
    parts = nf.Split(validation_from=1912.0, test_from=1915.0, restart=True)(years())
    assert parts.validation.ts[0].tolist() == [1912, 1913, 1914]
    assert parts.test.ts[0].tolist() == list(range(1915, 1921))
    assert parts.test.first.tolist() == [[15.0]]


@SMALL
@given(shapes=shapes, rows=st.integers(1, 10), stride=st.one_of(st.none(), st.integers(1, 10)), start=st.floats(0, 9))
def test_windows_are_slices_that_cover_what_counts(shapes, rows, stride, start):
    data = records(shapes).score_after(start)
    data.ys[:, ::3] = np.nan
    if not data.mask.any():
        with pytest.raises(ValueError, match="no window holds a measured value"):
            data.windows(rows, stride)
        return
    try:
        cuts = data.windows(rows, stride)
    except ValueError:
        assert stride is not None and stride > rows, "only windows with gaps between them may miss all scored rows"
        return
    seen = np.zeros_like(data.scored)
    for i, name in enumerate(cuts.trajectories):
        owner, begin, end = map(int, name.rstrip("]").replace("[", ":").split(":"))
        assert cuts.lengths[i] == end - begin == min(rows, data.lengths[owner])
        for ours, whole in ((cuts.ts, data.ts), (cuts.ys, data.ys), (cuts.us, data.us), (cuts.scored, data.scored)):
            np.testing.assert_array_equal(ours[i, : end - begin], whole[owner, begin:end])
        assert cuts.mask[i].any()
        seen[owner, begin:end] = True
    if stride is None or stride <= rows:
        assert seen[data.mask.any(axis=2)].all()


def test_windows_begin_half_a_window_apart_and_the_last_ends_with_the_record():
    cuts = records([(11, 0.0), (3, 0.0), (4, 0.0)]).windows(4)
    assert cuts.trajectories == ("0[0:4]", "0[2:6]", "0[4:8]", "0[6:10]", "0[7:11]", "1[0:3]", "2[0:4]")
    assert records([(8, 0.0)]).windows(4, 4).trajectories == ("0[0:4]", "0[4:8]")
    assert years().score_after(1910.0).windows(5, 5).trajectories == ("0[10:15]", "0[15:20]", "0[16:21]")
    for rows, stride in ((0, None), (3, 0), (3, -1)):
        with pytest.raises(ValueError, match="must be at least 1"):
            years().windows(rows, stride)


def test_records_without_a_common_time_are_each_cut_at_a_share_of_their_own():
    data = records([(10, 0.0), (10, 100.0), (20, 1000.0)])
    parts = nf.Split()(data)
    assert nf.Split().how(data).reason == (
        "each trajectory by its own time, since there are 3 trajectories without a common time"
    )
    for part, rows in zip(parts, ([6, 6, 12], [2, 2, 4], [2, 2, 4]), strict=True):
        assert part.trajectories == data.trajectories and part.scored.sum(axis=1).tolist() == rows
    restarted = nf.Split(restart=True)(data)
    assert [part.lengths.tolist() for part in restarted] == [[6, 6, 12], [2, 2, 4], [2, 2, 4]]
    assert nf.Split(by="time").how(data).by == "time", "unless the user says so"
    assert nf.Split().how(records([(10, 0.0), (10, 5.0)])).by == "time"


def test_what_is_said_of_a_split_counts_rows_and_trajectories():
    parts = nf.Split()(records([(10, 0.0), (10, 100.0)]))
    assert count_trajectories(parts) == (
        "train 12 rows of 2 trajectories, validation 4 rows of 2 trajectories, test 4 rows of 2 trajectories"
    )
    assert count_trajectories(parts._replace(validation=None, test=None)) == (
        "train 12 rows of 2 trajectories; no validation and no test data"
    )
    five = records([(3, 0.0)] * 5)
    assert nf.Split().how(five).reason == "by trajectory, since there are 5"
    assert nf.Split(by="time").how(five).reason == "by time, as split.by says"


def test_shares_that_are_left_open_are_a_fifth_or_what_the_caller_says():
    twelve = records([(5, 0.0)] * 12)
    assert len(nf.Split()(twelve).train) == len(nf.Split(validation=0.2, test=0.2)(twelve).train) == 8
    whole = nf.Split().with_shares(0.0)(twelve)
    assert len(whole.train) == 12 and whole.validation is None and whole.test is None
    given = nf.Split(test=0.25).with_shares(0.0)(years())
    assert given.validation is None and len(scored_times(given.test)) == 6


def test_a_row_at_the_time_of_a_cut_is_of_the_later_part():
    """Each trajectory ends at its last row before; one without any keeps its first row, and padding never counts."""
    ts = [np.arange(5.0), np.arange(3.0), np.arange(3.0)]
    data = nf.Dataset.from_arrays(ts, [np.ones((len(each), 1)) for each in ts], states=("x",))
    np.testing.assert_array_equal(last_before(data, np.array([3.0, 9.0, 0.0])), [2.0, 2.0, 0.0])
