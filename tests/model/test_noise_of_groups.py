"""The noise of measurements beside constants that groups of trajectories have of their own."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import node_fit as nf
from node_fit.evaluation.noise import deviations_at
from node_fit.likelihood.losses import LEAST_SQUARES
from node_fit.runtime.placement import scope

RATES = (0.5, 0.25)


@pytest.mark.parametrize("by", ["strain", "trajectory"])
def test_a_formula_of_the_noise_reads_local_constants(by):
    """Each trajectory has the noise of its own rate, in the likelihood as in the checks of residuals."""
    ts = np.linspace(0, 2, 7)
    ys = np.exp(-np.outer(RATES, ts))[..., None]
    strain = np.broadcast_to(np.reshape([3.0, 7.0], (2, 1, 1)), ys.shape)
    names = ["A", "B"]
    sigma = {"c": {"formula": "s0*k*gain", "constants": {"s0": 0.1}}}
    data = nf.Dataset.from_arrays(ts, ys, strain, states=["c"], inputs=["strain"], trajectories=names, sigma=sigma)
    with scope("x64"):
        model = nf.make_model(
            data,
            field=partial(nf.Known, equations={"x": "-k*x"}, constants={"k": 1.0}, local={"k": by}),
            hidden=["x"],
            observation=partial(nf.FormulaReadout, formulas={"c": "gain*x"}, constants={"gain": 2.0}),
            start=partial(nf.Stated, values={"x": "0.5"}),
            key=jax.random.key(0),
        )
        model = eqx.tree_at(lambda model: model.field.constants.raw, model, np.array(RATES))
        batch = model.batch(model.scaler.mark_angles(data))
        predictors = model.predictors(jnp.zeros(ys.shape), batch, counts=False)
        expected = model.constants()["s0"] * 2.0 * np.reshape(RATES, (2, 1, 1)) * np.ones(ys.shape)
        sigma = np.exp(np.asarray(predictors.log_scale)) * np.asarray(model.scaler.state_scale)
        np.testing.assert_allclose(sigma, expected, rtol=1e-4)
        np.testing.assert_allclose(deviations_at(model, LEAST_SQUARES, data, ys), expected, rtol=1e-4)
