"""Derivative matching: the field against derivatives estimated from the data, with no solver in the loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..data.dataset import Dataset, cut
from ..data.facts import Facts
from ..data.interpolation import FEWEST_SMOOTHED, smooth
from ..model.neural_ode import NeuralODE
from ..runtime.placement import AnyArray
from ..runtime.validation import check_fields
from ..solver.triggers import has_triggers
from .losses import Penalty
from .objective import AbstractLeastSquares, Residuals, Target, measured_count

# Of very many rows, this multiple of the points in use is smoothed, in pieces of this many rows.
ENOUGH_ROWS, DERIVATIVE_PIECE = 4, 512


class Slopes(eqx.Module):
    """Points of smoothed trajectories and the derivatives there, in scaled units; one row per time."""

    ts: Float[AnyArray, " point"]
    ys: Float[AnyArray, "point state"]
    us: Float[AnyArray, "point input"]
    rates: Float[AnyArray, "point state"]
    mask: Bool[AnyArray, "point state"]


class DerivativeMatching(AbstractLeastSquares):
    """Mean squared difference of the field and the derivatives of smoothing splines through the data.

    The cheapest start of a fit (two-stage regression: Varah, SIAM J. Sci. Stat. Comput. 3, 1982). It is biased by
    noise, so it comes before trajectory matching and does not replace it.

    **Arguments:**

    - `penalty`: penalties on the field and its weights.
    - `most`: maximum number of points, evenly spread over the data.

    It needs a model whose states are all measured, since the derivatives of hidden states are unknown.
    """

    penalty: Penalty = eqx.field(default_factory=Penalty)
    most: int = eqx.field(static=True, default=8192)

    def __check_init__(self):
        check_fields(self)

    def why_not(self, model: NeuralODE, facts: Facts) -> str | None:
        if not model.is_measured:
            return "no derivative stage, since the derivatives of states that are not measured are unknown"
        if facts.events or has_triggers(model.field):
            return "no derivative stage, since splines do not jump at events"
        if not facts.smoothable:
            return f"no derivative stage, since no trajectory has {FEWEST_SMOOTHED} measurements of every state"
        return None

    def prepare(self, data: Dataset, model: NeuralODE) -> Slopes:
        if not model.is_measured:
            raise ValueError("derivative matching needs a model whose states are all measured; leave the stage out.")
        data = evenly(data, ENOUGH_ROWS * self.most)
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

    def residuals(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Residuals:
        batch: Slopes = target.batch
        at: tuple[Array, Array, Array] = jax.tree.map(jnp.asarray, (batch.ts, batch.ys, batch.us))
        rates = jax.vmap(model.field)(*at)
        off = jnp.where(batch.mask, rates - batch.rates, 0)
        points = jax.tree.map(lambda x: x[:, None], at)
        seen = jnp.asarray(batch.mask).any(axis=1)[:, None]
        asked = self.penalty.residuals(model.field, points, seen, jnp.maximum(batch.mask.sum(), 1))
        count = measured_count(batch.mask, off.dtype)
        return Residuals(jnp.concatenate([off, asked], axis=1), count, jnp.zeros((), jnp.int32))


def evenly(data: Dataset, most: int) -> Dataset:
    """Pieces of trajectories, evenly spread, with about `most` rows in total; everything if there are fewer."""
    if data.lengths.sum() <= most:
        return data
    pieces = data.pieces(DERIVATIVE_PIECE, DERIVATIVE_PIECE)
    share = most / sum(end - begin for _, begin, end in pieces)
    chosen = np.linspace(0, len(pieces) - 1, max(int(share * len(pieces)), 1)).astype(int)
    return cut(data, [pieces[index] for index in chosen], [str(index) for index in chosen])
