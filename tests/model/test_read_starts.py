"""A start that is read from several rows asks for them."""

import functools

import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.predict import check_starts

ROWS, TS = 10, np.arange(120.0)


@pytest.fixture(scope="module")
def model() -> nf.NeuralODE:
    data = record(len(TS))
    return nf.make_model(data, hidden=1, start=functools.partial(nf.Encoder, rows=ROWS), key=jax.random.key(0))


def record(measured: int) -> nf.Dataset:
    """A driven record, of which so many rows are measured."""
    ys = np.where(measured > TS, np.sin(TS / 9), np.nan)
    return nf.Dataset.from_arrays(TS, ys[:, None], np.cos(TS)[:, None], states=["y"], inputs=["u"])


def test_one_row_is_no_start_of_a_model_that_reads_ten(model):
    """It would be read as ten rows of which nine are lacking, which training has never seen."""
    with pytest.raises(ValueError, match="read from 10 measured rows, and y0 is one; pass data that begin"):
        model.predict(y0={"y": 0.0}, ts=TS, u=np.ones(len(TS)))


@pytest.mark.parametrize(("measured", "refused"), [(1, True), (4, True), (5, False), (120, False)])
def test_new_trajectories_must_measure_half_of_the_rows(model, measured, refused):
    if not refused:
        return check_starts(model, record(measured))
    with pytest.raises(ValueError, match=f"has {measured} of the 10 first rows measured"):
        check_starts(model, record(measured))


def test_other_models_start_from_one_row():
    model = nf.make_model(record(len(TS)), key=jax.random.key(0))
    check_starts(model, record(1))
    assert model.start.read_rows == 1 and model.starting_from({"y": 0.0}, TS, np.ones(len(TS))).ys[0, 0, 0] == 0
