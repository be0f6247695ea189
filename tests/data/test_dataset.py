"""Datasets: validation, padding and selection, and that masked values do not count."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.problems import SMALL, rotation
from jax.flatten_util import ravel_pytree

import node_fit as nf
from node_fit.objectives.objective import Target
from node_fit.runtime.placement import carry, scope


def ragged(**options) -> nf.Dataset:
    """Two trajectories of three and five rows; each state is the time times the state's number."""
    ts = [np.array([0.0, 1.0, 3.0]), np.array([0.5, 1.5, 2.0, 4.0, 6.0])]
    ys = [t[:, None] * np.array([1.0, 2.0]) for t in ts]
    us = [t[:, None] + 10 for t in ts]
    return nf.Dataset.from_arrays(ts, ys, us, **options)


def test_padding_repeats_time_and_input_and_leaves_states_empty():
    data = ragged()
    assert data.lengths.tolist() == [3, 5]
    assert data.ts[0].tolist() == [0, 1, 3, 3, 3]
    assert data.us[0, :, 0].tolist() == [10, 11, 13, 13, 13]
    assert np.isnan(data.ys[0, 3:]).all() and np.isfinite(data.ys[0, :3]).all()
    assert data.valid.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert not data.mask[0, 3:].any() and data.mask[0, :3].all()


def test_default_and_given_names():
    data = ragged()
    assert (data.states, data.inputs, data.trajectories) == (("y0", "y1"), ("u0",), ("0", "1"))
    named = ragged(states=("a", "b"), inputs=("v",), trajectories=("first", "second"), time="h", units={"a": "m"})
    assert (named.states, named.inputs, named.trajectories) == (("a", "b"), ("v",), ("first", "second"))
    assert (named.time, named.units) == ("h", {"a": "m"})


@pytest.mark.parametrize(
    ("ts", "ys"),
    [
        (np.arange(3.0), np.ones((3, 2))),
        (np.arange(3.0), np.ones((1, 3, 2))),
        (np.arange(3.0)[None], np.ones((1, 3, 2))),
        ([np.arange(3.0)], [np.ones((3, 2))]),
        ([0, 1, 2], [[1, 1], [1, 1], [1, 1]]),
    ],
)
def test_one_trajectory_in_every_form_is_the_same_dataset(ts, ys):
    data = nf.Dataset.from_arrays(ts, ys)
    assert data.ts.tolist() == [[0, 1, 2]]
    assert data.ys.tolist() == np.ones((1, 3, 2)).tolist()
    assert data.us.shape == (1, 3, 0)
    assert data.ts.dtype == data.ys.dtype == data.us.dtype == np.float64


@pytest.mark.parametrize(
    ("ts", "said"),
    [
        ([0.0, 1.0, 1.0, 2.0], "t must increase strictly; trajectory '0' repeats 1 at row 2.*remove or average"),
        ([0.0, 1.0, 0.5, 2.0], "t must increase strictly; trajectory '0' goes back from 1 to 0.5 at row 2"),
        ([0.0, np.nan, 1.0, 2.0], "t must be finite; trajectory '0' .* at row 1"),
        ([0.0, 1.0, 2.0, np.inf], "t must be finite; trajectory '0' .* at row 3"),
    ],
)
def test_times_are_refused_by_trajectory_and_row(ts, said):
    with pytest.raises(ValueError, match=said):
        nf.Dataset.from_arrays(ts, np.ones((4, 1)))


def test_the_trajectory_with_the_fault_is_the_one_named():
    ts = [np.arange(3.0), np.array([0.0, 2.0, 1.0, 3.0])]
    with pytest.raises(ValueError, match="trajectory 'B7' goes back from 2 to 1 at row 2"):
        nf.Dataset.from_arrays(ts, [np.ones((3, 1)), np.ones((4, 1))], trajectories=("A1", "B7"))


