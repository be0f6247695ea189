"""Evaluates a fitted noise model at predictions, for residual checks and verdicts."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..likelihood.losses import LEAST_COUNT, LEAST_SCALE, AbstractLikelihood, Predictors, StudentT
from ..model.fields.known import constants_in
from ..model.neural_ode import NeuralODE
from ..model.noise import NoiseModel
from ..runtime.placement import scope

# Probability below the upper end of a 90 % band.
WITHIN = 0.95


def with_model_noise(
    model: NeuralODE, loss: AbstractLikelihood, data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> Dataset:
    """Returns the data with a noise model's standard deviations at predictions; unchanged without a noise model.

    **Arguments:** `predicted`: the channels at the rows of the data, in the user's units.
    """
    noise = model.noise
    if noise is None or not (noise.has_formulas or loss.is_count):
        return data
    with np.errstate(all="ignore"):
        sigma = deviations_at(model, loss, data, np.where(np.isfinite(predicted), predicted, np.nan))
    return replace(data, sigma=np.where(np.isfinite(sigma) & (sigma > 0), sigma, 1.0))


def deviations_at(
    model: NeuralODE, loss: AbstractLikelihood, data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]
) -> Float[np.ndarray, "trajectory time state"]:
    """Computes the standard deviations at predictions, in the units of `Dataset.sigma`."""
    noise, data = model.noise, model.scaler.mark_angles(data)
    assert noise is not None
    with scope("x64"):
        if loss.is_count:
            location = jnp.log(jnp.maximum(jnp.asarray(predicted), LEAST_COUNT))
            zero = jnp.zeros(predicted.shape)
            shapes = tuple(jnp.broadcast_to(jnp.asarray(shape, float), zero.shape) for shape in noise.log_shapes())
            return np.asarray(loss.spread(Predictors(location, zero, shapes, zero, zero)))
        columns = dict(zip(data.states, np.moveaxis(predicted, 2, 0), strict=True))
        columns |= dict(zip(data.inputs, np.moveaxis(data.us, 2, 0), strict=True)) | {data.time: data.ts}
        if any(name in model.hidden for name in noise.formulas.names_used()):
            hidden = model.bands(data).hidden
            columns |= dict(zip(model.hidden, np.moveaxis(np.asarray(hidden), 2, 0), strict=True))
        names = {name: jnp.asarray(value, float) for name, value in {**columns, **model.constants()}.items()}
        for part in constants_in((model.field, model.observation)):
            names |= {item.name: jax.vmap(jax.vmap(partial(part.choose, item)))(names[item.by]) for item in part.local}
        channels = jnp.asarray(np.moveaxis(predicted, 2, 0))
        deviations = np.asarray(noise.deviations(names, channels))
    floor = LEAST_SCALE * np.where(noise.is_log(), 1.0, np.asarray(model.scaler.state_scale, np.float64))
    sigma = np.hypot(np.moveaxis(deviations, 0, 2), floor) * typical_share(noise, loss)
    return np.where(noise.is_log(), sigma * np.abs(predicted), sigma)


def typical_share(noise: NoiseModel, loss: AbstractLikelihood) -> float | Float[np.ndarray, " state"]:
    """Returns the ratio to the scale of the standard deviation of normal noise with the same 90 % band."""
    from scipy.special import ndtri, stdtrit

    if not isinstance(loss, StudentT):
        return 1.0
    degrees = np.exp(np.asarray(noise.log_shapes()[0], np.float64)) if loss.shapes else float(loss.number)
    return np.asarray(stdtrit(degrees, WITHIN) / ndtri(WITHIN))
