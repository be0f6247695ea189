"""Fits as datasets of xarray, and back."""

import functools

import jax
import numpy as np
import pytest

import node_fit as nf


def fit_of(data: nf.Dataset) -> nf.Fit:
    """A fit whose model was never trained."""
    field = functools.partial(nf.Known, equations={"x": "u - x"}, constants={})
    model = nf.make_model(data, field=field, key=jax.random.key(0))
    return nf.Fit(
        model=model,
        members=(),
        status="completed",
        reason="",
        history=[],
        steps=0,
        parameters=0,
        compiles=0,
        cached=0,
        compile_seconds=0.0,
        train_seconds=0.0,
        data={"train": data},
    )


def records(shared: bool) -> nf.Dataset:
    ts = [np.arange(5.0), np.arange(5.0) if shared else np.arange(3.0) + 0.5]
    ys = [np.exp(-t)[:, None] for t in ts]
    us = [np.ones((len(t), 1)) for t in ts]
    return nf.Dataset.from_arrays(
        ts, ys, us, states=["x"], inputs=["u"], trajectories=["a", "b"], units={"x": "m", "t": "s"}
    )


@pytest.mark.parametrize("shared", [True, False])
def test_a_fit_is_a_dataset_of_xarray_and_read_again(shared):
    data = records(shared)
    fit = fit_of(data)
    found = fit.to_xarray()
    assert found["x"].dims == ("trajectory", "t" if shared else "row") and found["x_predicted"].attrs == {"units": "m"}
    np.testing.assert_array_equal(found["x"].values, data.ys[..., 0])
    predicted = np.where(data.valid, fit.predict(data)[..., 0], np.nan)
    np.testing.assert_array_equal(found["x_predicted"].values, predicted)
    assert found["t"].attrs == {"units": "s"}
    if shared:
        again = nf.from_xarray(found, time="t", states=["x"], inputs=["u"])
        np.testing.assert_array_equal(again.ys, data.ys)
        assert again.trajectories == data.trajectories and again.units == data.units


def test_variables_have_names_of_their_own():
    data = records(True)
    clash = nf.Dataset.from_arrays(data.ts[0], data.ys, data.us, states=["x"], inputs=["row"])
    model = nf.make_model(
        clash, field=functools.partial(nf.Known, equations={"x": "row - x"}, constants={}), key=jax.random.key(0)
    )
    fit = fit_of(data)
    object.__setattr__(fit, "model", model)
    with pytest.raises(ValueError, match="can't have two variables"):
        fit.to_xarray(clash)