def test_a_lacking_input_and_an_infinite_state_are_refused_and_a_lacking_state_is_not():
    ys, us = np.ones((4, 2)), np.ones((4, 1))
    us[2, 0] = np.nan
    with pytest.raises(ValueError, match=r"inputs must be known .* trajectory '0' lacks 'flow' at row 2"):
        nf.Dataset.from_arrays(np.arange(4.0), ys, us, inputs=("flow",))
    ys[3, 1] = -np.inf
    with pytest.raises(ValueError, match="state 'y1' of trajectory '0' is infinite at row 3"):
        nf.Dataset.from_arrays(np.arange(4.0), ys)
    ys[3, 1] = np.nan
    data = nf.Dataset.from_arrays(np.arange(4.0), ys)
    assert data.mask.sum() == 7 and not data.mask[0, 3, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.arange(3.0), np.ones((4, 1))), r"trajectory 0: ts \(3,\), ys \(4, 1\) .* one row per time"),
        ((np.arange(3.0), np.ones((1, 2, 3, 4))), r"ys must have 2 or 3 dimensions, got shape \(1, 2, 3, 4\)"),
        ((np.ones((2, 3, 1)), np.ones((2, 3, 1))), r"ts must have 1 or 2 dimensions, got shape \(2, 3, 1\)"),
        ((np.ones(0), np.ones((0, 1))), "ys holds no rows"),
        (([np.arange(3.0)] * 2, [np.ones((3, 1))] * 3), "same number of trajectories, got 2, 3, 3"),
        (([np.arange(3.0)] * 2, [np.ones((3, 1)), np.ones((3, 2))]), r"trajectory 1: ys \(3, 2\) .* differ in columns"),
        ((np.arange(3.0), np.ones((3, 1)), np.ones((2, 1))), r"trajectory 0: .* us \(2, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_the_shapes(arguments, said):
    with pytest.raises(ValueError, match=said):
        nf.Dataset.from_arrays(*arguments)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"states": ("x",)}, r"states has the names \['x'\], but needs 2, one for each"),
        ({"inputs": ("v", "w")}, "inputs has the names .* but needs 1"),
        ({"trajectories": ("a",)}, "trajectories has the names .* but needs 2"),
        ({"states": ("x", "x")}, "'x' is used twice"),
        ({"inputs": ("y1",)}, "'y1' is used twice"),
        ({"time": "y0"}, "'y0' is used twice"),
    ],
)
def test_names_are_as_many_as_channels_and_differ(names, said):
    with pytest.raises(ValueError, match=said):
        ragged(**names)


def test_select_keeps_the_order_asked_for_and_drops_padding_that_none_needs():
    data = ragged(trajectories=("short", "long"))
    short = data.select([0])
    assert short.trajectories == ("short",) and short.ts.tolist() == [[0, 1, 3]]
    assert short.ys.shape == (1, 3, 2) and short.us.shape == (1, 3, 1) and short.scored.shape == (1, 3)
    swapped = data.select(np.array([1, 0]))
    assert swapped.trajectories == ("long", "short")
    assert swapped.lengths.tolist() == [5, 3] and np.array_equal(swapped.ts, data.ts[::-1])


def test_until_includes_its_end_and_leaves_out_what_begins_later():
    data = ragged(trajectories=("short", "long"), units={"y0": "m"})
    early = data.until(1.5)
    assert [t[:n].tolist() for t, n in zip(early.ts, early.lengths, strict=True)] == [[0, 1], [0.5, 1.5]]
    assert early.units == data.units
    first = data.until(0.4)
    assert first.trajectories == ("short",) and first.ts.tolist() == [[0]]
    with pytest.raises(ValueError, match="no row has t <= -1; the data begin at 0"):
        data.until(-1.0)


def test_scored_after_keeps_context_and_never_scores_padding():
    later = ragged().score_after(1.0)
    assert later.ts[later.scored].tolist() == [3, 1.5, 2, 4, 6]
    assert np.array_equal(later.ys, ragged().ys, equal_nan=True)
    assert later.score_after(3.5).scored.sum() == 2
    assert later.score_after(0.0).scored.sum() == 5, "unscored rows must stay unscored"


def test_until_keeps_what_does_not_count():
    data = ragged().score_after(1.0).until(4.0)
    assert data.ts[data.scored].tolist() == [3, 1.5, 2, 4]


def test_first_is_the_first_measured_value_of_each_state():
    ys = np.array([[np.nan, 1.0], [2.0, 3.0], [4.0, np.nan]])
    data = nf.Dataset.from_arrays(np.arange(3.0), np.stack([ys, np.full((3, 2), np.nan)]))
    assert data.first[0].tolist() == [2, 1]
    assert np.isnan(data.first[1]).all()
    assert data.score_after(1.5).first[0].tolist() == [2, 1], "context rows must give the start of a trajectory"


