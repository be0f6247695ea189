"""The interval for the error on new data: it holds as often as it says, and is left out where nothing tells."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.evaluation.case import Case
from node_fit.evaluation.diagnosis import Assessment, diagnose
from node_fit.evaluation.new_data import HeldOut, expect_error


def errors(rng, shape, last=0.0):
    """Noise in rows, each of which keeps a part of the one before."""
    noise = rng.normal(size=shape)
    for row in range(1, shape[1]):
        noise[:, row] = last * noise[:, row - 1] + (1 - last**2) ** 0.5 * noise[:, row]
    return noise


def held_out(trajectories, rows, left, **more):
    ts = np.tile(np.arange(rows, dtype=float), (trajectories, 1))
    return nf.Dataset.from_arrays(ts, left[..., None], states=["x"], **more)


def interval(*parts, spread=(2.0,)):
    data = [held_out(*left.shape, left) for left in parts]
    return expect_error([HeldOut(each, np.zeros_like(each.ys)) for each in data], np.array(spread), "these")


def share_inside(trajectories, rows, last, *, own=0.0, draws=400):
    """How often the error of one more group lies in the interval; `own`: how errors of trajectories differ."""
    inside, size = 0, rows if trajectories > 3 else trajectories * rows // 8
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        seen = np.exp(own * rng.normal(size=(trajectories, 1))) * errors(rng, (trajectories, rows), last)
        new = np.exp(own * rng.normal()) * errors(rng, (1, size), last)
        found = interval(seen, spread=(1.0,))
        inside += found.low <= (new**2).mean() ** 0.5 <= found.high
    return inside / draws


@pytest.mark.parametrize(
    "case",
    [(1, 80, 0.0), (1, 160, 0.6), (2, 60, 0.5), (6, 20, 0.9, 0.4)],
    ids=["independent", "dependent", "two", "six"],
)
def test_the_interval_holds_at_least_as_often_as_it_says(case):
    """Of new data that are like those held out, 95 %; three standard errors of 400 draws are 3 %."""
    trajectories, rows, last, *own = case
    assert 0.91 <= share_inside(trajectories, rows, last, own=own[0] if own else 0.0) <= 0.99


def test_trajectories_count_as_groups_where_there_are_enough():
    """Rows of one trajectory err alike, so that stretches of them would tell too narrow an interval."""
    left = np.repeat([0.1, 0.3, 0.5, 0.2, 0.4], 40).reshape(5, 40)
    assert interval(left).groups == 5
    assert interval(left[:3]).groups == 8


def test_errors_are_in_the_spread_and_states_count_alike():
    left = np.tile([0.9, 1.1], 20)[None]
    narrow, wide = interval(left, spread=(1.0,)), interval(left, spread=(10.0,))
    assert wide.low == pytest.approx(narrow.low / 10) and 0.9 < narrow.low < 1.1
    ys = np.stack([left, 100 * left], axis=-1)
    data = nf.Dataset.from_arrays(np.arange(40.0)[None], ys, states=["x", "y"])
    parts = [HeldOut(data, np.zeros_like(ys))]
    both = expect_error(parts, np.array([1.0, 100.0]), "these")
    assert both.low == pytest.approx(narrow.low) and both.high == pytest.approx(narrow.high)
    still = expect_error(parts, np.array([1.0, 0.0]), "these")
    assert still.low == pytest.approx(narrow.low)


def test_too_few_rows_and_lost_predictions_tell_nothing():
    assert interval(np.ones((1, 5))) is None
    assert interval(np.zeros((1, 50))) is None
    data = held_out(1, 50, np.ones((1, 50)))
    assert expect_error([HeldOut(data, np.full_like(data.ys, np.nan))], np.ones(1), "these") is None


def test_several_parts_are_one_group_each():
    rng = np.random.default_rng(4)
    blocks = [size * rng.normal(size=(1, 50)) for size in (0.5, 0.5, 1.0, 2.0)]
    found = interval(*blocks, spread=(1.0,))
    assert found.groups == 4 and found.low < 0.5 and found.high > 1.7
    assert interval(*blocks[:2]) is None


def make_case(held, **more):
    rng = np.random.default_rng(3)
    waves = np.sin(np.arange(80) / 5)[None]
    splits = {role: held_out(1, 80, waves) for role in held}
    predicted = {role: part.ys + 0.05 * rng.normal(size=part.ys.shape) for role, part in splits.items()}
    return Case("converged", [], splits, predicted, **more)


def test_the_verdict_says_what_to_expect_and_where_test_data_differ():
    case = make_case(("train", "validation", "test"))
    said = diagnose(case).sentence
    expected = Assessment(case, diagnose(case)).expected
    assert expected.low < case.nrmse["test"] < expected.high
    assert f"On new data like these, expect {expected}." in said
    assert "an NRMSE of 0.0" in said and "(80 %, by validation data)" in said

    far = make_case(("train", "validation", "test"))
    far.predicted["test"] = far.predicted["test"] + 0.3
    assert f"; the test data, with {far.nrmse['test']:.2g}, differ from these." in diagnose(far).sentence


def test_an_interval_of_two_orders_of_magnitude_is_no_expectation():
    case = make_case(("train", "validation", "test"))
    measured = case.splits["validation"].ys
    case.predicted["validation"] = measured + np.geomspace(1e-3, 1, 80)[:, None] * (
        case.predicted["validation"] - measured
    )
    expected, said = Assessment(case, diagnose(case)).expected, diagnose(case).sentence
    assert expected.high > 100 * expected.low and "expect an NRMSE" not in said
    assert "What error to expect on new data stays open: the errors on validation data differ too much." in said


def test_nothing_is_expected_of_a_fit_to_all_rows_or_of_one_that_failed():
    assert "expect" not in diagnose(make_case(("train", "test"))).sentence
    lost = make_case(("train", "validation"))
    lost.predicted["train"] = np.full_like(lost.predicted["train"], np.nan)
    assert diagnose(lost).kind == "unstable" and "expect" not in diagnose(lost).sentence
