"""Training data from which little can be learnt: refused, or told at the start and in the result."""

import dataclasses
import functools
import logging

import jax
import numpy as np
import pytest
from helpers.commands import in_process, node_fit, read_summary, write_table
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.__main__ import main
from node_fit.data.facts import Facts, find_oddities, first_values_at_limits, has_motion, noise_share


def with_values(change) -> nf.Dataset:
    data = rotation(trajectories=2, times=40)
    ys = data.ys.copy()
    change(ys)
    return dataclasses.replace(data, ys=ys)


def outlier(ys):
    ys[1, 7, 0] = 500.0


def nothing(ys):
    ys[..., 0] = np.nan


def constant(ys):
    ys[..., 0] = 3.0


def enormous(ys):
    ys *= 1e25


ODD = {
    outlier: "state 'x' has a value far from all others (500 at t = 0.538462 of trajectory '1', the others lie from -",
    nothing: "state 'x' has no measured value in the training data; leave it out, or make it a hidden state",
    constant: "state 'x' is 3 in all 80 training values, so its motion can't be learnt; leave it out",
    enormous: "state 'x' has magnitudes of 1e+25; use another unit if it is",
}


@pytest.mark.parametrize("change", ODD, ids=lambda change: change.__name__)
def test_a_column_that_looks_wrong_is_told(change):
    assert find_oddities(with_values(change), nf.Scaling())[0].startswith(ODD[change])


def test_a_start_at_a_limit_is_told():
    """Of the first trajectory the second value is the first one; of the second, a later one is a limit."""
    ys, marks = rotation(2, 10).ys.copy(), np.zeros((2, 10, 2), int)
    ys[0, 0, 1] = np.nan
    marks[0, 1, 1], marks[1, 3, 0] = -1, 1
    data = nf.Dataset.from_arrays(np.arange(10.0), ys, states=["x", "y"], censored=marks)
    np.testing.assert_array_equal(first_values_at_limits(data), [[False, True], [False, False]])
    assert Facts.of(data).begins_at_limit and not Facts.of(dataclasses.replace(data, censored=None)).begins_at_limit
    said = [each for each in find_oddities(data, nf.Scaling(), from_first=["x", "y"]) if "limit" in each]
    assert len(said) == 1 and said[0].startswith("state 'y' starts at its first measurement in trajectory '0', which")
    assert not any("limit" in each for each in find_oddities(data, nf.Scaling()))


def test_data_in_order_are_not_talked_about():
    decay = np.exp(-np.arange(40) / 2)[None, :, None]
    spread = np.exp(3 * np.random.default_rng(0).standard_normal((1, 200, 1)))
    for ys, log in ((decay, ()), (decay[:, ::-1], ()), (spread, ("y0",)), (rotation(2, 40).ys, ())):
        data = nf.Dataset.from_arrays(np.arange(float(ys.shape[1])), ys)
        assert find_oddities(data, nf.Scaling(log=log), 5) == []