def test_shares_grid_only_if_times_and_lengths_agree():
    assert rotation().shares_grid
    assert not ragged().shares_grid
    assert ragged().select([1]).shares_grid
    shifted = rotation()
    ts = shifted.ts.copy()
    ts[1, -1] += 1e-9
    assert not dataclasses.replace(shifted, ts=ts).shares_grid


def with_context() -> nf.Dataset:
    """Rotations with one row that does not count and one missing value."""
    data = rotation()
    scored, ys = data.scored.copy(), data.ys.copy()
    scored[0, 5] = False
    ys[1, 7, 0] = np.nan
    return dataclasses.replace(data, scored=scored, ys=ys)


def model_of(data: nf.Dataset) -> nf.NeuralODE:
    # One scaler for all variants of the data, so they differ only in the loss.
    model = nf.make_model(rotation(), field=SMALL, key=jax.random.key(0))
    return carry(model, np.float64)


@eqx.filter_jit
def value_and_gradient(objective, model, target):
    def value(field):
        return objective.loss(eqx.tree_at(lambda m: m.field, model, field), None, target).value

    loss, gradient = eqx.filter_value_and_grad(value)(model.field)
    return loss, ravel_pytree(gradient)[0]


def evaluate(objective, data: nf.Dataset) -> tuple[float, np.ndarray]:
    """Loss and gradient on a dataset."""
    with scope("x64"):
        model = model_of(data)
        batch = objective.prepare(data, model)
        grid = objective.first_grid(batch) if isinstance(objective, nf.TrajectoryMatching) else None
        target = carry(Target(batch, grid, np.zeros(())), np.float64)
        loss, gradient = value_and_gradient(objective, model, target)
        return float(loss), np.asarray(gradient)


OBJECTIVES = [nf.TrajectoryMatching(solver=nf.Solver(rtol=1e-9, atol=1e-11)), nf.DerivativeMatching()]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=["trajectory", "derivative"])
def test_a_masked_value_changes_neither_loss_nor_gradient(objective):
    data = with_context()
    ys = data.ys.copy()
    ys[0, 5] = 1e3
    loss, gradient = evaluate(objective, data)
    masked_loss, masked_gradient = evaluate(objective, dataclasses.replace(data, ys=ys))
    assert masked_loss == loss and np.array_equal(masked_gradient, gradient)
    assert np.isfinite(gradient).all() and np.linalg.norm(gradient) > 0
    ys[0, 6] = 2.0
    other_loss, other_gradient = evaluate(objective, dataclasses.replace(data, ys=ys))
    assert abs(other_loss - loss) > 1e-3 and not np.allclose(other_gradient, gradient), "scored values matter"


@pytest.mark.parametrize("objective", OBJECTIVES, ids=["trajectory", "derivative"])
def test_a_masked_row_equals_a_dropped_row(objective):
    data = rotation()
    scored = data.scored.copy()
    scored[:, 5] = False
    keep = np.arange(data.ts.shape[1]) != 5
    dropped = nf.Dataset.from_arrays(data.ts[:, keep], data.ys[:, keep], states=data.states)
    loss, gradient = evaluate(objective, dataclasses.replace(data, scored=scored))
    dropped_loss, dropped_gradient = evaluate(objective, dropped)
    # The measured times affect the solver's first step, so the results are not bit-identical.
    assert np.isclose(dropped_loss, loss, rtol=1e-6, atol=0)
    assert np.allclose(dropped_gradient, gradient, rtol=1e-5, atol=1e-8)
    assert abs(evaluate(objective, data)[0] - loss) > 1e-6 * loss


@pytest.mark.parametrize("read", [nf.Dataset.from_file, nf.read_table, nf.Dataset.from_frame, nf.from_frame])
def test_what_scales_a_model_is_no_argument_of_a_reader(read):
    with pytest.raises(TypeError, match=r"no argument 'angles'; it is part of a fit: .*Scaling\(angles="):
        read("mine.csv", time="t", states=["x"], angles=["x"])
