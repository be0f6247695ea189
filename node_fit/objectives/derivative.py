"""Derivative matching: the field against derivatives estimated from the data, with no solver in the loop."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..dataset import Dataset
from ..model import NeuralODE
from ..smoothing import smooth
from .objective import AbstractObjective, Loss, masked_mean, ridge_penalty


class Slopes(eqx.Module):
    """Points of smoothed trajectories and the derivatives there, in scaled units, one row a measurement."""

    ts: Float[Any, " point"]
    ys: Float[Any, "point state"]
    us: Float[Any, "point input"]
    rates: Float[Any, "point state"]
    mask: Bool[Any, "point state"]


class DerivativeMatching(AbstractObjective):
    """Mean squared difference of the field and the derivatives of smoothing splines through the data.

    The cheapest start of a fit (two-stage regression: Varah, SIAM J. Sci. Stat. Comput. 3, 1982). It is biased by
    noise, so it comes before trajectory matching and does not replace it.

    **Arguments:**

    - `most`: points used at the most, evenly spread over all.
    - `ridge`: see `TrajectoryMatching`.

    It needs models all of whose states are measured, since nobody knows the derivatives of the others.
    """

    most: int = eqx.field(static=True, default=8192)
    ridge: float | Float[Array, ""] = 0.0

    def prepare(self, data: Dataset, model: NeuralODE) -> Slopes:
        if not model.is_measured:
            raise ValueError("derivative matching needs models all of whose states are measured; leave the stage out.")
        ts = model.scaler.scale_times(data.ts)
        known = np.where(data.mask, model.scaler.scale_states(data.ys), np.nan)
        ys, rates = smooth(ts, known)
        usable = np.argwhere(np.isfinite(ys).all(axis=2))
        spread = np.linspace(0, len(usable) - 1, min(self.most, len(usable))).astype(int)
        at = tuple(usable[spread].T)
        return Slopes(
            ts=ts[at],
            ys=ys[at],
            us=model.scaler.scale_inputs(data.us)[at],
            rates=rates[at],
            mask=np.isfinite(rates[at]),
        )

    def loss(self, model: NeuralODE, batch: Slopes) -> Loss:
        rates = jax.vmap(model.field)(batch.ts, batch.ys, batch.us)
        misfit = masked_mean((rates - batch.rates) ** 2, batch.mask)
        return Loss(misfit + ridge_penalty(model.field, self.ridge, batch.mask), jnp.zeros((), jnp.int32))