def switched(ys):
    ys[..., 1] = 20.0 * (np.arange(ys.shape[1]) // 9 % 2)


def stepped(ys):
    ys[..., 1] = np.array([0.0, 3.0, 1.0, 2.0])[np.arange(ys.shape[1]) // 10 % 4]


def rounded(ys):
    ys[..., 1] = np.round(2 * ys[..., 1] / np.abs(ys[..., 1]).max())


@pytest.mark.parametrize(("change", "levels"), [(switched, 2), (stepped, 4), (rounded, None)])
def test_an_input_among_the_states_is_told(change, levels):
    """Values that a sensor rounds pass through each level; those that are set jump over some."""
    told = find_oddities(with_values(change), nf.Scaling())
    asked = [f"state 'y' jumps between {levels} levels, as an input does; if it is one, name it"]
    assert [each.split(" (")[0] for each in told] == (asked if levels else [])


def test_short_records_constant_inputs_and_long_windows_are_told():
    ts = np.arange(2.0)
    data = nf.Dataset.from_arrays(ts, ts[:, None], 0 * ts[:, None] + 4)
    told = find_oddities(data, nf.Scaling(), 50)
    assert [each.split(",")[0] for each in told] == [
        "input 'u0' is 4 throughout the training data",
        "the longest training trajectory has 2 rows",
        "training.window=50 is more than the 2 rows of the longest training trajectory",
    ]


@pytest.mark.slow
def test_a_start_that_is_taken_from_a_later_row_is_told(caplog):
    data = rotation(3, 30)
    ys = data.ys.copy()
    ys[1:, 0, 1] = np.nan
    late = dataclasses.replace(data, ys=ys)
    options = {"field": SMALL, "steps": 1, "recipe": "direct", "ridge": 0.0}
    fit = fit_to(late, **options)
    (told,) = [said for said in fit.warnings if "first row" in said]
    assert told.startswith("state 'y' is not measured in the first row of trajectory '1' and 1 more")
    assert told in caplog.text
    for other, more in ((data, {}), (late, {"start": functools.partial(nf.Fitted, given=None)})):
        assert not fit_to(other, **options, **more).warnings


def test_a_trajectory_without_a_value_of_a_state_is_told():
    ys = np.random.default_rng(0).standard_normal((3, 8, 2))
    ys[1, :, 1] = np.nan
    data = nf.Dataset.from_arrays(np.arange(8.0), ys, states=["x", "y"], trajectories=["a", "b", "c"])
    (told,) = find_oddities(data, nf.Scaling())
    assert told.startswith("state 'y' has no value in trajectory 'b', so that") and "+start.absent.y=" in told


def test_data_without_a_measured_value_are_refused():
    data = rotation()
    with pytest.raises(ValueError, match=r"no state \(x, y\) has a measured value that counts in the training data"):
        nf.fit(dataclasses.replace(data, ys=np.full_like(data.ys, np.nan)))


def test_data_in_which_nothing_moves_are_refused():
    with pytest.raises(ValueError, match="no trajectory has two rows in the training data, so nothing moves"):
        nf.fit(rotation().until(0.0))


def as_data(*records: list[float]) -> nf.Dataset:
    ts = [np.arange(float(len(record))) for record in records]
    return nf.Dataset.from_arrays(ts, [np.array(record)[:, None] for record in records], states=["x"])


def test_a_state_moves_within_a_trajectory():
    assert has_motion(as_data([1.0, 1.0], [2.0, 2.0, 3.0]))
    assert not has_motion(as_data([1.0, np.nan, 1.0], [2.0, 2.0, 2.0, 2.0]))


def test_the_only_state_is_not_to_be_left_out():
    (told,) = find_oddities(as_data([60.0] * 6), nf.Scaling())
    assert told == "state 'x' is 60 in all 6 training values, so its motion can't be learnt; add rows in which it moves"


def test_limits_are_part_of_the_spread_to_which_noise_is_compared():
    rng = np.random.default_rng(0)
    ys = np.sin(np.arange(300) / 8) + 0.02 * rng.normal(size=300)
    data = as_data(ys.tolist()).clip({"x": (None, -0.5)})
    spread = np.minimum(ys, -0.5).std()
    assert noise_share(data) == pytest.approx(0.02 / spread, rel=0.1)
    assert data.exact.ys[np.isfinite(data.exact.ys)].std() < 0.85 * spread


@pytest.mark.slow
def test_a_fit_warns_and_remembers(caplog):
    with caplog.at_level(logging.WARNING):
        fit = fit_to(with_values(constant), field=nf.Linear, recipe="direct", steps=2, chunk_steps=2, ridge=0.0)
    assert fit.warnings == (ODD[constant],) and ODD[constant] in caplog.text


def test_a_constant_that_no_equation_has_is_refused():
    equations = {"x": "-a*y", "y": "a*x"}
    field = lambda system, *, key: nf.Known(system, equations=equations, constants={"a": 1.0, "b": 2.0})  # noqa: E731
    with pytest.raises(ValueError, match="constants names 'b', which occurs in no equation"):
        nf.make_model(rotation(), field=field, key=jax.random.key(0))


def test_a_run_says_how_its_data_are_split_and_what_is_odd(tmp_path):
    rows = [{"t": t / 4, "x": np.cos(t / 4), "y": 5.0} for t in range(20)]
    write_table(tmp_path / "mine.csv", rows)
    ran = node_fit(
        tmp_path, "data=table", "data.path=mine.csv", "data.time=t", "data.states=[x,y]", "hydra.run.dir=run",
        "evaluation.window=50",
        "field=linear", "recipe=direct", "training.steps=2",
    )  # fmt: skip
    said = "split: by time, since there is 1 trajectory: train 12 rows of 1 trajectory, validation 4 rows"
    assert ran.code == 0 and said in ran.out, ran
    summary = read_summary(tmp_path / "run")
    assert summary["data"][0].startswith(said)
    assert summary["data"][1] == "evaluation.window=50 is more than the 20 rows of the longest trajectory"
    assert summary["warnings"] == [
        "state 'y' is 5 in all 12 training values, so its motion can't be learnt; leave it out"
    ]
    assert summary["warnings"][0] in ran.err


def test_errors_name_the_key_that_the_user_wrote(tmp_path):
    write_table(tmp_path / "mine.csv", [{"t": t, "x": 1.0 + t, "dose": 10.0**t} for t in range(8)])
    table = ["data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "data.inputs=[dose]"]
    for wrong, said in (
        ("data.log=[dosse]", "data.log names 'dosse', which is not a state or an input; did you mean 'dose'?"),
        ("data.angles=[y]", "data.angles names 'y', which is not a state; choose from x."),
        ("data.time_unit=h", "column 't' holds numbers, but data.time_unit='h' is for timestamps"),
        ("data.split.test_trajectories=[a]", "data.split.test_trajectories names 'a', which does not exist"),
    ):
        ran = in_process(main, tmp_path, *table, wrong)
        assert ran.code == 1 and said in ran.err, ran
