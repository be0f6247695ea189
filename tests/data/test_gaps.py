"""A record is cut where rows are missing and an input changes among them, at an unknown time."""

import dataclasses

import numpy as np
import pytest

import node_fit as nf
from node_fit.data.gaps import cut_at_gaps, describe_gaps, find_gaps
from node_fit.data.table_source import Table

GONE = slice(40, 44)


def tank(gone=GONE, *, levels=(0.0, 1.0, 0.5), change=42, **more):
    """A tank whose level follows its inflow with a rate of 0.5, without some of 120 rows."""
    t = 0.2 * np.arange(120)
    u = np.array(levels)[np.searchsorted([12, change, 80], np.arange(120), side="right") % len(levels)]
    y = [1.0]
    for flow in u[:-1]:
        y.append(2 * flow + (y[-1] - 2 * flow) * np.exp(-0.5 * 0.2))
    rows = np.delete(np.arange(120), gone)
    names = {"states": ["level"], "inputs": ["flow"], "trajectories": ["tank"]}
    return nf.Dataset.from_arrays(t[rows], np.array(y)[rows, None], u[rows, None], **names | more)


def test_a_record_ends_before_a_gap_in_which_an_input_changes():
    data = tank()
    assert [(gap.after, gap.missing, gap.inputs) for gap in find_gaps(data)] == [(40, 4, ("flow",))]
    parts = cut_at_gaps(data)
    assert parts.trajectories == ("tank[0:40]", "tank[40:116]") and parts.lengths.tolist() == [40, 76]
    assert np.array_equal(parts.ys[1, :76], data.ys[0, 40:]) and parts.ts[1, 0] == data.ts[0, 40]
    assert describe_gaps(data) == [
        "gaps: 4 rows are missing between t = 7.8 and 8.8, and 'flow' changed there at an unknown time, so a new "
        "trajectory begins after them (data.split.gaps=bridge keeps one)"
    ]


def with_uneven_times(data):
    steps = np.diff(data.ts, axis=1, prepend=0) * np.random.default_rng(0).uniform(0.5, 1.5, data.ts.shape)
    return dataclasses.replace(data, ts=np.cumsum(steps, axis=1))


@pytest.mark.parametrize(
    "data",
    [
        tank(change=50),  # The input is the same before and after.
        tank(slice(40, 42)),
        with_uneven_times(tank()),
        tank(slice(0, 0)),
        dataclasses.replace(tank(), us=np.sin(np.arange(116.0))[None, :, None]),  # It is no held input.
        nf.Dataset.from_arrays(np.arange(3.0), np.ones(3)),
        nf.with_events(tank(), [{"time": 1.0, "state": "level", "add": 1.0}]),
    ],
    ids=["same", "two", "uneven", "none", "linear", "undriven", "events"],
)
def test_other_records_stay_whole(data):
    assert find_gaps(data) == [] and cut_at_gaps(data) is data and describe_gaps(data) == []


def test_inputs_that_move_all_the_time_neither_hide_a_gap_nor_make_one():
    """A held input that changes at an unknown time makes a gap, beside one whose lines bridge it."""
    for change, gaps in ((42, [(40, 4, ("flow",))]), (50, [])):
        data = tank(change=change)
        moving = np.sin(np.arange(116.0))[None, :, None]
        both = dataclasses.replace(data, us=np.concatenate([data.us, moving], axis=2), inputs=("flow", "room"))
        assert [tuple(gap) for gap in find_gaps(both)] == gaps


def test_several_trajectories_stay_whole():
    data = tank()
    ts, ys, us = (np.concatenate([values, values]) for values in (data.ts, data.ys, data.us))
    assert find_gaps(nf.Dataset.from_arrays(ts, ys, us)) == []


def test_parts_of_one_row_are_left_out():
    data = tank(slice(1, 13), change=60)
    assert [gap.after for gap in find_gaps(data)] == [1]
    assert cut_at_gaps(data).trajectories == ("tank[1:108]",)


def test_parts_are_cut_after_the_split():
    data = tank(change=42)
    train, validation, test = data.split()
    assert [len(part) for part in (train, validation, test)] == [2, 1, 1]
    assert validation.ts[0, 0] == data.ts[0, 40], "rows before the gap tell nothing about later ones"
    whole = data.split(gaps="bridge")
    assert [len(part) for part in whole] == [1, 1, 1] and int(whole.train.lengths.sum()) == int(train.lengths.sum())
    with pytest.raises(ValueError, match="gaps"):
        data.split(gaps="cuts")


def test_a_table_says_that_its_record_is_cut(tmp_path):
    path = tmp_path / "tank.csv"
    tank().to_frame().drop(columns="trajectory").to_csv(path, index=False)
    source = Table(path=str(path), time="t", states=["level"], inputs=["flow"], test_path=str(path))
    parts, notes = source.load_with_notes()
    assert len(parts.train) == len(parts.test) == 2 and any(note.startswith("gaps: 4 rows") for note in notes)
    kept, notes = dataclasses.replace(source, split=nf.Split(gaps="bridge")).load_with_notes()
    assert len(kept.train) == len(kept.test) == 1 and not any(note.startswith("gaps") for note in notes)


@pytest.mark.slow
def test_a_cut_record_gives_the_true_constants():
    """Where the gap is bridged, the fit takes the change of the input to be later than it was."""
    field = nf.Known(equations={"level": "-k*level + flow"}, constants={"k": 1.0})
    options = {"field": field, "solver": nf.Solver(inputs="hold"), "progress": False}
    errors = [
        abs(nf.fit(tank().split(validation=0, test=0, gaps=gaps).train, **options).constants["k"] - 0.5)
        for gaps in ("cut", "bridge")
    ]
    assert errors[0] < 1e-3 < 0.01 < errors[1]
