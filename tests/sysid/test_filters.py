"""Filters of the inputs that a model with a network for its readout begins with."""

import functools

import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.data.batch import Batch, start_rows
from node_fit.data.scaling import Scaler
from node_fit.model.make_model import make_model
from node_fit.sysid.initialize import Filters, begin_with_filters, has_place
from node_fit.sysid.linear_model import step_matrix

pytestmark = pytest.mark.slow

ROWS = 500


def rectified(rows: int = ROWS) -> nf.Dataset:
    """Two records of a damped system that an input pushes, whose position is measured without its sign."""
    rng = np.random.default_rng(0)
    us = np.repeat(rng.normal(size=(2, rows // 10, 1)), 10, axis=1)
    step = step_matrix(np.array([[0, 0.3], [-0.3, -0.2]]), np.array([[0.0], [0.3]]), np.zeros(2), held=True)
    z, ys = np.zeros((2, 2)), []
    for row in range(rows):
        ys.append(np.abs(z[:, :1]))
        z = np.concatenate([z, us[:, row], np.ones((2, 1))], axis=1) @ step.T
    measured = np.stack(ys, axis=1)
    measured = measured + 0.01 * measured.std() * rng.normal(size=measured.shape)
    return nf.Dataset.from_arrays(np.arange(float(rows)), measured, us, states=("y",), inputs=("u",))


@pytest.mark.parametrize("seed", range(4))
def test_states_are_those_of_the_linear_system(seed):
    """The recursion of each filter, and the steps of the system that all of them are."""
    rng = np.random.default_rng(seed)
    filters = Filters.draw(rng, 4, 2, 50.0)
    us = rng.normal(size=(1, 60, 2))
    sizes = rng.uniform(0.5, 2, 4)
    system = filters.system(sizes, np.zeros((4, 1)), np.zeros(4))
    step, z, expected = step_matrix(system.a, system.b, system.c, held=True), np.zeros(4), []
    for u in us[0]:
        expected.append(z)
        z = step @ np.concatenate([z, u, [1]])
    assert np.allclose(filters.states(us)[0] / sizes, expected, atol=1e-10)


def test_filters_tell_what_no_linear_model_tells():
    data = rectified()
    start = functools.partial(nf.Encoder, rows=30, before=True)
    model = make_model(
        data,
        field=functools.partial(nf.MLP, linear=True),
        hidden=2,
        start=start,
        observation=nf.NetworkReadout,
        solver=nf.Solver(inputs="hold").for_data(driven=True, inputs="hold"),
        key=jax.random.key(0),
    )
    assert has_place(model)
    begun, error = begin_with_filters(model, data, "hold", 1 / float(model.scaler.time_scale), 0)
    assert error < 0.7
    # What was found by recursions and least squares is what the model simulates, start and readout included.
    fit = begun.predict(data)[:, 100:, 0]
    assert np.sqrt(np.mean((fit - data.ys[:, 100:, 0]) ** 2)) / data.ys.std() < 0.7


@pytest.mark.long
def test_a_rectified_record_is_fitted():
    splits = nf.Split(by="time", validation=0.2, test=0.2)(rectified())
    fit = nf.fit(
        splits.train,
        validation=splits.validation,
        hidden=1,
        training=nf.Training(steps=100),
        options=nf.Options(observation=nf.NetworkReadout, restarts=1),
    )
    assert {choice.key for choice in fit.choices} >= {"filters", "start"}
    assert fit.score(splits.test).nrmse < 0.15


def test_a_start_is_some_rows_before_the_first_that_counts():
    data = rectified(100)
    held = data.score_after(59.0)
    assert start_rows(held, 10).tolist() == [59, 59]
    assert start_rows(held, 10, 20).tolist() == [39, 39]
    assert start_rows(data.score_after(15.0), 10, 20).tolist() == [9, 9]  # the rows that it is read from come first
    assert start_rows(data, 10, 20).tolist() == [9, 9]
    batch = Batch.from_dataset(held, Scaler.from_dataset(data), 10, 20)
    assert not batch.mask[:, :21].any() and batch.mask[:, 21].all()
